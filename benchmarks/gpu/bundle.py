"""The bundle: the package, every kernel as text and as machine code, expected outputs, and the list of measurements."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import benchmarks
import einnet_explore
from benchmarks.gpu import cases, models, whole
from benchmarks.gpu.session import LIVE_MODEL
from einnet_evaluation.models import write as write_model
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program
from einnet_explore.pipeline.gpu_parts import data_sheet_cost
from einnet_explore.runtime.cuda import nvrtc
from einnet_explore.runtime.cuda.steps import CudaLaunch, CudaPlan, cuda_plan_from_json
from einnet_explore.strategies.options import Cost
from einnet_explore.support.errors import BackendError

Note = Callable[[str], object]

LARGEST = 60 << 20
"""Bytes of a bundle, at most."""

SEARCH = 20.0
"""Seconds of search for each of Table 3's derivations."""

READ_ME = """Unpack on a machine with an NVIDIA GPU, Python 3.12, CuPy and NumPy (and torch, to compare with), then

    python -m benchmarks.gpu run --out gpu.json

in this directory. It needs neither a network nor anything else, takes less than eight minutes, goes on where it was
stopped, and changes none of the device's settings. gpu.json is the result. --only checks,ceilings,cases measures these
kinds only. Where the machine is lent for minutes,

    python -m benchmarks.gpu session --out FOLDER --seconds 240

measures for so long and goes on when it is called again; with --live it optimises data/fsrcnn.onnx on the machine,
which needs the dependencies of einnet-explore (without TVM and a C compiler).
"""


def write(
    out: Path,
    quick: bool = False,
    cost: Cost | None = None,
    seconds: float = 4.0,
    note: Note = lambda _: None,
    files: Iterable[Path] = (),
) -> str:
    """Write the bundle to *out* and say what is in it; raises ValueError where it is larger than ``LARGEST``.

    Parts of models are searched for *seconds* each, ordered by *cost* (default: the rates of a data sheet).  Models of
    *files* take the place of the evaluation's.

    Every kernel is compiled for ``nvrtc.ARCHITECTURES`` on the way; raises BackendError where one is not.
    """
    manifest, arrays = contents(quick, cost, seconds, note, files)
    plans = [cuda_plan_from_json(plan) for plan in whole.plans(manifest)]
    kernels = {digest(s): s for p in plans for s in p.steps if isinstance(s, CudaLaunch)}
    files: dict[str, bytes] = {"README.txt": READ_ME.encode()}
    for name, step in sorted(kernels.items()):
        files[f"data/kernels/{name}.cu"] = step.text.encode()
        for architecture in nvrtc.ARCHITECTURES:
            made = nvrtc.compile_text(step.text, step.entry, architecture)
            files[f"data/kernels/{name}.{architecture}.cubin"] = made.code
            if made.resources is not None:
                took = manifest["resources"].setdefault(name, {"entry": step.entry})
                full = replace(made.resources, shared=made.resources.shared + step.shared)
                took[architecture] = asdict(full) | {"blocks": full.blocks(prod(step.block))}
    held = io.BytesIO()
    np.savez_compressed(held, **arrays)
    files["data/arrays.npz"] = held.getvalue()
    for plan in whole.plans(manifest):
        for step in plan["steps"]:
            if step["op"] == "launch":
                step["text"] = digest(CudaLaunch(step["entry"], step["text"], (1, 1, 1), (1, 1, 1), ()))
    files["data/manifest.json"] = json.dumps(manifest).encode()
    files[f"data/{LIVE_MODEL}"] = write_model("fsrcnn").SerializeToString()
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
        f"{len(manifest['checks'])} checks, {len(manifest['cases'])} cases, {len(manifest['models'])} models of "
        f"{len(manifest['ways'])} different parts"
        + "".join(f"; left out: {name}: {why}" for name, why in manifest["left_out"].items())
    )


def contents(
    quick: bool = False,
    cost: Cost | None = None,
    seconds: float = 4.0,
    note: Note = lambda _: None,
    files: Iterable[Path] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest, and the arrays of the checks and of small weights by name."""
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
    whole_models = models.collected(cost or data_sheet_cost(), 0.3 if quick else seconds, quick, note, files)
    arrays |= whole_models.arrays
    manifest = {
        "made_with": {name: _version(name) for name in ("einnet-explore", "numpy")} | {"nvrtc": nvrtc.nvrtc_version()},
        "quick": quick,
        "checks": checks,
        "cases": [c.to_json() for c in (*measured(quick), *found)],
        "profiles": list(cases.profiled(programs).values()),
        "ways": whole_models.ways,
        "models": whole_models.models,
        "left_out": whole_models.left_out,
        "resources": {},
    }
    return manifest, arrays


LARGE_REDUCTIONS = (
    ("softmax", (4096, 20000)),
    ("group norm", (32, 32, 8, 56, 56)),
    ("batch norm", (32, 256, 56, 56)),
    ("softmax", (65536, 768)),
    ("layer norm", (65536, 768)),
    ("layer norm", (8192, 4096)),
    ("batch norm", (8, 64, 14, 14)),
)
"""The last one is bound by latency, the others by memory; the first three have long points."""

LAYERS = ((4096, 4096, 4096), (512, 1024, 1024))
"""Rows, depth and columns of linear layers."""


def measured(quick: bool) -> Iterable[cases.Case]:
    """Return the cases in addition to Table 3."""
    yield cases.cast(1003 if quick else 1 << 27)
    for name in cases.POINTWISE:
        yield cases.pointwise(name, 1003 if quick else 1 << 26)
    for name in cases.HALF:
        yield cases.pointwise_half(name, 1003 if quick else 1 << 26)
    for name, shape in cases.SMALL_REDUCTIONS.items() if quick else LARGE_REDUCTIONS:
        yield cases.reduction(name, *shape)
    yield cases.band(*(512, 16) if quick else (10000, 500))
    for sizes in ((64, 32, 48),) if quick else LAYERS:
        for dtype in ("float32", "float16"):
            yield cases.product(*sizes, dtype)
    yield cases.half_convolution(*(1, 8, 9, 24) if quick else (16, 256, 56, 256))
    yield cases.half_band(*(2, 40, 16, 4, 2) if quick else (8, 4096, 64, 128, 4))
    for name in cases.MOVING:
        yield cases.moving(name, *((33, 47) if quick else (4096, 4096) if name != "NCHW to NHWC" else (256, 64)))


def oracle(program: Program) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs of *program* by a fixed seed (quarters: they pack well), its outputs in double precision, rounded once."""
    random = np.random.default_rng(0)
    feeds = {t.name: (random.integers(-12, 13, t.shape) / 4).astype(np.float32) for t in program.inputs}
    exact = evaluate(program, {k: a.astype(np.float64) for k, a in feeds.items()}, "float64", outputs_only=True)
    return feeds, {name: np.asarray(exact[name], np.float32) for name in program.outputs}


def digest(step: CudaLaunch) -> str:
    """Return the digest that names a kernel's files, as in the runner."""
    return hashlib.sha256(f"{step.entry}\n{step.text}".encode()).hexdigest()[:16]


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return "unknown"


__all__ = ["BackendError", "CudaPlan", "contents", "digest", "oracle", "write"]
