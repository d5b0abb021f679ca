"""Settings, numerics levels, cost model, compilers and history that the tuning tasks of a model share."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Hashable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

import onnx
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

from einnet_explore.codegen.register_tiles import cpu_flags, this_machine
from einnet_explore.codegen.versions import all_versions
from einnet_explore.cost import CostModel, cpu_default, program_seconds
from einnet_explore.ir import Program
from einnet_explore.onnx_export.lowering import EXPORT_OPSET, IR_VERSION, to_onnx
from einnet_explore.pipeline.model_sessions import open_session
from einnet_explore.rules.base import MatchJson
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, Arrays, largest_error
from einnet_explore.runtime.implementation_choice import (
    ProfileStore,
    compile_ahead,
    compile_measured,
    peak_flops,
    stream_bandwidth,
)
from einnet_explore.runtime.integer_products import VNNI_SPEEDUP
from einnet_explore.runtime.profile_store import WITHOUT_WAITING, TimeStore, device_name, library_versions
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Options
from einnet_explore.strategies.rounding_levels import Level
from einnet_explore.support.errors import BackendError
from einnet_explore.support.version import PACKAGE_VERSION

ProgramCompiler: TypeAlias = "Callable[[Program, Arrays], Callable[[Arrays], Arrays]]"
"""Compiles a program with the arrays of its weights to a function from inputs to outputs, both by name."""

AheadCompiler: TypeAlias = "Callable[[Iterable[Program], Arrays], object]"
"""Compiles the kernels of programs that a ``ProgramCompiler`` will be asked for, in parallel."""


@dataclass(frozen=True)
class OriginalRun:
    """The original of a subprogram: *run* returns its outputs by name, for the inputs *feeds*.

    *define* does so for quantised nodes as they are defined, which *run* approximates.  *run_unoptimised* computes the
    nodes one by one, and Fourier transforms in double precision: an optimisation of ONNX Runtime may be wrong, and its
    transforms are inaccurate.
    """

    run: Callable[[], Arrays]
    feeds: Arrays
    define: Callable[[], Arrays] | None = None
    run_unoptimised: Callable[[], Arrays] | None = None

    def outputs(self) -> Arrays:
        """Return the outputs with which those of others are compared."""
        return (self.define or self.run)()

    def error(self, want: Arrays, got: Arrays) -> float:
        """Return the error of *got* relative to *want*, the outputs, or to the unoptimised ones if they are closer."""
        error = largest_error(want, got)
        if error > MAX_RELATIVE_ERROR and self.run_unoptimised:
            error = min(error, largest_error(self.run_unoptimised(), got))
        return error


OriginalOpener: TypeAlias = "Callable[[], OriginalRun]"
"""Opens the original of a subprogram."""

OUT_OF_MEMORY = (MemoryError, Fail, RuntimeException)
"""Exceptions that mean out of memory: NumPy's, and those of ONNX Runtime, which raises them for other failures too."""


Runtime: TypeAlias = Literal["plan", "onnxruntime"]
"""The runtime of the optimised model: our plan, or ONNX Runtime alone on the exported file."""

RUNTIMES: tuple[Runtime, ...] = ("plan", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Settings:
    """Effort of the search and of the measurements of one subprogram, and the runtime of the result.

    *runtime* is ``plan`` (kernels, library calls and sessions in turn) or ``onnxruntime`` (one exported model).
    *numerics* bounds the rounding differences of a derivation (see ``Level``).  At ``bf16``, *error_bound* is the
    largest error of a derivation that rounds operands, relative to the largest output.  *states* bounds a search in
    place of *seconds*; a search bounded by states is deterministic.
    """

    threads: int = 1
    max_depth: int = 7
    seconds: float = 4.0
    finalists: int = 4
    runtime: Runtime = "plan"
    numerics: Level = "approximate"
    states: int | None = None
    error_bound: float = MAX_RELATIVE_ERROR


@dataclass(frozen=True, slots=True)
class TuningContext:
    """Everything that tuning tasks of one model share.

    *cost* orders variants before they are measured, *compiler* makes them runnable, *store* keeps measured times.
    *ahead* compiles kernels before *compiler* measures them.  *ratios* are the least ratios of measured to estimated
    seconds, by kind of variant, in the tasks so far; *replayable* are the steps of their winners and chains in blocks,
    by structure and by pattern, then by bilinear algorithm and kind.
    """

    settings: Settings
    store: ProfileStore
    cost: CostModel
    compiler: ProgramCompiler
    ahead: AheadCompiler = lambda programs, constants: None
    ratios: dict[Hashable, float] = field(default_factory=dict)
    replayable: dict[Hashable, dict[Hashable, list[MatchJson]]] = field(default_factory=dict)


MAX_LIBRARY_FORMS = 4
"""Forms in library operators that are tried in addition to the program as written."""


def library_forms(program: Program) -> Iterable[Program]:
    """Yield *program* as written, then in library operators, cheapest first; nothing is derived.

    A program whose equations are all instantiated has no other form.
    """
    yield program
    if all(e.via for e in program.equations):
        return
    search = Search(program, program_seconds, Options(max_depth=0))
    found = sorted(((e.seconds, e.state.program) for e in search.run() if isinstance(e, Found)), key=lambda f: f[0])
    yield from (written for _, written in found[:MAX_LIBRARY_FORMS])


def program_model(program: Program, constants: Arrays) -> onnx.ModelProto:
    """Return *program* as an ONNX model with its own input and output names and its weights; raises Refused."""
    names = {t.name: t.name for t in program.inputs if t.name not in constants}
    shapes = {e.name: e.scope.shape for e in program.equations if e.name in program.outputs}
    made = to_onnx(program, names | {name: name for name in shapes}, constants, "v__")
    graph = helper.make_graph(
        made.nodes,
        "program",
        [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.shape) for t in program.inputs if t.name in names],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in program.outputs],
        initializer=made.initialisers,
    )
    imports = [helper.make_opsetid("", EXPORT_OPSET), *(helper.make_opsetid(f.domain, 1) for f in made.functions[:1])]
    return helper.make_model(graph, functions=made.functions, opset_imports=imports, ir_version=IR_VERSION)


