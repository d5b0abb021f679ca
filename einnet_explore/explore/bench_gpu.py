"""Candidates measured on an NVIDIA GPU: each as one CUDA graph, timed by events over copies in rotation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from einnet_explore.explore.benched import TOGETHER, Benched, arrays
from einnet_explore.ir import Program
from einnet_explore.printable import counted


def on_gpu(programs: Mapping[str, Program], rounds: int, seed: int) -> Iterable[Benched]:
    """*programs* compiled for the GPU and timed there in interleaved rounds; the same values as ``bench`` on a CPU.

    Raises ValueError where the first program does not run.
    """
    from einnet_explore.backends import cupy
    from einnet_explore.backends.cuda_plan import cuda_plan
    from einnet_explore.backends.errors import BackendError
    from einnet_explore.explore.roofline import program_work
    from einnet_explore.graph.outputs import largest_error

    first = next(iter(programs))
    feeds, constants = arrays(programs[first], seed)
    name_of, library = cupy.device().key
    known = Benched(programs, 1, device=name_of, library=library)
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
            copies = cupy.rotations(program_work(program).nbytes)
            made = [cupy.compile_plan(plan, weights) for _ in range(copies)]
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
        some = min(TOGETHER, rounds - done)
        times = cupy.timed(calls, rounds=some)
        samples = {name: (*samples[name], *times[name]) for name in calls}
        done += some
        stage = f"{done} of {counted(rounds, 'round')}"
        yield replace(known, rounds=done, samples=samples, errors=errors, failures=failures, stage=stage)
