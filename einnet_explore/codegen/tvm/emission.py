r"""Scopes as TVM expressions and loop nests, one for each scope that ``prepare`` leaves; guards are ``if_then_else``.

Scalar functions are vectorisable expressions: the exponential and its relatives are polynomials, not calls.

A product in vector registers is a few rows times a few vectors, summed over one loop:

.. math::  C[r, x] \mathrel{+}= \sum_k a(r, k)\, b(k, x)

The sums are small buffers of default scope: TVM 0.27 allocates those on the stack, where LLVM promotes them to
registers (buffers of local scope go to the heap, of any size).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from math import inf

from einnet_explore.analysis.indices import box_tests
from einnet_explore.codegen.language.dialects import ODD_QUOTIENTS, OddQuotient
from einnet_explore.codegen.register_tiles import LINE_ELEMENTS, Machine
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.ir import (
    COMPARISONS,
    ELEMENT_TYPES,
    JOINS,
    REDUCTIONS,
    Access,
    Apply,
    Compare,
    Const,
    ElementType,
    Index,
    Iterator,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.support.lazy_modules import LazyModule

tirx, T = LazyModule("tvm.tirx"), LazyModule("tvm.tirx.script.builder.ir")
ir_builder = LazyModule("tvm.script.ir_builder")


class _TvmFunctions:
    """TVM's functions by NumPy's names; polynomials where those vectorise."""

    def maximum(self, a: TvmObject, b: TvmObject) -> TvmObject:
        return tirx.max(a, tvm_constant(b) if isinstance(b, int) else b)

    def minimum(self, a: TvmObject, b: TvmObject) -> TvmObject:
        return tirx.min(a, b)

    def where(self, condition: TvmObject, a: TvmObject, b: TvmObject) -> TvmObject:
        return tirx.Select(condition, *(tvm_constant(v) if isinstance(v, int) else v for v in (a, b)))

    def exp(self, a: TvmObject) -> TvmObject:
        return _exp(a)

    def expit(self, a: TvmObject) -> TvmObject:
        return 1 / (1 + _exp(-a))

    def rint(self, a: TvmObject) -> TvmObject:
        return tirx.nearbyint(a)

    def __getattr__(self, name: str) -> Callable[..., TvmObject]:
        if name in ODD_QUOTIENTS:
            return partial(_odd_quotient, ODD_QUOTIENTS[name])
        found: Callable[..., TvmObject] | None = getattr(tirx, name, None)
        if found is None:
            raise ValueError(f"{name} is no function of TVM")
        return found


def tvm_operator(op: str, args: tuple[TvmObject, ...]) -> TvmObject:
    """Return the expression of an ``Apply``; raises ValueError for an unknown function."""
    match op, args:
        case "+", _:
            return reduce(lambda a, b: a + b, args)
        case "*", _:
            return reduce(lambda a, b: a * b, args)
        case "-", (a, b):
            return a - b
        case "/", (a, b):
            return a / b
        case "neg", (a,):
            return -a
        case "pow", (tirx.FloatImm(value=0.0), b):
            return _zero_to_the(b)
        case "where", (condition, a, b):
            return tirx.if_then_else(condition, a, b)
    if op in ELEMENT_TYPES:
        return _cast(args[0], ELEMENT_TYPES[op])
    function = SCALAR_FUNCTIONS.get(op)
    if function is None or function.compute is None or function.arity != len(args):
        raise ValueError(f"{op} with {len(args)} arguments is no scalar function")
    return function.compute(_TvmFunctions(), *args)


def _cast(a: TvmObject, kind: ElementType) -> TvmObject:
    """Return *a* as an element of *kind*, in float32."""
    if kind.name == "bool":
        return (a != tvm_constant(0)).astype("float32")
    if kind.is_integer:
        return a.astype("int64").astype(kind.name).astype("float32")
    if kind.bits < 32:
        raise ValueError(f"a value of float32 is not cast to {kind.name} in TVM kernels")
    return a.astype(kind.name).astype("float32")


def _zero_to_the(exponent: TvmObject) -> TvmObject:
    """Return 0 to the *exponent*, as in gradients of kinks, without a call of pow: 1, 0 or ∞; NaN stays NaN."""
    one, zero, far = map(tvm_constant, (1, 0, inf))

    def of(x: TvmObject) -> TvmObject:
        return tirx.Select(x == zero, one, tirx.Select(x > zero, zero, tirx.Select(x < zero, far, x)))

    # TVM takes no expression twice in which something is bound.
    return _let(exponent, of)


def tvm_constant(value: float) -> TvmObject:
    """Return *value* as an immediate in float32."""
    return tirx.const(float(value), "float32")


def _exp(argument: TvmObject) -> TvmObject:
    """exp in single precision (1 ulp): 2ⁿ⁻¹·2p(r), n = x/ln 2 rounded, r = x - n ln 2; 0 below 1.7e-38."""
    return _let(argument, _exp_of)


def _exp_of(x: TvmObject) -> TvmObject:
    # Comparisons with NaN are false: as the second argument of max and min it stays.  Beyond, n is -126 or 128.
    within = tirx.max(tvm_constant(-87.4), tirx.min(tvm_constant(88.8), x))
    return _let(within, lambda y: _let(_shifted_exponent(y), lambda shifted: _scaled_power(y, shifted)))


def _shifted_exponent(x: TvmObject) -> TvmObject:
    """Return n + 126 + 1.5·2²³: a float32 with no bits for fractions, so the sum is rounded."""
    return x * tvm_constant(1.44269504088896341) + tvm_constant(_EXPONENT_SHIFT)


def _scaled_power(x: TvmObject, shifted: TvmObject) -> TvmObject:
    """Return 2ⁿ⁻¹·2p(x - n ln 2): the last bits of *shifted* are the exponent's of 2ⁿ⁻¹, or of 0 for n = -126."""
    n = shifted - tvm_constant(_EXPONENT_SHIFT)
    half = tirx.reinterpret("float32", tirx.reinterpret("int32", shifted) << 23)
    rest = x - n * tvm_constant(0.693359375) - n * tvm_constant(-2.12194440e-4)
    return _let(rest, lambda r: _horner(r, tuple(2 * c for c in _EXP)) * half)


