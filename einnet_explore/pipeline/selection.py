"""The selection of one model: the derived subprograms, the form of the plan, the exported file, and the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from math import inf
from time import perf_counter

from einnet_explore.analysis.equations import weight_only
from einnet_explore.onnx_export.export import Replacement
from einnet_explore.pipeline.assembly import Assembler, Piece, PlanForm, PlanProgram, Proof
from einnet_explore.pipeline.baseline import MIN_SPEEDUP, Baseline, MeasuredPlan, is_clearly_faster, plan_speedup
from einnet_explore.pipeline.optimised import ORIGINAL_EXPORT, ExportedFile, ExportSelection, LeaveOneOut, Optimised
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.plan_layouts import Conversions, Region, Unit, measure_conversions, propose_selection
from einnet_explore.pipeline.selection_trials import (
    ELIMINATION_SECONDS,
    EXPORT_SELECTION_SECONDS,
    FORWARD_SELECTION_SECONDS,
    HOST_SELECTION_SECONDS,
    MAX_SINGLE_TRIALS,
    MEASURED_IN_ONNXRUNTIME,
    MIN_EXACT_SPEEDUP,
    Alternatives,
    ForwardSelection,
    eliminate_unprofitable,
    forward_selection,
    is_doubtful,
    select_for_export,
    select_host,
)
from einnet_explore.pipeline.subprogram import (
    Subprogram,
    TunedSubprogram,
    count_fusions,
    operator_digest,
    seconds_in_parts,
)
from einnet_explore.pipeline.tuning_context import Runtime, TuningHistory
from einnet_explore.runtime.hosts import Host, installed_hosts
from einnet_explore.runtime.measurement import (
    LONG_CALL_SECONDS,
    MAX_FIRST_RUN_RATIO,
    Enough,
    all_rounds,
    sample_seconds,
)
from einnet_explore.runtime.onnx_fragment import ONNXRUNTIME_ERRORS
from einnet_explore.support.json_values import JsonObject, as_integers, as_items, as_number, as_object, as_texts
from einnet_explore.support.limits import return_free_memory

NEAR_RATIO = 1.1
"""A joined subprogram and its parts are tried in place of one another if their times are within this ratio."""

MIN_SELECTION_SECONDS = 10.0
"""Seconds that selection may take, however small the budget is: without trials nothing that was found is used."""

MIN_REMEMBERED_SPEEDUP = 1.0
"""Speedup that a remembered selection needs to be kept.  Were it ``MIN_SPEEDUP`` again, noise would decide."""

MAX_FORM_RATIO = 2.0
"""A form whose run takes this multiple of the original's is not measured in turns, and its plan is freed."""

FORMS: Mapping[Runtime, tuple[PlanForm, ...]] = {
    "plan": (PlanForm.JOINED, PlanForm.SEPARATE),
    "onnxruntime": (PlanForm.EXPORTED, PlanForm.EXPORTED_SEPARATE),
}
"""The forms that a plan may have, by runtime; forward selection of few groups uses the first."""


def selection_seconds(budget: float | None) -> float:
    """Return the seconds after which selection tries nothing more: half of *budget*, if there is one."""
    return inf if budget is None else max(MIN_SELECTION_SECONDS, budget / 2)


@dataclass(frozen=True, slots=True)
class Selection:
    """The numbers of the *kept* subprograms, the plan's *form*, and why others are *refused*.

    *host* runs the nodes that are not replaced; None stands for ONNX Runtime.
    """

    kept: tuple[int, ...]
    form: PlanForm
    refused: Mapping[int, str]
    host: Host | None = None

    def without_rewrites(self, why: str) -> Selection:
        """Keep nothing, since the kept subprograms turned out not to pay."""
        return Selection((), self.form, {**self.refused, **dict.fromkeys(self.kept, why)})

    def to_json(self) -> JsonObject:
        """Return the selection as it is remembered."""
        return {"kept": self.kept, "form": self.form, "refused": dict(self.refused)}

    @staticmethod
    def from_json(document: object) -> Selection:
        """Return the selection that ``to_json`` wrote."""
        found = as_object(document)
        refused = {int(n): str(reason) for n, reason in as_object(found["refused"]).items()}
        return Selection(as_integers(found["kept"]), PlanForm(str(found["form"])), refused)


