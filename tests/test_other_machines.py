"""Machines that lack something: TVM, a compiler, Graphviz, and what only Linux has."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.runtime import c_kernels
from einnet_explore.runtime.bfloat16_products import bfloat16_kernel, match_bfloat16_product
from einnet_explore.runtime.integer_products import integer_product
from einnet_explore.syntax import parse
from tests.strategies import inputs_for

AARCH64 = ("aarch64-linux-gnu-gcc", "qemu-aarch64")
"""A compiler for AArch64 and an emulator (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)."""

needs_aarch64 = pytest.mark.skipif(not all(map(shutil.which, AARCH64)), reason=f"needs {' and '.join(AARCH64)}")

WITHOUT_TVM = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tvm":
            raise ModuleNotFoundError("No module named 'tvm'")
sys.meta_path.insert(0, Absent())
"""

WITHOUT_LINUX = """
import builtins, io, mmap, os
del os.sched_getaffinity, os.posix_fallocate, mmap.MADV_HUGEPAGE
opened = io.open
def refuse(file, *more, **options):
    if str(file).startswith(("/proc", "/sys")):
        raise FileNotFoundError(file)
    return opened(file, *more, **options)
builtins.open = io.open = refuse
"""

EXPLORE = """
import numpy as np
import einnet_explore as ee
conv = ee.ops.conv2d(H=14, W=14, C=32, F=32, R=3, S=3, padding=1)
session = ee.explore(conv)
session.apply(session.rules()[0])
assert session.check().kind == "proved"
run = ee.search(conv, target="Matmul", max_depth=3, budget=20)
ee.figures.graph(run.best.program).save("graph.svg")
"""

OPTIMIZE = """
softmax = ee.parse(
    "tensor A[256, 300]\\nM[i:256] = max[k:300] A[i, k]\\nE[i:256, k:300] = exp(A[i, k] - M[i])\\n"
    "S[i:256] = sum[k:300] E[i, k]\\nY[i:256, k:300] = E[i, k] / S[i]"
)
fast = ee.optimize(softmax, budget=4, states=40, threads=2)
a = np.random.default_rng(0).standard_normal((256, 300)).astype(np.float32)
e = np.exp(a - a.max(1, keepdims=True))
np.testing.assert_allclose(fast(A=a)["Y"], e / e.sum(1, keepdims=True), rtol=1e-5)
print([part.why for part in fast.parts])
"""


