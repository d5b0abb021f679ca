"""A new kernel's first run is in another process: one that crashes, hangs or writes beyond its arrays costs nothing.

What fails is remembered by its content and never run again, unless it may have been for want of memory, or somebody
ended the process.  The process lives as long as this one and is renewed when a kernel takes it down.  Where it cannot
be had, kernels are taken as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import tvm

from einnet_explore.backends.errors import BackendError
from einnet_explore.storage import cache_directory, write_aside

LONGEST = 60.0
"""Seconds after which a kernel's first run counts as hanging."""

STARTING = 120.0
"""Seconds that the process may take to start."""

ENDED = frozenset(-s for s in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
"""How a process ends that somebody ends, the system for want of memory or the user: no fault of a kernel."""

_lock = threading.Lock()
_children: dict[int, subprocess.Popen[str]] = {}
"""By the process that they belong to: a fork has none of its parent's."""
_gone: set[int] = set()


def run(file: Path, arrays: Sequence[tuple[tuple[int, ...], str]]) -> None:
    """Let the kernel in *file* run once on arrays of these shapes and dtypes.

    Raises BackendError where it crashes, hangs or writes beyond them, now or when it was tried before.
    """
    note = cache_directory() / "kernels" / f"refused-{hashlib.sha256(file.read_bytes()).hexdigest()[:40]}.txt"
    if note.exists():
        raise BackendError(f"the kernel is not run: {note.read_text().strip()}")
    with _lock:
        wrong, lasting = _asked({"file": str(file), "arrays": [list(each) for each in arrays]})
    if wrong and lasting:
        write_aside(note, lambda new: _write(new, wrong))
    if wrong:
        raise BackendError(f"the kernel is not run: {wrong}")


def _write(path: Path, wrong: str) -> None:
    path.write_text(f"{wrong}\n")


def _asked(question: dict[str, object]) -> tuple[str, bool]:
    """(what is wrong with the kernel, or nothing; whether it will be wrong the next time, too)."""
    child = _started()
    if child is None or child.stdin is None:
        return "", False
    try:
        child.stdin.write(json.dumps(question) + "\n")
        child.stdin.flush()
    except OSError:
        _end(child)
        return "", False  # it was gone before: nothing is known of this kernel
    answer = _answer(child, LONGEST)
    if answer is not None:
        return answer
    code = child.poll()
    _end(child)
    if code is None:
        return f"its first run, in a process of its own, had not ended after {LONGEST:.0f} seconds", True
    return f"its first run ended its process with {code}", code not in ENDED


def _answer(child: subprocess.Popen[str], seconds: float) -> tuple[str, bool] | None:
    """What the process says is wrong, and whether that lasts; None where it says nothing."""
    assert child.stdout is not None
    try:
        ready, _, _ = select.select([child.stdout], [], [], seconds)
        line = child.stdout.readline() if ready else ""
        if ready and not line:
            child.wait()
    except BaseException:
        _end(child)  # an answer that nobody has waited for would be taken for the next kernel's
        raise
    if not line:
        return None
    said = json.loads(line)
    return str(said["wrong"]), bool(said["lasting"])


def _started() -> subprocess.Popen[str] | None:
    here = os.getpid()
    if here in _children or here in _gone:
        return _children.get(here)
    command = [sys.executable, str(Path(__file__).with_name("trial_child.py")), str(_runtime())]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        _gone.add(here)
        return None
    _children[here] = child
    if _answer(child, STARTING) is None:
        _end(child)
        _gone.add(here)
        return None
    return child


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue
    _children.pop(os.getpid(), None)


def _runtime() -> Path:
    return Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so"


def _renew() -> None:
    """In a fork, which has one thread of its parent's: another may have held the lock."""
    global _lock  # noqa: PLW0603 - it is the process's
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew)
