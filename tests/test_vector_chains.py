"""Chains across depthwise convolutions: layouts of vectors, sliding stages, epilogues, and where models have them."""

import json
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from onnx_building import build, node

import einnet_explore as ee
from einnet_explore.analysis.fused_chain import find_chain
from einnet_explore.codegen.fused_tiling.block_sizes import (
    FAR_VECTOR_CYCLES,
    SINGLE_ELEMENT_CYCLES,
    TRANSPOSED_VECTOR_CYCLES,
    ChainPart,
    block_stages,
    choose_cuts,
    choose_vector_tile,
    element_cycles,
    is_vector_sum,
    match_product,
    match_transpose,
    panel_width,
    product_cycles,
    product_tile,
    sum_blocks,
    tileable_chain,
)
from einnet_explore.codegen.fused_tiling.kernel import chain_function, operand_bytes
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.codegen.tvm.emission import PREFETCH_DISTANCE, VectorTile
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program, Scope, tensors
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline import joins
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.tuning_order import structure
from einnet_explore.pipeline.vector_layouts import (
    chain_in_vectors,
    is_chain_in_vectors,
    is_fixed_chain,
    with_vector_layouts,
)
from einnet_explore.rules import STORAGE_LAYOUT, Refused
from einnet_explore.rules.generation import BLOCKED
from einnet_explore.runtime.program import compile_program
from einnet_explore.strategies.candidate import replay, steps_to_json
from tests.test_blocked import HERE, run
from tests.test_einnet_check import believed

RESIDUAL = """
tensor X[1, {c}, {h}, {w}]
tensor W[{e}, {c}, 1, 1] weight
tensor K[{e}, 1, {k}, {k}] weight
tensor V[{f}, {e}, 1, 1] weight
P[n:1, f:{e}, h:{h}, w:{w}] = sum[c:{c}, r:1, s:1] X[n, c, h+r, w+s] * W[f, c, r, s]
Q[n:1, f:{e}, h:{h}, w:{w}] = minimum(6, relu(P[n, f, h, w])) pad [0, 0, {p}, {p}]
D[n:1, g:{e}, f:1, h:{oh}, w:{ow}] = sum[c:1, r:{k}, s:{k}] Q[n, g+c, {s}*h+r-{p}, {s}*w+s-{p}] * K[g+f, c, r, s]
E[n:1, f:{e}, h:{oh}, w:{ow}] = D[n, f, 0, h, w]
F[n:1, f:{e}, h:{oh}, w:{ow}] = relu(E[n, f, h, w])
"""
PROJECTION = "sum[c:{e}, r:1, s:1] F[n, c, h+r, w+s] * V[f, c, r, s]"


