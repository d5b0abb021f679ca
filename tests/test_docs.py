"""What the pages tell readers to type works as it is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from einnet_explore.render import text
from einnet_explore.text import TextError, parse
from tests.lab_kit import ROOT, kernel_environment

README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXT_FORM = (ROOT / "docs" / "text-form.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of *language* in *page*."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(240)
def test_the_tour_of_three_minutes(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "einnet-explore"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m einnet_explore "$@"\n')
    command.chmod(0o755)
    environment = kernel_environment()
    environment["PATH"] = os.pathsep.join((str(command.parent), environment["PATH"]))
    said = ""
    for script in blocks(README, "sh tour"):
        shorter = script.replace("--budget 20", "--budget 8")  # the reader's patience is longer than a test's
        done = subprocess.run(
            ["sh", "-e", "-c", shorter], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        said += done.stdout
    for expected in (r"\mathop{\mathbf{L}}", "summation_splitting", "Matmul(", "conv.json: proved", "largest error"):
        assert expected in said
    (script,) = blocks(README, "python tour")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "session.apply('operator_matching'" in done.stdout
    made = {"conv.ein", "conv.json", "conv.svg", "conv.html", "infogan.onnx", "fast.onnx", "by_hand.json"}
    assert made <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("source", blocks(TEXT_FORM, "ein"))
def test_examples_of_the_text_form(source: str) -> None:
    program = parse(source)
    assert parse(text(program)) == program


def test_the_error_that_the_text_form_shows() -> None:
    wrong = blocks(TEXT_FORM, "ein")[0].replace("h+r-1", "h+r")
    with pytest.raises(TextError) as raised:
        parse(wrong, "conv.ein")
    assert [f"{raised.value}\n"] == blocks(TEXT_FORM, "text")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_somewhere(page: str) -> None:
    source = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", source.read_text(encoding="utf-8")):
        assert (source.parent / target).exists(), f"{page}: {target}"


def test_decisions_are_listed() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        number, title = path.read_text(encoding="utf-8").split("\n")[0][2:].split(" ", 1)
        assert f"| [{number}]({path.name}) | {title} |" in index
