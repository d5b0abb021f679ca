"""Bad input: one line `error: …` on standard error, exit code 2, nothing written, no traceback without --debug."""

import errno
import importlib.util
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_building import build, node

from einnet_explore.cli import main
from einnet_explore.pipeline import optimiser
from einnet_explore.session import api

ONES = np.ones((2, 3, 3, 3), np.float32)
CASE = "tensor A[4]\nY[i:4] = 2 * A[i]\n"
MODEL = build([node("Relu", ["x"], ["y"])], {"x": [1, 4]}, ["y"])


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that *argv* gives."""
    try:
        code = main(argv)
    except SystemExit as bad_usage:
        code = bad_usage.code
    said = capsys.readouterr()
    assert (code, said.out) == (2, ""), said
    assert said.err.startswith("error: ") and said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.err
    return said.err


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def with_weight(weight: np.ndarray) -> onnx.ModelProto:
    return build([node("Conv", ["x", "w"], ["y"], "conv")], {"x": [1, 3, 8, 8]}, ["y"], {"w": weight})


def holed(value: float) -> np.ndarray:
    weight = ONES.copy()
    weight[0, 0, 0, 0] = value
    return weight


BAD_MODELS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "empty file"),
    "text": (lambda: b"this is no model", "not ONNX"),
    "truncated": (lambda: with_weight(ONES).SerializeToString()[:200], "truncated"),
    "opset": (
        lambda: build([node("Relu", ["x"], ["y"])], {"x": [4]}, ["y"], opset=999).SerializeToString(),
        "opset 999",
    ),
    "dynamic": (lambda: build([node("Relu", ["x"], ["y"])], {"x": ["batch", 4]}, ["y"]).SerializeToString(), "batch"),
    "nan": (lambda: with_weight(holed(np.nan)).SerializeToString(), "NaN"),
    "infinity": (lambda: with_weight(holed(np.inf)).SerializeToString(), "infinity"),
    "no elements": (
        lambda: build([node("Relu", ["x"], ["y"])], {"x": [0, 4]}, ["y"]).SerializeToString(),
        "dimension of size 0",
    ),
    "cycle": (
        lambda: build(
            [node("Add", ["x", "b"], ["a"], "one"), node("Relu", ["a"], ["b"], "two")], {"x": [4]}, ["b"]
        ).SerializeToString(),
        "cycle",
    ),
    "disconnected": (
        lambda: build([node("Add", ["x", "nowhere"], ["y"], "lost")], {"x": [4]}, ["y"]).SerializeToString(),
        "nowhere",
    ),
    "unknown operator": (
        lambda: build([node("Frobnicate", ["x"], ["y"], "odd")], {"x": [4]}, ["y"]).SerializeToString(),
        "Frobnicate",
    ),
}


@pytest.mark.parametrize("command", ["optimize", "bench"])
@pytest.mark.parametrize("name", BAD_MODELS)
def test_bad_model_is_refused_in_one_line_and_writes_nothing(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, expected = BAD_MODELS[name]
    path = tmp_path / "bad.onnx"
    path.write_bytes(content())
    before = files(tmp_path)
    out = [] if command == "bench" else ["-o", str(tmp_path / "out.onnx"), "--html", str(tmp_path / "out.html")]
    said = refused(capsys, command, str(path), "--json", str(tmp_path / "out.json"), "--threads", "1", *out)
    assert expected in said and "bad.onnx" in said
    assert files(tmp_path) == before


BAD_CASES = {
    "syntax": (b"tensor A[4]\nY[i:4] = A[i\n", ":2:"),
    "outside": (b"tensor A[4]\nY[i:4] = A[i+1]\n", ":2:"),
    "unknown name": (b"tensor A[4]\nY[i:4] = B[i]\n", "B"),
    "no elements": (b"tensor A[0]\nY[i:1] = A[i]\n", ":1:"),
    "empty": (b"", ":1:"),
    "twice": (b"tensor A[4]\ntensor A[4]\nY[i:4] = A[i]\n", "A"),
    "not UTF-8": (b"tensor A[4]\nY[i:4] = A[i] \xff\n", ":2:15: found byte 0xff"),
    "too deep": (b"tensor A[4]\nY[i:4] = " + b"-" * 5000 + b"A[i]\n", "bad.ein"),
}


@pytest.mark.parametrize("command", ["show", "rules", "derive", "bench"])
@pytest.mark.parametrize("name", BAD_CASES)
def test_bad_case_is_refused_in_one_line_and_writes_nothing(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, expected = BAD_CASES[name]
    path = tmp_path / "bad.ein"
    path.write_bytes(content)
    more = {"show": ["--svg", str(tmp_path / "x.svg")], "derive": ["--save", str(tmp_path / "x.json")]}
    threads = ["--threads", "1"] if command == "bench" else []
    said = refused(capsys, command, str(path), *more.get(command, []), *threads)
    assert str(path) in said and expected in said
    assert list(files(tmp_path)) == ["bad.ein"]


RECORD = {"format": "einnet-explore record", "version": 1, "start": CASE, "steps": []}
STEP = {"rule": "summation_splitting", "at": "0", "params": {}, "after": CASE, "certificate": None}
BAD_RECORDS = {
    "not JSON": "{",
    "not UTF-8": None,
    "a list": "[]",
    "another format": json.dumps(RECORD | {"format": "x"}),
    "a later version": json.dumps(RECORD | {"version": 99}),
    "no start": json.dumps({k: v for k, v in RECORD.items() if k != "start"}),
    "a bad start": json.dumps(RECORD | {"start": "Y ="}),
    "steps that are none": json.dumps(RECORD | {"steps": [1]}),
    "a step without a path": json.dumps(RECORD | {"steps": [STEP | {"at": "x"}]}),
    "nested too deeply": "[" * 100_000,
}


@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize("name", BAD_RECORDS)
def test_bad_record_is_refused_in_one_line(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    content = BAD_RECORDS[name]
    path.write_bytes(b'{"\xff' if content is None else content.encode())
    assert "bad.json" in refused(capsys, command, str(path))


@pytest.mark.parametrize("name", ["no_such_rule", "summation_splitting"])
def test_record_whose_rules_do_not_lead_there(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(RECORD | {"steps": [STEP | {"rule": name}]}))
    assert name in refused(capsys, "show", str(path))


def test_record_whose_parameters_are_of_another_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    step = STEP | {"rule": "boundary_tightening", "params": {"ranges": [1]}}
    path.write_text(json.dumps(RECORD | {"steps": [step]}))
    said = refused(capsys, "show", str(path))
    assert said.startswith(f"error: {path}: $.steps[0]: boundary_tightening at 0: ") and "--debug" not in said


@pytest.fixture
def case(tmp_path: Path) -> str:
    path = tmp_path / "good.ein"
    path.write_text(CASE)
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "good.onnx"
    path.write_bytes(MODEL.SerializeToString())
    return str(path)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["derive", "CASE", "--target", "Frobnicate"], "expected one of"),
        (["derive", "CASE", "--strategy", "luck"], "best_first"),
        (["derive", "CASE", "--max-depth", "-1"], "found '-1'"),
        (["derive", "CASE", "--max-depth", "deep"], "found 'deep'"),
        (["derive", "CASE", "--max-depth", "³"], "found '³'"),
        (["derive", "CASE", "--budget", "0"], "positive number of seconds"),
        (["derive", "CASE", "--limit-seconds", "nan"], "positive number of seconds"),
        (["derive", "CASE", "--budget", "inf"], "positive number of seconds"),
        (["rules", "CASE", "--at", "7"], "path '7'"),
        (["rules", "CASE", "--at", "0.3"], "step 1 is 3"),
        (["rules", "CASE", "--at", "0.0"], "tensor A, not to a scope"),
        (["rules", "CASE", "--at", "top"], "path 'top'"),
        (["rules", "CASE", "--at", "top"], "or the name of an equation first: Y"),
        (["rules", "CASE", "--at", ""], "path ''"),
        (["rules", "CASE", "--at", " 0"], "path ' 0'"),
        (["derive", "CASE", "--threads", "2"], "--threads 2: expected with --device profile:FILE.sqlite"),
        (["derive", "CASE", "--save", "DIR/x", "--json", "DIR/x"], "x: is written here already, expected another"),
        (["derive", "CASE", "--save", "CASE"], "good.ein: is read here, expected another file to write"),
        (["check", "CASE", "--json", "CASE"], "good.ein: is read here"),
        (["show", "CASE", "--svg", "-"], "found - as a file to write, expected a name"),
        (["models", "write", "infogan", "-o", "-"], "found - as a file to write, expected a name"),
        (["optimize", "MODEL", "-o", "MODEL"], "good.onnx: is read here"),
        (["reproduce", "e4", "--model", "dcgan"], "--model: found with e4, expected with e1"),
        (["reproduce", "e1", "e2", "--max-depth", "3"], "--max-depth: found with e1 e2, expected with e4 e5 e6"),
        (["reproduce", "e1", "--results", "x.json"], "--results: found with e1, expected with --device cuda"),
        (["reproduce", "e1", "--device", "cuda", "--quick"], "--quick: found with --device cuda, expected with e1"),
        (["optimize", "MODEL", "--device", "cuda"], "CUDA"),
        (["optimize", "MODEL", "--device", "abacus"], "expected cpu"),
        (["optimize", "MODEL", "--shape", "x"], "NAME=1,3,224,224"),
        (["optimize", "MODEL", "--shape", "x=1,two"], "NAME=1,3,224,224"),
        (["optimize", "MODEL", "--shape", "=1,2"], "NAME=1,3,224,224"),
        (["optimize", "MODEL", "--shape", "q=1,4"], "q"),
        (["optimize", "MODEL", "--shape", "x=1,4,4"], "x"),
        (["optimize", "MODEL", "--shape", "x=0,4"], "x"),
        (["optimize", "MODEL", "--threads", "0"], "whole number from 1"),
        (["optimize", "MODEL", "--threads", "9999"], "9999 threads: expected at most"),
        (["path", "CASE", "CASE", "--width", "3in"], "--width: expected --latex"),
        (["optimize", "MODEL", "--budget", "-3"], "positive number of seconds"),
        (["bench", "MODEL", "--against", "abacus"], "'abacus'"),
        (["bench", "MODEL", "--rounds", "0"], "whole number from 1"),
        (["bench", "MODEL", "--device", "cuda"], "CUDA"),
        (["bench", "MODEL", "--against", "numpy"], "expected a case (.ein)"),
        (["models", "write", "alexnet", "-o", "DIR/a.onnx"], "infogan"),
        (["models", "write", "infogan", "--batch", "0", "-o", "DIR/a.onnx"], "whole number from 1"),
        (["models", "write", "infogan"], "-o"),
        (["lab", "DIR/none.ipynb"], "none.ipynb"),
        (["frobnicate"], "frobnicate"),
        ([], "COMMAND"),
        (["show", "DIR/none.ein"], "none.ein: No such file"),
        (["show", "DIR"], "Is a directory"),
        (["show", "MODEL"], "good.onnx: found an ONNX model, expected text"),
        (["show", "CASE", "--latex", "--text"], "not allowed"),
        (["check", "DIR/none.json"], "No such file"),
        (["check", "CASE"], "$: expected JSON; at line 1 column 1: "),
        (["optimize", "DIR/none.onnx"], "none.onnx"),
        (["optimize", "DIR"], "found a folder"),
        (["optimize", "CASE"], "not ONNX"),
    ],
)
def test_bad_usage_is_refused_in_one_line_and_writes_nothing(
    argv: list[str], expected: str, case: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(tmp_path)
    named = [a.replace("CASE", case).replace("MODEL", model).replace("DIR", str(tmp_path)) for a in argv]
    assert expected in refused(capsys, *named)
    assert files(tmp_path) == before


def test_missing_torch_is_reported(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is installed here")
    assert "found no Python package torch, expected it for the engine torch: pip install" in refused(
        capsys, "bench", model, "--against", "torch"
    )


WRITERS = [
    ["optimize", "MODEL", "-o", "OUT"],
    ["optimize", "MODEL", "--html", "OUT"],
    ["optimize", "MODEL", "--json", "OUT"],
    ["bench", "MODEL", "--json", "OUT"],
    ["derive", "CASE", "--save", "OUT"],
    ["derive", "CASE", "--json", "OUT"],
    ["rules", "CASE", "--json", "OUT"],
    ["show", "CASE", "--svg", "OUT"],
    ["show", "CASE", "--html", "OUT"],
    ["models", "write", "infogan", "-o", "OUT"],
]


@pytest.mark.parametrize("argv", WRITERS, ids=lambda argv: f"{argv[0]} {argv[-2]}")
@pytest.mark.parametrize("kind", ["no such folder", "a folder", "in a file"])
def test_unwritable_output_is_reported(
    kind: str,
    argv: list[str],
    case: str,
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Said before any work is done for it.
    monkeypatch.setattr(optimiser.Optimiser, "run", lambda self: pytest.fail("the work was begun"))
    out = {"no such folder": tmp_path / "none" / "out", "a folder": tmp_path, "in a file": Path(case) / "out"}[kind]
    before = files(tmp_path)
    named = [a.replace("CASE", case).replace("MODEL", model).replace("OUT", str(out)) for a in argv]
    said = refused(capsys, *named)
    why = {"no such folder": "No such file or directory", "a folder": "Is a directory", "in a file": "Not a directory"}
    assert why[kind] in said
    assert files(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file_is_reported(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(case).chmod(0)
    assert "Permission denied" in refused(capsys, "show", case)
    Path(case).chmod(stat.S_IRUSR)


def test_system_error_while_reading_is_reported(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(self: Path, *_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "read_text", denied)
    assert refused(capsys, "show", case) == f"error: {case}: Permission denied\n"


@pytest.mark.parametrize(
    "error", [RuntimeError("the\ncompiler failed"), KeyError("h"), ZeroDivisionError(), TypeError()]
)
def test_unexpected_error_is_one_line_that_names_debug(
    error: Exception, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(api, "text_of", fail)
    said = refused(capsys, "show", case)
    assert type(error).__name__ in said and "--debug" in said
    with pytest.raises(type(error)):
        main(["show", case, "--debug"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("argv", [["show", "CASE", "--svg"], ["show", "CASE", "--html"], ["rules", "CASE", "--json"]])
def test_full_device_is_reported_in_one_line(argv: list[str], case: str, capsys: pytest.CaptureFixture[str]) -> None:
    named = [a.replace("CASE", case) for a in argv]
    assert refused(capsys, *named, "/dev/full") == "error: /dev/full: No space left on device\n"
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@pytest.mark.parametrize("there", [None, "what was there before"])
def test_full_disk_leaves_the_output_unchanged(
    there: str | None, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "out.html"
    if there is not None:
        out.write_text(there)
    before = files(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    assert refused(capsys, "show", case, "--html", str(out)) == f"error: {out}: No space left on device\n"
    assert files(tmp_path) == before


def test_model_wider_than_its_shape_asks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = build(
        [node("MatMul", ["x", "w"], ["y"], "product")], {"x": [2, 3]}, ["y"], {"w": np.ones((4, 5), np.float32)}
    )
    path = tmp_path / "bad.onnx"
    path.write_bytes(proto.SerializeToString())
    assert "product" in refused(capsys, "optimize", str(path))


def test_sequence_model_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = helper.make_graph(
        [node("SequenceAt", ["s", "i"], ["y"], "pick")],
        "sequences",
        [helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor("i", onnx.TensorProto.INT64, [], [0])],
    )
    path = tmp_path / "bad.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path.write_bytes(made.SerializeToString())
    assert "s" in refused(capsys, "optimize", str(path), "--threads", "1")
