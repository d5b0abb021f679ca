"""Element-wise kernels: the OneFlow document's numbers, the choice of packs and blocks, and values on devices."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from syrupy.assertion import SnapshotAssertion

import einnet_explore as ee
from einnet_evaluation.gpu_emulation import Elementwise
from einnet_explore.codegen.elementwise import (
    A100,
    BLOCK_THREADS,
    H100,
    MAX_PACK_BYTES,
    MAX_PACK_SIZE,
    MAX_WAVES,
    ElementwiseLaunch,
    Functor,
    Gpu,
    aligned_kernel,
    block_count,
    build_functor,
    compose_functors,
    grid_stride_kernel,
    index_type,
    operand_read,
    pack_size,
    plan_launch,
)
from einnet_explore.codegen.language.printer import emit
from einnet_explore.codegen.language.values import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, Type
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Apply, Compare, Const, Iterator, Scalar, Scope, Table, Tensor, as_index, mul
from einnet_explore.runtime.cuda import nvrtc
from einnet_explore.support.errors import BackendError, Refused
from tests import kernel_machine
from tests.test_backends_opencl import needs_c, needs_nvrtc, needs_opencl, shifted

KINDS = (BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, F32, F64)
ENGINES = [
    pytest.param("opencl", marks=needs_opencl),
    pytest.param("c blocks", marks=needs_c),
]
CAST = Functor(operand_read("x"), F16, (("x", F32),), name="cast")
ADD = Functor(Apply("+", (operand_read("a"), operand_read("b"))), F16, (("a", F16), ("b", F16)), name="add")


# ---- the document's numbers ---------------------------------------------------------------------------------------


def test_block_has_256_threads() -> None:
    assert 64 * 1024 // 255 == 257 and BLOCK_THREADS == 256 and aligned_kernel(CAST, 5).block == (256, 1, 1)


def test_blocks_are_at_most_32_waves() -> None:
    assert MAX_WAVES == 32
    assert A100.most_blocks == 108 * 2048 // 256 * 32 == 27648
    for n in (0, 1, 255, 256, 257, 27648 * 256, 27648 * 256 + 1, 1 << 40):
        assert block_count(n, A100) == max(1, min(ceil(n / 256), 27648))


def test_pack_has_at_most_16_bytes_and_8_elements() -> None:
    assert MAX_PACK_BYTES == 16 and MAX_PACK_SIZE == 8
    assert [pack_size((k,)) for k in (F64, F32, F16, I8)] == [2, 4, 8, 8]
    assert pack_size((F16, F32)) == 4  # float to half
    assert pack_size((F16, F16)) == 8 and pack_size((F64, F64)) == 2 and pack_size((F16, F32, F64)) == 2


def test_blocks_count_packs_not_elements() -> None:
    assert plan_launch(4096, (F16, F32), (0, 0)) == ElementwiseLaunch(4, 1024, 0, 4, I32)
    assert plan_launch(4099, (F16, F32), (0, 0)) == ElementwiseLaunch(4, 1024, 3, 4, I32)


@pytest.mark.parametrize("dialect", ["cuda", "opencl"])
@pytest.mark.parametrize("functor", [CAST, ADD], ids=lambda f: f.name)
def test_emitted_kernel_is_unchanged(functor: Functor, dialect: str, snapshot: SnapshotAssertion) -> None:
    assert emit(aligned_kernel(functor, 1003), dialect) == snapshot


def test_cast_kernel_has_the_documented_statements() -> None:
    text = emit(aligned_kernel(CAST, 1003), "cuda")
    for part in ("__launch_bounds__(256, 2)", "__float22half2_rn(make_float2(", "i += (int)gridDim.x * 256", "j += 2"):
        assert part in text
    assert "#pragma unroll" in text and "if (first < tail)" in text
    assert "tail)" not in emit(aligned_kernel(CAST, 1000), "cuda").split("{", 1)[1]


@needs_nvrtc
def test_cast_moves_128_bits_at_once() -> None:
    code = nvrtc.compile_cuda(aligned_kernel(CAST, 1000), "compute_80").code.decode()
    lines = [line.strip() for line in code.splitlines()]
    assert sum(line.startswith("ld.global.v4.f32") for line in lines) == 1
    assert sum(line.startswith("st.global.v2.u32") for line in lines) == 1
    assert sum("cvt.rn.f16x2.f32" in line for line in lines) == 2
    assert ".maxntid 256" in code
    assert "add.f16x2" in nvrtc.compile_cuda(aligned_kernel(ADD, 1000), "compute_80").code.decode()
    for architecture in nvrtc.ARCHITECTURES:
        assert nvrtc.compile_cuda(aligned_kernel(CAST, 1000), architecture).code.startswith(b"\x7fELF")


# ---- the choice of pack and grid ----------------------------------------------------------------------------------

MIXES = [(k,) for k in KINDS] + list(itertools.combinations_with_replacement(KINDS, 2))


def test_the_narrowest_rule_for_every_mix() -> None:
    for mix in [*MIXES, *itertools.combinations_with_replacement(KINDS, 3)]:
        pack = pack_size(mix)
        assert pack == min(8, 16 // max(k.size for k in mix)) and pack in (2, 4, 8)
        assert all(pack * k.size <= 16 for k in mix)


def test_launch_covers_every_length_for_every_mix_of_types() -> None:
    small = Gpu(1, 256)
    for mix in MIXES:
        for n in range(1001):
            made = plan_launch(n, mix, [0] * len(mix), small)
            assert made.packs * made.pack + made.tail == n and 0 <= made.tail < made.pack <= 8
            assert made.blocks == max(1, min(-(-made.packs // 256), 32)) and made.index == I32


def test_unaligned_addresses_lead_to_packs_of_one_element() -> None:
    for mix in MIXES:
        pack = pack_size(mix)
        for offsets in itertools.product(range(17), repeat=len(mix)):
            aligned = all(at % (pack * k.size) == 0 for at, k in zip(offsets, mix, strict=True))
            made = plan_launch(1000, mix, [4096 + at for at in offsets])
            assert (made.pack, made.tail) == ((pack, 1000 % pack) if aligned else (1, 0))
            assert made.packs == 1000 // made.pack


@given(st.integers(0, 1 << 40), st.sampled_from(MIXES), st.sampled_from([A100, H100, Gpu(1, 256)]), st.booleans())
def test_positions_fit_their_type(n: int, mix: tuple[Type, ...], gpu: Gpu, aligned: bool) -> None:
    made = plan_launch(n, mix, [0 if aligned else 1 << 4 | 1] * len(mix), gpu)
    # The largest position that any thread computes: one stride beyond its last pack.
    furthest = (made.packs - 1 + made.blocks * BLOCK_THREADS) * made.pack + made.pack - 1 if made.packs else 0
    assert made.index == I64 or max(furthest, n) < 1 << 31
    assert made.packs * made.pack + made.tail == n


def test_64_bits_beyond_2_to_31() -> None:
    assert index_type((1 << 31) - 1 - 256, 1, 1) == I32 and index_type((1 << 31) - 256, 1, 1) == I64
    most = A100.most_blocks * BLOCK_THREADS * 8
    assert plan_launch((1 << 31) - 1 - most, (F16,), (0,)).index == I32
    wide = plan_launch((1 << 31) + 5, (F16,), (0,))
    assert wide == ElementwiseLaunch(8, (1 << 28), 5, 27648, I64)
    text = emit(grid_stride_kernel(replace(ADD, name="wide"), wide), "cuda")
    assert "const long long packs" in text and "(long long)blockIdx.x * 256LL" in text and "i * 8LL" in text
    assert "int i " not in text and "int first" not in text and "int last" not in text
    assert "const long packs" in emit(grid_stride_kernel(ADD, wide), "opencl")


def test_impossible_launches_are_refused() -> None:
    for arguments in ((-1, (F32,), (0,)), (1, (F32,), ()), (1, (F32,), (0,), Gpu(0))):
        with pytest.raises(Refused, match=r"elements of 1 arrays at"):
            plan_launch(*arguments)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="functor cast: a pack of 0 elements"):
        grid_stride_kernel(CAST, ElementwiseLaunch(0, 1, 0, 1, I32))


@pytest.mark.parametrize("pack", range(1, 9))
def test_pairs_for_even_packs_only(pack: int) -> None:
    for made, paired in ((CAST, "__float22half2_rn"), (ADD, "__hadd2")):
        text = emit(grid_stride_kernel(made, ElementwiseLaunch(pack, 10, 0, 1, I32)), "cuda")
        assert (paired in text) == (pack % 2 == 0)
        assert ("__float2half_rn" in text) == (pack % 2 == 1)
    single = Functor(operand_read("x"), F32, (("x", F16),))
    assert "half2" not in emit(grid_stride_kernel(single, ElementwiseLaunch(pack, 10, 0, 1, I32)), "cuda").replace(
        "__half2float", ""
    )


@pytest.mark.parametrize("pack", range(1, 9))
@pytest.mark.parametrize("tail", [0, 1, 5])
def test_any_pack_computes_the_same(pack: int, tail: int) -> None:
    # Also packs that no rule gives: thread by thread, in plain Python.
    n = 40 * pack + tail
    made = grid_stride_kernel(ADD, ElementwiseLaunch(pack, 40, tail, 2, I32))
    a, b = (np.random.default_rng(k).normal(size=n).astype(np.float16) for k in range(2))
    out = np.zeros(n, np.float16)
    kernel_machine.run(made, {"result": out, "operand a": a, "operand b": b, "packs": 40, "tail": tail})
    np.testing.assert_array_equal(out, a + b)


# ---- values -------------------------------------------------------------------------------------------------------


def oracle(made: Functor, arrays: dict[str, Any], exact: bool) -> Any:
    """The functor's value by the evaluator, from arrays (operands) and single numbers (scalars)."""
    n = next((a.size for k, a in arrays.items() if k in dict(made.operands)), 0)
    i = Iterator("i", 0, n)
    at = {name: Tensor(name, (n,))[(i,)] for name, _ in made.operands}
    at |= {name: Tensor(name, (1,))[(0,)] for name, _ in made.scalars}
    return evaluate(Scope((i,), (), _put(made.body, at)), arrays, "exact" if exact else "float64")


