"""Candidates compiled and measured on a device, in turn with their original, until the reader has seen enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from einnet_explore.cost import program_seconds
from einnet_explore.explore.bench_devices import check
from einnet_explore.explore.figure import Figure, of_picture
from einnet_explore.explore.picture import Box, Look, Outline, Picture, Shape, Words
from einnet_explore.explore.roofline import Position, Roof, cpu_roof, position, program_work, working_set
from einnet_explore.explore.sheet import Sheet
from einnet_explore.explore.svg import width_of
from einnet_explore.explore.tables import Table, seconds
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
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        how = "as recorded, not run here" if self.hows else f"{self.rounds} interleaved rounds, {threads}"
        return ", ".join(filter(None, (how, self.device, self.library)))

    def sheet(self) -> Sheet:
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
        return Sheet("bench", "Measured candidates", head, tuple(rows), self.caption)

    def table(self) -> Table:
        """The same for reading."""
        rows = tuple(
            (
                name,
                seconds(program_seconds(p)[0]),
                self.failures.get(name) or _measured(self.median(name), self.iqr(name), self.hows.get(name)),
                "" if self.speedup(name) is None else f"{self.speedup(name):.2f}×",
                f"{self.errors[name]:.1e}" if name in self.errors else "",
                str(self.position(name) or ""),
            )
            for name, p in self.programs.items()
        )
        return Table(
            ("program", "estimated", "measured ± IQR", "speed-up", "max |err|", "roofline"), rows, self.caption
        )

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


def bench(
    programs: Mapping[str, Program], rounds: int = 15, threads: int = 1, seed: int = 0, device: str = "cpu"
) -> Iterable[Benched]:
    """Compile and time *programs* in interleaved rounds, all on the same random inputs; yields what is known so far.

    Weights are constants.  The programs must have the same inputs and outputs.  The *device* is ``cpu``, ``cuda``, or
    ``profile:FILE``, where nothing is run and the times are those that were recorded.  Raises ValueError for no
    program, for no rounds, for a device that is not there, and where the first program does not run.
    """
    if not programs:
        raise ValueError("no programs to measure, expected at least one")
    if rounds < 1:
        raise ValueError(f"rounds {rounds}: expected at least 1")
    check(device)
    if device == "cpu":
        return _on_cpu(programs, rounds, threads, seed)
    if device == "cuda":
        from einnet_explore.explore.bench_gpu import on_gpu

        return on_gpu(programs, rounds, seed)
    return _recorded(programs, device)


def _on_cpu(programs: Mapping[str, Program], rounds: int, threads: int, seed: int) -> Iterable[Benched]:
    from einnet_explore.backends.errors import BackendError
    from einnet_explore.backends.measure import compare
    from einnet_explore.backends.store import device, libraries
    from einnet_explore.graph.contest import largest_error

    first = next(iter(programs))
    feeds, constants = arrays(programs[first], seed)
    compiled: dict[str, CompiledProgram] = {}
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}
    roofs: dict[str, Roof] = {}
    want: dict[str, Any] = {}
    known = Benched(programs, threads, errors=errors, failures=failures, device=device(), library=libraries())
    for n, (name, program) in enumerate(programs.items(), 1):
        yield replace(known, errors=dict(errors), stage=f"compiling {name}, {n} of {len(programs)}")
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
    for name in compiled:
        yield replace(known, stage="measuring the device's ceilings")
        roofs[name] = cpu_roof(threads, working_set(program_work(programs[name]).nbytes))
    samples: dict[str, tuple[float, ...]] = dict.fromkeys(compiled, ())
    done = 0
    while done < rounds:
        some = min(TOGETHER, rounds - done)
        timings = compare({n: c.execute for n, c in compiled.items()}, rounds=some, min_seconds=0.0)
        samples = {name: (*samples[name], *timings[name].samples) for name in compiled}
        done += some
        yield replace(known, rounds=done, samples=samples, roofs=roofs, stage=f"{done} of {rounds} rounds")


def _recorded(programs: Mapping[str, Program], device: str) -> Iterable[Benched]:
    from einnet_explore.graph.devices import model_for

    model = model_for(device)
    found = {name: model.program_cost(program) for name, program in programs.items()}
    roofs = {
        name: Roof(model.device.peak_flops, model.device.bandwidth(program_work(program).nbytes))
        for name, program in programs.items()
    }
    hows = {name: "recorded" if cost.how == "measured" else f"estimated ({cost.how})" for name, cost in found.items()}
    samples = {name: (cost.seconds,) for name, cost in found.items()}
    yield Benched(
        programs, model.device.threads, 1, samples, stage="", device=model.device.name, roofs=roofs, hows=hows
    )


def _compiled(program: Program, threads: int, constants: Mapping[str, Any]) -> CompiledProgram:
    from einnet_explore.backends.epilogues import compile_measured
    from einnet_explore.backends.profiles import ProfileStore

    known = {t.name: constants[t.name] for t in program.inputs if t.weight}
    return compile_measured(program, threads, known, ProfileStore())


def arrays(program: Program, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random inputs and weights of *program*."""
    import numpy as np

    random = np.random.default_rng(seed)
    made = {t.name: random.standard_normal(t.shape, dtype=np.float32) for t in program.inputs}
    weights = {t.name for t in program.inputs if t.weight}
    return {n: a for n, a in made.items() if n not in weights}, {n: a for n, a in made.items() if n in weights}


def _measured(middle: float | None, iqr: float, how: str | None) -> str:
    if middle is None:
        return ""
    return f"{seconds(middle)}, {how}" if how else f"{seconds(middle)} ± {seconds(iqr)}"
