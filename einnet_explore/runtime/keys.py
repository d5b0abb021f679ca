"""Keys of measured times: operator, attributes, shapes, device and library versions."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from einnet_explore.codegen import versions
from einnet_explore.codegen.identity import scope_identity
from einnet_explore.ir import EOPERATOR, Equation, Program, tensors
from einnet_explore.runtime.compiled import cpu_name

UNFUSED_PAIR = "apart"
"""The engine under which the time of two equations is stored, one after the other with the best engine each."""

ONE_THREAD_SUFFIX = " by one thread"
"""What follows an engine's name where its kernel is for one thread though there are several."""


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a measured time belongs to; *engine* is what ran it, empty for the one that was chosen."""

    operator: str
    attributes: str
    shapes: str
    dtype: str
    threads: int
    device: str
    library: str
    engine: str = ""


def profile_key(
    what: Equation | Program,
    threads: int = 1,
    constant: Collection[str] = (),
    strided: Mapping[str, tuple[int, ...]] | None = None,
) -> ProfileKey:
    """The key of an equation or of a whole program on this device.

    Operands of an equation that never change, weights and those named in *constant*, make another key: engines pack
    them beforehand.  So do those that are not packed, whose strides in bytes *strided* gives: engines gather them at
    every call.  A time says itself for which versions of the generators of kernels it holds.
    """
    match what:
        case Equation(_, scope, via):
            operator = via.operator if via else EOPERATOR
            attributes = repr(via) if via else ""
            shapes = " ".join(f"{list(t.shape)}" for t in tensors(scope)) + f" -> {list(scope.shape)}"
            # Two scopes with one operator and equal shapes may still differ: generated kernels, views of operands.
            reads = dict.fromkeys(tensors(scope))
            fixed = [n for n, t in enumerate(reads) if t.weight or t.name in constant]
            views = [(n, strided[t.name]) for n, t in enumerate(reads) if t.name in strided] if strided else ""
            digest = _digest(f"{scope_identity(scope)} {fixed}{views}")
        case Program(equations=equations):
            operator, attributes = "program", ", ".join(e.via.operator if e.via else EOPERATOR for e in equations)
            shapes = " ".join(f"{list(t.shape)}" for t in what.inputs)
            digest = _digest(_program_text(what))
    if EOPERATOR in f"{operator} {attributes}":
        attributes += f" kernels {versions.SCHEDULE_VERSION}"
    return ProfileKey(
        operator, f"{attributes} {digest}".strip(), shapes, "float32", threads, device_name(), library_versions()
    )


@lru_cache(maxsize=1)
def device_name() -> str:
    """The name of this machine's processor."""
    return f"{platform.system()} {platform.machine()} {cpu_name()}"


@lru_cache(maxsize=1)
def library_versions() -> str:
    """The versions of what runs operators."""
    return " ".join(f"{name} {package_version(name)}" for name in ("apache-tvm", "onnxruntime", "numpy"))


def package_version(package: str) -> str:
    """The installed version of *package*."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _program_text(program: Program) -> str:
    numbers = {t.name: f"x{n}" for n, t in enumerate(program.inputs)}
    numbers |= {e.name: f"e{n}" for n, e in enumerate(program.equations)}
    lines = [f"{t.shape}{t.weight}" for t in program.inputs]
    for e in program.equations:
        reads = ",".join(numbers.get(t.name, "?") for t in tensors(e.scope))
        lines.append(f"{e.via!r} {scope_identity(e.scope)} of {reads}")
    return "\n".join((*lines, *(numbers[name] for name in program.outputs)))
