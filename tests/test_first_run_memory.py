"""Memory of first runs: sessions open without copies that linger, plans share weights, and what was packed is freed."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import einnet_explore as ee
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline import model_sessions
from einnet_explore.pipeline.assembly import WeightFolder
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.model_sessions import ReopenedSession, original_session
from einnet_explore.pipeline.model_spelling import with_normal_spelling
from einnet_explore.runtime import compiled
from einnet_explore.runtime.implementations import Implementation, first_implementation
from einnet_explore.runtime.onnx_fragment import custom_ops_available
from einnet_explore.runtime.onnx_weights import LargePages, lies_in_large_pages, owner_of
from einnet_explore.runtime.program import compile_program
from einnet_explore.support import limits

linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from /proc")


def convolutions(channels: int = 16, layers: int = 3, seed: int = 0) -> onnx.ModelProto:
    """Return a chain of 3x3 convolutions, each followed by a ReLU."""
    rng = np.random.default_rng(seed)
    shape = [1, channels, 8, 8]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x0", f"x{layers}")]
    nodes, weights = [], []
    for n in range(layers):
        array = rng.standard_normal((channels, channels, 3, 3), np.float32) / channels
        weights.append(numpy_helper.from_array(array, f"w{n}"))
        nodes.append(helper.make_node("Conv", [f"x{n}", f"w{n}"], [f"c{n}"], name=f"conv{n}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{n}"], [f"x{n + 1}"], name=f"relu{n}"))
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MEASURED = """
import json, sys
from pathlib import Path
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.plan import build_plan
from einnet_explore.support.limits import return_free_memory

def resident(field):
    return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0]) / 1024

def peak_of(act):
    return_free_memory()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    act()
    return resident("VmHWM") - before

small, large = map(load_model, sys.argv[1:])
build_plan(small).run(random_model_inputs(small))  # what is loaded once
bytearray(31 << 20)  # from now on glibc keeps freed blocks that are smaller
plans, feeds = [], random_model_inputs(large)
first = peak_of(lambda: plans.append(build_plan(large)))
plans[0].rest()
second = peak_of(plans[0].make_room)
plans[0].rest()
third = peak_of(lambda: plans[0].run(feeds))
print(json.dumps([first, second, third, resident("RssFile")]))
"""


@linux
def test_a_session_takes_less_than_three_times_its_weights_while_it_is_opened(tmp_path: Path) -> None:
    onnx.save(convolutions(), tmp_path / "small.onnx")
    onnx.save(convolutions(512, 4), tmp_path / "large.onnx")
    megabytes = (tmp_path / "large.onnx").stat().st_size / (1 << 20)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "small.onnx"), str(tmp_path / "large.onnx")],
        capture_output=True, text=True, check=False, timeout=300,
        env={**environ_of(tmp_path), **environment, "EINNET_EXPLORE_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second, third, _ = json.loads(done.stdout)
    assert first < 3 * megabytes and second < 3 * megabytes
    if model_sessions.maps_files_as_fast():
        assert third < 1.5 * megabytes  # the weights, mapped once, and activations
    assert not list((tmp_path / "cache").glob("temporary/*"))  # deleted at the end


def environ_of(folder: Path) -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let sessions of small models, too, be reopened from files."""
    monkeypatch.setattr(model_sessions, "MIN_MAPPED_BYTES", 0)
    monkeypatch.setattr(model_sessions, "maps_files_as_fast", lambda: True)
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path))


