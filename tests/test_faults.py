"""Nothing is lost: kernels that crash, disks that are full, kills, and models that mean harm."""

import ast
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx_building import build, node

import einnet_explore
from benchmarks.soak import kills
from einnet_explore.cli import main
from einnet_explore.cli.output import one_line
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import ModelError, ModelValue, check_memory
from einnet_explore.pipeline.optimisation import optimize_model
from einnet_explore.runtime import compiled
from einnet_explore.runtime import compiled as trial
from einnet_explore.runtime.tvm_cpu import compile_scope
from einnet_explore.support.errors import BackendError
from einnet_explore.syntax import parse

pytestmark = pytest.mark.timeout(300)

SCOPE = parse("tensor A[4, 8]\nY[i:8, j:4] = 2 * A[j, i]\n").equations[0].scope

BAD_KERNELS = {
    "crashes": ("*(volatile int *)0 = 1;", "ended its process with -11"),
    "hangs": ("for (volatile int n = 1; n;) {}", "had not ended after 1 seconds"),
    "exits": ("_exit(0);", "ended its process with 0"),
    "writes before": ("out(args, n)[-1] = 5;", "writes beyond argument 1 of 2"),
    "writes behind": ("out(args, n)[32] = 5;", "writes beyond argument 1 of 2"),
}
"""What a compiled kernel might do: the body of its entry, and what is said of it."""

KERNEL = """
void _exit(int);
struct any { int kind, more; char *held; };
static float *out(const struct any *args, int n) {
    char *tensor = args[n - 1].held;  /* a DLTensor, or an object that holds one behind its header */
    return *(float **)(args[n - 1].kind == 7 ? tensor : tensor + 24);
}
int __tvm_ffi_main(void *self, const struct any *args, int n, struct any *result) {
    (void)out;
    BODY
    return 0;
}
"""


