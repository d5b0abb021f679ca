"""Softmax-weighted sums in one pass: the monoid and its law, recognition, the rule, the kernels, the export."""

import re
from fractions import Fraction

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from einnet_explore.analysis.online_softmax import (
    BASES,
    LISTS,
    Homomorphism,
    Monoid,
    OnlineSoftmax,
    Triple,
    check_laws,
    match_online_softmax,
    softmax_homomorphism,
)
from einnet_explore.codegen.register_tiles import Machine, this_machine
from einnet_explore.codegen.rows import online
from einnet_explore.codegen.rows.hidden_columns import hiding_term
from einnet_explore.codegen.rows.online import online_block, online_function
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import EOPERATOR, EOperatorKind, Instance, Program, Scope, tensors
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.partition import partition
from einnet_explore.rules import ONE_PASS_GENERATION, Derivation
from einnet_explore.runtime import compiled
from einnet_explore.runtime.program import compile_program
from einnet_explore.runtime.tvm_cpu import TvmKernel, TvmSource
from einnet_explore.strategies.vertical_fusion import fuse_vertically, substitute_intermediate
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import parse
from tests.rules_kit import refuses
from tests.test_longformer import attention as banded
from tests.test_longformer import exported, run
from tests.test_rules_reductions import explained

ATTENTION = """
tensor Q[{b}, {m}, {k}]
tensor K[{b}, {w}, {k}]
tensor V[{b}, {w}, {n}]
tensor mask[{m}, {w}]
tensor bias[{w}]
S[b:{b}, m:{m}, w:{w}] = sum[k:{k}] Q[b, m, k] * K[b, w, k]
Z[b:{b}, m:{m}, w:{w}] = {score}
M[b:{b}, m:{m}] = max[w:{w}] Z[b, m, w]
E[b:{b}, m:{m}, w:{w}] = exp(Z[b, m, w] - M[b, m])
T[b:{b}, m:{m}] = sum[w:{w}] E[b, m, w]
P[b:{b}, m:{m}, w:{w}] = E[b, m, w] / T[b, m]
Y[b:{b}, m:{m}, n:{n}] = sum[w:{w}] P[b, m, w] * V[b, w, n]
output Y
"""
PLAIN, MASKED = "0.5 * S[b, m, w]", "0.5 * S[b, m, w] + mask[m, w] + bias[w]"
CAUSAL = "where(w <= m, S[b, m, w], -inf)"


def attention(b: int, m: int, w: int, k: int, n: int, score: str = PLAIN) -> Program:
    return parse(ATTENTION.format(b=b, m=m, w=w, k=k, n=n, score=score))


def derived(program: Program) -> Scope:
    derivation = fuse_vertically(program)
    assert derivation is not None
    (equation,) = derivation.end.equations
    return equation.scope


def fits(scope: Scope) -> OnlineSoftmax:
    return match_online_softmax(scope)


def agree(scope: Scope, threads: int = 1, machine: Machine | None = None) -> None:
    """The one-pass kernel itself, built for any machine."""
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in tensors(scope)}
    source = TvmSource(scope, threads=threads)
    inputs = dict(zip(source.inputs, source.shapes, strict=False))
    made = online_function(fits(scope), inputs, threads, machine or this_machine())
    assert ("parallel" in str(made.script())) == (threads > 1)
    kernel = TvmKernel(source, compiled.build_tvm(made, f"{source.key}-{machine}"[:200].replace("/", "_"), threads))
    got = kernel(*(arrays[name] for name in source.inputs))
    want = evaluate(scope, arrays, np.float64)
    assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()


# The monoid

pairs = st.tuples(st.integers(-20, 20), st.fractions(-9, 9, max_denominator=12))
bases = st.fractions(Fraction(1, 5), 5, max_denominator=9)


@settings(deadline=None)
@given(st.lists(st.lists(pairs, max_size=5), min_size=3, max_size=3), bases)
def test_triples_are_a_monoid_and_what_lists_are_mapped_to(
    lists: list[list[tuple[int, Fraction]]], base: Fraction
) -> None:
    law = softmax_homomorphism(base)
    check_laws(law, lists)
    together = [pair for one in lists for pair in one]
    assert law.in_blocks(lists) == law.whole(together) == law.monoid.fold(map(law.single, together))


