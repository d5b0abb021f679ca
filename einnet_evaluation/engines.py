"""Engines of a benchmark: each turns a model or case and its inputs into a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from einnet_evaluation.bench_cases import (
    describe_operators,
    numpy_call,
    random_inputs_of,
    split_inputs,
    standard_forms,
    tune_case,
    without_library_calls,
)
from einnet_evaluation.rivals import ORT, RIVALS
from einnet_explore.codegen.versions import all_versions
from einnet_explore.ir import Program
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.onnx_import.size_ranges import RangedShapes
from einnet_explore.pipeline.baseline import discriminating_inputs
from einnet_explore.pipeline.optimisation import OptimiserOptions, begin_optimisation, optimize_model, run_to_end
from einnet_explore.pipeline.optimised import Optimised
from einnet_explore.pipeline.optimised_sizes import OptimisedSizes, describe_tuple
from einnet_explore.pipeline.plan import build_plan
from einnet_explore.pipeline.selection import selection_seconds
from einnet_explore.pipeline.subprogram import operator_digest
from einnet_explore.pipeline.tuning_context import OriginalRun, Settings
from einnet_explore.pipeline.tuning_task import MAX_ESTIMATE_RATIO
from einnet_explore.runtime.arrays import Arrays
from einnet_explore.runtime.measurement import own_seconds
from einnet_explore.runtime.program import compile_program
from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import count_noun, suggest
from einnet_explore.syntax import load_text

OURS, EXPORTED, DIRECT = "einnet_explore", "onnxruntime on OUT.onnx", "direct"
NUMPY, GENERATED = "numpy", "generated"

ALL = "all"
"""Stands for every engine to compare with."""

WARMUP_LIMIT_SECONDS = 0.2
"""Longer calls have no warm-up run, since caches warm up within the call."""


@dataclass(frozen=True, slots=True)
class Task:
    """Measurement task of one engine as plain values, which can be sent to another process.

    *export* is the path of the optimised model, written by this project's engine and read by ``EXPORTED``; *attribute*:
    measure the speedup of each selected derivation.
    """

    path: str
    engine: str
    threads: int
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    max_depth: int = 7
    budget: float | None = None
    export: str = ""
    attribute: bool = False


@dataclass(frozen=True, slots=True)
class Engine:
    """A call with its inputs, its outputs and a description.

    *written*: digest of the operators of a case's form, or of the versions of the kernels that run it.
    """

    call: Callable[[], object]
    feeds: Arrays
    outputs: Arrays
    said: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    written: str = ""

    def sample(self, repeats: int, warm: bool = True) -> float:
        """Return *repeats* times the median seconds of a run, after a warm-up run if *warm*.

        Seconds are those of ``own_seconds``, so the time of other processes does not count; the median ignores runs
        that these disturb.
        """
        if warm:
            self.call()
        return repeats * median(own_seconds(self.call, 1) for _ in range(repeats))


def check_engines(path: str, against: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the engines *against* for *path*; raise ValueError for an unknown engine.

    ``ALL`` stands for every engine that runs such a file: NumPy runs cases only.
    """
    known = (*RIVALS, NUMPY) if path.endswith(".ein") else tuple(RIVALS)
    for name in against:
        if name == NUMPY and name not in known:
            raise ValueError(f"engine {NUMPY}: found the model {path}, expected a case (.ein)")
        if name not in (*known, ALL):
            names = (*RIVALS, NUMPY, ALL)
            raise ValueError(f"engine {name!r}: expected one of {', '.join(names)}{suggest(name, names)}")
    return tuple(dict.fromkeys(one for name in against for one in (known if name == ALL else (name,))))


def prepare(task: Task, feeds: Arrays | None = None) -> Engine:
    """Return the engine of *task* after one run; *feeds* default to random arrays.

    Raises ValueError or OSError for a file that cannot be read, BackendError if the engine cannot run it.
    """
    return _of_case(task, feeds) if task.path.endswith(".ein") else _of_model(task, feeds)


def open_program(name: str, program: Program, feeds: Arrays, threads: int) -> tuple[Arrays, Callable[[], object]]:
    """Return the outputs of *program* in the runtime *name* on *feeds*, weights among them, and the call that runs it.

    It is the fastest of its forms in standard operators.  Raises ValueError if the runtime is missing or runs none.
    """
    made = _written(Task("program", name, threads), program, feeds)
    return made.outputs, made.call


def _of_model(task: Task, feeds: Arrays | None) -> Engine:
    match task.engine:
        case "einnet_explore":
            model = load_model(task.path, task.shapes)
            if sizes := _batch_sizes(model):
                return _of_batches(task, model, sizes, feeds)
            fast = optimize_model(model, threads=task.threads, max_depth=task.max_depth, budget=task.budget)
            given = feeds or dict(fast.feeds)
            return _of_result(task, fast, fast, lambda: fast.plan.run(given), given, fast.summary())
        case "onnxruntime on OUT.onnx":
            found = _in_runtime(load_model(task.export, task.shapes), feeds, replace(task, engine=ORT))
            return replace(found, said="what was found, in standard operators")
        case _:
            return _in_runtime(load_model(task.path, task.shapes), feeds, task)


