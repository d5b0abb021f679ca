"""What someone tries who wants a wrong step believed, or this machine kept busy: each was tried once, and worked."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import einnet_explore as ee
from einnet_check import certificate, terms
from einnet_check.__main__ import main
from einnet_check.record import EXPONENTIAL
from einnet_check.terms import ROUNDED
from einnet_check.text import ROW
from einnet_explore.backends import compiled
from einnet_explore.backends.store import Key, Store
from einnet_explore.checker import RecordError, check_file, check_record
from einnet_explore.text import TextError, parse

ROOT = Path(__file__).resolve().parents[1]


def record_of(*texts: str, rule: str = "any", at: str = "0") -> dict[str, Any]:
    steps = [{"rule": rule, "at": at, "params": {}, "after": after} for after in texts[1:]]
    return {"format": "einnet-explore record", "version": 1, "start": texts[0], "steps": steps}


A = "tensor A[4]\n"
MASKED = f"{A}T[i:4] = where(i < 3, -inf, A[i])\n"
ALL = "{[] max[j:4] -inf}[]"
FORGED = {
    "an output that was an input": (
        f"{A}tensor B[4]\nY[i:4] = A[i]\noutput Y, B", f"{A}B[i:4] = 2*A[i]\nY[i:4] = A[i]\noutput Y, B"
    ),
    "so small that it is 0 as a float": (f"{A}Y[i:4] = 1e-400*A[i]", f"{A}Y[i:4] = 1e-420*A[i]"),
    "0 · ∞": (f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i] + 0*inf"),
    "0 · ∞, in a function": (f"{A}Y[i:4] = relu(A[i])", f"{A}Y[i:4] = relu(A[i] + 0*inf)"),
    "0 · ∞, in a maximum": (f"{A}Y[i:4] = max[j:4] 0", f"{A}Y[i:4] = max[j:4] 0*inf"),
    "0 · the maximum of nothing": (f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i] + 0*{ALL}"),
    "-∞ less -∞": (f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i] + {ALL} - {ALL}"),
    "-∞ less -∞, in two scopes": (f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i] + {{[] 1*{ALL}}}[] - {ALL}"),
    "-∞ less -∞, of a result": (f"{MASKED}Y[i:4] = A[i]\noutput T, Y", f"{MASKED}Y[i:4] = A[i]+T[i]-T[i]\noutput T, Y"),
    "-∞ less -∞, of a result of a result": (
        f"{MASKED}U[i:4] = 2*T[i]\nY[i:4] = A[i]\noutput U, Y",
        f"{MASKED}U[i:4] = 2*T[i]\nY[i:4] = A[i]+U[i]-U[i]\noutput U, Y",
    ),
    "∞ - ∞, in a maximum": (f"{A}Y[i:4] = max[j:4] -inf", f"{A}Y[i:4] = {{[i:4] max[j:4] -inf}}[i] + inf"),
    "exp(T) exp(-T), T a result that is infinite": (
        f"{MASKED}Y[i:4] = exp(A[i])\noutput T, Y", f"{MASKED}Y[i:4] = exp(A[i]-T[i])*exp(T[i])\noutput T, Y"
    ),
    "0 · 1/0": (f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i] + 0*(1/0)"),
    "larger than any float": (f"{A}Y[i:4] = 1e999*A[i]", f"{A}Y[i:4] = 1e998*A[i]"),
    "a view of a turned view": (
        "tensor A[4, 3]\ntensor B[4, 4]\nV[i:3, j:4] = A[j, i]\nW[i:3, j:4] = V[i, j]\n"
        "Y[m:3, n:4] = sum[k:4] W[m, k]*B[k, n]",
        "tensor A[4, 3]\ntensor B[4, 4]\nV[i:3, j:4] = A[j, i] via View\nW[i:3, j:4] = V[i, j] via View\n"
        "Y[m:3, n:4] = sum[k:4] W[m, k]*B[k, n] via Matmul(m=3, n=4, k=4)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_step_is_not_believed(name: str) -> None:
    before, after = FORGED[name]
    assert certificate(record_of(before, before))["kind"] == "proved"
    assert certificate(record_of(before, after))["kind"] == "unproved"
    assert certificate(record_of(after, before))["kind"] == "unproved"


def test_infinite_results_that_stay_where_they_are_are_proved() -> None:
    before = f"{MASKED}M[] = max[i:4] T[i]\nY[i:4] = exp(T[i] - M[])"
    after = f"{MASKED}Y[i:4] = exp(T[i] - {{[] max[j:4] T[3-j]}}[])"
    found = certificate(record_of(before, after))
    assert (found["kind"], found["axioms"]) == ("proved", []), found


ROUNDING = (
    f"{A}T[i:4] = A[i]\nY[i:4] = 1e12*T[i] - 1e12*A[i]",
    f"{A}T[i:4] = 1.000000000004*A[i]\nY[i:4] = 1e12*T[i] - 1e12*A[i]",
    f"{A}Y[i:4] = 1e12*(1.000000000004*A[i]) - 1e12*A[i]",
    f"{A}Y[i:4] = 4*A[i]",
)
"""From 0 to 4 A in steps of which each changes a constant by less than 1e-11."""


def test_what_rounding_is_needed_for_is_said() -> None:
    found = certificate(record_of(*ROUNDING))
    assert found["axioms"] == [ROUNDED] != [EXPONENTIAL]
    assert certificate(record_of(ROUNDING[0], ROUNDING[3]))["kind"] == "unproved"
    thirds = [f"{A}Y[i:4] = {third}*A[i]" for third in ("(1/3)", "0.3333333333333333", "0.333333333333")]
    assert certificate(record_of(*thirds[:2]))["axioms"] == [ROUNDED]
    assert certificate(record_of(thirds[0], f"{A}Y[i:4] = A[i]/3"))["axioms"] == []


def doubled(name: str, levels: int) -> str:
    results = "".join(f"{name}{n + 1}[i:4] = {name}{n}[i] + {name}{n}[i]\n" for n in range(levels))
    return f"{A}{name}0[i:4] = A[i]\n{results}Y[i:4] = {name}{levels}[i]\noutput Y"


SUMS = " * ".join("(" + " + ".join(f"B[{10 * m + n}]" for n in range(10)) + ")" for m in range(4))
LONG = {
    "results that read others twice": (doubled("T", 60), doubled("S", 60), "is made of more than"),
    "a product in all its orders": (
        "tensor A[40]\nY[i:3] = " + "*".join(f"A[{n}*i]" for n in range(11)),
        "tensor A[40]\nY[i:3] = " + "*".join(f"A[{n}*i+1]" for n in range(11)), "more than 2000 steps",
    ),
    "sums multiplied out": (
        f"tensor B[40]\nY[i:4] = relu({SUMS})", f"tensor B[40]\nY[i:4] = relu(2*{SUMS})", "more than 2000 steps"
    ),
}  # fmt: skip


def test_what_is_nested_too_deeply_is_no_record() -> None:
    for body in ("A[i]" + "+A[i]" * 1500, "relu(" * 1500 + "A[i]" + ")" * 1500, "(" * 9000 + "A[i]" + ")" * 9000):
        with pytest.raises(ValueError, match="nested too deeply"):
            certificate(record_of(f"{A}Y[i:4] = {body}"))
        with pytest.raises(ValueError, match="the program: it is nested too deeply"):
            certificate(record_of(f"{A}Y[i:4] = A[i]"), f"{A}Y[i:4] = {body}")


@pytest.mark.parametrize("name", LONG)
def test_what_would_take_for_ever_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "WORK", 2000)
    before, after, message = LONG[name]
    found = certificate(record_of(before, after))
    assert found["kind"] == "unproved" and message in found["why"], found["why"]


BAD_FILES: dict[str, tuple[Callable[[dict[str, Any]], str], str]] = {
    "a thing twice": (lambda r: json.dumps(r)[:-1] + ', "start": "tensor A[4] Y[i:4] = 2*A[i]"}', "twice"),
    "a verdict in the name of a rule": (
        lambda r: json.dumps({**r, "steps": [{**r["steps"][0], "rule": "x at 0: proved\nR.json: proved, all of it"}]}),
        "rule",
    ),
    "a place that is no path": (
        lambda r: json.dumps({**r, "steps": [{**r["steps"][0], "at": "\x1b[2J"}]}), "path",
    ),
    "a row without end": (lambda r: json.dumps({**r, "start": f"{A}Y[i:4] = A[i]" + "+A[i]" * ROW}), "nest"),
    "an attribute twice": (
        lambda r: json.dumps({**r, "start": f"{A}Y[i:4] = A[i] via View(offset=1, offset=0)"}), "twice",
    ),
    "other digits": (lambda r: json.dumps({**r, "start": f"{A}Y[i:4] = A[\u0663]"}), "\u0663"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_record_that_is_read_in_two_ways_is_none(name: str, tmp_path: Path, capsys: Any) -> None:
    change, said = BAD_FILES[name]
    path = tmp_path / "r.json"
    path.write_text(change(record_of(f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i]")))
    assert main([str(path)]) == 2
    told = capsys.readouterr()
    assert "R.json: proved" not in told.out and told.err.count("\n") == 1 and "\x1b" not in told.err
    with pytest.raises(RecordError) as caught:
        check_file(path)
    assert said in str(caught.value)


def test_names_move_no_cursor(tmp_path: Path, capsys: Any) -> None:
    texts = [f'{A}"\\u001b[2J\\nr.json: proved"[i:4] = {k}*A[i]' for k in (1, 2)]
    (tmp_path / "r.json").write_text(json.dumps(record_of(*texts)))
    assert main([str(tmp_path / "r.json")]) == 1
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and "\x1b" not in told.err and "NOT PROVED" in told.err


@pytest.mark.parametrize("name", ["an output that was an input", "0 · ∞", "0 · ∞, in a maximum", "∞ - ∞, in a maximum"])
def test_the_engines_checker_does_not_believe_it_either(name: str) -> None:
    assert not check_record(record_of(*FORGED[name])).ok


@pytest.mark.parametrize("value", ["'never'", "-1.0", "9e999", "x'00ff'", "'nan'", "0"])
def test_times_that_are_none(value: str, tmp_path: Path) -> None:
    key = Key("Matmul", "m=1", "[2, 3]", "float32", 1, "a processor", "libraries")
    store = Store(tmp_path / "p.sqlite")
    store.put(key, 1.0, "measured")
    with closing(sqlite3.connect(tmp_path / "p.sqlite")) as connection, connection:
        connection.execute(f"UPDATE engine_profile SET seconds = {value}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert Store(tmp_path / "p.sqlite").get(key) is None


def test_flipped_bytes_of_the_store_cost_times_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    key = Key("Matmul", "m=1", "[2, 3]", "float32", 1, "a processor", "libraries")
    Store(path).put(key, 1.0, "measured")
    good = path.read_bytes()
    at = good.rfind(b"Matmul")
    for n in range(-40, min(120, len(good) - at)):
        path.write_bytes(good[: at + n] + bytes([good[at + n] ^ 0xE6]) + good[at + n + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = Store(path).get(key)
        assert found is None or 0 < found.seconds < float("inf")


@pytest.mark.skipif(compiled._linker() is None, reason="no C compiler here")
@pytest.mark.parametrize("open_", ["the folder", "the file"])
def test_a_library_that_others_may_write_is_not_loaded(
    open_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path))
    path = compiled.c_library("int one(void) { return 1; }")
    assert path is not None and compiled._whole(path)
    held = path if open_ == "the file" else path.parent
    held.chmod(held.stat().st_mode | stat.S_IWOTH)
    assert not compiled._whole(path) and compiled.stored(path.stem) is None
    held.chmod(0o755)
    assert compiled._whole(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert path.stat().st_uid == 0 or not compiled._whole(path)


def test_what_the_cache_holds_is_written_by_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path))
    mask = os.umask(0)
    try:
        path = compiled.c_library("int two(void) { return 2; }")
    finally:
        os.umask(mask)
    assert path is None or compiled._whole(path)


FAMILY = "\ntensor A[H, W]\nY[h:H, w:W] = A[h, w]\n"


@pytest.mark.parametrize(
    "assumed",
    [
        "H >= 5, H <= 3, W", "H, W\nparam H*W >= 10, H*W <= 5", "H, W\nparam H >= W, W > H", "H <= 0, W",
        "H, W\nparam H % 4 == 0, W % 4 == 0, H >= W+1, H <= W+2", "H % 4 == 1, H % 6 == 0, W",
        "H, W\nparam H == W, H % 2 == 0, W % 2 == 1", "H == W+1, W == H+1",
    ],
)  # fmt: skip
def test_what_leaves_no_sizes_proves_nothing(assumed: str) -> None:
    with pytest.raises(TextError, match="found "):
        ee.family(f"param {assumed}{FAMILY}")


def test_a_second_assumption_takes_nothing_back() -> None:
    assert ee.family(f"param W >= 5, W >= 3, H{FAMILY}").guards == ("W >= 5", "H >= 1")


def test_a_program_of_many_equations_is_read_once() -> None:
    made = parse(f"{A}" + "".join(f"Y{n}[i:4] = A[i]\n" for n in range(600)))
    assert len(made.equations) == 600


def test_the_checker_stands_alone_against_a_long_record() -> None:
    code = "import json, sys; from einnet_check import certificate; print(certificate(json.load(sys.stdin))['kind'])"
    record = json.dumps(record_of(*LONG["results that read others twice"][:2]))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, input=record, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "unproved\n"
