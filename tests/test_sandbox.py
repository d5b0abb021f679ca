"""Sandboxed first runs of kernels: faults of other processes and late answers are not attributed to a kernel."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einnet_explore.ir import Scope
from einnet_explore.runtime import c_kernels, compiled
from einnet_explore.runtime import compiled as trial
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.c_kernels import NativeSource
from einnet_explore.runtime.implementations import NativeCall
from einnet_explore.support.errors import BackendError
from einnet_explore.syntax import parse

pytestmark = pytest.mark.skipif(compiled._linker() is None, reason="no C compiler: kernels are not tried")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets every kernel do something beside what it does: a statement in C."""
    around = c_kernels._entry_text

    def put(statement: str) -> None:
        made = f"extern int raise(int); {statement} if (count"
        monkeypatch.setattr(
            c_kernels, "_entry_text", lambda *of: [line.replace("if (count", made) for line in around(*of)]
        )

    return put


def scope(n: int) -> Scope:
    return parse(f"tensor A[{n}]\nY[i:{n}] = 2 * A[i]").equations[0].scope


def computes(n: int) -> bool:
    """Whether a kernel over *n* elements is made and computes what it is to."""
    array, out = aligned(np.arange(n)), aligned_empty((n,))
    NativeCall(NativeSource(scope(n))).bind({"A": array}, out)()
    return bool((out == 2 * array).all())


def notes(cache: Path) -> list[Path]:
    return list((cache / "kernels").glob("refused-*.txt"))


def test_sandbox_process_ignores_interrupts(cache: Path, during: Callable[[str], None]) -> None:
    """Ctrl-C in a terminal, or a notebook's stop button, goes to all processes."""
    during(f"raise({int(signal.SIGINT)});")
    child = trial._child()
    assert NativeSource(scope(41)).function is not None
    assert not notes(cache) and child is not None and trial._child() is child


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_externally_killed_first_run_does_not_refuse_the_kernel(
    number: signal.Signals, cache: Path, during: Callable[[str], None]
) -> None:
    """The system kills where memory is short, and it need not be the kernel that took it."""
    during(f"raise({int(number)});")
    with pytest.raises(BackendError, match=f"ended its process with -{int(number)}"):
        computes(42)
    assert not notes(cache)


def test_no_memory_for_a_first_run_is_no_fault_of_the_kernel(cache: Path) -> None:
    assert computes(43)
    (file,) = (cache / "kernels").glob("*.so")
    with pytest.raises(BackendError, match="there is no memory for the arrays of its first run"):
        trial.run_in_sandbox(file, [((1 << 50,), "float32")])
    assert not notes(cache)
    trial.run_in_sandbox(file, [((43,), "float32")] * 2)


def test_an_interrupt_while_the_process_starts_leaves_no_answer_for_another_kernel(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each kernel would get the answer of the kernel before it."""
    monkeypatch.setattr(trial, "_children", {})

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(trial.select, "select", interrupted)
        with pytest.raises(KeyboardInterrupt):
            computes(44)
    assert not trial._children
    assert computes(44)
    trial._stop(trial._children[os.getpid()])


def test_forked_process_has_a_free_lock() -> None:
    """One that another thread of its parent held would never be free."""
    with trial._lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if trial._lock.acquire(blocking=False) else 1)
        assert os.waitpid(pid, 0)[1] == 0


def test_kernels_are_kept_by_what_the_processor_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine may hide instructions that others with a CPU of that name, and this cache, have."""
    platform, target = compiled.compilation_target.__wrapped__, compiled._target.__wrapped__
    seen = []
    for flags in ("sse2 avx2 fma avx512f hypervisor", "sse2 avx2 fma avx512f", "sse2 avx2 fma"):
        monkeypatch.setattr(compiled, "cpu_flags", lambda flags=flags: frozenset(flags.split()))
        monkeypatch.setattr(compiled, "compilation_target", platform)
        seen.append((NativeSource(scope(45)).key, "-avx512f" in str(target(1)), "-avx2" in str(target(1))))
    assert seen[0] == seen[1] and seen[1][0] != seen[2][0]
    assert [lacks for _, *lacks in seen] == [[False, False], [False, False], [True, False]]


class Missing:
    """TVM that cannot be imported."""

    def __getattr__(self, name: str) -> Any:
        raise BackendError("tvm cannot be imported")


def test_the_processors_name_is_remembered_for_an_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = compiled.compilation_target.__wrapped__
    if compiled._target_note() is None or not ask()[0]:
        pytest.skip("TVM is missing, or the system does not describe the processor")
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path))
    described = tmp_path / "cpuinfo"
    described.write_text(Path("/proc/cpuinfo").read_text())
    monkeypatch.setattr(compiled, "_CPU_INFO", described)
    want = ask()
    (note,) = tmp_path.glob("kernels/target-*.json")
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "tvm", Missing())
        assert ask() == want
        for damaged in ("", "[1, 2]", "{}"):
            note.write_text(damaged)
            assert ask()[0] == ""  # it is asked for again
    assert ask() == want and json.loads(note.read_text()) == list(want[:2])
    described.write_text(described.read_text().replace("stepping\t: ", "stepping\t: 9"))
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "tvm", Missing())
        assert ask()[0] == ""  # another processor
    note.chmod(0o666)
    described.write_text(Path("/proc/cpuinfo").read_text())
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "tvm", Missing())
        assert ask()[0] == ""  # others may write it
