"""The baseline: the original model, whose outputs and time every plan is compared with, measured in turns.

Inputs are random, and such that other outputs than the original's are noticed.

Without this project a user runs one engine in one process.  A process that measures many programs with several threads
has a thread pool for each, which compete for memory and cores.  So with several threads the original runs in a process
of its own: this module, run as a script.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from math import sqrt
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from einnet_explore.onnx_import.input_domains import InputDomain
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.model_sessions import (
    ModelRegions,
    is_quantised,
    open_session,
    run_definition,
    run_session,
    without_optimisations,
)
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, Array, Arrays, aligned, differences, largest_error
from einnet_explore.runtime.measurement import (
    NOTHING,
    Enough,
    Sampler,
    Timing,
    all_rounds,
    sample_seconds,
    settle_seconds,
    time_calls,
    time_samplers,
    times_faster,
)
from einnet_explore.runtime.onnx_fragment import ONNXRUNTIME_ERRORS, onnxruntime_message
from einnet_explore.support.errors import Refused

MIN_SPEEDUP = 1.02
"""Speedup below which a model is given back as it was: less is within the noise of measurement."""

CLEAR_SPEEDUP = 3.0
"""Speedup of a single round that leaves no doubt: equal plans, one of them disturbed, have differed by about two."""

BRIEF_SECONDS = 3.0
"""Seconds of measurement after which rounds suffice that are all ``CLEAR_SPEEDUP``, or are ``MIN_ROUNDS`` and all
``MIN_SPEEDUP``."""

DECIDED_SHARE, DECIDED_ROUNDS, DECIDED_SECONDS = 0.85, 20, 0.05
"""A comparison is decided by so many rounds or more that took so long, if such a part of them agree."""

CLOSE_ROUNDS_FACTOR, CLOSE_SECONDS = 4, 2.0
"""Multiple of its rounds, and the seconds, that a comparison takes at most while it is not decided."""

LIKELY_DEVIATIONS, LIKELY_SECONDS = 2.0, 0.05
"""After its rounds, and so many seconds, a comparison is decided by a majority that is so many standard deviations
away from a tie."""

UNANIMOUS_ROUNDS, UNANIMOUS_SECONDS = 6, 1.0
"""It is also decided by so many rounds that took so long, if all of them agree."""

MIN_ROUNDS = 3
"""Rounds of a model that takes a second or more."""

MAX_INPUT_DRAWS = 16
"""Random inputs that are tried to find one on which the model itself is well-conditioned."""


def random_model_inputs(of: Model | onnx.ModelProto | onnxruntime.InferenceSession, seed: int = 0) -> dict[str, Array]:
    """Return arrays for every input, equal for equal *seed*: reals from N(0, 1), any bytes, else integers 0 and 1.

    Elements of an input with a domain are drawn from it.  Arrays are aligned as those of runtimes are: on others, a
    kernel may take 1.3 times as long.

    Raises Refused for an input without static shape, or one that is no tensor of numbers.
    """
    rng = np.random.default_rng(seed)
    domains = of.domains if isinstance(of, Model) else {}
    drawn = {name: _random(name, dtype, shape, rng, domains.get(name)) for name, dtype, shape in _signature(of)}
    return {name: aligned(array, array.dtype) for name, array in drawn.items()}


def _random(
    name: str, dtype: np.dtype | None, shape: tuple[object, ...], rng: np.random.Generator, domain: InputDomain | None
) -> Array:
    sizes = [n for n in shape if isinstance(n, int)]
    if len(sizes) < len(shape):
        raise Refused(f"input {name}: found shape {list(shape)}, expected static dimensions")
    if domain is not None and dtype is not None:
        return domain.draw(rng, tuple(sizes), dtype)
    match dtype.kind if dtype is not None else "":
        case "f":
            return np.asarray(rng.standard_normal(sizes), dtype)  # of rank 0 it is an array too
        case "i" | "u":
            if dtype is not None and dtype.itemsize == 1:  # no index, as others may be
                return np.asarray(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, sizes, endpoint=True), dtype)
            return np.asarray(rng.integers(0, 2, sizes), dtype)
        case "b":
            return np.asarray(rng.integers(0, 2, sizes), np.bool_)
    raise Refused(f"input {name}: found type {dtype or 'unknown'}, expected a tensor of numbers")


_ORT_TYPES: Mapping[str, str] = {"float": "float32", "double": "float64"}


def _signature(
    of: Model | onnx.ModelProto | onnxruntime.InferenceSession,
) -> Iterable[tuple[str, np.dtype | None, tuple[object, ...]]]:
    match of:
        case Model(inputs=inputs):
            for value in inputs:
                yield value.name, value.dtype, ("?",) if value.shape is None else value.shape
        case onnx.ModelProto():
            regions = ModelRegions(of)
            for name in regions.inputs:
                tensor = regions.infos[name].type.tensor_type
                dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
                yield name, _numpy(tensor.elem_type), dims
        case _:
            for entry in of.get_inputs():
                kind = entry.type.removeprefix("tensor(").removesuffix(")")
                try:
                    dtype = np.dtype(_ORT_TYPES.get(kind, kind))
                except TypeError:
                    dtype = None
                yield entry.name, dtype, tuple(entry.shape)


def _numpy(code: int) -> np.dtype | None:
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(code))
    except KeyError:
        return None


def discriminating_inputs(model: Model, plan: ExecutionPlan) -> dict[str, Array]:
    """Return random inputs on which *model* is well-conditioned, so that comparing outputs can find mistakes.

    If rounding the inputs moves the outputs by as much as a mistake may (a saturated sigmoid returns nothing but
    rounding errors), agreement proves nothing: other inputs are drawn, and those that move the outputs least are taken.
    Raises Refused if the model fails on all of them, for example because its inputs are sizes or positions.
    """
    return random_model_inputs(model, discriminating_seed(model, plan))


def discriminating_seed(model: Model, plan: ExecutionPlan) -> int:
    """Return the seed of ``discriminating_inputs``, after two runs of *plan* or more."""
    found: list[tuple[float, int]] = []
    failure = ""
    for seed in range(MAX_INPUT_DRAWS):
        feeds = random_model_inputs(model, seed)
        rounded = {k: _rounded_up(v) if v.dtype.kind == "f" else v for k, v in feeds.items()}
        try:
            change = largest_error(plan.run(feeds), plan.run(rounded))
        except ONNXRUNTIME_ERRORS as error:
            failure = onnxruntime_message(error).splitlines()[0]
            continue
        found.append((change, seed))
        if change <= MAX_RELATIVE_ERROR / 10:
            break
    if not found:
        raise Refused(
            f"{model.path}: found that it fails on random inputs ({failure}), expected one that runs on any numbers: "
            "sizes and positions may be weights"
        )
    return min(found)[1]


def _rounded_up(array: Array) -> Array:
    return np.asarray(np.nextafter(array, np.inf, dtype=array.dtype))


def plan_speedup(
    before: ExecutionPlan,
    after: ExecutionPlan,
    feeds: Arrays,
    once: float,
    warm: Mapping[str, float] = NOTHING,
    least: float | None = None,
) -> float:
    """Return the speedup of *after* over *before*, one run of which takes about *once* seconds.

    If only a speedup of *least* or not matters, no more rounds are timed once that is decided, and more if it is not.
    """
    rounds = measurement_rounds(once, 11)
    if least is None:
        times = time_plans(before, after, feeds, rounds, 0.3, warm)
    else:
        most = max(rounds, min(CLOSE_ROUNDS_FACTOR * rounds, int(CLOSE_SECONDS / (2 * once))))
        enough = partial(is_decided, least=least, likely_rounds=rounds)
        times = time_plans(before, after, feeds, most, 0.3, warm, enough)
    return times_faster(times["before"], times["after"])


def time_plans(
    before: ExecutionPlan,
    after: ExecutionPlan,
    feeds: Arrays,
    rounds: int,
    min_seconds: float,
    warm: Mapping[str, float] = NOTHING,
    enough: Enough = all_rounds,
) -> dict[str, Timing]:
    """Time both plans in turns, with a pause in which the other's spinning threads settle; *warm* as in ``compare``."""
    calls = {"before": lambda: before.run(feeds), "after": lambda: after.run(feeds)}
    settle = settle_seconds(max(before.threads, after.threads))
    return time_calls(calls, rounds, min_seconds, settle, warm, enough)


