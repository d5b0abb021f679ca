"""Commands and examples on the pages of the documentation work as written, and docstrings are complete."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import json
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_building import build, node

import einnet_explore as ee
from einnet_evaluation import end_to_end, operator_cases, searches
from einnet_explore.cli import command_parser, main
from einnet_explore.pipeline.gpu_optimiser import MAX_PARTS_BUDGET_SECONDS, PART_BUDGET_SECONDS
from einnet_explore.pipeline.optimised import Optimised
from einnet_explore.pipeline.optimiser import MAX_BUDGET_SECONDS, MIN_BUDGET_SECONDS, TASK_BUDGET_SECONDS
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.session.run import Run
from einnet_explore.strategies.options import Options
from einnet_explore.syntax import RESERVED, TextError, parse, text
from tests.lab_kit import ROOT, kernel_environment

README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_STEPS = (ROOT / "docs" / "first-steps.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
TEXT_FORM = (ROOT / "docs" / "text-form.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of *language* in *page*."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(240)
def test_commands_and_python_of_the_tour_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, since importing takes longer than most of the commands."""
    monkeypatch.chdir(tmp_path)
    for script in blocks(FIRST_STEPS, "sh tour"):
        ours = [line for line in script.splitlines() if line.startswith("einnet-explore ")]
        others = [line for line in script.splitlines() if line not in ours]
        subprocess.run(["sh", "-e", "-c", "\n".join(others)], check=True)
        for line in ours:
            # The reader's patience is longer than a test's.
            shorter = line.replace("--threads 1", "--threads 1 --budget 2")
            assert main(shlex.split(shorter, comments=True)[1:]) == 0, line
    said = capsys.readouterr().out
    for expected in (r"\mathop{\mathbf{L}}", "summation_splitting", "Matmul(", "conv.json: proved"):
        assert expected in said
    assert "largest error" in said or "nothing gained" in said  # on a busy machine, in so short a time
    for script in blocks(FIRST_STEPS, "python tour"):
        exec(script.replace("threads=1", "threads=1, budget=2"), {})
    assert "session.apply('operator_matching'" in capsys.readouterr().out
    made = {"conv.ein", "conv.json", "conv.svg", "conv.html", "infogan.onnx", "fast.onnx", "by_hand.json"}
    assert made <= {path.name for path in tmp_path.iterdir()}


def test_the_example_of_the_readme_prints_its_output() -> None:
    (script,) = blocks(README, "python output")
    done = subprocess.run(
        [sys.executable, "-c", script], env=kernel_environment(), capture_output=True, text=True, check=True
    )
    assert [done.stdout] == blocks(README, "text output")


EXAMPLES = [
    path for path in sorted((ROOT / "einnet_explore").rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")
]


def public_functions() -> Iterable[tuple[str, Callable[..., object]]]:
    """The functions of ``ee``, its operators and figures, and the methods and properties of its main classes."""
    for name in ee.__all__:
        yield name, getattr(ee, name)
    for module in (ee.ops, ee.figures):
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__:
                yield f"{module.__name__}.{name}", value
    for kind in (
        ee.Session,
        Run,
        Optimised,
        ee.GpuPlan,
        ee.Verdict,
        ee.Certificate,
        ee.Exercise,
        ee.Quiz,
        ee.TextTable,
    ):
        for name, value in inspect.getmembers(kind):
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}", value.fget if isinstance(value, property) else value


def test_public_docstrings_name_every_argument_and_error() -> None:
    missing = []
    for name, value in public_functions():
        function = inspect.unwrap(value)
        if not inspect.isfunction(function):
            continue
        words = set(re.findall(r"\w+", inspect.getdoc(function) or ""))
        raised = {
            node.exc.func.id
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
        }
        arguments = inspect.signature(function).parameters.keys() - {"self"}
        errors = {error for error in raised if error[0].isupper()}
        missing += [f"{name}: {word}" for word in sorted((arguments | errors) - words)]
        missing += [] if words else [name]
    assert not missing


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_of_docstrings_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    failed, tried = doctest.testmod(importlib.import_module(name), extraglobs={"ee": ee, "np": np})
    assert tried and not failed


