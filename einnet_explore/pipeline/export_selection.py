"""Selection for export: the derivations in the file of standard operators, so that the file is not slower either.

A derivation may gain by kernels that ONNX Runtime does not have: in standard operators an overlap-add is a ``Pad`` and
a sum of many slices.  The file holds all kept derivations if it is then faster than the original in ONNX Runtime, else
those that are faster there, else none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from einnet_explore.pipeline.assembly import PlanForm
from einnet_explore.pipeline.baseline import Baseline
from einnet_explore.pipeline.forward_selection import PlanMaker, forward_selection
from einnet_explore.pipeline.plan_timing import conservative_speedup, time_against_original
from einnet_explore.support.wording import count_noun

EXPORT_SELECTION_SECONDS = 30.0
"""Seconds of forward selection in the file: most of the gain is in the plan."""

MIN_EXPORT_SPEEDUP = 1.0
"""Speedup that the file needs in ONNX Runtime: it must not be slower than the original."""

MEASURED_IN_ONNXRUNTIME = "measured beside the original in ONNX Runtime"


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """The file: its *speedup* in ONNX Runtime (None: not measured), and *why*.

    *parts* are the numbers of the derived subprograms in it, assembled in *form*.
    """

    speedup: float | None
    why: str
    parts: tuple[int, ...] = ()
    form: PlanForm = PlanForm.EXPORTED

    def lacks(self, kept: int) -> str:
        """Say that the file is slower or lacks some of the *kept* derivations; empty if neither."""
        if self.speedup is None:
            return f"its speed in ONNX Runtime is not known ({self.why})"
        if len(self.parts) < kept:
            return (
                f"it holds {len(self.parts)} of {count_noun(kept, 'derivation')} and runs at {self.speedup:.2f} of the "
                "original's speed in ONNX Runtime: what else was gained needs our plan"
            )
        return (
            "" if self.speedup >= 1 else f"in ONNX Runtime alone it runs at {self.speedup:.2f} of the original's speed"
        )


ORIGINAL_EXPORT = ExportSelection(1.0, "nothing is kept: it is the original")
"""The file if no derivation is kept."""

UNMEASURED_EXPORT = ExportSelection(None, "it was not measured")


def select_for_export(
    baseline: Baseline,
    plan_of: PlanMaker,
    groups: Sequence[Sequence[int]],
    whole: ExportSelection,
    seconds: float = EXPORT_SELECTION_SECONDS,
    clock: Callable[[], float] = perf_counter,
) -> ExportSelection:
    """Select the derivations for the file; *plan_of* runs a file with some of them.

    *groups* are the kept derivations, most gain first; *whole* is the file with all of them, if it was measured.
    Raises KeyboardInterrupt.
    """
    if whole.speedup is not None and whole.speedup >= MIN_EXPORT_SPEEDUP:
        return replace(whole, why=MEASURED_IN_ONNXRUNTIME)
    found = forward_selection(baseline, plan_of, groups, (), seconds, clock)
    if found.interrupted:
        raise KeyboardInterrupt
    if found.kept:
        timings = time_against_original(baseline.original, found.plan, baseline.feeds, baseline.seconds)
        speedup = conservative_speedup(timings)
        if speedup >= MIN_EXPORT_SPEEDUP:
            return ExportSelection(speedup, MEASURED_IN_ONNXRUNTIME, tuple(found.kept))
    lost = whole.why
    if whole.speedup is not None:
        lost = f"it runs at {whole.speedup:.2f} of the original's speed there"
    return ExportSelection(1.0, f"none of what is kept pays in ONNX Runtime alone ({lost}): it is the original")