_EXPONENT_SHIFT = 1.5 * 2**23 + 126
_EXP = (0.001381408073939383, 0.0083687799051404, 0.04166841134428978, 0.1666651964187622, 0.4999999403955, 1.0, 1.0)
"""Least relative error on |r| <= ln 2 / 2 with p(0) = p'(0) = 1: 3e-9."""


def _odd_quotient(function: OddQuotient, argument: TvmObject) -> TvmObject:
    """Return *function* of *argument*; a NaN stays one, as in the exponential."""

    def within(x: TvmObject, end: float) -> TvmObject:
        return tirx.max(tvm_constant(-end), tirx.min(tvm_constant(end), x))

    def of(x: TvmObject) -> TvmObject:
        return _let(x * x, lambda s: x * _horner(s, function.above) / _horner(s, function.below))

    near = _let(argument, lambda x: _let(within(x, function.end), of))
    return _let(near, lambda y: within(y, 1))


def _let(value: TvmObject, body: Callable[[TvmObject], TvmObject]) -> TvmObject:
    """Return *body* of *value*, which is evaluated once."""
    x = tirx.Var("x", "float32")
    return tirx.Let(x, value, body(x))


def _horner(x: TvmObject, coefficients: tuple[float, ...]) -> TvmObject:
    total = tvm_constant(coefficients[0])
    for c in coefficients[1:]:
        total = total * x + tvm_constant(c)
    return total


def tvm_function(
    inputs: Mapping[str, tuple[int, ...]],
    shape: tuple[int, ...],
    write: Callable[[Mapping[str, TvmObject], TvmObject], None],
) -> TvmObject:
    """Return the PrimFunc of ``write(buffers, result)`` from *inputs* (shapes by name) to a result of *shape*."""
    with ir_builder.IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        places = {
            name: T.match_buffer(T.arg(f"t{n}", T.handle()), each, "float32")
            for n, (name, each) in enumerate(inputs.items())
        }
        result = T.match_buffer(T.arg("y", T.handle()), shape, "float32")
        T.func_attr({"tir.noalias": True})
        write(places, result)
    return builder.get()


Environment = Mapping[Iterator, TvmObject]
SourceReader = Callable[[Tensor | Table | Scope], Callable[..., TvmObject]]


