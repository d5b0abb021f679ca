"""The bundle: the package, every kernel as text and as machine code, what it shall compute, and what is measured."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import benchmarks
import einnet_explore
from benchmarks.gpu import cases
from einnet_explore.algebra.evaluate import evaluate
from einnet_explore.backends import nvrtc
from einnet_explore.backends.cuda_steps import CudaPlan, Launch, from_json
from einnet_explore.backends.errors import BackendError
from einnet_explore.ir import Program

LARGEST = 60 << 20
"""Bytes of a bundle, at most."""

SEARCH = 20.0
"""Seconds of search for each of Table 3's derivations."""

READ_ME = """Unpack on a machine with an NVIDIA GPU, Python 3.12, CuPy and NumPy (and torch, to compare with), then

    python -m benchmarks.gpu run --out gpu.json

in this directory. It needs neither a network nor anything else, takes less than eight minutes, goes on where it was
stopped, and changes none of the device's settings. gpu.json is the result.
"""


def write(out: Path, quick: bool = False) -> str:
    """Write the bundle to *out* and say what is in it; raises ValueError where it is larger than ``LARGEST``.

    Every kernel is compiled for ``nvrtc.ARCHITECTURES`` on the way; raises BackendError where one is not.
    """
    manifest, arrays = contents(quick)
    plans = [from_json(plan) for plan in _plans(manifest)]
    kernels = {digest(s): s for p in plans for s in p.steps if isinstance(s, Launch)}
    files: dict[str, bytes] = {"README.txt": READ_ME.encode()}
    for name, step in sorted(kernels.items()):
        files[f"data/kernels/{name}.cu"] = step.text.encode()
        for architecture in nvrtc.ARCHITECTURES:
            code = nvrtc.compile_text(step.text, step.entry, architecture).code
            files[f"data/kernels/{name}.{architecture}.cubin"] = code
    held = io.BytesIO()
    np.savez_compressed(held, **arrays)
    files["data/checks.npz"] = held.getvalue()
    told = json.dumps(manifest).encode()
    files["data/manifest.json"] = told
    for package in (einnet_explore, benchmarks):
        root = Path(str(package.__file__)).parent
        for path in sorted([*root.rglob("*.py"), *root.rglob("*.lark"), *root.rglob("*.c")]):
            files[f"{root.name}/{path.relative_to(root)}"] = path.read_bytes()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            # Without times of today the same contents are the same file.
            packed.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    size = out.stat().st_size
    if size > LARGEST:
        raise ValueError(f"{out}: {size:,} bytes, expected at most {LARGEST:,}")
    return (
        f"{out}: {size:,} bytes, {len(kernels)} kernels for {' and '.join(nvrtc.ARCHITECTURES)}, "
        f"{len(manifest['checks'])} checks, {len(manifest['cases'])} cases"
    )


def contents(quick: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest, and the arrays of the checks by name."""
    small = list(cases.table3(True, SEARCH))
    checked = cases.checked([end for _, (_, end) in small])
    arrays: dict[str, Any] = {}
    known: dict[Program, int] = {}
    checks = []
    for name, (program, plan) in checked.items():
        if program not in known:
            n = known[program] = len(known)
            feeds, wanted = oracle(program)
            arrays |= {f"{n} in {k}": a for k, a in feeds.items()} | {f"{n} out {k}": a for k, a in wanted.items()}
        inputs = [t.name for t in program.inputs]
        told = {"name": name, "arrays": known[program], "plan": plan.to_json()}
        checks.append({**told, "inputs": inputs, "outputs": list(program.outputs)})
    found, programs = [], list[Program]()
    for case, pair in small if quick else cases.table3(False, SEARCH):
        found.append(case)
        programs += pair
    manifest = {
        "made_with": {name: _version(name) for name in ("einnet-explore", "numpy")} | {"nvrtc": nvrtc.version()},
        "quick": quick,
        "checks": checks,
        "cases": [c.to_json() for c in (*measured(quick), *found)],
        "profiles": list(cases.profiled(programs).values()),
    }
    return manifest, arrays


def measured(quick: bool) -> Iterable[cases.Case]:
    """What is measured beside Table 3."""
    for n in (1003,) if quick else (1 << 20, 1 << 24, 1 << 27):
        yield cases.cast(n)
    for name in cases.POINTWISE:
        for n in (1003,) if quick else (1 << 20, 1 << 24, 1 << 26):
            yield cases.pointwise(name, n)
    for shape in ((4, 5, 6, 7),) if quick else ((32, 256, 56, 56), (8, 64, 14, 14)):
        yield cases.normalisation(*shape)
    for name in cases.MOVING:
        yield cases.moving(name, *((33, 47) if quick else (4096, 4096) if name != "NCHW to NHWC" else (256, 64)))


def oracle(program: Program) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs of *program* by a fixed seed (quarters: they pack well), its outputs in double precision, rounded once."""
    random = np.random.default_rng(0)
    feeds = {t.name: (random.integers(-12, 13, t.shape) / 4).astype(np.float32) for t in program.inputs}
    exact = evaluate(program, {k: a.astype(np.float64) for k, a in feeds.items()}, "float64", outputs_only=True)
    return feeds, {name: np.asarray(exact[name], np.float32) for name in program.outputs}


def digest(step: Launch) -> str:
    """What a kernel's files are called: the runner says the same."""
    return hashlib.sha256(f"{step.entry}\n{step.text}".encode()).hexdigest()[:16]


def _plans(manifest: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for check in manifest["checks"]:
        yield check["plan"]
    for case in manifest["cases"]:
        yield from case["plans"].values()
    for one in manifest["profiles"]:
        yield one["plan"]


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return "unknown"


__all__ = ["BackendError", "CudaPlan", "contents", "digest", "oracle", "write"]
