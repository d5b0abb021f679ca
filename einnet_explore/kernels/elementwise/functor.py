"""What is done with the elements at one position: scalar expressions, composed, and the type they are computed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from einnet_explore.ir import Access, Apply, Compare, Const, Scalar, Tensor, accesses, map_accesses
from einnet_explore.ir.node import Node, node
from einnet_explore.kernels.source import F16, F32, I32, I64, U8, U16, U32, KernelError, Type, type_of


def operand(name: str) -> Access:
    """The element of the operand *name*, in a functor's body."""
    return Tensor(name, ())[()]


@node
class Functor(Node):
    """``output = body``: *body* reads each of *operands*, and each of *scalars*, by ``operand(name)``.

    An operand has an element at every position; a scalar has one for all, read once by each thread: what OneFlow's
    factories make of their arguments.  Raises KernelError where the body reads something else, compares indices, or
    where the types have no common one.
    """

    body: Scalar
    output: Type
    operands: tuple[tuple[str, Type], ...]
    scalars: tuple[tuple[str, Type], ...] = ()
    name: str = "elementwise"

    def __post_init__(self) -> None:
        names = [n for n, _ in (*self.operands, *self.scalars)]
        if len(set(names)) < len(names):
            raise KernelError(f"functor {self.name}: an operand is named twice: {', '.join(names)}")
        if strange := [repr(a) for a in accesses(self.body) if a not in map(operand, names)]:
            raise KernelError(f"functor {self.name} reads {', '.join(strange)}: expected operands {', '.join(names)}")
        _without_indices(self.body, self.name)
        _ = self.computed

    @property
    def kinds(self) -> tuple[Type, ...]:
        """The types of the arrays that are walked along: the result's and the operands'."""
        return (self.output, *(k for _, k in self.operands))

    @property
    def computed(self) -> Type:
        """The type of the arithmetic: NumPy's common type of all, of at least 32 bits; half precision goes as single.

        Raises KernelError for an integer result of floating operands, which would lose fractions unasked, and for
        uint64 beside signed integers, which have no common integer type.
        """
        return common(self.name, self.output, tuple(k for _, k in (*self.operands, *self.scalars)))

    @property
    def paired(self) -> bool:
        """Whether two halves can be made at a time: the result is one, and the arithmetic single."""
        return self.output == F16 and self.computed == F32


@dataclass(frozen=True)
class _Mix:
    name: str
    output: Type
    given: tuple[Type, ...]

    def refused(self, why: str) -> KernelError:
        given = ", ".join(map(repr, self.given)) or "nothing"
        return KernelError(f"functor {self.name} makes {self.output!r} of {given}: {why}")


def common(name: str, output: Type, given: tuple[Type, ...]) -> Type:
    """The type in which *output* is computed of *given*; see ``Functor.computed``."""
    mix = _Mix(name, output, given)
    if output.kind != "float" and any(k.kind == "float" for k in given):
        raise mix.refused("fractions would be lost; the result must be of a floating type")
    kind = type_of(np.result_type(*(k.dtype for k in (output, *given))))
    if kind.kind == "float" and not any(k.kind == "float" for k in (output, *given)):
        raise mix.refused("no integer type holds both")
    if kind in (F16, F32):
        return F32
    if kind.kind in ("int", "bool") or kind in (U8, U16):
        return I64 if kind == I64 else I32
    return I64 if kind == U32 else kind


def compose(outer: Functor, at: Mapping[str, Functor]) -> Functor:
    """*outer* with the operands named in *at* computed by other functors, in one go.

    Operands of one name are one operand.  Intermediate results keep the precision of the arithmetic: they are not
    rounded to the inner functors' results.  Raises KernelError where a name is no operand, or has two types.
    """
    names = {n for n, _ in outer.operands}
    if missing := sorted(set(at) - names):
        raise KernelError(
            f"functor {outer.name} has no operand {', '.join(missing)}: it has {', '.join(sorted(names))}"
        )

    def put(access: Access) -> Scalar:
        name = access.source.name if isinstance(access.source, Tensor) else ""
        return at[name].body if name in at else access

    parts = [at[n] for n, _ in outer.operands if n in at]
    kept = tuple(o for o in outer.operands if o[0] not in at)
    operands = dict.fromkeys((*kept, *(o for f in parts for o in f.operands)))
    scalars = dict.fromkeys((*outer.scalars, *(s for f in parts for s in f.scalars)))
    return Functor(map_accesses(outer.body, put), outer.output, tuple(operands), tuple(scalars), outer.name)


def _without_indices(body: Scalar, name: str) -> None:
    match body:
        case Compare():
            raise KernelError(f"functor {name} compares {body!r}: what depends on the position is not element-wise")
        case Apply(_, args):
            for a in args:
                _without_indices(a, name)
        case Access() | Const():
            pass