def tvm_join(reduce: str, a: TvmObject, b: TvmObject) -> TvmObject:
    """Return *a* and *b* combined by the monoid *reduce*."""
    return tvm_operator(JOINS[reduce], (a, b))


def stages_function(scope: Scope, inputs: Mapping[str, tuple[int, ...]], parallel: bool) -> TvmObject:
    """Return the PrimFunc of a prepared *scope* in float32 from *inputs* (shapes by name): its stages as written.

    LLVM vectorises them.  If *parallel*, the outermost loop of each is.
    """
    return tvm_function(
        inputs, scope.shape, lambda places, result: _StageWriter(dict(places), parallel, {}).write(scope, result)
    )


@dataclass(frozen=True)
class _StageWriter:
    """Writes a loop nest for a scope after those of the scopes that it reads; equal scopes are one stage."""

    places: Mapping[str, TvmObject]
    parallel: bool
    done: dict[Scope, TvmObject]

    def write(self, scope: Scope, target: TvmObject) -> None:
        """Compute *scope* into *target*."""
        for access in accesses(scope.body):
            if isinstance(access.source, Scope) and access.source not in self.done:
                self.done[access.source] = T.alloc_buffer(access.source.shape)
                self.write(access.source, self.done[access.source])
        with ExitStack() as inside:

            def loops(over: Iterable[Iterator]) -> list[TvmObject]:
                return [inside.enter_context(T.serial(x.extent)) for x in over]

            first = scope.traversals[:1] if self.parallel else ()
            at = [inside.enter_context(T.parallel(x.extent)) for x in first]
            at += loops(scope.traversals[len(first) :])
            env = {x: v + x.lo if x.lo else v for x, v in zip(scope.traversals, at, strict=True)}
            if not scope.summations:
                T.buffer_store(target, self._value(scope, env), at)
                return
            T.buffer_store(target, tvm_constant(REDUCTIONS[scope.reduce]), at)
            sums = zip(scope.summations, loops(scope.summations), strict=True)
            value = self._value(scope, {**env, **{x: v + x.lo if x.lo else v for x, v in sums}})
            T.buffer_store(target, tvm_join(scope.reduce, target[tuple(at)], value), at)

    def _value(self, scope: Scope, env: Environment) -> TvmObject:
        def read(source: Tensor | Table | Scope) -> Callable[..., TvmObject]:
            if isinstance(source, Table):
                raise TypeError("a prepared scope reads no table")
            memory = self.done[source] if isinstance(source, Scope) else self.places[source.name]
            return lambda *at: memory[at]

        return tvm_expression(scope.body, env, read)


def tvm_expression(body: Scalar, env: Environment, read: SourceReader) -> TvmObject:
    """Return the expression of *body* for iterators of the values *env*; ``read(source)(*index)`` is an element."""
    match body:
        case Const(value):
            return tvm_constant(value)
        case Access(source, index):
            tests = box_tests(index, source.box)
            if tests is None:
                return tvm_constant(source.value)
            element = read(source)(*(_clamped_index(i, b, env) for i, b in zip(index, source.box, strict=True)))
            if not tests:
                return element
            inside = tirx.all(*(_compare(test, env) for test in tests))
            return tirx.if_then_else(inside, element, tvm_constant(source.value))
        case Compare():
            return _compare(body, env)
        case Apply(op, args):
            return tvm_operator(op, tuple(tvm_expression(a, env, read) for a in args))


def _compare(condition: Compare, env: Environment) -> TvmObject:
    test = COMPARISONS[condition.op](tvm_index(condition.left, env), tvm_index(condition.right, env))
    if not (_has_remainder(condition.left) or _has_remainder(condition.right)):
        return test
    # TVM 0.27 reasons from one remainder test to the next and is wrong where two contradict one another (a division
    # by zero inside it, or wrong code).
    return hide_condition(test)


def hide_condition(test: TvmObject) -> TvmObject:
    """Return *test* in a form in which TVM does not recognise a condition.

    In the value that ``Select`` takes if a condition holds, TVM 0.27 drops index clamps that follow from the condition;
    but both values are evaluated.
    """
    return tirx.bitwise_and(test.astype("int32"), tirx.const(1, "int32")) != 0


def _has_remainder(index: Index) -> bool:
    return any(isinstance(a, Remainder) for a in index.divisions)


