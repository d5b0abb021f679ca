"""Kernels as custom ops of ONNX Runtime: memory, threads, errors, and one session for a whole plan."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from einnet_explore.ir import Scope, tensors
from einnet_explore.runtime import compiled, onnx_fragment
from einnet_explore.runtime.onnx_fragment import FragmentWriter, onnx_session, share_equal_weights
from einnet_explore.runtime.tvm_cpu import compile_scope
from einnet_explore.support.errors import BackendError
from einnet_explore.syntax import parse

pytestmark = pytest.mark.skipif(not onnx_fragment.custom_ops_available(), reason="no C compiler")


def scope_of(text: str) -> Scope:
    return parse(text).equations[-1].scope


def model(scope: Scope, threads: int = 1) -> onnx.ModelProto:
    kernel = compile_scope(scope, threads=threads)
    shapes = {t.name: t.shape for t in tensors(scope)} | {"Y": scope.shape}
    inputs = kernel.source.inputs
    writer = FragmentWriter({name: name for name in (*inputs, "Y")}, shapes, {})
    assert writer.add_kernel(kernel.source, [(name, None) for name in inputs], "Y")
    return writer.model(inputs, ["Y"])


@pytest.mark.parametrize("threads", [1, 2])
def test_unaligned_inputs_and_outputs_are_computed_correctly(threads: int) -> None:
    """Inputs and outputs of the caller lie anywhere; 0, 4 and 60 bytes past a multiple of 64 are tried."""
    size = 50_000
    held = onnx_session(
        model(scope_of(f"tensor A[{size}]\ntensor B[{size}]\nY[i:{size}] = A[i] * 2 + B[i]"), threads), threads
    )
    raw = np.empty(3 * size + 64, np.float32)
    for shift in (0, 1, 15):
        start = (-raw.ctypes.data % 64) // 4 + shift
        a, b, y = (raw[start + n * size : start + (n + 1) * size] for n in range(3))
        a[:], b[:], y[:] = np.arange(size), 1, -1
        binding = held.io_binding()
        for name, array in (("A", a), ("B", b)):
            binding.bind_input(name, "cpu", 0, np.float32, [size], array.ctypes.data)
        binding.bind_output("Y", "cpu", 0, np.float32, [size], y.ctypes.data)
        held.run_with_iobinding(binding)
        np.testing.assert_array_equal(y, np.arange(size) * 2.0 + 1)
        np.testing.assert_array_equal(held.run(None, {"A": a, "B": b})[0], y)


def test_kernels_take_the_threads_of_their_session() -> None:
    """A kernel has the same result inside and outside of a session, in either order of use."""
    scope = scope_of("tensor A[64, 3000]\nY[i:64, j:3000] = exp(A[i, j]) * 2")
    array = np.random.default_rng(0).standard_normal((64, 3000)).astype(np.float32)
    kernel = compile_scope(scope, threads=2)
    before = kernel(array)
    held = onnx_session(model(scope, 2), 2)
    np.testing.assert_array_equal(held.run(None, {"A": array})[0], before)
    np.testing.assert_array_equal(kernel(array), before)
    np.testing.assert_array_equal(onnx_session(model(scope, 2), 1).run(None, {"A": array})[0], before)


def test_scalars_and_other_shapes_of_the_same_elements() -> None:
    held = onnx_session(model(scope_of("tensor A[3, 4, 5]\nY[] = sum[i:3, j:4, k:5] A[i, j, k]")), 1)
    found = held.run(None, {"A": np.ones((3, 4, 5), np.float32)})[0]
    assert found.shape == () and found == 60


def test_a_kernel_that_fails_is_an_error() -> None:
    made = model(scope_of("tensor A[8]\nY[i:8] = A[i] + 1"))
    node = made.graph.node[0]
    for attribute in node.attribute:
        if attribute.name == "views":
            attribute.ints[:] = [2, 4, 2, 2, 4, 2]  # the kernel checks what it is given
    with pytest.raises(Exception, match="node kernel of Y: a compiled kernel failed"):
        onnx_session(made, 1).run(None, {"A": np.zeros(8, np.float32)})


def test_without_a_compiler_there_is_nothing_to_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_linker", lambda: None)
    with pytest.raises(BackendError, match="no C compiler was found"):
        compiled.c_library("int two(void) { return 2; }")


def test_uncompilable_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path))
    with pytest.raises(BackendError, match=r"error: .*x"):
        compiled.c_library("int one(void) { return x; }")
    good = "int one(void) { return 1; }"
    path = compiled.c_library(good)
    assert path.exists()
    path.write_bytes(path.read_bytes()[:-5])  # damaged: it is built again
    assert compiled.c_library(good) == path and path.read_bytes()[-5:] != b""


def test_a_runtime_that_refuses_the_operator_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no")

    class Options:
        register_custom_ops_library = refuse

    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    onnx_fragment._custom_op_library.cache_clear()
    try:
        assert not onnx_fragment.custom_ops_available()
    finally:
        onnx_fragment._custom_op_library.cache_clear()


def test_weights_with_the_same_bytes_are_shared() -> None:
    """Three layers: the second has the first one's weight, the third its negative zeros."""
    zeros = np.zeros((300, 2), np.float32)
    writers = []
    for n, weight in enumerate((zeros, zeros.copy(), -zeros)):
        names = {"a": f"v{n}", "b": f"v{n + 1}"}
        writer = FragmentWriter(names, {"a": (300, 2), "b": (300, 2), "w": (300, 2)}, {"w": weight}, f"{n}/")
        writer.add("Mul", [writer.value("a"), writer.value("w")], "b")
        writers.append(writer)
    share_equal_weights(writers)
    assert [list(writer.weights) for writer in writers] == [["0/w 300x2"], [], ["2/w 300x2"]]
    assert [list(writer.nodes[0].input) for writer in writers] == [
        ["v0", "0/w 300x2"], ["v1", "0/w 300x2"], ["v2", "2/w 300x2"],
    ]  # fmt: skip
