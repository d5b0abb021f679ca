"""A case (an ``.ein`` program) as what the engines run: derived, as it is, in standard ONNX operators, by NumPy.

The ways to write a case in standard operators that are worth running: what they compute is one, what they move not.

Written as it stands, a convolution of a large image gathers every window, gigabytes of them, where its library operator
reads the image.  Like candidates of a contest, ways that are estimated at more than ``SLACK`` times the best are out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from einnet_explore.analysis.equations import weight_only
from einnet_explore.cost import work
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import EOPERATOR, VIEW, Instance, Program
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.exported import library_forms, program_model
from einnet_explore.pipeline.trial import certify_trial
from einnet_explore.pipeline.tuning_context import Implementations, OriginalOpener, Settings
from einnet_explore.pipeline.tuning_task import TuningTask
from einnet_explore.pipeline.variants import MAX_ESTIMATE_RATIO
from einnet_explore.runtime.epilogues import compile_measured
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.outputs import Arrays
from einnet_explore.runtime.program import CompiledProgram
from einnet_explore.support.wording import count_noun


def random_inputs_of(program: Program) -> Arrays:
    """An array for every tensor of *program*, the same every time."""
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}


def split_inputs(program: Program, feeds: Arrays) -> tuple[Arrays, Arrays]:
    """*feeds* as what is given at run time and what is known before."""
    inputs = {t.name: feeds[t.name] for t in program.inputs if not t.weight}
    return inputs, {t.name: feeds[t.name] for t in program.inputs if t.weight}


def tune_case(
    program: Program, constants: Arrays, opened: OriginalOpener, settings: Settings, written: str = ""
) -> tuple[CompiledProgram, str] | None:
    """What a contest of *program* with what is *opened* keeps, as in a model, ready to run, and what is said of it.

    None where the original is the fastest: no candidate is worth measuring, takes less time, or is proved.  Its time
    belongs to how it is *written*.
    """
    store = ProfileStore()
    task = TuningTask(program, opened, constants, Implementations(settings, store).context(), operators=written)
    part = certify_trial((), task.run(settings.seconds))
    if not part.kept or part.derivation is None:
        return None
    winner = part.derivation
    compiled = compile_measured(winner.end, settings.threads, constants, store)
    derivation = f"{count_noun(len(winner.steps), 'step')}, {part.certificate}"
    return compiled, f"{describe_operators(winner.end)} ({derivation}); {part.numerics}"


def without_library_calls(program: Program) -> Program:
    """*program* with no equation run by a library."""
    return replace(program, equations=tuple(replace(e, via=Instance(EOPERATOR)) for e in program.equations))


def numpy_call(program: Program, feeds: Arrays) -> Callable[[], Arrays]:
    """*program* by NumPy: windows are strided views, products go to its BLAS."""
    return lambda: evaluate(program, feeds, np.float32, outputs_only=True)


def describe_operators(program: Program) -> str:
    """The operators of *program* that take time, in order: views and what only depends on weights are free."""
    folded = weight_only(program)
    runs = [e.via for e in program.equations if e.name not in folded]
    return " + ".join(repr(via) if via else "as written" for via in runs if via is None or via.operator != VIEW)


def standard_forms(program: Program, constants: Arrays, threads: int) -> Sequence[tuple[Program, Model]]:
    """The forms of *program* that are worth running, the cheapest by estimate first, and the model of each.

    Raises ValueError where none can be written.
    """
    device = Implementations(Settings(threads), ProfileStore()).model.device
    computing = sum(work(e.scope).flops for e in program.equations) / device.peak_flops
    found: list[tuple[float, Program, Model]] = []
    refusal = "no way to write it"
    for written in library_forms(program):
        try:
            model = load_model(program_model(written, constants))
        except Exception as error:  # every part of ONNX has classes of its own, for want of memory too
            refusal = str(error) or type(error).__name__
            continue
        starting = len(model.nodes) * device.call_seconds
        found.append((computing + starting + moved_bytes(model) / device.memory_bandwidth, written, model))
    if not found:
        raise ValueError(f"found nothing in standard operators: {refusal}")
    found.sort(key=lambda item: item[0])
    least = found[0][0]
    return tuple((written, model) for seconds, written, model in found if seconds <= MAX_ESTIMATE_RATIO * least)


def moved_bytes(model: Model) -> int:
    """Bytes that the nodes of *model* move at least: each result is written and read, each input and constant read.

    What only depends on weights is a constant: runtimes compute it once, before the first run.
    """
    constant = set(model.weights)
    read: set[str] = set()
    written: list[str] = []
    for node in model.nodes:
        if constant.issuperset(node.reads):
            constant.update(node.results)
        else:
            read.update(node.reads)
            written += node.results
    return sum(_size(model, name) for name in read.difference(written)) + 2 * sum(_size(model, n) for n in written)


def _size(model: Model, name: str) -> int:
    if (weight := model.weights.get(name)) is not None:
        return weight.nbytes
    return prod(model.shape(name)) * model.dtype(name).itemsize if model.is_static(name) else 0
