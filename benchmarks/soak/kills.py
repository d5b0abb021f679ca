"""kill -9 at random moments: outputs are complete or absent, the store is intact, repeated work gives equal results.

An item is one kill (or two).  The command runs in a fork of this process, in which everything is imported, so that the
kill interrupts the work itself; one in ten runs in a new process.  The moment is drawn from the duration of the
command, or, half of the time, it is a fraction of a millisecond after a change in the output folder.

- ``derive --save --json``: each file equals that of an uninterrupted run, or is absent;
- the profile store: every acknowledged time is stored, and SQLite finds no damage;
- ``optimize -o --json --html --certificates``: existing files are complete; a second run ends and agrees with the
  original;
- two processes with one cache: if one is killed, the other ends normally.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.soak.graphs import _session
from benchmarks.soak.outcome import Outcome
from einnet_explore.checker.record import check_file
from einnet_explore.cli import main
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import largest_error
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.profile_store import ProfileKey
from einnet_explore.session import records

KIND = ("derive", "derive", "derive", "derive", "store", "store", "store", "optimize", "optimize", "two")
"""What is killed, by the item's last digit."""

CASE = """tensor A[1, 6, 6, 4] pad [0, 1, 1, 0]
tensor K[3, 3, 4, 4] weight
Y[n:1, h:6, w:6, f:4] = sum[c:4, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, f, c]
"""

TAKES: dict[str, float] = {}
"""Seconds that each command takes if it is not killed."""


def item(number: int, n: int) -> Outcome:
    """Kill number *n* of seed *number*."""
    outcome = Outcome()
    rng = random.Random(f"{number}:{n}")
    kind = KIND[n % len(KIND)]
    work = {"derive": derive, "store": store, "optimize": optimize, "two": two}[kind]
    with tempfile.TemporaryDirectory() as folder:
        work(rng, Path(folder), outcome)
    outcome.counts[f"items: {kind}"] += 1
    return outcome