def residual(c: int, e: int, f: int, h: int, w: int, k: int = 3, s: int = 1, added: bool = False) -> Program:
    """An inverted residual: a product, a depthwise convolution and a product, with activations between them."""
    p = k // 2
    oh, ow = ((n + 2 * p - k) // s + 1 for n in (h, w))
    last = f"[n:1, f:{f}, h:{oh}, w:{ow}]"
    text = RESIDUAL + (
        f"G{last} = {PROJECTION}\nY{last} = X[n, f, h, w] + G[n, f, h, w]" if added else f"Y{last} = {PROJECTION}"
    )
    return ee.parse(text.format(c=c, e=e, f=f, h=h, w=w, k=k, s=s, p=p, oh=oh, ow=ow))


def integers(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.integers(-2, 3, t.shape).astype(np.float32) for t in program.inputs}


def chain_scope(program: Program) -> tuple[Scope, dict[str, np.ndarray], np.ndarray]:
    """Return the chain of *program*, the arrays that it reads, and its value."""
    found = chain_in_vectors(program)
    assert found is not None and found.end.equations[-1].via == BLOCKED
    arrays = integers(program)
    values = evaluate(replace(found.end, outputs=tuple(e.name for e in found.end.equations)), arrays)
    return found.end.equations[-1].scope, {**arrays, **values}, evaluate(program, arrays)["Y"]


@pytest.mark.parametrize(
    ("sizes", "options", "size", "threads"),
    [
        ((5, 32, 16, 8, 9), {}, 0, 1),
        ((16, 32, 16, 8, 8), {"added": True}, 2, 1),
        ((16, 32, 16, 8, 8), {"added": True}, 3, 1),
        ((16, 32, 16, 8, 8), {"added": True}, 2, 2),
        ((3, 48, 24, 9, 7), {"s": 2}, 1, 1),
        ((4, 16, 40, 6, 11), {"k": 5}, 2, 1),
        ((4, 24, 16, 7, 6), {"k": 5, "s": 2}, 1, 1),
    ],
)
def test_every_cut_of_an_inverted_residual_gives_the_same(
    sizes: tuple[int, ...], options: dict[str, int], size: int, threads: int
) -> None:
    """Sliding blocks, blocks that do not divide the rows, and blocks of several threads."""
    scope, arrays, want = chain_scope(residual(*sizes, **options))
    found = find_chain(scope)
    rows = next(x for x in found.result.scope.traversals if x.extent == want.shape[2])
    cuts = (found.make_cut(rows, 1, size),) if size else ()
    names = {t.name for t in tensors(scope)}
    used = {name: np.asarray(a, np.float32) for name, a in arrays.items() if name in names}
    np.testing.assert_array_equal(run(scope, cuts, used, threads).reshape(want.shape), want)


def test_every_step_of_the_layouts_is_proved_by_both_checkers() -> None:
    found = chain_in_vectors(residual(16, 32, 16, 6, 6, added=True))
    assert found is not None
    names = [step.match.rule.name for step in found.steps]
    assert names.count("storage_layout") > 3 and "blocked_generation" in names
    assert {certify(step.before, step.after).kind for step in found.steps} == {"proved"}
    assert all(believed(step.before, step.after) for step in found.steps)


def test_a_chain_in_vectors_is_remembered_by_its_steps() -> None:
    program = residual(16, 32, 16, 6, 6)
    found = chain_in_vectors(program)
    assert found is not None
    assert replay(program, json.loads(json.dumps(steps_to_json(found)))).end == found.end


def test_a_program_with_a_depthwise_chain_is_compiled_with_constant_weights() -> None:
    program = residual(16, 32, 24, 7, 6)
    found = chain_in_vectors(program)
    assert found is not None
    arrays = integers(program)
    weights = {name: arrays.pop(name) for name in ("W", "K", "V")}
    made = compile_program(found.end, constants=weights)
    np.testing.assert_array_equal(made.run(arrays)["Y"], evaluate(program, {**arrays, **weights})["Y"])
    assert sorted(made.engines.values()) == ["constant", "constant", "constant", "tvm"]


def test_a_depthwise_convolution_may_come_first() -> None:
    """Its input is transposed once, in the chain."""
    program = ee.parse("""
        tensor X[1, 32, 6, 7] pad [0, 0, 1, 1]
        tensor K[32, 1, 3, 3] weight
        tensor V[16, 32, 1, 1] weight
        D[n:1, f:32, h:6, w:7] = sum[c:1, r:3, s:3] X[n, c+f, h+r-1, w+s-1] * K[f, c, r, s]
        Y[n:1, f:16, h:6, w:7] = sum[c:32, r:1, s:1] D[n, c, h+r, w+s] * V[f, c, r, s]""")
    scope, arrays, want = chain_scope(program)
    used = {t.name: np.asarray(arrays[t.name], np.float32) for t in tensors(scope)}
    np.testing.assert_array_equal(run(scope, (), used).reshape(want.shape), want)


def test_rows_of_the_hidden_layer_are_computed_once() -> None:
    """Blocks of rows have two rows of the hidden layer in common; the later one keeps them."""
    found = find_chain(chain_scope(residual(16, 32, 16, 8, 8))[0])
    rows = next(cut.traversal for cut in found.cuts())
    cut = found.make_cut(rows, 1, 2)
    assert found.multiplications((cut,)) == found.multiplications()
    alone, shared = (block_stages(found, (cut,), lambda t: t.name, threads) for threads in (1, 2))
    hidden = next(stage for stage in alone if stage.slide is not None)
    assert hidden.slide is not None and (hidden.slide.step, hidden.slide.kept) == (2, 2)
    assert not any(stage.slide for stage in shared)
    uneven = block_stages(found, (found.make_cut(rows, 1, 3),), lambda t: t.name, 1)
    assert not any(stage.slide for stage in uneven)


def test_large_hidden_layers_are_cut_by_rows() -> None:
    """Hidden layers that exceed the second-level cache are computed in blocks of rows that divide the result."""
    chain = chain_in_vectors(residual(16, 96, 16, 56, 56))
    assert chain is not None
    found = find_chain(chain.end.equations[-1].scope)
    (cut,) = choose_cuts(found, 1, Machine())
    assert cut.traversal.extent == 56 and 56 % cut.size == 0 and cut.size < 56


def test_sums_have_epilogues_unless_others_read_them() -> None:
    stages = _stages("relu({[m:8, n:16] sum[k:16] A[m, k] * B[k, n]}[m, n] + C[m, n])")
    assert [stage.epilogue is not None for stage in stages] == [True]
    stages = _stages("relu({[m:8, n:16] sum[k:16] A[m, k] * B[k, n]}[m, 15-n] + C[m, n])")
    assert [stage.epilogue is not None for stage in stages] == [False, False]
    twice = "{[m:8, n:16] sum[k:16] A[m, k] * B[k, n]}"
    stages = _stages(f"{{[m:8, n:16] relu({twice}[m, n])}}[m, n] + {twice}[m, n]")
    assert [stage.epilogue is not None for stage in stages] == [False, False, False]


def _stages(body: str) -> tuple[object, ...]:
    program = ee.parse(f"tensor A[8, 16]\ntensor B[16, 16]\ntensor C[8, 16]\nY[m:8, n:16] = {body}")
    return block_stages(find_chain(program.equations[0].scope), (), lambda t: t.name, 1)


def test_an_epilogue_may_call_its_traversals_as_the_sum_is_called() -> None:
    """The traversal `k` of the result is no summation `k` of the product."""
    program = ee.parse(
        "tensor A[16, 16]\ntensor B[16, 16]\ntensor C[16]\n"
        "Y[k:16, n:16] = relu({[m:16, n:16] sum[k:16] A[m, k] * B[k, n]}[k, n] + C[k])"
    )
    scope = program.equations[0].scope
    arrays = integers(program)
    want = evaluate(program, arrays)["Y"]
    np.testing.assert_array_equal(run(scope, (), arrays).reshape(want.shape), want)


@pytest.mark.parametrize(
    ("columns", "fits"), [(24, True), (40, True), (56, True), (8, False), (20, False), (72, False)]
)
def test_products_of_half_a_vector_more_are_vectorised(columns: int, fits: bool) -> None:
    program = ee.parse(
        f"tensor A[9, 16]\ntensor B[16, {columns}]\ntensor C[{columns}]\n"
        f"Y[m:9, n:{columns}] = relu({{[m:9, n:{columns}] sum[k:16] A[m, k] * B[k, n]}}[m, n] + C[n])"
    )
    scope = program.equations[0].scope
    assert (tileable_chain(scope, HERE) is not None) == fits
    if fits:
        arrays = integers(program)
        want = evaluate(program, arrays)["Y"]
        np.testing.assert_array_equal(run(scope, (), arrays).reshape(want.shape), want)


def test_an_uneven_tile_has_all_columns_and_fits_the_registers() -> None:
    tile = choose_vector_tile(20, 2, 64, Machine(), rest=8)
    assert tile.width == 40 and tile.columns == ((0, 16), (16, 16), (32, 8))
    assert (tile.rows + 1) * 3 + 1 <= Machine().registers


def test_narrower_vectors_of_two_rows_are_summed_as_one() -> None:
    """They leave room for more rows, and a row more takes half a vector more."""
    alone, paired = (choose_vector_tile(20, 1, 64, Machine(), rest=8, paired=paired) for paired in (False, True))
    assert alone.pairs == 0 and alone.sums == 2 * alone.rows
    assert paired.pairs == paired.rows // 2 and paired.sums == 2 * paired.rows - paired.pairs
    assert paired.sums + 3 <= Machine().registers
    costs = [product_cycles(tile, 20, 1, 64, Machine()) for tile in (alone, paired)]
    assert costs[1] < 0.8 * costs[0]


@pytest.mark.parametrize(("depth", "paired"), [((16,), True), ((3,), False), ((16, 3), False), ((3, 16), True)])
def test_vectors_are_paired_unless_the_innermost_sum_is_unrolled(depth: tuple[int, ...], paired: bool) -> None:
    """With odd numbers of rows, the last one has a narrower vector of its own."""
    names = ("k", "l")[: len(depth)]
    index, sums = ", ".join(names), ", ".join(f"{k}:{n}" for k, n in zip(names, depth, strict=True))
    shape = ", ".join(map(str, depth))
    program = ee.parse(
        f"tensor A[9, {shape}]\ntensor B[{shape}, 24]\n"
        f"Y[m:9, n:24] = relu({{[m:9, n:24] sum[{sums}] A[m, {index}] * B[{index}, n]}}[m, n])"
    )
    scope = program.equations[0].scope
    (stage,) = block_stages(find_chain(scope), (), lambda t: t.name, 1)
    found = match_product(stage, HERE.lanes)
    assert found is not None and product_tile(stage, found, HERE).paired == (paired and HERE.lanes == 16)
    arrays = integers(program)
    want = evaluate(program, arrays)["Y"]
    np.testing.assert_array_equal(run(scope, (), arrays).reshape(want.shape), want)


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("l1", [1 << 10, 1 << 20])
def test_vectors_of_large_operands_are_summed_one_after_another(
    l1: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If rows of all channels exceed the first-level cache, the loop over vectors of channels is outermost."""
    scope, arrays, want = chain_scope(residual(4, 48, 16, 8, 6))
    small = replace(HERE, l1=l1)
    monkeypatch.setattr("tests.test_blocked.HERE", small)
    found = find_chain(scope)
    rows = next(x for x in found.result.scope.traversals if x.extent == want.shape[2])
    cuts = (found.make_cut(rows, 1, size),) if size else ()
    used = {t.name: np.asarray(arrays[t.name], np.float32) for t in tensors(scope)}
    np.testing.assert_array_equal(run(scope, cuts, used).reshape(want.shape), want)
    stage = next(s for s in block_stages(found, cuts, lambda t: t.name, 1) if is_vector_sum(s, small.lanes))
    outer = tuple(x for x in stage.traversals[:-2])
    assert (operand_bytes(stage, outer) > l1) == (l1 == 1 << 10)


DEPTHWISE_AND_PROJECTION = """
tensor X[1, {e}, {h}, {h}] pad [0, 0, 1, 1]
tensor K[{e}, 1, 3, 3] weight
tensor V[{f}, {e}, 1, 1] weight
D[n:1, f:{e}, h:{o}, w:{o}] = sum[c:1, r:3, s:3] X[n, c+f, 2*h+r-1, 2*w+s-1] * K[f, c, r, s]
F[n:1, f:{e}, h:{o}, w:{o}] = relu(D[n, f, h, w])
Y[n:1, f:{f}, h:{o}, w:{o}] = sum[c:{e}, r:1, s:1] F[n, c, h+r, w+s] * V[f, c, r, s]"""


def test_blocks_are_not_of_single_elements() -> None:
    """If blocks along rows cost a stage its vectors, its elements count one by one."""
    found = chain_in_vectors(ee.parse(DEPTHWISE_AND_PROJECTION.format(e=48, f=96, h=80, o=40)))
    assert found is not None
    chain = find_chain(found.end.equations[-1].scope)
    (cut,) = choose_cuts(chain, 1, Machine())
    assert cut.size > 1
    rows, columns = (c for c in chain.cuts() if c.traversal.extent == 40)
    single = (chain.make_cut(rows.traversal, 1, 1), chain.make_cut(columns.traversal, 1, 1))
    first = [block_stages(chain, cuts, lambda t: t.name, 1)[0] for cuts in (single, (cut,))]
    assert [element_cycles(stage, Machine()) for stage in first] == [
        SINGLE_ELEMENT_CYCLES,
        TRANSPOSED_VECTOR_CYCLES / Machine().lanes,
    ]


@pytest.mark.parametrize(("c", "f", "side"), [(96, 24, 56), (1152, 320, 7)])
def test_blocks_of_a_product_keep_its_vectors(c: int, f: int, side: int) -> None:
    """In blocks of one pixel, the stage that transposes the result would join the sum, which has no vectors then."""
    found = chain_in_vectors(partition(gated(rows=side, channels=c, features=f)).subprograms[0].anonymous.program)
    assert found is not None
    chain = find_chain(found.end.equations[-1].scope)
    stages = block_stages(chain, choose_cuts(chain, 1, Machine()), lambda t: t.name, 1)
    assert [match_product(stage, Machine().lanes) is not None for stage in stages if stage.sums] == [True]


def test_rows_of_an_input_are_transposed_once_and_prefetched() -> None:
    """Blocks that have rows of the input in common keep them."""
    found = chain_in_vectors(ee.parse(DEPTHWISE_AND_PROJECTION.format(e=48, f=96, h=16, o=8)))
    assert found is not None
    scope = found.end.equations[-1].scope
    chain = find_chain(scope)
    rows = next(c.traversal for c in chain.cuts() if c.traversal.extent == 8)
    cuts = (chain.make_cut(rows, 1, 2),)
    first = block_stages(chain, cuts, lambda t: t.name, 1)[0]
    assert first.slide is not None and match_transpose(first, HERE.lanes) is not None
    sizes = {t.name: prod(t.shape) for t in tensors(scope)}
    text = chain_function((ChainPart(chain, cuts),), sizes, 1, HERE).script()
    assert text.count(", 0, 3, 1)") == match_transpose(first, HERE.lanes).side  # type: ignore[union-attr]
    assert ", 1, 3, 1)" in text  # the transposed result, which is written
    program = ee.parse(DEPTHWISE_AND_PROJECTION.format(e=48, f=96, h=16, o=8))
    _, arrays, want = chain_scope(program)
    used = {t.name: np.asarray(arrays[t.name], np.float32) for t in tensors(scope)}
    np.testing.assert_array_equal(run(scope, cuts, used).reshape(want.shape), want)


@pytest.mark.parametrize(("text", "prefetched"), [("A[k, m]", True), ("A[m, k]", False)])
def test_inputs_whose_terms_are_far_apart_are_prefetched(text: str, prefetched: bool) -> None:
    program = ee.parse(
        f"tensor A[16, 16]\ntensor B[16, 32]\nY[m:16, n:32] = relu({{[m:16, n:32] sum[k:16] {text} * B[k, n]}}[m, n])"
    )
    scope = program.equations[0].scope
    sizes = {t.name: prod(t.shape) for t in tensors(scope)}
    made = chain_function((ChainPart(find_chain(scope)),), sizes, 1, HERE).script()
    assert ("prefetch" in made) == prefetched
    arrays = integers(program)
    want = evaluate(program, arrays)["Y"]
    np.testing.assert_array_equal(run(scope, (), arrays).reshape(want.shape), want)


def test_inputs_are_copied_in_another_order_for_one_reader() -> None:
    start = ee.parse("tensor A[2, 3]\ntensor B[2, 3]\nX[i:2, j:3] = A[i, j] + B[i, j]\nY[i:2, j:3] = A[i, j] * X[i, j]")
    after = STORAGE_LAYOUT.match(start, (1,), tensor="A", order=[1, 0]).apply(start).after
    assert [e.name for e in after.equations] == ["X", "T1", "Y"] and "T1[j, i]" in repr(after.equations[2])
    assert certify(start, after).kind == "proved" and believed(start, after)
    for at, tensor, order, why in (
        (1, "X", [1, 0], "X is no input that Y reads"),
        (1, "B", [1, 0], "B is no input that Y reads"),
        (1, "A", [0, 1], "the order leaves A as it is"),
        (1, "A", [0, 0], "is no order of the 2 dimensions of A"),
    ):
        with pytest.raises(Refused, match=why):
            STORAGE_LAYOUT.match(start, (at,), tensor=tensor, order=order).apply(start)


def test_a_copied_input_keeps_its_padding() -> None:
    start = ee.parse("tensor A[4, 6] pad [1, (0, 2)] value 3\nY[i:4, j:6] = A[i-1, j+2] * 2")
    after = STORAGE_LAYOUT.match(start, (0,), tensor="A", order=[1, 0]).apply(start).after
    arrays = integers(start)
    np.testing.assert_array_equal(evaluate(after, arrays)["Y"], evaluate(start, arrays)["Y"])
    assert certify(start, after).kind == "proved"


def test_products_without_a_constant_have_no_vector_layouts() -> None:
    program = ee.parse("tensor A[8, 4]\nP[i:8] = relu(A[i, 0])\nY[i:8] = sum[k:4] A[i, k] * P[k]")
    with pytest.raises(Refused, match="no product has a constant operand"):
        with_vector_layouts(program)
    assert chain_in_vectors(program) is None and not is_chain_in_vectors(program)


def model(readers: int = 1, hidden: int = 32) -> Model:
    """Expansion, depthwise convolution and projection; the hidden layer has so many *readers*."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((hidden, 16, 1, 1)).astype(np.float32),
        "k": rng.standard_normal((hidden, 1, 3, 3)).astype(np.float32),
        "v": rng.standard_normal((16, hidden, 1, 1)).astype(np.float32),
    }
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "k"], ["c"], group=hidden, pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["d"]),
        node("Conv", ["d", "v"], ["e"]),
        node("Add", ["e", "x"], ["y"]),
    ]
    outputs = ["y", *(["b"] if readers > 1 else [])]
    return load_model(build(nodes, {"x": [1, 16, 8, 8]}, outputs, weights), {})


