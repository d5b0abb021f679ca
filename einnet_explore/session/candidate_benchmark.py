r"""Measurements of candidates in turn with their original, on this CPU, an NVIDIA GPU, or from a recorded profile.

They give seconds, errors, and the position under the roofline,

.. math::  t \ge \max\left(\frac{\text{FLOPs}}{\text{peak}}, \frac{\text{bytes}}{\text{bandwidth}}\right)

On the GPU each candidate is one CUDA graph, timed by events over copies in rotation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median, quantiles
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from einnet_explore.analysis.equations import weight_only
from einnet_explore.cost import program_seconds
from einnet_explore.cost.model import Work, work
from einnet_explore.ir import ELEMENT_TYPES, VIEW, Program, Tensor
from einnet_explore.support.errors import BackendError
from einnet_explore.support.wording import count_noun, format_seconds
from einnet_explore.viz.figure import (
    Figure,
    Picture,
    Polyline,
    Rectangle,
    Shape,
    ShapeStyle,
    TextLine,
    figure_from_picture,
    text_width,
)
from einnet_explore.viz.tables import DisplayedAsTable, ResultTable, TextTable

if TYPE_CHECKING:
    import numpy as np

    from einnet_explore.runtime.arrays import Array, Arrays
    from einnet_explore.runtime.program import CompiledProgram

R = TypeVar("R")

MIN_TRIAD_BYTES, MAX_TRIAD_BYTES = 1 << 18, 1 << 28
"""Bytes of the triad's working set: smaller sets measure overhead only, larger ones main memory like the largest."""


@dataclass(frozen=True, slots=True)
class Roof:
    """Ceilings of a device: floating-point operations a second, and bytes a second for one size of working set."""

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
    """Return the work of one run of *program*, without views and without equations that read weights only."""
    constant = weight_only(program)
    run = [
        work(e.scope)
        for e in program.equations
        if e.name not in constant and not (e.via is not None and e.via.operator == VIEW)
    ]
    return Work(sum(w.flops for w in run), sum(w.read_bytes for w in run), sum(w.written_bytes for w in run))


def position(done: Work, seconds: float, roof: Roof) -> Position:
    """Return the position under *roof* of a program that does *done* in *seconds*; raises ValueError unless > 0."""
    if not seconds > 0:
        raise ValueError(f"{seconds} s: expected a positive number of seconds")
    flops, bandwidth = done.flops / seconds, done.nbytes / seconds
    return Position(flops, bandwidth, flops / roof.flops, bandwidth / roof.bandwidth)


@lru_cache(64)
def cpu_roof(threads: int, nbytes: int) -> Roof:
    """Measure the ceilings of this CPU for a working set of *nbytes*, in about half a second."""
    from einnet_explore.runtime.implementation_choice import peak_flops, stream_bandwidth

    return Roof(peak_flops(threads), stream_bandwidth(threads, nbytes))


def working_set(nbytes: int) -> int:
    """Round *nbytes* up to a power of two within bounds, so that few ceilings are measured."""
    return min(MAX_TRIAD_BYTES, max(MIN_TRIAD_BYTES, 1 << max(0, nbytes - 1).bit_length()))


ROUNDS_PER_UPDATE = 3
"""Rounds between two looks at the results."""

BAR, ROW, TEXT = 320.0, 24.0, 12.0


