"""Strided convolutions as products of vectors of channels, and poolings as kernels of their own."""

from collections.abc import Iterable

import numpy as np
import pytest
from onnx_building import build, node

import einnet_explore as ee
from einnet_explore.codegen.register_tiles import Machine, best_tile, padded_copy_layout, register_tiles
from einnet_explore.codegen.sum_of_products import match_sum_of_products
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import VIEW, Program
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.fusion import fuse_eoperators
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.vector_layouts import products_in_vectors
from einnet_explore.runtime.implementations import BoundEquation, Implementation, KernelCall, tiled_contraction
from einnet_explore.runtime.program import compile_program
from tests.test_einnet_check import believed

MACHINE = Machine()


def convolution(c: int, f: int, n: int, k: int, s: int) -> Program:
    """A convolution with kernels of *k* x *k*, stride *s* and a bias."""
    p, o = k // 2, (n + 2 * (k // 2) - k) // s + 1
    return ee.parse(
        f"""
        tensor X[1, {c}, {n}, {n}] pad [0, 0, {p}, {p}]
        tensor W[{f}, {c}, {k}, {k}] weight
        tensor B[{f}] weight
        P[n:1, f:{f}, h:{o}, w:{o}] = sum[c:{c}, r:{k}, s:{k}] X[n, c, {s}*h+r-{p}, {s}*w+s-{p}] * W[f, c, r, s]
        Y[n:1, f:{f}, h:{o}, w:{o}] = relu(P[n, f, h, w] + B[f])
        """
    )


def integers(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: rng.integers(-2, 3, t.shape).astype(np.float32) for t in program.inputs}


@pytest.mark.parametrize(("size", "k", "s"), [(9, 3, 2), (10, 3, 2), (9, 1, 2), (10, 1, 3), (14, 7, 2)])
def test_a_strided_convolution_is_a_product_in_vectors_of_its_channels(size: int, k: int, s: int) -> None:
    program = convolution(5, 32, size, k, s)
    found = products_in_vectors(program)
    assert found is not None and all(e.via is not None for e in found.end.equations)
    assert {certify(step.before, step.after).kind for step in found.steps} == {"proved"}
    assert all(believed(step.before, step.after) for step in found.steps)
    arrays = integers(program)
    fused = fuse_eoperators(found)
    products = [e for e in fused.end.equations if e.scope.summations]
    assert [e.scope.shape[-1] for e in products] == [32], "the product stays a kernel of its own"
    weights = {name: arrays.pop(name) for name in ("W", "B")}
    got = compile_program(fused.end, constants=weights).run(arrays)
    np.testing.assert_array_equal(got["Y"], evaluate(program, {**arrays, **weights})["Y"])


def test_a_convolution_of_stride_one_stays_a_chain() -> None:
    assert products_in_vectors(convolution(5, 32, 8, 3, 1)) is None


GATHERED = """
tensor X[4, 13, 13]
tensor K[4, 160]
Y[h:7, w:7, f:160] = sum[c:4] X[c, 2*h, 2*w] * K[c, f]
"""


def test_elements_that_strides_skip_are_not_copied() -> None:
    scope = ee.parse(GATHERED).equations[0].scope
    form = match_sum_of_products(scope)
    assert form is not None
    layout = padded_copy_layout(form, [t.name for t in form.operands].index("X"), None)
    assert layout is not None and layout.size == 4 * 7 * 7
    made = tiled_contraction(scope, {"K"})
    assert made is not None and made.plan.other is not None and made.plan.other.size == 4 * 7 * 7
    rng = np.random.default_rng(1)
    arrays = {"X": rng.integers(-3, 4, (4, 13, 13)), "K": rng.integers(-3, 4, (4, 160))}
    program = ee.parse(GATHERED)
    want = np.einsum("chw,cf->hwf", arrays["X"][:, ::2, ::2], arrays["K"])
    feeds = {name: a.astype(np.float32) for name, a in arrays.items()}
    got = compile_program(program, constants={"K": feeds["K"]}).run({"X": feeds["X"]})
    np.testing.assert_array_equal(got["Y"], want)


WINDOWS = """
tensor X[8, 30, 30]
tensor K[8, 3, 3, 64]
Y[h:14, w:14, f:64] = sum[c:8, r:3, s:3] X[c, 2*h+r, 2*w+s] * K[c, r, s, f]
"""


def test_slots_are_neighbours_in_memory_and_shared_elements_need_registers() -> None:
    form = match_sum_of_products(ee.parse(WINDOWS).equations[0].scope)
    assert form is not None
    chosen = best_tile(form, MACHINE)
    assert chosen is not None and chosen.slot is not None and chosen.slot.name == "w"
    wide = [t for t in register_tiles(form, MACHINE) if (t.vectors, t.slots) == (2, 14) and t.layout.tensor.name == "K"]
    cycles = {tuple(y.name for y in t.unrolled): t.cycles for t in wide}
    assert cycles["r", "s"] > 1.5 * cycles[()], "thirteen elements are kept from one tap to the next but one"


def test_a_pooling_alone_is_a_subprogram_with_a_kernel_of_windows() -> None:
    nodes = [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])]
    model = load_model(build(nodes, {"x": (1, 4, 20, 20)}, ["y"]))
    (found,) = partition(model).subprograms
    program = found.anonymous.program
    (equation,) = (e for e in program.equations if e.via is None or e.via.operator != VIEW)
    kinds: list[type] = []

    def choose(_: BoundEquation, implementations: Iterable[Implementation]) -> Implementation:
        every = list(implementations)
        kinds.extend(map(type, every))
        return next(i for i in every if isinstance(i, KernelCall))

    rng = np.random.default_rng(2)
    x = rng.integers(-9, 9, (1, 4, 20, 20)).astype(np.float32)
    name = program.inputs[0].name
    got = compile_program(program, choose=choose).run({name: x})
    assert KernelCall in kinds and len(kinds) > 1
    np.testing.assert_array_equal(got[equation.name], evaluate(program, {name: x})[equation.name])


def test_sums_of_prefixes_alone_are_no_subprogram() -> None:
    nodes = [node("CumSum", ["x", "axis"], ["y"])]
    model = load_model(build(nodes, {"x": (4, 6)}, ["y"], {"axis": np.array(1)}))
    assert [skipped.why for skipped in partition(model).skipped] == ["CumSum alone is no subprogram"]
