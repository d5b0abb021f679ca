"""Commands: output, files, exit codes, and results that survive an interruption."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_building import build, node

import einnet_explore as ee
from einnet_explore.checker.record import Report, StepReport
from einnet_explore.cli import main
from einnet_explore.cli.output import format_table, write_json
from einnet_explore.equivalence.verdict import Certificate
from einnet_explore.support.wording import format_seconds

CASE = """
tensor A[1, 5, 6, 3] pad [0, 1, 1, 0]
tensor K[3, 3, 3, 4] weight
Y[n:1, h:5, w:6, f:4] = sum[c:3, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, c, f]
"""
LARGE = CASE.replace("5", "31").replace("6", "29").replace("4", "40")


@pytest.fixture
def case(tmp_path: Path) -> Path:
    path = tmp_path / "conv.ein"
    path.write_text(CASE)
    return path


@pytest.fixture
def record(case: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = case.with_name("record.json")
    argv = ["derive", str(case), "--target", "Matmul", "--max-depth", "5", "--budget", "20", "--save", str(path)]
    assert main([*argv, "--json", str(case.with_name("derive.json"))]) == 0
    capsys.readouterr()
    return path


def python(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=120, check=False, **options)


def loaded_by(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The modules that a Python with ``-X importtime`` said it loaded."""
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}


def test_help_and_bad_usage_load_no_library() -> None:
    # This is what makes them start at once; a bound on seconds would only measure the machine.
    heavy = ("numpy", "onnx", "onnxruntime", "tvm", "islpy", "lark", "networkx", "tqdm")
    shown = python("-X", "importtime", "-m", "einnet_explore", "--help")
    wrong = python("-X", "importtime", "-m", "einnet_explore", "derive", "x.ein", "--max-depth", "-1")
    assert (shown.returncode, wrong.returncode) == (0, 2)
    assert all(
        name in shown.stdout for name in ("lab", "show", "rules", "derive", "check", "optimize", "bench", "models")
    )
    for done in (shown, wrong):
        assert loaded_by(done).isdisjoint(heavy)


@pytest.mark.parametrize("argv", [["show"], ["show", "--latex"], ["rules"], ["check", "--modular"]])
def test_commands_without_kernels_load_no_compiler(argv: list[str], case: Path, record: Path) -> None:
    done = python("-X", "importtime", "-m", "einnet_explore", *argv, str(record if argv[0] == "check" else case))
    assert (done.returncode, loaded_by(done) & {"tvm", "torch", "tvm_ffi"}) == (0, set())


def test_missing_model_is_reported_without_loading_a_compiler(tmp_path: Path) -> None:
    done = python("-X", "importtime", "-m", "einnet_explore", "optimize", str(tmp_path / "none.onnx"))
    assert (done.returncode, done.stdout) == (2, "") and loaded_by(done).isdisjoint({"tvm", "torch", "onnxruntime"})
    assert f"error: {tmp_path / 'none.onnx'}: No such file or directory" in done.stderr.splitlines()


