"""Candidates compiled and measured on this device, in turn with their original, until the reader has seen enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from einnet_explore.cost import program_seconds
from einnet_explore.explore.figure import Figure, of_picture
from einnet_explore.explore.picture import Box, Look, Outline, Picture, Shape, Words
from einnet_explore.explore.sheet import Sheet
from einnet_explore.explore.svg import width_of
from einnet_explore.explore.views import Table, seconds
from einnet_explore.ir import Program

if TYPE_CHECKING:
    from einnet_explore.backends.program import CompiledProgram

TOGETHER = 3
"""Rounds between two looks at the results."""

BAR, ROW, TEXT = 320.0, 24.0, 12.0


@dataclass(frozen=True)
class Benched:
    """What is known so far of *programs* by name, the first of which is what the others are compared with.

    *samples* are seconds a call, one a round; *errors* the largest difference of the outputs from the first program's,
    relative to the largest output; *failures* say why a program did not run.
    """

    programs: Mapping[str, Program]
    threads: int
    rounds: int = 0
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)

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

    def sheet(self) -> Sheet:
        """One row a program, with every figure."""
        rows = tuple(
            (name, program_seconds(p)[0], self.median(name), self.iqr(name), self.speedup(name), self.errors.get(name),
             self.failures.get(name, ""))
            for name, p in self.programs.items()
        )  # fmt: skip
        head = ("program", "estimated_seconds", "seconds", "iqr", "speedup", "max_rel_error", "failure")
        return Sheet("bench", "Measured candidates", head, rows, f"{self.rounds} interleaved rounds")

    def table(self) -> Table:
        """The same for reading."""
        rows = tuple(
            (
                name,
                seconds(program_seconds(p)[0]),
                self.failures.get(name) or _measured(self.median(name), self.iqr(name)),
                "" if self.speedup(name) is None else f"{self.speedup(name):.2f}×",
                f"{self.errors[name]:.1e}" if name in self.errors else "",
            )
            for name, p in self.programs.items()
        )
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        caption = f"{self.rounds} interleaved rounds, {threads}"
        return Table(("program", "estimated", "measured ± IQR", "speed-up", "max |err|"), rows, caption)

    def plot(self) -> Figure:
        """A bar a program, its quartiles as a line."""
        names = [name for name in self.programs if self.samples.get(name)]
        left = max((width_of(name, TEXT) for name in names), default=0.0) + 16
        slowest = max((max(self.samples[name]) for name in names), default=1.0)
        high = ROW * len(names) + 34
        shapes: list[Shape] = []
        for n, name in enumerate(names):
            y, middle, half = 8 + ROW * n, self.median(name) or 0.0, self.iqr(name) / 2
            end = left + BAR * middle / slowest
            lo, hi = (left + BAR * max(0.0, middle + d) / slowest for d in (-half, half))
            shapes += [
                Words(left - 8, y + 14, name, TEXT, "end"),
                Box(left, y + 3, end - left, 14, Look("#2e6da4")),
                Outline(((lo, y + 10), (hi, y + 10)), Look(stroke="#000000")),
                Words(hi + 6, y + 14, seconds(middle), 11),
            ]
        shapes.append(Words(8, high - 8, self.table().caption, 11))
        return of_picture(Picture(left + BAR + 100, high, tuple(shapes)), repr(self.table()))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {**self.table()._repr_mimebundle_(), "image/svg+xml": self.plot().svg}


def bench(programs: Mapping[str, Program], rounds: int = 15, threads: int = 1, seed: int = 0) -> Iterable[Benched]:
    """Compile and time *programs* in interleaved rounds, all on the same random inputs; yields what is known so far.

    Weights are constants.  The programs must have the same inputs and outputs.  Raises ValueError for no program, for
    no rounds, and where the first program does not run.
    """
    if not programs:
        raise ValueError("no programs to measure, expected at least one")
    if rounds < 1:
        raise ValueError(f"rounds {rounds}: expected at least 1")
    from einnet_explore.backends.errors import BackendError
    from einnet_explore.backends.measure import compare
    from einnet_explore.graph.contest import largest_error

    first = next(iter(programs))
    feeds, constants = _arrays(programs[first], seed)
    compiled: dict[str, CompiledProgram] = {}
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}
    want: dict[str, Any] = {}
    for name, program in programs.items():
        try:
            compiled[name] = _compiled(program, threads, constants)
            got = compiled[name].run(feeds)
        except BackendError as error:
            if name == first:
                raise ValueError(f"{name}: {error}") from None
            compiled.pop(name, None)
            failures[name] = str(error)
            continue
        want = want or got
        errors[name] = largest_error(want, got)
        yield Benched(programs, threads, 0, {}, dict(errors), dict(failures))
    samples: dict[str, tuple[float, ...]] = dict.fromkeys(compiled, ())
    done = 0
    while done < rounds:
        some = min(TOGETHER, rounds - done)
        timings = compare({n: c.execute for n, c in compiled.items()}, rounds=some, min_seconds=0.0)
        samples = {name: (*samples[name], *timings[name].samples) for name in compiled}
        done += some
        yield Benched(programs, threads, done, samples, errors, failures)


def _compiled(program: Program, threads: int, constants: Mapping[str, Any]) -> CompiledProgram:
    from einnet_explore.backends.epilogues import compile_measured
    from einnet_explore.backends.profiles import ProfileStore

    known = {t.name: constants[t.name] for t in program.inputs if t.weight}
    return compile_measured(program, threads, known, ProfileStore())


def _arrays(program: Program, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random inputs and weights of *program*."""
    import numpy as np

    random = np.random.default_rng(seed)
    made = {t.name: random.standard_normal(t.shape, dtype=np.float32) for t in program.inputs}
    weights = {t.name for t in program.inputs if t.weight}
    return {n: a for n, a in made.items() if n not in weights}, {n: a for n, a in made.items() if n in weights}


def _measured(middle: float | None, iqr: float) -> str:
    return "" if middle is None else f"{seconds(middle)} ± {seconds(iqr)}"
