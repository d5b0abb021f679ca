"""Element-wise expressions: composed scalar functions of the elements at one position, and their arithmetic type.

Every read is at the position that is written, or at one fixed position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from einnet_explore.analysis.flattening import flat_address
from einnet_explore.analysis.indices import substitute
from einnet_explore.codegen.language import F16, F32, I32, I64, U8, U16, U32, Type, type_of
from einnet_explore.codegen.memory_access import flat_index
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Scalar,
    Scope,
    Tensor,
    accesses,
    as_index,
    map_accesses,
)
from einnet_explore.ir.node import Node, node
from einnet_explore.support.errors import Refused


def operand_read(name: str) -> Access:
    """Return the element of operand *name*, in a functor's body."""
    return Tensor(name, ())[()]


@node
class Functor(Node):
    """``output = body``: *body* reads each of *operands* and of *scalars* by ``operand_read(name)``.

    An operand has an element at every position. A scalar has one for all positions, which each thread reads once, like
    the arguments of OneFlow's functor factories. Raises Refused if the body has other reads or compares indices, and
    for types without a common one.
    """

    body: Scalar
    output: Type
    operands: tuple[tuple[str, Type], ...]
    scalars: tuple[tuple[str, Type], ...] = ()
    name: str = "elementwise"

    def __post_init__(self) -> None:
        names = [n for n, _ in (*self.operands, *self.scalars)]
        if len(set(names)) < len(names):
            raise Refused(f"functor {self.name}: an operand is named twice: {', '.join(names)}")
        if strange := [repr(a) for a in accesses(self.body) if a not in map(operand_read, names)]:
            raise Refused(f"functor {self.name} reads {', '.join(strange)}: expected operands {', '.join(names)}")
        _without_indices(self.body, self.name)
        _ = self.computed

    @property
    def kinds(self) -> tuple[Type, ...]:
        """The types of the arrays that have an element at every position: the result's and the operands'."""
        return (self.output, *(k for _, k in self.operands))

    @property
    def computed(self) -> Type:
        """The type of the arithmetic: NumPy's common type of all, of at least 32 bits; float32 for half precision.

        Raises Refused for an integer result of floating operands, which would lose fractions, and for uint64 with
        signed integers, which have no common integer type.
        """
        return common_type(self.name, self.output, tuple(k for _, k in (*self.operands, *self.scalars)))

    @property
    def paired(self) -> bool:
        """True if two halves can be computed at a time: a half-precision result of float32 arithmetic."""
        return self.output == F16 and self.computed == F32


@dataclass(frozen=True)
class _Mix:
    name: str
    output: Type
    given: tuple[Type, ...]

    def refused(self, why: str) -> Refused:
        given = ", ".join(map(repr, self.given)) or "nothing"
        return Refused(f"functor {self.name} makes {self.output!r} of {given}: {why}")


def common_type(name: str, output: Type, given: tuple[Type, ...]) -> Type:
    """Return the type in which *output* is computed from *given*; see ``Functor.computed``."""
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


def compose_functors(outer: Functor, at: Mapping[str, Functor]) -> Functor:
    """Return *outer* with the operands in *at* computed by other functors.

    Operands of one name are one operand. Intermediate results keep the precision of the arithmetic; they are not
    rounded to the inner functors' types. Raises Refused for a name that is not an operand, or has two types.
    """
    names = {n for n, _ in outer.operands}
    if missing := sorted(set(at) - names):
        raise Refused(f"functor {outer.name} has no operand {', '.join(missing)}: it has {', '.join(sorted(names))}")

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
            raise Refused(f"functor {name} compares {body!r}: what depends on the position is not element-wise")
        case Apply(_, args):
            for a in args:
                _without_indices(a, name)
        case Access() | Const():
            pass


def build_functor(
    scope: Scope, name: str = "elementwise", kind: Type = F32, kinds: Mapping[str, Type] | None = None
) -> Functor:
    """Return *scope* as a functor over its elements in memory order, of type *kind* or, by name, of *kinds*.

    Scopes that it reads are inlined.  A tensor with a single element is a scalar.  Raises Refused, with the read or the
    condition in question, if the expression is not element-wise, and for types without a common one.
    """
    given = kinds or {}
    found: dict[str, bool] = {}

    def read(access: Access) -> Scalar:
        source = access.source
        if not isinstance(source, Tensor):
            raise Refused(f"{name} reads a table at {access.index!r}: that is not element-wise")
        single = _is_scalar_read(access, scope, name)
        if found.setdefault(source.name, single) != single:
            raise Refused(f"{name} reads {source.name} both by position and as a scalar")
        return operand_read(source.name)

    body = map_accesses(_flat(scope, name), read)
    typed = [(n, given.get(n, kind)) for n in found]
    return Functor(
        body,
        given.get(name, kind),
        tuple(t for t in typed if not found[t[0]]),
        tuple(t for t in typed if found[t[0]]),
        name,
    )


def _flat(scope: Scope, name: str) -> Scalar:
    """Return the body of *scope* with the scopes that it reads inlined."""
    if scope.summations:
        sums = ", ".join(f"{s.name}:{s.lo}..{s.hi}" for s in scope.summations)
        raise Refused(f"{name} has {scope.reduce}[{sums}]: a reduction is not element-wise")
    if scope.domain:
        raise Refused(f"{name} is computed where {scope.domain[0]!r} only: that is not element-wise")

    def put(access: Access) -> Scalar:
        if not isinstance(access.source, Scope):
            return access
        _check_inside(access, name)
        at = dict(zip(access.source.traversals, access.index, strict=True))
        return substitute(_flat(access.source, name), at)

    return map_accesses(scope.body, put)


def _check_inside(access: Access, name: str) -> None:
    for index, (lo, hi) in zip(access.index, access.source.box, strict=True):
        least, most = index.bounds
        if least < lo or most >= hi:
            raise Refused(f"{name} reads {access.source!r} at {index} in [{least}, {most}], outside [{lo}, {hi})")


def _is_scalar_read(access: Access, scope: Scope, name: str) -> bool:
    """True if *access* reads the only element of its source, False if it reads the position that is written."""
    _check_inside(access, name)
    address = flat_address(access)
    here = flat_index((x - x.lo for x in scope.traversals), scope.shape)
    size, whole = prod(access.source.shape), prod(scope.shape)
    if size == whole and _is_same_address(address, here):
        return False
    if size == 1:
        return True
    raise Refused(
        f"{name} reads {access!r} of {size} elements at {address}, and writes {whole} at {here}: not element-wise"
    )


def _is_same_address(a: Index, b: Index) -> bool:
    # An iterator of one value is that value, whichever is written.
    alone: dict[Iterator, Index] = {
        x: as_index(Iterator(x.name, x.lo, x.hi)) * 0 + x.lo for i in (a, b) for x in i.iterators if x.extent == 1
    }
    return a.substitute(lambda x: alone.get(x, as_index(x))) == b.substitute(lambda x: alone.get(x, as_index(x)))
