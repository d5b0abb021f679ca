"""Candidates compiled and measured on a device, in turn with their original, until the reader has seen enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from einnet_explore.explore.bench_devices import check
from einnet_explore.explore.benched import TOGETHER, Benched, arrays
from einnet_explore.explore.roofline import Roof, cpu_roof, program_work, working_set
from einnet_explore.ir import Program
from einnet_explore.printable import counted

if TYPE_CHECKING:
    from einnet_explore.backends.program import CompiledProgram


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
    from einnet_explore.backends.keys import device, libraries
    from einnet_explore.backends.measure import compare
    from einnet_explore.graph.outputs import largest_error

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
        yield replace(known, rounds=done, samples=samples, roofs=roofs, stage=f"{done} of {counted(rounds, 'round')}")


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
