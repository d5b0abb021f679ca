"""Rounding errors of derivations.  In exact arithmetic all rules are equalities.

``report_errors`` evaluates the original and the derived program in double precision on the inputs of their trial, with
a running error bound for single precision (for double precision where all tensors have it), and compares the outputs of
ONNX Runtime and of the derived program's kernels with these values.  All errors are relative to the largest output.  Of
a large program only a window of the outputs is evaluated.  Elements that both define as no number have no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, prod

import numpy as np

from einnet_explore.analysis.bilinear import Bilinear
from einnet_explore.equivalence.program_diff import inline_equations
from einnet_explore.equivalence.slices import slice_scope
from einnet_explore.interpreter.running_error import DOUBLE_ROUNDOFF, UNIT_ROUNDOFF, BoundedValue, running_error
from einnet_explore.ir import Apply, Box, EOperatorKind, Program, Scalar, Scope, element_type, scopes, tensors
from einnet_explore.pipeline.tuning_context import (
    OUT_OF_MEMORY,
    OriginalOpener,
    ProgramCompiler,
)
from einnet_explore.rules import Derivation, Match
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.strategies.rounding_levels import (
    LEVEL_WORDS,
    LEVELS,
    Level,
    derivation_level,
    parse_level,
    rule_level,
)
from einnet_explore.support.errors import BackendError
from einnet_explore.support.json_values import JsonObject, as_integer, as_number, as_object, as_texts
from einnet_explore.support.limits import large_blocks_returned

MAX_EVALUATED_WORK = 200_000_000
"""Work of both programs up to which they are evaluated whole: multiplications in sums, some tenths of a second."""

ELEMENT_WORK = 20
"""Work of an element that is written or is a function's argument, in multiplications of a sum."""

MIN_BLOCK_COLUMNS = 16
"""Fewest columns in a block of a softmax in one pass."""