def is_decided(samples: Mapping[str, Sequence[float]], least: float, likely_rounds: int | None = None) -> bool:
    """Whether nearly all pairs of *samples* agree that ``after`` is *least* times as fast as ``before``, or is not.

    From *likely_rounds* on, the majority decides if the pairs of a tie would hardly have it (``LIKELY_DEVIATIONS``).
    """
    pairs = list(zip(samples["before"], samples["after"], strict=True))
    faster = sum(one >= least * other for one, other in pairs)
    agree, seconds = max(faster, len(pairs) - faster), sum(map(sum, pairs))
    if agree == len(pairs) >= UNANIMOUS_ROUNDS and seconds >= UNANIMOUS_SECONDS:
        return True
    if likely_rounds is not None and len(pairs) >= likely_rounds and seconds >= LIKELY_SECONDS:
        return 2 * agree - len(pairs) >= LIKELY_DEVIATIONS * sqrt(len(pairs))
    return agree >= DECIDED_SHARE * len(pairs) and len(pairs) >= DECIDED_ROUNDS and seconds >= DECIDED_SECONDS


def is_clearly_faster(samples: Mapping[str, Sequence[float]]) -> bool:
    """Whether *samples* ``before`` and ``after`` took long enough and all agree that ``after`` is faster."""
    pairs = list(zip(samples["before"], samples["after"], strict=True))
    least = MIN_SPEEDUP if len(pairs) >= MIN_ROUNDS else CLEAR_SPEEDUP
    return sum(map(sum, pairs)) >= BRIEF_SECONDS and all(one >= least * other for one, other in pairs)


