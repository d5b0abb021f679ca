"""GPU code on a machine without a GPU: plans, calls of loaders, profiles of other devices, the bundle.

Nothing is measured.  Kernels of plans run on the CPU, as OpenCL text that corresponds to the CUDA text, or as loops in
C.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import re
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einnet_explore as ee
from benchmarks.gpu import bundle, cases, whole
from benchmarks.gpu import run as runner
from benchmarks.gpu.__main__ import main as gpu
from einnet_evaluation.operator_cases import derive, table3_cases
from einnet_explore.cli import main
from einnet_explore.cost import CPU_DEFAULT, program_seconds
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program
from einnet_explore.runtime.cuda import device as cuda_device
from einnet_explore.runtime.cuda import execution, nvrtc, products
from einnet_explore.runtime.cuda import plan as cuda_plan
from einnet_explore.runtime.cuda.steps import CudaLaunch, CudaPlan, cuda_plan_from_json
from einnet_explore.runtime.profile_store import (
    RATES,
    TimeStore,
    device_cost,
    load_recorded_profile,
    record_rates,
    recorded_key,
)
from einnet_explore.session.candidate_benchmark import bench
from einnet_explore.session.run import Run
from einnet_explore.strategies.options import Options
from einnet_explore.support.errors import BackendError
from einnet_explore.syntax import load_text, parse
from tests.gpu_kit import Kernels, on_cpu, record_kernels

ROOT = Path(__file__).parents[1]
RATED = {
    "peak_flops": 5e13,
    "memory_bandwidth": 2e12,
    "cache_bandwidth": 4e12,
    "cache_bytes": 5e7,
    "call_seconds": 3e-6,
}
CONV = """
tensor A[1, 6, 8] pad [0, 1, 0]
tensor K[3, 4, 8]
Y[n:1, h:6, f:4] = sum[c:8, r:3] A[n, h+r-1, c] * K[r, f, c]
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def conv(tmp_path: Path) -> Path:
    path = tmp_path / "conv.ein"
    path.write_text(CONV)
    return path


# --- profiles recorded elsewhere


def searched(cost: Any, case: Path) -> list[Any]:
    """The candidates, cheapest first."""
    run = Run(load_text(case), cost, options=Options(max_depth=3))
    for _ in run:
        pass
    return sorted(run.candidates, key=lambda c: c.seconds)


def operators_of(candidate: Any) -> list[str]:
    return [e.via.operator for e in candidate.operators]


def test_a_profile_changes_what_is_ranked_first(conv: Path, tmp_path: Path) -> None:
    usual = searched(program_seconds, conv)
    first = operators_of(usual[0])
    other = next(c for c in usual if operators_of(c) not in (first, []))
    path = tmp_path / "other.sqlite"
    record_rates(path, "CUDA Synthetic", "driver 1", RATED)
    store = TimeStore(path)
    # A device that is slow at what was first here and quick at another way.
    for candidate, seconds in ((usual[0], 1.0), (other, 1e-9)):
        for equation in candidate.operators:
            store.record(recorded_key(equation, "CUDA Synthetic", "driver 1"), seconds, "made up")
    there = searched(device_cost(f"profile:{path}"), conv)
    assert operators_of(there[0]) == operators_of(other) != first
    assert min(c.seconds for c in there if operators_of(c) == first and c.program == usual[0].program) >= 1.0
    held = ee.search(load_text(conv), device=f"profile:{path}", max_depth=3)
    assert min(held.candidates, key=lambda c: c.seconds).program == there[0].program
    cost = device_cost(f"profile:{path}")
    assert cost(other.program)[1] in ("measured", "mixed")


