"""Programs without their names: equal layers of a model are searched and measured once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from einnet_explore.ir import Equation, Program, Scope, map_tensors
from einnet_explore.render import text


@dataclass(frozen=True, slots=True)
class Anonymous:
    """A program whose tensors are called by their positions, and the original name of each.

    Two layers of a model that differ in names only have equal programs here.
    """

    program: Program
    names: Mapping[str, str]

    @property
    def signature(self) -> str:
        """The program's text: the key under which results about it are remembered."""
        return text(self.program)


def anonymous(program: Program) -> Anonymous:
    """*program* with its inputs called ``x1, x2, …`` (weights ``w1, …``) and its equations ``y1, y2, …``."""
    to: dict[str, str] = {}
    for tensor in program.inputs:
        stem = "w" if tensor.weight else "x"
        to[tensor.name] = f"{stem}{1 + sum(name[0] == stem for name in to.values())}"
    for n, equation in enumerate(program.equations, 1):
        to[equation.name] = f"y{n}"
    renamed = Program(
        tuple(replace(t, name=to[t.name]) for t in program.inputs),
        tuple(Equation(to[e.name], _renamed(e.scope, to), e.via) for e in program.equations),
        tuple(to[name] for name in program.outputs),
    )
    return Anonymous(renamed, {new: old for old, new in to.items()})


def _renamed(scope: Scope, to: Mapping[str, str]) -> Scope:
    return map_tensors(scope, lambda tensor: replace(tensor, name=to[tensor.name]))