def _batch_sizes(model: Model) -> dict[str, tuple[int | tuple[int, ...], ...]]:
    """Return the shapes of the inputs of *model* with the sizes 1 and that of the batch; none without larger batches.

    A batch is a dynamic dimension that is the first of an input.
    """
    first = {name: dims[0] for name, dims in model.dynamic.items() if dims and not isinstance(dims[0], int)}
    shapes = {value.name: value.shape or () for value in model.inputs}
    counts = {shapes[name][0] for name in first}
    if len(counts) != 1 or 1 in counts:
        return {}
    sizes = (1, counts.pop())
    return {name: (sizes, *shape[1:]) if name in first else shape for name, shape in shapes.items()}


def _of_batches(task: Task, model: Model, sizes: RangedShapes, feeds: Arrays | None) -> Engine:
    """Return the engine of *model*, tuned at these *sizes*: plans of one sample run a batch where that is faster."""
    options = OptimiserOptions(shapes=sizes, threads=task.threads, max_depth=task.max_depth, budget=task.budget)
    fast = run_to_end(begin_optimisation(task.path, options))
    assert isinstance(fast, OptimisedSizes)
    given = feeds or discriminating_inputs(model, build_plan(model, {}, task.threads))
    chunks = fast.chunks_of(given)
    plan = fast.plans[chunks[0]] if chunks else None
    whole = fast.ranges.sizes_of({name: array.shape for name, array in given.items()})
    said = "the original" if plan is None else plan.summary()
    if chunks and chunks != (whole,):
        said = f"{count_noun(len(chunks), 'run')} of the plan of {describe_tuple(chunks[0])}: {said}"
    return _of_result(task, fast, plan, lambda: fast.run(given, chunks), given, said)


def _of_result(
    task: Task,
    fast: Optimised | OptimisedSizes,
    plan: Optimised | None,
    run: Callable[[], Arrays],
    given: Arrays,
    said: str,
) -> Engine:
    """Return the engine that *run* is, of *plan* (None: the original); *fast* is exported and attributed as asked."""
    if task.export:
        write_atomically(task.export, fast.onnx().SerializeToString())
    brought = plan.attributions(selection_seconds(task.budget)) if plan and task.attribute else ()
    details = {"attribution": [a.to_json() for a in brought]} if task.attribute else {}
    return Engine(run, given, run(), said, details)


def _in_runtime(model: Model, feeds: Arrays | None, task: Task) -> Engine:
    given = feeds or discriminating_inputs(model, build_plan(model, {}, task.threads))
    made = RIVALS[task.engine].start(model, given, task.threads)
    return Engine(made.call, given, made.call(), made.said)


def _of_case(task: Task, feeds: Arrays | None) -> Engine:
    program = load_text(task.path)
    given = feeds or random_inputs_of(program)
    inputs, constants = split_inputs(program, given)
    match task.engine:
        case "einnet_explore":
            return _tuned(task, program, given)
        case "direct":
            compiled, said = compile_program(program, task.threads, constants=constants), "its equations as they are"
        case "generated":
            compiled = compile_program(without_library_calls(program), task.threads, constants=constants)
            said = "every equation as a generated kernel"
        case "numpy":
            call = numpy_call(program, given)
            return Engine(call, given, call(), "windows as strided views, products by BLAS")
        case _:
            return _written(task, program, given)
    outputs = compiled.run(inputs)
    return Engine(compiled.execute, given, outputs, said)


def _tuned(task: Task, program: Program, given: Arrays) -> Engine:
    """Return the engine of the fastest derived candidate of *program*, or of its original."""
    inputs, constants = split_inputs(program, given)
    original = _original(task, program, given)
    settings = Settings(task.threads, task.max_depth)
    if task.budget is not None:
        settings = replace(settings, seconds=task.budget)

    def run() -> Arrays:
        original.call()
        return original.outputs

    found = tune_case(program, constants, lambda: OriginalRun(run, inputs), settings, original.written)
    if found is None:
        return replace(original, said=f"{original.said} (0 steps: the original)")
    compiled, said = found
    outputs = compiled.run(inputs)
    return Engine(compiled.execute, given, outputs, said)


def _original(task: Task, program: Program, given: Arrays) -> Engine:
    """Return *program* in ONNX Runtime, or as generated kernels if ONNX Runtime cannot run it."""
    try:
        return _written(replace(task, engine=ORT), program, given)
    except ValueError:
        return replace(_of_case(replace(task, engine=DIRECT), given), written=f"kernels of {all_versions()}")


def _written(task: Task, program: Program, given: Arrays) -> Engine:
    """Return the engine of the fastest form of *program* in standard operators.

    Forms that take more than ``MAX_ESTIMATE_RATIO`` times the fastest form so far are run only once.
    """
    inputs, constants = split_inputs(program, given)
    best: Engine | None = None
    refusal = ""
    for form, model in standard_forms(program, constants, task.threads):
        try:
            made = _in_runtime(model, inputs, task)
        except Exception as error:  # engines' exceptions share no base, out-of-memory errors included
            refusal = str(error) or type(error).__name__
            continue
        said = f"{describe_operators(form)}; {made.said}"
        how = operator_digest(model, [node.name for node in model.nodes])
        engine = Engine(made.call, given, made.outputs, said, written=how)
        if best is None or (
            engine.sample(1, False) < MAX_ESTIMATE_RATIO * best.sample(1, False) and engine.sample(3) < best.sample(3)
        ):
            best = engine
    if best is None:
        raise ValueError(f"{task.path}: found nothing that {task.engine} runs: {refusal}")
    return best
