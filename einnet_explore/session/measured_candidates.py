r"""Measurements of candidates in turn with their original: seconds, errors, and the position under the roofline,

.. math::  t \ge \max\left(\frac{\text{FLOPs}}{\text{peak}}, \frac{\text{bytes}}{\text{bandwidth}}\right)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median, quantiles
from typing import Any

from einnet_explore.analysis.equations import weight_only
from einnet_explore.cost import program_seconds
from einnet_explore.cost.counted_work import Work, work
from einnet_explore.ir import VIEW, Program
from einnet_explore.support.wording import count_noun, format_seconds
from einnet_explore.viz.figure import Figure, figure_from_picture
from einnet_explore.viz.pictures import Picture, Polyline, Rectangle, Shape, ShapeStyle, TextLine, text_width
from einnet_explore.viz.tables import ResultTable, TextTable

SMALLEST, LARGEST = 1 << 18, 1 << 28
"""Bytes between which the triad's working set is chosen: less is all overhead, more is all memory anyway."""


@dataclass(frozen=True, slots=True)
class Roof:
    """At most so many floating-point operations a second, and bytes a second of a working set of this size."""

    flops: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Position:
    """FLOP/s and bytes/s reached, each as a *part* of its ceiling too; *bound* is the ceiling that is nearer."""

    flops: float
    bandwidth: float
    flops_part: float
    bandwidth_part: float

    @property
    def bound(self) -> str:
        """``flops`` or ``bytes``."""
        return "flops" if self.flops_part > self.bandwidth_part else "bytes"

    @property
    def part(self) -> float:
        """The time that the nearer ceiling allows, over the time taken."""
        return max(self.flops_part, self.bandwidth_part)

    def __str__(self) -> str:
        return (
            f"{self.part:.0%} of the roof ({self.bound}): {self.flops / 1e9:.3g} GFLOP/s ({self.flops_part:.0%}), "
            f"{self.bandwidth / 1e9:.3g} GB/s ({self.bandwidth_part:.0%})"
        )


def program_work(program: Program) -> Work:
    """The work of a run of *program*: views do nothing, equations on weights alone are computed before."""
    constant = weight_only(program)
    run = [
        work(e.scope)
        for e in program.equations
        if e.name not in constant and not (e.via is not None and e.via.operator == VIEW)
    ]
    return Work(sum(w.flops for w in run), sum(w.read_bytes for w in run), sum(w.written_bytes for w in run))


def position(done: Work, seconds: float, roof: Roof) -> Position:
    """The position under *roof* of a program that does *done* in *seconds*; raises ValueError for no time."""
    if not seconds > 0:
        raise ValueError(f"{seconds} s: expected a positive number of seconds")
    flops, bandwidth = done.flops / seconds, done.nbytes / seconds
    return Position(flops, bandwidth, flops / roof.flops, bandwidth / roof.bandwidth)


@lru_cache(64)
def cpu_roof(threads: int, nbytes: int) -> Roof:
    """The ceilings of this CPU for a working set of *nbytes*, measured now: about half a second."""
    from einnet_explore.runtime.device_profile import peak_flops, stream_bandwidth

    return Roof(peak_flops(threads), stream_bandwidth(threads, nbytes))


def working_set(nbytes: int) -> int:
    """*nbytes* as a power of two within bounds, so that few ceilings are measured."""
    return min(LARGEST, max(SMALLEST, 1 << max(0, nbytes - 1).bit_length()))


ROUNDS_PER_UPDATE = 3
"""Rounds between two looks at the results."""

BAR, ROW, TEXT = 320.0, 24.0, 12.0


