"""Equality of two models or programs: proved, different with an input and an element, or unknown with the part open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from math import inf, isfinite, prod
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Literal, TypeAlias
from zipfile import ZipFile

import numpy as np
from numpy.lib.format import write_array

from einnet_explore.analysis.equations import with_interface_of
from einnet_explore.checker.record import COMPARISON, FORMAT, VERSION
from einnet_explore.equivalence.assumptions import infinite_results
from einnet_explore.equivalence.certificate import certify
from einnet_explore.equivalence.linear_space import Undecided
from einnet_explore.equivalence.program_diff import inline_equations, require_common_interface
from einnet_explore.equivalence.sample_inputs import within_type
from einnet_explore.equivalence.term_multiset import term_difference
from einnet_explore.equivalence.verdict import (
    PROOF_KINDS,
    UNSOUND_KINDS,
    Certificate,
    kind_html,
    of_two_programs,
    weakest_kind,
)
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program
from einnet_explore.onnx_import.input_domains import describe_random_inputs
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.folded_weights import FoldedWeight
from einnet_explore.pipeline.model_sessions import open_session, run_session, without_optimisations
from einnet_explore.pipeline.value_differences import first_difference, first_undecided
from einnet_explore.pipeline.value_proofs import Sweep, ValuePair, match_interface, open_sweep
from einnet_explore.runtime.arrays import Array
from einnet_explore.session.comparison import programs_side_by_side, texts_side_by_side
from einnet_explore.session.comparison_graphs import side_by_side
from einnet_explore.strategies.candidate import save_records
from einnet_explore.support.errors import Refused
from einnet_explore.support.json_values import JsonObject
from einnet_explore.support.limits import interrupt_after
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax import text
from einnet_explore.viz.tables import DisplayedAsTable, TextTable
from einnet_explore.viz.views import html_page

VerdictKind: TypeAlias = Literal["proved", "rounded", "exact", "unknown", "different"]
"""The words of certificates, from the strongest to the weakest; ``different`` is a refuted one (``false``)."""

NOISE_FACTOR = 32
"""A difference counts if it is this many times the difference between two orders of computation of one model."""

MAX_DRAWS = 16
"""Random inputs that are tried."""

TERM_SECONDS = 2.0
"""Seconds in which the term is looked for that differs in an element of two programs."""

MAX_INPUT_ELEMENTS = 1 << 24
"""Elements of a program's inputs, at most: larger programs are not evaluated."""

LEAST_DIFFERENCE = 1e-5
"""The least difference, relative to the largest element of an output, that counts."""

MAGNITUDES = ((1.0, LEAST_DIFFERENCE), (4.0, LEAST_DIFFERENCE), (2.0**-8, 1e-2), (64.0, 1e-2), (16.0, LEAST_DIFFERENCE))
"""Factors of random inputs, in turn, and the least difference that counts: an epsilon matters for small inputs, an
exponential overflows for large ones, and both make rounding errors larger than usual."""

ONE_GRAPH = "both models are one graph, up to the names and the order of its nodes"

OVERFLOW = "no value differs on moderate inputs: one model overflows, or divides by 0, where the other does not"


@dataclass(frozen=True, slots=True)
class Difference:
    """Element *at* of an *output*, *first* in one model and *second* in the other, for the *inputs*."""

    output: str
    at: tuple[int, ...]
    first: float
    second: float
    inputs: Mapping[str, Array] = field(repr=False)

    def __str__(self) -> str:
        element = f"{self.output}[{', '.join(map(str, self.at))}]"
        return f"{element} is {self.first:g} in the first, {self.second:g} in the second"

    def save_inputs(self, path: str | PathLike[str]) -> None:
        """Write the inputs by name as a NumPy archive (``.npz``)."""
        with ZipFile(path, "w") as archive:
            for name, values in self.inputs.items():
                with archive.open(f"{name}.npy", "w") as entry:
                    write_array(entry, np.asarray(values))


