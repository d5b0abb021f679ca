"""Declared versions: an emitted kernel or a choice changes only with its version, and no key reads a source file.

``python -m tests.test_versions`` records the digests anew after a version was raised.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import tvm

import einnet_explore as ee
from einnet_evaluation import fused_programs as fusion
from einnet_explore.codegen import register_tiles, versions
from einnet_explore.codegen.register_tiles import best_tile
from einnet_explore.codegen.sum_of_products import match_sum_of_products
from einnet_explore.ir import Program, Scope, tensors
from einnet_explore.pipeline.tuning_context import TuningHistory
from einnet_explore.rules import REDUCTION_GENERATION
from einnet_explore.runtime import tvm_cpu
from einnet_explore.runtime.c_kernels import NativeSource
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.implementations import choose_tile, tiled_contraction
from einnet_explore.runtime.integer_products import integer_product
from einnet_explore.runtime.profile_store import profile_key
from einnet_explore.session.run import run_search
from einnet_explore.strategies.vertical_fusion import fuse_vertically
from einnet_explore.syntax import parse
from tests.test_backends_native import GATHERED, OVERLAP
from tests.test_blocked import convolution, in_blocks
from tests.test_kernels import CASES as CONTRACTIONS
from tests.test_online_softmax import attention, derived
from tests.test_rows import product

RECORD = Path(__file__).with_suffix(".json")
NEEDS_TVM = {"SCHEDULE_VERSION", "TILED_KERNEL_VERSION"}
"""Their texts are TVM's: digests are those of one version of it."""

Emit: TypeAlias = Callable[[], str]

SCOPES = {
    "element-wise": parse("tensor A[9, 40]\ntensor B[40]\nY[i:9, j:40] = relu(A[i, j] * 2 + B[j])"),
    "reduction": parse("tensor A[9, 40]\nY[i:9] = max[j:40] A[i, j]"),
    "reduction by columns": parse("tensor A[70, 300]\nY[j:300] = sum[i:70] A[i, j]"),
    "regions": parse(GATHERED),
    "overlap-add": OVERLAP,
    "transpose": parse("tensor A[80, 90, 77]\nY[h:90, w:77, c:80] = A[c, h, w]"),
}
FUSED = {
    "layer norm": fusion.layer_norm(512, 768),
    "instance norm": fusion.instance_norm(3, 2, 5, 7),
    "softmax": fusion.softmax(33, 70),
}
BYTES = {
    "convolution": "tensor X[1, 8, 9, 9] uint8 pad [0, 0, 1, 1]\ntensor K[6, 8, 3, 3] int8 weight\n"
    "Y[n:1, f:6, h:9, w:9] = sum[c:8, r:3, s:3] X[n, c, h+r-1, w+s-1] * K[f, c, r, s]",
    "product of one sign": "tensor A[5, 9] int8\ntensor B[9, 33] int8\nY[i:5, j:33] = sum[k:9] A[i, k] * B[k, j]",
    "requantised": "tensor A[5, 8] uint8\ntensor B[8, 33] int8 weight\n"
    "Y[i:5, j:33] = uint8(minimum(relu(round(0.1 * {[i:5, j:33] sum[k:8] A[i, k] * B[k, j]}[i, j])), 255))",
}
SEARCHED = {
    "conv": ee.ops.conv2d(N=1, H=4, W=3, C=2, F=3, R=3, S=3, padding=1),
    "transposed": ee.ops.conv_transpose2d(N=1, H=2, W=2, in_channels=3, out_channels=2, R=4, S=4, stride=2, padding=1),
    "band": ee.ops.g2bmm(b=2, m=8, w=2, k=3, dilation=2),
}


def cases() -> dict[str, dict[str, Emit]]:
    """Return representative cases for each version."""
    scopes = {name: partial(_last, program) for name, program in SCOPES.items()}
    fused = {name: partial(_in_one, program) for name, program in FUSED.items()}
    whole = {
        "rows": partial(product, 300, 24),
        "one-pass softmax": lambda: derived(attention(2, 8, 70, 16, 16)),
        "chain in blocks": lambda: _last(in_blocks(convolution(1, 16, 16, 9, 9)).end),
    }
    tiles = {name: partial(_last, parse(text)) for name, text in CONTRACTIONS.items()}
    return {
        "C_KERNEL_VERSION": _both((scopes | fused).items(), lambda scope, n: NativeSource(scope, n).text),
        "SCHEDULE_VERSION": _both((scopes | whole).items(), lambda scope, n: tvm_cpu.TvmSource(scope, threads=n).text),
        "INTEGER_PRODUCT_VERSION": {name: partial(_of_bytes, parse(text)) for name, text in BYTES.items()},
        "TILED_KERNEL_VERSION": _both(list(tiles.items())[:4], _tiled),
        "TILE_CHOICE_VERSION": {name: partial(_tile, scope) for name, scope in tiles.items()},
        "SEARCH_VERSION": {name: partial(_search, program) for name, program in SEARCHED.items()},
    }


def _both(scopes: Iterable[tuple[str, Callable[[], Scope]]], emit: Callable[[Scope, int], str]) -> dict[str, Emit]:
    def text(scope: Callable[[], Scope], threads: int) -> str:
        return emit(scope(), threads)

    return {f"{name}, {n} threads": partial(text, scope, n) for name, scope in scopes for n in (1, 2)}