def _put(body: Scalar, at: dict[str, Any]) -> Scalar:
    match body:
        case Apply(op, args):
            return Apply(op, tuple(_put(a, at) for a in args))
        case Const():
            return body
        case _:
            return at[body.source.name]  # type: ignore[union-attr]


LENGTHS = [0, 1, 2, 7, 8, 255, 1000, 1003, 2049]


def exactly(made: Functor, engine: str, n: int, offsets: tuple[int, ...], seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    names = [*made.operands, *made.scalars]
    for k, (name, kind) in enumerate(names):
        count = n if k < len(made.operands) else 1
        arrays[name] = shifted(count, str(kind.dtype), offsets[k % len(offsets)] * kind.size)
        low = 0 if kind.kind in ("uint", "bool") else -4
        arrays[name][:] = rng.integers(low, 2 if kind == BOOL else 5, count)
    out = shifted(n, str(made.output.dtype), offsets[-1] * made.output.size)
    Elementwise(made, engine)(out, *arrays.values())
    if n:
        assert out.tolist() == oracle(made, {k: a.astype(np.int64) for k, a in arrays.items()}, exact=True).tolist()


INTEGERS = [
    Functor(operand_read("x"), I32, (("x", I32),), name="copy"),
    Functor(Apply("*", (operand_read("x"), operand_read("x"), Const(3))), I64, (("x", I8),), name="square"),
    Functor(Apply("maximum", (operand_read("a"), operand_read("s"))), I16, (("a", I16),), (("s", I16),), name="clip"),
    Functor(
        Apply(
            "-",
            (Apply("+", (operand_read("a"), operand_read("b"), operand_read("c"))), Apply("abs", (operand_read("d"),))),
        ),
        I32,
        (("a", I8), ("b", I64), ("c", U8), ("d", I32)),
        name="four",
    ),
    Functor(Apply("relu", (operand_read("x"),)), F32, (("x", I8),), name="real"),
    Functor(Apply("minimum", (operand_read("a"), operand_read("b"))), U16, (("a", BOOL), ("b", U16)), name="truth"),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("made", INTEGERS, ids=lambda f: f.name)
def test_integer_kernels_are_exact(made: Functor, engine: str) -> None:
    for n in LENGTHS:
        exactly(made, engine, n, (0,))
        exactly(made, engine, n, (0, 0, 1))


@st.composite
def functors(draw: DrawFn) -> Functor:
    """Any number of operands, of any whole types that have a common one, and any exact body over them."""
    kinds = draw(st.lists(st.sampled_from([I8, I16, I32, I64, U8, U16, U32]), min_size=0, max_size=5))
    scalars = draw(st.integers(0, 1 if kinds else 0))
    names = [(f"x{k}", kind) for k, kind in enumerate(kinds)]

    def body(depth: int) -> Scalar:
        if not depth or draw(st.booleans()):
            leaves = [operand_read(n) for n, _ in names]
            return draw(st.sampled_from([*leaves, Const(draw(st.integers(-3, 3)))]))
        op = draw(st.sampled_from(["+", "*", "-", "neg", "relu", "abs", "maximum", "minimum"]))
        arity = 1 if op in ("neg", "relu", "abs") else 2
        return Apply(op, tuple(body(depth - 1) for _ in range(arity)))

    return Functor(body(2), draw(st.sampled_from([I64, F64])), tuple(names[scalars:]), tuple(names[:scalars]))


@needs_c
@settings(max_examples=10)
@given(functors(), st.sampled_from(LENGTHS), st.tuples(*[st.integers(0, 3)] * 6))
def test_random_functors_are_exact(made: Functor, n: int, offsets: tuple[int, ...]) -> None:
    if not made.operands:
        out = np.zeros(n, made.output.dtype)
        Elementwise(made, "c blocks")(out, *(np.ones(1, k.dtype) for _, k in made.scalars))
        value = oracle(made, {k: np.ones(1, np.int64) for k, _ in made.scalars}, exact=True)
        assert value.size == 0 and len(set(out.tolist())) <= 1
        return
    exactly(made, "c blocks", n, offsets)


@needs_opencl
@settings(max_examples=8)
@given(functors().filter(lambda f: f.operands), st.sampled_from(LENGTHS), st.tuples(*[st.integers(0, 3)] * 6))
def test_random_functors_are_exact_by_opencl(made: Functor, n: int, offsets: tuple[int, ...]) -> None:
    exactly(made, "opencl", n, offsets)


def real(op: str, *args: Scalar) -> Scalar:
    return Apply(op, args)


X = operand_read("x")
FLOATS = [
    Functor(real("*", X, real("sigmoid", X)), F32, (("x", F32),), name="swish"),
    Functor(
        real("*", Const(0.5), X, real("+", Const(1), real("erf", real("/", X, Const(1.4142135623730951))))),
        F64,
        (("x", F64),),
        name="gelu",
    ),
    Functor(real("+", real("exp", X), real("tanh", X)), F32, (("x", F32),), name="sum"),
    Functor(real("pow", real("abs", X), operand_read("p")), F64, (("x", F32),), (("p", F64),), name="power"),
    Functor(real("/", real("log", real("+", real("sqrt", real("abs", X)), Const(1))), operand_read("y")), F32,
            (("x", F32), ("y", F32)), name="quotient"),
]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("made", FLOATS, ids=lambda f: f.name)
def test_float_kernels_agree_with_evaluation(made: Functor, engine: str) -> None:
    for n, offset in itertools.product((1, 63, 1003), (0, 1)):
        arrays: dict[str, Any] = {}
        for k, (name, kind) in enumerate((*made.operands, *made.scalars)):
            count = n if k < len(made.operands) else 1
            arrays[name] = shifted(count, str(kind.dtype), offset * kind.size)
            arrays[name][:] = np.random.default_rng(k).uniform(0.3, 3, count)
        out = np.empty(n, made.output.dtype)
        Elementwise(made, engine)(out, *arrays.values())
        np.testing.assert_allclose(out, oracle(made, arrays, exact=False), rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "offset"), [(F16, 0), (F16, 1), (BF16, 1)])
def test_16_bits_round_to_the_nearest(engine: str, kind: Type, offset: int) -> None:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 6e-8, 2.9e-8, 1 + 2**-11, 1 + 3 * 2**-11]
    x = shifted(1003, "float32", 4 * offset)
    x[:] = np.resize(np.array(special, np.float32), 1003) * np.repeat([1, 1, -1, 1.0001], 251)[:1003]
    out = np.zeros(1003, kind.dtype)
    Elementwise(replace(CAST, output=kind), engine)(out, x)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out.astype(np.float32), x.astype(kind.dtype).astype(np.float32))
    for op, of in (("+", np.add), ("-", np.subtract), ("*", np.multiply)):
        body = Apply(op, (operand_read("a"), operand_read("b")))
        made = Functor(body, kind, (("a", kind), ("b", kind)), name="two")
        a, b = (np.random.default_rng(k).normal(size=1003).astype(kind.dtype) for k in range(2))
        Elementwise(made, engine)(out, a, b)
        np.testing.assert_array_equal(out, of(a, b))


