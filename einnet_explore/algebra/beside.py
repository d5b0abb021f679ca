"""Two programs side by side: whether they fit by names and shapes, and which parts of them are to be compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from einnet_explore.ir import (
    Access,
    Apply,
    Box,
    Program,
    Scalar,
    Scope,
    Tensor,
    accesses,
    map_accesses,
    tensors,
)


def unfit(before: Program, after: Program) -> str | None:
    """Why *after* cannot stand for *before*, by names and shapes alone: what is there, what is read."""
    if before.outputs != after.outputs:
        return f"outputs are {', '.join(after.outputs)}, expected {', '.join(before.outputs)}"
    given = {t.name: t for t in before.inputs}
    for t in after.inputs:
        if t.name not in given or given[t.name].shape != t.shape:
            expected = given[t.name].shape if t.name in given else "no such input"
            return f"input {t.name} has shape {t.shape}, expected {expected}"
        if given[t.name].box != t.box:
            return f"input {t.name} has box {_box(t.box)}, expected {_box(given[t.name].box)}"
    held = {t.name: t for t in after.inputs}
    defined: set[str] = set()
    for equation in after.equations:
        for t in _read(equation.scope):
            source = held.get(t.name)
            if source is None:
                return f"{equation.name} reads {t.name}, which is no input and no earlier equation"
            if source.box != t.box or (t.name in defined and t.value != source.value):
                return f"{equation.name} reads {t.name} as {_shown(t)}, but it is {_shown(source)}"
            if t.name in defined and t.padding != source.padding and not _covers(source.reach, t.reach):
                # What lies there is not what its scope holds there.
                return f"{equation.name} reads {t.name} in {_box(t.reach)}, but it reaches over {_box(source.reach)}"
        if equation.name in held:
            return f"{equation.name} is defined twice"
        held[equation.name] = equation.tensor
        defined.add(equation.name)
    boxes = {e.name: e.scope.box for e in before.equations}
    for name in before.outputs:
        if name in boxes and (name not in defined or held[name].box != boxes[name]):
            found = _box(held[name].box) if name in defined else "nothing"
            return f"output {name} has box {found}, expected {_box(boxes[name])}"
        if name not in boxes and (name in defined or name not in held):
            found = "an equation" if name in defined else "nothing"
            return f"output {name} is {found}, expected the input of this name"
    return None


@lru_cache(1 << 14)
def _read(scope: Scope) -> tuple[Tensor, ...]:
    return tuple(tensors(scope))


def inlined(program: Program, kept: Iterable[str]) -> dict[str, Scope]:
    """Every equation's scope by name, with the equations that are not *kept* substituted into their readers."""
    keep = set(kept)
    out: dict[str, Scope] = {}
    memo: dict[Scope, Scope] = {}

    def at(access: Access) -> Scalar:
        match access.source:
            case Tensor(name) as source if name in out and name not in keep:
                return Access(replace(out[name], padding=source.padding), access.index)
            case Scope() as source:
                return Access(within(source), access.index)
        return access

    def within(scope: Scope) -> Scope:
        if scope not in memo:
            body = map_accesses(scope.body, at)
            memo[scope] = scope if body == scope.body else replace(scope, body=body)
        return memo[scope]

    for equation in program.equations:
        out[equation.name] = within(equation.scope)
    return out


def children(before: Scope, after: Scope) -> list[tuple[int, Scope, Scope]]:
    """The numbered sub-scopes in which two scopes differ, if everything around them is the same; else nothing."""
    if replace(after, body=before.body, padding=before.padding) != before:
        return []
    if not _alike(before.body, after.body):
        return []
    pairs = zip(accesses(before.body), accesses(after.body), strict=True)
    return [
        (n, b.source, a.source)
        for n, (b, a) in enumerate(pairs)
        if b.source != a.source and isinstance(b.source, Scope) and isinstance(a.source, Scope)
    ]


def _alike(a: Scalar, b: Scalar) -> bool:
    """Whether two bodies differ in nothing but the scopes that they read."""
    match a, b:
        case Access(Scope(), i), Access(Scope(), j):
            return i == j
        case Apply(f, x), Apply(g, y):
            return f == g and len(x) == len(y) and all(map(_alike, x, y))
    return a == b


def pairs(a: Scalar, b: Scalar) -> list[tuple[Access, Access]] | None:
    """The accesses of two bodies in pairs, if the bodies differ in nothing else."""
    match a, b:
        case Access(), Access():
            return [(a, b)]
        case Apply(f, x), Apply(g, y) if f == g and len(x) == len(y):
            found = [pairs(one, other) for one, other in zip(x, y, strict=True)]
            return None if None in found else [pair for some in found if some for pair in some]
    return [] if a == b else None


def _covers(box: Box, other: Box) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(box, other, strict=True))


def _box(box: Box) -> str:
    return " × ".join(f"[{lo}, {hi})" for lo, hi in box) or "scalar"


def _shown(t: Tensor) -> str:
    return f"{_box(t.box)} with value {t.value:g} outside"