@pytest.mark.parametrize("source", blocks(TEXT_FORM, "ein"))
def test_examples_of_the_text_form(source: str) -> None:
    program = parse(source)
    assert parse(text(program)) == program


def test_the_error_that_the_text_form_shows() -> None:
    wrong = blocks(TEXT_FORM, "ein")[0].replace("h+r-1", "h+r")
    with pytest.raises(TextError) as raised:
        parse(wrong, "conv.ein")
    assert [f"{raised.value}\n"] == blocks(TEXT_FORM, "text")


def test_the_reserved_words_that_the_text_form_lists() -> None:
    (said,) = re.findall(r"^Reserved words .*`(.*)`", TEXT_FORM, re.MULTILINE)
    assert sorted(said.split()) == sorted(RESERVED)


def table(head: str) -> dict[str, str]:
    """The last column of the table of commands that begins with *head*, by the first."""
    rows = COMMANDS.split(f"| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [row.strip("| ").split(" |") for row in rows]
    return {first.strip("` "): rest[-1].strip() for first, *rest in cells}


def listed(cell: str) -> set[str]:
    """The keys that *cell* lists: what stands in parentheses stands inside them."""
    return set(re.findall(r"`(\w+)`", re.sub(r" \([^)]*\)", "", cell)))


CONV = """
tensor A[5, 6, 3]
tensor B[3, 4]
Y[m:5, n:6, f:4] = sum[c:3] A[m, n, c] * B[c, f]
"""
FAMILY = """
param H >= 3
tensor A[H, 4]
tensor B[4, 8]
Y[m:H, f:8] = sum[c:4] A[m, c] * B[c, f]
"""
ASKED = {
    "derive": ["conv.ein", "--target", "Matmul", "--max-depth", "2", "--save", "record.json"],
    "sweep": ["conv.ein", "--max-depth", "1"],
    "rules": ["conv.ein"],
    "check": ["record.json", "--modular"],
    "optimize": ["model.onnx", "--threads", "1", "--budget", "0.001"],
    "bench": ["conv.ein", "--against", "numpy", "--rounds", "1", "--threads", "1", "--budget", "0.2"],
    "grad": ["conv.ein", "--stash"],
    "family": ["family.ein", "--at", "H=5"],
}


def test_json_has_the_keys_that_the_page_of_commands_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conv.ein").write_text(CONV)
    Path("family.ein").write_text(FAMILY)
    onnx.save(build([node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["y"])], {"x": (3, 4)}, ["y"]), "model.onnx")
    said: dict[str, Any] = {}
    for command, argv in ASKED.items():
        assert main([command, *argv, "--json", "said.json"]) == 0
        said[command] = json.loads(Path("said.json").read_text())
    commands, inside = table("command"), table("element")
    assert {name: listed(commands[name].partition(": ")[0]) for name in ASKED} == {n: set(d) for n, d in said.items()}
    (measured,), (found, *_) = said["bench"]["cases"], said["derive"]["candidates"]
    parts = {
        "one of `candidates": found,
        "first_found": said["derive"]["first_found"],
        "one of the `steps` of `check": said["check"]["steps"][0],
        "whole": said["check"]["whole"],
        "second_opinion": said["check"]["second_opinion"],
        "export": said["optimize"]["export"],
        "one of the `cases` of `bench": measured,
        "stash` of `grad": said["grad"]["stash"],
        "one of the `steps` of `family": said["family"]["steps"][0],
        "instance` of `family": said["family"]["instance"],
    }
    for name, document in parts.items():
        (row,) = [cell for first, cell in inside.items() if first.startswith(name)]
        assert listed(row) == set(document), name
    assert said["sweep"]["reports"][0].keys() == said["derive"].keys()


