"""Chains cut along a traversal that they share, the rule that generates them, and their kernels."""

import json
import re
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
import tvm_ffi
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import einnet_explore as ee
from einnet_explore.analysis.fused_chain import Chain, Cut, find_chain
from einnet_explore.codegen.fused_tiling import kernel
from einnet_explore.codegen.fused_tiling.block_sizes import (
    ChainPart,
    block_stages,
    choose_cuts,
    choose_parts,
    choose_vector_tile,
    product_cycles,
    split_chain,
    tileable_chain,
)
from einnet_explore.codegen.language.lowering import tensor_name
from einnet_explore.codegen.register_tiles import NARROW_LATENCY, Machine, this_machine
from einnet_explore.codegen.tvm.emission import VectorTile, vector_tile
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import (
    EOPERATOR,
    VIEW,
    Instance,
    Iterator,
    Program,
    Scope,
    Table,
    Tensor,
    accesses,
    add,
    as_index,
    tensors,
)
from einnet_explore.pipeline.fusion import chain_in_blocks, fuse_eoperators, fuse_with_refusals
from einnet_explore.rules import (
    BILINEAR_SUBSTITUTION,
    BLOCKED_GENERATION,
    BOUNDARY_RELAXING,
    VARIABLE_SUBSTITUTION,
    Derivation,
)
from einnet_explore.rules.generation import BLOCKED
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.program import compile_program
from einnet_explore.runtime.tvm_cpu import TvmSource
from einnet_explore.strategies.candidate import replay, steps_to_json
from einnet_explore.strategies.strategy import Restrictions, best_first_moves
from tests.rules_kit import refuses

CONVOLUTION = """
tensor A[{n}, {c}, {h}, {w}] pad [0, 0, {p}, {p}]
tensor K[{f}, {c}, 3, 3] weight
Y[n:{n}, f:{f}, h:{oh}, w:{ow}] = sum[c:{c}, r:3, s:3] A[n, c, h+r-{p}, w+s-{p}] * K[f, c, r, s]
"""

HERE = Machine(l1=48 << 10)
"""The same blocks on every machine: where vectors are narrower, LLVM takes several."""


def convolution(n: int, c: int, f: int, h: int, w: int, p: int = 1) -> Program:
    return ee.parse(CONVOLUTION.format(n=n, c=c, f=f, h=h, w=w, p=p, oh=h + 2 * p - 2, ow=w + 2 * p - 2))


def explained(program: Program) -> str:
    """Return the rule's explanation for the first equation."""
    assert BLOCKED_GENERATION.explain is not None
    return BLOCKED_GENERATION.explain(program, (0,))


def nested(program: Program, m: int = 2) -> Derivation:
    """*program* by F(m×m, 3×3)."""
    first = Derivation(program).then(
        BILINEAR_SUBSTITUTION.match(program, (0,), traversal="h", summation="r", outputs=m)
    )
    middle = next(n for n, e in enumerate(first.end.equations) if e.name.startswith("M"))
    return first.then(BILINEAR_SUBSTITUTION.match(first.end, (middle,), traversal="w", summation="s", outputs=m))


def in_blocks(program: Program, m: int = 2) -> Derivation:
    found = chain_in_blocks(nested(program, m))
    assert found is not None
    return found


def run(
    scope: Scope,
    cuts: tuple[Cut, ...],
    arrays: dict[str, npt.NDArray[Any]],
    threads: int = 1,
    machine: Machine = HERE,
) -> Any:
    """Run the kernel that is cut by *cuts*, made for *machine*."""
    return run_parts(scope, (ChainPart(find_chain(scope), cuts),), arrays, threads, machine)


def run_parts(
    scope: Scope,
    parts: tuple[ChainPart, ...],
    arrays: dict[str, npt.NDArray[Any]],
    threads: int,
    machine: Machine = HERE,
) -> Any:
    """Run the kernel of *parts*, made for *machine*."""
    names = tuple(dict.fromkeys(t.name for t in tensors(scope)))
    sizes = {name: arrays[name].size for name in names}
    made = kernel.chain_function(parts, sizes, threads, machine)
    call = tvm.compile(tvm.IRModule({"main": made}), target=compiled._target(threads))["main"]
    compiled.use_threads(threads)
    out = aligned_empty(scope.shape)
    call(
        *(tvm_ffi.from_dlpack(aligned(arrays[name]).reshape(-1)) for name in names),
        tvm_ffi.from_dlpack(out.reshape(-1)),
    )
    return out


