"""Programs and whole models in standard ONNX operators, each in one session of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx
from onnx import TensorProto, helper

from einnet_explore.cost import program_seconds
from einnet_explore.ir import Program
from einnet_explore.onnx_export.export import EXPORT_OPSET, IR_VERSION, Replacement, rewrite_model, to_onnx
from einnet_explore.onnx_import.model import Model
from einnet_explore.onnx_import.shapes import restore_folded_nodes
from einnet_explore.pipeline.plan import ExecutionPlan, Segment
from einnet_explore.pipeline.submodels import open_session, run_session
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Options
from einnet_explore.support.errors import Refused

MAX_LIBRARY_FORMS = 4
"""Forms in library operators that are tried in addition to the program as written."""


def library_forms(program: Program) -> Iterable[Program]:
    """Yield *program* as written, then in library operators, cheapest first; nothing is derived.

    A program whose equations are all instantiated has no other form.
    """
    yield program
    if all(e.via for e in program.equations):
        return
    search = Search(program, program_seconds, Options(max_depth=0))
    found = sorted(((e.seconds, e.state.program) for e in search.run() if isinstance(e, Found)), key=lambda f: f[0])
    yield from (written for _, written in found[:MAX_LIBRARY_FORMS])


def program_model(program: Program, constants: Arrays) -> onnx.ModelProto:
    """Return *program* as an ONNX model with its own input and output names and its weights; raises Refused."""
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


def compile_in_onnxruntime(program: Program, constants: Arrays, threads: int) -> Callable[[Arrays], Arrays]:
    """Return *program* as a function that ONNX Runtime runs; raises Refused."""
    session = open_session(program_model(program, constants), threads)
    outputs = list(program.outputs)
    return lambda inputs: dict(zip(outputs, session.run(outputs, dict(inputs)), strict=True))


def export_model(model: Model, replacements: Iterable[Replacement]) -> onnx.ModelProto:
    """Return *model* with *replacements* in standard operators; raises Refused, also beyond 2 GiB."""
    made = rewrite_model(restore_folded_nodes(model), replacements)
    if made.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        raise Refused(f"the model has {made.ByteSize()} bytes, expected at most {onnx.checker.MAXIMUM_PROTOBUF}")
    return made


def exported_plan(model: Model, replacements: Iterable[Replacement], threads: int) -> ExecutionPlan:
    """Return the exported model as a plan of one session; raises Refused."""
    return session_plan(model, export_model(model, replacements), threads)


def session_plan(model: Model, proto: onnx.ModelProto, threads: int) -> ExecutionPlan:
    """Return *proto*, which has the inputs and outputs of *model*, as a plan of one session."""
    session = open_session(proto, threads)
    types = {v.name: v.dtype for v in model.inputs}
    feeds = tuple(v.name for v in session.get_inputs())
    outputs = tuple(v.name for v in model.outputs)

    def run(held: dict[str, Array]) -> Sequence[Array]:
        return run_session(session, outputs, {name: held[name] for name in feeds})

    segment = Segment(tuple(node.name for node in model.nodes), False, feeds, outputs, run)
    return ExecutionPlan((segment,), {name: types[name] for name in feeds}, outputs, {}, threads)
