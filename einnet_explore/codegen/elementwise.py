r"""Element-wise expressions and their kernels after OneFlow's ``ApplyGeneric``.

A functor composes scalar functions of the elements at one position: every read is at the position that is written, or
at one fixed position.  A kernel runs packs in a grid-stride loop, a tail, and pairs of halves.

.. math::  pack = \min_T \min(8, 16 / |T|), \qquad
           blocks = \max(1, \min(\lceil packs / 256 \rceil,\ SMs \cdot threads / 256 \cdot 32))

The launch is a pure function of length, types, addresses and device.
Source: the OneFlow document, sections 1 and 2 (``kBlockSize``, ``kNumWaves``, ``kMaxPackBytes``, ``kMaxPackSize``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from einnet_explore.analysis.flattening import bounds_inside_source, flat_address
from einnet_explore.analysis.indices import substitute_index
from einnet_explore.codegen.language.lowering import lower_scalar, memory_reader, result_address, tensor_name
from einnet_explore.codegen.language.statements import (
    MAX_BLOCK_REGISTERS,
    Copy,
    Declare,
    If,
    Kernel,
    LoadPair,
    LocalArray,
    PairOperation,
    Statement,
    Store,
    StorePair,
    counted_loop,
    unrolled,
)
from einnet_explore.codegen.language.values import (
    BF16,
    F16,
    F32,
    I32,
    I64,
    U8,
    U16,
    U32,
    Array,
    Expr,
    LaunchIndex,
    Type,
    Var,
    cast,
    literal,
    type_of,
)
from einnet_explore.codegen.preparation import conditions_in, inline_nested
from einnet_explore.ir import (
    Access,
    Apply,
    Index,
    Scalar,
    Scope,
    Tensor,
    accesses,
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
        if test := next(iter(conditions_in(self.body)), None):
            said = "a value that depends on the position is not element-wise"
            raise Refused(f"functor {self.name} compares {test!r}: {said}")
        _ = self.computed

    @property
    def kinds(self) -> tuple[Type, ...]:
        """The types of the arrays that have an element at every position: the result's and the operands'."""
        return (self.output, *(k for _, k in self.operands))

    @property
    def computed(self) -> Type:
        """The type of the arithmetic: NumPy's common type of all, of at least 32 bits; float32 for those of 16 bits.

        Raises Refused for an integer result of floating operands, which would lose fractions, and for uint64 with
        signed integers, which have no common integer type.
        """
        return common_type(self.name, self.output, tuple(k for _, k in (*self.operands, *self.scalars)))

    @property
    def paired(self) -> bool:
        """True if two halves can be computed at a time: a half-precision result of float32 arithmetic."""
        return self.output == F16 and self.computed == F32


def common_type(name: str, output: Type, given: tuple[Type, ...]) -> Type:
    """Return the type in which *output* is computed from *given*; see ``Functor.computed``."""
    described = f"functor {name} makes {output!r} of {', '.join(map(repr, given)) or 'nothing'}"
    # NumPy has no common type of bfloat16 and most others: those of its values, which are float32.
    output, given = (F32 if output == BF16 else output), tuple(F32 if k == BF16 else k for k in given)
    if output.kind != "float" and any(k.kind == "float" for k in given):
        raise Refused(f"{described}: fractions would be lost; the result must be of a floating type")
    kind = type_of(np.result_type(*(k.dtype for k in (output, *given))))
    if kind.kind == "float" and not any(k.kind == "float" for k in (output, *given)):
        raise Refused(f"{described}: no integer type holds both")
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

    def inline_operand(access: Access) -> Scalar:
        name = access.source.name if isinstance(access.source, Tensor) else ""
        return at[name].body if name in at else access

    parts = [at[n] for n, _ in outer.operands if n in at]
    kept = tuple(o for o in outer.operands if o[0] not in at)
    operands = dict.fromkeys((*kept, *(o for f in parts for o in f.operands)))
    scalars = dict.fromkeys((*outer.scalars, *(s for f in parts for s in f.scalars)))
    return Functor(map_accesses(outer.body, inline_operand), outer.output, tuple(operands), tuple(scalars), outer.name)


def build_functor(
    scope: Scope, name: str = "elementwise", kind: Type = F32, kinds: Mapping[str, Type] | None = None
) -> Functor:
    """Return *scope* as a functor over its elements in memory order, of type *kind* or, by name, of *kinds*.

    Scopes that it reads are inlined.  A tensor with a single element is a scalar.  Raises Refused, with the read or the
    condition in question, if the expression is not element-wise, and for types without a common one.
    """
    if scope.summations:
        sums = ", ".join(f"{s.name}:{s.lo}..{s.hi}" for s in scope.summations)
        raise Refused(f"{name} has {scope.reduce}[{sums}]: a reduction is not element-wise")
    given = kinds or {}
    found: dict[str, bool] = {}

    def read_operand(access: Access) -> Scalar:
        operand, single = tensor_name(access.source), _is_scalar_read(access, scope, name)
        if found.setdefault(operand, single) != single:
            raise Refused(f"{name} reads {operand} both by position and as a scalar")
        return operand_read(operand)

    body = map_accesses(inline_nested(scope), read_operand)
    typed = [(n, given.get(n, kind)) for n in found]
    operands, scalars = (tuple(t for t in typed if found[t[0]] == is_scalar) for is_scalar in (False, True))
    return Functor(body, given.get(name, kind), operands, scalars, name)


def _is_scalar_read(access: Access, scope: Scope, name: str) -> bool:
    """True if *access* reads the only element of its source, False if it reads the position that is written."""
    if (left := next(iter(bounds_inside_source(access)), None)) is not None:
        raise Refused(f"{name} reads {access!r} also outside {left!r}: a padded read is not element-wise")
    address = flat_address(access)
    here = result_address(scope)
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
    single = {x: x.lo for i in (a, b) for x in i.iterators if x.extent == 1}
    return substitute_index(a, single) == substitute_index(b, single)


THREAD_REGISTERS = 255
"""Registers of a thread, at most."""

BLOCK_THREADS = 1 << (MAX_BLOCK_REGISTERS // THREAD_REGISTERS).bit_length() - 1
"""Threads of a block: all have registers even if each takes the most, rounded down to a power of two (256)."""

MAX_WAVES = 32
MAX_PACK_BYTES = 128 // 8
MAX_PACK_SIZE = 8


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device: its multiprocessors, and the threads resident on each, at most."""

    multiprocessors: int
    threads: int = 2048

    @property
    def most_blocks(self) -> int:
        """Blocks in 32 full waves."""
        return self.multiprocessors * self.threads // BLOCK_THREADS * MAX_WAVES


