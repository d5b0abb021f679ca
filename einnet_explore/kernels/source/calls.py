"""Functions and choices of the kernel language."""

from __future__ import annotations

from einnet_explore.ir.node import node
from einnet_explore.kernels.source.types import BOOL, F32, F64, KernelError, Type
from einnet_explore.kernels.source.values import Expr, ExprLike, joined, literal

CALLS: dict[str, int] = {
    "exp": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "tanh": 1, "erf": 1, "floor": 1, "sigmoid": 1, "pow": 2, "fma": 3,
    "abs": 1, "maximum": 2, "minimum": 2,
}  # fmt: skip
"""The functions and how many arguments each takes; the last three take integers too."""


@node
class Call(Expr):
    """A function of ``CALLS``, of arguments of one type; made by ``call``."""

    name: str
    args: tuple[Expr, ...]

    @property
    def type(self) -> Type:
        return self.args[0].type


@node
class Select(Expr):
    """*yes* where *condition* holds, else *no*; only the one that is chosen is evaluated."""

    condition: Expr
    yes: Expr
    no: Expr

    @property
    def type(self) -> Type:
        return self.yes.type


def call(name: str, *args: ExprLike) -> Expr:
    """name(args); raises KernelError for an unknown function, a wrong number of arguments, or other types."""
    if CALLS.get(name) != len(args):
        raise KernelError(f"{name} of {len(args)} arguments is no function; known are {', '.join(sorted(CALLS))}")
    first = next((a for a in args if isinstance(a, Expr)), None)
    made = tuple(a if isinstance(a, Expr) else literal(a, first.type if first else None) for a in args)
    of = made[0].type
    if any(a.type != of for a in made) or not (
        of in (F32, F64) or (of.integer and name in ("abs", "maximum", "minimum"))
    ):
        raise KernelError(f"{name} of {', '.join(repr(a.type) for a in made)}: expected floats of one type")
    return Call(name, made)


def select(condition: Expr, yes: ExprLike, no: ExprLike) -> Expr:
    """*yes* where *condition* holds, else *no*, both of one type."""
    if condition.type != BOOL:
        raise KernelError(f"a condition of type {condition.type!r}, expected bool")
    a, b = joined("a choice", yes, no)
    return a if a == b else Select(condition, a, b)
