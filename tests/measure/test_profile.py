"""Where the time of a step goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from satchel.compiler.model import CompiledModel
from satchel.files.checkpoint import open_checkpoint
from satchel.measure import profile, shapes
from satchel.measure.bench import Runner, load_for
from satchel.measure.costs import Cost, Costs
from satchel.measure.limits import LimitMeter
from satchel.measure.profile import Report, Roofs, profile_cases, profile_model
from satchel.measure.shapes import Shape
from satchel.measure.work import Attention, work_of
from satchel.text import load_tokenizer

TOY = Shape("llama", 2, 128, 256, 2, 1, 64, 300, "llama-bpe", 512, 1e4)
N, DEPTH = 40, 10


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shapes.SHAPES, "toy", TOY)
        shapes.write_shape(path, "toy", "q8_0")
    return path


@pytest.fixture(scope="module")
def model(file: Path) -> Iterator[CompiledModel]:
    with load_for(open_checkpoint(file), profile_cases(N, DEPTH), 2) as model:
        yield model


@pytest.fixture(scope="module")
def report(model: CompiledModel, file: Path) -> Report:
    tokenizer = load_tokenizer(open_checkpoint(file).metadata)
    return profile_model(model, tokenizer, name="toy", n_prompt=N, depth=DEPTH)


def test_costs_add_up_to_the_work(model: CompiledModel) -> None:
    work, costs = work_of(model.graph, model.lowered), Costs(model)
    batch = Runner(model).batch(DEPTH, N)
    total = sum((costs.of(step, batch) for step in model.plan.steps), Cost())
    assert total.code_mads == work.layer_mads * N + work.head_mads
    seen = sum(range(DEPTH + 1, DEPTH + N + 1))  # positions that tokens look at, all together
    assert total.float_mads == TOY.n_layers * 2 * TOY.n_heads * TOY.head_dim * seen
    kv_bytes = TOY.n_layers * 2 * TOY.n_kv_heads * TOY.head_dim * 2 * (DEPTH + N)
    rows = N * TOY.dim // 32 * 34  # of the embedding
    assert total.memory_bytes == work.weight_bytes + kv_bytes + rows
    assert total.cache_bytes > N * TOY.n_layers * TOY.dim * 4


def test_a_window_bounds_what_is_read() -> None:
    layer = Attention(kv_bytes=8, heads_dim=64, window=4)
    assert [layer.seen(p) for p in (0, 3, 4, 100)] == [1, 4, 4, 4]


def test_the_least_time_of_a_cost() -> None:
    roofs = Roofs(100.0, 1000.0, 50.0, 10.0)
    assert roofs.seconds(Cost(memory_bytes=200)) == (2, "memory")
    assert roofs.seconds(Cost(memory_bytes=200, cache_bytes=1000)) == (3, "memory")
    assert roofs.seconds(Cost(memory_bytes=200, code_mads=100, float_mads=30)) == (5, "multiply")
    assert roofs.seconds(Cost(cache_bytes=10)) == (0.01, "cache")


def test_a_step_is_work_waiting_and_python(report: Report) -> None:
    assert [step.test for step, _ in report.steps] == [f"pp{N}", "tg"]
    for step, kernels in report.steps:
        parts = step.work_ms + step.waiting_ms + step.python_ms
        assert step.ms == pytest.approx(parts)
        assert 0 <= step.python_share <= 1
        assert sum(k.share for k in kernels) == pytest.approx(1)
        assert sum(k.ms for k in kernels) == pytest.approx(step.work_ms)
        assert [k.ms for k in kernels] == sorted((k.ms for k in kernels), reverse=True)


def test_every_row_is_beside_the_same_limits(
    model: CompiledModel, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a bad moment came first, and then one that no machine has."""
    usual = Roofs(4e10, 1e11, 4e11, 1e11)
    samples = iter([Roofs(1e9, 2e9, 3e9, 4e9), Roofs(9e10, 9e11, 9e11, 9e11)])

    def measure_roofs(_: LimitMeter) -> Roofs:
        return next(samples, usual)

    monkeypatch.setattr(profile, "measure_roofs", measure_roofs)
    tokenizer = load_tokenizer(open_checkpoint(file).metadata)
    report = profile_model(model, tokenizer, name="toy", n_prompt=N, depth=DEPTH)
    assert report.roofs == usual
    costs, runner = Costs(model), Runner(model)
    for (step, kernels), n in zip(report.steps, (N, 1), strict=True):
        total = Cost()
        for one in model.plan.steps:
            total += costs.of(one, runner.batch(DEPTH, n))
        assert step.limit_ms == pytest.approx(1e3 * usual.seconds(total)[0])
        for kernel in kernels:
            ones = [s for s in model.plan.steps if s.kernel == kernel.kernel]
            cost = sum((costs.of(one, runner.batch(DEPTH, n)) for one in ones), Cost())
            least_ms = 1e3 * usual.seconds(cost)[0]
            assert kernel.fraction_of_limit == pytest.approx(least_ms / kernel.ms)


def test_every_kernel_that_ran_is_named(report: Report, model: CompiledModel) -> None:
    ran = {step.kernel for step in model.plan.steps if step.tiles.scalar != "embedded"}
    for _, kernels in report.steps:
        assert {k.kernel for k in kernels} == ran
        assert sum(k.calls for k in kernels) == sum(s.kernel in ran for s in model.plan.steps)


def test_the_engine_costs_python(report: Report) -> None:
    assert [e.sampler for e in report.engine] == ["greedy", "sampled"]
    assert all(0 < e.python_ms < e.ms * 1.5 for e in report.engine)


def test_lines(report: Report) -> None:
    found = [json.loads(json.dumps(line)) for line in report.lines()]
    kinds = [line["kind"] for line in found]
    assert kinds[0] == "limits"
    assert (kinds.count("step"), kinds.count("engine")) == (2, 2)
    assert {line["model"] for line in found} == {"toy"}
    assert all("python_share" in line for line in found if line["kind"] in ("step", "engine"))


def test_a_prompt_may_be_left_out(file: Path) -> None:
    checkpoint = open_checkpoint(file)
    with load_for(checkpoint, profile_cases(0, 0), 1) as model:
        found = profile_model(model, load_tokenizer(checkpoint.metadata), name="t", n_prompt=0)
    assert [step.test for step, _ in found.steps] == ["tg"]