def _clamped_index(index: Index, box: tuple[int, int], env: Environment) -> TvmObject:
    """Return the position of *index* in the stored range *box*.

    Positions outside are guarded, but TVM 0.27 fails (a division by zero inside it) on remainders that it finds to
    leave the range.
    """
    lo, hi = box
    if hi - lo == 1:
        return tirx.const(0, "int32")
    at = tvm_index(index - lo, env)
    least, most = index.bounds
    if (least < lo or most >= hi) and _has_remainder(index):
        return tirx.max(tirx.min(at, hi - lo - 1), 0)
    return at


def tvm_index(index: Index, env: Environment) -> TvmObject:
    """Return *index* for iterators of the values *env*, by truncating divisions of nonnegative numerators.

    TVM 0.27 compiles floored divisions as in A[i % 2, (i + 1) % 2] wrongly: it takes sums of floored remainders of
    different numbers for those of one number.
    """
    total: TvmObject = None
    for atom, k in index.terms:
        match atom:
            case Iterator():
                part = env[atom]
            case Quotient(numerator, d):
                shifts = numerator.lift(d)
                part = tirx.truncdiv(tvm_index(numerator + shifts * d, env), d)
                part = part - shifts if shifts else part
            case Remainder(numerator, d):
                part = tirx.truncmod(tvm_index(numerator + numerator.lift(d) * d, env), d)
        part = part if k == 1 else part * k
        total = part if total is None else total + part
    if total is None:
        return tirx.const(index.const, "int32")
    return total + index.const if index.const else total


@dataclass(frozen=True, slots=True)
class VectorTile:
    """*rows* rows of *vectors* vectors of *lanes* elements, and of a narrower one of *rest* elements.

    If the tile is *paired*, the narrower vectors of two rows, half a vector each, are summed as one.
    """

    rows: int
    vectors: int
    lanes: int
    rest: int = 0
    paired: bool = False

    @property
    def width(self) -> int:
        """Columns."""
        return self.vectors * self.lanes + self.rest

    @property
    def columns(self) -> tuple[tuple[int, int], ...]:
        """The first column and the elements of each vector of a row."""
        whole = tuple((v * self.lanes, self.lanes) for v in range(self.vectors))
        return (*whole, *(((self.width - self.rest, self.rest),) if self.rest else ()))

    @property
    def pairs(self) -> int:
        """The number of pairs of rows."""
        return self.rows // 2 if self.paired else 0

    @property
    def sums(self) -> int:
        """The vectors of sums."""
        return self.rows * len(self.columns) - self.pairs


