"""From ops to instructions: each op becomes the body of the first rule that fits, or its meaning, until only primitives are
left. And the table of what is legal at which stage.
"""

from __future__ import annotations

from collections.abc import Collection

import satchel.lang.rules  # noqa: F401  (adds the rules)
from satchel.base.dtypes import i64
from satchel.base.errors import KernelError
from satchel.lang.ir import Function, Inst, Loop, Stmt, Type, Value, rebuild
from satchel.lang.ops import OPS, Op, Rule
from satchel.lang.primitives import PRIMITIVES, result_type
from satchel.lang.trace import Scope, Tracer, V, concat, tracing

LEGAL = {
    "traced": (PRIMITIVES.keys() - {"native"}) | OPS.keys(),
    "lowered": PRIMITIVES.keys(),
    "meaning": PRIMITIVES.keys() - {"native"},
}
"""The ops that may stand at a stage: as traced, as lowered for a target, and as lowered to meanings alone (for numpy)."""


def choose_rule(op: Op, inst: Inst, features: Collection[str]) -> Rule | None:
    """The first rule whose features are there and which takes the op's width and attributes; None: use the meaning."""
    assert inst.result is not None
    for rule in op.rules:
        if rule.features <= set(features) and rule.fits(inst.result.type, dict(inst.attrs)):
            return rule
    return None


def lower(function: Function, features: Collection[str], rule: Rule | None = None) -> Function:
    """Only primitives are left. `rule` is tried before all others (tests name the one they mean).

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
        chosen = rule if rule is not None and rule in op.rules else choose_rule(op, inst, features)
        tracer.scopes.append(Scope())
        value = apply(op, chosen, inst, tuple(V_of(a) for a in args))
        body = tuple(tracer.scopes.pop().body)
        names: dict[Value, Value] = {a: a for a in args}
        names.update((c.result, c.result) for c in tracer.consts.values() if c.result is not None)
        return list(rebuild(body, expand, names, V)), names[value]

    names: dict[Value, Value] = {p: V(p.type) for p in function.params}
    with tracing(tracer):
        body = rebuild(function.body, expand, names, V)
    return Function(function.name, tuple(names[p] for p in function.params), (*tracer.consts.values(), *body))


def V_of(value: Value) -> V:
    assert isinstance(value, V)
    return value


def apply(op: Op, rule: Rule | None, inst: Inst, args: tuple[V, ...]) -> V:
    """The rule's body on pieces of its register's width, or the meaning."""
    attrs = dict(inst.attrs)
    if rule is None:
        return op.body(*args, **attrs)
    assert inst.result is not None
    pieces = 1 if rule.bits is None else inst.result.type.bits // rule.bits
    cut = [[a[k * a.lanes // pieces : (k + 1) * a.lanes // pieces] for a in args] for k in range(pieces)]
    return concat(*(rule.body(*piece, **attrs) for piece in cut))


def check(function: Function, stage: str) -> None:
    """Every value is made before it is used, every type is right, every op is legal. Raises KernelError saying which not."""
    known = set(function.params)

    def use(values: tuple[Value, ...], where: str) -> None:
        if not known.issuperset(values):
            raise KernelError(f"{function.name}: {where} uses a value before it is made")

    def visit(body: tuple[Stmt, ...]) -> None:
        for s in body:
            if isinstance(s, Loop):
                use((*s.bounds, *s.inits), "a loop")
                types = [(p.type, i.type, y.type) for p, i, y in zip(s.params, s.inits, s.yields, strict=True)]
                if any(len(set(t)) > 1 for t in types) or any(b.type != Type(i64) for b in (s.index, *s.bounds)):
                    raise KernelError(f"{function.name}: a loop carries a value of changing type, or does not count in i64")
                known.update((s.index, *s.params))
                visit(s.body)
                use(s.yields, "a loop's yield")
                known.update(s.results)
                continue
            use(s.args, s.op)
            if s.op not in LEGAL[stage]:
                raise KernelError(f"{function.name}: {s.op} is not legal once {stage}")
            made = result_type(s.op, tuple(a.type for a in s.args), s.attrs) if s.op in PRIMITIVES else None
            if s.result is not None:
                if made is not None and made != s.result.type:
                    raise KernelError(f"{function.name}: {s.op} makes {made}, not {s.result.type}")
                known.add(s.result)

    visit(function.body)


