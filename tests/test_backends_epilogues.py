"""Contractions and operations on their results: one kernel if it is faster, otherwise two."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import einnet_explore as ee
from einnet_explore.analysis.equations import constant_tensors as known_at_compile_time
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import EOPERATOR, Equation, Instance, Program, Tensor
from einnet_explore.operators.library import OPERATORS
from einnet_explore.pipeline.fusion import fuse_eoperators
from einnet_explore.rules import Derivation
from einnet_explore.runtime import implementation_choice
from einnet_explore.runtime.implementation_choice import UNFUSED_PAIR, compile_measured, epilogue_pairs, fuse_epilogues
from einnet_explore.runtime.profile_store import TimeStore, profile_key
from einnet_explore.runtime.program import compile_program
from einnet_explore.syntax import parse

REST = {
    "bias and relu": "Y[n:1, f:3, h:8, w:16] = relu(T[n, f, h, w] + b[f])",
    "a leaky slope by channel": """
        Y[n:1, f:3, h:8, w:16] = maximum(T[n, f, h, w], 0) + b[f] * minimum(T[n, f, h, w], 0)""",
    "other order of traversals": "Y[h:8, w:16, n:1, f:3] = tanh(T[n, f, h, w])",
    "several reads, with a traversal of one value": """
        Y[n:1, f:3, h:8, w:16] = T[n, 3*n+f, h, 16*n+w] * tanh(T[n, 3*n+f, h, 16*n+w])""",
}

APART_FOREVER = {
    "read at another place": "Y[n:1, f:3, h:8, w:15] = relu(T[n, f, h, w+1])",
    "read at two places": "Y[n:1, f:3, h:8, w:16] = T[n, f, h, w] + T[n, f, h, 15-w]",
    "read at another place, with a traversal of one value": "Y[n:1, f:3, h:8, w:15] = relu(T[n, f, h, 2*n+w+1])",
    "summed": "Y[n:1, f:3, h:8] = sum[w:16] T[n, f, h, w]",
    "broadcast": "Y[n:1, f:3, h:8, w:16, k:2] = T[n, f, h, w] + b[k]",
    "read by two": "Y[n:1, f:3, h:8, w:16] = relu(T[n, f, h, w])\nZ[n:1, f:3, h:8, w:16] = T[n, f, h, w] * 2",
    "an output itself": "Y[n:1, f:3, h:8, w:16] = relu(T[n, f, h, w])\noutput T, Y",
}


def case(rest: str) -> Program:
    """A convolution T, and what is done with it."""
    operator = next(o for o in OPERATORS if o.name == "Conv2d")
    sizes = {"n": 1, "f": 3, "h": 8, "w": 16, "c": 5, "r": 3, "s": 3, "H": 8, "W": 16}
    sizes |= {f"{name}{axis}": 1 for name in "sdp" for axis in "hw"}
    x = Tensor("X", (1, 5, 8, 16), ((0, 0), (0, 0), (1, 1), (1, 1)))
    k, b = Tensor("K", (3, 5, 3, 3), weight=True), Tensor("b", (3,), weight=True)
    first = Equation("T", operator.instantiate(sizes, (x, k)), operator.instance(sizes))
    after = parse(f"tensor T[1, 3, 8, 16]\ntensor b[3] weight\n{rest}")
    rest_of = tuple(replace(e, via=Instance(EOPERATOR)) for e in after.equations)
    return Program((x, k, b), (first, *rest_of), after.outputs)


def numbers(program: Program) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.integers(-3, 4, t.shape).astype(np.float32) for t in program.inputs}
    return {"X": arrays["X"]}, {name: arrays[name] for name in "Kb"}


@pytest.mark.parametrize("name", REST)
def test_fused_and_separate_epilogues_agree(name: str, tmp_path: Path) -> None:
    program = case(REST[name])
    inputs, constants = numbers(program)
    expected = compile_program(program, constants=constants).run(inputs)["Y"]
    (pair,) = epilogue_pairs(program)
    key = profile_key(pair.both, constant=constants)
    store = TimeStore(tmp_path / "profiles.sqlite")
    for together, names in ((1.0, {"Y"}), (3.0, {"T", "Y"})):
        store.record(replace(key, engine="tiled"), together, "measured")
        store.record(replace(key, engine=UNFUSED_PAIR), 2.0, "measured")
        compiled = compile_measured(program, 1, constants, store)
        assert set(compiled.engines) == names
        np.testing.assert_allclose(compiled.run(inputs)["Y"], expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", APART_FOREVER)
def test_unfusable_epilogues_have_no_pair(name: str) -> None:
    assert list(epilogue_pairs(case(APART_FOREVER[name]))) == []


DERIVED = {
    "Matmul": """
        tensor A[16, 32]
        tensor B[32, 24] weight
        tensor b[24] weight
        T[m:16, n:24] = sum[k:32] A[m, k] * B[k, n]
        Y[m:16, n:24] = relu(T[m, n] + b[n])""",
    "Conv2d": """
        tensor A[1, 5, 8, 16] pad [0, 0, 1, 1]
        tensor B[3, 5, 3, 3] weight
        tensor b[3] weight
        T[n:1, f:3, h:8, w:16] = sum[c:5, r:3, s:3] A[n, c, h+r-1, w+s-1] * B[f, c, r, s]
        Y[n:1, f:3, h:8, w:16] = relu(T[n, f, h, w] + b[f])""",
}


@pytest.mark.parametrize("operator", DERIVED)
def test_epilogues_of_derived_programs_are_fused(operator: str, tmp_path: Path) -> None:
    start = parse(DERIVED[operator])
    run = ee.search(start, max_depth=1)
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in start.inputs}
    inputs, constants = {"A": arrays["A"]}, {name: arrays[name] for name in "Bb"}
    expected = evaluate(start, arrays, np.float64, outputs_only=True)["Y"]
    store = TimeStore(tmp_path / "profiles.sqlite")
    fused_calls = set()
    for candidate in run.candidates:
        for pair in epilogue_pairs(candidate.program):
            assert pair.first.via is not None and pair.second.via == Instance(EOPERATOR, (("kind", "elementwise"),))
            fused_calls.add(pair.first.via.operator)
            key = profile_key(pair.both, constant=known_at_compile_time(candidate.program))
            for engine, seconds in (("tiled", 1e-9), ("tvm", 1.0), ("c", 1.0), (UNFUSED_PAIR, 1.0)):
                store.record(replace(key, engine=engine), seconds, "measured")
            compiled = compile_measured(candidate.program, 1, constants, store)
            assert compiled.engines["Y"] == "tiled" and pair.first.name not in compiled.engines
            np.testing.assert_allclose(compiled.run(inputs)["Y"], expected, rtol=1e-5, atol=1e-5)
    assert operator in fused_calls


@pytest.mark.parametrize(("read", "count"), [("A[i, j]", 1), ("A[j, i]", 0)])
def test_contraction_of_a_transposed_view_is_not_fused(read: str, count: int) -> None:
    program = parse(f"""
        tensor A[8, 8]
        tensor B[8, 8] weight
        V[i:8, j:8] = {read} via View()
        T[m:8, n:8] = sum[k:8] V[m, k] * B[k, n] via Matmul(b=1, m=8, n=8, k=8)
        Y[m:8, n:8] = relu(T[m, n]) via eOperator(kind="elementwise")""")
    assert len(list(epilogue_pairs(program))) == count


def test_fused_epilogue_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = case(REST["bias and relu"])
    store = TimeStore(tmp_path / "profiles.sqlite")
    _, constants = numbers(program)
    first = fuse_epilogues(program, constants, 1, store)
    (pair,) = epilogue_pairs(program)
    for engine in ("tiled", UNFUSED_PAIR):
        assert store.get(replace(profile_key(pair.both, constant=constants), engine=engine)) is not None

    def never(*_: object) -> dict[str, float]:
        raise AssertionError("measured again")

    monkeypatch.setattr(implementation_choice, "time_implementations", never)
    assert fuse_epilogues(program, constants, 1, store) == first


def test_no_kernel_is_compiled_for_both_where_the_contraction_alone_is_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = case(REST["bias and relu"])
    _, constants = numbers(program)
    store = TimeStore(tmp_path / "profiles.sqlite")
    (pair,) = epilogue_pairs(program)
    for equation in (pair.first, pair.second):
        for engine, seconds in (("onnxruntime", 1.0), ("matmul", 1.0), ("tvm", 1.0), ("c", 1.0), ("tiled", 3.0)):
            store.record(replace(profile_key(equation, constant=constants), engine=engine), seconds, "measured")

    def never(*_: object) -> dict[str, float]:
        raise AssertionError("measured")

    monkeypatch.setattr(implementation_choice, "time_implementations", never)
    assert fuse_epilogues(program, constants, 1, store) == program


def test_constants_are_not_fused() -> None:
    program = case(REST["bias and relu"])
    assert fuse_epilogues(program, {"X", "K", "b"}, 1, TimeStore(Path("unused"))) == program


ACTIVATIONS = {
    "hard-swish": "A[n, f, h, w] * minimum(relu(3 + A[n, f, h, w]), 6) / 6",
    "SiLU": "A[n, f, h, w] / (1 + exp(-A[n, f, h, w]))",
    "GELU": "A[n, f, h, w] * 0.5 * (1 + erf(A[n, f, h, w] * 0.7071))",
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_normalisation_and_activation_are_one_epilogue(name: str, tmp_path: Path) -> None:
    program = case(f"""
        A[n:1, f:3, h:8, w:16] = T[n, f, h, w] * b[f] + b[f]
        Y[n:1, f:3, h:8, w:16] = {ACTIVATIONS[name]}
        output Y""")
    fused = fuse_eoperators(Derivation(program))
    assert [e.name for e in fused.end.equations] == ["T", "Y"]
    assert {certify(step.before, step.after).kind for step in fused.steps} == {"proved"}
    inputs, constants = numbers(program)
    expected = evaluate(program, {**inputs, **constants}, np.float64, outputs_only=True)["Y"]
    (pair,) = epilogue_pairs(fused.end)
    store = TimeStore(tmp_path / "profiles.sqlite")
    for engine, seconds in (("tiled", 1e-9), ("tvm", 1.0), ("c", 1.0), (UNFUSED_PAIR, 1.0)):
        store.record(replace(profile_key(pair.both, constant=constants), engine=engine), seconds, "measured")
    compiled = compile_measured(fused.end, 1, constants, store)
    assert compiled.engines == {"Y": "tiled"}
    np.testing.assert_allclose(compiled.run(inputs)["Y"], expected, rtol=1e-5, atol=1e-5)
