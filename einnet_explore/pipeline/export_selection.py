"""Which of the derivations that a plan keeps are in the file of standard operators, so that it is not slower either.

What gains in the plan may gain by kernels that ONNX Runtime does not have: written in its operators, an overlap-add
is a ``Pad`` and a sum of many slices.  The file is a candidate like any other: all that is kept where that is faster
than the original in ONNX Runtime, else the parts that are, else the original.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.whole_model import conservative_speedup, forward_selection, time_against_original
from einnet_explore.runtime.outputs import Arrays
from einnet_explore.support.wording import counted

EXPORTED_FORM = "exported"
"""The form of a plan (``result.FORMS``) that is the file."""

EXPORT_SELECTION_SECONDS = 30.0
"""Seconds of trying parts in the file, as ``whole.TRYING``: the plan is what most is gained by."""

MIN_EXPORT_SPEEDUP = 1.0
"""How fast the file has to be in ONNX Runtime, by the same measure as all else: not slower than the original."""

MEASURED_IN_ONNXRUNTIME = "measured beside the original in ONNX Runtime"


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """The file: how many times faster than the original ONNX Runtime runs it (None: it was not measured), and *why*.

    *parts* are the numbers of the subprograms that are derived in it, in this *form*.
    """

    speedup: float | None
    why: str
    parts: tuple[int, ...] = ()
    form: str = EXPORTED_FORM

    def lacks(self, kept: int) -> str:
        """What to say of a file that is slower or lacks some of the *kept* derivations; else empty."""
        if self.speedup is None:
            return f"its speed in ONNX Runtime is not known ({self.why})"
        if len(self.parts) < kept:
            return (
                f"it holds {len(self.parts)} of {counted(kept, 'derivation')} and runs at {self.speedup:.2f} of the "
                "original's speed in ONNX Runtime: what else was gained needs our plan"
            )
        return (
            "" if self.speedup >= 1 else f"in ONNX Runtime alone it runs at {self.speedup:.2f} of the original's speed"
        )


ORIGINAL_EXPORT = ExportSelection(1.0, "nothing is kept: it is the original")
"""What there is to say where nothing is kept."""

UNMEASURED_EXPORT = ExportSelection(None, "it was not measured")


def select_for_export(
    kept: Sequence[int],
    ratios: Mapping[str, float],
    why: str,
    groups: Sequence[Sequence[int]],
    gains: Mapping[int, float],
    original: ExecutionPlan,
    plan_of: Callable[[list[int]], ExecutionPlan],
    feeds: Arrays,
    seconds: float,
    want: Arrays | None = None,
    clock: Callable[[], float] = perf_counter,
    trying: float = EXPORT_SELECTION_SECONDS,
) -> ExportSelection:
    """The file for the parts *kept*.

    *ratios* says how many times faster than the original the forms are that were measured, *why* the file with all of
    them was not.  Other arguments are those of ``select``; *plan_of* runs the file.  Raises KeyboardInterrupt.
    """
    everything = ratios.get(EXPORTED_FORM)
    if everything is not None and everything >= MIN_EXPORT_SPEEDUP:
        return ExportSelection(everything, MEASURED_IN_ONNXRUNTIME, tuple(kept))
    found = forward_selection(groups, gains, original, plan_of, feeds, seconds, (), want, clock, trying)
    if found.stopped:
        raise KeyboardInterrupt
    ratio = conservative_speedup(time_against_original(original, found.plan, feeds, seconds)) if found.kept else 0.0
    if found.kept and ratio >= MIN_EXPORT_SPEEDUP:
        return ExportSelection(ratio, MEASURED_IN_ONNXRUNTIME, tuple(found.kept))
    lost = why if everything is None else f"it runs at {everything:.2f} of the original's speed there"
    return ExportSelection(1.0, f"none of what is kept pays in ONNX Runtime alone ({lost}): it is the original")