@dataclass(frozen=True, repr=False)
class CandidateMeasurements(DisplayedAsTable):
    """Measurements so far of *programs* by name; the first one is the baseline of the others.

    *samples* are seconds a call, one a round; *errors* the largest difference of the outputs from the first program's,
    relative to the largest output; *failures* say why a program did not run.  *stage* is the current activity.  A
    recorded profile of a *device* gives one time a program without a run: *hows* says how it was found.  *engines* are
    names of other engines, which ran the first program.
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
    engines: frozenset[str] = frozenset()

    def median(self, name: str) -> float | None:
        """Return the seconds of the program *name*; None if it was not measured."""
        return median(self.samples[name]) if self.samples.get(name) else None

    def iqr(self, name: str) -> float:
        """Return the distance between the quartiles of the samples of *name*."""
        samples = self.samples.get(name, ())
        if len(samples) < 2:
            return 0.0
        low, _, high = quantiles(samples, n=4)
        return high - low

    def estimate(self, name: str) -> float | None:
        """Return the estimated seconds of the program *name*; None for another engine."""
        return None if name in self.engines else program_seconds(self.programs[name])[0]

    def speedup(self, name: str) -> float | None:
        """Return the median over rounds of the speed-up of *name* over the first program; None if one is missing."""
        base = self.samples.get(next(iter(self.programs)), ())
        pairs = list(zip(base, self.samples.get(name, ()), strict=False))
        return median(a / b for a, b in pairs) if pairs else None

    def position(self, name: str) -> Position | None:
        """Return the position of *name* under its roofline; None if it was not measured or no ceiling is known."""
        middle, roof = self.median(name), self.roofs.get(name)
        return None if middle is None or roof is None else position(program_work(self.programs[name]), middle, roof)

    @property
    def caption(self) -> str:
        """The method and the device of the measurement."""
        threads = count_noun(self.threads, "thread")
        how = "as recorded, not run here" if self.hows else f"{count_noun(self.rounds, 'interleaved round')}, {threads}"
        return ", ".join(filter(None, (how, self.device, self.library)))

    def sheet(self) -> ResultTable:
        """Return one row for each program, with all numbers."""
        rows = []
        for name in self.programs:
            at = self.position(name)
            rows.append(
                (
                    *(name, self.estimate(name), self.median(name), self.iqr(name), self.speedup(name)),
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
        """Return one row for each program, with formatted numbers."""
        rows = tuple(
            (
                name,
                "" if (estimated := self.estimate(name)) is None else format_seconds(estimated),
                self.failures.get(name) or _time_text(self.median(name), self.iqr(name), self.hows.get(name)),
                "" if self.speedup(name) is None else f"{self.speedup(name):.2f}×",
                f"{self.errors[name]:.1e}" if name in self.errors else "",
                str(self.position(name) or ""),
            )
            for name in self.programs
        )
        return TextTable(
            ("program", "estimated", "measured ± IQR", "speed-up", "max |err|", "roofline"), rows, self.caption
        )

    def plot(self) -> Figure:
        """Draw one bar for each program, its quartiles as a line."""
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


def arrays(program: Program, seed: int) -> tuple[Arrays, Arrays]:
    """Return random inputs and weights of *program*."""
    import numpy as np

    random = np.random.default_rng(seed)
    made = {t.name: _random_elements(t, random) for t in program.inputs}
    weights = {t.name for t in program.inputs if t.weight}
    return {n: a for n, a in made.items() if n not in weights}, {n: a for n, a in made.items() if n in weights}


def _random_elements(tensor: Tensor, random: np.random.Generator) -> Array:
    kind = ELEMENT_TYPES[tensor.dtype]
    if kind.is_integer:
        low, high = max(kind.low, -(1 << 15)), min(kind.high, 1 << 15)
        return random.integers(low, high + 1, tensor.shape).astype(kind.name)
    return random.standard_normal(tensor.shape, dtype="float32")


def _time_text(middle: float | None, iqr: float, how: str | None) -> str:
    if middle is None:
        return ""
    return f"{format_seconds(middle)}, {how}" if how else f"{format_seconds(middle)} ± {format_seconds(iqr)}"


PREFIX = "profile:"
"""As in ``runtime.profile_store``, which imports the compilers and is therefore imported late."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A device by *name*, its description, and what is *missing* if it cannot be used."""

    name: str
    says: str
    missing: str = ""


ALWAYS = (Choice("cpu", "this CPU"), Choice(PREFIX, f"a recorded profile ({PREFIX}FILE)"))
"""Devices of every machine."""