@given(st.lists(pairs, min_size=1, max_size=8), bases)
def test_triple_of_a_list_yields_its_softmax_weighted_sum(values: list[tuple[int, Fraction]], base: Fraction) -> None:
    found = softmax_homomorphism(base).whole(values)
    weights = [base**z for z, _ in values]
    assert found.weighted / found.total == sum(p * x for p, (_, x) in zip(weights, values, strict=True)) / sum(weights)


def test_broken_homomorphism_law_is_refused() -> None:
    law = softmax_homomorphism()

    def forgets(a: Triple, b: Triple) -> Triple:
        """A wrong monoid: it adds sums relative to different maxima without rescaling."""
        return Triple(max(a.largest or 0, b.largest or 0), a.total + b.total, a.weighted + b.weighted)

    wrong = Monoid("forgetful", law.monoid.neutral, forgets)
    with pytest.raises(Refused, match="is not neutral for"):
        check_laws(Homomorphism(wrong, law.single, law.whole), LISTS)
    difference = Homomorphism(Monoid("-", 0, lambda a, b: a - b), lambda e: e, sum)
    with pytest.raises(Refused, match="is not neutral"):
        check_laws(difference, [[1], [2]])
    middle = Monoid("mean", Fraction(0), lambda a, b: a + b if not a or not b else (a + b) / 2)
    means = Homomorphism(middle, Fraction, lambda es: Fraction(sum(es)))
    with pytest.raises(Refused, match=re.escape("(1 + 1) + 2 is 3/2, but 1 + (1 + 2) is 5/4")):
        check_laws(means, [[1], [2]])
    doubled = Homomorphism(Monoid("+", 0, lambda a, b: a + b), lambda e: 2 * e, sum)
    with pytest.raises(Refused, match=r"^3 by itself is 3, expected 6$"):
        check_laws(doubled, [[3]])
    squares = Homomorphism(Monoid("+", 0, lambda a, b: a + b), lambda e: e * e, lambda es: sum(es) ** 2)
    with pytest.raises(Refused, match=re.escape("[1] and [1] combine to 2, the whole is 4")):
        check_laws(squares, [[1], [2]])
    for base in BASES:
        check_laws(softmax_homomorphism(base), LISTS)
    with pytest.raises(ValueError, match="base 0: expected a positive number"):
        softmax_homomorphism(Fraction(0))


# What is recognised, and the rule


@pytest.mark.parametrize("score", [PLAIN, MASKED, CAUSAL, "tanh(S[b, m, w]) * bias[w]"])
def test_the_derivation_ends_in_one_equation(score: str) -> None:
    start = attention(2, 6, 9, 4, 3, score)
    derivation = fuse_vertically(start)
    assert derivation is not None and derivation.end.equations[0].via == Instance(EOPERATOR, (("kind", "one_pass"),))
    assert {certify(step.before, step.after).kind for step in derivation.steps} == {"proved"}
    assert certify(start, derivation.end).kind == "proved"


def test_bands_are_recognised_too() -> None:
    found = fits(derived(banded(2, 12, 4, 4, 2)))
    assert not found.nest.dense and found.total is not None


def test_unnormalised_weighted_sums_are_recognised() -> None:
    start = attention(1, 5, 7, 3, 4)
    whole = start.equations
    names = {e.name: e for e in whole}
    assert names["P"].scope.body != names["E"].scope.body
    power = parse(ATTENTION.format(b=1, m=5, w=7, k=3, n=4, score=PLAIN).replace("E[b, m, w] / T[b, m]", "E[b, m, w]"))
    scope = derived(power)
    assert fits(scope).total is None
    agree(scope)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("max[w:7] Z[b, m, w]", "min[w:7] Z[b, m, w]", "is not the largest"),
        ("max[w:7] Z[b, m, w]", "max[w:7] S[b, m, w]", "is not the largest"),
        ("sum[w:7] E[b, m, w]", "sum[w:7] Z[b, m, w]", "is not the sum of the exponentials"),
        ("E[b, m, w] / T[b, m]", "E[b, m, w] * T[b, m] / M[b, m]", "scaled by the maximum"),
        ("E[b, m, w] / T[b, m]", "relu(E[b, m, w]) / T[b, m]", "no exponential of the difference"),
    ],
)
def test_scopes_that_are_no_softmax_weighted_sum_are_refused(old: str, new: str, why: str) -> None:
    text = ATTENTION.format(b=1, m=5, w=7, k=3, n=4, score=PLAIN)
    assert old in text
    wrong = parse(text.replace(old, new))
    derivation = Derivation(wrong)
    for equation in wrong.equations[:-1]:
        derivation = substitute_intermediate(derivation, equation.name)
    fused = derivation.end
    refuses(ONE_PASS_GENERATION, fused, (0,), why)
    assert why in explained(ONE_PASS_GENERATION, fused)
    assert not list(ONE_PASS_GENERATION.propose(fused, (0,)))


