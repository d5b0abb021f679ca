"""Bundles: run by ONNX Runtime in processes that have neither this package nor TVM, and compared with the plan."""

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx_building import build, node
from onnx_building import run as infer

from einnet_explore.checker.record import FORMAT as RECORD_FORMAT
from einnet_explore.cli import main
from einnet_explore.codegen.register_tiles import cpu_flags
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model, ModelError, walk_graphs
from einnet_explore.pipeline import size_dispatch
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.batch_independence import prove_independence
from einnet_explore.pipeline.bundle import BundledPlan, check_bundle_folder, write_bundle
from einnet_explore.pipeline.plan import ExecutionPlan, GroupRun, ProgramCall, build_plan
from einnet_explore.pipeline.size_dispatch import Chunking
from einnet_explore.runtime import compiled, onnx_fragment
from einnet_explore.runtime.implementations import BoundEquation, load_implementation
from einnet_explore.runtime.integer_products import integer_product
from einnet_explore.runtime.onnx_fragment import INSTRUCTION_SETS, LibraryKernels
from einnet_explore.runtime.onnx_weights import DOMAIN
from einnet_explore.runtime.program import compile_program
from einnet_explore.runtime.tvm_cpu import TvmSource
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.syntax import parse

pytestmark = pytest.mark.skipif(not onnx_fragment.custom_ops_available(), reason="no C compiler")

THREADS = 2
COLUMNS = 128
"""Of the weights of the third group: enough for a copy in large pages."""

CLIENT = Path(__file__).with_name("bundle_client.c")

FLAGS = dict(zip(INSTRUCTION_SETS, ("avx512bw", "avx2", "sse4_2"), strict=True))

PROGRAMS = {
    "c": "tensor a[64, 4500]\nb[i:64, j:4500] = exp(a[i, j]) * 2",
    "sums": "tensor b[64, 4500]\nd[i:64, j:4500] = b[i, j] / {[p:64] sum[k:4500] b[p, k]}[i]",
    "tiled": "tensor d[64, 4500]\ntensor w[4500, 128]\ny[i:64, n:128] = sum[k:4500] d[i, k] * w[k, n]",
}
"""One program for each kind of kernel: the first one shares its work among threads, the second sums rows."""


RECORD = "certificates/000-relu.json"


def bundled(model: Model, plan: ExecutionPlan) -> BundledPlan:
    steps = [{"rule": "dead_equation", "at": "0", "params": {}, "after": PROGRAMS["c"]}]
    records: dict[str, Any] = {
        "000-relu": {"format": RECORD_FORMAT, "version": 1, "start": PROGRAMS["c"], "steps": steps}
    }
    return BundledPlan(model=model, plan=plan, numerics="reassociate", error=1e-6, records=records)


def chain() -> Model:
    """Three groups that kernels replace, and a node that stays."""
    w = 100 * np.random.default_rng(0).standard_normal((4500, COLUMNS)).astype(np.float32)
    nodes = [
        node("Exp", ["x"], ["e"]), node("Mul", ["e", "two"], ["b"]),
        node("ReduceSum", ["b", "axes"], ["s"]), node("Div", ["b", "s"], ["d"]),
        node("MatMul", ["d", "w"], ["y"]),
        node("Softmax", ["y"], ["z"], axis=1),
    ]  # fmt: skip
    constants = {"two": np.float32(2).reshape(1), "axes": np.array([1]), "w": w}
    return load_model(build(nodes, {"x": [64, 4500]}, ["z"], constants))


def with_engine(engine: str) -> Callable[..., Any]:
    def choose(bound: BoundEquation, found: Any) -> Any:
        return load_implementation(next(each for each in found if each.engine == engine))

    return choose


def runs_of(model: Model) -> dict[tuple[str, ...], GroupRun]:
    made = {v: n.name for n in model.nodes for v in n.results}
    groups = {"c": ("e", "b"), "sums": ("s", "d"), "tiled": ("y",)}
    names = {"a": "x", "b": "b", "d": "d", "y": "y"}

    return {
        tuple(made[value] for value in values): ProgramCall(
            compile_program(
                parse(PROGRAMS[engine]), THREADS, constants={"w": model.weights["w"]} if engine == "tiled" else {},
                choose=with_engine("tiled" if engine == "tiled" else "c"),
            ),
            names,
        )
        for engine, values in groups.items()
    }  # fmt: skip


