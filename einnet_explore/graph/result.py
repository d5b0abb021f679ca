"""What stands when the contests are over: which winners pay in the whole model, in which form, and what that gives.

What won alone need not win in the whole, where it breaks ONNX Runtime's own fusions and layouts: equal subprograms are
taken in together, most gain first, and stay if the whole model then runs faster and agrees.  The forms are: adjacent
parts joined and post-optimised; each part as it won; and either of them exported, in one session of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from einnet_explore.algebra.equations import weight_only
from einnet_explore.backends.measure import SETTLE, Timing, compare, times_faster
from einnet_explore.graph.assembled import Assembled
from einnet_explore.graph.assembling import Assembler
from einnet_explore.graph.contest import AGREEMENT, Arrays, Settings, largest_error
from einnet_explore.graph.filed import FORM, MEASURED, ORIGINAL, filed
from einnet_explore.graph.joining import Piece
from einnet_explore.graph.judging import fusions
from einnet_explore.graph.optimised import Exported, Optimised
from einnet_explore.graph.part import Part
from einnet_explore.graph.reading.model import Model
from einnet_explore.graph.remembered import Memory
from einnet_explore.graph.running.alone import beside_alone
from einnet_explore.graph.running.plan import Plan
from einnet_explore.graph.whole import TRIALS, WORTH, least_gain, rounds_for, select, timed

FORMS: Mapping[str, tuple[str, ...]] = {
    "plan": ("joined", "apart", "exported"),
    "onnxruntime": ("exported", "exported apart"),
}
"""The forms that a plan may have, by runtime; the first is the one that few parts are tried in."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The numbers of the parts kept, the form of the plan, why other winners are not kept, and what is exported."""

    kept: tuple[int, ...]
    form: str
    refused: Mapping[int, str]
    exported: Exported