def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that tells of each session that is opened from now on whether it is opened from a file."""
    found: list[bool] = []
    real = onnxruntime.InferenceSession

    def session(model: Any, *given: Any, **rest: Any) -> Any:
        found.append(isinstance(model, str))
        return real(model, *given, **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    return found


def embedded() -> onnx.ModelProto:
    """Return a model whose embedding is read in place, and whose weight ONNX Runtime packs."""
    rng = np.random.default_rng(1)
    weights = {
        "table": rng.standard_normal((64, 32)).astype(np.float32),
        "w": rng.standard_normal((32, 48)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["rows"], name="rows"),
        helper.make_node("MatMul", ["rows", "w"], ["y"], name="product"),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.INT64, [7]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [7, 48]),
    ]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "embedded", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("proto", [convolutions(), embedded()], ids=["convolutions", "embedding"])
def test_a_session_is_reopened_from_files_that_are_deleted_with_it(
    proto: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(proto)
    feeds, names = random_model_inputs(model), [value.name for value in model.outputs]
    session = ReopenedSession(model, 1)
    (want,) = session.open().run(names, feeds)
    opened = opened_files(monkeypatch)
    for _ in range(3):
        session.rest()
        (got,) = session.open().run(names, feeds)
        np.testing.assert_array_equal(got, want)
    assert opened == [False, True, True, True]  # the first one writes the files
    session.make_room()
    assert session._session is None
    assert len(list(tmp_path.glob("temporary/*/weights"))) == 1
    del session
    gc.collect()
    assert not list(tmp_path.glob("temporary/*"))


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("damage", ["no folder", "cut off", "removed"])
def test_a_session_is_opened_anew_without_its_files(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(convolutions())
    feeds, session = random_model_inputs(model), ReopenedSession(model, 1)
    (want,) = session.open().run(None, feeds)
    session.rest()
    if damage == "no folder":
        (tmp_path / "temporary").write_text("no folder")
    elif damage == "cut off":
        real = onnx.load_model

        def cut(file: Path, **given: Any) -> Any:
            os.truncate(file.with_name("weights"), 10)
            return real(file, **given)

        monkeypatch.setattr(onnx, "load_model", cut)
    (got,) = session.open().run(None, feeds)
    np.testing.assert_array_equal(got, want)
    if damage == "removed":
        (file,) = tmp_path.glob("temporary/*/model.onnx")
        file.unlink()
        session.make_room()
        assert session._session is not None  # it is not dropped, since it could not be mapped again
    session.rest()
    (got,) = session.open().run(None, feeds)
    np.testing.assert_array_equal(got, want)


def test_views_keep_an_array_of_large_pages_alive() -> None:
    array = LargePages().copy(np.arange(12, dtype=np.float32).reshape(3, 4))
    shown = np.lib.stride_tricks.as_strided(array.reshape(-1)[4:], (2, 2), (16, 4))
    assert owner_of(shown) is array and owner_of(array) is array and array[1:].base is array
    own = np.zeros((2, 3))
    assert owner_of(own.T) is own and not lies_in_large_pages(own)


def test_arrays_of_an_expected_size_lie_one_after_the_other() -> None:
    sizes = [3 << 19, 5 << 18, 1 << 19]
    pages = LargePages(sum(sizes))
    starts = [pages.empty((size,), np.uint8).ctypes.data for size in sizes]
    if lies_in_large_pages(pages.empty((1,), np.uint8)):
        assert np.diff(starts).tolist() == sizes[:2]


def test_a_folded_weight_is_found_again_while_a_program_only_has_a_view_of_it() -> None:
    start = ee.parse(
        """tensor x[4, 30]