def test_a_model_joins_the_contractions_around_a_depthwise_convolution() -> None:
    (joined,) = partition(model()).subprograms
    assert len(joined.nodes) == 6 and [len(part.nodes) for part in joined.parts] == [2, 2, 2]
    first, second = partition(model(readers=2)).subprograms  # the hidden layer is written in any case
    assert len(first.nodes) == 2 and len(second.nodes) == 4
    uneven = partition(model(hidden=18)).subprograms  # an expansion to 18 channels has no whole vectors
    assert [len(s.nodes) for s in uneven] == [2, 4]
    assert [len(s.nodes) for s in partition(model(), through_cache=False).subprograms] == [2, 2, 2]


def gated(readers: int = 1, rows: int = 8, channels: int = 32, features: int = 16) -> Model:
    """A pointwise convolution of an image whose channels are scaled, as squeeze and excitation does, by a gate."""
    kernel = np.random.default_rng(0).standard_normal((features, channels, 1, 1)).astype(np.float32)
    nodes = [node("Mul", ["x", "gate"], ["scaled"]), node("Conv", ["scaled", "k"], ["y"])]
    nodes += [node("Relu", ["scaled"], ["other"])] * (readers - 1)
    outputs = ["y", "other"][:readers]
    inputs = {"x": [1, channels, rows, rows], "gate": [1, channels, 1, 1]}
    return load_model(build(nodes, inputs, outputs, {"k": kernel}), {})


