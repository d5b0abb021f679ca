"""Project rules that no linter checks: pinned dependencies, names of the paper, no shape constants in rules."""

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
    """Return tracked files and untracked files that git does not ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [path for name in names if name and (path := ROOT / name).is_file()]


def shape_constants(source: str) -> list[str]:
    """Return numbers outside strings and comments that are common layer extents; search depths are excluded."""
    return [
        f"{token.start[0]}: {token.line.strip()}"
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.NUMBER
        and token.string.replace("_", "").isdigit()
        and int(token.string) in SHAPES
        and "depth" not in token.line
    ]


def test_environment_has_only_declared_dependencies() -> None:
    items = re.findall(r"^\s+- (?!pip:$)(.+)$", (ROOT / "environment.yml").read_text(), re.MULTILINE)
    named = {canonical(item) for item in items if not item.startswith("-e .")}
    assert "-e .[all]" in items
    assert named - {"conda-forge", "pip", "python"} <= declared()


def test_lock_file_has_versions_and_no_addresses() -> None:
    line_form = r'[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+(; python_version < "3\.\d+")?'
    assert [line for line in LOCK if not re.fullmatch(line_form, line)] == []


def test_lock_file_covers_declared_dependencies() -> None:
    extras = PROJECT["optional-dependencies"]
    aside = [r for extra in ("cuda", "openvino", "rivals", "torch", "zoo") for r in extras[extra]]  # not part of `all`
    unlocked = {canonical(requirement) for requirement in aside} | {"einnet-explore"}
    assert declared() - unlocked <= {canonical(line) for line in LOCK}


def test_rules_have_no_shape_constants() -> None:
    found = {str(path.relative_to(ROOT)): shape_constants(path.read_text()) for path in sources(*SHAPELESS)}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_shape_constant_is_found() -> None:
    source = '"""7 by 7"""\nrows = 7  # 14\nmax_depth = 7\nwide = 0x10 + 1.5 + 4_608\n'
    assert shape_constants(source) == ["2: rows = 7  # 14", "4: wide = 0x10 + 1.5 + 4_608"]


def test_no_file_contains_a_registry_address_or_home_path() -> None:
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
    defined = re.compile(r"^ *(?:class|def|async def) (\w+)", re.MULTILINE)
    names = [(path.name, name) for path in sources(".") for name in defined.findall(path.read_text(encoding="utf-8"))]
    assert len(names) > 5_000
    assert [each for each in names if BANNED.search(each[1])] == []