def shown(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the output of ``--help`` of *command* on one line."""
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit):
        command_parser().parse_args([command, "--help"])
    return " ".join(capsys.readouterr().out.split())


def test_help_names_the_actual_defaults(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The arguments load no library, so they cannot take these from where they stand."""
    said = {name: shown(name, monkeypatch, capsys) for name in ("derive", "optimize", "bench", "reproduce")}
    assert f"levels of the search (default: {Options().max_depth})" in said["derive"]
    assert f"({Options().strategy}, the default)" in said["derive"]
    least, most = MIN_BUDGET_SECONDS, MAX_BUDGET_SECONDS
    said_budget = f"{TASK_BUDGET_SECONDS:g} s for each different subprogram, at least {least:g} and at most {most:g} s"
    said_budget += f"; on a GPU {PART_BUDGET_SECONDS:g} s and at most {MAX_PARTS_BUDGET_SECONDS:g} s"
    assert f"time of tuning, after which no task is begun (default: {said_budget})" in said["optimize"]
    assert f"the time limit of the search (default: {Settings(1).seconds:g} s)" in said["bench"]
    operators, whole, search = operator_cases.operator_effort(), end_to_end.EndToEndEffort(), searches.SearchEffort()
    assert (whole.threads, whole.batches, operators.threads) == ((1, 2), (1, 16), 1)
    assert "(default: 1 and then 2 for e1, 1 for e2 and e3)" in said["reproduce"]
    assert "e1: batch size (default: 1 and 16)" in said["reproduce"]
    assert f"(default: {operators.search:g} for e2 and e3, {search.limit:g} for e4 to e6)" in said["reproduce"]
    assert f"e4 to e6: levels of the searches (default: {search.max_depth})" in said["reproduce"]
    assert "the --budget of each model (default: that of optimize)" in said["reproduce"]


PAGES = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")) if "generated" not in p.parts),
]


@pytest.mark.parametrize("page", PAGES)
def test_links_of_pages_exist(page: str) -> None:
    source = ROOT / page
    words = re.sub(r"`[^`\n]*`", "", source.read_text(encoding="utf-8"))  # code may look like a link
    for target in re.findall(r"\]\(([^)#]+)\)", words):
        assert (source.parent / target).exists(), f"{page}: {target}"


def test_decisions_are_listed() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        number, title = path.read_text(encoding="utf-8").split("\n")[0][2:].split(" ", 1)
        assert f"| [{number}]({path.name}) | {title} |" in index


def test_functions_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_/]+\.py)(?::(\w+))?`", page)
    assert len(named) > 30
    for file, name in named:
        path = next((found for top in ("einnet_explore", ".") if (found := ROOT / top / file).exists()), None)
        assert path is not None or (ROOT / "notebooks" / file).exists(), file
        if name and path is not None:
            assert re.search(rf"^(class|def) {name}\b|^{name}\b.*=", path.read_text(encoding="utf-8"), re.M), (
                file,
                name,
            )


@pytest.mark.parametrize("page", PAGES)
def test_files_that_pages_name_exist(page: str) -> None:
    words = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.\w+)?)`", words)
    roots = (ROOT / "einnet_explore", ROOT / "einnet_evaluation", ROOT)
    assert [file for file in named if not any((root / file).exists() for root in roots)] == []


def test_the_drawing_of_the_packages_is_generated() -> None:
    spec = importlib.util.spec_from_file_location("packages", ROOT / "docs" / "packages.py")
    assert spec is not None and spec.loader is not None
    packages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(packages)
    assert (ROOT / "docs" / "packages.svg").read_text(encoding="utf-8") == packages.drawing()


def test_every_rule_has_a_page_with_a_proved_step_and_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    generated = importlib.import_module("generated")
    for rule in generated.PAGED_RULES:
        page = generated.rule_page(rule)
        assert "Certificate: **proved**" in page and "Refused: " in page, rule.name