def test_one_pass_generation_refuses() -> None:
    product = parse("tensor A[4, 5]\ntensor B[5, 6]\nY[m:4, n:6] = sum[w:5] A[m, w] * B[w, n]")
    refuses(ONE_PASS_GENERATION, product, (0,), "no exponential of the difference")
    refuses(ONE_PASS_GENERATION, product, (0,), "takes no parameters, found block", block=4)
    pool = parse("tensor A[4, 5]\nY[m:4] = max[w:5] A[m, w]")
    refuses(ONE_PASS_GENERATION, pool, (0,), "no row values, of a band or of every column")
    derivation = fuse_vertically(attention(1, 5, 7, 3, 4))
    assert derivation is not None
    refuses(ONE_PASS_GENERATION, derivation.end, (0,), "instantiated already, by eOperator")
    before = derivation.steps[-1].before
    assert explained(ONE_PASS_GENERATION, before) == "it can be generated in one pass"


# Kernels


@settings(deadline=None, max_examples=6)
@given(
    b=st.integers(1, 3), m=st.integers(1, 90), w=st.integers(1, 200), k=st.integers(1, 20), n=st.integers(1, 40),
    score=st.sampled_from([PLAIN, MASKED, CAUSAL]), threads=st.integers(1, 2),
)  # fmt: skip
def test_one_pass_kernel_agrees_with_evaluation(
    b: int, m: int, w: int, k: int, n: int, score: str, threads: int
) -> None:
    w = max(w, 2)
    if score == CAUSAL:
        m = min(m, w)
    agree(derived(attention(b, m, w, k, n, score)), threads)


@pytest.mark.parametrize(("sizes", "threads"), [((1, 400, 16, 24, 40), 2), ((2, 70, 5, 16, 130), 1)])
def test_one_pass_kernel_over_a_band_agrees_with_evaluation(
    sizes: tuple[int, int, int, int, int], threads: int
) -> None:
    agree(derived(banded(*sizes)), threads, Machine(l1=1 << 14, l2=1 << 14))


MERGED = """
tensor Q[{m}, {h}, {k}]
tensor K[{h}, {k}, {w}]
tensor V[{h}, {w}, {n}]
S[b:{h}, m:{m}, w:{w}] = sum[k:{k}] Q[m, b, k] * K[b, k, w]
Z[b:{h}, m:{m}, w:{w}] = 0.5 * S[b, m, w]
M[b:{h}, m:{m}] = max[w:{w}] Z[b, m, w]
E[b:{h}, m:{m}, w:{w}] = exp(Z[b, m, w] - M[b, m])
T[b:{h}, m:{m}] = sum[w:{w}] E[b, m, w]
P[b:{h}, m:{m}, w:{w}] = E[b, m, w] / T[b, m]
Y[m:{m}, x:{width}] = sum[w:{w}] P[x // {n}, m, w] * V[x // {n}, w, x % {n}]
output Y
"""
"""Attention whose heads are merged in the result, with transposed keys, as exporters write transformers."""


def merged_heads(h: int, m: int, w: int, k: int, n: int) -> Program:
    return parse(MERGED.format(h=h, m=m, w=w, k=k, n=n, width=h * n))


@pytest.mark.parametrize("sizes", [(3, 7, 5, 4, 6), (2, 70, 149, 32, 16), (6, 33, 96, 16, 24)])
def test_attention_with_merged_heads_is_one_kernel(sizes: tuple[int, int, int, int, int]) -> None:
    start = merged_heads(*sizes)
    derivation = fuse_vertically(start)
    assert derivation is not None and [e.via for e in derivation.end.equations] == [EOperatorKind.ONE_PASS.instance]
    assert {certify(step.before, step.after).kind for step in derivation.steps} == {"proved"}
    scope = derivation.end.equations[0].scope
    h, m, _, _, n = sizes
    assert fits(scope).nest.scope.shape == (m, h, n) and scope.shape == (m, h * n)
    agree(scope)
    agree(scope, 2)
    rng = np.random.default_rng(3)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in tensors(scope)}
    np.testing.assert_allclose(run(exported(scope), arrays), evaluate(scope, arrays, np.float64), atol=2e-6)