def plan_of(model: Model) -> ExecutionPlan:
    return build_plan(model, runs_of(model), THREADS)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "a bundle"
    model = chain()
    write_bundle(path, bundled(model, plan_of(model)))
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
options.intra_op_num_threads = int(sys.argv[4])
options.enable_cpu_mem_arena = sys.argv[4] != "1"
options.log_severity_level = 4
options.register_custom_ops_library("./kernels.so")
session = onnxruntime.InferenceSession("./model.onnx", options, providers=["CPUExecutionProvider"])
feeds = dict(numpy.load(sys.argv[2]))
numpy.savez(sys.argv[3], **dict(zip([v.name for v in session.get_outputs()], session.run(None, feeds))))
assert not {name.partition(".")[0] for name in sys.modules} & {"einnet_explore", "tvm", "tvm_ffi", "onnx"}
"""


def run(bundle: Path, packages: Path, feeds: Mapping[str, Any], scratch: Path, threads: int = 2) -> Any:
    """Return the outputs of *bundle* for *feeds* in a fresh process; raises with its words if it fails."""
    given, made = scratch / "given.npz", scratch / "made.npz"
    np.savez(given, **feeds)
    command = [sys.executable, "-I", "-S", "-c", RUN, str(packages), str(given), str(made), str(threads)]
    done = subprocess.run(command, cwd=bundle, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.returncode}: {done.stderr}")
    return dict(np.load(made))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bundle_runs_without_this_package_and_agrees_with_the_original(
    bundle: Path, packages: Path, tmp_path: Path, threads: int
) -> None:
    """The plan has two threads."""
    model = chain()
    feeds = random_model_inputs(model, 3)
    want = build_plan(model, {}, THREADS).run(feeds)
    got = run(bundle, packages, feeds, tmp_path, threads)
    np.testing.assert_allclose(got["z"], want["z"], 1e-5, 1e-5)


def test_manifest_describes_every_file_kernel_and_value(bundle: Path) -> None:
    found = json.loads((bundle / "manifest.json").read_text())
    assert {kernel["compiler"] for kernel in found["kernels"]} == {"C", "LLVM"} and len(found["kernels"]) == 3
    proto = onnx.load(bundle / "model.onnx")
    numbers = [a.i for n in proto.graph.node for a in n.attribute if a.name == "kernel"]
    assert sorted(numbers) == sorted(kernel["number"] for kernel in found["kernels"])
    assert set(found["files"]) == {"model.onnx", "weights.bin", "kernels.so", "README.md", RECORD}
    assert found["inputs"] == [{"name": "x", "type": "float32", "shape": [64, 4500]}]
    assert found["opsets"] == {"ai.onnx": 21, "einnet": 1}
    assert found["plans"][0]["original_nodes"] == [] and found["instruction_sets"] == list(INSTRUCTION_SETS)


def test_check_compares_files_with_the_manifest_and_proves_the_certificates(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    assert main(["check", str(bundle)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *(f"{bundle / name}: as in the manifest" for name in files),
        f"{bundle / RECORD}: proved",
    ]
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    (copy / "README.md").write_text("changed")
    (copy / RECORD).unlink()
    assert main(["check", str(copy), "--json", "-"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    wrong = {each["file"]: each["why"][:16] for each in found["files"] if not each["ok"]}
    assert wrong == {str(copy / "README.md"): "changed: found t", str(copy / RECORD): "cannot be read: "}
    manifest = (copy / "manifest.json").read_text()
    for old, new, why in (
        ('"README.md"', '"../README.md"', "$.files['../README.md']: found a path outside the bundle"),
        ('"version": 2', '"version": 1', "$.version: found 1, expected 2"),
    ):
        (copy / "manifest.json").write_text(manifest.replace(old, new))
        assert main(["check", str(copy)]) == 2 and why in capsys.readouterr().err
    (copy / "manifest.json").unlink()
    assert main(["check", str(copy)]) == 2 and "without manifest.json, expected a bundle" in capsys.readouterr().err


def test_models_of_a_bundle_are_not_compared(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (bundle, bundle / "model.onnx"):
        assert main(["equal", str(bundle / "model.onnx"), str(path)]) == 2
        with pytest.raises(
            ModelError, match=r"found kernels of a bundle, .*; einnet-explore check .* checks the bundle"
        ):
            load_model(path)


def model_alone(bundle: Path, folder: Path) -> None:
    """Copy the model of *bundle* and its weights, without the library, to *folder*."""
    for name in ("model.onnx", "weights.bin"):
        shutil.copy(bundle / name, folder)


def client(folder: Path, *flags: str) -> Path:
    program = folder / "client"
    compiled.run_c_compiler("-g", *flags, str(CLIENT), "-o", str(program), "-ldl", "-lpthread")
    return program


def run_client(program: Path, library: Path, model: Path, feeds: Mapping[str, Any]) -> Any:
    (runtime,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*")
    x = feeds["x"]
    command = [str(program), str(runtime), str(library), str(model), "x", "z", *map(str, x.shape)]
    done = subprocess.run(command, input=x.tobytes(), capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.returncode}: {done.stderr.decode()}")
    return np.frombuffer(done.stdout, np.float32).reshape(64, COLUMNS)


@pytest.mark.parametrize("flags", [(), ("-DOLD",)])
def test_sessions_of_a_c_program_agree_in_all_threads(bundle: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Eight sessions in eight threads, each with two threads of its own, compute the same bits.

    The kernels take an older ONNX Runtime to have fewer functions.
    """
    feeds = random_model_inputs(chain(), 3)
    want = build_plan(chain(), {}, THREADS).run(feeds)
    program = client(tmp_path, *flags)
    got = run_client(program, bundle / "kernels.so", bundle / "model.onnx", feeds)
    np.testing.assert_allclose(got, want["z"], 1e-5, 1e-5)
    free = edited(bundle, tmp_path, free_sizes)
    with pytest.raises(RuntimeError, match=r"1: .*input x has shape \[64, 4501\], expected \[64, 4500\]"):
        run_client(program, free / "kernels.so", free / "model.onnx", {"x": np.zeros((64, 4501), np.float32)})