@dataclass
class Selector:
    """Selects from the trials of one model: *parts* and their *subprograms*, both in the order of the model."""

    baseline: Baseline
    assembler: Assembler
    history: TuningHistory
    digest: str
    parts: Sequence[TunedSubprogram]
    subprograms: Sequence[Subprogram]
    every_subprogram: Sequence[Subprogram] = ()
    """All subprograms of the model that are no parts of others, tuned or not."""
    budget: float | None = None
    interrupted: bool = field(default=False, init=False)
    """Whether Ctrl-C ended the selection: the result is what was kept by then, and it is not remembered."""
    _began: float = field(default_factory=perf_counter, init=False)

    def optimised(self) -> Optimised:
        """Return the plan of the selection, measured and checked against ONNX Runtime.

        The selection of an earlier run is not made again: its plan is checked, and measured once.
        """
        selection, measured = self._selection()
        file = self._exported_file(selection, measured)
        found = self._describe(selection, measured, file)
        hosted = None if self.interrupted else self._hosted_selection(selection, measured)
        if hosted is None:
            return replace(found, interrupted=self.interrupted)
        return replace(self._describe(*hosted, file), in_onnxruntime=found)

    def _describe(self, selection: Selection, measured: MeasuredPlan, file: ExportedFile) -> Optimised:
        assembled = self._assemble(selection.kept, selection.form)
        kept = set(selection.kept)
        parts = tuple(
            replace(part, kept=n in kept, why=part.why if n in kept else selection.refused.get(n, part.why))
            for n, part in enumerate(self.parts)
        )
        derivations = [*(p.derivation for p in parts if p.kept), *(a.derivation for a in assembled)]
        return Optimised(
            model=self.baseline.model,
            plan=self._without_programs(measured.plan, selection),
            original=self.baseline.original,
            parts=parts,
            file=file,
            skipped=(),
            timings=measured.timings,
            errors=measured.errors,
            max_error=self.baseline.max_error,
            search_seconds=0.0,
            folded_weights=sum(len(weight_only(a.piece.program)) for a in assembled),
            fused_eoperators=sum(count_fusions(d) for d in derivations if d is not None),
            threads=self.assembler.settings.threads,
            interrupted=self.interrupted,
            form=selection.form.value if kept else "original",
            programs=assembled,
            feeds=self.baseline.feeds,
            without=self._leave_one_out(selection),
            stored=self.baseline.compare_stored(measured.plan),
        )

    def _without_programs(self, plan: ExecutionPlan, selection: Selection) -> ExecutionPlan:
        """Return *plan*, that of *selection*, without its compiled programs: they are compiled again for a bundle.

        They hold weights of which its session has copies in layouts of its own.
        """
        if not selection.kept:
            return plan
        again = partial(self._plan, selection.form, selection.kept, "required", selection.host)
        return replace(plan, model_with=lambda table: again().model_with(table))

    @property
    def _forms(self) -> tuple[PlanForm, ...]:
        return FORMS[self.assembler.settings.runtime]

    def pieces(self, kept: Iterable[int]) -> list[Piece]:
        """Return the derived programs with these numbers, in the order of the model."""
        out = []
        for n in sorted(kept):
            derivation, subprogram = self.parts[n].derivation, self.subprograms[n]
            assert derivation is not None
            out.append(Piece(subprogram.nodes, derivation.end, subprogram.value_names(self.baseline.model)))
        return out

    def _assemble(self, kept: Iterable[int], form: PlanForm, proof: Proof = "required") -> tuple[PlanProgram, ...]:
        return self.assembler.assemble(self.pieces(kept), form, proof)

    def _plan(
        self, form: PlanForm, kept: Iterable[int], proof: Proof = "skipped", host: Host | None = None
    ) -> ExecutionPlan:
        """Return the plan of the subprograms *kept*, others run by *host*; plans on trial need no *proof*."""
        numbers = tuple(kept)
        if not numbers and host is None:
            return self.baseline.original
        return_free_memory()
        return self.assembler.plan(self._assemble(numbers, form, proof), form, host)

    def _leave_one_out(self, selection: Selection) -> LeaveOneOut | None:
        """Return what measures the kept subprograms' contributions; None if nothing is kept."""
        if not selection.kept:
            return None
        key = (*self._key, selection.kept, selection.form, *([selection.host] if selection.host else []))
        plan_of = partial(self._plan, selection.form, host=selection.host)
        return LeaveOneOut(self._groups(selection.kept), plan_of, self.history, key)

    @cached_property
    def _task_names(self) -> tuple[str, ...]:
        return tuple(subprogram.task_name(self.baseline.model) for subprogram in self.subprograms)

    def _groups(self, numbers: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Group equal subprograms among *numbers*."""
        found: dict[str, tuple[int, ...]] = {}
        for n in numbers:
            found[self._task_names[n]] = (*found.get(self._task_names[n], ()), n)
        return tuple(found.values())

    def _groups_by_gain(self, numbers: Iterable[int]) -> list[tuple[int, ...]]:
        """Group equal subprograms among *numbers*, most gain first."""
        return sorted(self._groups(numbers), key=lambda group: -sum(self.parts[n].gain for n in group))

    def _selection(self) -> tuple[Selection, MeasuredPlan]:
        """Return the selection of an earlier run with as much time, if its plan still agrees; else a new one."""
        known = self._find_remembered()
        measured = self._measure(known, is_clearly_faster) if known else None
        if known and measured:
            return self._confirm(known, measured, MIN_REMEMBERED_SPEEDUP)
        selection, measured = self._new_selection()
        if selection.kept or not self.interrupted:
            self.history.record([list(self.parts[n].nodes) for n in selection.kept], "kept", *self._model_key)
        return selection, measured

    def _new_selection(self) -> tuple[Selection, MeasuredPlan]:
        """Return a selection, measured; it is remembered unless it was interrupted."""
        found = self._select()
        if not self.interrupted:
            try:
                selection, measured = self._final_form(found)
            except KeyboardInterrupt:
                self.interrupted = True
            else:
                document = {"seconds": selection_seconds(self.budget), **selection.to_json()}
                self.history.record(document, "selection", *self._key)
                return selection, measured
        return self._confirm(found, self._measure(found, is_clearly_faster), self._least_speedup(found.kept))

    def _seconds_left(self) -> float:
        """Return the seconds that are left for selection."""
        return 0.0 if self.interrupted else max(0.0, self._began + selection_seconds(self.budget) - perf_counter())

    @cached_property
    def _exact(self) -> frozenset[int]:
        """The subprograms that round to integers as the model defines, while their originals do not."""
        return frozenset(n for n, part in enumerate(self.parts) if part.trial.rounds_exactly)

    def _least_speedup(self, kept: Iterable[int]) -> float:
        """Return the speedup that a new plan of *kept* needs: if some are exact, it must not be slower."""
        return MIN_SPEEDUP if self._exact.isdisjoint(kept) else MIN_EXACT_SPEEDUP

    def _select(self) -> Selection:
        """Select the subprograms that pay in the whole model, by measurement."""
        winners = [n for n, part in enumerate(self.parts) if part.kept]
        contenders = [n for n, p in enumerate(self.parts) if not p.kept and p.trial.contender and p.is_sound]
        # Joined programs are derived anew for every trial, so many groups are tried in a separate form; exact ones are
        # one trial.
        form = self._forms[0]
        if len(self._groups(n for n in winners if n not in self._exact)) > MAX_SINGLE_TRIALS:
            form = next((f for f in self._forms if not f.is_joined), form)
        found = self._select_forward(form, winners, contenders)
        self.interrupted = self.interrupted or found.interrupted
        if not self.interrupted:
            try:
                return self._fastest_form(tuple(found.kept), found.refused)
            except KeyboardInterrupt:
                self.interrupted = True
        kept = tuple(found.kept) or self._earlier
        return Selection(kept, form, {n: why for n, why in found.refused.items() if n not in kept})

    @cached_property
    def _earlier(self) -> tuple[int, ...]:
        """The numbers of the subprograms that an earlier run kept, with fewer of them tuned or interrupted."""
        known = {as_texts(nodes) for nodes in as_items(self.history.get("kept", *self._model_key) or [])}
        return tuple(n for n, part in enumerate(self.parts) if part.nodes in known and self._has_winner(n))

    def _select_forward(self, form: PlanForm, winners: Iterable[int], contenders: Iterable[int]) -> ForwardSelection:
        """Return the forward selection in *form*."""
        alternatives = self._alternatives()
        found = forward_selection(
            self.baseline,
            partial(self._plan, form),
            self._groups_by_gain(winners),
            self._groups_by_gain(contenders),
            min(FORWARD_SELECTION_SECONDS, self._seconds_left()),
            exact=self._exact,
            doubtful=[n for n, part in enumerate(self.parts) if is_doubtful(part)],
            alternatives=alternatives,
        )
        return found._replace(plan=self.baseline.original)  # other plans need its memory

    def _alternatives(self) -> Alternatives:
        """Return the selection that layouts propose, and the choices between joined subprograms and their parts."""
        number = {part.nodes: n for n, part in enumerate(self.parts)}
        families: dict[int, tuple[int, ...]] = {}
        for n, subprogram in enumerate(self.subprograms):
            if inside := tuple(number[part.nodes] for part in subprogram.parts if part.nodes in number):
                families[n] = inside
        rivals = dict(families)
        rivals |= {part: (whole,) for whole, parts in families.items() for part in parts}
        near: dict[str, tuple[int, ...]] = {}
        for whole, parts in families.items():
            name = self._task_names[whole]
            near[name] = (*near.get(name, ()), *self._near_choice(whole, parts))
        return Alternatives(self._earlier, self._proposed(number), tuple(filter(None, near.values())), rivals)

    def _near_choice(self, whole: int, parts: Sequence[int]) -> tuple[int, ...]:
        """Return the joined subprogram or those of its parts that are not chosen, but nearly as fast; or nothing."""
        derived = [n for n in parts if self._has_winner(n)]
        if not derived or not self._has_winner(whole):
            return ()
        within = [replace(self.parts[n], kept=n in derived) for n in parts]
        joined, separate = self.parts[whole].trial.seconds_after, seconds_in_parts(self.parts[whole], within)
        if max(joined, separate) > NEAR_RATIO * min(joined, separate):
            return ()
        return tuple(derived) if self.parts[whole].kept else (whole,)

    def _has_winner(self, n: int) -> bool:
        return self.parts[n].trial.winner is not None and self.parts[n].is_sound

    def _proposed(self, number: Mapping[tuple[str, ...], int]) -> tuple[int, ...]:
        """Return the numbers of the subprograms that are estimated to be fastest together, by their layouts."""
        derived = [part for part in self.parts if part.derivation is not None]
        if self.assembler.settings.runtime != "plan" or not derived or not self._seconds_left():
            return ()
        units = [unit for whole in self.every_subprogram for unit in self._units(whole, number)]
        try:
            with suppress(OSError, *ONNXRUNTIME_ERRORS):  # without profiles, selection goes on without a proposal
                return propose_selection(self.baseline.model, units, self._conversions) or ()
        except KeyboardInterrupt:
            self.interrupted = True
        return ()

    def _units(self, whole: Subprogram, number: Mapping[tuple[str, ...], int]) -> Iterable[Unit]:
        """Yield *whole* with what is tuned of it, or its parts if it is not tuned."""
        alone = (whole,) if whole.nodes in number or not whole.parts else whole.parts
        for each in alone:
            tuned = [(number[s.nodes], s) for s in (each, *each.parts) if s.nodes in number]
            yield Unit(each, {n: (s, self.parts[n]) for n, s in tuned})

    def _conversions(self, region: Region) -> Conversions:
        """Return the conversions of the nodes of *region*, measured once for equal ones."""
        model, names = self.baseline.model, region.value_names()
        shapes = [model.shape(name) for name in names.values()]
        key = operator_digest(model, region.nodes), shapes, self.assembler.settings.threads
        known = self.history.get("conversions", *key)
        if known is not None:
            return Conversions.from_json(known).renamed(names)
        found = measure_conversions(model, region, self.assembler.settings.threads)
        self.history.record(found.renamed({value: n for n, value in names.items()}).to_json(), "conversions", *key)
        return found

    def _fastest_form(self, kept: tuple[int, ...], refused: Mapping[int, str]) -> Selection:
        """Return *kept* in the fastest form, after backward elimination in that form."""
        form = self._best_form(kept)
        if kept and (lost := self._find_unprofitable(kept, form)):
            kept, refused = tuple(n for n in kept if n not in lost), {**refused, **lost}
            form = self._best_form(kept)
        return Selection(kept, form, refused)

    def _best_form(self, kept: tuple[int, ...]) -> PlanForm:
        """Return the fastest form of *kept*."""
        first = self._forms[0]
        ratios = self._form_speedups(kept) if kept else {}
        # Forward selection measured the first form: another one has to be faster by more than noise.
        best = max(ratios, key=lambda form: ratios[form], default=first)
        return best if ratios.get(best, 0.0) > MIN_SPEEDUP * ratios.get(first, 0.0) else first

    def _find_unprofitable(self, kept: tuple[int, ...], form: PlanForm) -> dict[int, str]:
        """Return the subprograms of *kept* without which the plan in *form* is faster, and why."""
        return eliminate_unprofitable(
            self.baseline,
            partial(self._plan, form),
            self._groups(kept),
            {n: self.parts[n] for n in kept},
            min(ELIMINATION_SECONDS, self._seconds_left()),
            exact=self._exact,
        )

    def _form_speedups(self, kept: tuple[int, ...]) -> dict[PlanForm, float]:
        """Measure the speedup of each form of *kept* that runs and agrees; of one form, there is nothing to measure."""
        first, *others = self._forms
        if len(self._assemble(kept, first, "skipped")) == len(kept):  # nothing was joined
            others = [form for form in others if form.is_joined]
        speedups = dict[PlanForm, float]()
        for form in (first, *others) if others else ():
            with suppress(ValueError):
                speedups[form] = self._form_speedup(kept, form)
        return speedups

    def _form_speedup(self, kept: tuple[int, ...], form: PlanForm) -> float:
        """Measure the speedup of *form* of *kept*; raises ValueError if it does not run or agree, or takes too long.

        The plan, which is as large as the model or larger, is freed before another one is made.
        """
        self.baseline.original.make_room()
        once, feeds, plan = self.baseline.seconds, self.baseline.feeds, self._plan(form, kept)
        began = perf_counter()
        _, error = self.baseline.errors(plan.run(feeds))
        warm = perf_counter() - began
        if error > self.baseline.max_error:
            raise ValueError(f"its outputs differ by {error:.1e} of the largest output")
        if warm > max(MAX_FIRST_RUN_RATIO * once, LONG_CALL_SECONDS):
            raise ValueError(f"a run takes {warm / once:.1f} times as long as the original's")
        if (seconds := sample_seconds(partial(plan.run, feeds), 1)) > MAX_FORM_RATIO * once:
            return once / seconds
        return plan_speedup(self.baseline.original, plan, feeds, once, {"before": once, "after": warm})

    def _exported_file(self, selection: Selection, measured: MeasuredPlan) -> ExportedFile:
        """Return the file of *selection*, whose plan was *measured*."""
        kept, form = selection.kept, selection.form
        if not kept:
            known: ExportSelection | None = ORIGINAL_EXPORT
        elif form.is_exported:
            known = ExportSelection(measured.speedup, MEASURED_IN_ONNXRUNTIME, kept, form)
        else:
            found = self.history.get("export", *self._key, kept)
            known = None if found is None else ExportSelection.from_json(found)
        return ExportedFile(partial(self._select_for_export, kept), self._rewrites, known)

    def _rewrites(self, selection: ExportSelection) -> tuple[Replacement, ...]:
        return tuple(self.assembler.replacements(self._assemble(selection.parts, selection.form)))

    def _select_for_export(self, kept: tuple[int, ...]) -> ExportSelection:
        """Select and remember those of *kept* that are faster in ONNX Runtime; raises KeyboardInterrupt."""
        whole = ExportSelection(None, MEASURED_IN_ONNXRUNTIME, kept)
        try:
            whole = replace(whole, speedup=self._form_speedup(kept, PlanForm.EXPORTED))
        except ValueError as problem:
            whole = replace(whole, why=f"it is not run: {problem}")
        found = select_for_export(
            self.baseline,
            partial(self._plan, PlanForm.EXPORTED),
            self._groups_by_gain(kept),
            whole,
            min(EXPORT_SELECTION_SECONDS, selection_seconds(self.budget)),
        )
        self.history.record(found.to_json(), "export", *self._key, kept)
        self.baseline.original.rest()
        return_free_memory()
        return found

    def _measure(self, selection: Selection, enough: Enough = all_rounds) -> MeasuredPlan | None:
        """Measure the plan of *selection*, proved; None if it cannot be made or does not agree."""
        return self.baseline.measure(
            lambda: self._plan(selection.form, selection.kept, "required", selection.host), enough
        )

    def _final_form(self, found: Selection) -> tuple[Selection, MeasuredPlan]:
        """Return *found* with its measured plan, in the first form if the form that seemed faster is not.

        Noise may choose a form, in one measurement, but hardly subprograms, in many.
        """
        measured, first, least = self._measure(found), self._forms[0], self._least_speedup(found.kept)
        if found.kept and found.form != first and (measured is None or measured.speedup < least):
            other = self._measure(replace(found, form=first))
            if other is not None and other.speedup >= least:
                return replace(found, form=first), other
        return self._confirm(found, measured, least)

    def _confirm(
        self, selection: Selection, measured: MeasuredPlan | None, least: float
    ) -> tuple[Selection, MeasuredPlan]:
        """Return *selection* if its plan has at least the speedup *least*; else the original, and why."""
        if measured is not None and (not selection.kept or measured.speedup >= least):
            return selection, measured
        why = "with it the whole model is not faster by more than noise"
        why += f": {measured.speedup:.2f} of the speed without" if measured else ", or does not agree"
        return selection.without_rewrites(why), self.baseline.measure_original()

    def _hosted_selection(self, selection: Selection, measured: MeasuredPlan) -> tuple[Selection, MeasuredPlan] | None:
        """Return the selection and plan of the fastest host other than ONNX Runtime; None if *measured* is faster."""
        best: tuple[Selection, MeasuredPlan] | None = None
        forms = [form for form in (selection.form, *self._forms) if not form.is_exported]
        for form, host in product(forms[:1], installed_hosts()):
            try:
                made = self._measure_host(host, form, selection, measured)
            except KeyboardInterrupt:
                self.interrupted = True
                break
            if made is not None and (best is None or made[1].speedup > best[1].speedup):
                best = made
        return best

    def _measure_host(
        self, host: Host, form: PlanForm, selection: Selection, measured: MeasuredPlan
    ) -> tuple[Selection, MeasuredPlan] | None:
        """Return the selection for *host* and its plan if that is faster than *measured*.

        Subprograms are selected for a host once; a second run measures the plan.  Raises KeyboardInterrupt.
        """
        key = (*self._key, selection.kept, selection.form, host)
        known, least = self.history.get("host", *key), MIN_REMEMBERED_SPEEDUP
        if known is None:
            known, least = {"kept": self._select_for_host(host, form, selection, measured.plan)}, MIN_SPEEDUP
            self.history.record(known, "host", *key)
        if (numbers := as_object(known)["kept"]) is None:
            return None
        kept = as_integers(numbers)
        lost = dict.fromkeys(set(selection.kept) - set(kept), f"{host} runs its nodes as fast or faster")
        found = replace(selection, kept=kept, form=form, refused={**selection.refused, **lost}, host=host)
        fast = self._measure(found, is_clearly_faster)
        return None if fast is None or fast.speedup < max(least, measured.speedup) else (found, fast)

    def _select_for_host(
        self, host: Host, form: PlanForm, selection: Selection, current: ExecutionPlan
    ) -> tuple[int, ...] | None:
        winners = [n for n, part in enumerate(self.parts) if part.kept]
        return select_host(
            self.baseline,
            current,
            partial(self._plan, form, host=host),
            self._groups_by_gain(winners),
            selection.kept,
            min(HOST_SELECTION_SECONDS, self._seconds_left()),
            exact=self._exact,
        )

    @cached_property
    def _key(self) -> tuple[object, ...]:
        candidates = [repr(p.derivation.end) if p.derivation else "" for p in self.parts]
        return *self._model_key, *candidates

    @property
    def _model_key(self) -> tuple[object, ...]:
        return self.digest, replace(self.assembler.settings, seconds=0.0)

    def _find_remembered(self) -> Selection | None:
        """Return the selection of an earlier run that had at least half of the time."""
        found = self.history.get("selection", *self._key)
        if found is None or as_number(as_object(found)["seconds"]) < selection_seconds(self.budget) / 2:
            return None
        return Selection.from_json(found)