def time_against_original(
    original: ExecutionPlan,
    plan: ExecutionPlan,
    feeds: Arrays,
    once: float,
    warm: Mapping[str, float] = NOTHING,
    enough: Enough = all_rounds,
) -> dict[str, Timing]:
    """Time *plan* and *original*, a run of which takes about *once* seconds; equal plans are timed once."""
    rounds = measurement_rounds(once, 21)
    if plan is original:
        same = time_calls({"before": lambda: original.run(feeds)}, rounds=rounds, warm=warm)["before"]
        return {"before": same, "after": same}
    return time_plans(original, plan, feeds, rounds, 1.0, warm, enough)


def conservative_speedup(timings: Mapping[str, Timing]) -> float:
    """Return the smaller of two speedups, the median of ratios and the ratio of quartiles: noise makes them differ."""
    before, after = timings["before"], timings["after"]
    return min(times_faster(before, after), before.low / after.low)


def measurement_rounds(once: float, most: int) -> int:
    """Return the rounds for a run of *once* seconds: *most*, fewer if that takes many seconds."""
    return max(5 if once < 1 else MIN_ROUNDS, min(most, int(4 / once)))


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A *plan*, the times of it and of the baseline, and its largest absolute and relative errors."""

    plan: ExecutionPlan
    timings: Mapping[str, Timing]
    errors: tuple[float, float]

    @property
    def speedup(self) -> float:
        """The conservative speedup over the baseline."""
        return conservative_speedup(self.timings)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The model with its 16-bit *types* in ONNX Runtime: its time relative to the plan's, and the plan's difference.

    Both are None where ONNX Runtime has no operators of these types, for the reason *why*.
    """

    types: tuple[str, ...]
    times_longer: float | None = None
    difference: float | None = None
    why: str = ""

    def __str__(self) -> str:
        wide = f"{' and '.join(self.types)} computed in float32"
        if self.times_longer is None or self.difference is None:
            return f"{wide}; ONNX Runtime does not run the file ({self.why})"
        return (
            f"{wide}; the file takes {self.times_longer:.2f} times as long in ONNX Runtime, and differs by "
            f"{self.difference:.1e} of the largest output"
        )