@pytest.mark.slow
def test_entry_code_is_clean_under_sanitizers(bundle: Path, tmp_path: Path) -> None:
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover")
    try:
        program = client(tmp_path, *flags)
    except BackendError as error:
        pytest.skip(f"no sanitizers: {error}")
    kernels = LibraryKernels()
    plan_of(chain()).model_with(kernels)
    kernels.write(tmp_path / "kernels.so", flags=(*flags, "-Wl,-z,undefs"))
    feeds = random_model_inputs(chain(), 3)
    got = run_client(program, tmp_path / "kernels.so", bundle / "model.onnx", feeds)
    clean = run_client(client(tmp_path), bundle / "kernels.so", bundle / "model.onnx", feeds)
    np.testing.assert_array_equal(got, clean)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
def test_every_instruction_set_has_right_kernels(bundle: Path, packages: Path, tmp_path: Path, cpu: str) -> None:
    if FLAGS[cpu] not in cpu_flags():
        pytest.skip(f"this processor does not have {FLAGS[cpu]}")
    kernels = LibraryKernels()
    plan_of(chain()).model_with(kernels)
    model_alone(bundle, tmp_path)
    kernels.write(tmp_path / "kernels.so", sets=[cpu])
    feeds = random_model_inputs(chain(), 3)
    want = build_plan(chain(), {}, THREADS).run(feeds)
    np.testing.assert_allclose(run(tmp_path, packages, feeds, tmp_path)["z"], want["z"], 1e-5, 1e-5)


def test_products_of_bytes_with_epilogues_share_a_library(tmp_path: Path) -> None:
    """Every one has a function for its epilogue, for each instruction set."""
    kernels = LibraryKernels()
    for scale in (0.5, 0.25):
        scope = parse(
            "tensor X[64, 32] uint8\ntensor W[32, 64] int8 weight\nY[m:64, n:64] = uint8(minimum(relu(round("
            f"{scale} * {{[m:64, n:64] sum[k:32] X[m, k] * W[k, n]}}[m, n])), 255))"
        ).equations[0].scope  # fmt: skip
        kernel = integer_product(scope, {"W"}, {})
        assert kernel is not None
        assert not kernel.epilogue.is_identity
        kernels.number(kernel)
    kernels.write(tmp_path / "kernels.so")
    assert len(kernels.kernels) == 2


