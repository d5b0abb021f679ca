"""Refusals: implementations without a kernel while others have one; arrays larger than the memory."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import EOPERATOR, VIEW, Instance, Program
from einnet_explore.runtime import compiled, implementation_choice, onnx_fragment
from einnet_explore.runtime.profile_store import TimeStore, profile_key
from einnet_explore.runtime.program import compile_program
from einnet_explore.support.errors import BackendError
from einnet_explore.syntax import parse

MATMUL = Instance("Matmul", (("m", 6), ("n", 7), ("k", 5)))
PRODUCT = "tensor A[6, 5]\ntensor B[5, 7]\nY[m:6, n:7] = sum[k:5] A[m, k] * B[k, n]"
TURNED = "tensor A[5, 6]\ntensor B[5, 7]\nT[m:6, k:5] = A[k, m]\nY[m:6, n:7] = sum[k:5] T[m, k] * B[k, n]"

needs_cc = pytest.mark.skipif(compiled._linker() is None, reason="no C compiler")


def called(text: str, **vias: Instance) -> Program:
    made = parse(text)
    return replace(made, equations=tuple(replace(e, via=vias.get(e.name)) for e in made.equations))


PRODUCTS = {
    "packed": called(PRODUCT, Y=MATMUL),
    "strided": called(TURNED, T=Instance(VIEW), Y=MATMUL),
}
MOVES = called("tensor A[300, 200]\nY[i:200, j:300] = A[j, i] + 1", Y=Instance(EOPERATOR))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TimeStore:
    """A store of its own, beside kernels of its own."""
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path / "cache"))
    return TimeStore(tmp_path / "profiles.sqlite")


@pytest.fixture
def no_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such intrinsic")

    monkeypatch.setattr("tvm.compile", refuse)


def engine(program: Program, store: TimeStore, threads: int = 1) -> str:
    """Return the implementation selected for the last equation of *program*, and check its result."""
    made = compile_program(program, threads, choose=implementation_choice.chooser(store))
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}
    want = evaluate(program, arrays, np.float64)["Y"]
    np.testing.assert_allclose(made.run(arrays)["Y"], want, rtol=1e-4, atol=1e-5)
    return made.engines["Y"]


@pytest.mark.usefixtures("no_tvm")
def test_library_operator_is_used_if_tvm_refuses(store: TimeStore) -> None:
    key = profile_key(PRODUCTS["packed"].equations[-1])
    store.record(replace(key, engine="c"), 1.0, "measured")  # alone it may be as fast
    assert engine(PRODUCTS["packed"], store) == "onnxruntime"
    assert store.get(replace(key, engine="tiled")) is None


@needs_cc
@pytest.mark.usefixtures("no_tvm")
@pytest.mark.parametrize("threads", [1, 2])
def test_c_kernel_is_used_if_tvm_refuses(store: TimeStore, threads: int) -> None:
    assert engine(MOVES, store, threads) == "c"


@pytest.mark.usefixtures("no_tvm")
def test_the_reason_is_given_if_every_implementation_refuses(store: TimeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_linker", lambda: None)
    with pytest.raises(BackendError, match=r"equation Y: .*no such intrinsic"):
        compile_program(MOVES, choose=implementation_choice.chooser(store))


@needs_cc
@pytest.mark.parametrize(("best", "compiler"), [("tiled", "build_tvm"), ("c", "build_c")])
def test_stored_fastest_implementation_may_be_refused_later(
    best: str, compiler: str, store: TimeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PRODUCTS["packed"]
    for name, seconds in (("onnxruntime", 2e-3), ("tiled", 3e-3), ("c", 3e-3), (best, 1e-3)):
        store.record(replace(profile_key(program.equations[-1]), engine=name), seconds, "measured")

    def refuse(*_: object) -> None:
        raise BackendError("it is refused")

    monkeypatch.setattr(compiled, compiler, refuse)
    assert engine(program, store) == "onnxruntime"


def test_no_kernel_is_made_whose_time_is_known_to_be_long(store: TimeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    equation = PRODUCTS["packed"].equations[-1]
    for name, seconds in (("onnxruntime", 1e-6), ("matmul", 1.0), ("tiled", 1.0), ("c", 1.0)):
        store.record(replace(profile_key(equation), engine=name), seconds, "measured")
    monkeypatch.setattr(compiled, "build_c", lambda *_: pytest.fail("compiled"))
    assert engine(PRODUCTS["packed"], store) == "onnxruntime"


def test_operands_that_are_not_packed_have_times_of_their_own(store: TimeStore) -> None:
    """A product behind a transposition gathers, which a product of the same shape does not."""
    packed, strided = (PRODUCTS[name].equations[-1] for name in ("packed", "strided"))
    assert profile_key(packed) == profile_key(strided) == profile_key(strided, strided={})
    by_strides = profile_key(strided, strided={"T": (4, 24)})
    assert by_strides not in (
        profile_key(packed),
        profile_key(packed, strided={"B": (4, 24)}),
        profile_key(packed, constant={"A"}),
    )

    def stored(**strides: tuple[int, ...]) -> set[str]:
        engines = ("onnxruntime", "c", "tiled")
        return {name for name in engines if store.get(replace(profile_key(strided, strided=strides), engine=name))}

    engine(PRODUCTS["strided"], store)
    assert stored() == set()
    assert stored(T=(4, 24)) >= {"onnxruntime"}
    engine(PRODUCTS["packed"], store)
    assert stored() >= {"onnxruntime"}


def test_choice_for_strides_is_found_again(store: TimeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = engine(PRODUCTS["strided"], store)
    monkeypatch.setattr(implementation_choice, "time_implementations", lambda *_: pytest.fail("measured again"))
    assert engine(PRODUCTS["strided"], store) == taken


HUGE = (1 << 23, 1 << 22)
"""More than any address space has."""

TOO_LARGE: Mapping[str, tuple[str, Callable[[Program], Mapping[str, np.ndarray]]]] = {
    "input A": ("tensor A[8388608, 4194304]\nY[i:2] = A[i, 0] + 1", lambda _: {}),
    "constant A": ("tensor A[8388608, 4194304]\nY[i:2] = A[i, 0] + 1", lambda p: {"A": np.broadcast_to(1.0, HUGE)}),
    "equation Y": ("tensor A[2]\nY[i:8388608, j:4194304] = A[0] + 1", lambda _: {}),
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_program_larger_than_memory_is_refused(what: str) -> None:
    text, constants = TOO_LARGE[what]
    made = parse(text)
    with pytest.raises(BackendError, match=rf"^{what}: out of memory: Unable to allocate 128. TiB"):
        compile_program(made, constants=constants(made))


def test_arrays_that_do_not_fit_when_it_runs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(shape: tuple[int, ...], *_: object) -> np.ndarray:
        raise MemoryError("Unable to allocate 12.1 GiB for an array")

    made = compile_program(MOVES)
    monkeypatch.setattr("einnet_explore.runtime.program.aligned_empty", full)
    with pytest.raises(BackendError, match=r"a run of the program: out of memory: Unable to allocate 12.1 GiB"):
        made.run({"A": np.ones((300, 200))})
    with pytest.raises(BackendError, match=r"the arrays of the program: out of memory: Unable to allocate 12.1 GiB"):
        made.execute()


@pytest.mark.skipif(not onnx_fragment.custom_ops_available(), reason="no session runs kernels")
def test_a_session_that_runs_out_of_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise Fail("Failed to allocate memory for requested buffer")

    made = compile_program(PRODUCTS["packed"], 2)
    monkeypatch.setattr(made._session, "run", full)
    with pytest.raises(BackendError, match="ONNX Runtime cannot run the program: Failed to allocate memory"):
        made.run({"A": np.ones((6, 5)), "B": np.ones((5, 7))})
