"""Lowering of tensor algebra to the kernel language: indices, guards, scalar functions, positions in memory."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from operator import attrgetter
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from einnet_explore.analysis.flattening import flat_address, row_major_strides
from einnet_explore.analysis.indices import box_tests
from einnet_explore.codegen.language.rounding import nearest_integer, round_in_single
from einnet_explore.codegen.language.statements import walk_expression
from einnet_explore.codegen.language.values import (
    BF16,
    BOOL,
    F16,
    F32,
    I32,
    I64,
    Array,
    Call,
    Expr,
    Literal,
    Select,
    Type,
    binary_operation,
    call,
    cast,
    conjunction,
    literal,
    select,
    type_of,
)
from einnet_explore.ir import (
    ELEMENT_TYPES,
    JOINS,
    Access,
    Apply,
    Compare,
    Const,
    ElementType,
    Index,
    IndexLike,
    Iterator,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    Table,
    Tensor,
    as_index,
    is_exact_cast,
    map_accesses,
)
from einnet_explore.ir.scalar_functions import REAL_FUNCTIONS
from einnet_explore.support.errors import Refused

IteratorValues: TypeAlias = Mapping[Iterator, Expr]
ElementReader: TypeAlias = Callable[[Tensor | Table | Scope, tuple[Expr, ...]], Expr]
"""Returns an element of a source, at indices inside its box."""


def lower_index(what: Index, at: IteratorValues, kind: Type = I32) -> Expr:
    """Return *what*, of type *kind*, for iterators of the values *at*; division rounds down."""
    total: Expr | None = None
    for atom, k in what.terms:
        match atom:
            case Iterator():
                part = cast(kind, at[atom])
            case Quotient(numerator, d):
                shifts = numerator.lift(d)
                part = binary_operation(
                    "-", binary_operation("/", lower_index(numerator + shifts * d, at, kind), d), shifts
                )
            case Remainder(numerator, d):
                part = binary_operation("%", lower_index(numerator + numerator.lift(d) * d, at, kind), d)
        if total is None:
            total = -part if k == -1 else part * k
        elif k > 0:
            total = total + part * k
        else:
            total = total - part * -k
    return Literal(what.const, kind) if total is None else add_offset(total, what.const)


def lower_comparison(what: Compare, at: IteratorValues, kind: Type = I32) -> Expr:
    """Return the truth of a comparison of indices, in 32 bits where they suffice: vectors hold twice as many."""
    kind = I32 if max(_magnitude(what.left), _magnitude(what.right)) < 1 << 31 else kind
    return binary_operation(what.op, lower_index(what.left, at, kind), lower_index(what.right, at, kind))


def _magnitude(what: Index) -> int:
    """Return a bound of what ``lower_index`` computes on its way to *what*."""
    total = abs(what.const)
    for atom, k in what.terms:
        match atom:
            case Iterator(lo=lo, hi=hi):
                total += abs(k) * max(abs(lo), abs(hi))
            case Quotient(numerator, d) | Remainder(numerator, d):
                total += abs(k) * (_magnitude(numerator) + 2 * numerator.lift(d) * d)
    return total


def lower_scalar(
    body: Scalar, at: IteratorValues, read: ElementReader, kind: Type, wide: Type = I32, eager: bool = False
) -> Expr:
    """Return *body* for iterators of the values *at*, in arithmetic of *kind*, with indices of *wide*.

    A read that may leave its source's box is guarded; *eager* says that the others may be evaluated where they are not
    chosen. Raises Refused in integer arithmetic for a function without integer values and for a constant that is not
    an integer.
    """

    def go(e: Scalar) -> Expr:
        match e:
            case Const(value):
                return literal(value, kind)
            case Compare():
                return lower_comparison(e, at, wide)
            case Access(source, where):
                tests = box_tests(where, source.box)
                if tests is None:
                    return literal(source.value, kind)
                element = cast(kind, read(source, tuple(lower_index(i, at, wide) for i in where)))
                test = conjunction(*(lower_comparison(t, at, wide) for t in tests))
                return element if test is None else select(test, element, literal(source.value, kind))
            case Apply("where", (Compare() as condition, yes, no)):
                chosen = select(go(condition), go(yes), go(no))
                return (
                    replace(chosen, eager=True) if eager and isinstance(chosen, Select) and _cheap(chosen) else chosen
                )
            case Apply(op, (arg,)) if op in ELEMENT_TYPES and is_exact_cast(e):
                # A rounded number is a small integer for a moment: C rounds and converts in one instruction.
                number = go(arg)
                rounded = cast(type_of(op), number)
                return number if nearest_integer(rounded) is None else cast(kind, round_in_single(rounded))
            case Apply(op, args):
                return lower_operator(op, tuple(go(a) for a in args))

    return go(body)


def _cheap(chosen: Select) -> bool:
    """True if both values can be computed as fast as one is chosen: no guarded reads, no functions."""
    parts = [part for value in (chosen.yes, chosen.no) for part in walk_expression(value)]
    return not any(isinstance(part, Call) or (isinstance(part, Select) and not part.eager) for part in parts)


def lower_join(reduce: str, a: Expr, b: Expr) -> Expr:
    """Return *a* and *b* combined by the monoid *reduce*; sums of signed integers must not overflow."""
    return _operation(JOINS[reduce], (a, b))


def lower_operator(op: str, args: tuple[Expr, ...]) -> Expr:
    """Return the scalar function *op* of values of one type; integers wrap around, as in NumPy."""
    kind = args[0].type
    if kind.kind == "int" and op in ("+", "-", "*", "neg"):  # signed overflow is undefined in C
        unsigned = Type("uint", kind.bits)
        return cast(kind, _operation(op, tuple(cast(unsigned, a) for a in args)))
    if kind.kind == "int" and op == "abs":
        return select(args[0].lt(0), lower_operator("neg", args), args[0])
    return _operation(op, args)


def _operation(op: str, args: tuple[Expr, ...]) -> Expr:
    kind = args[0].type
    if op in ELEMENT_TYPES:
        return _lower_cast(ELEMENT_TYPES[op], args[0])
    if op in REAL_FUNCTIONS and kind.integer:
        raise Refused(f"{op} of {kind!r}: it gives no integers; compute in a floating type")
    match op, args:
        case (("+" | "*"), _):
            return reduce(lambda a, b: binary_operation(op, a, b), args)
        case (("-" | "/"), (a, b)):
            return binary_operation(op, a, b)
        case "neg", (a,):
            return -a
        case "relu", (a,):
            return call("maximum", a, 0)
    return call(op, *args)


def _lower_cast(to: ElementType, arg: Expr) -> Expr:
    """Return *arg* as a number of its own type that *to* has."""
    own, wanted = arg.type, type_of(to.name)
    if wanted == BOOL:
        return cast(own, arg.ne(0))
    if wanted in (F16, BF16) and own == F32:
        return call(to.name, arg)
    if not to.is_integer:
        return cast(own, cast(wanted, arg))
    # Within 64 bits the integer part is exact, and C keeps the low bits of it.
    return cast(own, cast(wanted, cast(I64, arg) if not own.integer else arg))


FIRST_BLOCK = ":first"
"""The parameter with the number of the first block of a launch."""


Number = TypeVar("Number", bound=typing.Any)
"""An integer value of any level: an ``Index``, an ``Expr``, an expression of TVM."""


def mixed_radix_split(
    axes: Sequence[Iterator], number: Number, extent: Callable[[Iterator], typing.Any] = attrgetter("extent")
) -> dict[Iterator, Number]:
    """Return the values of *axes*, counted from 0, at position *number* of their row-major grid, innermost first."""
    out: dict[Iterator, Number] = {}
    for x in reversed(axes):
        out[x] = number if x == axes[0] else number % extent(x)
        number = number // extent(x)
    return out


def tensor_name(source: Tensor | Table | Scope) -> str:
    """Return the name of the tensor that is read."""
    assert isinstance(source, Tensor)
    return source.name


def flat_read(access: Access) -> Access:
    """Return *access* as a read of flat memory; conditions around it already exclude positions outside."""
    place = flat_address(access)
    least, most = place.bounds
    return Access(Tensor(tensor_name(access.source), (most + 1 - least,), origin=(least,)), (place,))


def flat_index(index: Iterable[Index], shape: tuple[int, ...]) -> Index:
    """Return the position of element *index*, counted from 0, in an array of *shape*."""
    return sum((i * stride for i, stride in zip(index, row_major_strides(shape), strict=True)), Index())


def result_address(scope: Scope, at: Mapping[Iterator, IndexLike] = MappingProxyType({})) -> Index:
    """Return the position of an element of *scope* in memory, for traversals of the values *at*, or of their own."""
    return flat_index((at.get(x, x) - as_index(x.lo) for x in scope.traversals), scope.shape)


def add_offset(value: Expr, number: int) -> Expr:
    """Return *value* + *number*, as a subtraction if *number* is negative."""
    return value + number if number >= 0 else value - -number


def affine_expression(coefficients: Sequence[int], values: Sequence[Expr], const: int, wide: Type) -> Expr:
    """Return const + Σ coefficient · value, in *wide*."""
    total: Expr = Literal(0, wide)
    for k, value in zip(coefficients, values, strict=True):
        if k:
            part = cast(wide, value)
            total = total + part * k if k > 0 else total - part * -k
    return add_offset(total, const)


def memory_reader(
    memory: Mapping[str, Array], wide: Type, values: Mapping[str, Expr] = MappingProxyType({})
) -> ElementReader:
    """Return a reader of the tensors in *memory*, by positions of type *wide*, and of known *values*, by name."""

    def read(source: Tensor | Table | Scope, where: tuple[Expr, ...]) -> Expr:
        name = tensor_name(source)
        if name in values:
            return values[name]
        strides = row_major_strides(source.shape)
        start = -sum(lo * k for (lo, _), k in zip(source.box, strides, strict=True))
        return memory[name][affine_expression(strides, where, start, wide)]

    return read


def lower_flat(body: Scalar, at: IteratorValues, memory: Mapping[str, Array]) -> Expr:
    """Return *body* in float32 for iterators of the values *at*, with reads of the flat arrays *memory*."""

    def load_source(source: Tensor | Table | Scope, where: tuple[Expr, ...]) -> Expr:
        return memory[tensor_name(source)][where[0]]

    return lower_scalar(map_accesses(body, flat_read), at, load_source, F32, I64)


def result_array(inputs: Collection[str], kind: Type, shape: tuple[int, ...]) -> Array:
    """Return the array of a result of *shape*, by a name that none of *inputs* has."""
    names = ("O", *(f"O{k}" for k in range(1, len(inputs) + 1)))
    return Array(next(n for n in names if n not in inputs), kind, prod(shape))
