"""Cases (``.ein`` programs) in the forms that engines run: derived, unchanged, in standard ONNX operators, in NumPy.

The forms in standard operators compute the same values but move different amounts of data: a direct lowering of a
convolution gathers gigabytes of windows where a library operator reads the image.  Forms that are estimated at more
than ``MAX_ESTIMATE_RATIO`` times the best are excluded.
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
from einnet_explore.pipeline.subprogram import certify_trial
from einnet_explore.pipeline.tuning_context import (
    Implementations,
    OriginalOpener,
    Settings,
    library_forms,
    program_model,
)
from einnet_explore.pipeline.tuning_task import MAX_ESTIMATE_RATIO, TuningTask
from einnet_explore.runtime.arrays import Arrays
from einnet_explore.runtime.implementation_choice import ProfileStore, compile_measured
from einnet_explore.runtime.program import CompiledProgram
from einnet_explore.support.wording import count_noun


def random_inputs_of(program: Program) -> Arrays:
    """Return a deterministic random array for every input of *program*."""
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}


def split_inputs(program: Program, feeds: Arrays) -> tuple[Arrays, Arrays]:
    """Split *feeds* into run-time inputs and weights."""
    inputs = {t.name: feeds[t.name] for t in program.inputs if not t.weight}
    return inputs, {t.name: feeds[t.name] for t in program.inputs if t.weight}


def tune_case(
    program: Program, constants: Arrays, opened: OriginalOpener, settings: Settings, written: str = ""
) -> tuple[CompiledProgram, str] | None:
    """Tune *program* as a subprogram of a model against the baseline *opened*; return the winner and its description.

    Returns None if the original is the fastest: no candidate is worth measuring, is faster, or is proved.  *written*
    identifies the form of the baseline in the store of times.
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
    """Return *program* with every equation as a generated kernel."""
    return replace(program, equations=tuple(replace(e, via=Instance(EOPERATOR)) for e in program.equations))


def numpy_call(program: Program, feeds: Arrays) -> Callable[[], Arrays]:
    """Return a call that evaluates *program* by NumPy: windows are strided views, products use BLAS."""
    return lambda: evaluate(program, feeds, np.float32, outputs_only=True)


def describe_operators(program: Program) -> str:
    """Describe the operators of *program* in order, without views and weight-only equations."""
    folded = weight_only(program)
    runs = [e.via for e in program.equations if e.name not in folded]
    return " + ".join(repr(via) if via else "as written" for via in runs if via is None or via.operator != VIEW)


def standard_forms(program: Program, constants: Arrays, threads: int) -> Sequence[tuple[Program, Model]]:
    """Return the promising forms of *program* and their models, cheapest estimate first.

    Raises ValueError if *program* has no form in standard operators.
    """
    device = Implementations(Settings(threads), ProfileStore()).model.device
    computing = sum(work(e.scope).flops for e in program.equations) / device.peak_flops
    found: list[tuple[float, Program, Model]] = []
    refusal = "no form"
    for written in library_forms(program):
        try:
            model = load_model(program_model(written, constants))
        except Exception as error:  # ONNX's exceptions share no base, out-of-memory errors included
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