@pytest.mark.parametrize("engine", ENGINES)
def test_operands_may_be_read_only(engine: str) -> None:
    x, out = np.arange(9, dtype=np.int32), np.zeros(9, np.int32)
    x.setflags(write=False)
    Elementwise(INTEGERS[0], engine)(out, x)
    assert out.tolist() == list(range(9))


@pytest.mark.parametrize("engine", ENGINES)
def test_result_may_overwrite_its_operand(engine: str) -> None:
    x = np.arange(1003, dtype=np.int32)
    Elementwise(Functor(Apply("*", (X, Const(2))), I32, (("x", I32),), name="twice"), engine)(x, x)
    assert x.tolist() == list(range(0, 2006, 2))


# ---- functors and expressions -------------------------------------------------------------------------------------


def test_composed_functors_are_one_functor() -> None:
    relu = Functor(real("relu", X), F32, (("x", F32),), name="relu")
    scale = Functor(real("*", operand_read("v"), operand_read("s")), F32, (("v", F32),), (("s", F32),), name="scale")
    both = compose_functors(
        scale,
        {"v": compose_functors(relu, {"x": Functor(real("+", X, operand_read("y")), F32, (("x", F32), ("y", F32)))})},
    )
    assert both.body == real("*", real("relu", real("+", X, operand_read("y"))), operand_read("s"))
    assert both.operands == (("x", F32), ("y", F32)) and both.scalars == (("s", F32),)
    with pytest.raises(Refused, match="functor relu has no operand z: it has x"):
        compose_functors(relu, {"z": relu})
    with pytest.raises(Refused, match="an operand is named twice: s, s"):
        compose_functors(scale, {"v": Functor(operand_read("s"), F32, (("s", F16),))})


