"""A case (an ``.ein`` program) as what the engines run: derived, as it is, in standard ONNX operators, by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np

from einnet_explore.algebra.certificate import certify
from einnet_explore.algebra.equations import weight_only
from einnet_explore.algebra.evaluate import evaluate
from einnet_explore.backends.epilogues import compile_measured
from einnet_explore.backends.errors import BackendError
from einnet_explore.backends.measure import compare
from einnet_explore.backends.profiles import ProfileStore
from einnet_explore.backends.program import CompiledProgram
from einnet_explore.cost import program_seconds
from einnet_explore.graph.contest import Arrays, Settings, blocked
from einnet_explore.graph.finalists import entries, finalists
from einnet_explore.graph.post.fusing import fuse
from einnet_explore.ir import EOPERATOR, VIEW, Instance, Program
from einnet_explore.search.candidate import verdict

MEASURED = 6
"""How many candidates of a case are measured."""


def random_inputs_of(program: Program) -> Arrays:
    """An array for every tensor of *program*, the same every time."""
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}


def split_inputs(program: Program, feeds: Arrays) -> tuple[Arrays, Arrays]:
    """*feeds* as what is given at run time and what is known before."""
    inputs = {t.name: feeds[t.name] for t in program.inputs if not t.weight}
    return inputs, {t.name: feeds[t.name] for t in program.inputs if t.weight}


def derived(
    program: Program, constants: Arrays, inputs: Arrays, settings: Settings, budget: float | None = None
) -> tuple[CompiledProgram, str]:
    """The fastest, as measured, of the cheapest candidates; raises ValueError where none runs."""
    if budget is not None:
        settings = replace(settings, seconds=budget)
    ranked, _ = entries(program, program_seconds, settings.max_depth, settings.seconds)
    ready: dict[str, CompiledProgram] = {}
    store = ProfileStore()
    forms = (fuse(entry.derivation()) for entry in finalists(ranked, MEASURED, inf))
    for derivation in (*forms, *blocked(ranked, MEASURED, inf)):
        judged = verdict(tuple(certify(step.before, step.after) for step in derivation.steps))
        if judged == "false":
            continue
        try:
            compiled = compile_measured(derivation.end, settings.threads, constants, store)
        except BackendError:
            continue
        compiled.run(inputs)
        ready[f"{called(derivation.end)} ({len(derivation.steps)} steps, {judged})"] = compiled
    if not ready:
        raise ValueError(f"found no candidate that runs among {len(ranked)}, expected one to measure")
    times = compare({name: compiled.execute for name, compiled in ready.items()}, rounds=5, min_seconds=0.05)
    best = min(times, key=lambda name: times[name].low)
    return ready[best], best


def generated(program: Program) -> Program:
    """*program* with no equation run by a library."""
    return replace(program, equations=tuple(replace(e, via=Instance(EOPERATOR)) for e in program.equations))


def evaluated(program: Program, feeds: Arrays) -> Callable[[], Arrays]:
    """*program* by NumPy: windows are strided views, products go to its BLAS."""
    return lambda: evaluate(program, feeds, np.float32, outputs_only=True)


def called(program: Program) -> str:
    """The operators of *program* that take time, in order: views and what only depends on weights are free."""
    folded = weight_only(program)
    runs = [e.via for e in program.equations if e.name not in folded]
    return " + ".join(repr(via) if via else "as written" for via in runs if via is None or via.operator != VIEW)