def test_a_gate_joins_the_contraction_that_reads_its_result_if_both_are_one_chain() -> None:
    (joined,) = partition(gated()).subprograms
    assert len(joined.nodes) == 2 and [len(part.nodes) for part in joined.parts] == [1]
    derivation = chain_in_vectors(joined.anonymous.program)
    assert derivation is not None and all(believed(step.before, step.after) for step in derivation.steps)
    (read_twice,) = partition(gated(readers=2)).subprograms
    assert len(read_twice.nodes) == 1 and not read_twice.parts
    assert [len(s.nodes) for s in partition(gated(), through_cache=False).subprograms] == [1]


def hard_swishes(channels: int = 32) -> Model:
    """A depthwise and a pointwise convolution; each with a scale, a hard-swish and a scale in eight nodes."""
    rng = np.random.default_rng(0)
    weights = {
        "k": rng.standard_normal((channels, 1, 3, 3)).astype(np.float32),
        "v": rng.standard_normal((channels, channels, 1, 1)).astype(np.float32),
    }
    nodes = [node("Conv", ["x", "k"], ["c0"], group=channels, pads=[1, 1, 1, 1]), node("Conv", ["y0", "v"], ["c1"])]
    for n, (first, shift, last) in enumerate(((2.728, 0.4215, 0.4946), (1.259, 0.9322, 0.9663))):
        constants = {"first": first, "shift": shift, "three": 3, "zero": 0, "six": 6, "last": last, "end": -shift}
        weights |= {f"{name}{n}": np.asarray(value, np.float32) for name, value in constants.items()}
        steps = [("Mul", "c", "first"), ("Add", "s", "shift"), ("Add", "t", "three"), ("Clip", "u", "zero", "six")]
        steps += [("Mul", "t", "w"), ("Div", "p", "six"), ("Mul", "q", "last"), ("Add", "r", "end")]
        made = ("s", "t", "u", "w", "p", "q", "r", "y")
        for (op, *reads), result in zip(steps, made, strict=True):
            nodes.append(node(op, [f"{name}{n}" for name in reads], [f"{result}{n}"]))
    return load_model(build(nodes, {"x": [1, channels, 8, 8]}, ["y1"], weights), {})