@dataclass
class Baseline:
    """The *original* plan of *model*, a run of which takes about *seconds*, on the discriminating inputs *feeds*.

    Outputs may differ by *allowed*, relative to the largest.
    """

    model: Model
    original: ExecutionPlan
    feeds: dict[str, Array]
    seconds: float
    allowed: float = MAX_RELATIVE_ERROR

    @cached_property
    def want(self) -> Arrays:
        """The outputs with which all plans are compared: those of one run of the original.

        A quantised model is run as it is defined; ONNX Runtime replaces its nodes by approximations.
        """
        return run_definition(self.model, self.feeds) if is_quantised(self.model.nodes) else self._first_run[0]

    @cached_property
    def max_error(self) -> float:
        """The largest error of a plan that agrees, relative to the largest output.

        It is that of ONNX Runtime, if this differs more from the definition of a quantised model: values next to a tie
        are rounded to neighbours, and every later layer widens the difference.
        """
        return max(self.allowed, largest_error(self.want, self._first_run[0]))

    @cached_property
    def _first_run(self) -> tuple[Arrays, float]:
        """The outputs of the original and the seconds of that run."""
        began = perf_counter()
        return self.original.run(self.feeds), perf_counter() - began

    @cached_property
    def _unoptimised(self) -> Arrays:
        """The outputs of the model whose nodes are computed one by one."""
        return run_definition(self.model, self.feeds, without_optimisations)

    def errors(self, got: Arrays) -> tuple[float, float]:
        """Return the largest absolute error of the outputs *got*, and the largest one relative to the largest output.

        Outputs that do not agree are also compared with those of the unoptimised model with precise Fourier
        transforms: an optimisation of ONNX Runtime may be wrong, and its transforms are inaccurate.
        """
        found = differences(self.want, got)
        if found[1] > self.max_error:
            with suppress(Refused):
                found = min(found, differences(self._unoptimised, got), key=lambda errors: errors[1])
        return found

    def measure(self, make_plan: Callable[[], ExecutionPlan], enough: Enough = all_rounds) -> MeasuredPlan | None:
        """Measure the plan that *make_plan* returns; None if it raises ValueError or the outputs do not agree."""
        first, seconds = self._first_run
        self.original.make_room()
        warm = {"before": seconds}
        try:
            plan = make_plan()
            began = perf_counter()
            got = first if plan is self.original else plan.run(self.feeds)
            warm["after"] = perf_counter() - began
        except ValueError:
            return None
        errors = self.errors(got)
        if errors[1] > self.max_error:
            return None
        return MeasuredPlan(plan, self._time(plan, warm, enough), errors)

    def measure_original(self) -> MeasuredPlan:
        """Measure the original once and compare it with itself."""
        timings = time_against_original(self.original, self.original, self.feeds, self.seconds)
        return MeasuredPlan(self.original, timings, (0.0, 0.0))

    def compare_stored(self, plan: ExecutionPlan) -> StoredModel | None:
        """Run the model with its 16-bit types in ONNX Runtime, in turns with *plan*; None if it has none."""
        if self.model.stored is None:
            return None
        names = [value.name for value in self.model.outputs]
        try:
            session = open_session(self.model.stored, plan.threads)
            want = dict(zip(names, run_session(session, names, self.feeds), strict=True))
        except Refused as problem:
            return StoredModel(self.model.narrow, why=str(problem).splitlines()[0])
        got = plan.run(self.feeds)
        calls = {"plan": lambda: plan.run(self.feeds), "stored": lambda: run_session(session, names, self.feeds)}
        times = time_calls(calls, rounds=measurement_rounds(self.seconds, 11))
        ratio = times["stored"].median / times["plan"].median
        return StoredModel(self.model.narrow, ratio, differences(want, got)[1])

    def _time(self, plan: ExecutionPlan, warm: Mapping[str, float], enough: Enough) -> Mapping[str, Timing]:
        """Time the original and *plan* in turns; with several threads each has a process of its own.

        Both were run just now and took *warm* seconds, which sets the number of rounds but is no measurement: the
        first run of a session also allocates its memory.
        """
        if plan is not self.original and plan.threads > 1:
            rounds = measurement_rounds(self.seconds, 21)
            ran = {"after": warm["after"]}
            timings = time_with_original_process(self.model.original, plan, self.feeds, rounds, warm=ran, enough=enough)
            if timings is not None:
                return timings
        return time_against_original(self.original, plan, self.feeds, self.seconds, warm, enough)