tensor w[6, 5] weight
t[i:6, j:5] = w[i, j] * 2 via eOperator(kind="elementwise")
v[k:30] = t[k//5, k%5] via View
y[n:4] = sum[k:30] x[n, k] * v[k]"""
    )
    folder, array = WeightFolder(), np.ones((6, 5), np.float32)
    rest, constants = folder.fold(start, {"w": array})
    made = compile_program(rest, constants=constants)
    assert "t" not in made.contexts.constants
    del constants
    gc.collect()
    _, again = folder.fold(start, {"w": array})
    assert folder.shared == 1
    assert any(np.shares_memory(again["t"], kept) for kept in made.contexts.constants.values())


@pytest.mark.skipif(not custom_ops_available(), reason="sessions run no kernels here")
def test_a_constant_is_freed_when_a_session_has_it_packed() -> None:
    program = ee.parse(
        "tensor x[64, 96]\ntensor w[96, 80] weight\ny[n:64, j:80] = sum[k:96] x[n, k] * w[k, j]\noutput y"
    )
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 96), (96, 80)))

    def tiled(bound: Any, every: Any) -> Implementation:
        return next((each for each in every if each.engine == "tiled"), first_implementation(bound, every))

    made = compile_program(program, constants={"w": w}, choose=tiled)
    if made.engines["y"] != "tiled":
        pytest.skip("no tiled kernel here")
    names = {"x": "x", "y": "y"}
    first = made.write(names, "/")
    assert first is not None and not made.contexts.constants
    again = made.write(names, "/")
    assert again is not None
    assert [a.ctypes.data for a in again.weights.values()] == [a.ctypes.data for a in first.weights.values()]
    np.testing.assert_allclose(made.run({"x": x})["y"], x @ w, rtol=1e-4, atol=1e-4)


def test_the_allocator_is_set_once_for_bodies_inside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []

    def note(what: int, value: int) -> int:
        calls.append((what, value))
        return 1

    monkeypatch.setattr(limits, "_mallopt", note)
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    with limits.large_blocks_returned(), limits.large_blocks_returned():
        assert calls == [(limits.M_MMAP_THRESHOLD, limits.RETURNED_BLOCK_BYTES)]
    assert calls[1:] == [
        (limits.M_MMAP_THRESHOLD, limits.USUAL_MMAP_BYTES),
        (limits.M_TRIM_THRESHOLD, 2 * limits.USUAL_MMAP_BYTES),
    ]
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=4096")
    with limits.large_blocks_returned():
        assert len(calls) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_fork_begins_without_bodies_of_other_threads() -> None:
    with limits._returning_lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if limits._returning_lock.acquire(blocking=False) and limits._returning_bodies == 0 else 1)
        assert os.waitpid(pid, 0)[1] == 0


@linux
@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
def test_the_sandbox_returns_the_memory_of_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path))
    source = "int __tvm_ffi_main(void *s, const void *a, int n, void *r) { return 0; }\n"
    file = compiled.c_library(source)
    sizes = []
    for elements in (1, 1, 4 << 20, 3 << 20, 2 << 20):
        with compiled._lock:
            wrong, _ = compiled._ask({"file": str(file), "arrays": [[[elements], "float32"]] * 2})
        child = compiled._children.get(os.getpid())
        if wrong or child is None:
            pytest.skip(f"no sandbox here: {wrong}")
        status = Path(f"/proc/{child.pid}/status").read_text()
        sizes.append(int(status.split("RssAnon:")[1].split()[0]) >> 10)
    assert max(sizes) < sizes[0] + 8, sizes


def test_a_model_in_another_spelling_shares_weights_with_the_one_that_was_read() -> None:
    rng = np.random.default_rng(2)
    shapes = {"a": (32, 16), "b": (32, 24), "last": (40, 48)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["xa"], name="first"),
        helper.make_node("MatMul", ["x", "b"], ["xb"], name="second"),
        helper.make_node("Concat", ["xa", "xb"], ["both"], name="both", axis=1),
        helper.make_node("MatMul", ["both", "last"], ["y"], name="third"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [7, n]) for name, n in (("x", 32), ("y", 48))]
    stored = [numpy_helper.from_array(weights[name], name) for name in ("a", "b", "last")]
    graph = helper.make_graph(nodes, "parts", ends[:1], ends[1:], stored)
    model = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    made = with_normal_spelling(model)
    assert [node.op for node in made.nodes] == ["MatMul", "MatMul"]
    assert np.shares_memory(made.weights["last"], model.weights["last"])
    (joined,) = made.weights.keys() - {"last"}
    np.testing.assert_array_equal(made.weights[joined], np.concatenate([weights["a"], weights["b"]], 1))
    feeds = random_model_inputs(model)
    (want,) = original_session(model, 1).run(None, feeds)
    session = onnxruntime.InferenceSession(made.proto.SerializeToString())
    np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-4, atol=1e-4)