def test_a_chain_with_hard_swish_as_exporters_write_it_is_proved() -> None:
    """Constants are multiplied only where that is exact: the error of 1/6 times a constant has no useful bound."""
    (joined,) = partition(hard_swishes()).subprograms
    assert len(joined.nodes) == 18 and [len(part.nodes) for part in joined.parts] == [9, 9]
    program = joined.anonymous.program
    found = chain_in_vectors(program)
    assert found is not None
    for step in found.steps:
        assert certify(step.before, step.after, exact_elements=None).kind == "proved", step.match.to_json()
        assert believed(step.before, step.after), step.match.to_json()
    merged = [step for step in found.steps if step.match.rule.name == "traversal_merging"]
    assert any("0.16666666666666666 * 0.49459" in ee.text(step.after) for step in merged)


POINTWISE = """
tensor X[{c}, {p}]
tensor K[{c}, {f}] weight
tensor R[{f}, {p}]
Y[f:{f}, p:{p}] = relu({{[p:{p}, f:{f}] sum[c:{c}] X[c, p] * K[c, f]}}[p, f] + R[f, p])
"""
PANELS = POINTWISE.replace("K[{c}, {f}]", "K[{panels}, {c}, 32]").replace("K[c, f]", "K[f // 32, c, f % 32]")