def compile_in_onnxruntime(program: Program, constants: Arrays, threads: int) -> Callable[[Arrays], Arrays]:
    """Return *program* as a function that ONNX Runtime runs; raises Refused."""
    session = open_session(program_model(program, constants), threads)
    outputs = list(program.outputs)
    return lambda inputs: dict(zip(outputs, session.run(outputs, dict(inputs)), strict=True))


@dataclass
class Implementations:
    """Cost model and compiler of this machine for *settings*; measured times are looked up, and kept, in *store*."""

    settings: Settings
    store: ProfileStore
    ratios: dict[Hashable, float] = field(default_factory=dict)
    replayable: dict[Hashable, dict[Hashable, list[MatchJson]]] = field(default_factory=dict)
    """See ``TuningContext``, as for *ratios*."""

    @cached_property
    def model(self) -> CostModel:
        """The roofline of this machine, with the times that *store* held at the first call."""
        threads = self.settings.threads
        device = cpu_default(threads)
        try:
            bandwidth, flops = stream_bandwidth(threads), peak_flops(threads)
        except BackendError:
            bandwidth, flops = 0.0, 0.0  # the benchmark kernels do not run here: the usual figures stand
        here = replace(
            device,
            memory_bandwidth=bandwidth or device.memory_bandwidth,
            peak_flops=flops or device.peak_flops,
            cache_bytes=this_machine().l3 // 2,  # other cores and other data take a part
            lanes=this_machine().lanes,
            integers=VNNI_SPEEDUP if "avx512_vnni" in cpu_flags() else device.integers,
        )
        return CostModel(here, self.store.lookup(threads))

    @property
    def compiler(self) -> ProgramCompiler:
        """The compiler of variants for the runtime of *settings*."""
        threads = self.settings.threads
        if self.settings.runtime == "onnxruntime":
            return lambda program, constants: compile_in_onnxruntime(program, constants, threads)
        return lambda program, constants: compile_measured(program, threads, constants, self.store)

    def compile_ahead(self, programs: Iterable[Program], constants: Arrays) -> None:
        """Compile the kernels of *programs* in parallel; ONNX Runtime alone has none."""
        if self.settings.runtime == "plan":
            compile_ahead(programs, self.settings.threads, constants, self.store)

    def context(self, settings: Settings | None = None, displacing_bytes: int = 0) -> TuningContext:
        """The context of tasks, with other *settings* (less time) where they are given.

        In the model, *displacing_bytes* are read between two runs of a task's program.
        """
        return TuningContext(
            settings or self.settings,
            self.store,
            replace(self.model, displacing_bytes=displacing_bytes),
            self.compiler,
            self.compile_ahead,
            self.ratios,
            self.replayable,
        )


_TABLE = "CREATE TABLE IF NOT EXISTS remembered (what TEXT, key TEXT, found TEXT NOT NULL, PRIMARY KEY (what, key))"


DocumentKind: TypeAlias = Literal[
    "attribution",
    "contest",
    "conversions",
    "export",
    "gpu",
    "host",
    "inputs",
    "kept",
    "model",
    "numerics",
    "post",
    "reading",
    "selection",
    "spent",
]
"""``contest`` is a trial, ``conversions`` those of an original, ``gpu`` a trial on a GPU, ``host`` the subprograms
kept with another host than ONNX Runtime, ``kept`` those of the last selection, ``post`` a post-optimisation,
``reading`` what reading a model found, ``model`` the seconds of a model, ``spent`` those of tuning."""


class TuningHistory:
    """JSON documents by kind and key, in the file of *store*.

    If that file cannot be used, documents last as long as this object; the store reports why.
    """

    def __init__(self, store: TimeStore) -> None:
        self.path = store.path
        self._written: dict[tuple[str, str], str] = {}

    def get(self, what: DocumentKind, *parts: object) -> object:
        """Return the document for the key *parts*, or None."""
        key = _key(parts)
        if (what, key) in self._written:
            return json.loads(self._written[what, key])
        try:
            with closing(sqlite3.connect(self.path, timeout=20)) as connection, connection:
                connection.execute(_TABLE)
                row = connection.execute(
                    "SELECT found FROM remembered WHERE what = ? AND key = ?", (what, key)
                ).fetchone()
            return json.loads(row[0]) if row else None
        except (sqlite3.Error, OSError, ValueError):
            return None

    def record(self, found: object, what: DocumentKind, *parts: object) -> None:
        """Store the document *found* under the key *parts*."""
        key, text = _key(parts), json.dumps(found)
        self._written[what, key] = text
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=20)) as connection, connection:
                connection.execute(WITHOUT_WAITING)
                connection.execute(_TABLE)
                connection.execute("INSERT OR REPLACE INTO remembered VALUES (?, ?, ?)", (what, key, text))
        except (sqlite3.Error, OSError):
            return


def _key(parts: tuple[object, ...]) -> str:
    versions = (PACKAGE_VERSION, all_versions())
    text = "\n".join((*map(str, parts), device_name(), library_versions(), *versions))
    return hashlib.sha256(text.encode()).hexdigest()
