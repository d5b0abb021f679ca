"""Measurement of candidates in turn with their original, on this CPU, an NVIDIA GPU, or from a recorded profile.

On the GPU each candidate is one CUDA graph, timed by events over copies in rotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from einnet_explore.ir import Program
from einnet_explore.session.measured_candidates import (
    ROUNDS_PER_UPDATE,
    CandidateMeasurements,
    Roof,
    arrays,
    cpu_roof,
    program_work,
    working_set,
)
from einnet_explore.support.errors import BackendError
from einnet_explore.support.wording import count_noun

if TYPE_CHECKING:
    from einnet_explore.runtime.program import CompiledProgram


PREFIX = "profile:"
"""As in ``runtime.device_profile``, which is imported only when a device is looked at: with it come the compilers."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A device by *name*, in words, and what is *missing* where it cannot be used."""

    name: str
    says: str
    missing: str = ""


ALWAYS = (Choice("cpu", "this CPU"), Choice(PREFIX, f"a recorded profile ({PREFIX}FILE)"))
"""What there is, whatever the machine."""


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
    """One sentence where a GPU is missing: why, and what can be done instead; empty where there is one."""
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
        raise ValueError(f"device {device!r}: no file is named, expected {PREFIX}FILE.sqlite")


def bench(
    programs: Mapping[str, Program], rounds: int = 15, threads: int = 1, seed: int = 0, device: str = "cpu"
) -> Iterable[CandidateMeasurements]:
    """Compile and time *programs* in interleaved rounds, all on the same random inputs; yields what is known so far.

    Weights are constants.  The programs must have the same inputs and outputs.  The *device* is ``cpu``, ``cuda``, or
    ``profile:FILE``, where nothing is run and the times are those that were recorded.  Raises ValueError for no
    program, for no rounds, for a device that is not there, and where the first program does not run.
    """
    if not programs:
        raise ValueError("no programs to measure, expected at least one")
    if rounds < 1:
        raise ValueError(f"rounds {rounds}: expected at least 1")
    check_measuring_device(device)
    if device == "cpu":
        return _measure_on_cpu(programs, rounds, threads, seed)
    if device == "cuda":
        pass

        return on_gpu(programs, rounds, seed)
    return _from_profile(programs, device)


def _measure_on_cpu(
    programs: Mapping[str, Program], rounds: int, threads: int, seed: int
) -> Iterable[CandidateMeasurements]:
    from einnet_explore.runtime.arrays import largest_error
    from einnet_explore.runtime.measurement import time_calls
    from einnet_explore.runtime.profile_store import device_name, library_versions

    first = next(iter(programs))
    feeds, constants = arrays(programs[first], seed)
    compiled: dict[str, CompiledProgram] = {}
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}
    roofs: dict[str, Roof] = {}
    want: dict[str, Any] = {}
    known = CandidateMeasurements(
        programs, threads, errors=errors, failures=failures, device=device_name(), library=library_versions()
    )
    for n, (name, program) in enumerate(programs.items(), 1):
        yield replace(known, errors=dict(errors), stage=f"compiling {name}, {n} of {len(programs)}")
        try:
            compiled[name] = _compile(program, threads, constants)
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
        some = min(ROUNDS_PER_UPDATE, rounds - done)
        timings = time_calls({n: c.execute for n, c in compiled.items()}, rounds=some, min_seconds=0.0)
        samples = {name: (*samples[name], *timings[name].samples) for name in compiled}
        done += some
        yield replace(
            known, rounds=done, samples=samples, roofs=roofs, stage=f"{done} of {count_noun(rounds, 'round')}"
        )


def _from_profile(programs: Mapping[str, Program], device: str) -> Iterable[CandidateMeasurements]:
    from einnet_explore.pipeline.devices import device_cost_model

    model = device_cost_model(device)
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


def _compile(program: Program, threads: int, constants: Mapping[str, Any]) -> CompiledProgram:
    from einnet_explore.runtime.epilogues import compile_measured
    from einnet_explore.runtime.implementation_choice import ProfileStore

    known = {t.name: constants[t.name] for t in program.inputs if t.weight}
    return compile_measured(program, threads, known, ProfileStore())


def on_gpu(programs: Mapping[str, Program], rounds: int, seed: int) -> Iterable[CandidateMeasurements]:
    """*programs* compiled for the GPU and timed there in interleaved rounds; the same values as ``bench`` on a CPU.

    Raises ValueError where the first program does not run.
    """
    from einnet_explore.runtime.arrays import largest_error
    from einnet_explore.runtime.cuda import execution
    from einnet_explore.runtime.cuda.plan import cuda_plan
    from einnet_explore.session.measured_candidates import program_work

    first = next(iter(programs))
    feeds, constants = arrays(programs[first], seed)
    name_of, library = execution.cuda_device().key
    known = CandidateMeasurements(programs, 1, device=name_of, library=library)
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}
    calls: dict[str, list[Any]] = {}
    want: dict[str, Any] = {}
    for n, (name, program) in enumerate(programs.items(), 1):
        yield replace(
            known, errors=dict(errors), failures=dict(failures), stage=f"compiling {name}, {n} of {len(programs)}"
        )
        try:
            plan = cuda_plan(program)
            weights = {w: constants[w] for w in plan.weights}
            copies = execution.rotation_copies(program_work(program).nbytes)
            made = [execution.compile_plan(plan, weights) for _ in range(copies)]
            results = [each.run(feeds) for each in made]  # every copy has the inputs then
            calls[name] = [each.capture() for each in made]
        except BackendError as error:
            if name == first:
                raise ValueError(f"{name}: {error}") from None
            failures[name] = str(error)
            continue
        want = want or results[0]
        errors[name] = largest_error(want, results[0])
    samples: dict[str, tuple[float, ...]] = dict.fromkeys(calls, ())
    done = 0
    while done < rounds:
        some = min(ROUNDS_PER_UPDATE, rounds - done)
        times = execution.time_in_rounds(calls, rounds=some)
        samples = {name: (*samples[name], *times[name]) for name in calls}
        done += some
        stage = f"{done} of {count_noun(rounds, 'round')}"
        yield replace(known, rounds=done, samples=samples, errors=errors, failures=failures, stage=stage)