def test_processor_without_any_instruction_set_is_an_error(bundle: Path, packages: Path, tmp_path: Path) -> None:
    model_alone(bundle, tmp_path)
    LibraryKernels().write(tmp_path / "kernels.so", flags=["-D__builtin_cpu_supports(name)=0"])
    expected = "compiled for x86-64-v4, x86-64-v3, x86-64-v2, and this processor has none of these"
    with pytest.raises(RuntimeError, match=expected):
        run(tmp_path, packages, {}, tmp_path)


def test_older_onnxruntime_is_an_error(bundle: Path, packages: Path, tmp_path: Path) -> None:
    """The library asks for a version of the C API that does not exist, and for version 1 to report that."""
    model_alone(bundle, tmp_path)
    LibraryKernels().write(tmp_path / "kernels.so", flags=["-Dget_api(version)=get_api((version) == 1 ? 1 : 9000)"])
    with pytest.raises(RuntimeError, match=r"found ONNX Runtime 1\.\d+\.\d+, expected at least 1\.17"):
        run(tmp_path, packages, {}, tmp_path)


def edited(bundle: Path, folder: Path, edit: Callable[[onnx.ModelProto], object]) -> Path:
    """A copy of *bundle* in *folder* whose model is changed."""
    proto = onnx.load(bundle / "model.onnx")
    edit(proto)
    onnx.save(proto, folder / "model.onnx")
    shutil.copy(bundle / "kernels.so", folder)
    return folder


def free_sizes(proto: onnx.ModelProto) -> None:
    del proto.graph.value_info[:]
    for value in (*proto.graph.input, *proto.graph.output):
        for n, size in enumerate(value.type.tensor_type.shape.dim):
            size.dim_param = f"{value.name}{n}"


@pytest.mark.parametrize("shape", [(64, 4501), (64, 4499), (1, 1), (64, 4500, 1)])
def test_wrong_shapes_are_errors_of_onnxruntime(
    bundle: Path, packages: Path, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        free_sizes(proto)
        if len(shape) == 3:
            proto.graph.input[0].type.tensor_type.shape.dim.add().dim_param = "more"

    sizes = ", ".join(map(str, shape))
    with pytest.raises(RuntimeError, match=rf"node kernel of .*: input x has shape \[{sizes}\], expected \[64, 4500\]"):
        run(edited(bundle, tmp_path, edit), packages, {"x": np.zeros(shape, np.float32)}, tmp_path)


def test_wrong_type_is_an_error_of_onnxruntime(bundle: Path, packages: Path, tmp_path: Path) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE

    with pytest.raises(RuntimeError, match=r"kernel of b: input x holds .* type 11, expected 1 \(float32\)"):
        run(edited(bundle, tmp_path, edit), packages, {"x": np.zeros((64, 4500))}, tmp_path)


def test_wrong_weight_is_an_error_when_the_session_is_opened(bundle: Path, packages: Path, tmp_path: Path) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        weight = max(proto.graph.initializer, key=lambda tensor: tensor.ByteSize())
        weight.CopyFrom(numpy_helper.from_array(np.zeros((3, 5), np.float32), weight.name))

    with pytest.raises(RuntimeError, match=r"node kernel of .*: input .* has shape \[3, 5\], expected \[576000\]"):
        run(edited(bundle, tmp_path, edit), packages, {}, tmp_path)


def test_library_of_another_model_is_an_error(bundle: Path, packages: Path, tmp_path: Path) -> None:
    model_alone(bundle, tmp_path)
    LibraryKernels().write(tmp_path / "kernels.so")
    with pytest.raises(RuntimeError, match=r"node kernel of .*: the library has no kernel \d+; it belongs to"):
        run(tmp_path, packages, {}, tmp_path)


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("shapes", [2, 64], "attribute shapes holds no shapes"),
        ("views", [1, -5, 1, 5], "attribute views holds a negative dimension"),
        ("views", [1, 5], "a node with 1 inputs has 2 shapes and 1 views, expected 2 of each"),
        ("threads", [0], "found 0 threads, expected 1 to 65536"),
        ("views", [1, 5, 1, 5], "the view of argument 0 has another size than its shape"),
    ],
)
def test_damaged_attributes_are_errors(
    bundle: Path, packages: Path, tmp_path: Path, name: str, numbers: list[int], message: str
) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        kernel = next(n for n in proto.graph.node if n.domain == DOMAIN)
        attribute = next(a for a in kernel.attribute if a.name == name)
        if attribute.ints:
            attribute.ints[:] = numbers
        else:
            attribute.i = numbers[0]

    with pytest.raises(RuntimeError, match=message):
        run(edited(bundle, tmp_path, edit), packages, {}, tmp_path)


