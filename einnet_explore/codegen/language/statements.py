"""Statements and kernels of the kernel language: frozen values that describe one thread, walks over them, and rules.

``check_kernel`` verifies the rules of every dialect: names are declared once and before use, types agree, and a barrier
is reached by all threads of a block or by none.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import prod
from typing import TypeAlias, TypeVar

from einnet_explore.codegen.language.values import (
    BOOL,
    F16,
    F32,
    Array,
    Binary,
    Call,
    Cast,
    Expr,
    LaunchIndex,
    Literal,
    Load,
    Select,
    Type,
    Unary,
    Var,
    binary_operation,
    cast,
    conjunction,
)
from einnet_explore.ir.node import Node, node
from einnet_explore.support.errors import Refused

N = TypeVar("N", bound=Node)

PACK_BYTES = 16
"""The widest transfer of one instruction: 128 bits."""

TILE_SIDES = (16, 8, 4)
"""The sides of tiles that are transposed in registers."""

WORD_TYPES = {2: "short", 4: "int", 8: "long long"}
"""The C integer of each number of bytes: such tiles are moved as integers."""


@node
class Declare(Node):
    """A variable of this thread, with its initial value or None."""

    var: Var
    value: Expr | None = None


@node
class LocalArray(Node):
    """A ``private`` array of this thread, or a ``shared`` one of the block (only at a kernel's top level)."""

    array: Array


@node
class Part(Node):
    """*array* stands for the elements of *whole* from *first* on."""

    array: Array
    whole: Array
    first: Expr


@node
class Assign(Node):
    """var = value."""

    var: Var
    value: Expr


@node
class Store(Node):
    """array[index] = value; half precision and bfloat16 round to the nearest, ties to even."""

    array: Array
    index: Expr
    value: Expr


@node
class Copy(Node):
    """*size* neighbouring elements from *source* at *read* to *target* at *write*, in one transfer if possible.

    One transfer takes 2, 4, 8 or 16 bytes; the caller promises that both ends are multiples of that. Other sizes are
    copied element by element. *asynchronous*: from global to shared memory, 4, 8 or 16 bytes; the data have arrived
    after a ``Barrier`` of *copies*. GPUs from sm_80 on copy without registers.
    """

    target: Array
    write: Expr
    source: Array
    read: Expr
    size: int
    asynchronous: bool = False

    @property
    def is_single_transfer(self) -> bool:
        """True if one instruction copies all elements."""
        size = self.size * self.target.kind.size
        return self.size > 1 and size <= PACK_BYTES and size & (size - 1) == 0


@node
class LoadPair(Node):
    """Declare *left* and *right*, float32, as two neighbouring halves of *array*, from the even *index* on."""

    left: Var
    right: Var
    array: Array
    index: Expr


@node
class StorePair(Node):
    """Two neighbouring halves of *array*, from the even *index* on, rounded to the nearest, ties to even."""

    array: Array
    index: Expr
    left: Expr
    right: Expr


@node
class PairOperation(Node):
    """target[index], target[index+1] = a op b for two neighbouring halves; *op* is ``+``, ``-`` or ``*``.

    One operation of halves, rounded once, is the same in single precision and rounded (24 ≥ 2·11 + 2 bits).
    """

    op: str
    target: Array
    index: Expr
    left: Array
    right: Array


@node
class StoreTransposed(Node):
    """target[write + j·stride + i] = tile[i·side + j] for all i < side, j < rows: a tile transposed in registers.

    *tile* is a private array of side² elements; side is 4, 8 or 16, and so are *rows* if they are 0.  *streamed*: whole
    lines bypass the caches where the machine can; other threads of the grid see them only after the kernel has ended.
    """

    target: Array
    write: Expr
    stride: int
    tile: Array
    side: int
    streamed: bool = False
    rows: int = 0


WARP_THREADS = 32
"""Threads of an NVIDIA GPU that run together."""

FRAGMENT_ROWS, FRAGMENT_COLUMNS, FRAGMENT_DEPTH = 16, 8, 16
"""Extents of a product of tensor cores: ``mma.m16n8k16``."""


@node
class FragmentProduct(Node):
    r"""Add a thread's part of a 16x8 product of halves, of depth 16, to its four *sums* in float32.

    .. math::  C_{rc} \mathrel{+}= \sum_{k < 16} left[left\_at + r \cdot left\_stride + k] \cdot
               right[right\_at + c \cdot right\_stride + k]

    Thread :math:`l` of a warp has the elements of ``fragment_places``: rows :math:`l / 4` and 8 more, columns
    :math:`2 (l \bmod 4)` and 1 more.  All threads of a warp execute it, with the same addresses, which are even; on
    GPUs from sm_80 on it is one instruction of a tensor core.
    """

    sums: Array
    at: Expr
    left: Array
    left_at: Expr
    left_stride: int
    right: Array
    right_at: Expr
    right_stride: int


def fragment_places(lane: Expr) -> tuple[tuple[Expr, Expr], ...]:
    """Return the (row, column) of each of the four sums that the thread *lane* of a warp has."""
    row, column = binary_operation("/", lane, 4), binary_operation("%", lane, 4) * 2
    return tuple((row + 8 * (n // 2), column + n % 2) for n in range(4))


def fragment_loops(s: FragmentProduct) -> tuple[Statement, ...]:
    """Return *s* as loops of this thread alone: its definition, for what has no tensor cores."""
    k = Var(":fragment depth")
    out: list[Statement] = []
    for n, (row, column) in enumerate(fragment_places(binary_operation("%", LaunchIndex("thread"), WARP_THREADS))):
        left = cast(F32, Load(s.left, s.left_at + row * s.left_stride + k))
        right = cast(F32, Load(s.right, s.right_at + column * s.right_stride + k))
        added = Store(s.sums, s.at + n, Load(s.sums, s.at + n) + left * right)
        out.append(counted_loop(k, FRAGMENT_DEPTH, added))
    return tuple(out)


@node
class Prefetch(Node):
    """A hint that the line of *array* with *index*, which may be outside, is read or written soon."""

    array: Array
    index: Expr
    write: bool = False


LoopHint: TypeAlias = typing.Literal["unroll", "simd", "vector"]
"""``unroll`` where the trip count is known; ``simd``: iterations are independent except for reductions; ``vector``: and
they are one vector, which compilers would split otherwise."""


@node
class For(Node):
    """for (var = start; var < stop; var += step), *step* positive."""

    var: Var
    start: Expr
    stop: Expr
    step: Expr
    body: tuple[Statement, ...]
    hint: LoopHint | None = None


@node
class If(Node):
    """if (condition) then, else orelse."""

    condition: Expr
    then: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


@node
class Barrier(Node):
    """Wait for all threads of the block; each then sees the others' writes to shared and global memory.

    *copies*: wait for asynchronous copies as well.
    """

    copies: bool = False


@node
class Comment(Node):
    """A comment in the emitted text; only letters, digits and a few signs are kept."""

    text: str


Statement: TypeAlias = (
    Declare
    | LocalArray
    | Part
    | Assign
    | Store
    | Copy
    | LoadPair
    | StorePair
    | PairOperation
    | StoreTransposed
    | FragmentProduct
    | Prefetch
    | For
    | If
    | Barrier
    | Comment
)


_DECLARED: Mapping[type[Node], tuple[str, ...]] = {
    Declare: ("var",),
    LocalArray: ("array",),
    Part: ("array",),
    LoadPair: ("left", "right"),
}
"""The fields that are declared variables and arrays."""

_STATEMENTS: tuple[type[Node], ...] = typing.get_args(Statement)
_NODES = (*_STATEMENTS, Literal, Var, LaunchIndex, Unary, Binary, Cast, Call, Select, Load)


def _fields_of(*types: str) -> Mapping[type[Node], tuple[str, ...]]:
    """Return the fields of each node that are of one of *types*, and not declared there."""
    return {
        kind: tuple(f.name for f in fields(kind) if f.type in types and f.name not in _DECLARED.get(kind, ()))
        for kind in _NODES
    }


_EXPRESSIONS = _fields_of("Expr", "Expr | None", "tuple[Expr, ...]")
"""The fields that are expressions."""

_BODIES = _fields_of("tuple[Statement, ...]")
"""The fields that are lists of statements."""

_ARRAYS = _fields_of("Array")
"""The fields that are accessed arrays: the one that is written first."""

_ELEMENTS = {
    kind: tuple((a.name, i.name) for a, i in pairwise(fields(kind)) if (a.type, i.type) == ("Array", "Expr"))  # type: ignore[arg-type]
    for kind in _STATEMENTS
    if kind is not Prefetch
}
"""The fields that are an array and, right behind it, the position of the elements that are accessed."""


def _fields(of: Node, table: Mapping[type[Node], tuple[str, ...]]) -> Iterable[typing.Any]:
    return (getattr(of, name) for name in table.get(type(of), ()))


def _map_fields(of: N, table: Mapping[type[Node], tuple[str, ...]], change: Callable[[typing.Any], typing.Any]) -> N:
    """Return *of* with *change* of its fields in *table*, except for those that are None."""
    old = {name: getattr(of, name) for name in table[type(of)]}
    new = {name: change(value) for name, value in old.items() if value is not None}
    return replace(of, **new) if new else of  # type: ignore[type-var]


def counted_loop(
    var: Var,
    stop: int | Expr,
    *body: Statement,
    start: int | Expr = 0,
    step: int | Expr = 1,
    hint: LoopHint | None = None,
) -> For:
    """Return *body* for var in start … stop-1, by *step*; numbers have the type of *var*."""
    first, end, by = (n if isinstance(n, Expr) else Literal(n, var.kind) for n in (start, stop, step))
    return For(var, first, end, by, body, hint)


def unrolled(var: Var, count: int, *body: Statement) -> For:
    """Return *body* for var in 0 … *count*-1 without a loop, so that arrays that it indexes may be registers."""
    return counted_loop(var, count, *body, hint="unroll")


def where_all(tests: Iterable[Expr], *body: Statement) -> tuple[Statement, ...]:
    """Return *body* under the condition that all *tests* hold, if there are any."""
    test = conjunction(*tests)
    return body if test is None else (If(test, body),)


def nested_bodies(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """Return the lists of statements inside *statement*."""
    return tuple(_fields(statement, _BODIES))


def map_bodies(statement: Statement, change: Callable[[tuple[Statement, ...]], Iterable[Statement]]) -> Statement:
    """Return *statement* with *change* of the lists of statements inside it."""
    return _map_fields(statement, _BODIES, lambda body: tuple(change(body)))


MAX_BLOCK_THREADS, MAX_BLOCK_REGISTERS = 1024, 64 * 1024

MAX_STATIC_SHARED_BYTES = 48 << 10
"""Shared memory that a kernel for CUDA may declare; more is given at the launch."""


@node
class Kernel(Node):
    """One thread's program, for every thread of a grid of blocks.

    *params* are arrays in global memory and scalars, in the order of the arguments. *block* is fixed; *grid* is a
    default that callers may override. *resident* blocks at a time should fit a multiprocessor; 0 leaves it to the
    printer. Raises Refused if a block has too many threads.
    """

    name: str
    params: tuple[Array | Var, ...]
    body: tuple[Statement, ...]
    block: tuple[int, int, int] = (1, 1, 1)
    grid: tuple[int, int, int] = (1, 1, 1)
    resident: int = 0

    def __post_init__(self) -> None:
        if min(*self.block, *self.grid) < 1 or prod(self.block) > MAX_BLOCK_THREADS:
            raise Refused(
                f"kernel {self.name}: blocks of {self.block}, a grid of {self.grid}: expected positive numbers, and at "
                f"most {MAX_BLOCK_THREADS} threads a block"
            )
        for p in self.params:
            if isinstance(p, Array) and p.space != "global":
                raise Refused(f"kernel {self.name}: parameter {p.name} is a {p.space} array")

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arrays that are only read, in the order of the parameters."""
        return tuple(p.name for p in self.params if isinstance(p, Array) and p.const)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return prod(self.block)

    @property
    def shared_places(self) -> Mapping[Array, int]:
        """The arrays in shared memory, and the byte at which each begins."""
        places: dict[Array, int] = {}
        end = 0
        for s in self.body:
            if isinstance(s, LocalArray) and s.array.space == "shared":
                places[s.array] = end
                end += -(-s.array.size * s.array.kind.size // PACK_BYTES) * PACK_BYTES
        return places

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return max((at + a.size * a.kind.size for a, at in self.shared_places.items()), default=0)

    @property
    def dynamic_shared_bytes(self) -> int:
        """Shared memory that a launch on CUDA asks for: all of it, if it is more than a kernel may declare."""
        return self.shared_bytes if self.shared_bytes > MAX_STATIC_SHARED_BYTES else 0


ExpressionRewrite = Callable[[Expr], "Expr | None"]


def operands_of(of: Expr | Statement) -> tuple[Expr, ...]:
    """Return the expressions that an expression or a statement itself has, without those inside these."""
    if isinstance(of, Call):
        return of.args
    return tuple([e for name in _EXPRESSIONS[type(of)] if (e := getattr(of, name)) is not None])


def map_operands(of: N, change: Callable[[Expr], Expr]) -> N:
    """Return *of* with *change* of its operands."""
    return _map_fields(of, _EXPRESSIONS, lambda e: tuple(map(change, e)) if isinstance(e, tuple) else change(e))


def walk_expression(expr: Expr) -> Iterable[Expr]:
    """Yield *expr* and all its subexpressions, outermost first."""
    yield expr
    for part in operands_of(expr):
        yield from walk_expression(part)


def replace_expressions(expr: Expr, to: ExpressionRewrite) -> Expr:
    """Replace every subexpression of *expr* for which *to* returns another one, outermost first."""
    found = to(expr)
    return map_operands(expr, lambda part: replace_expressions(part, to)) if found is None else found


def all_statements(body: Iterable[Statement]) -> Iterable[Statement]:
    """Yield the statements of *body* and those nested in them, in order."""
    for s in body:
        yield s
        for inner in nested_bodies(s):
            yield from all_statements(inner)


def all_expressions(body: Iterable[Statement]) -> Iterable[Expr]:
    """Yield the expressions of *body* and their subexpressions, at any depth."""
    return (e for s in all_statements(body) for own in operands_of(s) for e in walk_expression(own))


def has_barrier(statement: Statement) -> bool:
    """True if *statement* is or contains a barrier."""
    return any(isinstance(s, Barrier) for s in all_statements((statement,)))


def rewrite_statement(statement: Statement, to: ExpressionRewrite) -> Statement:
    """Replace the expressions in *statement*, at any depth; declarations stay."""
    s = map_bodies(statement, lambda body: (rewrite_statement(b, to) for b in body))
    return map_operands(s, lambda e: replace_expressions(e, to))


def accessed_arrays(statement: Statement) -> tuple[Array, ...]:
    """Return the arrays that *statement* itself accesses: those it writes first, then those its expressions read."""
    read = (e.array for x in operands_of(statement) for e in walk_expression(x) if isinstance(e, Load))
    return (*_fields(statement, _ARRAYS), *read)


def written_array(statement: Statement) -> Array | None:
    """Return the array that *statement* itself writes, or None."""
    reads = isinstance(statement, LoadPair | Part | Prefetch)
    return None if reads else next(iter(_fields(statement, _ARRAYS)), None)


def declared_names(statement: Statement) -> tuple[str, ...]:
    """Return the names that *statement* itself declares."""
    return tuple(declared.name for declared in _fields(statement, _DECLARED))


def used_names(statement: Statement) -> frozenset[str]:
    """Return the names of variables and arrays in *statement*, at any depth."""
    inside = [*all_statements((statement,))]
    assigned = (s.var.name for s in inside if isinstance(s, Assign | Declare))
    variables = (e.name for e in all_expressions((statement,)) if isinstance(e, Var))
    return frozenset((*assigned, *variables, *(a.name for s in inside for a in accessed_arrays(s))))


def assigned_names(body: Iterable[Statement]) -> frozenset[str]:
    """Return the variables that *body* assigns after their declaration, at any depth."""
    every = all_statements(body)
    return frozenset(s.var.name for s in every if isinstance(s, Assign) or (isinstance(s, Declare) and s.value is None))


def integer_constant(expr: Expr) -> int | None:
    """Return the value of an integer literal, or None."""
    return int(expr.value) if isinstance(expr, Literal) and expr.type.integer else None


def launch_indices(body: Iterable[Statement]) -> frozenset[LaunchIndex]:
    """Return the thread, block and grid indices that *body* reads."""
    return frozenset(e for e in all_expressions(body) if isinstance(e, LaunchIndex))


_Names = Mapping[str, "Array | Var"]


def check_kernel(kernel: Kernel) -> None:
    """Raise Refused, naming the kernel, if it breaks a rule of the language.

    All threads of a block must reach a barrier: loop bounds and conditions around it contain no thread index, no
    variable that is assigned twice, and no element of an array that the kernel writes.
    """
    try:
        known: dict[str, Array | Var] = {}
        for p in kernel.params:
            _declare_name(known, p)
        scope = _Scope(
            known, assigned_names(kernel.body), frozenset(p.name for p in kernel.params if isinstance(p, Var))
        )
        _check_body(kernel.body, replace(scope, top=True))
    except Refused as error:
        raise Refused(f"kernel {kernel.name}: {error}") from None


@dataclass(frozen=True)
class _Scope:
    """Declared names, names that are assigned later, and names with one value for the whole block."""

    known: _Names
    changing: frozenset[str]
    uniform: frozenset[str]
    top: bool = False
    """At the top level of the kernel."""

    def alike(self, expr: Expr) -> bool:
        """True if *expr* has one value for all threads of a block."""
        return is_uniform(expr, self.uniform)


def is_uniform(expr: Expr, names: frozenset[str]) -> bool:
    """True if *expr* has one value for all threads of a block, given that the variables *names* have."""
    match expr:
        case Literal():
            return True
        case Var(name):
            return name in names
        case LaunchIndex(of):
            return of != "thread"
        case Load(array, index):
            return array.space == "global" and array.const and array.noalias and is_uniform(index, names)
        case _:
            return all(is_uniform(p, names) for p in operands_of(expr))


def _declare_name(known: dict[str, Array | Var], what: Array | Var) -> None:
    if what.name in known:
        raise Refused(f"{what.name} is declared twice")
    known[what.name] = what


def _check_body(body: Iterable[Statement], scope: _Scope) -> None:
    known, alike = dict(scope.known), set(scope.uniform)
    for s in body:
        here = _Scope(known, scope.changing, frozenset(alike), scope.top)
        for e in operands_of(s):
            _check_expression(e, known)
        for a in accessed_arrays(s):
            if known.get(a.name) != a:
                raise Refused(f"array {a.name} is used, and not declared so before")
        if (target := written_array(s)) is not None and target.const:
            raise Refused(f"array {target.name} is constant, and written to")
        for array, index in _ELEMENTS.get(type(s), ()):
            _check_index(getattr(s, array), getattr(s, index))
        _check_statement(s, here)
        for declared in _fields(s, _DECLARED):
            _declare_name(known, declared)
        _check_uniform(s, here)
        match s:
            case Declare(var, Expr() as value) if var.name not in scope.changing and here.alike(value):
                alike.add(var.name)
            case For(var, start, stop, step, inner):
                same = alike | ({var.name} if all(map(here.alike, (start, stop, step))) else set())
                _declare_name(inside := dict(known), var)
                _check_body(inner, _Scope(inside, scope.changing, frozenset(same)))
            case If(_, then, orelse):
                for inner in (then, orelse):
                    _check_body(inner, replace(here, top=False))


def _check_uniform(s: Statement, scope: _Scope) -> None:
    """Check that all threads reach the barriers in *s*, and all of a warp the products of fragments."""
    varying = next((e for e in operands_of(s) if nested_bodies(s) and not scope.alike(e)), None)
    if varying is None:
        return
    if has_barrier(s):
        raise Refused(f"a barrier under {_describe_value(varying)}, which may differ between threads of a block")
    if any(isinstance(inner, FragmentProduct) for inner in all_statements((s,))):
        raise Refused(f"a product of a warp under {_describe_value(varying)}, which may differ between its threads")


def _check_statement(s: Statement, scope: _Scope) -> None:
    match s:
        case Declare(var, value):
            _check_type(f"variable {var.name}", var.type, value)
        case LocalArray(array) if array.space == "global" or (array.space == "shared" and not scope.top):
            raise Refused(f"{array.space} array {array.name} is declared where only private ones may be")
        case Assign(var, value):
            if var.name not in scope.changing or scope.known.get(var.name) != var:
                raise Refused(f"variable {var.name} is given a value, and not declared before")
            if var.name in scope.uniform:
                raise Refused(f"{var.name} is a parameter or a loop's, and keeps its value")
            _check_type(f"variable {var.name}", var.type, value)
        case Store(array, _, value):
            _check_type(f"array {array.name}", array.kind.computed, value)
        case Prefetch(array, index) if not index.type.integer:
            raise Refused(f"array {array.name} has an index of {index.type!r}")
        case For(var, start, stop, step):
            if {start.type, stop.type, step.type} != {var.type} or not var.type.integer:
                raise Refused(f"loop {var.name} of {var.type!r} has bounds of {start.type!r} and {stop.type!r}")
            if (by := integer_constant(step)) is not None and by < 1:
                raise Refused(f"loop {var.name} goes in steps of {by}, expected a positive number")
        case If(condition) if condition.type != BOOL:
            raise Refused(f"a condition of type {condition.type!r}, expected bool")
        case _:
            _check_transfer(s)


def _check_transfer(s: Statement) -> None:
    """Check a statement that moves, or computes, several elements at once."""
    match s:
        case Copy(target, _, source, _, size) if target.kind != source.kind or size < 1:
            raise Refused(f"{size} elements of {source.kind!r} are copied to {target.kind!r}")
        case Copy(target, _, source, _, size, asynchronous=True) if (target.space, source.space) != (
            "shared",
            "global",
        ) or size * target.kind.size not in (4, 8, 16):
            raise Refused(
                f"{size} elements of {source.kind!r} are copied asynchronously from {source.space} to "
                f"{target.space} memory: expected 4, 8 or 16 bytes from global to shared"
            )
        case LoadPair(left, right, array) if (array.kind, left.type, right.type) != (F16, F32, F32):
            raise Refused(f"{array.name} of {array.kind!r} is read in pairs, which halves are, into float32")
        case StorePair(array, _, left, right) if (array.kind, left.type, right.type) != (F16, F32, F32):
            raise Refused(f"a pair of {left.type!r} is written to {array.name} of {array.kind!r}")
        case PairOperation(op, target, _, left, right) if {target.kind, left.kind, right.kind} != {F16} or op not in (
            "+",
            "-",
            "*",
        ):
            raise Refused(f"{op} of pairs of {left.kind!r} and {right.kind!r} into {target.kind!r}")
        case FragmentProduct(sums, _, left, _, left_stride, right, _, right_stride):
            wanted = (("private", F32), ("shared", F16), ("shared", F16))
            if tuple((a.space, a.kind) for a in (sums, left, right)) != wanted:
                raise Refused(
                    f"fragments of {left.space} {left.kind!r} and {right.space} {right.kind!r} are added to "
                    f"{sums.space} {sums.kind!r}: expected shared float16, private float32"
                )
            if left_stride % 2 or right_stride % 2:
                raise Refused(f"fragments have rows {left_stride} and {right_stride} apart: expected even numbers")
        case StoreTransposed(target, _, stride, tile, side, _, rows):
            is_tile = side in TILE_SIDES and target.kind.size in WORD_TYPES
            private = (tile.space, tile.kind, tile.size) == ("private", target.kind, side * side)
            if not is_tile or not private or stride < side or not 0 <= rows <= side:
                raise Refused(
                    f"a square of {side} of {tile.space} {tile.kind!r}, {tile.size} elements, is turned into "
                    f"{target.name} of {target.kind!r}, {rows or side} rows {stride} apart: "
                    f"expected {', '.join(map(str, TILE_SIDES))}, a "
                    "private array of as many elements, one kind of 2, 4 or 8 bytes, and rows that do not overlap"
                )


def _check_type(what: str, kind: Type, value: Expr | None) -> None:
    if value is not None and value.type != kind:
        raise Refused(f"{what} of {kind!r} is given a value of {value.type!r}")


def _check_index(array: Array, index: Expr) -> None:
    if not index.type.integer:
        raise Refused(f"array {array.name} has an index of {index.type!r}")
    at = integer_constant(index)
    if at is not None and (at < 0 or (array.size and at >= array.size)):
        raise Refused(f"array {array.name} of {array.size or 'unknown many'} elements has an index of {at}")


def _check_expression(expr: Expr, known: _Names) -> None:
    for e in walk_expression(expr):
        match e:
            case Var(name) if known.get(name) != e:
                raise Refused(f"variable {name} of {e.type!r} is used, and not declared so before")
            case Load(array, index):
                _check_index(array, index)
            case Binary(op, left, right) if left.type != right.type:
                raise Refused(f"{op} joins {left.type!r} and {right.type!r}")
            case Select(condition, yes, no) if condition.type != BOOL or yes.type != no.type:
                raise Refused(f"a choice between {yes.type!r} and {no.type!r} by {condition.type!r}")
            case Unary(op, arg) if (op == "!") != (arg.type == BOOL) or op not in "-!":
                raise Refused(f"{op} of {arg.type!r}: no such operation")
            case Cast(kind) if kind != kind.computed:
                raise Refused(f"a value cannot be cast to {kind!r}")


def _describe_value(expr: Expr) -> str:
    names = [e.name for e in walk_expression(expr) if isinstance(e, Var)]
    loads = [e.array.name for e in walk_expression(expr) if isinstance(e, Load)]
    threads = [f"thread[{e.dim}]" for e in walk_expression(expr) if isinstance(e, LaunchIndex)]
    return "a value of " + ", ".join(dict.fromkeys((*threads, *names, *loads)))