@dataclass
class Result:
    """Making the result of one model from what its contests gave."""

    model: Model
    settings: Settings
    original: Plan
    feeds: dict[str, Any]
    seconds: float
    assembler: Assembler
    memory: Memory
    parts: Sequence[Part]
    signatures: Sequence[str]
    pieces: Callable[[Iterable[int]], list[Piece]]

    def optimised(self) -> Optimised:
        """The plan, measured and checked against ONNX Runtime."""
        chosen = self._remembered() or self._selected()
        found = self._held(chosen)
        if found is None:
            chosen = self._selected()
            found = self._held(chosen) or self._nothing(chosen)
        chosen, plan, timings, errors = found
        assembled = self._assembled(chosen.kept, chosen.form)
        kept = set(chosen.kept)
        parts = tuple(
            replace(part, kept=n in kept, why=part.why if n in kept else chosen.refused.get(n, part.why))
            for n, part in enumerate(self.parts)
        )
        derivations = [*(p.derivation for p in parts if p.kept), *(a.derivation for a in assembled)]
        return Optimised(
            self.model,
            plan,
            self.original,
            parts,
            self.assembler.replacements(self._assembled(chosen.exported.parts, chosen.exported.form)),
            (),
            timings,
            errors,
            0.0,
            sum(len(weight_only(a.piece.program)) for a in assembled),
            sum(fusions(d) for d in derivations if d is not None),
            self.settings.threads,
            form=chosen.form if kept else "original",
            programs=assembled,
            exported=chosen.exported,
            feeds=self.feeds,
            groups=self._groups(chosen.kept),
            plan_of=lambda numbers: self._plan(numbers, chosen.form),
        )

    def _assembled(self, kept: Iterable[int], form: str) -> tuple[Assembled, ...]:
        pieces = self.pieces(kept)
        return self.assembler.apart(pieces) if form.endswith("apart") else self.assembler.together(pieces)

    def _plan(self, kept: Iterable[int], form: str) -> Plan:
        numbers = tuple(kept)
        if not numbers:
            return self.original
        parts = self._assembled(numbers, form)
        return self.assembler.export(parts) if form.startswith("exported") else self.assembler.plan(parts)

    def _groups(self, numbers: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Equal parts among *numbers*."""
        found: dict[str, tuple[int, ...]] = {}
        for n in numbers:
            found[self.signatures[n]] = (*found.get(self.signatures[n], ()), n)
        return tuple(found.values())

    def _selected(self) -> Selection:
        """What pays in the whole model, by measurement."""
        forms = FORMS[self.settings.runtime]
        winners = [n for n, part in enumerate(self.parts) if part.kept]
        near = [n for n, p in enumerate(self.parts) if not p.kept and p.outcome.contender and p.certificate != "false"]
        gains = {n: part.gain for n, part in enumerate(self.parts)}
        groups = self._groups(winners)
        # What is joined is made anew for every trial: where there are many parts they are tried as they won.
        tried = forms[0] if len(groups) <= TRIALS else next((f for f in forms if f.endswith("apart")), forms[0])
        kept, _, refused = select(
            groups,
            gains,
            self.original,
            lambda numbers: self._plan(numbers, tried),
            self.feeds,
            self.seconds,
            self._groups(near),
        )
        found = self._in_form(tuple(kept), refused)
        self.memory.put(_told(found), "selection", *self._key)
        return found

    def _in_form(self, kept: tuple[int, ...], refused: Mapping[int, str]) -> Selection:
        """*kept* in the form that is the fastest by measurement, and how fast the exported model is."""
        forms = FORMS[self.settings.runtime]
        if not kept:
            return Selection((), forms[0], refused, ORIGINAL)
        want = self.original.run(self.feeds)
        plans = {"before": self.original}
        whys: dict[str, str] = {}
        for form in forms:
            if form.endswith("apart") and len(self._assembled(kept, forms[0])) == len(kept):
                continue  # nothing was joined
            try:
                plan = self._plan(kept, form)
                error = largest_error(want, plan.run(self.feeds))
            except ValueError as problem:
                whys[form] = str(problem)
                continue
            if error <= AGREEMENT:
                plans[form] = plan
            else:
                whys[form] = f"it differs by {error:.1e} of its largest output"
        calls = {name: _call(plan, self.feeds) for name, plan in plans.items()}
        settle = SETTLE if self.settings.threads > 1 else 0
        times = compare(calls, rounds=rounds_for(self.seconds, 11), min_seconds=0.3, settle=settle)
        ratios = {name: times_faster(times["before"], timing) for name, timing in times.items() if name != "before"}
        # The first form is what the parts were chosen in: another one has to be faster by more than noise.
        first = ratios.get(forms[0], 0.0)
        best = max(ratios, key=lambda name: ratios[name], default=forms[0])
        form = best if ratios.get(best, 0.0) > WORTH * first else forms[0]
        return Selection(kept, form, refused, self._exported(kept, form, ratios, whys))

    def _exported(
        self, kept: tuple[int, ...], form: str, ratios: Mapping[str, float], whys: Mapping[str, str]
    ) -> Exported:
        """What is written to a file."""
        why = f"it is not run: {whys.get(FORM, 'no form of it was tried')}"
        if form.startswith(FORM) and form in ratios:
            return Exported(ratios[form], MEASURED, kept, form)
        if FORM not in FORMS[self.settings.runtime]:
            return Exported(None, why, kept)
        gains = {n: part.gain for n, part in enumerate(self.parts)}
        return filed(
            kept,
            ratios,
            why,
            self._groups(kept),
            gains,
            self.original,
            lambda numbers: self._plan(numbers, FORM),
            self.feeds,
            self.seconds,
        )

    def _held(self, chosen: Selection) -> tuple[Selection, Plan, Mapping[str, Timing], tuple[float, float]] | None:
        """The plan of *chosen* beside the original; None where it does not agree, or is not faster after all."""
        want = self.original.run(self.feeds)
        try:
            plan = self._plan(chosen.kept, chosen.form)
            got = plan.run(self.feeds) if chosen.kept else want
        except ValueError:
            return None
        errors = _errors(want, got)
        if errors[1] > AGREEMENT:
            return None
        timings = self._timings(plan)
        if chosen.kept and least_gain(timings) < WORTH:
            return None
        return chosen, plan, timings, errors

    def _timings(self, plan: Plan) -> Mapping[str, Timing]:
        """The original and *plan* in turns; with several threads each has a process of its own."""
        if plan is not self.original and self.settings.threads > 1:
            rounds = rounds_for(self.seconds, 21)
            apart = beside_alone(self.model.original, plan, self.feeds, rounds)
            if apart is not None:
                return apart
        return timed(self.original, plan, self.feeds, self.seconds)

    def _nothing(self, chosen: Selection) -> tuple[Selection, Plan, Mapping[str, Timing], tuple[float, float]]:
        """The original, since *chosen* does not hold what it promised."""
        why = "with it the whole model is not faster by more than noise"
        refused = {**chosen.refused, **dict.fromkeys(chosen.kept, why)}
        nothing = Selection((), chosen.form, refused, ORIGINAL)
        self.memory.put(_told(nothing), "selection", *self._key)
        return nothing, self.original, timed(self.original, self.original, self.feeds, self.seconds), (0.0, 0.0)

    @cached_property
    def _key(self) -> tuple[object, ...]:
        candidates = [repr(p.derivation.end) if p.derivation else "" for p in self.parts]
        return self.model.digest(), replace(self.settings, seconds=0.0), *candidates

    def _remembered(self) -> Selection | None:
        found = self.memory.get("selection", *self._key)
        if found is None:
            return None
        refused = {int(n): why for n, why in found["refused"].items()}
        speedup, why, parts, form = found["exported"]
        return Selection(tuple(found["kept"]), found["form"], refused, Exported(speedup, why, tuple(parts), form))


def _told(chosen: Selection) -> dict[str, Any]:
    exported = [chosen.exported.speedup, chosen.exported.why, chosen.exported.parts, chosen.exported.form]
    return {"kept": chosen.kept, "form": chosen.form, "refused": dict(chosen.refused), "exported": exported}


def _errors(want: Arrays, got: Arrays) -> tuple[float, float]:
    absolute = max((float(np.max(np.abs(want[k] - got[k]), initial=0)) for k in want), default=0.0)
    return absolute, largest_error(want, got)


def _call(plan: Plan, feeds: dict[str, Any]) -> Callable[[], object]:
    return lambda: plan.run(feeds)
