"""The engines of a benchmark: each makes a call of a model or case and its inputs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np
from onnx import TensorProto, helper

from einnet_explore.backends.errors import BackendError
from einnet_explore.backends.measure import compare
from einnet_explore.backends.program import CompiledProgram, compile_program
from einnet_explore.cost import program_seconds, weight_only
from einnet_explore.graph.contest import Arrays, Settings, candidates
from einnet_explore.graph.fuse import fuse
from einnet_explore.graph.optimise import Optimiser
from einnet_explore.graph.reading.load import load
from einnet_explore.graph.running.plan import build_plan
from einnet_explore.graph.running.regions import start
from einnet_explore.graph.whole import telling_inputs
from einnet_explore.graph.writing.export import IR_VERSION, OPSET, to_onnx
from einnet_explore.ir import VIEW, Program
from einnet_explore.rules import Derivation
from einnet_explore.search.engine import Options, Search
from einnet_explore.search.events import Found
from einnet_explore.text import load_text

LIBRARY_FORMS = 4
"""How many ways to write a case as library operators are tried for ONNX Runtime."""

OURS, DIRECT, ORT, TORCH = "einnet_explore", "direct", "onnxruntime", "torch"


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be measured, by which engine; plain values, so that another process can be asked for it."""

    path: str
    engine: str
    threads: int
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    max_depth: int = 7
    budget: float | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """A call with what it reads, what it computes, and what is to be said of it."""

    call: Callable[[], object]
    feeds: Arrays
    outputs: Arrays
    said: str = ""

    def sample(self, repeats: int) -> float:
        """Seconds that *repeats* runs take together, after one that warms the caches."""
        self.call()
        began = perf_counter()
        for _ in range(repeats):
            self.call()
        return perf_counter() - began


def check_engines(path: str, against: Sequence[str]) -> tuple[str, ...]:
    """The engines for *path*, ours first; raises ValueError for one that is unknown, not installed or not for it."""
    case = path.endswith(".ein")
    for name in against:
        if name not in (ORT, TORCH):
            raise ValueError(f"engine {name!r}: expected one of {ORT}, {TORCH}")
        if name == TORCH and case:
            raise ValueError(f"engine {TORCH}: found the case {path}, expected an ONNX model")
        if name == TORCH and importlib.util.find_spec("torch") is None:
            raise ValueError("torch is not installed; expected it for the engine torch: pip install torch")
    return tuple(dict.fromkeys((OURS, *((DIRECT,) if case else ()), *against)))


def prepare(task: Task, feeds: Arrays | None = None) -> Engine:
    """The engine of *task*, run once; *feeds* are random where None.

    Raises ValueError or OSError for a file that cannot be read, BackendError where the engine cannot run it.
    """
    return _of_case(task, feeds) if task.path.endswith(".ein") else _of_model(task, feeds)


def _of_model(task: Task, feeds: Arrays | None) -> Engine:
    model = load(task.path, task.shapes)
    match task.engine:
        case "einnet_explore":
            work = Optimiser(model, Settings(task.threads, task.max_depth), task.budget)
            for _ in work.run():
                pass
            fast = work.result()
            given = feeds or work.feeds
            return Engine(lambda: fast.plan.run(given), given, fast.plan.run(given), fast.summary())
        case "torch":
            from einnet_explore.graph.bench.torch_engine import torch_call

            given = feeds or telling_inputs(model, build_plan(model, {}, task.threads))
            call = torch_call(model, given, task.threads)
            return Engine(call, given, call(), "the same nodes, one by one, without a compiler")
        case _:
            plan = build_plan(model, {}, task.threads)
            given = feeds or telling_inputs(model, plan)
            return Engine(lambda: plan.run(given), given, plan.run(given), "all graph optimisations")


def _of_case(task: Task, feeds: Arrays | None) -> Engine:
    program = load_text(task.path)
    given = feeds or _random(program)
    inputs = {t.name: given[t.name] for t in program.inputs if not t.weight}
    constants = {t.name: given[t.name] for t in program.inputs if t.weight}
    match task.engine:
        case "einnet_explore":
            compiled, said = _derived(program, constants, inputs, task)
        case "direct":
            compiled, said = compile_program(program, task.threads, constants=constants), "its equations as they are"
        case _:
            return _exported(task, program, given, inputs, constants)
    outputs = compiled.run(inputs)
    return Engine(compiled.execute, given, outputs, said)


def _random(program: Program) -> Arrays:
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}


def _derived(program: Program, constants: Arrays, inputs: Arrays, task: Task) -> tuple[CompiledProgram, str]:
    """The fastest, as measured, of the cheapest candidates."""
    settings = Settings(task.threads, task.max_depth)
    if task.budget is not None:
        settings = replace(settings, seconds=task.budget)
    ranked, search = candidates(program, program_seconds, settings)
    ready: dict[str, CompiledProgram] = {}
    for _, state in ranked[: settings.finalists]:
        derivation: Derivation = fuse(search.derivation(state))
        try:
            compiled = compile_program(derivation.end, task.threads, constants=constants)
        except BackendError:
            continue
        compiled.run(inputs)
        ready[f"{called(derivation.end)} ({len(derivation.steps)} steps)"] = compiled
    if not ready:
        raise ValueError(f"{task.path}: found no candidate that runs among {len(ranked)}, expected one to measure")
    times = compare({name: compiled.execute for name, compiled in ready.items()}, rounds=5, min_seconds=0.05)
    best = min(times, key=lambda name: times[name].low)
    return ready[best], best


def _exported(task: Task, program: Program, feeds: Arrays, inputs: Arrays, constants: Arrays) -> Engine:
    """*program* in standard ONNX operators: the fastest of it as written and as library operators, nothing derived."""
    search = Search(program, program_seconds, Options(max_depth=0))
    found = sorted(((e.seconds, e.state.program) for e in search.run() if isinstance(e, Found)), key=lambda f: f[0])
    best: Engine | None = None
    for written in (program, *(p for _, p in found[:LIBRARY_FORMS])):
        try:
            engine = _session(written, feeds, inputs, constants, task.threads)
        except ValueError as error:
            refusal = error
            continue
        if best is None or engine.sample(3) < best.sample(3):
            best = engine
    if best is None:
        raise ValueError(f"{task.path}: found nothing that ONNX Runtime runs: {refusal}")
    return best


def _session(program: Program, feeds: Arrays, inputs: Arrays, constants: Arrays, threads: int) -> Engine:
    outputs = {e.name: e.scope.shape for e in program.equations if e.name in program.outputs}
    made = to_onnx(program, {name: name for name in (*inputs, *outputs)}, constants, "v_")
    graph = helper.make_graph(
        list(made.nodes),
        "case",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        list(made.initialisers),
    )
    imports = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(f.domain, 1) for f in made.functions[:1])]
    model = helper.make_model(graph, functions=list(made.functions), opset_imports=imports, ir_version=IR_VERSION)
    session = start(model, threads)

    def call() -> Arrays:
        return dict(zip(outputs, session.run(list(outputs), dict(inputs)), strict=True))

    return Engine(call, feeds, call(), called(program))


def called(program: Program) -> str:
    """The operators of *program* that take time, in order: views and what only depends on weights are free."""
    folded = weight_only(program)
    runs = [e.via for e in program.equations if e.name not in folded]
    return " + ".join(repr(via) if via else "as written" for via in runs if via is None or via.operator != VIEW)