class Child:
    """*call* in a process of its own with the cache in *folder*; what it says goes to ``said`` there."""

    def __init__(self, folder: Path, call: Callable[[], object], said: str = "said") -> None:
        self.said = folder / said
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                os.environ["EINNET_EXPLORE_CACHE"] = str(folder / "cache")
                handle = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(handle, 1)
                os.dup2(handle, 2)
                code = int(call() or 0)  # type: ignore[call-overload]
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)

    def kill(self) -> bool:
        """Kill it with SIGKILL; whether it still ran."""
        done, _ = os.waitpid(self.pid, os.WNOHANG)
        if not done:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        return not done

    def wait(self) -> int:
        """Its exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def command(argv: Sequence[str], own: bool) -> Callable[[], object]:
    """The command line *argv*, here or in a Python process of its *own*."""
    if own:
        # The fork becomes it: a process between would survive the kill.
        return lambda: os.execv(sys.executable, [sys.executable, "-m", "einnet_explore", *argv])
    return lambda: main(argv)


def killed(rng: random.Random, folder: Path, name: str, argv: Sequence[str], outcome: Outcome) -> bool:
    """Run *argv* and kill it; whether it had not ended by itself."""
    out = folder / "out"
    own = rng.random() < 0.1
    if name not in TAKES:
        with tempfile.TemporaryDirectory() as other:
            (Path(other) / "out").mkdir()
            began = perf_counter()
            Child(Path(other), command([a.replace(str(folder), other) for a in argv], False)).wait()
            TAKES[name] = perf_counter() - began
    before = set(os.listdir(out))
    child = Child(folder, command(argv, own))
    if rng.random() < 0.5:
        ends = perf_counter() + 3 * TAKES[name] + 5
        while set(os.listdir(out)) == before and perf_counter() < ends:
            sleep(0.0002)
        sleep(rng.random() * rng.choice([0.0005, 0.005, 0.05]))
    else:
        sleep(rng.random() * (TAKES[name] + (1.5 if own else 0)))
    still = child.kill()
    outcome.counts[f"kills: {name}" if still else "had ended already"] += 1
    outcome.counts["kills"] += still
    return still


def derive(rng: random.Random, folder: Path, outcome: Outcome) -> None:
    """``derive --save --json``."""
    out = folder / "out"
    out.mkdir()
    case = folder / "case.ein"
    case.write_text(CASE)
    argv = ["derive", str(case), "--target", "Matmul", "--max-depth", "3", "--save", str(out / "r.json"),
            "--json", str(out / "j.json")]  # fmt: skip
    killed(rng, folder, "derive", argv, outcome)
    whole_json(out, outcome)
    code = Child(folder, command(argv, False)).wait()
    if code != 0:
        outcome.found("derive again", f"exit code {code}", (folder / "said").read_text())
        return
    got = {path.name: timeless(json.loads(path.read_text())) for path in out.glob("*.json")}
    if got != expected(str(folder)):
        outcome.found("derive again", "another result than without the kill")
    if not check_file(out / "r.json").ok:
        outcome.found("derive again", "the checker refuses the record")


def whole_json(out: Path, outcome: Outcome) -> None:
    """Check that every existing file is complete."""
    for path in out.glob("*.json"):
        try:
            said = json.loads(path.read_text())
            if "steps" in said and "start" in said:
                records.load_record(path)
        except ValueError as error:
            outcome.found("half a file", error, path.name)
    outcome.counts["files left aside"] += len(list(out.glob(".*")))


def expected(_: str) -> dict[str, Any]:
    """Return the output of an uninterrupted ``derive``, without times and paths."""
    return _expected()


@cache
def _expected() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "out"
        out.mkdir()
        (folder / "case.ein").write_text(CASE)
        argv = ["derive", str(folder / "case.ein"), "--target", "Matmul", "--max-depth", "3",
                "--save", str(out / "r.json"), "--json", str(out / "j.json")]  # fmt: skip
        Child(folder, command(argv, False)).wait()
        return {path.name: timeless(json.loads(path.read_text())) for path in out.glob("*.json")}


def timeless(value: Any) -> Any:
    """*value* without its times and paths."""
    match value:
        case dict():
            return {k: timeless(v) for k, v in value.items() if "seconds" not in k and k not in ("case", "trace")}
        case list():
            return [timeless(v) for v in value]
        case float():
            return round(value, 9)
    return value


def key(n: int) -> ProfileKey:
    """A key of the store."""
    return ProfileKey("Matmul", f"m={n}", "[2, 3]", "float32", 1, "a processor", "libraries")


def store(rng: random.Random, folder: Path, outcome: Outcome) -> None:
    """Times being written; those acknowledged are there afterwards."""
    path = folder / "cache" / "profiles.sqlite"

    def write() -> None:
        held = ProfileStore(path)
        for n in range(100_000):
            held.record(key(n), n + 1.0, "measured")
            os.write(1, f"{n}\n".encode())

    children = [Child(folder, write, f"said{n}") for n in range(rng.choice([1, 1, 2]))]
    sleep(0.02 + rng.random() * 0.4)
    for child in children:
        outcome.counts["kills: store"] += (still := child.kill())
        outcome.counts["kills"] += still
    sound(path, outcome)
    for child in children:
        lines = child.said.read_text().splitlines()
        last = int(lines[-1]) if lines and lines[-1].isdigit() else -1
        again = ProfileStore(path)
        outcome.counts["acknowledged times looked up"] += last + 1
        if missing := [n for n in range(last + 1) if (found := again.get(key(n))) is None or found.seconds != n + 1.0]:
            outcome.found("store", f"{len(missing)} of {last + 1} acknowledged times are lost")
    held = ProfileStore(path)
    held.record(replace(key(0), operator="Conv"), 1.0, "measured")
    if ProfileStore(path).get(replace(key(0), operator="Conv")) is None:
        outcome.found("store", "nothing can be written any more")


def sound(path: Path, outcome: Outcome) -> None:
    """SQLite finds nothing wrong with the file."""
    if not path.exists():
        return
    with closing(sqlite3.connect(path, timeout=20)) as connection:
        said = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    if said != ["ok"]:
        outcome.found("store", f"damaged: {said}")


def model() -> onnx.ModelProto:
    """A convolution, an activation and a matrix product."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 4, 3, 3)), "b": rng.standard_normal(8), "m": rng.standard_normal((12, 5))}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MatMul", ["r", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "kills", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 12, 5])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def optimising(folder: Path, out: Path) -> list[str]:
    """The command line of ``optimize``."""
    out.mkdir(exist_ok=True)
    file = folder / "model.onnx"
    file.write_bytes(model().SerializeToString())
    return ["optimize", str(file), "--threads", "1", "--budget", "1", "--max-depth", "3", "-o", str(out / "o.onnx"),
            "--json", str(out / "j.json"), "--html", str(out / "p.html"), "--certificates",
            str(out / "records")]  # fmt: skip


