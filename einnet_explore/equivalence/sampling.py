r"""Evaluation of two scopes on random inputs, as a whole or in slices: evidence without a proof.

Functions over the reals are replaced by polynomials with random constants (``exp`` → x² + 3x + c and so on) and
evaluated on random integers: scopes that are equal for every interpretation of the functions stay equal, no value
saturates, and arithmetic stays exact.  Where these differ, an identity of the functions themselves may still hold; it
is sampled in double precision with running error bounds, on inputs of all signs and magnitudes, zeros, constants of the
scopes, and equal operands.  A value that is undefined on one side only (1/0, the logarithm of -1) is a difference;
undefined on both sides it is no evidence.

Agreement counts only for decisive samples; otherwise the result names the gap.

* Pieces: a sample is evidence only for the pieces of piecewise functions that it reaches.  A side of a kink that no
  sample reached is a gap, unless interval arithmetic shows that no input reaches it.
* Operands: in :math:`e^{10^{10} a} + b` the second operand is lost to rounding or overflow at almost all inputs.
  Therefore each operand of a sum is left out in turn, and each constant and each read of a tensor is changed a little;
  for every such mutant, some decisive sample must differ from the original.  The last digits of a constant make no
  difference: constants with many digits must occur on both sides.  Functions are left out as well, since
  :math:`\tanh x` is :math:`x` to the last digit where `x` is small.
* Poles: few inputs reach them.  Each partial function is therefore replaced by a total one; some sample must be
  undefined in both programs because of this function alone: the mutant is defined there.  Where the programs agree for
  every interpretation of the functions, this is asked only of a function that one of them does not have: an operand
  that never decides a maximum may still have a pole.

A slice restricts the traversals of the root to a window, and those of nested scopes to the elements that the window
reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import isfinite
from typing import Any, TypeAlias

import numpy as np

from einnet_explore.equivalence.branch_coverage import BranchCoverage, SampledSides, Sides
from einnet_explore.equivalence.sample_inputs import (
    REAL_INPUTS,
    Draw,
    draw_reals,
    put_peak,
    random_integers,
    tensors_of_pair,
    within_type,
)
from einnet_explore.equivalence.sample_mutants import (
    Change,
    Mutant,
    add_to_read,
    change_constant,
    drop_functions,
    drop_operands,
    drop_poles,
    mutants,
    partial_functions,
    scale_read,
)
from einnet_explore.equivalence.slices import choose_window, covered_elements, grid_points, slice_scope, with_samples
from einnet_explore.equivalence.value_bounds import kinks
from einnet_explore.interpreter.evaluation import Evaluation, NumberDomain
from einnet_explore.interpreter.exact_arrays import Array, RealNumbers
from einnet_explore.interpreter.grid import IllegalRead
from einnet_explore.interpreter.running_error import (
    DOUBLE_PRECISION,
    BoundedValue,
    compare_bounded,
    evaluate_with_errors,
)
from einnet_explore.ir import (
    Access,
    Apply,
    Box,
    Compare,
    Const,
    Scalar,
    Scope,
    add,
    mul,
    scopes,
    walk_scalar,
)
from einnet_explore.ir.scalar_functions import REAL_FUNCTIONS

MAX_REAL_POINTS = 1 << 20
"""Grid points of one evaluation with error bounds."""

ELEMENTS, SAMPLES_PER_KIND = 6, 8
"""Single elements that are compared while there is a gap, and the samples of each with one kind of inputs."""

NEARBY_STEPS = (1e-6, 1e-6, 1e-3, 1e-3, 0.1, 0.1, 1.0)
"""Relative distances of inputs that are near: from a pole, one of them leaves the undefined inputs."""

MAX_MUTANTS = 200
"""Operands and constants of a scope up to which each has to be told by a sample; more of them are a gap."""

REPEATED_POINTS = 1 << 14
"""Scopes of fewer grid points are sampled several times with each kind of inputs."""

MAX_SHOWN_CHARACTERS = 200
"""Of an operand that no sample depends on, in the reason of a verdict."""

MIN_DECISIVE_ROUNDS = 3
"""Rounds of samples that have to be decisive, of at least ``len(REAL_INPUTS)``."""

Difference: TypeAlias = "tuple[tuple[int, ...], float, float]"
"""An element, and its values before and after."""


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Number of compared output elements, and the first difference (index, expected, found) or an error.

    Without either, *gap* says what the samples leave open ('': nothing that is known).
    """

    elements: int
    differs: Difference | None = None
    error: str | None = None
    gap: str = ""


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
    try:
        found = samples.integers(budget, indices)
        if found is None and samples.has_reals:
            found = samples.reals(min(budget, MAX_REAL_POINTS)) or samples.single_elements()
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
    decisive_rounds: int = 0
    undefined_once: bool = False
    """A value was certainly undefined on one side, and not known on the other."""

    def __post_init__(self) -> None:
        self.has_reals = any(map(_is_real, self.pair))
        self.coverage = tuple(map(BranchCoverage, self.pair))
        self.integer_sides: tuple[Sides, Sides] = (set(), set())
        self.real_sides: tuple[Sides, Sides] = (set(), set())
        self.precise_constants = tuple({abs(c) for c in _constants_of(scope) if _is_precise(c)} for scope in self.pair)
        self.unseen: tuple[set[Mutant], set[Mutant]] = (set(), set())
        self.poles: tuple[set[Mutant], set[Mutant]] = (set(), set())
        self._require(self.unseen, drop_operands)
        if any(map(kinks, self.pair)):
            self._require(self.unseen, add_to_read)
        common = set.intersection(*map(partial_functions, self.pair))
        self._require(self.poles, lambda part: () if part in common else drop_poles(part))
        self.points = sum(map(grid_points, self.pair))
        self.constants = np.array(sorted({c for scope in self.pair for c in _constants_of(scope)}))

    def _require(self, required: tuple[set[Mutant], set[Mutant]], *changes: Change) -> None:
        """Add the mutants of both scopes by *changes* to those that are *required* to be told."""
        for scope, own in zip(self.pair, required, strict=True):
            for change in changes:
                own.update(islice(mutants(scope, change), MAX_MUTANTS + 1))

    @property
    def elements(self) -> int:
        """The number of distinct output elements compared."""
        return covered_elements(self.windows)

    def gap(self) -> str:
        """Return what the samples leave open."""
        if not self.holds_for_all_functions and self.decisive_rounds < MIN_DECISIVE_ROUNDS:
            return "too few samples were decisive: values are undefined, or lost to rounding or overflow"
        for coverage, on_integers, on_reals in zip(self.coverage, self.integer_sides, self.real_sides, strict=True):
            if missing := coverage.gap(on_reals | on_integers if self.holds_for_all_functions else on_reals):
                return missing
        if self.undefined_once:
            return "a value is undefined in one program, and not known in the other"
        if self.has_reals and (odd := set.symmetric_difference(*self.precise_constants)):
            return f"{min(odd):.17g} occurs on one side only, and samples cannot tell its last digits"
        unseen = sorted(text for some in (*self.unseen, *self.poles) for text, _ in some)
        return f"no sample depends on {_shorten(unseen[0])}" if unseen else ""

    def integers(self, budget: int, indices: tuple[tuple[int, ...], ...]) -> Difference | None:
        """Compare on random integers, with stand-ins for real functions; return a difference, if it is decisive."""
        for n in range(max(4, min(16, budget // max(1, self.points)))):
            random = np.random.default_rng((self.seed, n))
            window, pair = self._slices(budget, random, n)
            given = random_integers(pair[0], pair[1], random, self._magnitude(n))
            if sign := {3: -1, 6: 1, 7: -1}.get(n % 8):
                given = {name: np.asarray(sign * np.abs(array)) for name, array in given.items()}
            if n % 4 != 0:
                put_peak(given, indices, 100_000 if n % 4 < 3 else -100_000)
            given = {t.name: within_type(t, given[t.name]) for t in tensors_of_pair(pair)}
            shift = int(random.integers(-1000, 1001))
            left, right = (
                _integer_values(self._stand_in(scope, shift), given, coverage, sides)
                for scope, coverage, sides in zip(pair, self.coverage, self.integer_sides, strict=True)
            )
            agree = _same(left, right)
            if not np.all(agree):
                self.holds_for_all_functions = False
                self.unseen = (set(), set())
                self._require(self.unseen, drop_operands)
                return None if self.has_reals else _shifted(_difference(agree, left, right), window)
            self.windows.add(window)
            for own, coverage, unseen in zip((left, right), self.coverage, self.unseen, strict=True):
                whole = window == self.pair[0].box
                for mutant in list(unseen) if len(unseen) <= MAX_MUTANTS else ():
                    for scope in mutant[1] if whole else (slice_scope(changed, window) for changed in mutant[1]):
                        values = _integer_values(self._stand_in(scope, shift), given, coverage, set())
                        if not np.all(_same(own, values)):
                            unseen.discard(mutant)
                            break
        return None

    def _stand_in(self, scope: Scope, shift: int) -> Scope:
        return interpret_reals(scope, shift) if self.has_reals else scope

    def reals(self, budget: int) -> Difference | None:
        """Compare in double precision with error bounds; return a difference beyond the bounds."""
        random = np.random.default_rng((self.seed, 1))
        draws = REAL_INPUTS * max(1, min(4, REPEATED_POINTS // max(1, self.points)))
        size = max(1, min(len(draws), budget // max(1, self.points)))
        for n, start in enumerate(range(0, len(draws), size)):
            window, pair = self._slices(budget, random, n)
            batch = _Batch(pair, draws[start : start + size], random, self.constants)
            found, decisive, _ = batch.compare(self.coverage)
            if found is not None:
                return _shifted(found, window)
            self.windows.add(window)
            self.undefined_once |= batch.undefined_once
            self.decisive_rounds += int(np.count_nonzero(decisive.reshape(len(decisive), -1).any(axis=1)))
        return None

    def single_elements(self) -> Difference | None:
        """Compare single elements, so that pieces and operands count only where their element is decisive."""
        random = np.random.default_rng((self.seed, 2))
        if not self.holds_for_all_functions:
            self._require(self.unseen, change_constant, scale_read, drop_functions)
            self._require(self.poles, drop_poles)
        for _ in range(ELEMENTS):
            if not self.gap() or sum(map(len, (*self.unseen, *self.poles))) > MAX_MUTANTS:
                break
            window = tuple((at, at + 1) for at in (int(random.integers(lo, hi)) for lo, hi in self.pair[0].box))
            pair = (slice_scope(self.pair[0], window), slice_scope(self.pair[1], window))
            count = min(len(REAL_INPUTS) * SAMPLES_PER_KIND, MAX_REAL_POINTS // max(1, *map(grid_points, pair)))
            if not count:
                break
            batch = _Batch(pair, (REAL_INPUTS * SAMPLES_PER_KIND)[:count], random, self.constants)
            found, decisive, kinks = batch.compare(self.coverage)
            if found is not None:
                return _shifted(found, window)
            self.undefined_once |= batch.undefined_once
            decisive = np.asarray(decisive.reshape(len(decisive), -1).all(axis=1))
            for total, sides in zip(self.real_sides, kinks, strict=True):
                total.update(side for side, samples in sides.items() if np.any(samples & decisive))
            for own, unseen in zip(batch.values, self.unseen, strict=True):
                unseen -= {m for m in unseen if any(batch.tells(own, slice_scope(s, window), decisive) for s in m[1])}
            for poles in self.poles:
                poles -= {m for m in poles if any(batch.is_undefined_without(slice_scope(s, window)) for s in m[1])}
        return None

    def _slices(self, budget: int, random: np.random.Generator, n: int) -> tuple[Box, tuple[Scope, Scope]]:
        """Return the *n*-th window, and both scopes in it."""
        before, after = self.pair
        if self.points <= budget:
            return before.box, self.pair
        window = choose_window(before, after, budget, random, n, self.element)
        return window, (slice_scope(before, window), slice_scope(after, window))

    def _magnitude(self, n: int) -> int:
        """Return the largest integer of the *n*-th inputs: small ones, and beyond the constants of the scopes."""
        largest = float(np.abs(self.constants).max(initial=0))
        return max(1000, int(min(2 * largest, 2.0**40))) if n % 2 else 4


def _integer_values(scope: Scope, given: dict[str, Array], coverage: BranchCoverage, reached: Sides) -> Array:
    """Evaluate *scope* exactly; the sides of kinks that occur are added to *reached*."""
    numbers = RealNumbers()
    inputs = {name: numbers.input(name, array) for name, array in given.items()}
    sampled: SampledSides = {}
    found = Evaluation(coverage.recorder(numbers, scope, sampled, 1), inputs, 1 << 25).scope(scope)[0].array
    reached.update(side for side, samples in sampled.items() if samples.any())
    return found


def _shorten(text: str) -> str:
    """Return the beginning of *text*: an operand may be a whole program."""
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]} …"


def _same(left: Array, right: Array) -> Array:
    """Return where two arrays, also of Python numbers, hold the same value or NaN."""
    return np.asarray(np.equal(left, right) | (np.not_equal(left, left) & np.not_equal(right, right)))


def _difference(agree: Array, left: Array, right: Array) -> Difference:
    """Return the first element that does not agree, and its values."""
    at = tuple(map(int, np.unravel_index(int(np.argmin(agree)), left.shape)))
    return at, _as_float(left[at]), _as_float(right[at])


def _shifted(found: Difference, window: Box) -> Difference:
    """Return a difference in a window as one of the whole."""
    return (tuple(i + lo for i, (lo, _) in zip(found[0], window, strict=True)), *found[1:])


class _Batch:
    """Samples of two scopes in double precision, as one evaluation; *values* are those of both, sample by sample."""

    def __init__(
        self, pair: tuple[Scope, Scope], draws: Sequence[Draw], random: np.random.Generator, constants: Array
    ) -> None:
        self.count = len(draws)
        self.inputs = draw_reals(draws, pair, random, constants)
        self.pair = tuple(map(self._whole, pair))
        self.values: list[BoundedValue] = []

    def compare(self, coverage: Sequence[BranchCoverage]) -> tuple[Difference | None, Array, list[SampledSides]]:
        """Compare both; return a difference, the decisive elements of each sample, and the sides of kinks reached."""
        reached: list[SampledSides] = [{}, {}]
        for covered, scope, sides in zip(coverage, self.pair, reached, strict=True):
            numbers = covered.recorder(DOUBLE_PRECISION, scope, sides, self.count)
            self.values.append(self._evaluate(numbers, scope))
        agree, decisive = compare_bounded(*self.values)
        if np.all(agree):
            return None, decisive, reached
        (_, *at), expected, found = _difference(agree, *(value for value, _ in self.values))
        return (tuple(at), expected, found), decisive, reached

    @property
    def undefined_once(self) -> bool:
        """Whether a value is certainly undefined on one side, and not known on the other."""
        known = [np.isfinite(error) for _, error in self.values]
        undefined = [np.isnan(value) & sure for (value, _), sure in zip(self.values, known, strict=True)]
        return bool(np.any((undefined[0] & ~known[1]) | (undefined[1] & ~known[0])))

    def tells(self, own: BoundedValue, mutant: Scope, decisive: Array) -> bool:
        """Whether a *decisive* sample of the original, of value *own*, differs from the *mutant*."""
        agree, _ = compare_bounded(own, self._evaluate(DOUBLE_PRECISION, self._whole(mutant)))
        return bool(np.any(decisive & ~agree.reshape(self.count, -1).any(axis=1)))

    def is_undefined_without(self, mutant: Scope) -> bool:
        """Whether *mutant* (see ``drop_poles``) is defined where both sides are undefined, but defined nearby."""
        if not np.any(self._isolated):
            return False
        return bool(np.any(self._isolated & _is_defined(self._evaluate(DOUBLE_PRECISION, self._whole(mutant)))))

    @cached_property
    def _isolated(self) -> Array:
        """The elements that are certainly undefined on both sides, and defined on both at inputs nearby."""
        undefined = [np.isnan(value) & np.isfinite(error) for value, error in self.values]
        both, nearby = undefined[0] & undefined[1], np.zeros(np.shape(undefined[0]), bool)
        random = np.random.default_rng(0)
        for step in NEARBY_STEPS if np.any(both) else ():
            moved = {
                name: array + step * random.uniform(-1, 1, array.shape) * np.maximum(np.abs(array), 1)
                for name, array in self.inputs.items()
            }
            sides = (_is_defined(self._evaluate(DOUBLE_PRECISION, scope, moved)) for scope in self.pair)
            nearby |= np.logical_and(*sides)
        return np.asarray(both & nearby)

    def _whole(self, scope: Scope) -> Scope:
        return with_samples(scope, self.count)

    def _evaluate(self, numbers: NumberDomain, scope: Scope, inputs: Mapping[str, Array] | None = None) -> BoundedValue:
        with np.errstate(all="ignore"):
            return evaluate_with_errors(numbers, scope, self.inputs if inputs is None else inputs)


def _is_defined(found: BoundedValue) -> Array:
    return np.isfinite(found.value) & np.isfinite(found.error)


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
    """Whether *scope* has a function over the reals, or a constant that is no integer."""
    parts = (part for _, each in scopes(scope) for part in walk_scalar(each.body))
    functions = any(isinstance(part, Apply) and part.op in REAL_FUNCTIONS for part in parts)
    return functions or any(value != int(value) for value in _constants_of(scope))


def _is_precise(value: float) -> bool:
    """Whether *value* has more digits than samples tell: two others differ by more than ``RELATIVE_CHANGE``."""
    top, bottom = value.as_integer_ratio()
    return abs(top) > 1 << 20 or bottom > 1 << 10


def _constants_of(scope: Scope) -> Iterable[float]:
    """Yield the finite constants of *scope* and its nested scopes."""
    parts = (part for _, each in scopes(scope) for part in walk_scalar(each.body))
    return (float(part.value) for part in parts if isinstance(part, Const) and isfinite(part.value))


def _as_float(value: Any) -> float:
    return value.item() if hasattr(value, "item") else value  # type: ignore[no-any-return]
