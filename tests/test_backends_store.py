"""Caches between runs: compiled kernels and measured times; damage, other processes, and measurement."""

import multiprocessing
import os
import signal
import sqlite3
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from einnet_explore.codegen import versions
from einnet_explore.codegen.versions import scope_identity
from einnet_explore.ir import EOPERATOR, VIEW, Instance, Program
from einnet_explore.runtime.implementation_choice import ProfileStore, stream_bandwidth
from einnet_explore.runtime.measurement import time_calls
from einnet_explore.runtime.profile_store import ProfileKey, device_name, library_versions, profile_key
from einnet_explore.runtime.tvm_cpu import TvmSource, load_tvm_kernel
from einnet_explore.support.storage import STALE_SECONDS, write_aside
from einnet_explore.syntax import parse

KEY = ProfileKey("Matmul", "m=1", "[1, 2]", "float32", 1, "cpu", "numpy 2")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_identity_ignores_names_only() -> None:
    one = parse("tensor A[6, 7]\nY[i:6, j:7] = A[i, j] + A[5-i, j]").equations[0].scope
    same = parse("tensor B[6, 7]\nZ[x:6, a:7] = B[x, a] + B[5-x, a]").equations[0].scope
    others = ("tensor A[6, 7]\nY[i:6, j:7] = A[i, j] + A[i, j]", "tensor A[6, 8]\nY[i:6, j:7] = A[i, j] + A[5-i, j]")
    assert scope_identity(one) == scope_identity(same)
    assert scope_identity(one) not in {scope_identity(parse(text).equations[0].scope) for text in others}
    two = parse("tensor A[6, 7]\ntensor B[6, 7]\nY[i:6, j:7] = A[i, j] + B[5-i, j]").equations[0].scope
    assert scope_identity(one) != scope_identity(two)


@pytest.mark.parametrize(
    "other",
    [
        "tensor A[4, 6]\nY[i:4] = sum[j:5] A[i, j] * 2",
        "tensor A[4, 5]\nY[i:4] = sum[j:4] A[i, j] * 2",
        "tensor A[4, 5]\nY[i:4] = max[j:5] A[i, j] * 2",
        "tensor A[4, 5]\nY[i:4] = sum[j:5] A[i, j] * 3",
        "tensor A[4, 5] float16\nY[i:4] = sum[j:5] A[i, j] * 2",
        "tensor A[4, 5] pad [0, 1] value 1\nY[i:4] = sum[j:5] A[i, j + 1] * 2",
        "tensor A[4, 5] pad [0, 1]\nY[i:4] = sum[j:5] A[i, j + 1] * 2",
        "tensor A[4, 5]\nY[i:4] = sum[j:5] A[i, j // 2] * 2",
        "tensor A[4, 5]\nY[i:4] = sum[j:5] A[i, 4 - j] * 2",
        "tensor A[4, 5]\nY[i:4] = sum[j:5] where(i < 2, A[i, j], 0) * 2",
        "tensor A[4, 5]\nY[i:4] = sum[j:5] {[x:4, y:5] A[x, y] * 2}[i, j]",
    ],
)
def test_what_a_kernel_depends_on_is_part_of_its_identity(other: str) -> None:
    one = parse("tensor A[4, 5]\nY[i:4] = sum[j:5] A[i, j] * 2").equations[0].scope
    assert scope_identity(one) != scope_identity(parse(other).equations[0].scope)


