"""The house rules that no linter knows: what is pinned, what is named, and which numbers may stand where."""

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "einnet_explore"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text().splitlines()

SHAPES = {7, 14, 28, 56, 112, 224, 512, 4608}
SHAPELESS = ("onnx_export", "onnx_import", "operators", "pipeline", "rules", "strategies")
BANNED = re.compile(r"range_?op|mem_?bound", re.IGNORECASE)
# Character classes keep the pattern from finding itself.
REGISTRY = re.compile(
    r"p[y]pi\.org|python[h]osted\.org|n[p]mjs\.(org|com)|yarn[p]kg\.com|deb[i]an\.org|ana[c]onda\.org"
)
HOME_PATH = re.compile(r"(?<![\w.$}*-])/(work|root|farm|home|Users)/")


def canonical(requirement: str) -> str:
    """`Foo_bar>=1; marker` → `foo-bar`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", requirement.strip(), maxsplit=1)[0]).lower()


def declared() -> set[str]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return {canonical(requirement) for group in groups for requirement in group}


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ENGINE / package).rglob("*.py"))


def committed() -> list[Path]:
    """Tracked files and those that would be added."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [path for name in names if name and (path := ROOT / name).is_file()]


def shape_constants(source: str) -> list[str]:
    """Numbers outside strings and comments that are extents of some layer; a depth of search is none."""
    return [
        f"{token.start[0]}: {token.line.strip()}"
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.NUMBER
        and token.string.replace("_", "").isdigit()
        and int(token.string) in SHAPES
        and "depth" not in token.line
    ]


def test_environment_names_nothing_that_the_project_lacks() -> None:
    items = re.findall(r"^\s+- (?!pip:$)(.+)$", (ROOT / "environment.yml").read_text(), re.MULTILINE)
    named = {canonical(item) for item in items if not item.startswith("-e .")}
    assert "-e .[all]" in items
    assert named - {"conda-forge", "pip", "python"} <= declared()


def test_lock_holds_versions_and_no_addresses() -> None:
    assert [line for line in LOCK if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line)] == []


def test_lock_covers_what_is_declared() -> None:
    aside = [r for extra in ("cuda", "torch") for r in PROJECT["optional-dependencies"][extra]]  # not part of `all`
    unlocked = {canonical(requirement) for requirement in aside} | {"einnet-explore"}
    assert declared() - unlocked <= {canonical(line) for line in LOCK}


def test_no_shape_is_a_constant() -> None:
    found = {str(path.relative_to(ROOT)): shape_constants(path.read_text()) for path in sources(*SHAPELESS)}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_shape_constant_would_be_seen() -> None:
    source = '"""7 by 7"""\nrows = 7  # 14\nmax_depth = 7\nwide = 0x10 + 1.5 + 4_608\n'
    assert shape_constants(source) == ["2: rows = 7  # 14", "4: wide = 0x10 + 1.5 + 4_608"]


def test_no_file_names_a_registry_or_somebodys_directory() -> None:
    found = []
    for path in committed():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        hits = [match.group() for pattern in (REGISTRY, HOME_PATH) for match in pattern.finditer(text)]
        found += [f"{path.relative_to(ROOT)}: {hit}" for hit in hits]
    assert found == []


def test_definitions_use_the_papers_words() -> None:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [(path, node) for path in sources(".") for node in ast.walk(ast.parse(path.read_text()))]
    assert [f"{p.name}: {n.name}" for p, n in nodes if isinstance(n, kinds) and BANNED.search(n.name)] == []