@dataclass(frozen=True, slots=True)
class SizesProof:
    """Proofs for all sizes with *guards*: the names of each pair of values, and its two families as texts."""

    guards: tuple[str, ...]
    pairs: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(DisplayedAsTable):
    """Whether two models, programs or families are equal.

    The *kind* is one of

    * ``proved``: equal for every input, in exact arithmetic;
    * ``rounded``: proved, with weights or constants that are equal up to rounding;
    * ``exact``: two programs without a proof, equal on random inputs that leave no gap;
    * ``unknown``: neither proved nor refuted;
    * ``different``: refuted, with a *difference*, if one was found by evaluation.

    *why* is the reason.  It took *seconds*.  *certificate* is that of two *programs*.

    Of two models, *pairs* are the proved values, *folded* the weights and constants of one model that were found to be
    products of the other's.  *difference* is confirmed in ONNX Runtime.  *nodes* are the first nodes of both models
    that differ, or whose equality is not proved, ``""`` if unknown.  The verdict holds for all sizes with *guards*, if
    there are any; then *pairs* are those of one choice of sizes, and *cases* the proofs for all of them, for each
    remainder that the models tell apart.  Otherwise it holds at these *sizes* of the parameters or dynamic dimensions.
    *agreement* is the largest difference of outputs on random inputs, relative to their largest element, if the verdict
    is ``unknown`` and they were evaluated.
    """

    kind: VerdictKind
    pairs: tuple[ValuePair, ...]
    folded: tuple[FoldedWeight, ...]
    seconds: float
    difference: Difference | None = None
    nodes: tuple[str, str] = ("", "")
    why: str = ""
    models: tuple[Model, Model] | None = field(default=None, compare=False)
    guards: tuple[str, ...] = ()
    cases: tuple[SizesProof, ...] = ()
    certificate: Certificate | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    agreement: float | None = None
    programs: tuple[Program, Program] | None = field(default=None, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the two agree, by proof or on random inputs without a gap."""
        return self.kind not in (*UNSOUND_KINDS, "different")

    def __bool__(self) -> bool:
        """Whether equality is proved, up to the rounding of weights and constants."""
        return self.kind in PROOF_KINDS

    def to_json(self) -> JsonObject:
        """Return the document that ``einnet-explore equal --json`` writes."""
        found = self.difference
        shown = found and {"output": found.output, "at": list(found.at), "first": found.first, "second": found.second}
        return {
            "kind": self.kind,
            "pairs": [
                {"first": p.first, "second": p.second, "certificate": p.certificate.to_json()} for p in self.pairs
            ],
            "folded_weights": [{"weight": f.weight, "error": f.error} for f in self.folded],
            "seconds": self.seconds,
            "difference": shown,
            "nodes": list(self.nodes),
            "why": self.why,
            "guards": list(self.guards),
            "sizes": dict(self.sizes),
            "agreement": self.agreement,
        }

    def table(self) -> TextTable:
        """Return one row for each pair of values."""
        rows = tuple(
            (p.first, p.second, p.certificate.kind, str(len(p.before.equations)), str(len(p.after.equations)))
            for p in self.pairs
        )
        head = ("first", "second", "verdict", "equations of the first", "equations of the second")
        return TextTable(head, rows, "; ".join(self.lines()))

    def lines(self) -> list[str]:
        """Return the verdict and what is known in addition."""
        if self.certificate is not None and self.kind != "different":
            return [self.kind + str(self.certificate).removeprefix(self.certificate.kind)]
        sizes = f" for all sizes with {', '.join(self.guards)}" if self.guards and self else ""
        at = ", ".join(f"{name} = {n}" for name, n in self.sizes)
        sizes = sizes or (at and f" at {at}" + " only" * bool(self))
        proved = f": {count_noun(len(self.pairs), 'pair of values', 'pairs of values')} proved" if self.pairs else ""
        lines = [f"{self.kind}{sizes}{proved} in {self.seconds:.1f} s"]
        if self.folded:
            error = max(each.error for each in self.folded)
            weights = count_noun(len(self.folded), "weight or constant", "weights and constants")
            lines.append(f"{weights} computed from the other model's, up to {error:.1e} of the largest element")
        if self.agreement is not None:
            where = describe_random_inputs(self.models[0].domains if self.models else {})
            lines.append(f"on {where}, the outputs differ by at most {self.agreement:.1e} of the largest element")
        return [*lines, *(str(found) for found in (self.difference, self.why) if found)]

    def page(self, title: str) -> str:
        """Return an HTML page with a *title*: the verdict, and both sides next to each other.

        Of models these are the graphs and a table of the proved values, of programs texts and graphs, of families
        texts.
        """
        lines = [f"<p>{escape(line)}</p>" for line in self.lines()]
        return html_page(title, [*lines, self._sides()])

    def _sides(self) -> str:
        """Return both sides next to each other as HTML."""
        if self.models:
            equal_values = [(pair.first, pair.second) for pair in self.pairs]
            meaning = (
                "the first difference" if self.kind == "different" else "the first values that are not proved equal"
            )
            return side_by_side(self.models, equal_values, self.nodes, meaning) + self._pairs_html()
        if self.programs:
            return programs_side_by_side(self.programs, ("first", "second"))
        return "".join(texts_side_by_side(first, second) for case in self.cases for *_, first, second in case.pairs)

    def _pairs_html(self) -> str:
        """Return the table of several proved values as HTML, without the verdict below it."""
        return replace(self.table(), caption="")._repr_html_() if len(self.pairs) > 1 else ""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        first, *others = self.lines()
        kind, rest = first[: len(self.kind)], first[len(self.kind) :]
        html = "<br>".join([kind_html(kind) + escape(rest), *map(escape, others)])
        return {"text/html": html + self._pairs_html(), "text/plain": str(self)}

    def save_certificates(self, folder: str | PathLike[str]) -> int:
        """Write one record for each proved pair to *folder*, and return their number.

        ``python -m einnet_check RECORD.json …`` proves them again.
        """
        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        head: JsonObject = {"format": FORMAT, "version": VERSION}
        made = {f"{number:04}": head | record for number, record in enumerate(self._records())}
        save_records(where, made)
        return len(made)

    def _records(self) -> Iterable[JsonObject]:
        """Yield the values, the start and the step of each record."""
        here = [
            (p.first, p.second, text(p.before), [*map(text, (*p.between, p.after))], p.certificate.to_json())
            for p in self.pairs
        ]
        cases = [
            (first, second, before, [after], None) for case in self.cases for first, second, before, after in case.pairs
        ]
        for first, second, before, afters, certificate in cases or here:
            step: JsonObject = {"rule": COMPARISON, "at": "0", "params": {}, "certificate": certificate}
            yield {"start": before, "steps": [{**step, "after": each} for each in afters], "values": [first, second]}


def compare_programs(first: Program, second: Program, budget: float = 60.0) -> Verdict:
    """Compare two programs, whose inputs and outputs correspond by name or by position, for *budget* seconds."""
    start = perf_counter()
    second = with_interface_of(second, first)
    require_common_interface(first, second)
    found, difference, why = Certificate("unknown", "none", detail="the budget was reached"), None, ""
    with suppress(TimeoutError), interrupt_after(budget, "the comparison"):
        found = certify(first, second)
        if found.kind == "false":
            difference = find_program_difference(first, second)
            whole = of_two_programs(found.counterexample or "")
            why = _differing_term(first, second, difference) if difference else whole
    kind: VerdictKind = "different" if found.kind == "false" else found.kind
    proofs = tuple(ValuePair(name, name, first, second, found) for name in first.outputs if found)
    seconds = perf_counter() - start
    why = why if kind == "different" else found.why
    both = first, second
    return Verdict(kind, proofs, (), seconds, difference, why=why, certificate=found, programs=both)


def _differing_term(first: Program, second: Program, at: Difference) -> str:
    """Say which term of the element *at* occurs how often in both programs; an empty string if that is not decided."""
    given = infinite_results((first.equations, second.equations))
    try:
        with interrupt_after(TERM_SECONDS, "the comparison of terms"):
            before, after = (inline_equations(program, ())[at.output] for program in (first, second))
            region = tuple((lo + n, lo + n + 1) for n, (lo, _) in zip(at.at, before.box, strict=True))
            witness = term_difference(before, after, region, given)
    except (Refused, Undecided, TimeoutError):
        return ""
    return of_two_programs(str(witness).partition(": ")[2]) if witness else ""


def find_program_difference(first: Program, second: Program) -> Difference | None:
    """Return the largest difference of the outputs on random inputs, computed in float64; None if there is none.

    None also if the programs are too large to be evaluated.
    """
    if sum(prod(t.shape) for t in first.inputs) > MAX_INPUT_ELEMENTS:
        return None
    random = np.random.default_rng(0)
    for draw in range(MAX_DRAWS):
        drawn = ((t, random.standard_normal(t.shape) * 4.0 ** (draw % 3)) for t in first.inputs)
        inputs = {t.name: within_type(t, array) for t, array in drawn}
        try:
            want, got = (evaluate(each, inputs, np.float64, outputs_only=True) for each in (first, second))
        except ValueError:
            return None
        for name in first.outputs:
            at = _differing_element(want[name], want[name], got[name])
            if at is not None:
                return Difference(name, at, float(want[name][at]), float(got[name][at]), inputs)
    return None


def compare_models(first: Model, second: Model, budget: float = 60.0, parts: bool = False) -> Verdict:
    """Compare two models, with the same inputs and outputs by name or by position, for at most *budget* seconds.

    *parts*: prove which values are equal even if the models differ.

    Weights are equal by content, or as products of the other model's weights up to rounding.  A difference is measured
    in ONNX Runtime, on random inputs, against the difference that the order of computation makes.  When the budget is
    reached, what is known so far is returned.  Raises Refused if the inputs or outputs do not fit, or ONNX Runtime
    cannot run a model.
    """
    start = perf_counter()
    made = _Comparison((first, second), match_interface("output", first.outputs, second.outputs), start + budget, parts)
    late = ""
    try:
        with interrupt_after(budget, "the comparison"):
            made.run()
    except TimeoutError:
        late = "the budget was reached; "
    return made.verdict(perf_counter() - start, late)


@dataclass(slots=True)
class _Comparison:
    """What is known of two *models*, whose *outputs* correspond, until *stop*, a time of ``perf_counter``."""

    models: tuple[Model, Model]
    outputs: Mapping[str, str]
    stop: float
    parts: bool
    sweep: Sweep | None = None
    pairs: list[ValuePair] = field(default_factory=list)
    is_proved: bool = False
    difference: Difference | None = None
    agreement: float | None = None
    nodes: tuple[str, str] = ("", "")
    why: str = ""

    def run(self) -> None:
        """Compare the models; raises TimeoutError at ``stop``."""
        self.sweep = sweep = open_sweep(*self.models, stop=self.stop, outputs=self.outputs)
        # A model with large values runs for long, so it is not run if a proof is likely.
        is_likely = all(theirs in sweep.candidates(mine) for mine, theirs in self.outputs.items())
        is_first = sweep.is_one_graph or (sweep.in_blocks and is_likely)
        if is_first:
            self._prove(sweep)
        if not self.is_proved:
            self.difference, self.agreement = find_difference(*self.models, self.outputs, stop=self.stop)
        if not is_first and (self.difference is None or self.parts):
            self._prove(sweep)
        if self.difference is not None:
            self.nodes, self.why = first_difference(sweep)
            if not self.why and not isfinite(self.difference.first - self.difference.second):
                self.why = OVERFLOW

    def _prove(self, sweep: Sweep) -> None:
        # Outputs that differ are no reason to raise the limits.
        self.pairs.extend(sweep.run() if self.difference else sweep.run(self.outputs))
        self.is_proved = all(sweep.are_equal(mine, theirs) for mine, theirs in self.outputs.items())

    def verdict(self, seconds: float, late: str) -> Verdict:
        """Return the verdict after *seconds*; *late* says that ``stop`` was reached."""
        pairs, folded = tuple(self.pairs), tuple(self.sweep.folded if self.sweep else ())
        if self.difference is not None:
            return Verdict("different", pairs, folded, seconds, self.difference, self.nodes, self.why, self.models)
        if self.is_proved:
            kind = weakest_kind(pair.certificate.kind for pair in pairs)
            is_rounded = kind == "rounded" or any(each.error for each in folded)
            why = ONE_GRAPH if self.sweep and self.sweep.is_one_graph else ""
            return Verdict("rounded" if is_rounded else "proved", pairs, folded, seconds, why=why, models=self.models)
        nodes, why = first_undecided(self.sweep) if self.sweep else (("", ""), "no values were compared")
        late += "a larger budget may decide it; " if late else ""
        return Verdict(
            "unknown", pairs, folded, seconds, None, nodes, late + why, self.models, agreement=self.agreement
        )


def find_difference(
    first: Model, second: Model, outputs: Mapping[str, str], seconds: float = 5.0, stop: float = inf
) -> tuple[Difference | None, float]:
    """Return the largest difference of the *outputs* on random inputs, None if it may be rounding, and its size.

    The size is relative to the largest element of an output.  Two inputs are tried, and more for at most *seconds*;
    those without a domain have different magnitudes.  Raises TimeoutError at *stop*, a time of ``perf_counter``.
    """
    start = perf_counter()
    inputs = match_interface("input", first.inputs, second.inputs)
    exact, other = (open_session(model.original, 1, adjust=without_optimisations) for model in (first, second))
    fast = open_session(first.original, 1)
    largest = 0.0
    for seed in range(MAX_DRAWS):
        if seed > 1 and perf_counter() - start > seconds:
            break
        draw = random_model_inputs(first, seed)
        scale, least = MAGNITUDES[seed % len(MAGNITUDES)]
        scaled = {n for n, a in draw.items() if a.dtype.kind == "f"} - first.domains.keys()
        feeds = {n: np.asarray(a * scale, a.dtype) if n in scaled else a for n, a in draw.items()}
        want, again = (
            dict(zip(outputs, run_session(s, list(outputs), feeds, stop), strict=True)) for s in (exact, fast)
        )
        theirs = {inputs[name]: array for name, array in feeds.items()}
        got = dict(zip(outputs, run_session(other, list(outputs.values()), theirs, stop), strict=True))
        for name in outputs:
            if want[name].size and want[name].dtype.kind in "fiub":
                distance = float(_distances(want[name], got[name]).max())
                largest = max(largest, distance / (_largest_finite(want[name]) or 1.0))
            at = _differing_element(want[name], again[name], got[name], least)
            if at is not None:
                return Difference(name, at, float(want[name][at]), float(got[name][at]), feeds), largest
    return None, largest


def _differing_element(
    want: Array, again: Array, got: Array, least: float = LEAST_DIFFERENCE
) -> tuple[int, ...] | None:
    """The element in which *got* differs most from *want*: more than the same computation *again*, and than *least*.

    *least* is relative to the largest element.
    """
    if not want.size or want.dtype.kind not in "fiub":
        return None
    limit = max(NOISE_FACTOR * _distances(want, again).max(), least * _largest_finite(want))
    apart = _distances(want, got)
    worst = np.unravel_index(int(np.argmax(apart)), apart.shape)
    return tuple(map(int, worst)) if apart[worst] > limit else None


def _largest_finite(array: Array) -> float:
    return float(np.abs(array[np.isfinite(array)].astype(np.float64)).max(initial=0))


def _distances(a: Array, b: Array) -> Array:
    """The distance of each element; 0 where both are infinite or no number, infinite where one is."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(apart, nan=np.inf, posinf=np.inf))