def test_failure_of_a_kernel_is_an_error_with_its_words(bundle: Path, packages: Path, tmp_path: Path) -> None:
    def edit(proto: onnx.ModelProto) -> None:
        kernels = {n.output[0]: n for n in proto.graph.node if n.domain == DOMAIN}
        views = next(a for a in kernels["y"].attribute if a.name == "views")
        views.ints[:2] = [4, 1, 1, 1, *views.ints[1:2]]

    feeds = {"x": np.zeros((64, 4500), np.float32)}
    with pytest.raises(RuntimeError, match=r"node kernel of y: a compiled kernel failed: \w+Error: .*ndim"):
        run(edited(bundle, tmp_path, edit), packages, feeds, tmp_path)


CUT = """
import ctypes, pathlib, sys
whole = pathlib.Path(sys.argv[1]).read_bytes()
for n in range(0, len(whole), len(whole) // 40):
    part = pathlib.Path(f"part{n}.so")
    part.write_bytes(whole[:n])
    try:
        ctypes.CDLL(str(part.absolute()))
    except OSError:
        continue
    raise SystemExit(f"{n} of {len(whole)} bytes were loaded")
"""


def test_truncated_library_is_refused(bundle: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CUT, str(bundle / "kernels.so")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_truncated_model_is_an_error(bundle: Path, packages: Path, tmp_path: Path) -> None:
    whole = (bundle / "model.onnx").read_bytes()
    shutil.copy(bundle / "kernels.so", tmp_path)
    (tmp_path / "model.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RuntimeError, match="Protobuf parsing failed"):
        run(tmp_path, packages, {}, tmp_path)


def test_truncated_weights_are_an_error(bundle: Path, packages: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "cut")
    whole = (bundle / "weights.bin").read_bytes()
    (tmp_path / "cut" / "weights.bin").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RuntimeError, match=r"weights\.bin|out of bounds|file size"):
        run(tmp_path / "cut", packages, {}, tmp_path)


def test_bundles_of_one_plan_have_the_same_bytes_and_no_path(bundle: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path / "again", bundled(chain(), plan_of(chain())))
    files = sorted(file.relative_to(bundle) for file in bundle.rglob("*") if file.is_file())
    assert len(files) == 6
    for file in files:
        content = (bundle / file).read_bytes()
        assert content == (tmp_path / "again" / file).read_bytes(), file
        for secret in (tempfile.gettempdir(), str(Path.home()), str(Path.cwd()), str(bundle.parent)):
            assert secret.encode() not in content, (file, secret)


def test_bundle_replaces_a_bundle_but_no_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain()
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(Refused, match=r"other: found mine\.txt, expected a new folder, an empty one, or only a bundle"):
        write_bundle(other, bundled(model, build_plan(model, {}, 1)))
    with pytest.raises(NotADirectoryError, match=r"mine\.txt"):
        write_bundle(other / "mine.txt", bundled(model, build_plan(model, {}, 1)))
    for _ in range(2):
        write_bundle(tmp_path / "new", bundled(model, build_plan(model, {}, 1)))
    assert json.loads((tmp_path / "new" / "manifest.json").read_text())["kernels"] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "other"]
    (tmp_path / "link").symlink_to("new")
    write_bundle(tmp_path / "link", bundled(model, build_plan(model, {}, 1)))
    assert (tmp_path / "link").is_symlink() and (tmp_path / "new" / "model.onnx").exists()
    (tmp_path / "new" / "certificates" / "mine.json").write_text("mine")
    with pytest.raises(Refused, match=r"found certificates/mine\.json"):
        write_bundle(tmp_path / "new", bundled(model, build_plan(model, {}, 1)))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="later"):
        check_bundle_folder(tmp_path / "not yet" / "later")