def test_derive_takes_a_profile(conv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "slow.sqlite"
    record_rates(path, "CUDA Synthetic", "driver 1", {**RATED, "call_seconds": 2.0})
    TimeStore(path).lookup()(parse("tensor A[4]\nY[i:4] = A[i] + 1").equations[0])  # makes the table of times
    best = []
    for device in ("cpu", f"profile:{path}"):
        assert main(["derive", str(conv), "--max-depth", "1", "--json", "-", "--device", device]) == 0
        said = json.loads(capsys.readouterr().out)
        best.append(said["candidates"][said["best"]]["estimated_seconds"])
    assert best[0] < 0.1
    assert best[1] >= 2  # what each call takes there


def test_rates_make_the_roofline(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    record_rates(path, "CUDA Synthetic", "driver 1", RATED)
    TimeStore(path).known(1)
    program = parse("tensor A[4096, 4096]\nY[i:4096, j:4096] = A[j, i]")
    seconds, how = device_cost(f"profile:{path}")(program)
    assert (seconds, how) == (pytest.approx(3e-6 + 2 * 4 * 4096**2 / 2e12), "bytes")
    assert seconds < program_seconds(program)[0]
    # A CPU's recording without rates has the usual ones.
    TimeStore(path).record(recorded_key(program.equations[0], "Linux x86", "numpy 2"), 4e-3, "made up")
    assert device_cost(f"profile:{path}#Linux")(program) == (4e-3, "measured")
    other = parse("tensor A[4096, 2048]\nY[i:2048, j:4096] = A[j, i]")
    assert device_cost(f"profile:{path}#Linux")(other) == program_seconds(other)
    assert CPU_DEFAULT.threads == 1


def test_recordings_are_selected_by_device_and_threads(tmp_path: Path) -> None:
    path = tmp_path / "two.sqlite"
    equation = parse("tensor A[4]\nY[i:4] = A[i] + 1").equations[0]
    for device, library, threads, seconds in (
        ("CUDA H100", "driver 1", 1, 1.0),
        ("CUDA A100", "driver 1", 1, 2.0),
        ("Linux", "x", 1, 3.0),
        ("Linux", "x", 2, 4.0),
    ):
        TimeStore(path).record(recorded_key(equation, device, library, threads), seconds, "made up")
        TimeStore(path).record(recorded_key(equation, device, library, threads, "tvm"), seconds / 2, "made up")
    found = {
        name: load_recorded_profile(f"{path}#{name}", n) for name, n in (("h100", None), ("A100", None), ("Linux", 2))
    }
    # The time of the engine that was chosen there counts, not the least.
    assert {k: r.lookup()(equation) for k, r in found.items()} == {"h100": 1.0, "A100": 2.0, "Linux": 4.0}
    assert found["h100"].lookup()(parse("tensor A[5]\nY[i:5] = A[i] + 1").equations[0]) is None
    for name, says in (
        ("", "4 recordings .*name one.*CUDA A100"),
        ("V100", "0 recordings for 'V100'"),
        ("Linux", "2 rec"),
    ):
        with pytest.raises(BackendError, match=says):
            load_recorded_profile(f"{path}#{name}")
    with pytest.raises(ValueError, match="no rates of CUDA H100, expected peak_flops"):
        device_cost(f"profile:{path}#H100")


def test_unusable_profiles_are_refused(conv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, foreign, empty, wrong = (tmp_path / f"{n}.sqlite" for n in ("broken", "foreign", "empty", "wrong"))
    broken.write_bytes(b"no database" * 100)
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    TimeStore(empty).known(1)
    record_rates(wrong, "CUDA X", "y", RATED)
    TimeStore(wrong).known(1)
    with closing(sqlite3.connect(wrong)) as connection, connection:
        connection.execute("UPDATE device_rates SET rates = ?", (json.dumps({**RATED, "peak_flops": -1}),))
    said = {
        tmp_path / "none.sqlite": "found no such file",
        broken: "cannot be read as a profile store",
        foreign: "its tables are songs, expected engine_profile",
        empty: "0 recordings .*it holds nothing",
        wrong: "the rates of CUDA X.*peak_flops = -1: expected positive",
        "": r"\(no name\)",
    }
    for path, says in said.items():
        assert main(["derive", str(conv), "--device", f"profile:{path}"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and re.search(says, error), error
    assert main(["derive", str(conv), "--device", "abacus"]) == 2
    assert "expected cpu or profile:" in capsys.readouterr().err
    with pytest.raises(ValueError, match="memory_bandwidth = missing"):
        record_rates(tmp_path / "n.sqlite", "d", "l", {"peak_flops": 1.0})
    TimeStore(wrong).record(recorded_key(load_text(conv).equations[0], "CUDA X", "y"), 1.0, "made up")
    with closing(sqlite3.connect(wrong)) as connection, connection:
        connection.execute("DELETE FROM device_rates")
        connection.execute("UPDATE engine_profile SET seconds = -1.0")
    with pytest.raises(BackendError, match=r"-1\.0 seconds, expected a positive number"):
        load_recorded_profile(str(wrong))
    # What is only read stays what it is.
    assert broken.read_bytes() == b"no database" * 100


# --- plans, run step by step on the CPU


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return record_kernels(monkeypatch)


@pytest.fixture(scope="module")
def derived() -> list[Program]:
    return [derive(case, 6.0).end for case in table3_cases(True)]


PROGRAMS = {
    "product": "tensor A[5, 7]\ntensor B[7, 6]\nY[i:5, j:6] = sum[k:7] A[i, k] * B[k, j]",
    "transposed product": "tensor A[7, 5]\ntensor B[6, 7]\nY[j:6, i:5] = sum[k:7] A[k, i] * B[j, k]",
    "batched": "tensor A[3, 5, 7]\ntensor B[7, 3, 6]\nY[b:3, i:5, j:6] = sum[k:7] A[b, i, k] * B[k, b, j]",
    "tiles": """
        tensor A[2, 9, 8] pad [0, 2, 0]
        tensor B[3, 8, 4]
        Y[b:2, x:9, f:4] = sum[c:8, r:3] A[b, x+2*r-2, c] * B[r, c, f]""",
    "chain": """
        tensor A[6, 9]
        M[i:6] = max[j:9] A[i, j]
        E[i:6, j:9] = exp((A[i, j] - M[i]) / 8)
        S[i:6] = sum[j:9] E[i, j]
        Y[i:6, j:9] = E[i, j] / S[i]""",
    "attention": """
        tensor Q[9, 4]
        tensor K[11, 4]
        S[i:9, j:11] = sum[c:4] Q[i, c] * K[j, c]
        M[i:9] = max[j:11] S[i, j]
        E[i:9, j:11] = exp(S[i, j] - M[i])
        T[i:9] = sum[j:11] E[i, j]
        Y[i:9, c:4] = sum[j:11] E[i, j] / T[i] * K[j, c]
        output Y""",
    "weights": """
        tensor A[4, 5]
        tensor K[5, 3] weight
        W[j:3, k:5] = K[k, j] * 2
        Y[i:4, j:3] = sum[k:5] A[i, k] * W[j, k]""",
    "elsewhere": """
        tensor A[300, 8]
        Y[i:300, j:3] = {[a:300] sum[k:8] A[a, k] * A[a, k]}[i//2] + A[i, j]""",
    "half precision": """
        tensor A[5, 7] float16
        tensor B[7, 6] float16
        T[i:5, j:6] = sum[k:7] A[i, k] * B[k, j]
        Y[i:5, j:6] = float16(relu(T[i, j]))""",
    "half chain": """
        tensor A[6, 64] float16
        M[i:6] = max[j:64] A[i, j]
        E[i:6, j:64] = exp(A[i, j] - M[i])
        S[i:6] = sum[j:64] E[i, j]
        Y[i:6, j:64] = float16(E[i, j] / S[i])""",
    "two outputs": "tensor A[4, 5]\nX[i:4, j:5] = relu(A[i, j])\nY[i:5] = sum[j:4] X[j, i]\noutput X, Y",
}


def agrees(program: Program, plan: CudaPlan, kernels: Kernels) -> None:
    feeds, _ = bundle.oracle(program)
    wanted = evaluate(program, {k: a.astype(np.float64) for k, a in feeds.items()}, "float64", outputs_only=True)
    again = cuda_plan_from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    got = on_cpu(again, feeds, kernels)
    assert list(got) == list(program.outputs)
    for name, want in wanted.items():
        assert runner.error_of(want, got[name]) < 1e-5, name


@pytest.mark.parametrize("name", PROGRAMS)
def test_plans_compute_the_program(name: str, kernels: Kernels) -> None:
    program = parse(PROGRAMS[name])
    plan = cuda_plan.cuda_plan(program)
    agrees(program, plan, kernels)
    if "product" in name or name == "batched":
        assert [s.op for s in plan.steps] == ["product"]
    if name == "attention":
        assert len(plan.steps) == 1  # in one pass
    assert (plan.once > 0) == (name == "weights")
    assert plan.weights == (("K",) if name == "weights" else ())


def test_plans_compute_the_derived_programs(derived: list[Program], kernels: Kernels) -> None:
    ops = []
    for program in derived:
        for operators_there in ((), None):
            plan = cuda_plan.cuda_plan(program, *(() if operators_there is None else (operators_there,)))
            ops.append([s.op for s in plan.steps])
            agrees(program, plan, kernels)
    assert any("product" in held for held in ops) and any("convolution" in held for held in ops)


def test_the_measured_cases_compute_the_same(kernels: Kernels) -> None:
    case = cases.reduction("batch norm", 3, 4, 5, 6)
    x = np.random.default_rng(1).standard_normal((3, 4, 5, 6)).astype(np.float32)
    feeds = {"X": x, "g": np.float32([1, 2, 3, 4]), "b": np.float32([0, 1, 0, -1])}
    got = [on_cpu(plan, feeds, kernels)["Y"] for plan in case.plans.values()]
    np.testing.assert_allclose(got[0], got[1], rtol=1e-5, atol=1e-5)
    assert len(case.plans["fused"].steps) == 1 < len(case.plans["unfused"].steps)


def test_cast_plans_agree_with_numpy(kernels: Kernels) -> None:
    case = cases.cast(1003)
    x = np.random.default_rng(0).standard_normal(1003).astype(np.float32)
    texts = set()
    for plan in case.plans.values():
        (step,) = plan.steps
        assert isinstance(step, CudaLaunch)
        texts.add(step.text)
        got = on_cpu(plan, {"x": x}, kernels)["y"]
        assert got.dtype == np.float16 and (got == x.astype(np.float16)).all()
    assert len(texts) == 2


@pytest.mark.parametrize("name", cases.HALF)
def test_plans_in_half_precision_agree_with_numpy(name: str, kernels: Kernels) -> None:
    (plan,) = cases.pointwise_half(name, 1003).plans.values()
    assert set(plan.dtypes.values()) == {"float16"} and "__half2" in plan.steps[0].text
    random = np.random.default_rng(0)
    feeds = {key: random.standard_normal(1003).astype(np.float16) for key in plan.inputs}
    (got,) = on_cpu(plan, feeds, kernels).values()
    a, b = (x.astype(np.float32) for x in (feeds["A"], feeds.get("B", feeds["A"])))
    want = a * np.clip(a / 6 + 0.5, 0, 1) if name == "hard swish" else np.maximum(a + b, 0)
    assert got.dtype == np.float16 and runner.error_of(want, got) <= plan.agreement


def test_malformed_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="step 'dance': expected launch, product or convolution"):
        cuda_plan_from_json({**CudaPlan({}, (), (), (), ()).to_json(), "steps": [{"op": "dance"}]})
    launch = {"op": "launch", "entry": "k", "text": "", "grid": [1, 1, 1], "block": [1, 1, 1]}
    with pytest.raises(ValueError, match=r"argument 3: expected a buffer, or a number and its type"):
        cuda_plan_from_json({**CudaPlan({}, (), (), (), ()).to_json(), "steps": [{**launch, "arguments": [3]}]})
    with pytest.raises(ValueError, match="found 7, expected an array"):
        cuda_plan_from_json({**CudaPlan({}, (), (), (), ()).to_json(), "inputs": 7})


# --- the loader, with the driver absent


def test_missing_cuda_requirements_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    execution.cupy_package.cache_clear()
    if not execution.missing_for_cuda():
        pytest.skip("there is a GPU")
    with pytest.raises(execution.BackendError, match=r"no CUDA backend can run here: missing .*(CuPy|driver|GPU)"):
        execution.require_cuda()
    for act in (
        execution.cupy_package,
        execution.cuda_device,
        lambda: execution.compile_plan(CudaPlan({}, (), (), (), ())),
    ):
        with pytest.raises(execution.BackendError):
            act()
    monkeypatch.setattr(cuda_device, "find_spec", lambda name: None)
    monkeypatch.setattr(cuda_device, "_no_driver", lambda: ("an NVIDIA driver (libcuda)",))
    cuda_device.cudnn_frontend.cache_clear()
    monkeypatch.setattr(cuda_device, "cudnn_frontend", cuda_device.cudnn_frontend.__wrapped__)
    assert [m.split()[0] for m in execution.missing_for_cuda()] == ["CuPy", "an"]
    assert "cuDNN frontend" in execution.missing_for_convolutions()[0]


def test_device_cuda_says_what_is_missing(conv: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if not execution.missing_for_cuda():
        pytest.skip("there is a GPU")
    assert main(["bench", str(conv), "--device", "profile:x.sqlite"]) == 2
    assert "a profile orders the candidates of derive" in capsys.readouterr().err
    assert main(["bench", str(conv), "--device", "cuda"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "missing" in error and ("CuPy" in error or "driver" in error)


def test_calls_match_the_signatures_of_cupy() -> None:
    cp = pytest.importorskip("cupy", reason="CuPy is not installed")
    inspect.signature(cp.copyto).bind(1, 2)
    inspect.signature(cp.cuda.ExternalStream).bind(1)
    inspect.signature(cp.random.standard_normal).bind((2, 3), dtype=cp.float32)
    inspect.signature(cp.lib.stride_tricks.as_strided).bind(1, (2,), (3,))
    inspect.signature(cp.random.RandomState.standard_normal).bind(1, (2, 3), dtype=cp.float32)
    inspect.signature(cp.cuda.Stream).bind(non_blocking=True)
    inspect.signature(cp.cuda.Stream.begin_capture).bind(1)
    inspect.signature(cp.cuda.Stream.end_capture).bind(1)
    inspect.signature(cp.cuda.Event.record).bind(1)
    inspect.signature(cp.cuda.Event.synchronize).bind(1)
    for function, words in (
        (cp.RawModule, ("code=", "path=", "options=", "backend=")),
        (cp.RawKernel.__call__, ("grid, block, args",)),
        (cp.RawModule.get_function, ("str name",)),
        (cp.cuda.Graph.launch, ("stream=None",)),
        (cp.cuda.get_elapsed_time, ("start_event, end_event",)),
        (cp.cuda.runtime.getDeviceProperties, ("int device",)),
        (cp.cuda.MemoryPool, ("allocator=None",)),
        (cp.asnumpy, ("",)),
    ):
        assert all(word in (function.__doc__ or str(inspect.signature(function))) for word in words), function
    for name in ("driver.CUDADriverError", "compiler.CompileException", "runtime.CUDARuntimeError", "using_allocator"):
        held = cp.cuda
        for part in name.split("."):
            held = getattr(held, part)
    if execution.missing_for_cuda():
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError):
            cp.cuda.runtime.getDeviceCount()


def test_cublas_takes_the_descriptors_of_a_product() -> None:
    if execution.missing_for_products():
        pytest.skip("cuBLAS is not installed")
    # It refuses attributes of another size; making descriptors takes no device.
    left, right, out = (products.Matrix(name, 0, name == "a", 64, 4096) for name in "aby")
    made = products.describe(products.Gemm(out, left, right, 64, 64, 64, 3), ("float16",) * 3, "float32")
    assert len({x.value for x in (made.product, *made.layouts)} - {None}) == 4
    with pytest.raises(BackendError, match="cublasLtMatrixLayoutSetAttribute returns CUBLAS_STATUS_INVALID_VALUE"):
        products._set_attribute("MatrixLayout", made.layouts[0], 5, ctypes.c_int64(3))
    if execution.missing_for_cuda():
        with pytest.raises(BackendError, match="cublasLtCreate returns CUBLAS_STATUS_"):
            products._created("cublasLtCreate")


# --- the bundle


@pytest.fixture(scope="module", params=[("sm_90",), pytest.param(nvrtc.ARCHITECTURES, marks=pytest.mark.slow)], ids=str)
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not nvrtc.nvrtc_available():
        pytest.skip("NVRTC is not installed")
    folder = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "ARCHITECTURES", request.param)
        assert gpu(["bundle", str(folder / "b.zip"), "--quick"]) == 0
    with zipfile.ZipFile(folder / "b.zip") as held:
        held.extractall(folder / "b")
    return folder / "b"


def test_bundle_is_complete(packed: Path, request: pytest.FixtureRequest) -> None:
    assert (packed.parent / "b.zip").stat().st_size < bundle.LARGEST
    manifest = whole.read(packed / "data")
    plans = [cuda_plan_from_json(p) for p in whole.plans(manifest)]
    launches = {bundle.digest(s): s for p in plans for s in p.steps if isinstance(s, CudaLaunch)}
    assert len(plans) > 40 and len(launches) > 30
    for name, step in launches.items():
        assert (packed / f"data/kernels/{name}.cu").read_text() == step.text
        architectures = manifest["resources"][name].keys() & set(nvrtc.ARCHITECTURES)
        assert architectures == set(request.node.callspec.params["packed"])
        for architecture in architectures:  # compiled by NVRTC when it was packed
            assert (packed / f"data/kernels/{name}.{architecture}.cubin").read_bytes()[:4] == b"\x7fELF"
            # Registers that do not fit, and arrays that are not in registers, would go through memory.
            took = manifest["resources"][name][architecture]
            if step.entry == "main_kernel":
                continue  # TVM's, which spills
            full = took["blocks"] * prod(step.block) >= 512 or took["blocks"] == 32  # the most there can be
            full = full or took["shared"] > 32 << 10  # tiles that fill shared memory leave fewer threads
            assert took["spills"] == took["stack"] == 0 and full, step.entry
    with np.load(packed / "data/arrays.npz") as arrays:
        for check in manifest["checks"]:
            plan = cuda_plan_from_json(check["plan"])
            for way, names in (("in", check["inputs"]), ("out", check["outputs"])):
                for name in names:
                    assert arrays[f"{check['arrays']} {way} {name}"].shape == plan.buffers[name]
    kinds = {case["kind"] for case in manifest["cases"]}
    assert kinds == set(runner.CASE_KINDS)
    table = {case["name"].split()[-1]: set(case["plans"]) for case in manifest["cases"] if case["kind"] == "table 3"}
    assert {name for name, plans in table.items() if "before, library" in plans} == set(table) - {"G2BMM"}
    assert len(table) == 4 and all({"before, generated", "after"} <= plans for plans in table.values())
    entries = runner.wanted(manifest)
    done = [name for kind, name in entries if kind == "compiled"]  # torch has two precisions for attention
    models = [m["name"] for m in manifest["models"]]
    assert done[:3] == [*models, "band attention 512, 33"] and "swish, 1003" not in done  # one case of a kind
    assert done.index("band attention 512, 33 [tf32]") > done.index("cast float32 to half, 1003") > 3
    assert len(set(entries)) == len(entries) and {kind for kind, _ in entries} == set(runner.SAVED)
    assert {kind for kind, _ in runner.wanted(manifest, with_torch=False)} == set(runner.SAVED) - {"compiled"}


def test_the_unpacked_bundle_says_what_is_missing(packed: Path) -> None:
    if not execution.missing_for_cuda():
        pytest.skip("there is a GPU")
    # Nothing of this checkout, and neither TVM nor anything else that compiles.
    code = (
        "import sys, runpy\n"
        "class None_:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('tvm', 'onnxruntime', 'onnx', 'scipy', 'networkx', 'lark', 'islpy'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, None_())\n"
        "sys.argv = ['gpu', 'run', '--out', 'r.json']\n"
        "from benchmarks.gpu.__main__ import main; code = main()\n"
        "import einnet_explore; print(einnet_explore.__file__); sys.exit(code)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=packed, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout.strip() == str(packed / "einnet_explore/__init__.py")
    assert done.stderr.count("\n") == 1 and "no GPU to measure on: missing" in done.stderr
    assert not (packed / "r.json").exists()


def test_results_of_the_same_bundle_only_are_resumed(tmp_path: Path) -> None:
    head = {"bundle": "b", "device": {"name": "d"}, "versions": {"cupy": "1"}}
    out = tmp_path / "r.json"
    fresh = runner.resumed(out, head)
    assert fresh == {**head, **{kind: {} for kind in runner.SAVED}}
    fresh["checks"]["one"] = {"error": 0.0}
    out.write_text(json.dumps(fresh))
    assert runner.resumed(out, head)["checks"] == {"one": {"error": 0.0}}
    with pytest.raises(ValueError, match="of another bundle, device or library version"):
        runner.resumed(out, {**head, "bundle": "c"})
    entries = [("checks", name) for name in ("one", "two", "three", "four", "five")]
    cut = {"failures": {"flex attention": "the time of this entry was over: interrupted"}}
    done = {"checks": {"one": {"error": 0.0, "failures": {"torch": "x"}}, "two": {"failure": "x"}, "three": cut}}
    left = runner.unfinished(entries, done, ["checks four"])
    assert [name for _, name in left] == ["five", "two", "three", "four"]
    for held in ("{}", "[]", "{"):
        out.write_text(held)
        with pytest.raises(ValueError, match="found no results of an earlier run"):
            runner.resumed(out, head)
        assert out.read_text() == held


def test_unknown_kind_of_measurement_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu(["run", "--only", "checks,dances"])
    assert "found kind 'dances', expected some of checks" in capsys.readouterr().err


def test_ratios_medians_and_errors_of_the_runner_are_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"ours": [1.0, 2.0, 4.0], "other": [2.0, 5.0, 12.0]}
    assert runner.ratios(times, "ours") == {"other": 2.5}
    assert runner.summary([3.0, 1.0, 2.0])["seconds"] == 2.0
    assert runner.error_of([1.0, 4.0], [1.0, 5.0]) == 0.25
    monkeypatch.setattr("benchmarks.gpu.measuring.CHUNK_ELEMENTS", 3)
    assert runner.error_of([8, 0, 0, 0, 1], np.float16([8, 0, 0, 0, 3])) == 0.25
    assert runner.error_of([1.0], [np.nan]) == runner.error_of([1.0], [1.0, 1.0]) == float("inf")


def test_results_become_a_profile(tmp_path: Path) -> None:
    program = parse("tensor A[8, 8]\ntensor B[8, 8]\nY[i:8, j:8] = sum[k:8] A[i, k] * B[k, j]")
    (candidate, *_) = [c for c in _candidates(program) if c.operators]
    keys = [one["key"] for one in cases.profiled([candidate.program]).values()]
    assert keys
    device = {"name": "Synthetic", "driver": "1", "runtime": "2", "libraries": "cupy 0"}
    profiles = {str(n): {"key": key, "seconds": 0.5} for n, key in enumerate(keys)} | {"x": {"failure": "none"}}
    results = {"device": device, "ceilings": {"all": {"rates": RATED}}, "profiles": profiles}
    (tmp_path / "r.json").write_text(json.dumps(results))
    held = load_recorded_profile(str(tmp_path / "r.json"))
    assert (held.device, held.library, len(held.times)) == ("CUDA Synthetic", "driver 1 runtime 2 cupy 0", len(keys))
    seconds, how = device_cost(f"profile:{tmp_path / 'r.json'}")(candidate.program)
    assert (seconds, how) == (pytest.approx(0.5 * len(keys)), "measured")
    assert set(RATES) <= set(RATED)
    for wrong in ("{}", "[]", "{", json.dumps({**results, "ceilings": {"all": {"rates": {}}}})):
        (tmp_path / "r.json").write_text(wrong)
        with pytest.raises(ValueError, match=r"r\.json: found no complete results of a GPU"):
            device_cost(f"profile:{tmp_path / 'r.json'}")


def test_candidates_are_estimated_for_the_recorded_gpu() -> None:
    program = parse("tensor A[64, 64]\ntensor B[64, 64]\nY[i:64, j:64] = sum[k:64] A[i, k] * B[k, j]")
    recorded = Path(bundle.__file__).parents[1] / "history" / "gpu-h200.json"
    (found,) = bench({"start": program}, device=f"profile:{recorded}")
    assert found.device == "CUDA NVIDIA H200" and 1e-6 < found.samples["start"][0] < 1e-3


def _candidates(program: Program) -> list[Any]:
    run = Run(program, program_seconds, options=Options(max_depth=0))
    for _ in run:
        pass
    return run.candidates


@pytest.mark.parametrize("text", ["Y[i:6] = max[j:8] A[i, j]", "Y[i:6, j:8] = relu(A[i, j]) + 1"])
def test_tvm_makes_a_rival_of_one_equation(text: str) -> None:
    (plan,) = cases.by_tvm(parse(f"tensor A[6, 8]\n{text}"), "tvm").values()
    (step,) = plan.steps
    assert isinstance(step, CudaLaunch) and plan.outputs == ("Y",)