def test_compiled_kernels_are_cached(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TvmSource(parse("tensor A[9]\nY[i:9] = A[i] * 3").equations[0].scope)
    x = np.arange(9, dtype=np.float32)
    np.testing.assert_array_equal(load_tvm_kernel(source)(x), 3 * x)
    assert len(list((own_cache / "kernels").iterdir())) == 1

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("tvm.compile", fail)
    np.testing.assert_array_equal(load_tvm_kernel(source)(x), 3 * x)


@pytest.mark.parametrize("keep", [0, 13, 4096, -1])
def test_damaged_kernels_are_built_again(own_cache: Path, keep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = parse("tensor A[9]\nY[i:9] = A[i] * 3").equations[0].scope
    x = np.arange(9, dtype=np.float32)
    load_tvm_kernel(TvmSource(made))
    (stored,) = (own_cache / "kernels").iterdir()
    whole = stored.read_bytes()
    # The loader knows a library by its path: the damaged one lies in another directory.
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(own_cache / "other"))
    damaged = own_cache / "other" / "kernels" / stored.name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(whole[:keep])
    np.testing.assert_array_equal(load_tvm_kernel(TvmSource(made))(x), 3 * x)
    assert damaged.stat().st_size == len(whole)


def test_kernels_run_where_no_cache_can_be_written(own_cache: Path) -> None:
    own_cache.write_text("a file where a directory is expected")
    source = TvmSource(parse("tensor A[9]\nY[i:9] = A[i] * 5").equations[0].scope)
    np.testing.assert_array_equal(load_tvm_kernel(source)(np.ones(9, np.float32)), np.full(9, 5))


def test_compiled_kernels_are_cached_without_a_linker(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("einnet_explore.runtime.compiled._linker", lambda: None)
    source = TvmSource(parse("tensor A[9]\nY[i:9] = tanh(A[i]) * 3").equations[0].scope)
    first = load_tvm_kernel(source)(np.ones(9, np.float32))
    assert [p.suffix for p in (own_cache / "kernels").iterdir()] == [".ll"]
    np.testing.assert_array_equal(load_tvm_kernel(source)(np.ones(9, np.float32)), first)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    assert not write_aside(tmp_path / "x" / "file", broken)
    assert list((tmp_path / "x").iterdir()) == []


def test_temporary_folders_of_killed_processes_are_deleted_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / ".new-old", tmp_path / ".new-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "half").write_bytes(b"...")
    then = time.time() - STALE_SECONDS - 60
    os.utime(old, (then, then))
    assert write_aside(tmp_path / "file", Path.touch)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new-new", "file"]


def test_profiles_are_stored_by_every_field_of_the_key() -> None:
    store = ProfileStore()
    assert store.get(KEY) is None
    store.record(KEY, 2.0, "measured")
    store.record(KEY, 1.5, "again")
    found = ProfileStore().get(KEY)
    assert found is not None and (found.seconds, found.how) == (1.5, "again")
    assert store.get(replace(KEY, threads=2)) is None
    with pytest.raises(ValueError, match=r"-1.0 seconds"):
        store.record(KEY, -1.0, "wrong")


@pytest.mark.parametrize("damage", ["garbage", "another table", "a directory"])
def test_damaged_store_is_replaced_in_memory(own_cache: Path, damage: str) -> None:
    own_cache.mkdir(parents=True)
    path = own_cache / "profiles.sqlite"
    match damage:
        case "garbage":
            path.write_bytes(b"not a database at all" * 100)
        case "another table":
            with sqlite3.connect(path) as connection:
                connection.execute("CREATE TABLE engine_profile (other INTEGER)")
        case _:
            path.mkdir()
    store = ProfileStore()
    with pytest.warns(RuntimeWarning, match="in memory only: ") as caught:
        store.record(KEY, 1.0, "measured")
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = store.get(KEY)
    assert found is not None and found.seconds == 1.0


def test_stored_times_are_read_from_an_unwritable_cache(own_cache: Path) -> None:
    """A cache that others made may be mounted for reading only: its times are not to be measured again."""
    store = ProfileStore()
    old, new = replace(KEY, device=device_name(), library=library_versions()), replace(KEY, attributes="new")
    store.record(old, 2.0, "measured")
    with sqlite3.connect(own_cache / "profiles.sqlite") as file:
        file.execute("CREATE TRIGGER t BEFORE INSERT ON engine_profile BEGIN SELECT RAISE(ABORT, 'read-only'); END")
    with pytest.warns(RuntimeWarning, match="in memory only: "):
        store.record(new, 1.0, "measured")
    assert [found.seconds for key in (old, new) if (found := store.get(key))] == [2.0, 1.0]
    assert store.known(KEY.threads)[replace(old, engine="")] == 2.0 and not store.known(KEY.threads + 1)


def _writer(path: str, process: int) -> None:
    store = ProfileStore(Path(path))
    for n in range(20):
        store.record(replace(KEY, attributes=f"{process}.{n}"), 1.0 + n, "measured")


def _endless(path: str) -> None:
    store = ProfileStore(Path(path))
    n = 0
    while True:
        store.record(replace(KEY, attributes=f"endless.{n}"), 1.0, "measured")
        n += 1


def test_processes_share_a_store_and_may_be_killed(tmp_path: Path) -> None:
    path = tmp_path / "shared.sqlite"
    spawn = multiprocessing.get_context("spawn")
    victim = spawn.Process(target=_endless, args=(str(path),))
    writers = [spawn.Process(target=_writer, args=(str(path), 0))]
    for process in (victim, *writers):
        process.start()
    store = ProfileStore(path)
    for _ in range(600):
        if path.exists() and store.get(replace(KEY, attributes="endless.3")):
            break
        time.sleep(0.05)
    _writer(str(path), 1)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    for process in (victim, *writers):
        process.join()
    found = [store.get(replace(KEY, attributes=f"{p}.{n}")) for p in range(2) for n in range(20)]
    assert [f.seconds for f in found if f] == [1.0 + n for n in range(20)] * 2
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_equations_and_programs_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = parse("tensor A[8, 16]\ntensor B[16, 4] weight\nY[m:8, n:4] = sum[k:16] A[m, k] * B[k, n]")
    store = ProfileStore()
    equation = replace(made.equations[0], via=Instance(EOPERATOR))
    assert store.lookup()(equation) is None
    first, whole = store.measured(equation), store.measured(made)
    assert first.how == whole.how == "measured" and first.seconds > 0
    assert store.lookup()(equation) == first.seconds

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("einnet_explore.runtime.implementation_choice.time_calls", fail)
    assert (store.measured(equation), store.measured(made)) == (first, whole)
    assert profile_key(equation) != profile_key(made.equations[0]) != profile_key(equation, 2)
    view = parse("tensor A[6]\nY[i:2, j:3] = A[3*i+j]").equations[0]
    assert store.measured(replace(view, via=Instance(VIEW))).seconds < 1e-6


def test_calls_are_timed_in_turns() -> None:
    order: list[str] = []
    found = time_calls({n: lambda n=n: order.append(n) for n in "abc"}, rounds=3, min_seconds=1e-9)
    assert set(found) == {"a", "b", "c"} and all(t.n == 3 and t.median > 0 and t.iqr >= 0 for t in found.values())
    turns = [n for n, before in zip(order, ["", *order], strict=False) if n != before]
    assert turns[:4] == ["a", "b", "c", "a"] and turns[-1] == "b"
    slow = time_calls({"fast": lambda: None, "slow": lambda: time.sleep(0.002)}, rounds=3, min_seconds=0.001)
    assert slow["slow"].median > 10 * slow["fast"].median
    with pytest.raises(ValueError, match="rounds 0"):
        time_calls({}, rounds=0)


def test_bandwidth_is_a_plausible_number() -> None:
    assert 1e8 < stream_bandwidth(1, 1 << 20) < 1e13
    assert stream_bandwidth(1, 1 << 20) == stream_bandwidth(1, 1 << 20)


def test_stored_times_of_c_kernels_are_valid_for_one_generator_version(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    made = parse("tensor A[8, 16]\ntensor B[8, 16]\nY[m:8, n:16] = A[m, n] * B[m, n]")
    key = profile_key(made.equations[0])
    ours = [replace(key, engine=engine) for engine in ("c", "apart", "")] + [profile_key(made)]
    called = replace(KEY, device=key.device, engine="onnxruntime")
    others = [replace(key, engine="tvm"), replace(key, engine="c", device="another"), called]
    store = ProfileStore()
    for known in (*ours, *others):
        store.record(known, 2.0, "measured in turns")
    found = [store.get(known) for known in (*ours, *others)]
    assert {profile and (profile.seconds, profile.how) for profile in found} == {(2.0, "measured in turns")}
    monkeypatch.setattr(versions, "C_KERNEL_VERSION", "another")
    store.record(replace(key, engine="tvm"), 3.0, "measured")
    assert [store.get(known) for known in ours] == [None] * len(ours)
    assert None not in [store.get(known) for known in others]
    assert store.lookup()(made.equations[0]) == 3.0  # not what the old kernel took
    store.record(ours[0], 1.0, "measured")
    assert store.lookup()(made.equations[0]) == 1.0
    with sqlite3.connect(own_cache / "profiles.sqlite") as connection:  # as rows were before they said so
        connection.execute("UPDATE engine_profile SET how = 'measured'")
    assert [store.get(known) for known in ours] == [None] * len(ours)
    assert None not in [store.get(known) for known in others]


def test_stored_times_of_templates_are_valid_for_one_version(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    """This includes programs of library operators only; the key of an eOperator has the version of the schedules."""
    library = parse("tensor A[8, 16]\ntensor B[16, 4]\nY[m:8, n:4] = sum[k:16] A[m, k] * B[k, n]")
    via = Instance("Matmul", (("m", 8), ("n", 4), ("k", 16)))
    library = replace(library, equations=(replace(library.equations[0], via=via),))
    generated = replace(library, equations=(replace(library.equations[0], via=Instance(EOPERATOR)),))
    store = ProfileStore()

    def keys(made: Program) -> dict[str, ProfileKey]:
        engines = ("tiled", "tiled by one thread", "tvm", "onnxruntime", "matmul", "")
        return {n: replace(profile_key(made.equations[0]), engine=n) for n in engines} | {"program": profile_key(made)}

    def lost(what: str, made: Program) -> set[str]:
        """Return the stored times that are invalid after a change of the version of *what*."""
        for key in keys(made).values():
            store.record(key, 1.0, "measured")
        assert None not in [store.get(key) for key in keys(made).values()]
        with monkeypatch.context() as patched:
            patched.setattr(versions, f"{what}_VERSION", 10**6)
            return {name for name, key in keys(made).items() if store.get(key) is None}

    tiled = {"tiled", "tiled by one thread", "", "program"}
    assert lost("TILED_KERNEL", library) == lost("TILED_KERNEL", generated) == tiled
    assert lost("SCHEDULE", library) == {"tvm", "", "program"}
    assert lost("SCHEDULE", generated) == set(keys(generated))  # all of them: the key is another
