"""From ops to instructions: each op becomes the body of the first rule that fits, or its meaning,
until only primitives are
left. And the table of what is legal at which stage.
"""

from __future__ import annotations

from collections.abc import Collection

from satchel.base.dtypes import f16, i64
from satchel.base.errors import KernelError
from satchel.lang import rules as _rules  # noqa: F401  # pyright: ignore[reportUnusedImport]  (adds the rules)
from satchel.lang.ir import Function, Inst, Loop, Stmt, Type, Value, rebuild
from satchel.lang.ops import OPS, Op, Rule
from satchel.lang.primitives import EFFECTS, PRIMITIVES, result_type
from satchel.lang.trace import Scope, Tracer, V, concat, tracing

_EVERYWHERE = PRIMITIVES.keys() - {"native"}
LEGAL = {"traced": _EVERYWHERE, "lowered": PRIMITIVES.keys(), "meaning": _EVERYWHERE}
"""The primitives that may stand at a stage: as traced (ops may, too), as lowered for a target, and
as lowered to meanings alone (for numpy)."""


def choose_rule(op: Op, inst: Inst, features: Collection[str]) -> Rule | None:
    """The first rule whose features are there and which takes the op's width and attributes; None:
    use the meaning.
    """
    return next((r for r in op.rules if r.features <= set(features) and r.takes(inst)), None)


def lower(function: Function, features: Collection[str], rule: Rule | None = None) -> Function:
    """Only primitives are left. `rule` is taken wherever it fits (tests name the one they mean).

    Raises KernelError on an op that nobody knows.
    """
    tracer = Tracer()

    def expand(inst: Inst, args: tuple[Value, ...]) -> tuple[list[Stmt], Value | None]:
        if inst.op == "const":
            return [], tracer.const(inst.attr("type"), inst.attr("value"))
        if inst.op in PRIMITIVES:
            result = V(inst.result.type) if inst.result is not None else None
            return [Inst(inst.op, args, inst.attrs, result)], result
        op = OPS.get(inst.op)
        if op is None:
            raise KernelError(f"{function.name}: no op is called {inst.op}")
        forced = rule is not None and rule in op.rules and rule.takes(inst)
        chosen = rule if forced else choose_rule(op, inst, features)
        tracer.scopes.append(Scope())
        value = apply(op, chosen, inst, tuple(as_v(a) for a in args))
        body = tuple(tracer.scopes.pop().body)
        names: dict[Value, Value] = {a: a for a in args}
        names.update((c.result, c.result) for c in tracer.consts.values() if c.result is not None)
        return list(rebuild(body, expand, names, V)), names[value]

    names: dict[Value, Value] = {p: V(p.type) for p in function.params}
    with tracing(tracer):
        body = rebuild(function.body, expand, names, V)
    return Function(
        function.name, tuple(names[p] for p in function.params), (*tracer.consts.values(), *body)
    )


def as_v(value: Value) -> V:
    assert isinstance(value, V)
    return value


def apply(op: Op, rule: Rule | None, inst: Inst, args: tuple[V, ...]) -> V:
    """The rule's body on pieces of its register's width, or the meaning."""
    attrs = dict(inst.attrs)
    if rule is None:
        return op.body(*args, **attrs)
    assert inst.result is not None
    pieces = 1 if rule.bits is None else inst.result.type.bits // rule.bits
    cut = [
        [a[k * a.lanes // pieces : (k + 1) * a.lanes // pieces] for a in args]
        for k in range(pieces)
    ]
    return concat(*(rule.body(*piece, **attrs) for piece in cut))


def check(function: Function, stage: str) -> None:
    """All values are made once, before they are used, and not in a loop that has ended; every op is
    legal and its types right.

    Raises KernelError saying which not.
    """
    made: set[Value] = set(function.params)

    def refuse(what: str) -> KernelError:
        return KernelError(f"{function.name}: {what}")

    def define(values: tuple[Value, ...], known: set[Value]) -> None:
        if not made.isdisjoint(values):
            raise refuse("a value is made twice")
        made.update(values)
        known.update(values)

    def use(values: tuple[Value, ...], known: set[Value], where: str) -> None:
        if not known.issuperset(values):
            raise refuse(f"{where} uses a value before it is made, or after the loop that made it")

    def visit_loop(s: Loop, known: set[Value]) -> None:
        use((*s.bounds, *s.inits), known, "a loop")
        if any(b.type != Type(i64) for b in (s.index, *s.bounds)):
            raise refuse("a loop does not count in i64")
        inside = set(known)
        define((s.index, *s.params), inside)
        visit(s.body, inside)
        use(s.yields, inside, "a loop's yield")
        carried = [
            tuple(v.type for v in values) for values in (s.params, s.inits, s.yields, s.results)
        ]
        if any(types != carried[0] for types in carried):
            raise refuse("a loop carries values of changing types")
        define(s.results, known)

    def visit(body: tuple[Stmt, ...], known: set[Value]) -> None:
        for s in body:
            if isinstance(s, Loop):
                visit_loop(s, known)
                continue
            use(s.args, known, s.op)
            try:
                expected = type_of(s, stage)
            except KernelError as e:
                raise refuse(f"{s.op} {e}") from None
            found = s.result.type if s.result is not None else None
            if found != expected:
                raise refuse(f"{s.op} makes {expected or 'nothing'}, not {found or 'nothing'}")
            if s.result is not None:
                define((s.result,), known)

    visit(function.body, set(function.params))


def is_legal(op: str, stage: str) -> bool:
    return op in LEGAL[stage] or (stage == "traced" and op in OPS)


def type_of(inst: Inst, stage: str) -> Type | None:
    """What an instruction makes at a stage; None for those of EFFECTS. Raises KernelError where it
    is not legal.
    """
    if not is_legal(inst.op, stage):
        raise KernelError(f"is not legal once {stage}")
    types = tuple(a.type for a in inst.args)
    if inst.op in OPS:
        return OPS[inst.op].type(inst.op, types, inst.attrs)
    kind = result_type(inst.op, types, inst.attrs)
    if inst.op == "convert" and stage != "lowered" and f16 in (kind.dtype, types[0].dtype):
        raise KernelError("takes halfs on some targets only: cast them")
    return None if inst.op in EFFECTS else kind
