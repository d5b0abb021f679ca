r"""Evaluation of two scopes on random inputs, as a whole or in slices: evidence without a proof.

Functions over the reals are replaced by polynomials with random constants (``exp`` → x² + 3x + c and so on) and
evaluated on random integers: scopes that are equal for every interpretation of the functions stay equal, no value
saturates, and arithmetic stays exact.  Where these differ, an identity of the functions themselves may still hold; it
is sampled in double precision with running error bounds, on inputs of all signs and magnitudes, zeros, constants of
the scopes, and equal operands.  A value that is undefined on one side only (1/0, the logarithm of -1) is a difference;
undefined on both sides it is no evidence.

Agreement counts only where it is decisive, and for the pieces of piecewise functions that the samples reached
(``branch_coverage``); otherwise the result names the gap.  A slice restricts the traversals of the root to a window,
and those of nested scopes to the elements that the window reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from typing import Any

import numpy as np

from einnet_explore.analysis.substitution import with_iterators
from einnet_explore.equivalence.branch_coverage import BranchCoverage, kinks
from einnet_explore.interpreter.evaluation import Evaluation, IllegalRead, NumberDomain
from einnet_explore.interpreter.exact_arrays import Array, Part, RealNumbers, Value
from einnet_explore.interpreter.running_error import BoundedValue, RunningErrors, evaluate_with_errors
from einnet_explore.ir import (
    REAL_FUNCTIONS,
    SCALAR_FUNCTIONS,
    Access,
    Apply,
    Box,
    Compare,
    Const,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    add,
    map_accesses,
    mul,
    scopes,
    tensors,
)

MAX_REAL_POINTS = 1 << 20
"""Grid points of one evaluation with error bounds."""

SATURATED, SATURATED_ERROR = 1e-12, 1e-6
"""Distance from 1 at which a bounded function tells nothing of its argument any more; its error is taken to be this."""

ELEMENTS_PER_INPUT = 12
"""Single elements that are compared on each kind of inputs, while a side of a kink is not reached."""

REPEATED_POINTS = 1 << 14
"""Scopes of fewer grid points are sampled several times with each kind of inputs."""

MIN_DECISIVE_ROUNDS = 3
"""Rounds of samples that have to be decisive, of at least ``len(_REAL_INPUTS)``."""


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Number of compared output elements, and the first difference (index, expected, found) or an error.

    Without either, *gap* says what the samples leave open ('': nothing that is known).
    """

    elements: int
    differs: tuple[tuple[int, ...], float, float] | None = None
    error: str | None = None
    gap: str = ""


def grid_points(scope: Scope) -> int:
    """Count the grid points of *scope* and its nested scopes, each distinct scope once."""
    distinct = dict.fromkeys(s for _, s in scopes(scope))
    return sum(prod(x.extent for x in (*s.traversals, *s.summations)) for s in distinct)


def compare_on_samples(
    before: Scope,
    after: Scope,
    budget: int,
    seed: int,
    element: tuple[int, ...] | None = None,
    indices: tuple[tuple[int, ...], ...] = (),
) -> SampleResult:
    """Evaluate both scopes (of one box) on the same random inputs, up to 16 times within *budget* grid points.

    If one evaluation exceeds the budget, slices are evaluated: at both corners, at random, and around *element*, an
    output element that the term comparison suspects.  *indices* are suspected coordinates in tensors: some inputs have
    a peak there, to expose a wrong maximum; some have one sign, to expose a maximum with a constant.
    """
    samples = _Samples((before, after), seed, element)
    has_reals = any(map(_is_real, (before, after)))
    try:
        found = samples.integers(budget, indices, has_reals)
        if found is None and has_reals:
            found = samples.reals(min(budget, MAX_REAL_POINTS))
    except (IllegalRead, OverflowError, ValueError) as error:
        return SampleResult(samples.elements, error=str(error))
    return SampleResult(samples.elements, found, gap="" if found else samples.gap())


