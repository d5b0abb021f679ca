"""Kernels for several threads: where the same by one is faster it is taken, and that is remembered."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from einnet_explore.codegen import versions
from einnet_explore.ir import EOPERATOR, Equation, Instance, Scope, tensors
from einnet_explore.runtime import implementation_choice, implementations
from einnet_explore.runtime.arrays import aligned_empty
from einnet_explore.runtime.c_kernels import NativeSource
from einnet_explore.runtime.implementations import (
    BoundEquation,
    Implementation,
    NativeCall,
    SingleThreaded,
    TiledCall,
    single_threaded_variant,
)
from einnet_explore.runtime.profile_store import C_ENGINE, ONE_THREAD_SUFFIX, TimeStore, profile_key
from einnet_explore.support.errors import NoKernel
from einnet_explore.syntax import parse

MOVES = parse("tensor A[512, 600]\nY[m:512, n:600] = relu(A[m, n]) + A[m, n]").equations[-1].scope
"""Enough elements for several threads."""
FEW = parse("tensor A[5, 6]\nY[m:5, n:6] = relu(A[m, n]) + A[m, n]").equations[-1].scope
PRODUCT = parse("tensor A[64, 256]\ntensor B[256, 128]\nY[m:64, n:128] = sum[k:256] A[m, k] * B[k, n]")
EQUATION = Equation("Y", MOVES, Instance(EOPERATOR))


def arrays_of(scope: Scope) -> dict[str, np.ndarray]:
    found = {t.name: aligned_empty(t.shape) for t in tensors(scope)}
    for n, array in enumerate(found.values()):
        array[...] = np.random.default_rng(n).standard_normal(array.shape)
    return found


def ways_of(equation: Equation, threads: int = 2) -> list[Implementation]:
    return list(implementations.implementations_of(bound_of(equation, threads)))


def bound_of(equation: Equation, threads: int) -> BoundEquation:
    return BoundEquation(equation, arrays_of(equation.scope), aligned_empty(equation.scope.shape), threads)


def result(way: Implementation, scope: Scope) -> np.ndarray:
    out = aligned_empty(scope.shape)
    out[...] = np.nan
    way.bind(arrays_of(scope), out)()
    return out


def chosen(store: TimeStore) -> Implementation:
    return implementation_choice.fastest_implementation(bound_of(EQUATION, 2), ways_of(EQUATION), store)


def test_every_shared_kernel_has_one_for_one_thread() -> None:
    made = implementations.tiled_contraction(PRODUCT.equations[-1].scope, (), 2)
    assert made is not None
    for way, scope in (
        *((way, MOVES) for way in ways_of(EQUATION)),
        (TiledCall(made, {}), PRODUCT.equations[-1].scope),
    ):
        alone = single_threaded_variant(way)
        assert alone is not None and alone.engine == way.engine + ONE_THREAD_SUFFIX and alone.reads == way.reads
        assert single_threaded_variant(alone) is None and single_threaded_variant(alone.implementation) is None
        np.testing.assert_allclose(result(alone, scope), result(way, scope), rtol=1e-5, atol=1e-5)


def test_unshared_kernel_has_no_single_thread_variant() -> None:
    few = replace(EQUATION, scope=FEW)
    assert len(ways_of(few)) == 1 and all(single_threaded_variant(way) is None for way in ways_of(few))
    assert all(single_threaded_variant(way) is None for way in ways_of(EQUATION, 1))
    small = implementations.tiled_contraction(PRODUCT.equations[-1].scope, (), 1)
    assert small is not None and single_threaded_variant(TiledCall(small, {})) is None


def test_one_thread_is_taken_where_it_is_faster_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []
    alone = {"seconds": 0.0}

    def compared(given: Mapping[str, object], *_: object) -> dict[str, float]:
        calls.append(tuple(given))
        return {"best": 1e-4, C_ENGINE: alone["seconds"]} if "best" in given else {C_ENGINE: 1e-4}

    monkeypatch.setattr(implementation_choice, "time_implementations", compared)
    monkeypatch.setattr(implementation_choice, "session_overhead", lambda: 0.0)
    for name, other, taken in (("loses", 2e-4, C_ENGINE), ("wins", 5e-5, C_ENGINE + ONE_THREAD_SUFFIX)):
        store = TimeStore(tmp_path / f"{name}.sqlite")
        alone["seconds"] = other
        first = chosen(store)
        assert first.engine == taken and calls == [(C_ENGINE,), ("best", C_ENGINE)]
        known = store.get(replace(profile_key(EQUATION, 2), engine=C_ENGINE + ONE_THREAD_SUFFIX))
        assert known is not None and known.seconds == pytest.approx(other)
        assert chosen(TimeStore(tmp_path / f"{name}.sqlite")).engine == taken and len(calls) == 2
        calls.clear()
    match first:
        case SingleThreaded(way):
            assert way.engine == C_ENGINE
        case _:
            pytest.fail(f"{first} is for several threads")


def test_long_kernels_are_not_compared_with_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TimeStore(tmp_path / "profiles.sqlite")
    key = replace(profile_key(EQUATION, 2), engine=C_ENGINE)
    store.record(key, implementation_choice.SHORT_KERNEL_SECONDS, "measured")
    monkeypatch.setattr(implementation_choice, "time_implementations", lambda *_: pytest.fail("compared"))
    assert chosen(store).engine == C_ENGINE


def test_a_c_kernel_by_one_thread_is_of_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, key = (
        TimeStore(tmp_path / "profiles.sqlite"),
        replace(profile_key(EQUATION, 2), engine=C_ENGINE + ONE_THREAD_SUFFIX),
    )
    store.record(key, 1e-4, "measured")
    assert store.get(key) is not None
    monkeypatch.setattr(versions, "C_KERNEL_VERSION", "another")
    assert store.get(key) is None


def test_choice_without_a_single_thread_kernel_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TimeStore(tmp_path / "profiles.sqlite")
    store.record(replace(profile_key(EQUATION, 2), engine=C_ENGINE), 1e-4, "measured")

    def refuse(way: Implementation) -> None:
        raise NoKernel("no kernel by one thread")

    monkeypatch.setattr(implementation_choice, "single_threaded_variant", refuse)
    assert chosen(store).engine == C_ENGINE
    assert isinstance(ways_of(EQUATION)[-1], NativeCall) and NativeSource(MOVES, 2).shared