def test_queries_keys_and_values_may_be_parts_of_rows_that_are_not_aligned() -> None:
    """Rows of 97 elements: vectors of the keys begin anywhere."""
    text = MERGED.replace(
        "tensor Q[{m}, {h}, {k}]\ntensor K[{h}, {k}, {w}]\ntensor V[{h}, {w}, {n}]", "tensor X[{w}, 97]"
    )
    parts = {"Q[m, b, k]": "X[m, 16*b+k+1]", "K[b, k, w]": "X[w, 32+16*b+k+1]"}
    parts["V[x // {n}, w, x % {n}]"] = "X[w, 65+x]"
    for old, new in parts.items():
        text = text.replace(old, new)
    agree(derived(parse(text.format(h=2, m=35, w=35, k=16, n=16, width=32))))


@pytest.mark.parametrize(("w", "k"), [(96, 32), (149, 32), (197, 64), (33, 16), (130, 20)])
def test_blocks_of_columns_end_with_the_row(w: int, k: int) -> None:
    agree(derived(attention(2, 9, w, k, 16)))
    agree(derived(attention(1, 70, w, k, 24, MASKED)))


def test_scores_far_apart_and_rows_of_one() -> None:
    scope = derived(attention(1, 3, 260, 1, 2))
    arrays = {
        "Q": np.full((1, 3, 1), 200.0),
        "K": np.linspace(-1, 1, 260).reshape(1, 260, 1),
        "V": np.ones((1, 260, 2)),
    }
    arrays["V"][:, -1] = 5
    given = {name: a.astype(np.float32) for name, a in arrays.items()}
    source = TvmSource(scope)
    assert isinstance(source.kind, OnlineSoftmax)
    kernel = TvmKernel(source, compiled.build_tvm(source.function, f"far-{source.key}", 1))
    got = kernel(*(given[name] for name in source.inputs))
    np.testing.assert_allclose(got, evaluate(scope, given, np.float64), rtol=2e-5)


@pytest.mark.parametrize(("m", "w"), [(49, 49), (70, 48), (64, 600)])
def test_queries_and_values_are_read_in_place_at_any_place_in_memory(m: int, w: int) -> None:
    """A block of queries and values that begins at element 3 and 5: no packed copy, and no aligned vectors."""
    text = ATTENTION.format(b=2, m=m, w=w, k=20, n=32, score=PLAIN)
    for old, new in {
        f"tensor Q[2, {m}, 20]": f"tensor Q[{40 * m + 3}]",
        "Q[b, m, k]": f"Q[{20 * m}*b+20*m+k+3]",
        f"tensor V[2, {w}, 32]": f"tensor V[{64 * w + 5}]",
        "V[b, w, n]": f"V[{32 * w}*b+32*w+n+5]",
    }.items():
        text = text.replace(old, new)
    agree(derived(parse(text)))
    agree(derived(parse(text)), 2)


@pytest.mark.usefixtures("wide_vectors")
def test_only_keys_are_packed_where_queries_and_values_are_contiguous() -> None:
    scope = derived(attention(2, 49, 49, 32, 32))
    text = str(TvmSource(scope).function.script())
    keys, scores, triples = "T.alloc_buffer((2048,)", "T.alloc_buffer((4096,)", "T.alloc_buffer((64,)"
    assert (text.count(keys), text.count(scores), text.count(triples)) == (1, 1, 3)  # maxima, sums and scales
    assert "T.alloc_buffer((1568,)" not in text and "range(7)" in text  # values; seven tiles of seven rows
    agree(scope)


