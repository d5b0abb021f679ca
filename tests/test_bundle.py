"""Bundles: run by ONNX Runtime in processes that have neither this package nor TVM, and compared with the plan."""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_building import build, node

from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.bundle import BundleFacts, write_bundle
from einnet_explore.pipeline.plan import ExecutionPlan, ProgramCall, build_plan
from einnet_explore.pipeline.submodels import random_model_inputs
from einnet_explore.runtime import onnx_fragment
from einnet_explore.runtime.implementations import BoundEquation
from einnet_explore.runtime.kernel_library import INSTRUCTION_SETS
from einnet_explore.runtime.library_calls import load_implementation
from einnet_explore.runtime.program import compile_program
from einnet_explore.syntax import parse

pytestmark = pytest.mark.skipif(not onnx_fragment.custom_ops_available(), reason="no C compiler")

THREADS = 2
FACTS = BundleFacts(numerics="reassociate", error=1e-6, records={"000-relu": {"format": "a record"}})

PROGRAMS = {
    "c": "tensor a[64, 900]\nb[i:64, j:900] = exp(a[i, j]) * 2",
    "tvm": "tensor b[64, 900]\nc[j:900, i:64] = relu(b[i, j] - 1)",
    "tiled": "tensor c[900, 64]\ntensor w[64, 48]\ny[i:900, n:48] = sum[k:64] c[i, k] * w[k, n]",
}
"""One program for each kind of kernel."""


def chain() -> Model:
    """Three groups that kernels replace, and a node that stays."""
    w = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    nodes = [
        node("Exp", ["x"], ["e"]), node("Mul", ["e", "two"], ["b"]),
        node("Sub", ["b", "one"], ["d"]), node("Relu", ["d"], ["r"]), node("Transpose", ["r"], ["c"], perm=[1, 0]),
        node("MatMul", ["c", "w"], ["y"]),
        node("Softmax", ["y"], ["z"], axis=1),
    ]  # fmt: skip
    constants = {"one": np.float32(1).reshape(1), "two": np.float32(2).reshape(1), "w": w}
    return load_model(build(nodes, {"x": [64, 900]}, ["z"], constants))


def plan_of(model: Model) -> ExecutionPlan:
    made = {v: n.name for n in model.nodes for v in n.results}
    groups = {"c": ("e", "b"), "tvm": ("d", "r", "c"), "tiled": ("y",)}
    names = {"a": "x", "b": "b", "c": "c", "y": "y"}

    def with_engine(engine: str) -> Callable[..., Any]:
        def choose(bound: BoundEquation, found: Any) -> Any:
            return load_implementation(next(each for each in found if each.engine == engine))

        return choose

    runs = {
        tuple(made[value] for value in values): ProgramCall(
            compile_program(
                parse(PROGRAMS[engine]), THREADS, constants={"w": model.weights["w"]} if engine == "tiled" else {},
                choose=with_engine(engine),
            ),
            names,
        )
        for engine, values in groups.items()
    }  # fmt: skip
    return build_plan(model, runs, THREADS)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "a bundle"
    model = chain()
    write_bundle(path, model, plan_of(model), FACTS)
    return path


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with NumPy and ONNX Runtime and nothing else."""
    folder = tmp_path_factory.mktemp("packages")
    installed = Path(sysconfig.get_path("purelib"))
    for name in ("numpy", "numpy.libs", "onnxruntime"):
        (folder / name).symlink_to(installed / name)
    return folder


RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
options.log_severity_level = 4
options.register_custom_ops_library("./kernels.so")
session = onnxruntime.InferenceSession("./model.onnx", options, providers=["CPUExecutionProvider"])
feeds = dict(numpy.load(sys.argv[2]))
numpy.savez(sys.argv[3], **dict(zip([v.name for v in session.get_outputs()], session.run(None, feeds))))
assert not {name.partition(".")[0] for name in sys.modules} & {"einnet_explore", "tvm", "tvm_ffi", "onnx"}
"""


def run(
    bundle: Path, packages: Path, feeds: Mapping[str, Any], scratch: Path, env: Mapping[str, str] | None = None
) -> Any:
    """Return the outputs of *bundle* for *feeds* in a fresh process; raises with its words if it fails."""
    given, made = scratch / "given.npz", scratch / "made.npz"
    np.savez(given, **feeds)
    command = [sys.executable, "-I", "-S", "-c", RUN, str(packages), str(given), str(made)]
    done = subprocess.run(command, cwd=bundle, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise RuntimeError(f"{done.returncode}: {done.stderr}")
    return dict(np.load(made))


def test_bundle_runs_without_this_package_and_agrees_with_the_original(
    bundle: Path, packages: Path, tmp_path: Path
) -> None:
    model = chain()
    feeds = random_model_inputs(model, 3)
    want = build_plan(model, {}, THREADS).run(feeds)
    got = run(bundle, packages, feeds, tmp_path)
    np.testing.assert_allclose(got["z"], want["z"], 1e-5, 1e-6)


def test_manifest_describes_every_file_kernel_and_value(bundle: Path) -> None:
    found = json.loads((bundle / "manifest.json").read_text())
    assert {kernel["compiler"] for kernel in found["kernels"]} == {"C", "LLVM"} and len(found["kernels"]) == 3
    proto = onnx.load(bundle / "model.onnx")
    numbers = [a.i for n in proto.graph.node for a in n.attribute if a.name == "kernel"]
    assert sorted(numbers) == sorted(kernel["number"] for kernel in found["kernels"])
    assert set(found["files"]) == {"model.onnx", "kernels.so", "README.md", "certificates/000-relu.json"}
    assert found["inputs"] == [{"name": "x", "type": "float32", "shape": [64, 900]}]
    assert found["original_nodes"] == [] and found["instruction_sets"] == list(INSTRUCTION_SETS)