def linked(body: str) -> Callable[[object, Path], None]:
    """Return a replacement of the function that saves kernels: it compiles *body* instead."""

    def save(_: object, path: Path) -> None:
        source = path.with_suffix(".c")
        source.write_text(KERNEL.replace("BODY", body))
        compiled._run_compiler("-shared", "-O0", "-fPIC", str(source), "-o", str(path))
        compiled._seal_file(path)

    return save


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.skipif(compiled._linker() is None, reason="no C compiler: kernels are not tried")
@pytest.mark.parametrize("kind", BAD_KERNELS)
def test_a_bad_kernel_is_refused_once_and_for_all(kind: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body, said = BAD_KERNELS[kind]
    monkeypatch.setattr(compiled, "_save", linked(body))
    if kind == "hangs":
        monkeypatch.setattr(trial, "MAX_RUN_SECONDS", 1.0)
    with pytest.raises(BackendError, match=said):
        compile_scope(SCOPE)
    (note,) = (cache / "kernels").glob("refused-*.txt")
    assert said in note.read_text()
    assert not list((cache / "kernels").glob("*.so"))
    monkeypatch.setattr(trial, "_ask", lambda _: pytest.fail("it was run again"))
    with pytest.raises(BackendError, match=said):
        compile_scope(SCOPE)


def test_a_good_kernel_runs_after_a_bad_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(compiled, "_save", linked("*(volatile int *)0 = 1;"))
        with pytest.raises(BackendError):
            compile_scope(SCOPE)
    a = np.arange(32, dtype=np.float32).reshape(4, 8)
    np.testing.assert_array_equal(compile_scope(SCOPE)(a), 2 * a.T)
    assert len(list((cache / "kernels").glob("*.so"))) == 1


def test_kernels_run_unchecked_without_a_sandbox_process(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_children", {})
    monkeypatch.setattr(trial, "_unavailable", set())
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    a = np.ones((4, 8), np.float32)
    assert compile_scope(SCOPE)(a).sum() == 64


CONTRACTION = build(
    [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["y"])],
    {"x": [1, 4, 8, 8]},
    ["y"],
    {"w": np.ones((4, 4, 3, 3), np.float32)},
)


def test_original_is_kept_if_every_kernel_crashes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_save", linked("*(volatile int *)0 = 1;"))
    fast = optimize_model(load_model(CONTRACTION), threads=1, max_depth=2, budget=1)
    feeds = fast.random_inputs()
    np.testing.assert_allclose(fast(**feeds)["y"], fast.original.run(feeds)["y"], rtol=1e-4)


def limited(bytes_: int) -> Callable[[], None]:
    """Return a function that limits the size of a process's files, as if the disk were full."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))

    return limit


def command(tmp_path: Path, *argv: str, **more: object) -> subprocess.CompletedProcess[str]:
    """``optimize`` of a small model in a process of its own."""
    (tmp_path / "m.onnx").write_bytes(CONTRACTION.SerializeToString())
    line = [sys.executable, "-m", "einnet_explore", "optimize", str(tmp_path / "m.onnx"), "--threads", "1"]
    return subprocess.run(
        [*line, "--budget", "1", "--max-depth", "2", *argv], capture_output=True, text=True, check=False, **more
    )  # type: ignore[call-overload,no-any-return]


def test_full_disk_leaves_output_and_cache_intact(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("what was there before")
    environment = {**os.environ, "EINNET_EXPLORE_CACHE": str(tmp_path / "cache")}
    done = command(tmp_path, "--json", str(out), env=environment, preexec_fn=limited(700))
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1] == f"error: {out}: File too large"
    assert out.read_text() == "what was there before"
    assert not [p for p in (tmp_path / "cache").rglob("*.so") if not compiled._is_intact(p)]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    environment = {**os.environ, "EINNET_EXPLORE_CACHE": "/dev/null/cache"}
    done = command(tmp_path, "-o", str(tmp_path / "out.onnx"), env=environment)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "profiles are kept in memory only" in done.stderr
    onnxruntime.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("n", [4, 5, 6])
def test_kills_while_times_are_stored_lose_no_acknowledged_time(n: int) -> None:
    outcome = kills.item(0, n)
    assert outcome.findings == [] and outcome.counts["items: store"] == 1


@pytest.mark.slow
def test_killed_commands_leave_outputs_complete_or_absent() -> None:
    outcomes = [kills.item(3, n) for n in range(20)]
    assert [said for outcome in outcomes for said in outcome.findings] == []
    assert sum(outcome.counts["kills"] for outcome in outcomes) >= 15


# Models that mean harm.

SIZES = {
    "an input": build([node("Relu", ["x"], ["y"])], {"x": [1 << 20, 1 << 20]}, ["y"]),
    "more than any number of bytes": build([node("Relu", ["x"], ["y"])], {"x": [1 << 40, 1 << 40]}, ["y"]),
    "a result": build([node("Expand", ["x", "s"], ["y"])], {"x": [1]}, ["y"], {"s": np.array([1 << 20, 1 << 20])}),
    "padding": build([node("Conv", ["x", "w"], ["y"], pads=[1 << 28] * 4)], {"x": [1, 1, 4, 4]}, ["y"],
                     {"w": np.ones((1, 1, 3, 3), np.float32)}),
    "a constant": build([node("ConstantOfShape", ["s"], ["c"]), node("Add", ["x", "c"], ["y"])], {"x": [1]}, ["y"],
                        {"s": np.array([1 << 20, 1 << 20])}),
    "a range": build([node("Range", ["a", "b", "c"], ["r"]), node("Cast", ["r"], ["f"], to=1),
                      node("Add", ["x", "f"], ["y"])], {"x": [1]}, ["y"],
                     {"a": np.array(0), "b": np.array(1 << 50), "c": np.array(1)}),
}  # fmt: skip


@pytest.mark.parametrize("what", SIZES)
def test_gigantic_shapes_are_refused_before_anything_is_allocated(what: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match=r"GiB, expected at most the [\d.]+ GiB of memory here"):
        load_model(SIZES[what])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_values_beyond_the_memory_limit_are_refused() -> None:
    values = [ModelValue("a", (4, 4), np.dtype(np.float32)), ModelValue("b", None, None)]
    check_memory("m", values, 64)
    with pytest.raises(ModelError, match="m: value a: found shape 4x4"):
        check_memory("m", values, 63)


def bomb(**fields: object) -> onnx.ModelProto:
    proto = build([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 3]}, ["y"], {"w": np.ones((3, 4), np.float32)})
    tensor = proto.graph.initializer[0]
    if "dims" in fields:
        del tensor.dims[:]
        tensor.dims.extend(fields["dims"])  # type: ignore[arg-type]
    if "data" in fields:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in fields["data"].items():  # type: ignore[attr-defined]
            tensor.external_data.add(key=key, value=value)
    return proto


@pytest.mark.parametrize(
    ("dims", "said"), [([3, 1 << 40], "found other elements"), ([3, -4], "Negative"), ([1 << 62] * 4, "found")]
)
def test_weights_that_claim_more_than_they_hold(dims: list[int], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        load_model(bomb(dims=dims))


@pytest.mark.parametrize(
    "data",
    [
        {"location": "../secret.bin"},
        {"location": "sub/../../secret.bin"},
        {"location": "link.bin"},
        {"location": "linked/secret.bin"},
        {"location": "/etc/passwd"},
        {"location": "fifo"},
        {"location": "own.bin", "length": str(1 << 50)},
        {"location": "own.bin", "offset": str(1 << 50)},
        {"location": "own.bin", "offset": "-5"},
        {"location": "own.bin", "length": "many"},
    ],
    ids=lambda data: " ".join(data.values()),
)
def test_external_data_stays_in_the_models_folder(data: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for path in (tmp_path / "secret.bin", folder / "own.bin"):
        path.write_bytes(np.ones(12, np.float32).tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    (folder / "m.onnx").write_bytes(bomb(data=data).SerializeToString())
    with pytest.raises(ModelError, match=r"m\.onnx: external data: found .*expected the weights' file"):
        load_model(folder / "m.onnx")
    (folder / "m.onnx").write_bytes(bomb(data={"location": "own.bin"}).SerializeToString())
    assert load_model(folder / "m.onnx").weights["w"].sum() == 12


HARMFUL = 'x"; import os\n#', "</script><script>alert(1)</script>", "$(touch /tmp/no)", "'; DROP TABLE remembered; --"


def test_harmful_names_in_models_are_not_executed(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c, d = HARMFUL
    proto = build(
        [node("Conv", [a, b], [c], a, pads=[1, 1, 1, 1]), node("Relu", [c], [d], b)],
        {a: [1, 4, 8, 8]},
        [d],
        {b: np.ones((4, 4, 3, 3), np.float32)},
    )
    file, page, report, out = (tmp_path / name for name in ("m.onnx", "p.html", "r.json", "o.onnx"))
    file.write_bytes(proto.SerializeToString())
    argv = ["optimize", str(file), "--threads", "1", "--budget", "1", "--max-depth", "2", "--html", str(page)]
    assert main([*argv, "--json", str(report), "-o", str(out)]) == 0
    assert "<script>alert" not in page.read_text()
    assert set(json.loads(report.read_text())) >= {"subprograms", "speedup"}
    assert [v.name for v in onnx.load(out).graph.input] == [a] and [v.name for v in onnx.load(out).graph.output] == [d]
    model = load_model(file)
    assert all(name.replace("_", "").isalnum() and name.isascii() for name in model.identifiers.values())
    capsys.readouterr()


def test_nothing_here_runs_what_it_reads() -> None:
    banned = {"eval", "exec", "pickle", "marshal", "shelve", "dill", "cloudpickle", "__import__", "allow_pickle"}
    root = Path(einnet_explore.__file__).parent
    for path in root.rglob("*.py"):
        for item in ast.walk(ast.parse(path.read_text())):
            match item:
                case ast.Name(id=name) | ast.keyword(arg=str(name)) | ast.alias(name=name):
                    assert name not in banned, f"{path}: {name}"
                case ast.Attribute(value=ast.Name(id="os"), attr="system"):
                    pytest.fail(f"{path}: os.system")
                case ast.keyword(arg="shell"):
                    pytest.fail(f"{path}: shell")


def test_too_little_memory_is_reported_in_one_line() -> None:
    assert one_line(MemoryError("Unable to allocate\n8 TiB")) == "not enough memory: Unable to allocate 8 TiB"
    assert one_line(MemoryError()) == "not enough memory: an allocation failed"