A100, H100 = Gpu(108), Gpu(132)


@dataclass(frozen=True, slots=True)
class ElementwiseLaunch:
    """*packs* packs of *pack* elements and *tail* single ones, by *blocks* blocks; positions are of type *index*."""

    pack: int
    packs: int
    tail: int
    blocks: int
    index: Type


def pack_size(kinds: Iterable[Type]) -> int:
    """Return the elements of a pack: at most 8, and at most 128 bits of the widest of *kinds*."""
    return min((min(MAX_PACK_SIZE, MAX_PACK_BYTES // k.size) for k in kinds), default=1)


def block_count(packs: int, gpu: Gpu) -> int:
    """Return the blocks for *packs* packs: at least one, at most one a block's packs, at most 32 waves."""
    return max(1, min(-(-packs // BLOCK_THREADS), gpu.most_blocks))


def index_type(length: int, pack: int, count: int) -> Type:
    """Return int32 if no position, nor a thread's first one past the end, exceeds 2³¹-1; else int64."""
    return I32 if length + count * BLOCK_THREADS * pack < 1 << 31 else I64


def plan_launch(length: int, kinds: Sequence[Type], addresses: Sequence[int], gpu: Gpu = A100) -> ElementwiseLaunch:
    """Return the launch for *length* elements of each of *kinds*, one array each, at *addresses* (in bytes).

    If an address is not a multiple of its pack's bytes, all elements are processed singly. Raises Refused for a
    negative length, for a device without a full block, and unless there is one address for each type.
    """
    if length < 0 or len(kinds) != len(addresses) or gpu.most_blocks < 1:
        raise Refused(
            f"{length} elements of {len(kinds)} arrays at {len(addresses)} addresses, {gpu.most_blocks} blocks a launch"
        )
    pack = pack_size(kinds)
    if any(at % (pack * kind.size) for kind, at in zip(kinds, addresses, strict=True)):
        pack = 1
    packs, tail = divmod(length, pack)
    count = block_count(packs, gpu)
    return ElementwiseLaunch(pack, packs, tail, count, index_type(length, pack, count))


RESULT_NAME = "result"

OperandValues = Mapping[str, Expr]


def functor_arguments(functor: Functor) -> tuple[Array, ...]:
    """Return the arrays that a kernel of *functor* takes, in order: result, operands, scalars.

    The result may be one of the operands: the same thread reads each position before it writes it.
    """
    return (
        Array(RESULT_NAME, functor.output, noalias=False),
        *(Array(f"operand {name}", kind, const=True, noalias=False) for name, kind in functor.operands),
        *(Array(f"scalar {name}", kind, const=True, noalias=False) for name, kind in functor.scalars),
    )


def grid_stride_kernel(functor: Functor, launch: ElementwiseLaunch) -> Kernel:
    """Return the GPU kernel of *functor*; its text depends on pack, index type and the presence of a tail.

    Parameters: result, operands, scalars, number of packs, number of single elements. Halves are computed in pairs if
    the functor can and the pack is even. Raises Refused for a pack below 1.
    """
    pack, kind = launch.pack, launch.index
    if pack < 1:
        raise Refused(f"functor {functor.name}: a pack of {pack} elements")
    result, *rest = functor_arguments(functor)
    inputs, scalars = rest[: len(functor.operands)], rest[len(functor.operands) :]
    packs, tail, first, i = (Var(n, kind) for n in ("packs", "tail", "first", "i"))
    start = cast(kind, LaunchIndex("block")) * BLOCK_THREADS + cast(kind, LaunchIndex("thread"))
    fixed = {name: Var(f"value {name}", of.computed) for name, of in functor.scalars}
    if pack == 1:
        inner: tuple[Statement, ...] = (Store(result, i, _value(functor, fixed, inputs, i)),)
    else:
        inner = tuple(_pack(functor, fixed, result, inputs, i * pack, pack))
    body: list[Statement] = [
        *(Declare(var, array[0]) for var, array in zip(fixed.values(), scalars, strict=True)),
        Declare(first, start),
        counted_loop(i, packs, *inner, start=first, step=cast(kind, LaunchIndex("grid")) * BLOCK_THREADS),
    ]
    if launch.tail:
        at = Var("last", kind)
        single = Store(result, at, _value(functor, fixed, inputs, at))
        body.append(If(first.lt(tail), (Declare(at, packs * pack + first), single)))
    name = f"{functor.name} pack {pack}{' wide' if kind == I64 else ''}{' tail' if launch.tail else ''}"
    params: tuple[Array | Var, ...] = (result, *rest, packs, tail)
    return Kernel(name, params, tuple(body), (BLOCK_THREADS, 1, 1), (launch.blocks, 1, 1))


def aligned_kernel(functor: Functor, length: int) -> Kernel:
    """Return the kernel for aligned arrays of *length* elements."""
    return grid_stride_kernel(functor, plan_launch(length, functor.kinds, [0] * len(functor.kinds)))


def _pack(
    functor: Functor, fixed: OperandValues, result: Array, inputs: Iterable[Array], at: Expr, pack: int
) -> Iterable[Statement]:
    """Load a pack of each operand, compute, and store the result's pack."""
    own = {array: _own(array, pack) for array in inputs}
    for array, copy in own.items():
        yield LocalArray(copy)
        yield Copy(copy, literal(0), array, at, pack)
    made = _own(result, pack)
    yield LocalArray(made)
    j = Var("j", I32)
    if functor.paired and pack % 2 == 0:
        yield counted_loop(j, pack, *_pairs(functor, fixed, made, tuple(own.values()), j), step=2, hint="unroll")
    else:
        store = Store(made, j, _value(functor, fixed, own.values(), j))
        yield unrolled(j, pack, store)
    yield Copy(result, at, made, literal(0), pack)


def _own(array: Array, pack: int) -> Array:
    size = pack * array.kind.size
    return Array(f"pack {array.name}", array.kind, pack, "private", align=size if size & (size - 1) == 0 else 0)


def _pairs(functor: Functor, fixed: OperandValues, made: Array, own: tuple[Array, ...], j: Var) -> Iterable[Statement]:
    """Compute two elements at once: OneFlow's ``Apply2``."""
    kinds = dict(functor.operands)
    match functor.body:
        case Apply("+" | "-" | "*" as op, (Access(Tensor(a)), Access(Tensor(b)))) if (
            kinds.get(a) == kinds.get(b) == F16
        ):
            names = [*kinds]
            yield PairOperation(op, made, j, own[names.index(a)], own[names.index(b)])  # one instruction
            return
    left, right = dict[str, Expr](fixed), dict[str, Expr](fixed)
    for (name, kind), array in zip(functor.operands, own, strict=True):
        if kind == F16:
            both = Var(f"left {name}", F32), Var(f"right {name}", F32)
            yield LoadPair(*both, array, j)
            left[name], right[name] = both
        else:
            left[name], right[name] = array[j], array[j + 1]
    yield StorePair(made, j, _lower_body(functor, left), _lower_body(functor, right))


def _value(functor: Functor, fixed: OperandValues, arrays: Iterable[Array], at: Expr) -> Expr:
    loads = {name: array[at] for (name, _), array in zip(functor.operands, arrays, strict=True)}
    return _lower_body(functor, {**fixed, **loads})


def _lower_body(functor: Functor, values: OperandValues) -> Expr:
    """Return the functor's body of *values*, in the result's type."""
    read = memory_reader({}, I32, values)
    return cast(functor.output.computed, lower_scalar(functor.body, {}, read, functor.computed))