@dataclass
class _Samples:
    """Samples of two scopes: the windows that were compared, and which sides of the kinks were reached."""

    pair: tuple[Scope, Scope]
    seed: int
    element: tuple[int, ...] | None
    windows: set[Box] = field(default_factory=set)
    holds_for_all_functions: bool = True
    """The scopes agreed for all interpretations of the functions that were tried."""
    decisive_rounds: int = MIN_DECISIVE_ROUNDS

    def __post_init__(self) -> None:
        self.on_integers = [BranchCoverage(kinks(scope)) for scope in self.pair]
        self.on_reals = [BranchCoverage(each.kinks) for each in self.on_integers]
        self.points = sum(map(grid_points, self.pair))
        self.constants = sorted({c for scope in self.pair for c in _constants(scope)})

    @property
    def elements(self) -> int:
        """The number of distinct output elements compared."""
        return _covered_elements(self.windows)

    def gap(self) -> str:
        """Return what the samples leave open."""
        if self.decisive_rounds < MIN_DECISIVE_ROUNDS:
            return "too few samples were decisive: values are undefined, or lost to rounding or overflow"
        for integers, reals in zip(self.on_integers, self.on_reals, strict=True):
            if missing := reals.gap([integers] if self.holds_for_all_functions else []):
                return missing
        return ""

    def integers(
        self, budget: int, indices: tuple[tuple[int, ...], ...], has_reals: bool
    ) -> tuple[tuple[int, ...], float, float] | None:
        """Compare on random integers, with stand-ins for real functions; return a difference, if it is decisive."""
        for n in range(max(4, min(16, budget // max(1, self.points)))):
            random = np.random.default_rng((self.seed, n))
            window, pair = self._slices(budget, random, n)
            given = random_inputs(pair[0], pair[1], random, self._magnitude(n))
            if sign := {3: -1, 6: 1, 7: -1}.get(n % 8):
                given = {name: np.asarray(sign * np.abs(array)) for name, array in given.items()}
            if n % 4 != 0:
                _put_peak(given, indices, 100_000 if n % 4 < 3 else -100_000)
            shift = int(random.integers(-1000, 1001))
            values = []
            for scope, coverage in zip(pair, self.on_integers, strict=True):
                stand_in = interpret_reals(scope, shift) if has_reals else scope
                values.append(_integer_values(stand_in, given, coverage))
            left, right = values
            agree = np.asarray(left == right) | (_is_nan(left) & _is_nan(right))
            if not np.all(agree):
                self.holds_for_all_functions = False
                if not has_reals:
                    return _difference(agree, left, right, window)
                break
            self.windows.add(window)
        return None

    def reals(self, budget: int) -> tuple[tuple[int, ...], float, float] | None:
        """Compare in double precision with error bounds; return a difference beyond the bounds."""
        decisive_rounds = 0
        repeats = max(1, min(4, REPEATED_POINTS // max(1, self.points)))
        for n, draw in enumerate(_REAL_INPUTS * repeats):
            random = np.random.default_rng((self.seed, 1, n))
            window, pair = self._slices(budget, random, n)
            read = dict.fromkeys((*tensors(pair[0]), *tensors(pair[1])))
            given = _draw_inputs(draw, read, random, self.constants)
            left, right = (_bounded_values(_DOUBLES, scope, given) for scope in pair)
            agree, decisive = _compare_bounded(left, right)
            if not np.all(agree):
                return _difference(agree, left.value, right.value, window)
            self.windows.add(window)
            decisive_rounds += bool(np.any(decisive))
        if not self.holds_for_all_functions:
            self.decisive_rounds = decisive_rounds
        return self.single_elements()

    def single_elements(self) -> tuple[tuple[int, ...], float, float] | None:
        """Compare single elements, so that the sides of kinks count only where their element is decisive."""
        random = np.random.default_rng((self.seed, 2))
        slices: dict[Box, tuple[Scope, Scope]] = {}
        for n, draw in enumerate(_REAL_INPUTS * ELEMENTS_PER_INPUT):
            if not self.gap():
                break
            window = tuple((at, at + 1) for at in (int(random.integers(lo, hi)) for lo, hi in self.pair[0].box))
            if len(slices) < ELEMENTS_PER_INPUT:
                slices.setdefault(window, tuple(slice_scope(scope, window) for scope in self.pair))  # type: ignore[arg-type]
            window, pair = list(slices.items())[n % len(slices)]
            if sum(map(grid_points, pair)) > MAX_REAL_POINTS:
                break
            read = dict.fromkeys((*tensors(pair[0]), *tensors(pair[1])))
            given = _draw_inputs(draw, read, random, self.constants)
            reached = [BranchCoverage(each.kinks) for each in self.on_reals]
            left, right = (
                _bounded_values(coverage.recorder(_DOUBLES, scope), scope, given)
                for scope, coverage in zip(pair, reached, strict=True)
            )
            agree, decisive = _compare_bounded(left, right)
            if not np.all(agree):
                return _difference(agree, left.value, right.value, window)
            if np.all(decisive):
                for total, coverage in zip(self.on_reals, reached, strict=True):
                    total.reached |= coverage.reached
        return None

    def _slices(self, budget: int, random: np.random.Generator, n: int) -> tuple[Box, tuple[Scope, Scope]]:
        """Return the *n*-th window, and both scopes in it."""
        before, after = self.pair
        if self.points <= budget:
            return before.box, self.pair
        window = _window(before, after, budget, random, n, self.element)
        return window, (slice_scope(before, window), slice_scope(after, window))

    def _magnitude(self, n: int) -> int:
        """Return the largest integer of the *n*-th inputs: small ones, and beyond the constants of the scopes."""
        largest = max((abs(c) for c in self.constants), default=0)
        return max(1000, int(min(2 * largest, 2.0**40))) if n % 2 else 4


def _integer_values(scope: Scope, given: dict[str, Array], coverage: BranchCoverage) -> Array:
    numbers = RealNumbers()
    inputs = {name: numbers.input(name, array) for name, array in given.items()}
    return Evaluation(coverage.recorder(numbers, scope), inputs, 1 << 25).scope(scope)[0].array


def _is_nan(array: Array) -> Array:
    """Return where *array*, also one of Python numbers, holds NaN."""
    return np.asarray(np.not_equal(array, array))


def _difference(agree: Array, left: Array, right: Array, window: Box) -> tuple[tuple[int, ...], float, float]:
    """Return the first element that does not agree, and its values."""
    at = np.unravel_index(int(np.argmin(agree)), left.shape)
    element = tuple(int(i) + lo for i, (lo, _) in zip(at, window, strict=True))
    return element, _as_float(left[at]), _as_float(right[at])


_TINY = 1e-290
"""Below it double precision loses digits."""


def _compare_bounded(left: BoundedValue, right: BoundedValue) -> tuple[Array, Array]:
    """Return where the values agree or nothing is known, and where their agreement has at least nine digits."""
    error = left.error + right.error
    known = np.isfinite(error)
    largest = np.maximum(np.abs(left.value), np.abs(right.value))
    with np.errstate(all="ignore"):
        same = (left.value == right.value) | (np.abs(left.value - right.value) <= 4 * error + _TINY)
    undefined = np.isnan(left.value) & np.isnan(right.value)
    decisive = known & same & np.isfinite(largest) & ((error <= 1e-9 * largest) & (largest > _TINY) | (error == 0))
    return ~known | undefined | same, decisive


@dataclass(frozen=True, slots=True)
class DoublePrecision:
    """Double precision with running error bounds; results that overflowed or may be undefined have no bound.

    A result that is certainly undefined or infinite, such as 1/0, is exact.
    """

    numbers: RunningErrors

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        operands = [BoundedValue(value[0].array, value[1].array) for value in values]
        value, error = (part.array for part in self.numbers.apply(op, values, args))
        unsure: Array = np.zeros((), np.bool_)
        for operand in operands:
            unsure = unsure | ~np.isfinite(operand.error)
        defined = np.logical_and.reduce(np.broadcast_arrays(*(np.isfinite(operand.value) for operand in operands)))
        pole = _at_pole(op, operands)
        if op == "pow":  # of zero: a step, exact where the sign of the exponent is known
            base, exponent = operands
            step = (base.value == 0) & (base.error == 0)
            step = step & ((np.abs(exponent.value) > exponent.error) | (exponent.error == 0))
            error = np.where(step, 0, error)
        error = error + _TINY * _may_underflow(op, operands, value)
        lost = unsure | (defined & ~np.isfinite(value) & ~pole)
        exact = np.where(np.isfinite(value), error, 0)
        if (function := SCALAR_FUNCTIONS.get(op)) is not None and function.is_bounded:
            saturated = (np.abs(np.abs(value) - 1) < SATURATED) & defined
            exact = np.where(saturated, np.maximum(exact, SATURATED_ERROR), exact)
        if op == "/" and args[1] != Const(0):
            value = np.where(pole, np.nan, value)  # an infinity without a sign
        return Part(value, 0), Part(np.where(lost | np.isnan(exact), np.inf, exact), 0)

    def constant(self, value: float) -> Value:
        return self.numbers.constant(value)

    def table(self, table: Table) -> Value:
        return self.numbers.table(table)

    def reduce(self, monoid: str, value: Value, axes: range, extents: Sequence[int]) -> Value:
        return self.numbers.reduce(monoid, value, axes, extents)

    def contract(self, factors: Sequence[Value], axes: range, extents: Sequence[int]) -> Value:
        return self.numbers.contract(factors, axes, extents)

    def add(self, a: Value, b: Value) -> Value:
        return self.numbers.add(a, b)

    def negate(self, a: Value) -> Value:
        return self.numbers.negate(a)

    def finish(self, scope: Scope, reduced: Value) -> Value:
        return self.numbers.finish(scope, reduced)


def _may_underflow(op: str, operands: Sequence[BoundedValue], value: Array) -> Array:
    """Return where *value* is too small for double precision, and not the exact result of a zero."""
    if op not in ("exp", "sigmoid", "*", "/", "pow"):
        return np.zeros((), np.bool_)
    small: Array = np.abs(value) < _TINY
    for operand in operands if op in ("*", "/", "pow") else ():
        small = small & ((operand.value != 0) | (operand.error != 0))
    return small


def _at_pole(op: str, operands: Sequence[BoundedValue]) -> Array:
    """Return where *op* certainly has no finite value."""
    match op, operands:
        case "/", [_, b]:
            return np.asarray((b.value == 0) & (b.error == 0))
        case "sqrt", [a]:
            return np.asarray(a.value + a.error < 0)
        case (("log" | "rsqrt"), [a]):
            return np.asarray((a.value + a.error < 0) | ((a.value == 0) & (a.error == 0)))
        case "pow", [a, b]:
            root = (a.value + a.error < 0) & (b.value != np.floor(b.value))
            return np.asarray(root | ((a.value == 0) & (a.error == 0) & (b.value < 0)))
    return np.zeros((), np.bool_)


_DOUBLES = DoublePrecision(RunningErrors(unit=2.0**-53))


def _bounded_values(numbers: NumberDomain, scope: Scope, given: dict[str, Array]) -> BoundedValue:
    with np.errstate(all="ignore"):
        return evaluate_with_errors(numbers, scope, given)


_Draw = Callable[[np.random.Generator, tuple[int, ...], Array], Array]


def _signed_powers(low: float, high: float, negative: bool = True) -> _Draw:
    """Draw magnitudes from 10^low to 10^high, log-uniform, of both signs unless they are not to be *negative*."""

    def draw(random: np.random.Generator, shape: tuple[int, ...], _: Array) -> Array:
        sign = random.choice([-1.0, 1.0], shape) if negative else np.ones(shape)
        return np.asarray(sign * 10.0 ** random.uniform(low, high, shape))

    return draw


def _near_constants(random: np.random.Generator, shape: tuple[int, ...], constants: Array) -> Array:
    """Draw numbers next to zero and the constants of the scopes, of both signs."""
    return _special(random, shape, constants) + random.normal(0, 1.5, shape)


def _mixed(random: np.random.Generator, shape: tuple[int, ...], constants: Array) -> Array:
    """Draw zeros and ones, moderate numbers, and numbers next to constants."""
    near = _near_constants(random, shape, constants)
    some = np.where(random.random(shape) < 0.5, near, random.normal(0, 2, shape))
    return np.asarray(np.where(random.random(shape) < 0.2, np.round(some), some))


def _special(random: np.random.Generator, shape: tuple[int, ...], constants: Array) -> Array:
    """Draw zeros, ones, and the constants of the scopes, of both signs."""
    return np.asarray(
        random.choice(np.concatenate([[0.0, 1.0, 0.5, 2.0], constants]), shape) * random.choice([-1.0, 1.0], shape)
    )


_REAL_INPUTS: tuple[_Draw, ...] = (
    lambda random, shape, _: np.asarray(random.uniform(1, 2, shape)),
    _signed_powers(-1, 1),
    _signed_powers(-2, 2, negative=False),
    _special,
    _signed_powers(1, 2.8),
    _signed_powers(-6, -2),
    lambda random, shape, _: np.asarray(-random.uniform(0.1, 3, shape)),
    lambda random, shape, _: np.asarray(np.full(shape, random.normal())),
    _signed_powers(2, 8),
    lambda random, shape, _: np.asarray(random.normal(0, 2, shape) * (random.random(shape) < 0.6)),
    _near_constants,
    _near_constants,
    _mixed,
    _mixed,
)
"""Inputs: moderate, wide, positive, special, large, small, negative, equal, huge, some zero, near constants, mixed."""


def _draw_inputs(
    draw: _Draw, read: Iterable[Tensor], random: np.random.Generator, constants: Sequence[float]
) -> dict[str, Array]:
    """Draw an array for each tensor; equal operands are equal in all tensors."""
    seed = int(random.integers(1 << 32))
    shared = draw is _REAL_INPUTS[7]
    return {
        t.name: draw(np.random.default_rng(seed if shared else (seed, n)), t.shape, np.array(constants))
        for n, t in enumerate(read)
    }


def _constants(scope: Scope) -> Iterable[float]:
    """Yield the finite constants of *scope* and its nested scopes."""

    def of(body: Scalar) -> Iterable[float]:
        match body:
            case Const(value) if isfinite(value):
                yield float(value)
            case Apply(_, args):
                for arg in args:
                    yield from of(arg)

    for _, each in scopes(scope):
        yield from of(each.body)


def random_inputs(before: Scope, after: Scope, random: np.random.Generator, most: int) -> dict[str, Any]:
    """Draw random integers in [-most, most] for every tensor that either scope reads."""
    read = dict.fromkeys((*tensors(before), *tensors(after)))
    return {t.name: np.asarray(random.integers(-most, most + 1, t.shape)) for t in read}


def _put_peak(given: dict[str, Any], indices: tuple[tuple[int, ...], ...], value: int) -> None:
    """Write *value* at all coordinates of *indices*, or parts of them, that lie in a tensor."""
    for array in given.values():
        for index in indices:
            for n in range(len(index) - array.ndim + 1):
                part = index[n : n + array.ndim]
                if all(0 <= i < extent for i, extent in zip(part, array.shape, strict=True)):
                    array[part] = value


def _covered_elements(windows: set[Box]) -> int:
    """Count the elements of the distinct windows."""
    return sum(prod(hi - lo for lo, hi in window) for window in windows)


def slice_scope(scope: Scope, window: Box) -> Scope:
    """Restrict *scope* to *window*; its reach stays the same."""
    to = {x: Iterator(x.name, lo, hi) for x, (lo, hi) in zip(scope.traversals, window, strict=True)}
    small = with_iterators(scope, to)
    reach = tuple((lo - a, b - hi) for (lo, hi), (a, b) in zip(window, scope.reach, strict=True))

    def narrow(access: Access) -> Scalar:
        match access.source:
            case Tensor() | Table():
                return access
            case Scope(box=box) as inner:
                read = (i.bounds for i in access.index)
                spans = [(max(lo, a), min(hi, b + 1)) for (lo, hi), (a, b) in zip(box, read, strict=True)]
                used = tuple(
                    s if s[0] < s[1] else (lo, min(lo + 1, hi)) for s, (lo, hi) in zip(spans, box, strict=True)
                )
                return Access(slice_scope(inner, used), access.index)

    return replace(small, body=map_accesses(small.body, narrow), padding=reach)


def interpret_reals(scope: Scope, shift: int = 0) -> Scope:
    """Replace every function over the reals by an integer polynomial; *shift* moves its values."""
    return replace(scope, body=_interpret_scalar(scope.body, shift))


def _interpret_scalar(body: Scalar, shift: int) -> Scalar:
    match body:
        case Access(Scope() as source, index):
            return Access(interpret_reals(source, shift), index)
        case Apply("pow", (a, Const(value))) if value >= 0 and value == int(value):
            return Apply("pow", (_interpret_scalar(a, shift), Const(value)))
        case Apply("/", (a, Const(0))):
            return Apply("/", (_interpret_scalar(a, shift), Const(0)))
        case Apply(op, args) if op in REAL_FUNCTIONS:
            k = 3 + 2 * REAL_FUNCTIONS.index(op)
            first, *rest = (_interpret_scalar(arg, shift) for arg in args)
            return add(
                mul(first, *(add(b, Const(k)) for b in rest), *(() if rest else (first,))),
                mul(Const(k), first),
                Const(k + 2 + k * shift),
            )
        case Apply(op, args):
            return Apply(op, tuple(_interpret_scalar(arg, shift) for arg in args))
        case Access() | Const() | Compare():
            return body


def _is_real(scope: Scope) -> bool:
    return any(_has_real(s.body) for _, s in scopes(scope))


def _has_real(body: Scalar) -> bool:
    match body:
        case Apply(op, args):
            return op in REAL_FUNCTIONS or any(map(_has_real, args))
        case Const(value):
            return isfinite(value) and value != int(value)
        case Access() | Compare():
            return False


def _window(
    before: Scope, after: Scope, budget: int, random: np.random.Generator, n: int, element: tuple[int, ...] | None
) -> Box:
    """Choose the *n*-th window within *budget*: at the low corner, the high corner, around *element*, then at
    random."""
    box = list(before.box)
    while any(hi - lo > 1 for lo, hi in box):
        if grid_points(slice_scope(before, tuple(box))) + grid_points(slice_scope(after, tuple(box))) <= budget:
            break
        d = max(range(len(box)), key=lambda d: box[d][1] - box[d][0])
        lo, hi = box[d]
        size = (hi - lo + 1) // 2
        at = int(random.integers(lo, hi - size + 1))
        near = at if element is None else max(lo, min(hi - size, element[d] - size // 2))
        start = (lo, hi - size, near, at)[n % 4]
        box[d] = (start, start + size)
    return tuple(box)


def _as_float(value: Any) -> float:
    return value.item() if hasattr(value, "item") else value  # type: ignore[no-any-return]
