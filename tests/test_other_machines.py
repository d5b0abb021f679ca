"""Machines that lack something: TVM, a compiler, Graphviz, and what only Linux has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