@pytest.mark.parametrize("threads", [1, 2])
def test_keys_that_heads_share_are_packed_once_for_them(threads: int) -> None:
    text = ATTENTION.format(b=2, m=20, w=33, k=16, n=16, score=PLAIN).replace("b:2", "b:2, g:3")
    for name in "QSZMETPVY":
        text = text.replace(f"{name}[b,", f"{name}[b, g,")
    for name in "QV":
        text = text.replace(f"tensor {name}[2,", f"tensor {name}[2, 3,")
    scope = derived(parse(text))
    before_packing = str(TvmSource(scope, threads).function.script()).split("alloc_buffer")[0]
    assert f"({2 if threads == 1 else 6})" in before_packing.splitlines()[-2]
    agree(scope, threads)


def test_blocks_follow_the_caches() -> None:
    wide = fits(derived(attention(1, 4096, 4096, 64, 64)))
    assert online_block(wide, Machine(l2=128 << 10)) == (64, 128) and online_block(wide, Machine(l2=1 << 20))[1] == 512
    window = fits(derived(banded(1, 2048, 4, 64, 256)))
    assert online_block(window, Machine(l1=48 << 10))[1] == 128
    narrow = fits(derived(attention(1, 3, 20, 4, 5)))
    assert online_block(narrow, Machine()) == (16, 32)
    small = fits(derived(attention(2, 96, 96, 64, 64)))  # no block of 128 columns, a quarter of which is padding
    assert online_block(small, Machine(l1=48 << 10)) == (64, 96)


# Models


def model(m: int, w: int, features: int, mask: bool) -> onnx.ModelProto:
    sizes = {"q": [1, 2, m, features], "k": [1, 2, w, features], "v": [1, 2, w, features], "y": [1, 2, m, features]}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in sizes.items()]
    weights = [helper.make_tensor("scale", TensorProto.FLOAT, [], [features**-0.5])]
    values = np.where(np.tri(m, w, dtype=bool), 0, -1e9).astype(np.float32)
    weights += [onnx.numpy_helper.from_array(values, "mask")]
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["z0"]),
        helper.make_node("Add" if mask else "Identity", ["z0", "mask"] if mask else ["z0"], ["z"]),
        helper.make_node("Softmax", ["z"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "attention", infos[:3], infos[3:], weights if mask else weights[:1])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("mask", [True])
def test_a_model_is_one_subprogram_and_one_kernel(mask: bool) -> None:
    made = model(20, 30, 8, mask)
    (part,) = partition(load_model(made)).subprograms
    derivation = fuse_vertically(part.program)
    assert derivation is not None and len(derivation.end.equations) == 1
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal((1, 2, 20 if name == "q" else 30, 8)).astype(np.float32) for name in "qkv"}
    constants = {"mask": onnx.numpy_helper.to_array(made.graph.initializer[-1])} if mask else {}
    shapes = {t.name: t.shape for t in part.program.inputs}
    arrays = {n: (feeds | constants).get(n, np.float32(8**-0.5)).reshape(shape) for n, shape in shapes.items()}
    got = compile_program(derivation.end).run(arrays)
    (name,) = part.program.outputs
    np.testing.assert_allclose(got[name].reshape(1, 2, 20, 8), run(made, feeds), atol=2e-6)


@pytest.mark.parametrize("score", [PLAIN, MASKED])
def test_one_pass_attention_is_exported_with_softmax(score: str) -> None:
    scope = derived(attention(2, 6, 9, 4, 3, score))
    made = exported(scope)
    used = [node.op_type for f in made.functions for node in f.node] + [node.op_type for node in made.graph.node]
    assert used.count("MatMul") == 2 and used.count("Softmax") == 1 and "Exp" not in used
    rng = np.random.default_rng(2)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in tensors(scope)}
    np.testing.assert_allclose(run(made, arrays), evaluate(scope, arrays, np.float64), atol=2e-6)


# Hidden columns

LOWEST = float(np.finfo(np.float32).min)