@pytest.mark.parametrize(
    ("output", "given_kinds", "computed"),
    [
        (F16, (F16, F16), F32),
        (F16, (F32,), F32),
        (F32, (F16, F64), F64),
        (F32, (I8,), F32),
        (F32, (I32,), F64),
        (I8, (I8, U8), I32),
        (I32, (U32, I8), I64),
        (U64, (U32,), U64),
        (U32, (U32,), I64),
        (BOOL, (BOOL,), I32),
        (F64, (U64, I8), F64),
    ],
)
def test_arithmetic_type_follows_from_the_operands(output: Type, given_kinds: tuple[Type, ...], computed: Type) -> None:
    operands = tuple((f"x{k}", kind) for k, kind in enumerate(given_kinds))
    assert Functor(operand_read("x0"), output, operands).computed == computed


@pytest.mark.parametrize(
    ("output", "given_kinds", "says"),
    [
        (I32, (F32,), "f makes int32 of float32: fractions would be lost"),
        (BOOL, (F16, I8), "f makes bool of float16, int8: fractions"),
        (U64, (I8,), "f makes uint64 of int8: no integer type holds both"),
        (I64, (U64, I8), "f makes int64 of uint64, int8: no integer type holds both"),
    ],
)
def test_mixes_of_types_that_lose_values_are_refused(output: Type, given_kinds: tuple[Type, ...], says: str) -> None:
    operands = tuple((f"x{k}", kind) for k, kind in enumerate(given_kinds))
    with pytest.raises(Refused, match=says):
        Functor(operand_read("x0"), output, operands, name="f")