def devices() -> tuple[Choice, ...]:
    """List the devices: this CPU, a GPU (or why there is none), and recorded profiles."""
    from einnet_explore.runtime.cuda import execution
    from einnet_explore.runtime.profile_store import device_name

    lacking = ", ".join(execution.missing_for_cuda())
    gpu = "a CUDA GPU" if lacking else f"this GPU: {execution.cuda_device().name}"
    return (
        Choice("cpu", f"this CPU: {device_name()}"),
        Choice("cuda", gpu, lacking),
        ALWAYS[-1],
    )


def note(choices: tuple[Choice, ...]) -> str:
    """Return why there is no GPU, and an alternative, as one sentence; empty if there is one."""
    gpu = next((choice for choice in choices if choice.name == "cuda"), None)
    if gpu is None or not gpu.missing:
        return ""
    return f"There is no CUDA GPU to measure on (missing: {gpu.missing}): take this CPU, or a profile recorded on one."


def check_measuring_device(device: str) -> None:
    """Raise ValueError, with what is missing, unless candidates can be measured on *device* or priced for it."""
    known = {choice.name: choice for choice in devices()}
    name = PREFIX if device.startswith(PREFIX) else device
    if name not in known:
        raise ValueError(f"device {device!r}: found no such device, expected cpu, cuda or {PREFIX}FILE")
    if known[name].missing:
        raise ValueError(f"device {device!r}: missing {known[name].missing}; expected cpu or {PREFIX}FILE")
    if device == PREFIX:
        raise ValueError(f"device {device!r}: no file is named, expected {PREFIX}FILE.sqlite or {PREFIX}FILE.json")


Opener: TypeAlias = "Callable[[Program, Arrays, int], tuple[Arrays, Callable[[], object]]]"
"""Another engine: from a program, its inputs and weights, and a number of threads to the outputs and a call to time."""


def bench(
    programs: Mapping[str, Program],
    rounds: int = 15,
    threads: int = 1,
    seed: int = 0,
    device: str = "cpu",
    engines: Mapping[str, Opener] | None = None,
) -> Iterable[CandidateMeasurements]:
    """Compile and time *programs* in interleaved rounds, all on the same random inputs; yield the measurements so far.

    Weights are constants.  The programs must have the same inputs and outputs.  The *device* is ``cpu``, ``cuda``, or
    ``profile:FILE``, which gives recorded times without a run.  On a CPU, other *engines* run the first program in the
    same rounds.  Raises ValueError for no program, for no rounds, for a missing device, for engines on a device other
    than ``cpu``, and if the first program does not run.
    """
    if not programs:
        raise ValueError("no programs to measure, expected at least one")
    if rounds < 1:
        raise ValueError(f"rounds {rounds}: expected at least 1")
    check_measuring_device(device)
    if engines and device != "cpu":
        raise ValueError(f"device {device!r}: found the engines {', '.join(engines)}, which are measured on cpu only")
    if device == "cpu":
        return _measure_on_cpu(programs, rounds, threads, seed, engines or {})
    if device == "cuda":
        return _measure_on_gpu(programs, rounds, seed)
    return _from_profile(programs, device)


def _measure_on_cpu(
    programs: Mapping[str, Program], rounds: int, threads: int, seed: int, engines: Mapping[str, Opener]
) -> Iterable[CandidateMeasurements]:
    from einnet_explore.runtime.measurement import time_calls
    from einnet_explore.runtime.profile_store import device_name, library_versions

    first = next(iter(programs.values()))
    feeds, constants = arrays(first, seed)

    def prepare(name: str) -> tuple[Arrays, Callable[[], object]]:
        if name in engines:
            try:
                return engines[name](first, {**feeds, **constants}, threads)
            except Exception as error:  # engines' exceptions share no base
                raise BackendError(str(error) or type(error).__name__) from None
        compiled = _compile(programs[name], threads, constants)
        return compiled.run(feeds), compiled.execute

    def time_rounds(calls: Mapping[str, Callable[[], object]], count: int) -> dict[str, Sequence[float]]:
        timings = time_calls(calls, rounds=count, min_seconds=0.0)
        return {name: timing.samples for name, timing in timings.items()}

    def measure_roof(program: Program) -> Roof:
        return cpu_roof(threads, working_set(program_work(program).nbytes))

    every = {**programs, **dict.fromkeys(engines, first)}
    known = CandidateMeasurements(
        every, threads, device=device_name(), library=library_versions(), engines=frozenset(engines)
    )
    return _measure_in_turn(known, rounds, prepare, time_rounds, measure_roof)