def _last(program: Program) -> Scope:
    return program.equations[-1].scope


def _in_one(program: Program) -> Scope:
    found = fuse_vertically(program, (REDUCTION_GENERATION,))
    assert found is not None
    return _last(found.end)


def _tiled(scope: Scope, threads: int) -> str:
    made = tiled_contraction(scope, {t.name for t in tensors(scope) if t.weight}, threads)
    assert made is not None
    return made.text


def _of_bytes(program: Program) -> str:
    made = integer_product(_last(program), {t.name for t in program.inputs if t.weight}, {})
    assert made is not None
    return made.text


def _tile(scope: Callable[[], Scope]) -> str:
    found = match_sum_of_products(scope())
    tile = found and best_tile(found, register_tiles.Machine())
    return repr(tile and astuple(tile.parameters))


def _search(program: Program) -> str:
    report = run_search("", program, (), None, {"strategy": "paper", "max_depth": 2}, 60)
    return json.dumps([report["states"], report["best"], [c["steps"] for c in report["candidates"]]])


@contextmanager
def default_machine() -> Generator[None]:
    """Use the same processor description on every machine, without earlier choices or compiled kernels."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("EINNET_EXPLORE_CACHE", folder)
        patch.setattr(register_tiles, "cpu_flags", frozenset)
        patch.setattr(register_tiles, "_cache_bytes", lambda _: None)
        register_tiles.this_machine.cache_clear()
        try:
            yield
        finally:
            register_tiles.this_machine.cache_clear()


def digests(constant: str) -> dict[str, str]:
    with default_machine():
        return {name: hashlib.sha256(emit().encode()).hexdigest()[:16] for name, emit in cases()[constant].items()}


def changed(constant: str, recorded: dict[str, Any], found: dict[str, str]) -> str:
    """Return the advice for digests that differ from the *recorded* ones; empty if none differ."""
    version, record = getattr(versions, constant), "then run `python -m tests.test_versions`"
    old = recorded["digests"]
    wrong = [name for name in old if name in found and old[name] != found[name]]
    if wrong and version == recorded["version"]:
        return f"{constant}: changed for {', '.join(wrong)}: raise it to {version + 1} in versions.py, {record}"
    if version != recorded["version"] or old != found:
        return f"{constant} is {version}, recorded is {recorded['version']}, or cases are new: {record[5:]}"
    return ""


@pytest.mark.parametrize("constant", cases())
def test_changed_output_requires_a_new_version(constant: str) -> None:
    recorded = json.loads(RECORD.read_text())
    if constant in NEEDS_TVM and recorded["tvm"] != tvm.__version__:
        pytest.skip(f"digests are those of TVM {recorded['tvm']}")
    wrong = changed(constant, recorded[constant], digests(constant))
    assert not wrong, wrong


def test_a_change_names_the_version_to_raise() -> None:
    recorded = {"version": versions.C_KERNEL_VERSION, "digests": {"rows": "a", "blocks": "b"}}
    assert changed("C_KERNEL_VERSION", recorded, {"rows": "a", "blocks": "b"}) == ""
    assert "changed for blocks: raise it to" in changed("C_KERNEL_VERSION", recorded, {"rows": "a", "blocks": "c"})
    assert "run `python" in changed("C_KERNEL_VERSION", recorded, {"rows": "a", "blocks": "b", "new": "c"})
    assert "run `python" in changed("C_KERNEL_VERSION", recorded | {"version": 0}, {"rows": "a", "blocks": "c"})


def test_every_version_is_guarded_and_part_of_all_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = {name for name in vars(versions) if name.endswith("_VERSION")}
    assert declared == set(cases())
    for name in declared:
        before = versions.all_versions()
        monkeypatch.setattr(versions, name, 10**6)
        assert versions.all_versions() != before


def test_no_key_reads_a_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code may therefore be moved and installed anywhere."""
    opened: list[str] = []
    package, watching = str(Path(ee.__file__).parent), [True]

    def seen(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(package):
            opened.append(str(arguments[0]))

    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path))
    scope, made = _last(SCOPES["element-wise"]), _last(parse(CONTRACTIONS["grouped"]))
    contracted, found = tiled_contraction(made), match_sum_of_products(made)
    assert contracted is not None and found is not None
    sys.addaudithook(seen)
    try:
        assert NativeSource(scope).key and tvm_cpu.TvmSource(scope).key and contracted.key
        store, key = ProfileStore(), profile_key(SCOPES["element-wise"].equations[0])
        store.record(key, 1.0, "measured")
        assert store.get(key) is not None
        TuningHistory(store).record(1, "contest", "a")
        assert TuningHistory(store).get("contest", "a") == 1
        assert choose_tile(made, found, register_tiles.Machine()) is not None
    finally:
        watching.clear()  # a hook cannot be removed
    assert opened == []


def record() -> None:
    """Record the digests; refuse those that changed without their version."""
    old = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    held: dict[str, Any] = {"tvm": tvm.__version__}
    for constant in cases():
        new = {"version": getattr(versions, constant), "digests": digests(constant)}
        comparable = constant not in NEEDS_TVM or old.get("tvm") == tvm.__version__
        if constant in old and comparable and "raise it" in (wrong := changed(constant, old[constant], new["digests"])):
            sys.exit(wrong)
        held[constant] = new
    RECORD.write_text(json.dumps(held, indent=1) + os.linesep)


if __name__ == "__main__":
    record()
