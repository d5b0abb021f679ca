"""The operators of the paper's case studies before and after: Table 3 (``e2``) and Fig. 16 (``e3``).

*Before* is the operator in its library's own layout, *after* the program that the paper derives (a library operator
with eOperators), found here by search.  Both are run by several backends: ONNX Runtime and PyTorch on standard
operators, our kernel generator on everything, and our own plan, which mixes library calls and generated kernels.  The
paper's derivations target a GPU and need not be the fastest here: *kept* is the program that tuning selects.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from einnet_evaluation.bench import Measurements, measure_engines
from einnet_evaluation.bench_cases import describe_operators
from einnet_evaluation.engines import DIRECT, GENERATED, NUMPY, OURS, Task
from einnet_evaluation.results_file import ResumableExperiment, busy_notes
from einnet_evaluation.rivals import COMPILED, ORT, TORCH, installed
from einnet_explore.analysis.equations import weight_only
from einnet_explore.checker.record import RecordError
from einnet_explore.cost import program_seconds, work
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import EOPERATOR, VIEW, Program
from einnet_explore.operators import expressions as ops
from einnet_explore.operators.library import find_operators
from einnet_explore.pipeline.fusion import fuse_eoperators
from einnet_explore.rules import Derivation
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR
from einnet_explore.session.records import from_record
from einnet_explore.strategies.candidate import combined_verdict, to_record
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Options
from einnet_explore.syntax.printer import text
from einnet_explore.viz.tables import Cell, ResultTable

BEFORE, AFTER = "before", "after"

HOMES = {NUMPY: "ours", DIRECT: "ours", GENERATED: "ours", OURS: "ours"}
"""Processes of backends that share one; before and after always share."""

CHEAPER_SEARCH_SECONDS = 1.0
"""Time for finding cheaper programs with the wanted call after the first one."""


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """An operator of Table 3; *wanted* with *attributes* is the library call that the paper derives.

    *published* are the paper's milliseconds before and after on an A100, possibly at other sizes than *program*'s.
    """

    name: str
    figure: str
    program: Program
    wanted: str
    attributes: Mapping[str, int]
    published: tuple[float, float]


def table3_cases(quick: bool = False) -> tuple[OperatorCase, ...]:
    """Return the four cases, small ones if *quick*.

    G2BMM is smaller than the paper's (8 heads of 10000 rows, half-width 1000), whose windows would take more than
    40 GiB in standard operators.
    """
    c, n, side, m, w = (64, 1, 56, 512, 16) if quick else (512, 16, 224, 4096, 128)
    dilation = 4
    return (
        OperatorCase(
            "Conv3x3", "Fig. 3",
            ops.conv2d(H=7, W=7, C=c, F=c, R=3, S=3, layout="NCHW", padding=1), "Matmul", {"k": c}, (0.126, 0.0487),
        ),
        OperatorCase(
            "ConvTranspose", "Fig. 11",
            ops.conv_transpose2d(
                N=n, H=2, W=2, in_channels=448, out_channels=256, R=4, S=4, stride=2, padding=1, layout="NCHW"
            ),
            "Matmul", {"k": 448}, (0.247, 0.0480),
        ),
        OperatorCase(
            "Conv5x5", "Fig. 6", ops.conv2d(N=n, H=side, W=side, C=32, F=1, R=5, S=5, layout="NCHW", padding=2),
            "Conv2d", {"r": 3, "s": 3, "f": 4}, (0.954, 0.599),
        ),
        OperatorCase(
            "G2BMM", "Fig. 14", ops.g2bmm(2, m, w, 64, dilation), "G2BMM", {"b": 2 * dilation, "d": 1}, (13.02, 2.86)
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperatorEffort:
    """Operators, threads, backends, rounds and their time limit, and the time limit of each search."""

    cases: tuple[OperatorCase, ...]
    threads: int = 1
    backends: tuple[str, ...] = (ORT, TORCH, COMPILED, GENERATED)
    rounds: int = 15
    limit: float = 30.0
    search: float = 20.0

    @property
    def present(self) -> tuple[str, ...]:
        """The installed *backends*."""
        return installed(self.backends)


def operator_effort(quick: bool = False) -> OperatorEffort:
    """Return the published cases, or if *quick* small ones with fewer backends."""
    if quick:
        return OperatorEffort(table3_cases(True), backends=(ORT, TORCH, GENERATED), rounds=5, limit=3.0, search=4.0)
    return OperatorEffort(table3_cases())


@dataclass(frozen=True, slots=True)
class OperatorComparison:
    """One operator's derivation, the verdict of its certificates, and the times.

    Labels of *times* are (when, backend); the backend ``DIRECT`` is this project's plan of the paper's derivation,
    ``OURS`` that of the program that tuning selects on this machine.
    """

    case: OperatorCase
    derivation: Derivation
    certificate: str
    times: Measurements

    def seconds(self, when: str, backend: str) -> float | None:
        """Return the median, None if the backend does not run."""
        label = label_of(when, backend)
        return float(self.times.summary(label)["seconds"]) if label in self.times.samples else None

    def error(self, when: str, backend: str) -> float | None:
        """Return the error relative to the reference's largest output, None if the backend does not run."""
        return self.times.errors.get(label_of(when, backend))

    def fastest(self, when: str, backends: Iterable[str]) -> str | None:
        """Return the fastest of *backends* with correct outputs."""
        agree = [name for name in backends if (self.error(when, name) or 0.0) <= MAX_RELATIVE_ERROR]
        there = {name: s for name in agree if (s := self.seconds(when, name)) is not None}
        return min(there, key=lambda name: there[name], default=None)

    def speedup(self, backend: str, base: str | None = None) -> float | None:
        """Return the speed-up of *backend* after over *base* (default: itself) before, in the same rounds."""
        before, after = label_of(BEFORE, base or backend), label_of(AFTER, backend)
        if before not in self.times.samples or after not in self.times.samples:
            return None
        return self.times.ratio(before, after)


