"""What stands when the contests are over: which winners pay in the whole model, in which form, and what that gives.

What won alone need not win in the whole, where it breaks ONNX Runtime's own fusions and layouts: equal subprograms are
taken in together, most gain first, and stay if the whole model then runs faster and agrees.  The forms are: adjacent
parts joined and post-optimised; each part as it won; and either of them exported, in one session of ONNX Runtime.

What was selected of a model's parts by measurement, and how that is remembered.

The forms that a plan may have, measured beside each other and the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from time import perf_counter
from typing import Any

from einnet_explore.analysis.equations import weight_only
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.assembly import Assembler, PlanProgram
from einnet_explore.pipeline.backward_elimination import ELIMINATION_SECONDS, LeaveOneOut, eliminate_unprofitable
from einnet_explore.pipeline.baseline import Baseline, MeasuredPlan
from einnet_explore.pipeline.export_selection import EXPORT_SELECTION_SECONDS as FILING
from einnet_explore.pipeline.export_selection import (
    EXPORTED_FORM,
    MEASURED_IN_ONNXRUNTIME,
    ORIGINAL_EXPORT,
    ExportSelection,
    select_for_export,
)
from einnet_explore.pipeline.history import TuningHistory
from einnet_explore.pipeline.joining import Piece
from einnet_explore.pipeline.optimised import Optimised
from einnet_explore.pipeline.outcome import TunedSubprogram, count_fusions
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.tuning_task import Settings
from einnet_explore.pipeline.whole_model import (
    FORWARD_SELECTION_SECONDS,
    MAX_SINGLE_TRIALS,
    MIN_REMEMBERED_SPEEDUP,
    MIN_SPEEDUP,
    Chosen,
    forward_selection,
    measurement_rounds,
)
from einnet_explore.runtime.measurement import LONG, compare, pause, times_faster
from einnet_explore.runtime.outputs import AGREEMENT, largest_error

MIN_SELECTION_SECONDS = 10.0
"""Seconds that selecting may take, however small the budget is: some trials, or nothing that was found is used."""


def selection_seconds(budget: float | None) -> float:
    """Seconds after which selecting tries nothing more: half of a *budget*; without one each step has its own."""
    return inf if budget is None else max(MIN_SELECTION_SECONDS, budget / 2)


@dataclass(frozen=True, slots=True)
class Selection:
    """The numbers of the parts kept, the form of the plan, why other winners are not kept, and what is exported."""

    kept: tuple[int, ...]
    form: str
    refused: Mapping[int, str]
    exported: ExportSelection

    def given_back(self, why: str) -> Selection:
        """Nothing, since what was kept does not hold what it promised."""
        return Selection((), self.form, {**self.refused, **dict.fromkeys(self.kept, why)}, ORIGINAL_EXPORT)

    def to_json(self) -> dict[str, Any]:
        """The selection as it is remembered."""
        exported = [self.exported.speedup, self.exported.why, self.exported.parts, self.exported.form]
        return {"kept": self.kept, "form": self.form, "refused": dict(self.refused), "exported": exported}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Selection:
        """The selection that ``to_json`` told."""
        speedup, why, parts, form = found["exported"]
        refused = {int(n): said for n, said in found["refused"].items()}
        return Selection(
            tuple(found["kept"]), found["form"], refused, ExportSelection(speedup, why, tuple(parts), form)
        )


MAX_FIRST_RUN_RATIO = 4.0
"""A form whose first run takes so many times as long as a run of the original is not run again, where that is long."""


def _measure_forms(
    forms: Iterable[str], plan_of: Callable[[str], ExecutionPlan], against: Baseline
) -> tuple[dict[str, float], dict[str, str]]:
    """How many times faster than the original each of *forms* is, and why others do not run or agree.

    *plan_of* makes the plan in a form, or raises ValueError.
    """
    once, feeds = against.seconds, against.feeds
    plans = {"before": against.original}
    whys, warm = dict[str, str](), {"before": once}
    for form in forms:
        try:
            plan = plan_of(form)
            began = perf_counter()
            error = largest_error(against.want, plan.run(feeds))
            warm[form] = perf_counter() - began
        except ValueError as problem:
            whys[form] = str(problem)
            continue
        if error > AGREEMENT:
            whys[form] = f"it differs by {error:.1e} of its largest output"
        elif warm[form] > max(MAX_FIRST_RUN_RATIO * once, LONG):
            whys[form] = f"a run takes {warm[form] / once:.1f} times as long as the original's"
        else:
            plans[form] = plan
    calls = {name: partial(plan.run, feeds) for name, plan in plans.items()}
    settle = pause(against.original.threads)
    times = compare(calls, rounds=measurement_rounds(once, 11), min_seconds=0.3, settle=settle, warm=warm)
    return {name: times_faster(times["before"], times[name]) for name in plans if name != "before"}, whys


FORMS: Mapping[str, tuple[str, ...]] = {
    "plan": ("joined", "apart", "exported"),
    "onnxruntime": ("exported", "exported apart"),
}
"""The forms that a plan may have, by runtime; the first is the one that few parts are tried in."""


@dataclass
class Selector:
    """Making the result of one model from what its contests gave."""

    model: Model
    digest: str
    settings: Settings
    original: ExecutionPlan
    feeds: dict[str, Any]
    seconds: float
    assembler: Assembler
    memory: TuningHistory
    parts: Sequence[TunedSubprogram]
    signatures: Sequence[str]
    pieces: Callable[[Iterable[int]], list[Piece]]
    budget: float | None = None
    stopped: bool = field(default=False, init=False)
    """Whether Ctrl-C ended selecting: what was kept by then is the result, and nothing is remembered of it."""

    def __post_init__(self) -> None:
        self._began = perf_counter()

    def optimised(self) -> Optimised:
        """The plan, measured and checked against ONNX Runtime.

        What an earlier run selected is not selected again: its plan is checked, and measured once.
        """
        chosen, held = self._chosen()
        assembled = self._assembled(chosen.kept, chosen.form)
        kept = set(chosen.kept)
        parts = tuple(
            replace(part, kept=n in kept, why=part.why if n in kept else chosen.refused.get(n, part.why))
            for n, part in enumerate(self.parts)
        )
        derivations = [*(p.derivation for p in parts if p.kept), *(a.derivation for a in assembled)]
        return Optimised(
            self.model,
            held.plan,
            self.original,
            parts,
            self.assembler.replacements(self._assembled(chosen.exported.parts, chosen.exported.form)),
            (),
            held.timings,
            held.errors,
            0.0,
            sum(len(weight_only(a.piece.program)) for a in assembled),
            sum(count_fusions(d) for d in derivations if d is not None),
            self.settings.threads,
            self.stopped,
            form=chosen.form if kept else "original",
            programs=assembled,
            exported=chosen.exported,
            feeds=self.feeds,
            without=self._without(chosen),
        )

    def _assembled(self, kept: Iterable[int], form: str, proved: bool = True) -> tuple[PlanProgram, ...]:
        pieces = self.pieces(kept)
        return self.assembler.apart(pieces) if form.endswith("apart") else self.assembler.together(pieces, proved)

    def _plan(self, kept: Iterable[int], form: str, proved: bool = False) -> ExecutionPlan:
        """The plan with the parts *kept*; one that is only tried, beside others, is not *proved*."""
        numbers = tuple(kept)
        if not numbers:
            return self.original
        parts = self._assembled(numbers, form, proved)
        return self.assembler.export(parts) if form.startswith("exported") else self.assembler.plan(parts)

    def _without(self, chosen: Selection) -> LeaveOneOut | None:
        """The plan of *chosen* without some of its parts; None where nothing is kept."""
        if not chosen.kept:
            return None
        key = (*self._key, chosen.kept, chosen.form)
        return LeaveOneOut(self._groups(chosen.kept), lambda rest: self._plan(rest, chosen.form), self.memory, key)

    def _groups(self, numbers: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Equal parts among *numbers*."""
        found: dict[str, tuple[int, ...]] = {}
        for n in numbers:
            found[self.signatures[n]] = (*found.get(self.signatures[n], ()), n)
        return tuple(found.values())

    def _chosen(self) -> tuple[Selection, MeasuredPlan]:
        """What an earlier run with as much time selected, where its plan still agrees; else what this one selects."""
        known = self._remembered()
        held = self._held(known, brief=True) if known else None
        if known and held:
            return self._kept(known, held, MIN_REMEMBERED_SPEEDUP)
        found = self._selected()
        if not self.stopped:
            try:
                chosen, held = self._made(found)
            except KeyboardInterrupt:
                self.stopped = True
            else:
                self.memory.put(
                    {"seconds": selection_seconds(self.budget), **chosen.to_json()}, "selection", *self._key
                )
                return chosen, held
        return self._kept(found, self._held(found, brief=True), MIN_SPEEDUP)

    def _left(self) -> float:
        """Seconds that are left for selecting."""
        return 0.0 if self.stopped else max(0.0, self._began + selection_seconds(self.budget) - perf_counter())

    def _selected(self) -> Selection:
        """What pays in the whole model, by measurement."""
        forms = FORMS[self.settings.runtime]
        winners = [n for n, part in enumerate(self.parts) if part.kept]
        near = [n for n, p in enumerate(self.parts) if not p.kept and p.outcome.contender and p.certificate != "false"]
        gains = {n: part.gain for n, part in enumerate(self.parts)}
        groups = self._groups(winners)
        # What is joined is made anew for every trial: where there are many parts they are tried as they won.
        tried = (
            forms[0] if len(groups) <= MAX_SINGLE_TRIALS else next((f for f in forms if f.endswith("apart")), forms[0])
        )
        found = forward_selection(
            groups,
            gains,
            self.original,
            lambda numbers: self._plan(numbers, tried),
            self.feeds,
            self.seconds,
            self._groups(near),
            self.against.want,
            perf_counter,
            min(FORWARD_SELECTION_SECONDS, self._left()),
        )
        self.stopped = found.stopped
        if not self.stopped:
            try:
                return self._in_form(tuple(found.kept), found.refused)
            except KeyboardInterrupt:
                self.stopped = True
        return self._as_tried(found, tried)

    def _as_tried(self, found: Chosen, form: str) -> Selection:
        """What was kept when Ctrl-C came, in the *form* that it was tried in; in the file if one trial says so."""
        kept = tuple(found.kept)
        return Selection(kept, form, found.refused, self._exported(kept, form, {}, {}) if kept else ORIGINAL_EXPORT)

    def _in_form(self, kept: tuple[int, ...], refused: Mapping[int, str], look: bool = True) -> Selection:
        """*kept* in the form that is the fastest by measurement, and how fast the exported model is.

        With a *look* back at them: parts that do not pay in that form, beside the others, are left out.
        """
        forms = FORMS[self.settings.runtime]
        if not kept:
            return Selection((), forms[0], refused, ORIGINAL_EXPORT)
        ratios, whys = self._ratios(kept)
        # The first form is what the parts were chosen in: another one has to be faster by more than noise.
        first = ratios.get(forms[0], 0.0)
        best = max(ratios, key=lambda name: ratios[name], default=forms[0])
        form = best if ratios.get(best, 0.0) > MIN_SPEEDUP * first else forms[0]
        lost = self._lost(kept, form) if look else {}
        if lost:
            return self._in_form(tuple(n for n in kept if n not in lost), {**refused, **lost}, look=False)
        return Selection(kept, form, refused, self._exported(kept, form, ratios, whys))

    def _lost(self, kept: tuple[int, ...], form: str) -> dict[int, str]:
        """The parts of *kept* that the plan in *form* is faster without, and why."""
        return eliminate_unprofitable(
            self._groups(kept),
            {n: self.parts[n] for n in kept},
            lambda numbers: self._plan(numbers, form),
            self.feeds,
            self.against.want,
            self.seconds,
            perf_counter,
            min(ELIMINATION_SECONDS, self._left()),
        )

    def _ratios(self, kept: tuple[int, ...]) -> tuple[dict[str, float], dict[str, str]]:
        """How many times faster than the original each form of *kept* is, and why others do not run or agree."""
        first, *others = FORMS[self.settings.runtime]
        if len(self._assembled(kept, first, proved=False)) == len(kept):  # nothing was joined
            others = [form for form in others if not form.endswith("apart")]
        return _measure_forms((first, *others), lambda form: self._plan(kept, form), self.against)

    def _exported(
        self, kept: tuple[int, ...], form: str, ratios: Mapping[str, float], whys: Mapping[str, str]
    ) -> ExportSelection:
        """What is written to a file."""
        why = f"it is not run: {whys.get(EXPORTED_FORM, 'no form of it was tried')}"
        if form.startswith(EXPORTED_FORM) and form in ratios:
            return ExportSelection(ratios[form], MEASURED_IN_ONNXRUNTIME, kept, form)
        if EXPORTED_FORM not in FORMS[self.settings.runtime]:
            return ExportSelection(None, why, kept)
        gains = {n: part.gain for n, part in enumerate(self.parts)}
        return select_for_export(
            kept, ratios, why, self._groups(kept), gains, self.original,
            lambda numbers: self._plan(numbers, EXPORTED_FORM),
            self.feeds, self.seconds, self.against.want, perf_counter, min(FILING, self._left()),
        )  # fmt: skip

    @cached_property
    def against(self) -> Baseline:
        """The original, as plans are held against it."""
        return Baseline(self.model, self.original, self.feeds, self.seconds)

    def _held(self, chosen: Selection, brief: bool = False) -> MeasuredPlan | None:
        """The plan of *chosen*, which is proved, beside the original; None where it cannot be made or is another."""
        return self.against.held(lambda: self._plan(chosen.kept, chosen.form, proved=True), brief)

    def _made(self, made: Selection) -> tuple[Selection, MeasuredPlan]:
        """*made* with its plan; in the form that its parts were chosen in where the one that seemed faster is not.

        Noise may choose a form, in one measurement, but hardly parts, in many.
        """
        held, first = self._held(made), FORMS[self.settings.runtime][0]
        if made.kept and made.form != first and (held is None or held.gain < MIN_SPEEDUP):
            other = self._held(replace(made, form=first))
            if other is not None and other.gain >= MIN_SPEEDUP:
                ratios = {} if held is None else {made.form: held.gain}
                return replace(made, form=first, exported=self._exported(made.kept, first, ratios, {})), other
        return self._kept(made, held, MIN_SPEEDUP)

    def _kept(self, chosen: Selection, held: MeasuredPlan | None, least: float) -> tuple[Selection, MeasuredPlan]:
        """*chosen*, whose plan is *held*, where that is *least* times faster; else the original, and why."""
        if held is not None and (not chosen.kept or held.gain >= least):
            return chosen, held
        why = "with it the whole model is not faster by more than noise"
        why += f": it runs at {held.gain:.2f} of its speed without" if held else ", or does not agree"
        return chosen.given_back(why), self.against.itself()

    @cached_property
    def _key(self) -> tuple[object, ...]:
        candidates = [repr(p.derivation.end) if p.derivation else "" for p in self.parts]
        return self.digest, replace(self.settings, seconds=0.0), *candidates

    def _remembered(self) -> Selection | None:
        found = self.memory.get("selection", *self._key)
        if found is None or found["seconds"] < selection_seconds(self.budget) / 2:
            return None
        return Selection.from_json(found)
