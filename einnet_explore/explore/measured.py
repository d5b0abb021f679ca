"""Candidates run and timed in turn with their original."""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.explore.depths import Depth
from einnet_explore.ir import Program


def measured_seconds(depths: Iterable[Depth]) -> dict[Program, float]:
    """Seconds on one thread of each original and cheapest candidate in *depths*, from interleaved rounds.

    A program that no engine here runs is left out.
    """
    from einnet_explore.backends.errors import BackendError
    from einnet_explore.backends.measure import compare
    from einnet_explore.backends.program import CompiledProgram, compile_program

    programs = dict.fromkeys(
        program for d in depths for _, program in (*d.cheapest, *((d.original,) if d.original else ()))
    )
    compiled: dict[str, tuple[Program, CompiledProgram]] = {}
    for program in programs:
        try:
            compiled[str(len(compiled))] = program, compile_program(program)
        except BackendError:
            continue
    if not compiled:
        return {}
    timings = compare({name: held.execute for name, (_, held) in compiled.items()}, rounds=5)
    return {program: timings[name].median for name, (program, _) in compiled.items()}