def run(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in a process of its own, with a new cache in *folder*."""
    variables = {**os.environ, "EINNET_EXPLORE_CACHE": str(folder / "a cache\\of mine"), **environment}
    variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=variables)


def test_without_tvm_kernels_are_in_c(tmp_path: Path) -> None:
    done = run(WITHOUT_TVM + "import numpy as np\nimport einnet_explore as ee\n" + OPTIMIZE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tvm cannot be imported: No module named 'tvm'; kernels are compiled from C") == 1
    assert "TVM refuses" not in done.stdout


@pytest.mark.parametrize("absent", [WITHOUT_LINUX, WITHOUT_LINUX + WITHOUT_TVM], ids=["TVM", "nothing"])
def test_what_only_linux_has_is_not_needed(absent: str, tmp_path: Path) -> None:
    done = run(absent + EXPLORE + OPTIMIZE, tmp_path, PATH=str(tmp_path), HOME=str(tmp_path / "none"))
    assert done.returncode == 0, done.stderr
    assert ("no C compiler was found" in done.stdout) == (absent != WITHOUT_LINUX)


AARCH64_MAIN = """
#include <stdio.h>
#include <stdlib.h>
static void *allocate(int device, int number, uint64_t size, int type, int bits) { return aligned_alloc(64, size); }
static int release(int device, int number, void *space) { free(space); return 0; }
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = release;
int main(int count, char **sizes)
{
    Tensor tensors[8];
    Any arguments[8];
    size_t size = 0;
    for (int n = 0; n < count - 1; n++) {
        size = (size_t)atoll(sizes[n + 1]);
        tensors[n].data = aligned_alloc(64, (size + 63) / 64 * 64);
        arguments[n] = (Any){PLAIN, 0, {.pointer = (char *)&tensors[n]}};
        if (n < count - 2 && fread(tensors[n].data, 1, size, stdin) != size) return 1;
    }
    if (__tvm_ffi_main(NULL, arguments, count - 1, NULL)) return 2;
    return fwrite(tensors[count - 2].data, 1, size, stdout) != size;
}
"""

KERNELS = {
    "functions": "tensor A[9, 37]\nY[i:9, j:37] = exp(A[i, j]) + tanh(A[i, j]) * erf(A[i, j]) + log(abs(A[i, j]) + 1)",
    "softmax": "tensor A[5, 70]\nY[i:5, k:70] = exp(A[i, k]) / {[p:5] sum[n:70] exp(A[p, n])}[i]",
    "sums of columns": "tensor A[65, 300]\nY[j:300] = sum[i:65] A[i, j] * A[i, j]",
    "transposition": "tensor A[3, 40, 33]\nY[n:3, i:33, j:40] = relu(A[n, j, i])",
    "padding": "tensor A[6, 20] pad [1, 2]\nY[i:8, j:24] = A[i - 1, j - 2] * 3",
}


def run_on_aarch64(source: str, flags: Sequence[str], given: Sequence[np.ndarray], out: np.ndarray, at: Path) -> None:
    """Fill *out* by the kernel *source* with TVM's entry point, cross-compiled in the folder *at* and emulated."""
    compiler, emulator = AARCH64
    (at / "kernel.c").write_text(source + AARCH64_MAIN)
    subprocess.run([compiler, *flags, "-static", "kernel.c", "-o", "kernel", "-lm"], cwd=at, check=True)
    sizes = [str(array.nbytes) for array in (*given, out)]
    data = b"".join(array.tobytes() for array in given)
    done = subprocess.run([emulator, "./kernel", *sizes], cwd=at, input=data, capture_output=True, check=True)
    out[...] = np.frombuffer(done.stdout, out.dtype).reshape(out.shape)


def portable(flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if flag != c_kernels.NATIVE]


@needs_aarch64
@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("text", KERNELS.values(), ids=KERNELS)
def test_kernels_run_on_aarch64(text: str, lanes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_kernels, "this_machine", lambda: Machine(lanes=lanes, l3=1 << 20))
    program = parse(text)
    source = c_kernels.NativeSource(program.equations[-1].scope)
    arrays = {name: a.astype(np.float32) for name, a in inputs_for(program).items()}
    got = np.empty(program.equations[-1].scope.shape, np.float32)
    given = [arrays[name] for name in source.inputs]
    run_on_aarch64(source.text, portable(c_kernels.EOPERATOR_FLAGS), given, got, tmp_path)
    want = np.asarray(evaluate(program, arrays)["Y"], np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@needs_aarch64
@pytest.mark.parametrize("constants", [(), ("B",)])
def test_products_of_bytes_run_on_aarch64(constants: tuple[str, ...], tmp_path: Path) -> None:
    program = parse("tensor A[37, 70] int8\ntensor B[70, 45] uint8\nY[i:37, j:45] = sum[k:70] A[i, k] * B[k, j]")
    kernel = integer_product(program.equations[0].scope, constants, {})
    assert kernel is not None
    rng = np.random.default_rng(0)
    arrays = {"A": rng.integers(-128, 128, (37, 70), np.int8), "B": rng.integers(0, 256, (70, 45), np.uint8)}
    given = [np.ascontiguousarray(arrays[n]) if made is None else made for n, made in kernel.arguments(arrays)]
    got = np.empty((37, 45), np.int32)
    run_on_aarch64(kernel.text, ["-O3"], given, got, tmp_path)
    np.testing.assert_array_equal(got, arrays["A"].astype(np.int32) @ arrays["B"].astype(np.int32))


@needs_aarch64
def test_products_in_bfloat16_run_on_aarch64(tmp_path: Path) -> None:
    program = parse(
        "tensor A[37, 71]\ntensor B[71, 45]\n"
        "Y[i:37, j:45] = relu({[i:37, j:45] sum[k:71] bfloat16(A[i, k]) * bfloat16(B[k, j])}[i, j])"
    )
    product = match_bfloat16_product(program.equations[0].scope)
    kernel = product and bfloat16_kernel(product, (), {})
    assert kernel is not None
    arrays = {name: a.astype(np.float32) for name, a in inputs_for(program).items()}
    given = [arrays[n] if made is None else made for n, made in kernel.arguments(arrays)]
    got = np.empty((37, 45), np.float32)
    run_on_aarch64(kernel.text, portable(c_kernels.EOPERATOR_FLAGS), given, got, tmp_path)
    want = np.asarray(evaluate(program, arrays, "float64")["Y"], np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