def bits_and_all_columns(
    scope: Scope, arrays: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, threads: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The results of the kernel that skips hidden columns and of the one that computes all of them."""
    source, found = TvmSource(scope, threads=threads), []
    inputs = dict(zip(source.inputs, source.shapes, strict=False))
    for skips in (True, False):
        with monkeypatch.context() as patch:
            if not skips:
                patch.setattr(online, "hiding_term", lambda _: None)
            made = online.online_function(fits(scope), inputs, threads, this_machine())
        assert ("while" in str(made.script())) == skips
        kernel = TvmKernel(source, compiled.build_tvm(made, f"hidden-{skips}-{source.key}"[:200], threads))
        found.append(kernel(*(arrays[name] for name in source.inputs)))
    return found[0], found[1]


def masked_arrays(scope: Scope, mask: np.ndarray, bias: np.ndarray | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in tensors(scope)}
    arrays["mask"] = mask.astype(np.float32)
    if bias is not None:
        arrays["bias"] = bias.astype(np.float32)
    return arrays


@pytest.mark.parametrize("lowest", [LOWEST, -np.inf])
@pytest.mark.parametrize(("m", "w", "threads"), [(70, 70, 1), (64, 64, 2), (140, 1100, 1), (33, 47, 1)])
def test_columns_hidden_by_a_mask_are_skipped_with_the_same_bits(
    m: int, w: int, threads: int, lowest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = derived(attention(2, m, w, 16, 24, MASKED))
    mask = np.where(np.arange(w) <= np.arange(m)[:, None] + (w - m) // 2, 0, lowest)
    mask[3] = lowest  # a row without visible columns: all weigh the same, or NaN
    mask[20:, :5] = lowest
    arrays = masked_arrays(scope, mask, np.where(np.arange(w) < w - 5, 0.5, lowest))
    skipped, whole = bits_and_all_columns(scope, arrays, monkeypatch, threads)
    np.testing.assert_array_equal(skipped, whole)
    with np.errstate(invalid="ignore"):
        want = evaluate(scope, arrays, np.float64)
    rows = np.arange(m) != 3
    assert np.abs(skipped - want)[:, rows].max() <= 4e-6 * np.abs(want[:, rows]).max()


@pytest.mark.parametrize(
    ("name", "value"), [("K", np.nan), ("K", 1e30), ("Q", np.inf), ("V", np.nan), ("V", np.inf), ("K", 3e38)]
)
def test_hidden_columns_are_computed_if_their_scores_or_values_might_be_infinite(
    name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = derived(attention(2, 40, 40, 16, 16, MASKED))
    arrays = masked_arrays(scope, np.where(np.tri(40, dtype=bool), 0, LOWEST), np.zeros(40))
    arrays[name][1, 39] = value
    skipped, whole = bits_and_all_columns(scope, arrays, monkeypatch)
    np.testing.assert_array_equal(skipped, whole)
    if name == "V":
        assert not np.isfinite(skipped[1]).any() and np.isfinite(skipped[0]).all()


@pytest.mark.parametrize("low", [-1e36, -1e31, -100.0])
def test_terms_that_only_lower_scores_hide_no_column(low: float, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = derived(attention(1, 40, 40, 16, 16, MASKED))
    mask = np.where(np.tri(40, dtype=bool), low, 2 * low)
    skipped, whole = bits_and_all_columns(scope, masked_arrays(scope, mask, np.zeros(40)), monkeypatch)
    np.testing.assert_array_equal(skipped, whole)


def test_rows_without_a_visible_term_see_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """All terms are below -1e30, some below -1e37: the largest score is one of the former."""
    scope = derived(attention(1, 40, 40, 16, 16, MASKED))
    mask = np.where(np.tri(40, dtype=bool), -1e35, -2e37)
    skipped, whole = bits_and_all_columns(scope, masked_arrays(scope, mask, np.zeros(40)), monkeypatch)
    np.testing.assert_array_equal(skipped, whole)


@pytest.mark.parametrize(
    ("score", "term"),
    [
        (MASKED, "+(0, mask[m, w], #1[w])"),
        (CAUSAL, "where(w <= m, 0, -inf)"),
        ("where(w > m, -inf, 2 * S[b, m, w] + mask[m, w])", "where(w > m, -inf, +(0, mask[m, w]))"),
        ("2 * (S[b, m, w] + mask[m, w])", "*(2, +(0, mask[m, w]))"),
        (PLAIN, None),
        ("S[b, m, w] * mask[m, w]", None),
        ("1e13 * S[b, m, w] + mask[m, w]", None),
        ("tanh(S[b, m, w]) + mask[m, w]", None),
        ("where(w <= m, S[b, m, w], -1000)", None),
    ],
)
def test_term_that_may_hide_columns(score: str, term: str | None) -> None:
    found = hiding_term(fits(derived(attention(2, 9, 32, 16, 16, score))))
    assert (found and str(found)) == term
