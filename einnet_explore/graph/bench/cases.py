"""A case (an ``.ein`` program) as what the engines run: derived, as it is, in standard ONNX operators, by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from einnet_explore.algebra.equations import weight_only
from einnet_explore.algebra.evaluate import evaluate
from einnet_explore.backends.epilogues import compile_measured
from einnet_explore.backends.profiles import ProfileStore
from einnet_explore.backends.program import CompiledProgram
from einnet_explore.graph.contest import Contest, Opened, Settings
from einnet_explore.graph.judging import judged
from einnet_explore.graph.means import Means
from einnet_explore.graph.outputs import Arrays
from einnet_explore.ir import EOPERATOR, VIEW, Instance, Program
from einnet_explore.printable import counted


def random_inputs_of(program: Program) -> Arrays:
    """An array for every tensor of *program*, the same every time."""
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}


def split_inputs(program: Program, feeds: Arrays) -> tuple[Arrays, Arrays]:
    """*feeds* as what is given at run time and what is known before."""
    inputs = {t.name: feeds[t.name] for t in program.inputs if not t.weight}
    return inputs, {t.name: feeds[t.name] for t in program.inputs if t.weight}


def kept(
    program: Program, constants: Arrays, opened: Opened, settings: Settings, written: str = ""
) -> tuple[CompiledProgram, str] | None:
    """What a contest of *program* with what is *opened* keeps, as in a model, ready to run, and what is said of it.

    None where the original is the fastest: no candidate is worth measuring, takes less time, or is proved.  Its time
    belongs to how it is *written*.
    """
    store = ProfileStore()
    means = Means(settings, store)
    contest = Contest(program, opened, constants, means.engine, means.cost, settings, store, written=written)
    part = judged((), contest.hold(settings.seconds))
    if not part.kept or part.derivation is None:
        return None
    winner = part.derivation
    compiled = compile_measured(winner.end, settings.threads, constants, store)
    return compiled, f"{called(winner.end)} ({counted(len(winner.steps), 'step')}, {part.certificate}); {part.numerics}"


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