def label_of(when: str, backend: str) -> str:
    """Return the label of the times of *backend*."""
    return f"{when}, {backend}"


class OperatorLab(ResumableExperiment[OperatorEffort, str, OperatorComparison]):
    """Comparisons by operator; earlier results are valid if their derivation can be replayed."""

    __slots__ = ()

    @property
    def cases(self) -> dict[str, OperatorCase]:
        """The operators by name."""
        return {case.name: case for case in self.effort.cases}

    def wanted(self) -> Iterable[str]:
        return self.cases

    def measure(self, key: str) -> OperatorComparison:
        return compare_operator(self.cases[key], self.effort)

    def called(self, key: str) -> str:
        return key

    def place(self, key: str) -> int:
        return list(self.cases).index(key)

    @property
    def options(self) -> Mapping[str, Any]:
        options = {n: getattr(self.effort, n) for n in ("threads", "present", "rounds", "limit", "search")}
        return options | {"programs": [text(case.program) for case in self.effort.cases]}

    def to_json(self, key: str, result: OperatorComparison) -> Any:
        record = to_record(result.derivation)
        return {"case": key, "record": record, "certificate": result.certificate, "times": asdict(result.times)}

    def from_json(self, value: Any) -> tuple[str, OperatorComparison] | None:
        case = self.cases.get(value["case"])
        try:
            derivation = from_record(value["record"])
        except RecordError:
            return None
        if case is None or derivation.start != case.program:
            return None
        return case.name, OperatorComparison(case, derivation, value["certificate"], Measurements(**value["times"]))


def derive(case: OperatorCase, limit: float) -> Derivation:
    """Return the cheapest derivation (by estimate) of a program with the wanted call; raise ValueError without one."""
    search = Search(case.program, program_seconds, Options(targets=find_operators([case.wanted])))
    found: list[tuple[float, int]] = []
    until = perf_counter() + limit
    for event in search.run():
        if isinstance(event, Found) and _has(event.state.program, case):
            if not found:
                until = min(until, perf_counter() + CHEAPER_SEARCH_SECONDS)
            found.append((event.seconds, event.state.id))
        if perf_counter() > until:
            break
    if not found:
        wanted = f"{case.wanted} with {dict(case.attributes)}"
        raise ValueError(f"{case.name}: found no program with {wanted} among {len(search.states)} states, expected one")
    return fuse_eoperators(search.derivation(min(found)[1]))


def _has(program: Program, case: OperatorCase) -> bool:
    vias = [e.via for e in program.equations if e.via and e.via.operator not in (EOPERATOR, VIEW)]
    return any(
        via.operator.removeprefix("Batch") == case.wanted and case.attributes.items() <= dict(via.attributes).items()
        for via in vias
    )


def compare_operator(case: OperatorCase, effort: OperatorEffort) -> OperatorComparison:
    """Derive and measure *case*; raise ValueError if no derivation is found or the plan does not run."""
    derivation = derive(case, effort.search)
    certificate = combined_verdict(tuple(certify(step.before, step.after) for step in derivation.steps))
    with tempfile.TemporaryDirectory() as folder:
        paths = {when: Path(folder) / f"{when}.ein" for when in (BEFORE, AFTER)}
        paths[BEFORE].write_text(text(derivation.start))
        paths[AFTER].write_text(text(derivation.end))
        tasks = {
            label_of(when, backend): Task(str(path), backend, effort.threads)
            for when, path in paths.items()
            for backend in (*((NUMPY,) if when == BEFORE else (DIRECT,)), *effort.present)
        }
        tasks[label_of(AFTER, OURS)] = Task(str(paths[BEFORE]), OURS, effort.threads, budget=effort.search)
        homes = {label: HOMES.get(task.engine, task.engine) for label, task in tasks.items()}
        times = measure_engines(tasks, label_of(AFTER, DIRECT), effort.rounds, effort.limit, homes)
    return OperatorComparison(case, derivation, certificate, times)


