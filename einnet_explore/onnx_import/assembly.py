"""Assembly of the equations of single nodes into one program with one padding for each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from einnet_explore.ir import (
    Access,
    Box,
    Equation,
    Iterator,
    Padding,
    Program,
    Scope,
    Table,
    Tensor,
    map_accesses,
    tensors,
)

PaddedWith: TypeAlias = "tuple[Padding, float]"
"""Padding of a tensor and its value."""


def assemble(equations: Iterable[Equation], outputs: tuple[str, ...]) -> Program:
    """Return the program of *equations*; its inputs are the tensors that no equation computes.

    All readers of a tensor share its widest padding.  If they expect different values in the padding (0 for a
    convolution, -inf for a maximum), readers of the rarer value read a scope that copies the tensor and is padded with
    that value.
    """
    equations = tuple(equations)
    made = {e.name: e.scope for e in equations}
    reads: dict[str, list[Tensor]] = {}
    for e in equations:
        for tensor in tensors(e.scope):
            reads.setdefault(tensor.name, []).append(tensor)
    common = {name: _common(found) for name, found in reads.items()}
    out = []
    for e in equations:
        scope = _unified(e.scope, common)
        padding, value = common.get(e.name, ((), 0.0))
        out.append(replace(e, scope=replace(scope, padding=padding, value=value) if padding else scope))
    inputs = (replace(found[0], padding=common[name][0], value=common[name][1]) for name, found in reads.items())
    return Program(tuple(t for t in inputs if t.name not in made), tuple(out), outputs)


def _common(found: list[Tensor]) -> PaddedWith:
    """The padding that most readers agree on: the widest of those with the commonest value."""
    padded = [t for t in found if t.padding]
    if not padded:
        return (), 0.0
    value = Counter(t.value for t in padded).most_common(1)[0][0]
    return _widest(t.padding for t in padded if t.value == value), value


def _widest(paddings: Iterable[Padding]) -> Padding:
    return tuple(
        (max(before for before, _ in dimension), max(after for _, after in dimension))
        for dimension in zip(*paddings, strict=True)
    )


def _unified(scope: Scope, common: Mapping[str, PaddedWith]) -> Scope:
    """Return *scope* with every tensor in its common padding, or read through a copy with another padding value."""

    def change(access: Access) -> Access:
        match access.source:
            case Table():
                return access
            case Scope() as inner:
                return Access(_unified(inner, common), access.index)
            case Tensor(name=name) as tensor:
                padding, value = common[name]
                shared = replace(tensor, padding=padding, value=value if padding else 0)
                if tensor.padding and tensor.value != value:
                    return Access(_copy(shared, tensor.padding, tensor.value), access.index)
                return Access(shared, access.index)

    return replace(scope, body=map_accesses(scope.body, change))


def _copy(tensor: Tensor, padding: Padding, value: float) -> Scope:
    box: Box = tensor.box
    xs = tuple(Iterator(f"i{n}", lo, hi) for n, (lo, hi) in enumerate(box))
    return Scope(xs, (), tensor[xs], padding=padding, value=value)