@dataclass(frozen=True)
class CandidateMeasurements:
    """What is known so far of *programs* by name, the first of which is what the others are compared with.

    *samples* are seconds a call, one a round; *errors* the largest difference of the outputs from the first program's,
    relative to the largest output; *failures* say why a program did not run.  *stage* is what is being done now.  For a
    *device* whose profile was recorded elsewhere nothing is run: *hows* says how each program's one time was found.
    """

    programs: Mapping[str, Program]
    threads: int
    rounds: int = 0
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    stage: str = ""
    device: str = ""
    library: str = ""
    roofs: Mapping[str, Roof] = field(default_factory=dict)
    hows: Mapping[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float | None:
        """Seconds of the program called *name*; None where it was not measured."""
        return median(self.samples[name]) if self.samples.get(name) else None

    def iqr(self, name: str) -> float:
        """The distance between the quartiles of its samples."""
        held = self.samples.get(name, ())
        if len(held) < 2:
            return 0.0
        low, _, high = quantiles(held, n=4)
        return high - low

    def speedup(self, name: str) -> float | None:
        """How many times as fast as the first program it is: the median over the rounds; None where one is missing."""
        base = self.samples.get(next(iter(self.programs)), ())
        pairs = list(zip(base, self.samples.get(name, ()), strict=False))
        return median(a / b for a, b in pairs) if pairs else None

    def position(self, name: str) -> Position | None:
        """Where the program stands under its roofline; None where it was not measured or no ceiling is known."""
        middle, roof = self.median(name), self.roofs.get(name)
        return None if middle is None or roof is None else position(program_work(self.programs[name]), middle, roof)

    @property
    def caption(self) -> str:
        """How and where it was measured."""
        threads = count_noun(self.threads, "thread")
        how = "as recorded, not run here" if self.hows else f"{count_noun(self.rounds, 'interleaved round')}, {threads}"
        return ", ".join(filter(None, (how, self.device, self.library)))

    def sheet(self) -> ResultTable:
        """One row a program, with every figure."""
        rows = []
        for name, p in self.programs.items():
            at = self.position(name)
            rows.append(
                (
                    *(name, program_seconds(p)[0], self.median(name), self.iqr(name), self.speedup(name)),
                    self.errors.get(name),
                    *((at.flops, at.bandwidth, at.part, at.bound) if at else (None, None, None, None)),
                    *(self.hows.get(name, "measured"), self.failures.get(name, "")),
                )
            )
        head = (
            *("program", "estimated_seconds", "seconds", "iqr", "speedup", "max_rel_error"),
            *("flops_per_second", "bytes_per_second", "part_of_roof", "bound", "how", "failure"),
        )
        return ResultTable("bench", "Measured candidates", head, tuple(rows), self.caption)

    def table(self) -> TextTable:
        """The same for reading."""
        rows = tuple(
            (
                name,
                format_seconds(program_seconds(p)[0]),
                self.failures.get(name) or _time_text(self.median(name), self.iqr(name), self.hows.get(name)),
                "" if self.speedup(name) is None else f"{self.speedup(name):.2f}×",
                f"{self.errors[name]:.1e}" if name in self.errors else "",
                str(self.position(name) or ""),
            )
            for name, p in self.programs.items()
        )
        return TextTable(
            ("program", "estimated", "measured ± IQR", "speed-up", "max |err|", "roofline"), rows, self.caption
        )

    def plot(self) -> Figure:
        """A bar a program, its quartiles as a line."""
        names = [name for name in self.programs if self.samples.get(name)]
        left = max((text_width(name, TEXT) for name in names), default=0.0) + 16
        slowest = max((max(self.samples[name]) for name in names), default=1.0)
        high = ROW * len(names) + 34
        shapes: list[Shape] = []
        for n, name in enumerate(names):
            y, middle, half = 8 + ROW * n, self.median(name) or 0.0, self.iqr(name) / 2
            end = left + BAR * middle / slowest
            lo, hi = (left + BAR * max(0.0, middle + d) / slowest for d in (-half, half))
            shapes += [
                TextLine(left - 8, y + 14, name, TEXT, "end"),
                Rectangle(left, y + 3, end - left, 14, ShapeStyle("#2e6da4")),
                Polyline(((lo, y + 10), (hi, y + 10)), ShapeStyle(stroke="#000000")),
                TextLine(hi + 6, y + 14, format_seconds(middle), 11),
            ]
        shapes.append(TextLine(8, high - 8, self.table().caption, 11))
        return figure_from_picture(Picture(left + BAR + 100, high, tuple(shapes)), repr(self.table()))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {**self.table()._repr_mimebundle_(), "image/svg+xml": self.plot().svg}


def arrays(program: Program, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random inputs and weights of *program*."""
    import numpy as np

    random = np.random.default_rng(seed)
    made = {t.name: random.standard_normal(t.shape, dtype=np.float32) for t in program.inputs}
    weights = {t.name for t in program.inputs if t.weight}
    return {n: a for n, a in made.items() if n not in weights}, {n: a for n, a in made.items() if n in weights}


def _time_text(middle: float | None, iqr: float, how: str | None) -> str:
    if middle is None:
        return ""
    return f"{format_seconds(middle)}, {how}" if how else f"{format_seconds(middle)} ± {format_seconds(iqr)}"