@pytest.mark.parametrize(("user", "given"), [(0, ["--allow-root"]), (1000, [])])
def test_lab_opens_for_root_too(user: int, given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    (tmp_path / "mine.ipynb").touch()
    asked: list[list[str]] = []

    def runs(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", runs)
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert main(["lab", str(tmp_path / "mine.ipynb")]) == 0
    assert asked == [[sys.executable, "-m", "jupyter", "lab", *given, str(tmp_path / "mine.ipynb")]]


def test_version_is_that_of_the_sources(capsys: pytest.CaptureFixture[str]) -> None:
    cited = re.search(r"^version: (.+)$", (Path(__file__).parent.parent / "CITATION.cff").read_text(), re.MULTILINE)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert cited and (ended.value.code, capsys.readouterr().out) == (0, f"einnet-explore {cited[1]}\n")


def test_verbs_are_not_hidden_by_packages_of_their_name() -> None:
    code = (
        "import einnet_explore as ee; import einnet_explore.pipeline.optimiser, einnet_explore.strategies.engine\n"
        "import einnet_explore.syntax.parser, einnet_explore.session.api\n"
        "print(*(callable(getattr(ee, name)) for name in ('graph', 'search', 'explore', 'text')))"
    )
    assert python("-c", code).stdout.split() == ["True"] * 4


def test_every_public_name_is_there() -> None:
    assert all(getattr(ee, name) is not None for name in ee.__all__)
    assert set(ee.__all__) <= set(dir(ee))
    with pytest.raises(AttributeError, match="frobnicate"):
        _ = ee.frobnicate


def test_derive_writes_the_json_of_the_interface(record: Path) -> None:
    said = json.loads(record.with_name("derive.json").read_text())
    assert set(said) == {
        "case", "target", "strategy", "max_depth", "seconds", "states", "unique", "pruned", "complete", "candidates",
        "best", "first_found",
    }  # fmt: skip
    assert (said["target"], said["strategy"], said["max_depth"]) == (["Matmul"], "best_first", 5)
    assert set(said["first_found"]) == {"seconds", "states"}
    for candidate in said["candidates"]:
        assert set(candidate) == {
            "operators", "eoperators", "depth", "estimated_seconds", "certificate", "steps"
        }  # fmt: skip
        assert candidate["certificate"] == "proved" and candidate["depth"] == len(candidate["steps"])
        assert all({"rule", "at", "params"} <= set(step) for step in candidate["steps"])
    best = said["candidates"][said["best"]]
    assert best["estimated_seconds"] == min(c["estimated_seconds"] for c in said["candidates"])
    names = [(o["name"], o["attributes"]) for c in said["candidates"] for o in c["operators"]]
    assert ("Matmul", {"b": 1, "m": 30, "n": 36, "k": 3}) in names


def test_unknown_option_is_refused_with_its_command_and_a_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    misspelt = "--bugdet 3; did you mean --budget? (see einnet-explore optimize --help)"
    surplus = "c.ein (see einnet-explore equal --help)"
    for argv, expected in (
        (["optimize", "m.onnx", "--bugdet", "3"], misspelt),
        (["equal", "a.ein", "b.ein", "c.ein"], surplus),
    ):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"error: unrecognized arguments: {expected}\n"


def test_derive_to_standard_output_prints_nothing_else(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["derive", str(case), "--max-depth", "1", "--json", "-"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["candidates"]
    assert said.err == ""


def test_derive_prints_a_table(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["derive", str(case), "--max-depth", "1"]) == 0
    said = capsys.readouterr()
    assert "certificate" in said.out and "the best:" in said.out and "candidates" in said.out
    assert said.err == ""


def test_derive_picks_the_candidate_with_a_call(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = case.with_name("picked.json")
    argv = ["derive", str(case), "--target", "Matmul", "--max-depth", "2", "--save", str(saved), "--pick"]
    assert main([*argv, "m=30,n=12"]) == 0 and "picked:\n" in capsys.readouterr().out
    assert " n=12," in json.loads(saved.read_text())["steps"][-1]["after"]
    saved.unlink()
    assert main([*argv, "Matmul,m=31"]) == 1 and not saved.exists()
    assert "--pick: no candidate calls Matmul(m=31), found Matmul(" in capsys.readouterr().err
    assert main([*argv[:2], "--pick", "m=30"]) == 2
    assert "--pick: found no operator and no single --target" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*argv, "m=x"])


def test_derive_reports_no_library_operator_if_none_matches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sum.ein"
    path.write_text("tensor A[4]\nY[i:4] = A[i] + 1\n")
    saved = tmp_path / "r.json"
    assert main(
        ["derive", str(path), "--target", "Matmul", "--max-depth", "2", "--json", "-", "--save", str(saved)]
    ) in (0, 1)
    said = json.loads(capsys.readouterr().out)
    assert not any(c["operators"] for c in said["candidates"])
    assert main(["derive", str(path), "--target", "Matmul", "--max-depth", "1"]) == 1


def test_a_record_with_one_exact_step_is_not_proved() -> None:
    proved, exact = Certificate("proved", "identical"), Certificate("exact", "evaluation", elements=4)

    def kind(whole: Certificate, *steps: Certificate) -> str:
        return Report("r", None, tuple(StepReport("rule", "0", None, step) for step in steps), whole).kind

    assert kind(exact, proved, exact) == "exact" and kind(exact, proved, proved) == "proved"
    assert kind(proved, proved, exact) == "proved"
    assert kind(exact, Certificate("unknown", "evaluation"), exact) == "unknown"
    assert kind(exact, Certificate("false", "evaluation"), exact) == "false"


def test_check_of_a_record_that_is_not_proved_has_its_own_exit_code(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("einnet_explore.checker.record.Report.kind", "exact")
    assert main(["check", str(record)]) == 3
    assert main(["check", str(record), "--require", "exact"]) == 0
    monkeypatch.setattr("einnet_explore.checker.record.Report.kind", "unknown")
    assert main(["check", str(record), "--require", "exact"]) == 3


def test_check_of_a_true_and_of_a_false_record(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(record)]) == 0
    assert "proved" in capsys.readouterr().out
    held = json.loads(record.read_text())
    held["start"] = held["start"].replace("h+r-1, s+w-1", "h+s-1, r+w-1")
    record.write_text(json.dumps(held))
    assert main(["check", str(record), "--json", "-"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False and "step 1" in said["counterexample"]


def test_check_of_several_records_has_the_exit_code_of_the_worst(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text(record.read_text().replace("h+r-1, s+w-1", "h+s-1, r+w-1", 1))
    assert main(["check", str(record), str(record)]) == 0
    said = capsys.readouterr().out
    assert said.count(f"{record}: proved") == 2 and said.startswith(f"{record}:\n1. ")
    assert main(["check", str(record), str(wrong), str(record), "--json", "-"]) == 1
    documents = json.loads(capsys.readouterr().out)
    assert [(each["record"], each["ok"]) for each in documents] == [
        (str(record), True),
        (str(wrong), False),
        (str(record), True),
    ]


@pytest.mark.parametrize("at", [[], ["--at", "0"], ["--at", "Y"]])
def test_rules_prints_matches_and_refusals(at: list[str], case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", str(case), *at, "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"summation_splitting", "operator_matching"} <= {m["rule"] for m in said["matches"]}
    refused = {r["rule"]: r["why"] for r in said["refused"]}
    assert "compute-bound" in refused["eoperator_generation"]
    assert not any("is missing" in why for why in refused.values())
    assert main(["rules", str(case), *at]) == 0
    printed = capsys.readouterr().out
    assert "refused because" in printed and "of further rules: bilinear_substitution" in printed
    assert main(["rules", str(case), *at, "--further", "--json", "-"]) == 0
    more = json.loads(capsys.readouterr().out)
    assert more["matches"][: len(said["matches"])] == said["matches"]
    assert "bilinear_substitution" in {m["rule"] for m in more["matches"]}
    assert "dead_equation" in {r["rule"] for r in more["refused"]} - refused.keys()


def test_show_prints_what_parses(case: Path, record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(case)]) == 0
    said = capsys.readouterr().out
    assert ee.parse(said) == ee.load(case) and not said.endswith("\n\n")
    assert main(["show", str(case), "--latex"]) == 0
    assert r"\sum" in capsys.readouterr().out
    assert main(["show", str(record)]) == 0
    assert capsys.readouterr().out.count("\n# ") == len(json.loads(record.read_text())["steps"])
    assert main(["show", str(record), "--latex"]) == 0
    assert capsys.readouterr().out.startswith(r"\begin{align")


@pytest.mark.parametrize("name", ["record", "record.ein", "record.eins", "record.einx", "record.txt"])
def test_saved_json_is_recognised_by_content_not_by_name(
    name: str, record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``derive --save`` takes any name, so what was saved is read by any name."""
    other = record.with_name(name)
    other.write_text(record.read_text())
    assert ee.load(other) == ee.load(record)
    assert ee.Session.load(other.rename(other.with_suffix(".json"))).derivation == ee.load(record)
    session = ee.Session(ee.load(record).start)
    session.save(record.with_name("x.eins"))
    session = ee.load(record.with_name("x.eins").rename(record.with_name("x.json")))
    assert isinstance(session, ee.Session)


def test_record_with_a_wrong_path_is_reported_with_its_step(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = json.loads(record.read_text())
    held["steps"][0]["at"] = "7"
    record.write_text(json.dumps(held))
    assert main(["show", str(record)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {record}: $.steps[0]: ")


def test_show_writes_svg_and_html(case: Path, record: Path, tmp_path: Path) -> None:
    drawn, paged = tmp_path / "x.svg", tmp_path / "x.html"
    for path in (case, record):
        assert main(["show", str(path), "--svg", str(drawn)]) == 0
        assert main(["show", str(path), "--html", str(paged)]) == 0
        assert (drawn.read_text().startswith("<svg") and "Matmul" in drawn.read_text()) or path == case
        page = paged.read_text()
        assert "<script" not in page and "http://" not in page.replace("http://www.w3.org", "")
    assert page.count("class='proved'") == len(json.loads(record.read_text())["steps"])
    pictures = ElementTree.parse(drawn).getroot().findall("{http://www.w3.org/2000/svg}svg")
    first, second = ("".join(picture.itertext()) for picture in pictures)
    assert f"{record.stem}: start" in first and "Matmul" not in first
    assert f"{record.stem}: end" in second and "Matmul" in second
    assert pictures[0].get("x") == "0" != pictures[1].get("x")


def test_models_are_listed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    assert "infogan" in capsys.readouterr().out
    path = tmp_path / "g.onnx"
    assert main(["models", "write", "infogan", "--batch", "2", "-o", str(path)]) == 0
    onnx.checker.check_model(onnx.load(path))
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_output_through_a_link_keeps_the_link(case: Path, tmp_path: Path) -> None:
    real, link = tmp_path / "real.svg", tmp_path / "link.svg"
    real.write_text("old")
    link.symlink_to(real)
    assert main(["show", str(case), "--svg", str(link)]) == 0
    assert link.is_symlink() and real.read_text().startswith("<svg")


def test_closed_pipe_is_no_error(case: Path) -> None:
    made = subprocess.Popen(
        [sys.executable, "-m", "einnet_explore", "rules", str(case)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert made.stdout is not None and made.stderr is not None
    made.stdout.close()
    assert made.stderr.read() == b""
    assert made.wait(60) == 0
    made.stderr.close()


def test_exit_code_is_kept_if_the_pipe_is_closed(record: Path) -> None:
    """``check … | true`` under ``pipefail``."""
    held = json.loads(record.read_text())
    held["start"] = held["start"].replace("h+r-1, s+w-1", "h+s-1, r+w-1")
    record.write_text(json.dumps(held))
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "einnet_explore", "check", str(record)]
    made = subprocess.Popen(command, stdout=subprocess.PIPE, env=buffered)
    assert made.stdout is not None
    made.stdout.close()
    assert made.wait(60) == 1


def test_gradients_and_stash_are_printed_in_latex(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grad", str(case), "--stash"]) == 0
    assert "tensor d_Y" in (plain := capsys.readouterr().out) and r"\sum" not in plain
    assert main(["grad", str(case), "--stash", "--latex"]) == 0
    assert "tensor d_Y" not in (shown := capsys.readouterr().out) and r"\sum" in shown
    assert plain.split("# backward")[1].split("\n\n")[1:] == shown.split("# backward")[1].split("\n\n")[1:]


def test_file_names_that_are_no_utf8_are_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = tmp_path / os.fsdecode(b"b\xff.ein")
    case.write_text(CASE)
    saved, said = tmp_path / "r.json", tmp_path / "d.json"
    assert main(["derive", str(case), "--max-depth", "0", "--save", str(saved), "--json", str(said)]) == 0
    assert json.loads(saved.read_text())["case"] == json.loads(said.read_text())["case"] == str(case)
    assert ee.load(saved).start == ee.load(case)
    for form in ("--svg", "--html"):
        assert main(["show", str(case), form, str(tmp_path / "x")]) == 0
    capsys.readouterr()
    assert main(["derive", str(case), "--max-depth", "0", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["case"] == str(case)


def test_unprintable_characters_do_not_fail_a_command(case: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = python("-m", "einnet_explore", "rules", str(case), env=environment)
    assert (done.returncode, done.stderr) == (0, "") and "\\u" in done.stdout


def test_nothing_found_and_nothing_refused(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["derive", str(case), "--limit-states", "1"]) == 1
    assert capsys.readouterr().out.endswith("\nno candidate was found\n")


def test_numbers_that_are_not_finite_are_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    write_json("-", {"a": float("inf"), "b": [float("nan"), 1.5], "c": ("x", None)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": ["x", None]}


def test_tables_and_durations_are_formatted() -> None:
    assert format_table([["name", "n"], ["a", 1], ["bcd", 22]]) == "name   n\na      1\nbcd   22"
    assert [format_seconds(s) for s in (2, 0.0315, 4.5e-6, 8e-9)] == ["2 s", "31.5 ms", "4.5 µs", "8 ns"]


# A test run in the background inherits that Ctrl-C is ignored; a command on a terminal does not.
DERIVE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from einnet_explore.cli import main
from einnet_explore.session.run import Run
note = Run._record
def noted(self, event):
    note(self, event)
    if self.first_found is not None:
        print("now", file=sys.stderr, flush=True)
Run._record = noted
sys.exit(main(sys.argv[1:]))
"""

OPTIMIZE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from einnet_explore.cli import main
from einnet_explore.pipeline.optimiser import Optimiser
run = Optimiser.run
def noted(self):
    for step in run(self):
        print("now", file=sys.stderr, flush=True)
        yield step
Optimiser.run = noted
sys.exit(main(sys.argv[1:]))
"""


def interrupted(driver: str, *argv: str) -> tuple[str, str]:
    """Return the output of *argv* when Ctrl-C comes right after the driver's first note."""
    made = subprocess.Popen(
        [sys.executable, "-c", driver, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert made.stderr is not None
    seen = ""
    while "now" not in seen:
        line = made.stderr.readline()
        assert line, seen
        seen += line
    made.send_signal(signal.SIGINT)
    out, err = made.communicate(timeout=120)
    assert made.returncode == 130, err
    assert "Traceback" not in err
    return out, err


def test_interrupted_derive_keeps_what_it_found(tmp_path: Path) -> None:
    path, saved = tmp_path / "large.ein", tmp_path / "r.json"
    path.write_text(LARGE)
    out, err = interrupted(DERIVE, "derive", str(path), "--json", "-", "--save", str(saved))
    assert "interrupted: " in err and f"saved {saved}" in err
    said = json.loads(out)
    assert said["complete"] is False and said["candidates"] and said["first_found"] is not None
    assert main(["check", str(saved)]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["large.ein", "r.json"]


def chain() -> onnx.ModelProto:
    """Three convolutions of different shapes, with activations between them."""
    rng = np.random.default_rng(0)
    sizes = [(5, 3), (6, 5), (7, 6)]
    weights = {f"w{n}": rng.standard_normal((*s, 3, 3)).astype(np.float32) for n, s in enumerate(sizes)}
    nodes = []
    for n in range(3):
        nodes.append(node("Conv", [f"x{n}", f"w{n}"], [f"c{n}"], pads=[1, 1, 1, 1]))
        nodes.append(node("Relu", [f"c{n}"], [f"x{n + 1}"]))
    return build(nodes, {"x0": [1, 3, 24, 24]}, ["x3"], weights)


def test_interrupted_optimize_keeps_what_it_found(tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "fast.onnx"
    path.write_bytes(chain().SerializeToString())
    printed, err = interrupted(OPTIMIZE, "optimize", str(path), "--threads", "1", "-o", str(out), "--json", "-")
    said = json.loads(printed)
    assert "interrupted after" in err and f"saved {out}" in err
    assert said["interrupted"] is True and 1 <= len(said["subprograms"]) < 3
    assert said["max_rel_error"] <= 1e-4
    x = {"x0": np.random.default_rng(1).standard_normal((1, 3, 24, 24)).astype(np.float32)}
    before, after = (
        onnxruntime.InferenceSession(str(p), providers=["CPUExecutionProvider"]).run(None, x)[0] for p in (path, out)
    )
    np.testing.assert_allclose(after, before, atol=1e-4 * float(np.abs(before).max()))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fast.onnx", "m.onnx"]


def test_interrupt_while_writing_leaves_no_file(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ctrl_c(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", ctrl_c)
    assert main(["show", str(case), "--html", str(tmp_path / "x.html")]) == 130
    assert capsys.readouterr().err == "interrupted: nothing more was written\n"
    assert [p.name for p in tmp_path.iterdir()] == ["conv.ein"]


def test_write_beyond_the_file_size_limit_leaves_no_file(tmp_path: Path) -> None:
    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    out = tmp_path / "g.onnx"
    done = python("-m", "einnet_explore", "models", "write", "infogan", "-o", str(out), preexec_fn=small)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {out}: File too large\n"
    assert list(tmp_path.iterdir()) == []