def test_malformed_functors_are_refused() -> None:
    i = Iterator("i", 0, 3)
    with pytest.raises(Refused, match="functor f reads z"):
        Functor(operand_read("z"), F32, (("x", F32),), name="f")
    body = Apply("where", (Compare("<", as_index(i), as_index(2)), X, Const(0)))
    with pytest.raises(Refused, match=r"functor f compares i < 2: a value that depends on the position"):
        Functor(body, F32, (("x", F32),), name="f")
    with pytest.raises(Refused, match="exp of int32: it gives no integers"):
        aligned_kernel(Functor(real("exp", X), I32, (("x", I32),)), 4)
    with pytest.raises(Refused, match=r"0.5 is no number of type int32"):
        aligned_kernel(Functor(real("*", X, Const(0.5)), I32, (("x", I32),)), 4)


PROGRAMS = {
    "rows": "tensor A[3, 5]\ntensor B[15]\nY[i:3, j:5] = relu(A[i, j]) + B[5*i + j]",
    "shifted": "tensor A[6]\nY[i:-2..4] = A[i + 2] * 3",
    "scalar": "tensor A[2, 4]\ntensor S[1]\ntensor R[1, 1]\nY[i:2, j:4] = A[i, j] * S[0] - R[0, 0]",
    "nested": "tensor A[2, 4]\nY[k:8] = maximum({[i:2, j:4] A[i, j] * A[i, j]}[k // 4, k % 4], 2)",
    "single": "tensor A[1, 4]\nY[i:1, j:4] = A[0, j] + A[i, j]",
    "no operand": "tensor S[1]\nY[i:7] = S[0]",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_expressions_become_kernels(name: str) -> None:
    program = ee.parse(PROGRAMS[name])
    scope = program.equations[0].scope
    made = build_functor(scope, "Y", I64)
    arrays = {t.name: np.random.default_rng(1).integers(-9, 9, t.shape) for t in program.inputs}
    flat = [np.ascontiguousarray(arrays[n]) for n, _ in (*made.operands, *made.scalars)]
    out = np.zeros(scope.shape, np.int64)
    launch = plan_launch(out.size, made.kinds, [0] * len(made.kinds))
    kernel_machine.run(
        grid_stride_kernel(made, launch),
        {"result": out.reshape(-1), "packs": launch.packs, "tail": launch.tail}
        | {f"operand {n}": a.reshape(-1) for (n, _), a in zip(made.operands, flat, strict=False)}
        | {f"scalar {n}": a.reshape(-1) for (n, _), a in zip(made.scalars, flat[len(made.operands) :], strict=True)},
        (launch.blocks, 1, 1),
    )
    np.testing.assert_array_equal(out, evaluate(scope, arrays))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tensor A[3, 5]\nY[j:5, i:3] = A[i, j]", "Y reads A.* of 15 elements at .*not element-wise"),
        ("tensor A[3]\nY[i:3, j:5] = A[i]", "Y reads A.* of 3 elements at i, and writes 15"),
        ("tensor A[4] pad [1]\nY[i:4] = A[i + 1]", r"Y reads A\[.*\] also outside 0 <= .* < 4: a padded"),
        ("tensor A[4]\nY[i:4] = A[3 - i]", "not element-wise"),
        ("tensor A[4, 5]\nY[i:4] = sum[j:5] A[i, j]", r"Y has sum\[j:0..5\]: a reduction is not element-wise"),
        ("tensor A[1]\nY[i:1] = A[i] + {[j:1] max[k:2] A[0]}[i]", "expected tensors and scopes without sums"),
        ("tensor A[4]\nY[i:4] = where(i < 2, A[i], 0)", "compares i < 2"),
    ],
)
def test_expressions_that_are_not_element_wise(text: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        build_functor(ee.parse(text).equations[0].scope, "Y")


def test_tables_and_domains_are_not_element_wise() -> None:
    from fractions import Fraction

    from einnet_explore.ir import Bound

    i = Iterator("i", 0, 2)
    with pytest.raises(Refused, match=r"is read at .*expected tensors and scopes without sums"):
        build_functor(Scope((i,), (), Table((2,), (Fraction(1), Fraction(2)))[(i,)]), "Y")
    with pytest.raises(Refused, match="functor Y compares i < 1"):
        build_functor(Scope((i,), (), Const(1), domain=(Bound(as_index(i), 0, 1),)), "Y")
    doubled = Scope((i,), (), mul(Const(2), Tensor("A", (2,))[(i,)]), padding=((0, 1),))
    with pytest.raises(Refused, match=r"Y reads A\[i\+1\] also outside 0 <= i\+1 < 2"):
        build_functor(Scope((i,), (), doubled[(as_index(i) + 1,)]), "Y")


# ---- bad input ----------------------------------------------------------------------------------------------------


def test_wrong_arrays_are_refused() -> None:
    x = np.zeros(8, np.float32)
    run = Elementwise(CAST, "c blocks")
    with pytest.raises(BackendError, match=r"functor cast: 1 arrays of \[8\] elements into 7, expected 1"):
        run(np.zeros(7, np.float16), x)
    with pytest.raises(BackendError, match="functor cast: 0 arrays of"):
        run(np.zeros(7, np.float16))
    with pytest.raises(BackendError, match="functor cast: the result overlaps an operand"):
        run(x.view(np.float16)[:8], x)
    with pytest.raises(BackendError, match="expected one of opencl, c blocks"):
        Elementwise(CAST, "cuda")
    scaled = Functor(real("*", X, operand_read("s")), F32, (("x", F32),), (("s", F32),), name="scaled")
    with pytest.raises(BackendError, match=r"functor scaled: scalars of \[2\] elements"):
        Elementwise(scaled, "c blocks")(x, x, np.zeros(2, np.float32))
    with pytest.raises(BackendError, match="functor scaled: the result overlaps a scalar"):
        Elementwise(scaled, "c blocks")(x, np.zeros(8, np.float32), x[3:4])
    with pytest.raises(BackendError, match="exp of int32"):
        Elementwise(Functor(real("exp", X), I32, (("x", I32),)), "c blocks")(x.view(np.int32), x.view(np.int32))