def convolved(arrays: dict[str, npt.NDArray[Any]], p: int) -> npt.NDArray[Any]:
    """The convolution, tap by tap."""
    data, taps = arrays["A"], arrays["K"]
    padded = np.pad(data, ((0, 0), (0, 0), (p, p), (p, p)))
    h, w = (extent - 2 for extent in padded.shape[2:])
    reads = (padded[:, :, r : r + h, s : s + w] for r in range(3) for s in range(3))
    parts = [np.einsum("nchw,fc->nfhw", x, taps[:, :, n // 3, n % 3]) for n, x in enumerate(reads)]
    return np.asarray(np.sum(parts, axis=0))


def transformed(program: Program, taps: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The weights of the last equation, which every other makes."""
    made = Program(program.inputs[1:], program.equations[:-1], (program.equations[-2].name,))
    return evaluate(made, {"K": taps.astype(np.float64)}, outputs_only=True)


def integers(program: Program, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Inputs whose transforms by F(2, 3) have no more digits than single precision: weights are multiples of four."""
    rng = np.random.default_rng(seed)
    return {t.name: rng.integers(-3, 4, t.shape) * (4 if t.weight else 1) for t in program.inputs}


@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    n=st.integers(1, 2), c=st.sampled_from((3, 16)), f=st.sampled_from((16, 48)), h=st.integers(3, 9),
    w=st.integers(3, 19), p=st.integers(0, 1), threads=st.integers(1, 2), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_chain_in_blocks_keeps_every_integer(
    n: int, c: int, f: int, h: int, w: int, p: int, threads: int, seed: int
) -> None:
    program = convolution(n, c, f, h, w, p)
    after = in_blocks(program).end
    scope = after.equations[-1].scope
    assert after.equations[-1].via == BLOCKED and isinstance(TvmSource(scope).kind, Chain)
    arrays = integers(program, seed)
    known = transformed(after, arrays["K"])
    cuts = choose_cuts(find_chain(scope), threads, replace(HERE, l2=1 << 14))
    np.testing.assert_array_equal(run(scope, cuts, {**arrays, **known}, threads), convolved(arrays, p))


def test_products_of_bytes_do_not_run_in_blocks() -> None:
    text = """
tensor A[1, 16, 5, 16]{0} pad [0, 0, 1, 1]
tensor K[32, 16, 3, 3]{1} weight
T[n:1, f:32, h:5, w:16] = sum[c:16, r:3, s:3] A[n, c, h+r-1, w+s-1] * K[f, c, r, s]
Y[n:1, f:32, h:5, w:16] = relu(T[n, f, h, w])
"""
    floats, codes = (ee.parse(text.format(*types)) for types in (("", ""), (" uint8", " int8")))
    assert chain_in_blocks(fuse_eoperators(Derivation(floats))) is not None
    assert chain_in_blocks(fuse_eoperators(Derivation(codes))) is None


def test_a_program_with_a_chain_in_it_is_compiled() -> None:
    program = convolution(1, 16, 16, 5, 6)
    arrays = integers(program)
    made = compile_program(in_blocks(program).end, constants={"K": arrays["K"]})
    np.testing.assert_array_equal(made.run({"A": arrays["A"]})["Y"], convolved(arrays, 1))
    assert made.engines["Y"] == "tvm" and made.engines["L2"] == "constant"


@pytest.mark.parametrize(("along", "size", "threads"), [("h", 1, 1), ("h", 2, 2), ("h", 3, 1), ("w", 2, 1), ("", 0, 2)])
def test_every_cut_gives_the_same(along: str, size: int, threads: int) -> None:
    """Blocks that come out even, that do not, that stick out of the result, and one block of all."""
    program = convolution(2, 16, 32, 9, 11)
    after = in_blocks(program).end
    arrays = integers(program)
    known = transformed(after, arrays["K"])
    scope = after.equations[-1].scope
    found = find_chain(scope)
    own = {x.name: x for x in found.result.scope.traversals}
    cuts = (found.make_cut(own["n"], 1, 1), found.make_cut(own[along], 2, size)) if size else ()
    np.testing.assert_array_equal(run(scope, cuts, {**arrays, **known}, threads), convolved(arrays, 1))


@pytest.mark.parametrize(("threads", "f", "h"), [(2, 64, 7), (3, 48, 9), (5, 16, 11)])
def test_parts_that_threads_share_keep_every_integer(threads: int, f: int, h: int) -> None:
    """The part before the product and the part from it on have cuts of their own, which divide the ranges or do not."""
    program = convolution(2, 16, f, h, 10)
    scope = in_blocks(program).end.equations[-1].scope
    arrays = integers(program)
    arrays |= transformed(in_blocks(program).end, arrays["K"])
    ((first, second),) = split_chain(find_chain(scope))
    rows = next(x for x in first.chain.result.scope.traversals if x.extent >= threads)
    first = replace(first, cuts=(first.chain.make_cut(rows, 1, -(-rows.extent // threads)),))
    own = {x.name: x for x in second.chain.result.scope.traversals}
    channels = second.chain.make_cut(own["f"], 16, -(-f // (16 * threads)))
    second = replace(second, cuts=(channels, second.chain.make_cut(own["h"], 2, 3)))
    assert first.blocks > 1 and second.blocks > 1
    np.testing.assert_array_equal(run_parts(scope, (first, second), arrays, threads), convolved(arrays, 1))


@pytest.mark.parametrize(("period", "size"), [(16, 1), (16, 2), (48, 1)])
def test_blocks_of_channels_keep_every_integer(period: int, size: int) -> None:
    """Blocks of one vector, of two (the last block then overlaps), and of all channels."""
    program = convolution(1, 16, 48, 5, 7)
    scope = in_blocks(program).end.equations[-1].scope
    found = find_chain(scope)
    arrays = integers(program)
    arrays |= transformed(in_blocks(program).end, arrays["K"])
    f = found.result.scope.traversals[1]
    cuts = (found.make_cut(f, period, size),)
    np.testing.assert_array_equal(run(scope, cuts, arrays, 2), convolved(arrays, 1))


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 64])
def test_threads_have_columns_of_their_own_where_weights_are_large(threads: int) -> None:
    """36·512·512 numbers are read by no two threads: each has whole vectors, and the transforms are done once."""
    found = find_chain(in_blocks(convolution(1, 512, 512, 14, 14), 4).end.equations[-1].scope)
    parts = choose_parts(found, threads, Machine())
    if threads == 1:
        assert [p.cuts for p in parts] == [choose_cuts(found, 1, Machine())]
        return
    first, last = parts
    assert not any(s.product for s in first.chain.stages) and sum(s.product for s in last.chain.stages) == 1
    (columns,) = (cut for cut in last.cuts if cut.traversal.name == "f")
    assert columns.period % Machine().lanes == 0 and 1 < columns.blocks <= threads
    assert last.chain.multiplications(last.cuts) == found.multiplications()
    assert last.blocks % threads == 0 or last.blocks < threads


def test_small_weights_are_read_by_all_threads() -> None:
    """64 channels: rows are shared, evenly, by one part."""
    found = find_chain(in_blocks(convolution(1, 64, 64, 56, 56), 4).end.equations[-1].scope)
    for threads in (2, 7):
        (part,) = choose_parts(found, threads, Machine())
        assert [cut.traversal.name for cut in part.cuts] == ["h"] and part.blocks % threads == 0


def test_chain_is_divided_only_at_a_stage_with_one_reader() -> None:
    """A chain is not divided if the second part reads two stages of the first."""
    end = in_blocks(convolution(1, 16, 16, 9, 8)).end
    found = find_chain(end.equations[-1].scope)
    (way,) = split_chain(found)
    first, second = way
    assert first.chain.stages == found.stages[: len(first.chain.stages)] and not first.chain.stages[-1].product
    names = [stage.name for stage in (*first.chain.stages, *second.chain.stages)]
    assert names == [stage.name for stage in found.stages] and second.chain.stages[0].product
    assert first.memory in {t.name for t in tensors(second.chain.stages[0].scope)}
    more = "{[m:8, k:16] A[m, k] + 1}"
    for left, after, ways in ((more, more, 1), (f"{{[m:8, k:16] 2 * {more}[m, k]}}", more, 0)):
        body = f"{{[m:8, n:16] sum[k:16] {left}[m, k] * B[k, n]}}[m, n] + {after}[m, n]"
        scope = ee.parse(f"{MATRICES}Y[m:8, n:16] = {body}").equations[0].scope
        assert len(list(split_chain(find_chain(scope)))) == ways


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_region_is_what_a_block_reads(size: int) -> None:
    """Every element that is read for some block lies in the region, and one on each of its faces that moves."""
    found = find_chain(in_blocks(convolution(1, 16, 16, 9, 8)).end.equations[-1].scope)
    h = found.result.scope.traversals[2]
    cut = found.make_cut(h, 2, size)
    regions = found.regions((cut,))
    for stage in found.stages:
        scope, region = stage.scope, regions[stage.name]
        for block in {0, cut.at.hi - 1}:
            for access in accesses(scope.body):
                if isinstance(access.source, Tensor) and access.source.name.startswith("#"):
                    asked = regions[access.source.name]
                    for d, index in enumerate(access.index):
                        values = _values(index, scope, region, cut, block)
                        first = asked.origin[d].evaluate(partial(_constant, block))
                        assert first <= min(values) and max(values) < first + asked.extent[d]


def _constant(value: int, _: Iterator) -> int:
    return value


def _values(index: Any, scope: Scope, region: Any, cut: Cut, block: int) -> list[int]:
    own = [x for x in (*scope.traversals, *scope.summations) if x in index.iterators]
    start = dict(zip(scope.traversals, region.origin, strict=True))
    extent = dict(zip(scope.traversals, region.extent, strict=True))
    ranges = []
    for x in own:
        first = start[x].evaluate(lambda _: block) if x in start else x.lo
        last = first + extent.get(x, x.extent)
        moves = x in start and start[x].terms  # where it does not, padding reads nothing
        ranges.append(range(first, last) if moves else range(max(first, x.lo), min(last, x.hi)))
    return [index.evaluate(dict(zip(own, values, strict=True)).__getitem__) for values in product(*ranges)]


def test_a_product_whose_windows_overlap_runs_in_blocks_that_read_whole_panels() -> None:
    """A transposed convolution of stride 2: what padding of the windows does not read belongs to no region."""
    scope = ee.parse(
        """
        tensor X[256, 4]
        tensor W[16, 256, 64] weight
        Y[f:64, h:4, w:4] = relu({[f:64, h:4, w:4] sum[r:2, s:2] {[r:2, s:2, f:64, t:4, u:4]
            {[m:4, n:1024] sum[k:256] X[k, m] * W[n // 64, k, n % 64]}[2*r + s, 16*f + 4*t + u]} pad [0, 0, 0, 1, 1][
                r, s, f, h - 2*r + 1, w - 2*s + 1]}[f, h, w])
        """
    ).equations[-1].scope  # fmt: skip
    found = tileable_chain(scope, HERE)
    assert found is not None
    (cut,) = choose_cuts(found, 1, HERE)
    assert cut.size * 16 % 64 == 0  # panels of 64 columns, the most that a tile takes
    arrays = {t.name: np.random.default_rng(0).integers(-3, 4, t.shape).astype(np.float32) for t in tensors(scope)}
    expected = np.asarray(evaluate(scope, arrays), dtype=np.float64)
    assert (run(scope, (cut,), arrays).reshape(expected.shape) == expected).all()


def test_cuts_are_those_that_do_no_product_twice() -> None:
    found = find_chain(in_blocks(convolution(2, 16, 32, 9, 8)).end.equations[-1].scope)
    assert {c.traversal.name: c.period for c in found.cuts()} == {"n": 1, "f": 1, "h": 2, "w": 2}
    whole = found.multiplications()
    assert whole == 16 * 2 * 5 * 4 * 16 * 32
    h = found.result.scope.traversals[2]
    assert found.multiplications((found.make_cut(h, 2, 1),)) == whole
    assert found.multiplications((found.make_cut(h, 1, 1),)) > whole  # a row of tiles for each row, if not for each all
    assert found.multiplications((found.make_cut(h, 2, 2),)) == 6 * whole // 5  # the last block overlaps


def test_stage_over_all_channels_is_not_cut_by_channels() -> None:
    found = find_chain(in_blocks(convolution(1, 64, 64, 56, 56), 4).end.equations[-1].scope)
    assert [(cut.traversal.name, cut.period) for cut in choose_cuts(found, 1, Machine(l2=1 << 20))] == [("h", 4)]
    assert {cut.traversal.name for cut in choose_cuts(found, 1, Machine(l2=1 << 26))} <= {"h", "w"}
    assert prod(cut.blocks for cut in choose_cuts(found, 2, Machine(l2=1 << 26))) > 1


def test_the_derivation_is_proved_step_by_step() -> None:
    program = convolution(1, 64, 128, 6, 6)
    found = in_blocks(program, 4)
    assert {certify(s.before, s.after).kind for s in found.steps} == {"proved"}
    names = [s.match.rule.name for s in found.steps]
    assert names[-1] == "blocked_generation" and "storage_layout" in names
    weights = next(e for e in found.end.equations if e.name == "L2")
    width = 2 * this_machine().lanes
    assert weights.scope.shape == (6, 6, 128 // width, 64, width)  # panels of two vectors of the 128 columns


def test_elementwise_reader_is_fused_into_the_last_stage() -> None:
    program = ee.parse(
        CONVOLUTION.format(n=1, c=16, f=16, h=6, w=6, p=1, oh=6, ow=6) + "tensor R[1, 16, 6, 6]\ntensor B[16] weight\n"
        "Z[n:1, f:16, h:6, w:6] = relu(Y[n, f, h, w] + B[f] + R[n, f, h, w])"
    )
    derivation = in_blocks(replace(program, outputs=("Z",)))
    assert [e.via for e in derivation.end.equations if e.name == "Z"] == [BLOCKED]
    arrays = integers(program)
    constants = {name: arrays.pop(name) for name in ("K", "B")}
    got = compile_program(derivation.end, constants=constants).run(arrays)["Z"]
    np.testing.assert_array_equal(got, evaluate(program, {**arrays, **constants})["Z"])


def test_elementwise_reader_is_fused_into_a_generated_chain() -> None:
    """Across the border of two subprograms: the border is fused away, the weights stay as they were stored."""
    before = in_blocks(convolution(1, 16, 16, 6, 6)).end
    more = ee.parse("tensor Y[1, 16, 6, 6]\nZ[n:1, f:16, h:6, w:6] = relu(Y[n, f, h, w])").equations[0]
    more = replace(more, via=Instance(EOPERATOR, (("kind", "elementwise"),)))
    joined_up = fuse_with_refusals(Derivation(replace(before, equations=(*before.equations, more), outputs=("Z",))))
    end = joined_up.derivation.end
    assert [e.via for e in end.equations if e.name == "Z"] == [BLOCKED]
    assert not any(e.name == "Y" for e in end.equations)
    assert any("computed at compile time" in why for why in joined_up.refused.values())


def test_weights_behind_a_view_are_stored_in_reading_order() -> None:
    program = ee.parse("tensor K[3, 4] weight\ntensor A[4]\nL[x:4, y:3] = K[y, x]\nY[x:4] = sum[y:3] L[x, y] * A[x]")
    view = replace(program.equations[0], via=Instance(VIEW, (("offset", 0), ("strides", (1, 4)))))
    program = replace(program, equations=(view, program.equations[1]))
    made = compile_program(program, constants={"K": np.arange(12.0).reshape(3, 4)})
    assert made.engines["L"] == "constant" and made.contexts.constants["L"].flags.c_contiguous
    np.testing.assert_array_equal(made.run({"A": np.ones(4)})["Y"], [12, 15, 18, 21])


MATRICES = "tensor A[8, 16]\ntensor B[16, 16]\ntensor C[8, 16]\n"
PRODUCT = "{{[m:8, n:16] sum[k:16] A[m, k] * B[k, n]}}"


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("Y[m:8, n:16] = sum[k:16] A[m, k] * B[k, n]", "it reads no scope: there is only one stage"),
        ("Y[m:8] = {[m:8] sum[k:16] A[m, k]}[m] * 2", "none of the 2 stages sums products of two tensors"),
        (
            "Y[m:8] = {[m:8] max[k:16] A[m, k] * C[m, k]}[m] * 2",
            "a stage is reduced by max, expected sum",
        ),
        (
            "Y[m:8] = {[m:8 | 0 <= m < 4] sum[k:16] A[m, k] * C[m, k]}[m] * 2",
            "a stage has the domain 0 <= m < 4",
        ),
        (
            "Y[m:8, n:16] = sum[r:3] {[m:8, n:16] sum[k:16] A[m, k] * B[k, n]}[(m + r) % 8, (n + r) % 16]",
            "no traversal is shared",
        ),
        ("Y[] = 2 * {[m:8] sum[k:16] A[m, k] * C[m, k]}[3]", "the result is one number"),
    ],
)
def test_scope_that_is_no_chain_is_refused(case: str, why: str) -> None:
    program = ee.parse(MATRICES + case)
    program = replace(program, inputs=tuple(tensors(program.equations[0].scope)))
    refuses(BLOCKED_GENERATION, program, (0,), why)
    assert why in explained(program)


def test_a_chain_is_generated_once() -> None:
    program = ee.parse(MATRICES + "Y[m:8, n:16] = {[m:8, n:16] sum[k:16] A[m, k] * B[k, n]}[m, n] + C[m, n]")
    assert explained(program) == "it can be generated block by block"
    after = Derivation(program).then(next(iter(BLOCKED_GENERATION.matches(program, (0,))))).end
    assert after.equations[0].via == BLOCKED
    refuses(BLOCKED_GENERATION, after, (0,), "instantiated already")


def test_chain_without_vectorised_products_is_not_tiled() -> None:
    """Eight columns: the scope is a chain, and the kernel of single stages runs it."""
    program = ee.parse(
        "tensor A[8, 16]\ntensor B[16, 6]\ntensor C[8, 6]\n"
        "Y[m:8, n:6] = {[m:8, n:6] sum[k:16] A[m, k] * B[k, n]}[m, n] + C[m, n]"
    )
    scope = program.equations[0].scope
    assert tileable_chain(scope, HERE) is None and TvmSource(scope).kind is None
    arrays = integers(program)
    got = compile_program(program).run(arrays)["Y"]
    np.testing.assert_array_equal(got, evaluate(program, arrays)["Y"])
    assert chain_in_blocks(Derivation(program)) is None


@pytest.mark.parametrize(
    "text",
    [
        "tensor C[2, 2] pad [(1, 0), (2, 0)]\nY[] = sum[n:-1..1] C[n, 2*n] * C[n, n]",
        "tensor C[2, 32]\nY[x:32] = C[0, x] + {[] sum[n:2] C[n, n] * C[n, 0]}[] * C[1, x]",
    ],
)
def test_a_stage_of_one_element_has_no_vectors(text: str) -> None:
    """Found by a soak: compiling it was a crash."""
    program = ee.parse(text)
    assert tileable_chain(program.equations[0].scope, HERE) is None
    arrays = integers(program)
    got = compile_program(program).run({n: np.asarray(a, np.float32) for n, a in arrays.items()})
    np.testing.assert_array_equal(got["Y"], evaluate(program, arrays)["Y"])


@pytest.mark.parametrize("depth", [16, 4096])
@pytest.mark.parametrize(("rows", "vectors"), [(14, 4), (16, 16), (49, 8), (1, 2), (5, 3)])
def test_tiles_fit_the_registers_and_the_vectors(rows: int, vectors: int, depth: int) -> None:
    tile = choose_vector_tile(rows, vectors, depth, Machine())
    assert vectors % tile.vectors == 0 and tile.rows <= rows
    assert tile.rows * tile.vectors + tile.vectors + 1 <= Machine().registers


def test_few_registers_hold_more_sums_than_are_in_flight() -> None:
    """8 sums of 256 bits hide the latency of a multiply-add exactly, and are slower than 12, although 8 divide 16."""
    narrow = Machine(registers=16, lanes=8, latency=NARROW_LATENCY)
    assert choose_vector_tile(16, 32, 256, narrow).sums == 12
    assert choose_vector_tile(16, 32, 256, replace(narrow, latency=4)).sums == 8
    assert vector_tile(64, narrow).rows * vector_tile(64, narrow).vectors == 8


def test_tiles_that_divide_the_rows_are_preferred() -> None:
    assert choose_vector_tile(16, 16, 64, Machine()).rows in (4, 8, 16)
    assert 28 % choose_vector_tile(28, 4, 64, Machine()).rows == 0


def test_columns_are_read_by_few_tiles_of_rows() -> None:
    """Long columns are read from the second-level cache for every tile; where that costs nothing, ties prefer rows."""
    wide, high = (VectorTile(rows, vectors, 16) for rows, vectors in ((4, 4), (8, 2)))
    short, long = ([product_cycles(tile, 16, 32, depth, Machine()) for tile in (wide, high)] for depth in (16, 4096))
    assert short[0] == short[1] and long[0] > long[1]
    for rows, tile in ((16, high), (12, VectorTile(12, 2, 16))):
        assert [choose_vector_tile(rows, 32, depth, Machine()) for depth in (16, 4096)] == [tile, tile]


def written(c: int, f: int) -> tuple[str, tuple[Cut, ...]]:
    """The kernel of F(2×2, 3×3) of so many channels, on an image of 7²; how it is cut."""
    program = in_blocks(convolution(1, c, f, 7, 7)).end
    scope = program.equations[-1].scope
    cuts = choose_cuts(find_chain(scope), 1, HERE)
    sizes = {t.name: prod(t.shape) for t in tensors(scope)}
    return str(kernel.chain_function((ChainPart(find_chain(scope), cuts),), sizes, 1, HERE)), cuts


def test_weights_larger_than_the_caches_are_prefetched_and_read_once() -> None:
    large, cuts = written(256, 512)
    small, _ = written(16, 32)
    prefetched = [set(re.findall(r"prefetch\(T.address_of\((\w+)\[", text)) for text in (large, small)]
    assert prod(c.blocks for c in cuts) == 1 and [len(names) for names in prefetched] == [
        3,
        2,
    ]  # the image and the result, too


@pytest.mark.parametrize("slides", [False, True])
def test_stages_share_memory_that_no_later_stage_reads(slides: bool) -> None:
    program = in_blocks(convolution(1, 16, 32, 24, 16), 4).end
    found = find_chain(program.equations[-1].scope)
    rows = next(c for c in found.cuts() if c.traversal.name == "h")
    cuts = (found.make_cut(rows.traversal, rows.period, 1),) if slides else ()
    stages = block_stages(found, cuts, lambda t: t.name, 1)
    buffers, sizes = kernel.share_memory(stages)
    assert buffers.keys() == {s.memory for s in stages[:-1]} and len(sizes) < len(buffers)
    sliding = [s.memory for s in stages if s.slide is not None]
    assert bool(sliding) == slides
    assert all([buffers[name] for name in buffers].count(buffers[alone]) == 1 for alone in sliding)
    for n, stage in enumerate(stages[:-1]):
        assert stage.size <= sizes[buffers[stage.memory]]
        last = max(m for m, other in enumerate(stages) if stage.memory in {tensor_name(a.source) for a in other.reads})
        later = {buffers[s.memory] for s in stages[n + 1 : last + 1] if s.memory in buffers}
        assert buffers[stage.memory] not in later  # nothing overwrites it before its last reader is done


@pytest.mark.parametrize("cases", [2, 4])
def test_vectors_that_several_cases_read_are_loaded_once(cases: int) -> None:
    """Row p of a transform reads elements p and p + 1: all inner ones are read twice, and the last as often as once."""
    lane, x = kernel.lane_iterator(16), Tensor("#x", (1000,))
    bodies = [add(*(x[(as_index(lane) + 16 * n,)] for n in (p, p + 1))) for p in range(cases)]
    shared = kernel.shared_vectors(bodies, lane)
    assert set(shared) == {x[(as_index(lane) + 16 * n,)] for n in range(1, cases)}
    assert kernel.shared_vectors([*bodies, None], lane) == ()  # a sum in a loop
    strided = [x[(as_index(lane) * 2,)]] * 2  # no vector in memory
    assert kernel.shared_vectors(strided, lane) == ()
    many = [add(*(x[(as_index(lane) + 16 * n,)] for n in range(kernel.MAX_SHARED_VECTORS + 1)))] * 2
    assert kernel.shared_vectors(many, lane) == ()  # more than fit the registers


def shapes(program: Program) -> set[tuple[int, ...]]:
    """Return the shapes of the tables that *program* reads."""
    return {a.source.shape for e in program.equations for a in accesses(e.scope.body) if isinstance(a.source, Table)}


def filters(program: Program) -> list[Derivation]:
    """Return the programs that search makes of *program* by filters of its windows' residues in each dimension."""
    rules = (BOUNDARY_RELAXING, VARIABLE_SUBSTITUTION, BILINEAR_SUBSTITUTION)
    found = []
    for matches, _ in best_first_moves(program, Restrictions(rules)):
        rules_used = [match.rule for match in matches]
        if VARIABLE_SUBSTITUTION in rules_used and rules_used.count(BILINEAR_SUBSTITUTION) == 2:
            derivation = Derivation(program)
            for match in matches:
                derivation = derivation.then(match)
            found.append(derivation)
    return found


def test_a_strided_window_is_filters_of_its_residues_in_blocks() -> None:
    """7×7 with stride 2 is four filters of 4×4 beside one another: F(4×4, 4×4) takes 49 products for 16·49."""
    program = ee.parse("""
        tensor A[1, 3, 13, 22] pad [0, 0, 3, 3]
        tensor K[16, 3, 7, 7] weight
        Y[n:1, f:16, h:7, w:11] = sum[c:3, r:7, s:7] A[n, c, 2*h+r-3, 2*w+s-3] * K[f, c, r, s]""")
    made = filters(program)
    assert {(4, 7), (2, 5)} <= {shape for d in made for shape in shapes(d.end)}
    arrays = integers(program)
    want = evaluate(program, arrays)["Y"]
    nested = next(d for d in made if shapes(d.end) == {(7, 7), (7, 4), (4, 7)})
    assert all(certify(step.before, step.after).kind == "proved" for step in nested.steps)
    after = chain_in_blocks(fuse_eoperators(nested))
    assert after is not None and after.end.equations[-1].via == BLOCKED
    single = {name: a.astype(np.float32) for name, a in arrays.items()}
    got = compile_program(after.end, constants={"K": single["K"]}).run({"A": single["A"]})["Y"]
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_a_window_of_step_one_has_no_filters_of_residues() -> None:
    assert not filters(convolution(1, 2, 3, 6, 6))


def test_a_chain_in_blocks_is_remembered_by_its_steps() -> None:
    """A second run applies them again; it searched for all of these once more while the rule was in no list."""
    program = convolution(1, 16, 16, 6, 6)
    made = in_blocks(program)
    again = replay(program, json.loads(json.dumps(steps_to_json(made))))
    assert again.end == made.end and again.end.equations[-1].via == BLOCKED


ONE_WIDE = [
    "tensor A[1, 4, 6] pad [(0, 1), 0, 0]\nM[p:2, i:4, k:6] = A[p, i, k] + 1",
    "tensor A[1, 4, 6] pad [(1, 0), 0, 0]\nM[p:2, i:4, k:6] = A[p-1, i, k] + 1",
    "tensor A[1, 4, 6] pad [(1, 1), 0, 0] value 2\nM[p:3, i:4, k:6] = A[p-1, i, k] + 1",
    "tensor A[4, 1, 6] pad [0, (1, 1), 0]\nM[p:3, i:4, k:6] = A[i, p-1, k] + 1",
    "tensor A[4, 6, 1] pad [0, 0, (1, 0)]\nM[p:2, i:4, k:6] = A[i, k, p-1] + 1",
]


@pytest.mark.parametrize("stage", ONE_WIDE)
def test_padding_of_a_dimension_of_extent_one_is_filled(stage: str) -> None:
    """Such as a convolution of an image of one row, or a concatenation with one column."""
    declared, body = stage.split("\n")
    count = 3 if "p:3" in body else 2
    nested = f"{{[{body.split('[')[1].split(']')[0]}] {body.split('= ')[1]}}}[p, i, k]"
    source = f"{declared}\ntensor B[{count}, 6, 32] weight\nY[i:4, j:32] = sum[k:6, p:{count}] {nested} * B[p, k, j]"
    program = ee.parse(source)
    arrays = integers(program)
    end = Derivation(program).then(BLOCKED_GENERATION.match(program, (0,))).end
    made = compile_program(end, constants={"B": arrays["B"]})
    want = evaluate(program, arrays, np.float64, outputs_only=True)["Y"]
    assert np.array_equal(made.run(arrays)["Y"], want)
