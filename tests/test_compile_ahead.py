"""Kernels are compiled on all cores before they are timed: the same ones, each once."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from einnet_explore.ir import EOPERATOR, Equation, Instance, Program, tensors
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.implementation_choice import ProfileStore, compile_ahead, compile_measured
from einnet_explore.runtime.implementations import tiled_contraction
from einnet_explore.syntax import parse

TEXT = """tensor x[24, 40]
tensor W[40, 16] weight
V[k:40, f:16] = 2 * W[k, f]
T[i:24, f:16] = sum[k:40] x[i, k] * V[k, f]
Y[f:16, i:24] = tanh(T[i, f]) + T[i, f]
output Y"""

Build: TypeAlias = Callable[..., compiled.CompiledFunction]

W = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32)


def program() -> Program:
    start = parse(TEXT)
    made = (Equation(e.name, e.scope, Instance(EOPERATOR)) for e in start.equations)
    return Program(start.inputs, tuple(made), start.outputs)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter[str]:
    """The kernels that are compiled, by key."""
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found: Counter[str] = Counter()

    def counting(build: Build) -> Build:
        def counted(source: Any, key: str, *rest: Any) -> compiled.CompiledFunction:
            found[key] += 1
            return build(source, key, *rest)

        return counted

    for name in ("build_tvm", "build_c"):
        monkeypatch.setattr(compiled, name, counting(getattr(compiled, name)))
    return found


def test_kernels_compiled_ahead_are_not_compiled_again(builds: Counter[str]) -> None:
    store = ProfileStore()
    assert compile_ahead([program(), program()], 1, {"W": W}, store) == len(builds) > 1
    ahead = dict(builds)
    x = np.random.default_rng(1).standard_normal((24, 40)).astype(np.float32)
    y = compile_measured(program(), 1, {"W": W}, store).run({"x": x})["Y"]
    t = x @ (2 * W)
    assert np.allclose(y, (np.tanh(t) + t).T, atol=1e-4)
    assert set(builds.values()) == {1} and ahead.items() <= builds.items()
    assert compile_ahead([program()], 1, {"W": W}, store) == 0  # their times are known


def test_nothing_is_compiled_ahead_on_one_core(builds: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert compile_ahead([program()], 1, {"W": W}, ProfileStore()) == 0 == len(builds)


def test_refused_kernel_leaves_the_others(builds: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(build: Build) -> Build:
        def refused_once(source: Any, key: str, *rest: Any) -> compiled.CompiledFunction:
            kept = build(source, key, *rest)
            if len(builds) == 1:
                raise RuntimeError("refused")
            return kept

        return refused_once

    for name in ("build_tvm", "build_c"):
        monkeypatch.setattr(compiled, name, refusing(getattr(compiled, name)))
    assert compile_ahead([program()], 1, {"W": W}, ProfileStore()) > 1 < len(builds)


def test_equal_products_of_several_operators_are_one_kernel(builds: Counter[str]) -> None:
    texts = (
        "tensor A[24, 32]\ntensor B[32, 48]\nY[m:24, n:48] = sum[k:32] A[m, k] * B[k, n]",
        "tensor B[1, 32, 48]\ntensor A[24, 32, 1]\nY[z:1, f:24, h:48] = sum[c:32, r:1] B[z, c, h] * A[f, c, r]",
    )
    found = [tiled_contraction(parse(text).equations[0].scope) for text in texts]
    rng = np.random.default_rng(0)
    a, b = (aligned(rng.standard_normal(shape)) for shape in ((24, 32), (32, 48)))
    for made in found:
        assert made is not None
        shapes = {t.name: t.shape for t in tensors(made.scope)}
        out = aligned_empty(made.scope.shape)
        made.bind({"A": a.reshape(shapes["A"]), "B": b.reshape(shapes["B"])}, out)()
        assert np.allclose(out.reshape(24, 48), a @ b, atol=1e-4)
    files = {compiled.kernel_file(key) for key in builds}
    assert len(builds) == 2 and len({file.read_bytes() for file in files if file is not None}) == 1