def table3(results: Collection[OperatorComparison], failures: Mapping[str, str]) -> ResultTable:
    """Table 3: the fastest backend of each operator before and after, operations, and bytes moved."""
    rows: list[tuple[Cell, ...]] = []
    for one in results:
        start, end = one.derivation.start, one.derivation.end
        libraries = (ORT, TORCH, COMPILED, NUMPY)
        before = one.fastest(BEFORE, (*libraries, GENERATED))
        after = one.fastest(AFTER, (DIRECT, *libraries, GENERATED))
        assert before is not None and after is not None
        first, then = one.seconds(BEFORE, before), one.seconds(AFTER, after)
        assert first is not None and then is not None
        libraries_best = one.fastest(BEFORE, libraries)
        kept = one.speedup(OURS, libraries_best) if libraries_best is not None else None
        taken = one.seconds(AFTER, OURS)
        was, now = _work(start), _work(end)
        rows.append(
            (
                one.case.name, one.case.figure, before, first * 1e3, describe_operators(end), _plan(after), then * 1e3,
                one.speedup(after, before), was[0], now[0], was[1], now[1],
                *one.case.published, one.case.published[0] / one.case.published[1],
                len(one.derivation.steps), one.certificate,
                one.times.said.get(label_of(AFTER, OURS)), None if taken is None else taken * 1e3, kept,
                max(one.times.errors.values(), default=None),
                round(one.times.load, 1),
            )
        )  # fmt: skip
    head = (
        "case", "figure", "before_by", "before_ms", "after", "after_by", "after_ms", "speedup", "before_gflop",
        "after_gflop", "before_mb", "after_mb", "published_before_ms", "published_after_ms", "published_speedup",
        "steps", "certificate", "kept_here", "kept_ms", "kept_speedup", "max_rel_error", "load",
    )  # fmt: skip
    return ResultTable("e2", "Table 3: the case studies", head, tuple(rows), _with(TABLE3_NOTE, results, failures))


TABLE3_NOTE = (
    "Before and after: by the fastest backend of each. GFLOP: operations; MB: bytes that all kernels and calls read "
    "and write, without weight-only work (the paper's DRAM and L2 counts are of its GPU). "
    "Published: A100, cuDNN's best algorithm, at the paper's sizes; G2BMM is smaller here. The published G2BMM after "
    "is an approximation, ours is exact. Kept here: the program that tuning selects on this machine, which may differ "
    "from the paper's for its GPU, and its speed-up over the fastest library before."
)


def _work(program: Program) -> tuple[float, float]:
    """Return the GFLOP and megabytes of all equations but views and weight-only ones."""
    folded = weight_only(program)
    runs = [e for e in program.equations if e.name not in folded and not (e.via and e.via.operator == VIEW)]
    return sum(work(e.scope).flops for e in runs) / 1e9, sum(work(e.scope).nbytes for e in runs) / 1e6


def _plan(backend: str) -> str:
    return {DIRECT: "our plan", OURS: "what is kept"}.get(backend, backend)


def fig16(results: Collection[OperatorComparison], failures: Mapping[str, str], backends: Iterable[str]) -> ResultTable:
    """Fig. 16: each operator before and after by each backend."""
    rows: list[tuple[Cell, ...]] = []
    for one in results:
        known = {*one.times.samples, *one.times.refused}
        for backend in (*backends, DIRECT, *((OURS,) if label_of(AFTER, OURS) in known else ())):
            base = backend if backend not in (DIRECT, OURS) else one.fastest(BEFORE, (ORT, TORCH, COMPILED, NUMPY))
            label, refused = label_of(BEFORE, base or backend), one.times.refused
            times = one.seconds(BEFORE, base or backend), one.seconds(AFTER, backend)
            why = [refused[name] for name in (label, label_of(AFTER, backend)) if name in refused]
            rows.append(
                (
                    one.case.name,
                    _plan(backend),
                    *(t * 1e3 if t is not None else None for t in times),
                    one.speedup(backend, base),
                    base if base != backend else None,
                    _largest(one.error(BEFORE, base or backend), one.error(AFTER, backend)),
                    "; ".join(why) or None,
                )
            )
    head = ("case", "backend", "before_ms", "after_ms", "speedup", "before_by", "max_rel_error", "refused")
    return ResultTable("e3", "Fig. 16: by backend", head, tuple(rows), _with(FIG16_NOTE, results, failures))


FIG16_NOTE = (
    "Before: the operator in the backend's own form. After: the program that the paper derives; the backend runs both "
    "its library operator and its eOperators, in standard operators for ONNX Runtime and PyTorch. generated: every "
    "equation is a generated kernel. our plan: after, library calls and otherwise generated kernels, chosen without "
    "measurement; before, the fastest library. what is kept: the program that tuning selects on this machine by "
    "measurement (e2 describes it); before, the fastest library."
)


def _largest(*errors: float | None) -> float | None:
    return max((error for error in errors if error is not None), default=None)


def _with(note: str, results: Iterable[OperatorComparison], failures: Mapping[str, str]) -> str:
    loads = [one.times.load for one in results]
    return " ".join([note, *busy_notes(loads), *(f"{name} was not compared: {why}." for name, why in failures.items())])