def optimize(rng: random.Random, folder: Path, outcome: Outcome) -> None:
    """``optimize`` with all its outputs, killed up to three times, then left to end."""
    argv = optimising(folder, folder / "out")
    for _ in range(rng.randint(1, 3)):
        killed(rng, folder, "optimize", argv, outcome)
        whole(folder, outcome)
    ended(folder, folder / "out", Child(folder, command(argv, False)), outcome, "optimize again")


def two(rng: random.Random, folder: Path, outcome: Outcome) -> None:
    """Two with one cache; one is killed."""
    first = optimising(folder, folder / "out")
    second = optimising(folder, folder / "other")
    one, other = Child(folder, command(first, False), "said1"), Child(folder, command(second, False), "said")
    sleep(rng.random() * 2 * TAKES.get("optimize", 3.0))
    outcome.counts["kills: one of two"] += (still := one.kill())
    outcome.counts["kills"] += still
    ended(folder, folder / "other", other, outcome, "the other of two")
    whole(folder, outcome)


def whole(folder: Path, outcome: Outcome) -> None:
    """Check that all outputs of ``optimize`` are complete."""
    out = folder / "out"
    whole_json(out, outcome)
    for path in (out / "records").glob("*.json"):
        if not check_file(path).ok:
            outcome.found("record", "the checker refuses it", path.name)
    if (page := out / "p.html").exists() and not page.read_text().rstrip().endswith("</html>"):
        outcome.found("half a file", "p.html")
    if (file := out / "o.onnx").exists():
        agree(file, outcome)
    sound(folder / "cache" / "profiles.sqlite", outcome)
    kernels = [path for path in (folder / "cache" / "kernels").glob("*") if path.suffix in (".so", ".ll")]
    outcome.counts["kernels found whole"] += len(kernels)
    for path in kernels:
        if not compiled._is_intact(path):
            outcome.found("half a kernel", path.name)


def ended(folder: Path, out: Path, child: Child, outcome: Outcome, what: str) -> None:
    """*child* ends well, and what it wrote agrees with the original."""
    code = child.wait()
    said = (folder / "said").read_text()
    outcome.counts["ended well"] += code == 0
    if code != 0 or "Traceback" in said:
        return outcome.found(what, f"exit code {code}", said)
    for name in ("o.onnx", "j.json", "p.html"):
        if not (out / name).exists():
            outcome.found(what, f"{name} is missing")
    agree(out / "o.onnx", outcome)
    return None


def agree(file: Path, outcome: Outcome) -> None:
    """The model in *file* computes what the original does."""
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 4, 12, 12)).astype(np.float32)}
    try:
        want, got = (_session(m).run(None, feeds) for m in (model(), onnx.load(file)))
    except Exception as error:
        return outcome.found("half a file", error, file.name)
    if (error := largest_error({"y": want[0]}, {"y": got[0]})) > 1e-4:
        outcome.found("another model", f"differs by {error:.1e}", file.name)
    return None