def test_without_a_compiler_a_bundle_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "_linker", lambda: None)
    with pytest.raises(BackendError, match="no C compiler was found: a bundle needs cc, gcc or clang"):
        check_bundle_folder(tmp_path / "new")


def test_other_platforms_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(Refused, match="found linux-aarch64, expected linux-x86_64: bundles are not written elsewhere"):
        check_bundle_folder(tmp_path / "new")


def test_groups_without_a_kernel_stay_as_they_were(packages: Path, tmp_path: Path) -> None:
    """The second group of the plan is a function of Python."""
    model = chain()
    runs = runs_of(model)
    group = list(runs)[1]
    runs[group] = lambda arrays: {"d": arrays["b"] / arrays["b"].sum(1, keepdims=True)}
    write_bundle(tmp_path / "new", bundled(model, build_plan(model, runs, THREADS)))
    found = json.loads((tmp_path / "new" / "manifest.json").read_text())
    assert found["plans"][0]["original_nodes"] == [{"nodes": list(group), "why": "group 1 is a callable"}]
    assert len(found["kernels"]) == 2
    feeds = random_model_inputs(model, 3)
    want = build_plan(model, {}, THREADS).run(feeds)
    np.testing.assert_allclose(run(tmp_path / "new", packages, feeds, tmp_path)["z"], want["z"], 1e-5, 1e-5)


def dynamic_model(opset: int = 21, factor: float = 2) -> onnx.ModelProto:
    """A model of dynamic sizes whose middle cuts and joins by computed sizes; its last product needs eight columns."""
    nodes = [
        node("Exp", ["x"], ["e"]), node("Mul", ["e", "factor"], ["b"]),
        node("Shape", ["b"], ["s"]), node("Reshape", ["b", "s"], ["r"]), node("Softmax", ["r"], ["p"], axis=-1),
        node("MatMul", ["p", "w"], ["z"]),
    ]  # fmt: skip
    w = np.random.default_rng(1).standard_normal((8, 3)).astype(np.float32)
    return build(nodes, {"x": ["rows", None]}, ["z"], {"factor": np.float32([factor]), "w": w}, opset)


def dynamic_plan(rows: int, opset: int = 21, kernel: bool = True) -> BundledPlan:
    """The plan for *rows* rows; its kernel, or a function that no bundle has, doubles exponentials."""
    model = load_model(dynamic_model(opset), {"x": (rows, 8)})
    made = {v: n.name for n in model.nodes for v in n.results}
    program = parse(f"tensor a[{rows}, 8]\nb[i:{rows}, j:8] = exp(a[i, j]) * 2")
    call: GroupRun = lambda arrays: {"b": 2 * np.exp(arrays["x"])}  # noqa: E731
    if kernel:
        call = ProgramCall(compile_program(program, THREADS, choose=with_engine("c")), {"a": "x", "b": "b"})
    return bundled(model, build_plan(model, {(made["e"], made["b"]): call}, THREADS))