def _measure_in_turn(
    known: CandidateMeasurements,
    rounds: int,
    prepare: Callable[[str], tuple[Arrays, R]],
    time_rounds: Callable[[Mapping[str, R], int], Mapping[str, Sequence[float]]],
    measure_roof: Callable[[Program], Roof] | None = None,
) -> Iterable[CandidateMeasurements]:
    """Measure the programs of *known*; *prepare* compiles one, and returns its outputs and the call to time."""
    from einnet_explore.runtime.arrays import largest_error

    calls: dict[str, R] = {}
    want: Arrays = {}
    for n, name in enumerate(known.programs, 1):
        yield replace(known, stage=f"compiling {name}, {n} of {len(known.programs)}")
        try:
            got, calls[name] = prepare(name)
        except BackendError as error:
            if n == 1:
                raise ValueError(f"{name}: {error}") from None
            known = replace(known, failures={**known.failures, name: str(error)})
            continue
        want = want or got
        known = replace(known, errors={**known.errors, name: largest_error(want, got)})
    if measure_roof is not None:
        for name in calls:
            if name in known.engines:
                continue  # only its time is known
            yield replace(known, stage="measuring the device's ceilings")
            known = replace(known, roofs={**known.roofs, name: measure_roof(known.programs[name])})
    samples: dict[str, tuple[float, ...]] = dict.fromkeys(calls, ())
    done = 0
    while done < rounds:
        count = min(ROUNDS_PER_UPDATE, rounds - done)
        times = time_rounds(calls, count)
        samples = {name: (*samples[name], *times[name]) for name in calls}
        done += count
        yield replace(known, rounds=done, samples=samples, stage=f"{done} of {count_noun(rounds, 'round')}")


def _compile(program: Program, threads: int, constants: Arrays) -> CompiledProgram:
    from einnet_explore.runtime.implementation_choice import ProfileStore, compile_measured

    known = {t.name: constants[t.name] for t in program.inputs if t.weight}
    return compile_measured(program, threads, known, ProfileStore())


def _measure_on_gpu(programs: Mapping[str, Program], rounds: int, seed: int) -> Iterable[CandidateMeasurements]:
    from einnet_explore.runtime.cuda import execution
    from einnet_explore.runtime.cuda.plan import cuda_plan

    feeds, constants = arrays(next(iter(programs.values())), seed)

    def prepare(name: str) -> tuple[Arrays, Sequence[Callable[[], object]]]:
        program = programs[name]
        plan = cuda_plan(program)
        weights = {w: constants[w] for w in plan.weights}
        copies = execution.rotation_copies(program_work(program).nbytes)
        compiled = [execution.compile_plan(plan, weights) for _ in range(copies)]
        results = [each.run(feeds) for each in compiled]  # every copy has the inputs then
        return results[0], [each.capture() for each in compiled]

    device, library = execution.cuda_device().key
    known = CandidateMeasurements(programs, 1, device=device, library=library)
    return _measure_in_turn(known, rounds, prepare, lambda calls, count: execution.time_in_rounds(calls, rounds=count))


def _from_profile(programs: Mapping[str, Program], device: str) -> Iterable[CandidateMeasurements]:
    from einnet_explore.runtime.profile_store import device_cost

    model = device_cost(device)
    found = {name: model.program_cost(program) for name, program in programs.items()}
    roofs = {
        name: Roof(model.device.peak_flops, model.device.bandwidth(program_work(program).nbytes))
        for name, program in programs.items()
    }
    hows = {name: "recorded" if cost.how == "measured" else f"estimated ({cost.how})" for name, cost in found.items()}
    samples = {name: (cost.seconds,) for name, cost in found.items()}
    yield CandidateMeasurements(
        programs, model.device.threads, 1, samples, stage="", device=model.device.name, roofs=roofs, hows=hows
    )