@dataclass(frozen=True, slots=True)
class RoundingError:
    """Rounding errors of one program, relative to the largest output: *bound* (None: none) and *error*."""

    bound: float | None
    error: float


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The numerics *level* of a derivation, the *rules* that cause it, and rounding errors.

    *before* and *after* are the errors of the original and the derived program over *elements* of *whole* output
    elements; if nothing was evaluated they are None and *why* says why.  A report that is *memory_short* is not
    remembered.
    """

    level: Level
    rules: tuple[str, ...]
    before: RoundingError | None = None
    after: RoundingError | None = None
    elements: int = 0
    whole: int = 0
    why: str = ""
    memory_short: bool = False

    def __str__(self) -> str:
        kind = LEVEL_WORDS[self.level]
        by = f" ({', '.join(self.rules)})" if self.level == "approximate" else ""
        if self.after is None:
            return f"{kind}{by}: not measured, {self.why}" if self.why else f"{kind}{by}"
        bound = self.after.bound  # of the largest output: 1 or more says nothing, as where sums are rounded to integers
        shown = "no bound" if bound is None or bound >= 1 else f"proved ≤ {bound:.1e}"
        return f"{kind}{by}: error {self.after.error:.1e}, {shown}"

    def excess(self, allowed: float) -> str:
        """Return why a derivation in bfloat16 is not taken if its error may exceed *allowed*; empty if it is taken."""
        if self.after is None:
            return f"in bfloat16, its error is not known: {self.why}"
        if self.after.bound is None:
            return f"in bfloat16, its error {self.after.error:.1e} has no bound, {allowed:g} is allowed"
        worst = max(self.after.bound, self.after.error)
        if worst <= allowed:
            return ""
        return (
            f"in bfloat16, its error may be {worst:.1e} of the largest output (measured: {self.after.error:.1e}), "
            f"{worst / allowed:.2g} times the {allowed:g} that is allowed"
        )

    def to_json(self) -> JsonObject:
        """Return ``numerics`` of one entry of ``subprograms`` in the JSON of ``optimize``."""
        sides = {"before": self.before, "after": self.after}
        return {
            "level": self.level,
            "rules": list(self.rules),
            **{f"bound_{name}": side.bound if side else None for name, side in sides.items()},
            **{f"error_{name}": side.error if side else None for name, side in sides.items()},
            "elements": self.elements,
            "of": self.whole,
            "why": self.why,
        }

    @staticmethod
    def from_json(document: object) -> ErrorReport:
        """Return the report that ``to_json`` wrote."""
        found = as_object(document)

        def side(name: str) -> RoundingError | None:
            error, bound = found[f"error_{name}"], found[f"bound_{name}"]
            if error is None:
                return None
            return RoundingError(None if bound is None else as_number(bound), as_number(error))

        return ErrorReport(
            level=parse_level(str(found["level"])),
            rules=as_texts(found["rules"]),
            before=side("before"),
            after=side("after"),
            elements=as_integer(found["elements"]),
            whole=as_integer(found["of"]),
            why=str(found["why"]),
        )


def level_report(derivation: Derivation) -> ErrorReport:
    """Report the level of *derivation* and the rules that cause it, with their algorithms; nothing is measured."""
    most = derivation_level(derivation)
    steps = (step.match for step in derivation.steps if rule_level(step.match.rule) == most != LEVELS[0])
    return ErrorReport(most, tuple(dict.fromkeys(_rule_name(match) for match in steps)))


def report_errors(
    derivation: Derivation, opener: OriginalOpener, constants: Arrays, compiler: ProgramCompiler
) -> ErrorReport:
    """Measure the rounding errors of *derivation* against its original.

    If the derived program does not run, or a node has no error bound, the report says so.
    """
    plain = level_report(derivation)
    try:
        original = opener()
        feeds = original.feeds
        want, got = original.run(), compiler(derivation.end, constants)(feeds)
        del original  # its session, which holds weights
        with large_blocks_returned():
            return measure_errors(derivation, plain, {**feeds, **constants}, want, got)
    except (BackendError, LookupError, ValueError) as problem:
        return ErrorReport(plain.level, plain.rules, why=str(problem))
    except OUT_OF_MEMORY as problem:
        why = f"it does not fit: {type(problem).__name__}: {problem}"
        return ErrorReport(plain.level, plain.rules, why=why, memory_short=True)


def measure_errors(
    derivation: Derivation, plain: ErrorReport, inputs: Arrays, want: Arrays, got: Arrays
) -> ErrorReport:
    """*plain* with bounds and errors: *want* is what the original gave for *inputs*, *got* what the derived program."""
    start, end = derivation.start, derivation.end
    meant = inline_equations(start, ()), inline_equations(end, ())
    share = MAX_EVALUATED_WORK // len(start.outputs)
    before, after = [], []
    elements = whole = 0
    for name in start.outputs:
        pair = meant[0][name], meant[1][name]
        magnitudes = np.abs(want[name])
        defined = ~np.isnan(magnitudes)
        largest = float(magnitudes.max(initial=0, where=defined)) or 1.0
        window = _window(*pair, share, np.unravel_index(np.where(defined, magnitudes, -1).argmax(), magnitudes.shape))
        if window is None:
            return ErrorReport(
                plain.level, plain.rules, why="one output element alone takes too long in double precision"
            )
        at = tuple(slice(lo - first, hi - first) for (lo, hi), (first, _) in zip(window, pair[0].box, strict=True))
        if not defined[at].any():
            return ErrorReport(plain.level, plain.rules, why="its results are undefined on random inputs")
        unit = DOUBLE_ROUNDOFF if all(map(_is_double, pair)) else UNIT_ROUNDOFF
        found = running_error(slice_scope(pair[0], window), inputs, unit=unit)
        rounded = plain.level == "bf16"
        again = running_error(slice_scope(pair[1], window), inputs, _count_rescalings(end), unit, rounded)
        # Casts of the original are no roundings of its operands: their effect is a difference of the values.
        again = again._replace(error=again.error + np.abs(again.value - found.value)) if rounded else again
        before.append(_rounding_error(found, found.value, want[name][at], largest))
        after.append(_rounding_error(again, found.value, got[name][at], largest))
        elements += prod(hi - lo for lo, hi in window)
        whole += want[name].size
    return ErrorReport(plain.level, plain.rules, _worst_error(before), _worst_error(after), elements, whole)


def _is_double(scope: Scope) -> bool:
    """Whether *scope* and everything that it reads is in double precision."""
    return {element_type(scope), *(t.dtype for t in tensors(scope))} == {"float64"}


def _rule_name(match: Match[object]) -> str:
    """Name a rule, with its algorithm if it has one."""
    rule = match.rule.name.replace("_", " ")
    match match.params:
        case object(algorithm=Bilinear(name=name)):
            return f"{rule} {name}"
    return rule


def _window(before: Scope, after: Scope, most: int, largest: Sequence[np.intp]) -> Box | None:
    """Return outputs around the *largest* that both evaluate within *most* work; None if one element is too much."""
    box = list(before.box)
    while sum(evaluation_work(slice_scope(scope, tuple(box))) for scope in (before, after)) > most:
        if all(hi - lo <= 1 for lo, hi in box):
            return None
        d = max(range(len(box)), key=lambda d: box[d][1] - box[d][0])
        (lo, hi), size = box[d], max(1, (box[d][1] - box[d][0]) // 2)
        begin = min(max(lo, before.box[d][0] + int(largest[d]) - size // 2), hi - size)
        box[d] = (begin, begin + size)
    return tuple(box)


def evaluation_work(scope: Scope) -> int:
    """Return the work of evaluating *scope* and the scopes below it, each distinct one once."""
    total = 0
    for inner in dict.fromkeys(s for _, s in scopes(scope)):
        points, written = (
            prod(x.extent for x in xs) for xs in ((*inner.traversals, *inner.summations), inner.traversals)
        )
        total += points + ELEMENT_WORK * (written if inner.reduce == "sum" and _is_polynomial(inner.body) else points)
    return total


def _is_polynomial(body: Scalar) -> bool:
    match body:
        case Apply(op, args):
            return op in ("+", "-", "neg", "*") and all(map(_is_polynomial, args))
    return True


def _count_rescalings(program: Program) -> int:
    """Return how often the exponentials of a softmax in one pass are rescaled, at most."""
    passes = [e for e in program.equations if e.via and e.via.eoperator_kind is EOperatorKind.ONE_PASS]
    columns = [x.extent for e in passes for _, scope in scopes(e.scope) for x in scope.summations]
    return -(-max(columns, default=0) // MIN_BLOCK_COLUMNS)


def _rounding_error(near: BoundedValue, truth: Array, got: Array, largest: float) -> RoundingError:
    defined = ~(np.isnan(got) & np.isnan(truth))
    with np.errstate(invalid="ignore"):  # infinities may be the same, as in what a mask leaves out
        apart = np.where(got == truth, 0, np.abs(got.astype(np.float64) - truth))
    error = float(apart.max(initial=0, where=defined)) / largest
    bound = float(near.error.max(initial=0, where=defined)) / largest
    return RoundingError(bound if isfinite(bound) else None, error)


def _worst_error(found: list[RoundingError]) -> RoundingError:
    bounds = [r.bound for r in found]
    error = max(r.error for r in found)
    return RoundingError(None if None in bounds else max(b for b in bounds if b is not None), error)