def small_caches(bytes_of_l1: int) -> Machine:
    """The machine with few registers, and caches so small that a few kilobytes of weights exceed them."""
    return replace(HERE, registers=20, l1=bytes_of_l1, l2=2 * bytes_of_l1)


@pytest.mark.parametrize(
    ("c", "points", "weights", "divided"),
    [
        (64, 49, POINTWISE, True),
        (64, 49, PANELS, True),
        (48, 23, PANELS, True),
        (47, 49, PANELS, False),
        (64, 7, PANELS, False),
    ],
)
def test_long_sums_in_blocks_have_the_same_bits(c: int, points: int, weights: str, divided: bool) -> None:
    """The terms of the sum are added in the same order.  47 terms, and one tile of rows, are no blocks."""
    program = ee.parse(weights.format(c=c, p=points, f=64, panels=2))
    scope = program.equations[0].scope
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}
    chain, few = find_chain(scope), small_caches(4096)
    (stage, *_) = block_stages(chain, (), lambda t: t.name, 1)
    product = match_product(stage, HERE.lanes)
    assert product is not None
    blocks = [sum_blocks(stage, product, product_tile(stage, product, m), m) for m in (few, HERE)]
    assert blocks[1] == 1 and (blocks[0] > 1) == divided and c % blocks[0] == 0
    assert (points % product_tile(stage, product, few).rows > 0) == (points == 23)
    got = [run(scope, (), arrays, machine=machine) for machine in (few, HERE)]
    np.testing.assert_array_equal(*got)
    columns = np.moveaxis(arrays["K"].reshape(-1, c, 64 if weights == POINTWISE else 32), 1, 0).reshape(c, 64)
    want = np.maximum(columns.T @ arrays["X"] + arrays["R"], 0)
    np.testing.assert_allclose(got[0].reshape(64, points), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_each_thread_keeps_partial_sums_of_its_own(threads: int) -> None:
    program = ee.parse(PANELS.format(c=64, p=98, f=64, panels=2))
    scope, few = program.equations[0].scope, small_caches(4096)
    arrays, chain = integers(program), find_chain(scope)
    points = next(c.traversal for c in chain.cuts() if c.traversal.extent == 98)
    cuts = (chain.make_cut(points, 1, 49),)
    stage = block_stages(chain, cuts, lambda t: t.name, threads)[0]
    product = match_product(stage, HERE.lanes)
    assert product is not None and sum_blocks(stage, product, product_tile(stage, product, few), few) > 1
    for _ in range(4):
        got = run(scope, cuts, arrays, threads, few).reshape(64, 98)
        np.testing.assert_array_equal(got, evaluate(program, arrays)["Y"])


def test_all_tiles_of_rows_prefetch_the_next_columns_evenly() -> None:
    """Panels of 32 columns for tiles of 32 are consecutive in memory: each tile of rows prefetches its share."""
    of_rows, of_panels = (
        ee.parse(text.format(c=64, p=21, f=64, panels=2)).equations[0].scope for text in (POINTWISE, PANELS)
    )
    found = []
    for scope in (of_rows, of_panels):
        (stage, *_) = block_stages(find_chain(scope), (), lambda t: t.name, 1)
        product = match_product(stage, 16)
        assert product is not None
        found.append([panel_width(stage, product.right, VectorTile(7, v, 16)) for v in (1, 2, 4)])
    assert found == [[None, None, 64], [None, 32, 32]]


@pytest.mark.parametrize("width", [32, 64])
def test_blocks_of_columns_prefetch_the_weights_of_the_next_one(width: int) -> None:
    """All of them exceed half of the second-level cache; those of one block do not."""
    program = ee.parse(POINTWISE.format(c=64, p=21, f=128))
    scope = program.equations[0].scope
    chain = find_chain(scope)
    columns = next(c.traversal for c in chain.cuts() if c.traversal.extent == 128)
    cuts, sizes = (chain.make_cut(columns, 1, width),), {t.name: prod(t.shape) for t in tensors(scope)}
    small = replace(HERE, l2=4 * 4 * 64 * 32)
    counts = [
        chain_function((ChainPart(chain, cuts),), sizes, 1, machine).script().count("prefetch")
        for machine in (replace(HERE, l2=8 * small.l2), small)
    ]
    assert counts[1] > counts[0]
    arrays = integers(program)
    got = run(scope, cuts, arrays, machine=small).reshape(128, 21)
    np.testing.assert_array_equal(got, evaluate(program, arrays)["Y"])


@pytest.mark.parametrize(("points", "is_stream"), [(4, True), (21, False)])
def test_panels_that_one_tile_reads_are_prefetched_a_fixed_distance_ahead(points: int, is_stream: bool) -> None:
    """The next columns, in 128 KB, would leave the nearest cache before they are read."""
    program = ee.parse(PANELS.format(c=1024, p=points, f=64, panels=2))
    scope = program.equations[0].scope
    small = replace(HERE, l2=1 << 18)
    part = ChainPart(find_chain(scope), ())
    text = chain_function((part,), {t.name: prod(t.shape) for t in tensors(scope)}, 1, small).script()
    lines = [line for line in text.splitlines() if "prefetch" in line and f") * 32 + {PREFETCH_DISTANCE}" in line]
    assert len(lines) == 4 * is_stream  # two panels of two lines a step
    arrays = integers(program)
    got = run(scope, (), arrays, machine=small).reshape(64, points)
    np.testing.assert_array_equal(got, evaluate(program, arrays)["Y"])


@pytest.mark.parametrize("residual", [False, True])
def test_the_cost_of_a_transposition_counts_its_tiles(residual: bool) -> None:
    """A row of 14 elements takes two tiles of 8, and one of 16 one tile: as many cycles for each vector."""
    text = POINTWISE if residual else POINTWISE.replace(" + R[f, p]", "").replace("tensor R[{f}, {p}]\n", "")
    machine = Machine()
    each = TRANSPOSED_VECTOR_CYCLES + residual * FAR_VECTOR_CYCLES
    for points, vectors in ((14, 2), (16, 1), (28, 2), (49, 4)):
        scope = ee.parse(text.format(c=8, p=points, f=32)).equations[0].scope
        last = block_stages(find_chain(scope), (), lambda t: t.name, 1)[-1]
        assert match_transpose(last, machine.lanes) is not None
        assert element_cycles(last, machine) == pytest.approx(vectors * each / points)


def test_residuals_are_prefetched_where_results_are_transposed() -> None:
    plain = POINTWISE.replace(" + R[f, p]", "").replace("tensor R[{f}, {p}]\n", "")
    counts = []
    for text in (plain, POINTWISE):
        scope = ee.parse(text.format(c=8, p=16, f=32)).equations[0].scope
        sizes = {t.name: prod(t.shape) for t in tensors(scope)}
        counts.append(chain_function((ChainPart(find_chain(scope)),), sizes, 1, HERE).script().count("prefetch"))
    assert counts[1] - counts[0] == min(16, HERE.lanes)


def test_a_depthwise_convolution_and_its_neighbour_are_a_fixed_chain_with_a_window() -> None:
    (joined,) = partition(hard_swishes()).subprograms
    program = joined.anonymous.program
    assert is_fixed_chain(program) and structure(program) == ((), (1, 1))
    pointwise = joined.parts[1].anonymous.program
    assert chain_in_vectors(pointwise) is not None and not is_fixed_chain(pointwise)  # it is searched
    assert structure(pointwise) == ((),)


def separable(readers: int = 1, channels: int = 32, layers: int = 2) -> Model:
    """Depthwise and pointwise convolutions with activations; the first pointwise one's result has *readers*."""
    rng = np.random.default_rng(0)
    nodes, weights, outputs = [], {}, [f"x{layers}"]
    for n in range(layers):
        weights[f"k{n}"] = rng.standard_normal((channels, 1, 3, 3)).astype(np.float32)
        weights[f"v{n}"] = rng.standard_normal((channels, channels, 1, 1)).astype(np.float32)
        nodes += [
            node("Conv", [f"x{n}", f"k{n}"], [f"a{n}"], group=channels, pads=[1, 1, 1, 1]),
            node("Relu", [f"a{n}"], [f"b{n}"]),
            node("Conv", [f"b{n}", f"v{n}"], [f"c{n}"]),
            node("Relu", [f"c{n}"], [f"x{n + 1}"]),
        ]
    outputs += ["x1"] * (readers > 1)
    return load_model(build(nodes, {"x0": [1, channels, 16, 16]}, outputs, weights), {})


@pytest.mark.parametrize("layers", [2, 3])
def test_chains_join_if_the_value_between_them_exceeds_the_cache(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    between = 32 * 16 * 16 * 4
    small, large = (replace(HERE, l2=between - below) for below in (1, 0))
    monkeypatch.setattr(joins, "this_machine", lambda: small)
    (joined,) = partition(separable(layers=layers)).subprograms
    assert len(joined.nodes) == 4 * layers and [len(part.nodes) for part in joined.parts] == [4] * layers
    assert is_fixed_chain(joined.anonymous.program)
    apart = partition(separable(readers=2, layers=layers)).subprograms  # the value is written in any case
    assert [len(s.nodes) for s in apart] == [4, 4 * (layers - 1)]
    monkeypatch.setattr(joins, "this_machine", lambda: large)
    assert [len(s.nodes) for s in partition(separable(layers=layers)).subprograms] == [4] * layers


def test_chains_stay_apart_if_one_kernel_is_not_estimated_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "this_machine", lambda: replace(HERE, l2=1))
    monkeypatch.setattr(joins, "chain_cycles", lambda program, threads: 1.0 + len(program.outputs))
    assert [len(s.nodes) for s in partition(separable()).subprograms] == [8]
    monkeypatch.setattr(joins, "chain_cycles", lambda program, threads: len(program.inputs) ** 2)
    assert [len(s.nodes) for s in partition(separable()).subprograms] == [4, 4]