REPLY_TIMEOUT_SECONDS = 120.0
"""Seconds without a reply after which the other process counts as hanging."""


@contextmanager
def original_process(
    model: onnx.ModelProto, feeds: Mapping[str, Array], threads: int
) -> Generator[Sampler, None, None]:
    """Run *model* in ONNX Runtime with *threads* threads in another process; yield what samples its seconds.

    Raises ConnectionError if the process does not start, dies or hangs.
    """
    with tempfile.TemporaryDirectory() as folder:
        file, arrays = Path(folder) / "model.onnx", Path(folder) / "feeds.npz"
        try:
            onnx.save_model(model, file, save_as_external_data=model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF)
            np.savez(arrays, *feeds.values())
            command = [sys.executable, "-m", __name__, str(file), str(arrays), str(threads), *feeds]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except (OSError, ValueError) as error:
            raise ConnectionError(str(error)) from error
        try:
            yield partial(_sample_process, process)
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()


def _sample_process(process: subprocess.Popen[str], repeats: int) -> float:
    """Return the seconds of a run in *process*, over *repeats* in a row; raises ConnectionError."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(f"{repeats}\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], REPLY_TIMEOUT_SECONDS)
        if ready:
            return float(process.stdout.readline())
    except (OSError, ValueError) as error:
        raise ConnectionError(str(error)) from error
    raise ConnectionError(f"no answer after {REPLY_TIMEOUT_SECONDS:.0f} seconds")


def time_with_original_process(
    model: onnx.ModelProto,
    plan: ExecutionPlan,
    feeds: Mapping[str, Array],
    rounds: int,
    min_seconds: float = 1.0,
    warm: Mapping[str, float] = NOTHING,
    enough: Enough = all_rounds,
) -> dict[str, Timing] | None:
    """Time *plan* (``after``) and *model* in its own process (``before``) in turns, until the samples are *enough*.

    Where *plan* was run just now, *warm* says how long that took, as in ``compare``.  None where the other process
    cannot be had.
    """
    try:
        with original_process(model, feeds, plan.threads) as sample_before:
            samplers: dict[str, Sampler] = {
                "before": sample_before,
                "after": partial(sample_seconds, partial(plan.run, feeds)),
            }
            return time_samplers(samplers, rounds, min_seconds, settle_seconds(plan.threads), warm, enough)
    except ConnectionError:
        return None


def _main(file: str, arrays: str, threads: str, *names: str) -> None:
    """Time the model in *file*, with as many runs in a row as each line of standard input says."""
    with np.load(arrays) as held:
        feeds = {name: held[f"arr_{n}"] for n, name in enumerate(names)}
    session = open_session(file, int(threads))
    for line in sys.stdin:
        print(json.dumps(sample_seconds(lambda: session.run(None, feeds), int(line))), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
