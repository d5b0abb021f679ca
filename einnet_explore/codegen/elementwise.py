r"""The element-wise kernel: packs in a grid-stride loop, and what is left over (OneFlow's ``ApplyGeneric``).

How an element-wise kernel is launched: a pure function of length, types, addresses and device.

.. math::  pack = \min_T \min(8, 16 / |T|), \qquad
           blocks = \max(1, \min(\lceil packs / 256 \rceil,\ SMs \cdot threads / 256 \cdot 32))

Source: the OneFlow document, sections 1 and 2 (``kBlockSize``, ``kNumWaves``, ``kMaxPackBytes``, ``kMaxPackSize``).

Element-wise kernels after OneFlow's template: packs, waves, pairs of halves, functors of any number of operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from einnet_explore.codegen.functor import Functor
from einnet_explore.codegen.language import (
    F16,
    F32,
    I32,
    I64,
    Array,
    Copy,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    LaunchIndex,
    LoadPair,
    LocalArray,
    PairOperation,
    Statement,
    Store,
    StorePair,
    Type,
    Var,
    cast,
    counted_loop,
    literal,
    minimum,
)
from einnet_explore.codegen.language.lowering import lower_scalar
from einnet_explore.ir import Access, Apply, Scalar, Tensor
from einnet_explore.support.errors import Refused

BLOCK_REGISTERS, THREAD_REGISTERS = 64 * 1024, 255
"""What a block may have at most, and a thread."""

BLOCK_THREADS = 1 << (BLOCK_REGISTERS // THREAD_REGISTERS).bit_length() - 1
"""Threads a block: as many as have registers even if each takes the most, rounded down to a power of two (256)."""

MAX_WAVES = 32
MAX_PACK_BYTES = 128 // 8
MAX_PACK_SIZE = 8


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device: its multiprocessors, and how many threads are resident on each at most."""

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
    """Elements a pack: at most 8, and at most 128 bits of the widest of *kinds*."""
    return min((min(MAX_PACK_SIZE, MAX_PACK_BYTES // k.size) for k in kinds), default=1)


def block_count(packs: int, gpu: Gpu) -> int:
    """Blocks for *packs* packs: at least one, no more than have work, no more than 32 waves."""
    return max(1, min(-(-packs // BLOCK_THREADS), gpu.most_blocks))


def index_type(length: int, pack: int, count: int) -> Type:
    """int32 where no position, nor the one a thread goes on to after its last, is beyond 2³¹-1; else int64."""
    return I32 if length + count * BLOCK_THREADS * pack < 1 << 31 else I64


def plan_launch(length: int, kinds: Sequence[Type], addresses: Sequence[int], gpu: Gpu = A100) -> ElementwiseLaunch:
    """The launch for *length* elements of each of *kinds*, one array each, at *addresses* (in bytes).

    Where one of them is not a multiple of its pack's bytes all elements go one by one.  Raises Refused for a
    negative length, for a device without a full block, and where there is not one address a type.
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
    """The arrays that a kernel of *functor* takes, in order: result, operands, scalars.

    The result may be one of the operands: each position is read before it is written, and by the same thread.
    """
    return (
        Array(RESULT_NAME, functor.output, noalias=False),
        *(Array(f"operand {name}", kind, const=True, noalias=False) for name, kind in functor.operands),
        *(Array(f"scalar {name}", kind, const=True, noalias=False) for name, kind in functor.scalars),
    )


def elementwise_kernel(functor: Functor, launch: ElementwiseLaunch) -> Kernel:
    """The kernel of *functor* for a *launch*: its text depends on pack, index type and whether there is a tail.

    Parameters: result, operands, scalars, then how many packs and how many single elements.  Halves are made in pairs
    where the functor can and the pack is even.  Raises Refused for a pack below 1.
    """
    pack, kind = launch.pack, launch.index
    if pack < 1:
        raise Refused(f"functor {functor.name}: a pack of {pack} elements")
    result, *rest = functor_arguments(functor)
    inputs = rest[: len(functor.operands)]
    packs, tail, first, i = (Var(n, kind) for n in ("packs", "tail", "first", "i"))
    start = cast(kind, LaunchIndex("block")) * BLOCK_THREADS + cast(kind, LaunchIndex("thread"))
    held, fixed = _scalars(functor, rest[len(inputs) :])
    if pack == 1:
        inner: tuple[Statement, ...] = (Store(result, i, _value(functor, fixed, inputs, i)),)
    else:
        inner = tuple(_pack(functor, fixed, result, inputs, i * pack, pack))
    body: list[Statement] = [
        *held,
        Declare(first, start),
        For(i, first, packs, cast(kind, LaunchIndex("grid")) * BLOCK_THREADS, inner),
    ]
    if launch.tail:
        at = Var("last", kind)
        single = Store(result, at, _value(functor, fixed, inputs, at))
        body.append(If(first.lt(tail), (Declare(at, packs * pack + first), single)))
    name = f"{functor.name} pack {pack}{' wide' if kind == I64 else ''}{' tail' if launch.tail else ''}"
    params: tuple[Array | Var, ...] = (result, *rest, packs, tail)
    return Kernel(name, params, tuple(body), (BLOCK_THREADS, 1, 1), (launch.blocks, 1, 1))


def elementwise_host_kernel(functor: Functor) -> Kernel:
    """The kernel of *functor* for a CPU: every block takes neighbouring elements, and compilers make the packs.

    Parameters: result, operands, scalars, then how many elements there are, and how many a block takes.
    """
    result, *rest = functor_arguments(functor)
    inputs = rest[: len(functor.operands)]
    length, share, first, last, i = (Var(n, I64) for n in ("length", "share", "first", "last", "i"))
    held, fixed = _scalars(functor, rest[len(inputs) :])
    end = first + share
    loop = counted_loop(i, last, Store(result, i, _value(functor, fixed, inputs, i)), simd=True)
    body = (
        *held,
        Declare(first, cast(I64, LaunchIndex("block")) * share),
        Declare(last, minimum(end, length)),
        For(i, first, last, literal(1, I64), loop.body, simd=True),
    )
    return Kernel(f"{functor.name} on a host", (result, *rest, length, share), body)


def aligned_kernel(functor: Functor, length: int) -> Kernel:
    """The kernel for aligned arrays of *length* elements."""
    return elementwise_kernel(functor, plan_launch(length, functor.kinds, [0] * len(functor.kinds)))


def _scalars(functor: Functor, arrays: Iterable[Array]) -> tuple[list[Statement], dict[str, Expr]]:
    declared: list[Statement] = []
    fixed: dict[str, Expr] = {}
    for (name, kind), array in zip(functor.scalars, arrays, strict=True):
        var = Var(f"value {name}", kind.computed)
        declared.append(Declare(var, array[0]))
        fixed[name] = var
    return declared, fixed


def _pack(
    functor: Functor, fixed: OperandValues, result: Array, inputs: Iterable[Array], at: Expr, pack: int
) -> Iterable[Statement]:
    """Fetch a pack of each operand, compute, and put the result's pack."""
    own = {array: _own(array, pack) for array in inputs}
    for array, copy in own.items():
        yield LocalArray(copy)
        yield Copy(copy, literal(0), array, at, pack)
    made = _own(result, pack)
    yield LocalArray(made)
    j = Var("j", I32)
    if functor.paired and pack % 2 == 0:
        steps = tuple(_pairs(functor, fixed, made, tuple(own.values()), j))
        yield For(j, literal(0), literal(pack), literal(2), steps, unroll=True)
    else:
        store = Store(made, j, _value(functor, fixed, own.values(), j))
        yield For(j, literal(0), literal(pack), literal(1), (store,), unroll=True)
    yield Copy(result, at, made, literal(0), pack)


def _own(array: Array, pack: int) -> Array:
    size = pack * array.kind.size
    return Array(f"pack {array.name}", array.kind, pack, "private", align=size if size & (size - 1) == 0 else 0)


def _pairs(functor: Functor, fixed: OperandValues, made: Array, own: tuple[Array, ...], j: Var) -> Iterable[Statement]:
    """Two elements at once: OneFlow's ``Apply2``."""
    match _single_half_operation(functor):
        case (op, a, b):
            names = [n for n, _ in functor.operands]
            yield PairOperation(op, made, j, own[names.index(a)], own[names.index(b)])
            return
    left, right = dict[str, Expr](fixed), dict[str, Expr](fixed)
    for (name, kind), array in zip(functor.operands, own, strict=True):
        if kind == F16:
            both = Var(f"left {name}", F32), Var(f"right {name}", F32)
            yield LoadPair(*both, array, j)
            left[name], right[name] = both
        else:
            left[name], right[name] = array[j], array[j + 1]
    yield StorePair(made, j, _computed(functor, left), _computed(functor, right))


def _single_half_operation(functor: Functor) -> tuple[str, str, str] | None:
    """(operation, operand, operand) where that is all, and all of it is half precision: one instruction does two."""
    kinds = dict(functor.operands)
    match functor.body:
        case Apply(("+" | "-" | "*") as op, (Access(Tensor(a)), Access(Tensor(b)))):
            return (op, a, b) if kinds.get(a) == kinds.get(b) == F16 else None
    return None


def _value(functor: Functor, fixed: OperandValues, arrays: Iterable[Array], at: Expr) -> Expr:
    loads = {name: array[at] for (name, _), array in zip(functor.operands, arrays, strict=True)}
    return _computed(functor, {**fixed, **loads})


def _computed(functor: Functor, values: OperandValues) -> Expr:
    """The functor's body of *values*, as the result's type in memory takes it."""
    kind = functor.computed

    def read(source: object, _: object) -> Expr:
        assert isinstance(source, Tensor)
        return values[source.name]

    body: Scalar = functor.body
    return cast(functor.output.computed, lower_scalar(body, {}, read, kind))
