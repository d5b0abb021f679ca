"""The exported model as a way to run: programs and whole models as standard ONNX operators in one session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx
from onnx import TensorProto, helper

from einnet_explore.cost import program_seconds
from einnet_explore.ir import Program
from einnet_explore.onnx_export.export import Replacement, rewrite_model
from einnet_explore.onnx_export.nodes import EXPORT_OPSET, IR_VERSION, to_onnx
from einnet_explore.onnx_import.model import Model
from einnet_explore.onnx_import.shapes import restore_folded_nodes
from einnet_explore.pipeline.plan import ExecutionPlan, Segment
from einnet_explore.pipeline.submodels import open_session, run_session
from einnet_explore.pipeline.tuning_task import ProgramCompiler
from einnet_explore.runtime.outputs import Array, Arrays
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Options
from einnet_explore.support.errors import Refused

MAX_LIBRARY_FORMS = 4
"""How many ways to write a case as library operators are tried beside the way that it is written."""


def library_forms(program: Program) -> Iterable[Program]:
    """*program* as it is written, then as library operators, cheapest first; nothing is derived.

    One that says of every equation what runs it has no other form.
    """
    yield program
    if all(e.via for e in program.equations):
        return
    search = Search(program, program_seconds, Options(max_depth=0))
    found = sorted(((e.seconds, e.state.program) for e in search.run() if isinstance(e, Found)), key=lambda f: f[0])
    yield from (written for _, written in found[:MAX_LIBRARY_FORMS])


def program_model(program: Program, constants: Arrays) -> onnx.ModelProto:
    """*program* as a model of its own: inputs and outputs by its names, weights held; raises Refused."""
    names = {t.name: t.name for t in program.inputs if t.name not in constants}
    shapes = {e.name: e.scope.shape for e in program.equations if e.name in program.outputs}
    made = to_onnx(program, names | {name: name for name in shapes}, constants, "v__")
    graph = helper.make_graph(
        made.nodes,
        "program",
        [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.shape) for t in program.inputs if t.name in names],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in program.outputs],
        initializer=made.initialisers,
    )
    imports = [helper.make_opsetid("", EXPORT_OPSET), *(helper.make_opsetid(f.domain, 1) for f in made.functions[:1])]
    return helper.make_model(graph, functions=made.functions, opset_imports=imports, ir_version=IR_VERSION)


def onnxruntime_compiler(threads: int) -> ProgramCompiler:
    """Programs in ONNX Runtime, as a subprogram's original is run."""

    def engine(program: Program, constants: Arrays) -> Callable[[Arrays], Arrays]:
        session = open_session(program_model(program, constants), threads)
        outputs = list(program.outputs)

        def run(inputs: Arrays) -> Arrays:
            return dict(zip(outputs, session.run(outputs, dict(inputs)), strict=True))

        return run

    return engine


def export_model(model: Model, replacements: Iterable[Replacement]) -> onnx.ModelProto:
    """*model* with *replacements* in standard operators; raises Refused, also for what no protocol buffer holds."""
    made = rewrite_model(restore_folded_nodes(model), replacements)
    if made.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        raise Refused(f"the model has {made.ByteSize()} bytes, expected at most {onnx.checker.MAXIMUM_PROTOBUF}")
    return made


def exported_plan(model: Model, replacements: Iterable[Replacement], threads: int) -> ExecutionPlan:
    """The exported model in one session; raises Refused where it cannot be written or ONNX Runtime refuses it."""
    return session_plan(model, export_model(model, replacements), threads)


def session_plan(model: Model, proto: onnx.ModelProto, threads: int) -> ExecutionPlan:
    """*proto*, which has the inputs and outputs of *model*, in one session."""
    session = open_session(proto, threads)
    types = {v.name: v.dtype for v in model.inputs}
    feeds = tuple(v.name for v in session.get_inputs())
    outputs = tuple(v.name for v in model.outputs)

    def run(held: dict[str, Array]) -> Sequence[Array]:
        return run_session(session, outputs, {name: held[name] for name in feeds})

    segment = Segment(tuple(node.name for node in model.nodes), False, feeds, outputs, run)
    return ExecutionPlan((segment,), {name: types[name] for name in feeds}, outputs, {}, threads)
