"""The element-wise kernel: packs in a grid-stride loop, and what is left over (OneFlow's ``ApplyGeneric``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from einnet_explore.ir import Access, Apply, Scalar, Tensor
from einnet_explore.kernels.elementwise.functor import Functor
from einnet_explore.kernels.elementwise.launch import BLOCK, Launch, plan
from einnet_explore.kernels.source import (
    F16,
    F32,
    I32,
    I64,
    Array,
    Copy,
    Declare,
    Expr,
    For,
    Id,
    If,
    Kernel,
    KernelError,
    LoadPair,
    Local,
    PairOperation,
    Statement,
    Store,
    StorePair,
    Var,
    cast,
    counted,
    literal,
    select,
)
from einnet_explore.kernels.source.lowering import scalar

RESULT = "result"

Values = Mapping[str, Expr]


def arguments(functor: Functor) -> tuple[Array, ...]:
    """The arrays that a kernel of *functor* takes, in order: result, operands, scalars.

    The result may be one of the operands: each position is read before it is written, and by the same thread.
    """
    return (
        Array(RESULT, functor.output, noalias=False),
        *(Array(f"operand {name}", kind, const=True, noalias=False) for name, kind in functor.operands),
        *(Array(f"scalar {name}", kind, const=True, noalias=False) for name, kind in functor.scalars),
    )


def kernel(functor: Functor, launch: Launch) -> Kernel:
    """The kernel of *functor* for a *launch*: its text depends on pack, index type and whether there is a tail.

    Parameters: result, operands, scalars, then how many packs and how many single elements.  Halves are made in pairs
    where the functor can and the pack is even.  Raises KernelError for a pack below 1.
    """
    pack, kind = launch.pack, launch.index
    if pack < 1:
        raise KernelError(f"functor {functor.name}: a pack of {pack} elements")
    result, *rest = arguments(functor)
    inputs = rest[: len(functor.operands)]
    packs, tail, first, i = (Var(n, kind) for n in ("packs", "tail", "first", "i"))
    start = cast(kind, Id("block")) * BLOCK + cast(kind, Id("thread"))
    held, fixed = _scalars(functor, rest[len(inputs) :])
    if pack == 1:
        inner: tuple[Statement, ...] = (Store(result, i, _value(functor, fixed, inputs, i)),)
    else:
        inner = tuple(_pack(functor, fixed, result, inputs, i * pack, pack))
    body: list[Statement] = [
        *held,
        Declare(first, start),
        For(i, first, packs, cast(kind, Id("grid")) * BLOCK, inner),
    ]
    if launch.tail:
        at = Var("last", kind)
        single = Store(result, at, _value(functor, fixed, inputs, at))
        body.append(If(first.lt(tail), (Declare(at, packs * pack + first), single)))
    name = f"{functor.name} pack {pack}{' wide' if kind == I64 else ''}{' tail' if launch.tail else ''}"
    params: tuple[Array | Var, ...] = (result, *rest, packs, tail)
    return Kernel(name, params, tuple(body), (BLOCK, 1, 1), (launch.blocks, 1, 1))


def host_kernel(functor: Functor) -> Kernel:
    """The kernel of *functor* for a CPU: every block takes neighbouring elements, and compilers make the packs.

    Parameters: result, operands, scalars, then how many elements there are, and how many a block takes.
    """
    result, *rest = arguments(functor)
    inputs = rest[: len(functor.operands)]
    length, share, first, last, i = (Var(n, I64) for n in ("length", "share", "first", "last", "i"))
    held, fixed = _scalars(functor, rest[len(inputs) :])
    end = first + share
    loop = counted(i, last, Store(result, i, _value(functor, fixed, inputs, i)), simd=True)
    body = (
        *held,
        Declare(first, cast(I64, Id("block")) * share),
        Declare(last, _least(end, length)),
        For(i, first, last, literal(1, I64), loop.body, simd=True),
    )
    return Kernel(f"{functor.name} on a host", (result, *rest, length, share), body)


def planned(functor: Functor, length: int) -> Kernel:
    """The kernel for aligned arrays of *length* elements."""
    return kernel(functor, plan(length, functor.kinds, [0] * len(functor.kinds)))


def _least(a: Expr, b: Expr) -> Expr:
    return select(a.lt(b), a, b)


def _scalars(functor: Functor, arrays: Iterable[Array]) -> tuple[list[Statement], dict[str, Expr]]:
    declared: list[Statement] = []
    fixed: dict[str, Expr] = {}
    for (name, kind), array in zip(functor.scalars, arrays, strict=True):
        var = Var(f"value {name}", kind.computed)
        declared.append(Declare(var, array[0]))
        fixed[name] = var
    return declared, fixed


def _pack(
    functor: Functor, fixed: Values, result: Array, inputs: Iterable[Array], at: Expr, pack: int
) -> Iterable[Statement]:
    """Fetch a pack of each operand, compute, and put the result's pack."""
    own = {array: _own(array, pack) for array in inputs}
    for array, copy in own.items():
        yield Local(copy)
        yield Copy(copy, literal(0), array, at, pack)
    made = _own(result, pack)
    yield Local(made)
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


def _pairs(functor: Functor, fixed: Values, made: Array, own: tuple[Array, ...], j: Var) -> Iterable[Statement]:
    """Two elements at once: OneFlow's ``Apply2``."""
    match _alone(functor):
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


def _alone(functor: Functor) -> tuple[str, str, str] | None:
    """(operation, operand, operand) where that is all, and all of it is half precision: one instruction does two."""
    kinds = dict(functor.operands)
    match functor.body:
        case Apply(("+" | "-" | "*") as op, (Access(Tensor(a)), Access(Tensor(b)))):
            return (op, a, b) if kinds.get(a) == kinds.get(b) == F16 else None
    return None


def _value(functor: Functor, fixed: Values, arrays: Iterable[Array], at: Expr) -> Expr:
    loads = {name: array[at] for (name, _), array in zip(functor.operands, arrays, strict=True)}
    return _computed(functor, {**fixed, **loads})


def _computed(functor: Functor, values: Values) -> Expr:
    """The functor's body of *values*, as the result's type in memory takes it."""
    kind = functor.computed

    def read(source: object, _: object) -> Expr:
        assert isinstance(source, Tensor)
        return values[source.name]

    body: Scalar = functor.body
    return cast(functor.output.computed, scalar(body, {}, read, kind))
