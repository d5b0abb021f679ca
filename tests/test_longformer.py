"""Attention to a dilated window: its model, bands found in expressions, the derivation, its kernels and its export."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import einnet_explore as ee
from einnet_evaluation.models.longformer import DILATION, HEADS, layer
from einnet_explore.analysis.row_nest import BandNode, ReducedNode, RowNest, RowNode, match_row_nest
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.codegen.rows.kernel import block_rows
from einnet_explore.codegen.tvm.emission import vector_tile
from einnet_explore.cost.model import program_seconds
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import EOPERATOR, Equation, Instance, Program, Scope, program, tensors
from einnet_explore.onnx_export.lowering import to_onnx
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.subprogram import Subprogram
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.variants import find_variants
from einnet_explore.rules import ROW_GENERATION, Refused
from einnet_explore.runtime.program import compile_program
from einnet_explore.runtime.tvm_cpu import TvmSource, load_tvm_kernel
from einnet_explore.strategies.vertical_fusion import fuse_vertically, vertical_fusions
from einnet_explore.syntax import parse

ATTENTION = """
tensor Q[{b}, {m}, {k}]
tensor K[{b}, {m}, {k}] pad [0, {p}, 0]
tensor V[{b}, {m}, {n}] pad [0, {p}, 0]
tensor bias[{m}, {x}]
S[b:{b}, m:{m}, w:{x}] = sum[k:{k}] Q[b, m, k] * K[b, m+{d}*w-{p}, k]
Z[b:{b}, m:{m}, w:{x}] = 0.5 * S[b, m, w] + bias[m, w]
M[b:{b}, m:{m}] = max[w:{x}] Z[b, m, w]
E[b:{b}, m:{m}, w:{x}] = exp(Z[b, m, w] - M[b, m])
T[b:{b}, m:{m}] = sum[w:{x}] E[b, m, w]
P[b:{b}, m:{m}, w:{x}] = E[b, m, w] / T[b, m]
Y[b:{b}, m:{m}, n:{n}] = sum[w:{x}] P[b, m, w] * V[b, m+{d}*w-{p}, n]
output Y
"""


def attention(b: int, m: int, k: int, n: int, half: int, d: int = 1) -> Program:
    return parse(ATTENTION.format(b=b, m=m, k=k, n=n, x=2 * half + 1, d=d, p=half * d))


def arrays_of(scope: Scope) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in tensors(scope)}


def fits(scope: Scope) -> RowNest:
    found = match_row_nest(scope)
    assert found is not None
    return found


def only(program: Program) -> Scope:
    (equation,) = program.equations
    return equation.scope


def computed(scope: Scope, arrays: Mapping[str, np.ndarray], threads: int = 1) -> np.ndarray:
    """Run the kernel of rows on *arrays*; other schedules are not used."""
    source = TvmSource(scope, threads=threads)
    assert isinstance(source.kind, RowNest) and ("parallel" in source.text) == (threads > 1)
    kernel = load_tvm_kernel(source)
    return kernel(*(arrays[t] for t in kernel.source.inputs))


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


# Bands in expressions


@pytest.mark.parametrize(
    "text",
    [
        "Y[b:2, m:20, w:7] = sum[k:8] A[b, m, k] * B[b, m+w-3, k]",
        "Y[b:2, m:20, w:7] = sum[k:8] A[b, m, k] * B[b, m+w-5, k]",
        "Y[m:20, b:2, w:7] = sum[k:8] B[b, m+w-3, k] * A[b, m, k] * 2",
        "Y[b:2, r:2, m:10, w:7] = sum[k:8] A[b, 2*m+r, k] * B[b, 2*m+2*w+r-6, k]",
        "Y[b:2, m:20, n:8] = sum[w:7] A[b, m, w] * B[b, m+w-3, n]",
        "Y[b:2, m:20, w:7] = relu({[b:2, m:20, w:7] sum[k:8] A[b, m, k] * B[b, m+w-3, k]}[b, m, w] - 1)",
        "Y[b:2, m:20, w:7] = sum[k:8] A[b, m, k] * relu(B[b, m+w-3, k])",
        "Y[b:2, m:20, w:7] = {[b:2, m:20, w:7] sum[k:8] A[b, m, k] * B[b, m+w-3, k]}[b, m, w] * B[b, m+w-3, b]",
    ],
)
def test_bands_are_found_by_their_indices(text: str) -> None:
    scope = parse(f"tensor A[2, 20, 8]\ntensor B[2, 20, 8] pad [0, 14, 0]\n{text}").equations[0].scope
    assert fits(scope).banded
    arrays = arrays_of(scope)
    close(computed(scope, arrays), evaluate(scope, arrays, np.float64))


@pytest.mark.parametrize(
    "text",
    [
        "Y[b:2, m:20, w:7] = sum[k:8] A[b, m, k] * B[b, m+2*w-6, k]",  # dilated: residues are no batch yet
        "Y[b:2, m:20, w:7] = sum[k:8] A[b, m, k] * B[b, m-w+6, k]",  # backwards
        "Y[b:2, m:20, w:7] = sum[k:8] A[b, m, k] * B[b, w, k]",  # dense
        "Y[b:2, m:20, w:7] = sum[k:8] A[b, m, k] * B[b, m+w-3, k] * B[b, w, k]",
        "Y[b:2, m:20, w:7] = max[k:8] A[b, m, k] * B[b, m+w-3, k]",
        "Y[b:2, m:20] = A[b, m, 0] + B[b, m, 0]",
        "Y[b:2, m:20, n:8] = sum[w:7, v:2] A[b, m, w] * B[b, m+w+v-3, n]",
        "Y[b:2, m:20, w:7] = relu(A[b, m, w]) + {[b:2] sum[k:8] A[b, 0, k]}[b]",
    ],
)
def test_scopes_that_are_no_band_are_not_matched(text: str) -> None:
    assert (
        match_row_nest(parse(f"tensor A[2, 20, 8]\ntensor B[2, 20, 8] pad [0, 14, 0]\n{text}").equations[0].scope)
        is None
    )


def test_the_nodes_of_attention() -> None:
    derivation = fuse_vertically(attention(2, 12, 4, 4, 2))
    assert derivation is not None
    found = fits(derivation.end.equations[0].scope)
    assert [type(node) for node in found.nodes] == [BandNode, RowNode, ReducedNode, RowNode, ReducedNode]
    # What divides a whole row is left to the end.
    assert "/(" in repr(found.scale) and "/(" not in repr(found.result)
    assert found.flops == 2 * (4 + 4) * 2 * 12 * 5


def test_columns_that_are_zero_are_known() -> None:
    (band,) = fits(only(ee.ops.g2bmm(1, 100, 10, 4))).nodes
    assert isinstance(band, BandNode) and band.support == (10, 110)
    product = fits(only(ee.ops.gbmm(1, 100, 10, 4))).product
    assert product is not None and product.support == (10, 110)


# Kernels


@settings(deadline=None, max_examples=12)
@given(
    b=st.integers(1, 3), m=st.integers(1, 90), k=st.integers(1, 20), n=st.integers(1, 40),
    half=st.integers(1, 20), threads=st.integers(1, 2),
)  # fmt: skip
def test_attention_in_one_kernel(b: int, m: int, k: int, n: int, half: int, threads: int) -> None:
    derivation = fuse_vertically(attention(b, m, k, n, half))
    assert derivation is not None
    scope = only(derivation.end)
    arrays = arrays_of(scope)
    close(computed(scope, arrays, threads), evaluate(scope, arrays, np.float64))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", [(2, 130, 33, 64), (1, 70, 100, 16), (3, 5, 9, 8)])
def test_kernels_of_band_products_are_correct(sizes: tuple[int, int, int, int], threads: int) -> None:
    b, m, w, k = sizes
    for made in (ee.ops.g2bmm(b, m, w, k), ee.ops.gbmm(b, m, w, k)):
        arrays = arrays_of(only(made))
        close(computed(only(made), arrays, threads), evaluate(only(made), arrays, np.float64))


def test_a_softmax_is_one_kernel() -> None:
    scope = (
        parse("""
        tensor A[3, 5, 37]
        Y[b:3, m:5, n:37] = {[b:3, m:5, n:37] exp(A[b, m, n] - {[b:3, m:5] max[k:37] A[b, m, k]}[b, m])}[b, m, n]
            / {[b:3, m:5] sum[k:37] {[b:3, m:5, n:37]
                exp(A[b, m, n] - {[b:3, m:5] max[k:37] A[b, m, k]}[b, m])}[b, m, k]}[b, m]""")
        .equations[0]
        .scope
    )
    found = fits(scope)
    assert not found.banded and [type(node) for node in found.nodes] == [ReducedNode, RowNode, ReducedNode]
    arrays = arrays_of(scope)
    close(computed(scope, arrays), evaluate(scope, arrays, np.float64))


def test_tiles_fill_the_registers() -> None:
    assert [(t.rows, t.vectors) for t in (vector_tile(n, Machine()) for n in (5, 16, 32, 48, 64, 200))] == [
        (16, 1), (16, 1), (8, 2), (8, 2), (4, 4), (4, 4)
    ]  # fmt: skip


def test_a_block_of_rows_stays_in_the_cache() -> None:
    wide, narrow = (fits(only(ee.ops.g2bmm(1, 4000, w, 8))) for w in (1500, 20))
    assert (
        block_rows(wide, Machine(l2=1 << 18))
        < block_rows(wide, Machine(l2=1 << 20))
        <= block_rows(narrow, Machine(l2=1 << 20))
    )


# The derivation


def test_residues_become_a_batch_and_every_step_is_proved() -> None:
    start = attention(1, 24, 3, 4, 2, d=4)
    assert match_row_nest(start.equations[0].scope) is None
    derivation = fuse_vertically(start)
    assert derivation is not None
    assert {certify(step.before, step.after).kind for step in derivation.steps} == {"proved"}
    assert certify(start, derivation.end).kind == "proved"
    inner, outer = derivation.end.equations
    assert inner.via == Instance(EOPERATOR, (("kind", "rows"),)) and [x.extent for x in inner.scope.traversals][
        1:3
    ] == [4, 6]
    assert outer.via is not None and not outer.scope.summations
    arrays = {t.name: np.random.default_rng(1).standard_normal(t.shape).astype(np.float32) for t in start.inputs}
    close(compile_program(derivation.end).run(arrays)["Y"], evaluate(start, arrays, np.float64)["Y"])


@pytest.mark.parametrize("sizes", [(1, 21, 3, 4, 2, 4), (2, 61, 5, 7, 4, 3), (1, 40, 4, 4, 3, 5), (3, 10, 2, 3, 1, 7)])
def test_any_dilation_of_any_number_of_rows_is_one_kernel(sizes: tuple[int, int, int, int, int, int]) -> None:
    """Residues that do not fill a box read guarded rows beyond the last, and nobody reads their results."""
    start = attention(*sizes)
    derivation = fuse_vertically(start)
    assert derivation is not None and len(derivation.end.equations) == 2
    assert {certify(step.before, step.after).kind for step in derivation.steps} == {"proved"}
    assert certify(start, derivation.end).kind == "proved"
    arrays = {t.name: np.random.default_rng(1).standard_normal(t.shape).astype(np.float32) for t in start.inputs}
    close(compile_program(derivation.end).run(arrays)["Y"], evaluate(start, arrays, np.float64)["Y"])


def test_vertical_fusion_substitutes_what_saves_most_traffic_first() -> None:
    start = attention(1, 64, 4, 4, 8)
    found = [fused.end for fused in vertical_fusions(start)]
    assert any(len(program.equations) == 1 for program in found) and len(found) > 3
    first = next(iter(vertical_fusions(start)))
    assert first.steps[0].match.params.tensor in ("S", "Z", "E", "P")  # bands of 64 x 17, rather than rows of 64


def test_fused_variants_compete_with_the_others() -> None:
    found = find_variants(attention(1, 61, 8, 8, 4, 3), program_seconds, Settings(max_depth=2, states=30)).variants
    kinds = {variant.kind for variant in found}
    assert (0, "rows") in kinds and any("rows" not in kind for kind in kinds)


@pytest.mark.parametrize(
    "start",
    [
        ee.ops.matmul(8, 8, 8),
        ee.ops.g2bmm(1, 8, 1, 4),
    ],
)
def test_program_without_row_work_is_not_fused(start: Program) -> None:
    assert fuse_vertically(start) is None


def test_row_generation_refuses() -> None:
    dense = ee.ops.matmul(4, 4, 4)
    with pytest.raises(Refused, match="is no row computation"):
        ROW_GENERATION.match(dense, (0,)).apply(dense)
    assert "is no row computation" in ROW_GENERATION.explain(dense, (0,)) and not list(
        ROW_GENERATION.propose(dense, (0,))
    )
    with pytest.raises(Refused, match="takes no parameters, found w"):
        ROW_GENERATION.match(dense, (0,), w=1)
    band = ee.ops.g2bmm(1, 8, 1, 4)
    (match,) = ROW_GENERATION.matches(band, (0,))
    done = match.apply(band).after
    assert (
        ROW_GENERATION.explain(band, (0,)) == "it can be generated by rows"
        and ROW_GENERATION.encode(match.params) == {}
    )
    with pytest.raises(Refused, match="instantiated already, by eOperator"):
        ROW_GENERATION.rewrite(done, (0,), match.params)


# The model


def reference(model: onnx.ModelProto, x: np.ndarray, half: int) -> np.ndarray:
    """The layer in NumPy: every position against every other one, those outside the window masked."""
    weights = {w.name: onnx.numpy_helper.to_array(w).astype(np.float64) for w in model.graph.initializer}
    matrices = [w for name, w in weights.items() if name.startswith("weight")]
    biases = [w for name, w in weights.items() if name.startswith("bias")]

    def linear(n: int, y: np.ndarray) -> np.ndarray:
        return y @ matrices[n] + biases[n]

    size = x.shape[1]
    d = np.arange(size)[None] - np.arange(size)[:, None]
    seen = (abs(d) <= half * DILATION) & (d % DILATION == 0)
    q, k, v = (y.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2) for y in np.split(linear(0, x), 3, axis=-1))
    scores = np.where(seen, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    attended = (weight / weight.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(x.shape)
    y = x + linear(1, attended)
    return y + linear(3, np.maximum(linear(2, y), 0))


@pytest.fixture(scope="module")
def small() -> onnx.ModelProto:
    return layer(2, 40, window=8)


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))[0]


def test_the_model_attends_to_its_window(small: onnx.ModelProto) -> None:
    x = np.random.default_rng(2).standard_normal((2, 40, 512)).astype(np.float32)
    close(run(small, {"input": x}), reference(small, x.astype(np.float64), 4))


@pytest.fixture(scope="module")
def heads(small: onnx.ModelProto) -> list[Subprogram]:
    return [
        part
        for part in partition(load_model(small)).subprograms
        if any(name.startswith("Softmax") for name in part.nodes)
    ]


def test_each_head_is_one_subprogram(heads: list[Subprogram]) -> None:
    assert len(heads) == HEADS
    for head in heads:
        kinds = [name.partition("_")[0] for name in head.nodes]
        assert kinds.count("MatMul") == 2 and kinds.count("Gather") == 2 and len(head.outputs) == 1


def test_the_windows_are_read_where_they_lie(heads: list[Subprogram]) -> None:
    """A dilated band, recognised from Pad, Gather and MatMul by its indices alone, made dense by residues."""
    derivation = fuse_vertically(heads[0].program)
    assert derivation is not None and certify(heads[0].program, derivation.end).kind == "proved"
    found = fits(derivation.end.equations[0].scope)
    assert [type(node) for node in found.nodes] == [BandNode, RowNode, ReducedNode, RowNode, ReducedNode]
    assert found.product is not None and found.row.extent == 40 // DILATION and found.along.extent == 9
    arrays = {
        t.name: np.random.default_rng(3).standard_normal(t.shape).astype(np.float32) for t in heads[0].program.inputs
    }
    want = evaluate(heads[0].program, arrays, np.float64)
    got = compile_program(derivation.end, threads=2).run(arrays)
    for name in heads[0].program.outputs:
        close(got[name], want[name])


# As standard operators


def exported(scope: Scope) -> onnx.ModelProto:
    made = to_onnx(
        Program(tuple(tensors(scope)), (Equation("Y", scope),), ("Y",)),
        {t.name: t.name for t in tensors(scope)} | {"Y": "Y"},
    )
    infos = [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.shape) for t in tensors(scope)]
    out = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, scope.shape)]
    graph = helper.make_graph(list(made.nodes), "rows", infos, out, list(made.initialisers))
    imports = [helper.make_opsetid("", 21), *(helper.make_opsetid(f.domain, 1) for f in made.functions[:1])]
    model = helper.make_model(graph, functions=list(made.functions), opset_imports=imports, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("sizes", [(2, 50, 8, 16, 6), (1, 33, 5, 7, 9), (1, 4, 3, 3, 6)])
def test_rows_are_exported_in_chunks(sizes: tuple[int, int, int, int, int]) -> None:
    derivation = fuse_vertically(attention(*sizes))
    assert derivation is not None
    scope = only(derivation.end)
    arrays = arrays_of(scope)
    close(run(exported(scope), arrays), evaluate(scope, arrays, np.float64))


@pytest.mark.parametrize("made", [ee.ops.g2bmm(2, 64, 16, 8), ee.ops.gbmm(2, 64, 16, 8)])
def test_no_window_is_gathered(made: Program) -> None:
    """The largest value on the way is a few times the band, not the band times the features."""
    model = exported(only(made))
    flat = onnx.inliner.inline_local_functions(model)
    known = onnx.shape_inference.infer_shapes(flat, data_prop=True)
    sizes = [np.prod([d.dim_value for d in v.type.tensor_type.shape.dim]) for v in known.graph.value_info]
    assert len(sizes) > 5 and max(sizes) <= 2 * (2 * 64 * 33)
    arrays = arrays_of(only(made))
    close(run(model, arrays), evaluate(program(only(made)), arrays, np.float64)["Y"])