def opened(folder: Path, model: onnx.ModelProto | None = None) -> onnxruntime.InferenceSession:
    """The bundle in *folder*, or *model* with its library."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(folder / "kernels.so"))
    source = str(folder / "model.onnx") if model is None else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("opset", [11, 21])
def test_plans_run_their_sizes_and_chunks_and_the_original_operators_all_others(tmp_path: Path, opset: int) -> None:
    """In the second session the original operators have another factor: it shows which sizes they run."""
    plans, models = (
        [dynamic_plan(n, opset) for n in (4, 6)],
        [load_model(dynamic_model(), {"x": (n, 8)}) for n in (2, 3)],
    )
    independence = prove_independence((models[0], models[1]), {"x": 0}, (2, 3))
    chunks = {5: (6,), 7: (4, 4), 10: (6, 4)}
    write_bundle(tmp_path / "new", *plans, chunkings=[Chunking({"x": (4, 8)}, independence, chunks)])
    assert "Sizes 5, 7, 10 of dimension 0 of x run in chunks" in (tmp_path / "new" / "README.md").read_text()
    found = json.loads((tmp_path / "new" / "manifest.json").read_text())
    assert found["inputs"] == [{"name": "x", "type": "float32", "shape": ["rows", None]}]
    assert [each["shapes"] for each in found["plans"]] == [{"x": [4, 8]}, {"x": [6, 8]}]
    assert len(found["kernels"]) == 2 and found["why_sizes_are_fixed"] == ""
    assert {f"certificates/{n}/000-relu.json" for n in range(2)} <= set(found["files"])
    marked = onnx.load(tmp_path / "new" / "model.onnx")
    for graph in walk_graphs(marked.graph):
        if not any(n.op_type in ("If", "Kernel", "Loop") for n in graph.node):
            for weight in graph.initializer:
                if weight.name == "factor":
                    weight.CopyFrom(numpy_helper.from_array(np.float32([3]), "factor"))
    bundle, other = opened(tmp_path / "new"), opened(tmp_path / "new", marked)
    for rows in (1, 4, 5, 6, 7, 10, 11, 600):
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
        factor = 2 if rows in (4, 6, *chunks) else 3
        for session, expected in ((bundle, dynamic_model(opset)), (other, dynamic_model(opset, factor))):
            np.testing.assert_allclose(session.run(None, {"x": x})[0], infer(expected, {"x": x})["z"], 1e-5, 1e-6)
    with pytest.raises(Exception, match="matmul_z"):
        bundle.run(None, {"x": np.zeros((4, 9), np.float32)})
    with pytest.raises(Exception, match=r"(?s)rank for input: x .*Expected: 2"):
        bundle.run(None, {"x": np.zeros((4, 8, 1), np.float32)})
    with pytest.raises(Exception, match="float"):
        bundle.run(None, {"x": np.zeros((4, 8))})


def test_bundle_without_kernels_has_the_sizes_of_the_model(tmp_path: Path) -> None:
    model = load_model(dynamic_model(), {"x": (4, 8)})
    write_bundle(tmp_path / "new", bundled(model, build_plan(model, {}, 1)))
    assert opened(tmp_path / "new").run(None, {"x": np.zeros((5, 8), np.float32)})[0].shape == (5, 3)


def test_report_without_subprograms_has_no_table_and_names_the_original(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(build([node("Softplus", ["x"], ["y"])], {"x": [2, 3]}, ["y"], {}), tmp_path / "m.onnx")
    assert main(["optimize", str(tmp_path / "m.onnx"), "--bundle", str(tmp_path / "new"), "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("nothing gained: keep your file.")
    assert f"saved the bundle {tmp_path / 'new'} (the original model, without kernels): " in err


def test_plans_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one, other = dynamic_plan(4, kernel=False), load_model(dynamic_model(factor=3), {"x": (5, 8)})
    with pytest.raises(Refused, match="found plans of several models, expected plans of one model"):
        write_bundle(tmp_path / "new", one, bundled(other, build_plan(other, {}, 1)))
    with pytest.raises(Refused, match=r"found two plans for inputs of the same shapes.*'x': \(4, 8\)"):
        write_bundle(tmp_path / "new", one, dynamic_plan(4, kernel=False))
    assert not (tmp_path / "new").exists()


def test_sizes_stay_fixed_if_the_original_has_no_form_in_the_operator_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size_dispatch, "convert_opset", lambda _, proto: proto)
    write_bundle(tmp_path / "new", dynamic_plan(4, 11, kernel=False))
    found = json.loads((tmp_path / "new" / "manifest.json").read_text())
    assert found["inputs"][0]["shape"] == [4, 8]
    assert found["why_sizes_are_fixed"].startswith(
        "operator set ai.onnx: found version 21 in a plan and 11 in the model"
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86-64")
@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
def test_loops_use_the_widest_vectors_of_an_instruction_set(cpu: str, tmp_path: Path) -> None:
    text = "tensor X[4, 40, 40] pad [0, 1, 1]\nY[c:4, h:20, w:20] = max[r:3, s:3] X[c, 2*h+r-1, 2*w+s-1]"
    path = tmp_path / "kernel.o"
    TvmSource(parse(text).equations[0].scope).write_object(path, f"{compiled.ENTRY_POINT_PREFIX}main", cpu)
    tool = shutil.which("objdump")
    if tool is None:
        pytest.skip("no objdump")
    code = subprocess.run([tool, "-d", str(path)], capture_output=True, text=True, check=True).stdout
    maxima = [line for line in code.splitlines() if "maxps" in line]
    assert maxima and any("%zmm" in line for line in maxima) == (cpu == "x86-64-v4")
