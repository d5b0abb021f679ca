"""Results files: measurements of another origin are never overwritten."""

from pathlib import Path

import pytest

from einnet_evaluation.results_file import ResultsFile


def test_results_of_every_origin_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "e1.json"
    for n in (1, 2, 3, 1):
        ResultsFile(path, {"options": n}).write([n])
    assert ResultsFile(path, {"options": 1}).load() == [1]
    beside = sorted(p.name for p in tmp_path.iterdir())
    assert beside == ["e1.json", "e1.other.json", "e1.other2.json", "e1.other3.json"]
    held = [ResultsFile(tmp_path / name, {"options": n}).load() for n, name in enumerate(beside[1:], 1)]
    assert held == [[1], [2], [3]]


@pytest.mark.parametrize("text", ["{", "[]", "somebody's notes"])
def test_foreign_results_file_is_renamed(text: str, tmp_path: Path) -> None:
    path = tmp_path / "e1.json"
    path.write_text(text)
    kept = ResultsFile(path, {})
    assert kept.load() == []
    kept.write([1])
    assert kept.load() == [1] and (tmp_path / "e1.other.json").read_text() == text