def vector_tile(columns: int, machine: Machine) -> VectorTile:
    """Return the tile for *columns* columns: up to four vectors, and rows such that sums fill half of the registers."""
    vectors = min(4, -(-columns // machine.lanes))
    vectors = max(v for v in (1, 2, 4) if v <= vectors)
    return VectorTile(machine.registers // 2 // vectors, vectors, machine.lanes)


def load_vector(buffer: TvmObject, at: TvmObject, lanes: int) -> TvmObject:
    """Return elements *at* … *at* + *lanes* - 1 of a buffer of one dimension."""
    return buffer.vload([at], f"float32x{lanes}")


def store_vector(buffer: TvmObject, value: TvmObject, at: TvmObject, lanes: int) -> None:
    """Store a vector from *at* on in a buffer of one dimension."""
    T.buffer_store(buffer, value, [tirx.Ramp(at, 1, lanes)])


PREFETCH_DISTANCE = 64 * LINE_ELEMENTS
"""Prefetch distance of data that are read once, in elements: more than memory delivers during its latency."""


def prefetch_line(buffer: TvmObject, at: TvmObject, written: bool = False, cache: int = 1) -> TvmObject:
    """Prefetch the line of element *at* of *buffer* into the *cache* of this level; beyond its end this has no effect.

    If it will be *written*, other caches give it up.
    """
    address = T.address_of(buffer[at])
    intent, locality, data = (tirx.const(n, "int32") for n in (int(written), 4 - cache, 1))
    return tirx.call_intrin("void", "tirx.prefetch", address, intent, locality, data)


def multiply_tile(
    tile: VectorTile,
    loop: Callable[[Callable[[TvmObject], None]], None],
    left: Callable[[int, TvmObject], TvmObject],
    right: Callable[[TvmObject, int], TvmObject],
    begin: Callable[[int, int], TvmObject] | None = None,
) -> list[TvmObject]:
    """Return the sums of *tile*, a buffer a row.

    ``loop(body)`` runs body(k); *left* (row, k) is a scalar, *right* (k, column) a vector.  Sums start at 0, or at the
    vectors *begin* (row, column).
    """
    sums = [T.alloc_buffer((tile.width,), "float32") for _ in range(tile.rows)]
    pairs = [T.alloc_buffer((tile.lanes,), "float32") for _ in range(tile.pairs)]
    whole = tile.vectors * tile.lanes

    def columns_of(row: int) -> Iterable[tuple[int, int]]:
        return tile.columns if row >= 2 * tile.pairs else tile.columns[:-1]

    def both(one: TvmObject, other: TvmObject) -> TvmObject:
        ends = (*range(tile.rest), *range(tile.lanes + tile.rest, 2 * tile.lanes))
        return tirx.Shuffle([one, other], [tirx.const(n, "int32") for n in ends])

    for row, total in enumerate(sums):
        for start, lanes in columns_of(row):
            zero = tirx.Broadcast(tirx.const(0.0, "float32"), lanes)
            store_vector(total, zero if begin is None else begin(row, start), start, lanes)
    for n, total in enumerate(pairs):
        zero = tirx.Broadcast(tirx.const(0.0, "float32"), tile.lanes)
        store_vector(total, zero if begin is None else both(*(begin(2 * n + i, whole) for i in (0, 1))), 0, tile.lanes)

    def step(k: TvmObject) -> None:
        twice = None
        if pairs:
            half = right(k, whole)
            twice = T.bind(tirx.Shuffle([half, half], [tirx.const(n, "int32") for n in range(tile.lanes)]))
        for row, total in enumerate(sums):
            factor = left(row, k)
            for start, lanes in columns_of(row):
                added = load_vector(total, start, lanes) + tirx.Broadcast(factor, lanes) * right(k, start)
                store_vector(total, added, start, lanes)
            if row % 2 and row < 2 * tile.pairs:
                of_rows = both(*(tirx.Broadcast(left(n, k), tile.lanes) for n in (row - 1, row)))
                pair = pairs[row // 2]
                store_vector(pair, load_vector(pair, 0, tile.lanes) + of_rows * twice, 0, tile.lanes)

    loop(step)
    for n, total in enumerate(pairs):
        for i in (0, 1):
            store_vector(sums[2 * n + i], load_vector(total, i * tile.rest, tile.rest), whole, tile.rest)
    return sums


def count_steps(extent: TvmObject, start: TvmObject | None = None) -> Callable[[Callable[[TvmObject], None]], None]:
    """Return the loop of a product: *extent* steps from *start* on."""

    def loop(body: Callable[[TvmObject], None]) -> None:
        with T.serial(extent) as k:
            body(k if start is None else k + start)

    return loop


def store_tile(
    tile: VectorTile, sums: list[TvmObject], buffer: TvmObject, place: Callable[[int, int], TvmObject]
) -> None:
    """Store the sums of *tile* into *buffer*, a vector at a time, at *place* (row, column)."""
    for row, total in enumerate(sums):
        for x, lanes in tile.columns:
            store_vector(buffer, load_vector(total, x, lanes), place(row, x), lanes)


def fill_buffer(buffer: TvmObject, value: float, extent: TvmObject, lanes: int, start: TvmObject | None = None) -> None:
    """Store *value* into *extent* elements of *buffer* from *start* on, in whole vectors."""
    with T.serial(extent // lanes) as c:
        at = c * lanes if start is None else start + c * lanes
        store_vector(buffer, tirx.Broadcast(tirx.const(value, "float32"), lanes), at, lanes)


def fold_vector(buffer: TvmObject, lanes: int, reduce: str) -> TvmObject:
    """Return the *lanes* elements of *buffer* reduced, half by half; the buffer is overwritten."""
    while lanes > 2:
        lanes //= 2
        halves = load_vector(buffer, 0, lanes), load_vector(buffer, lanes, lanes)
        store_vector(buffer, tvm_join(reduce, *halves), 0, lanes)
    return tvm_join(reduce, buffer[0], buffer[1])
