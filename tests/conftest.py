"""What all rooms' tests share: the real models, and the mark that `make check` leaves out."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("untimed", deadline=None)  # how busy a machine is, is no bug
hypothesis.settings.load_profile("untimed")

REAL_MODELS = ("smollm2", "gemma3")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that needs a real model is slow, whether it names the fixture or is given its name."""
    for item in items:
        given = getattr(item, "callspec", None)
        values = (
            [value for value in given.params.values() if isinstance(value, str)] if given else []
        )
        if set(REAL_MODELS) & {*getattr(item, "fixturenames", ()), *values}:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models that are compiled keep their kernels, so that no other test compiles them again:
    one folder for all processes that share the tests. For tests that aren't about the cache.
    """
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "cache"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: the file, fetched once into the model store."""
    from satchel.files.store import resolve

    return resolve("smollm2")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M, Q4_K_M: the file, fetched once into the model store."""
    from satchel.files.store import resolve

    return resolve("gemma3-270m")
