"""The tables of the operator studies: Table 3 (``e2``) and Fig. 16 (``e3``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from einnet_explore.algebra.equations import weight_only
from einnet_explore.cost import work
from einnet_explore.explore.operator_cases import AFTER, BEFORE, Compared, label_of
from einnet_explore.explore.resumed import busy
from einnet_explore.explore.sheet import Cell, Sheet
from einnet_explore.graph.bench.cases import called
from einnet_explore.graph.bench.engines import COMPILED, DIRECT, GENERATED, NUMPY, ORT, OURS, TORCH
from einnet_explore.ir import VIEW, Program


def table3(results: Collection[Compared], failures: Mapping[str, str]) -> Sheet:
    """Table 3: the fastest way to run each operator before, and after; what is computed and moved."""
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
                one.case.name, one.case.figure, before, first * 1e3, called(end), _plan(after), then * 1e3,
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
    return Sheet("e2", "Table 3: the case studies", head, tuple(rows), _with(TABLE3_NOTE, results, failures))


TABLE3_NOTE = (
    "Before and after: by the fastest backend for each, which need not be the same. GFLOP: operations; MB: what every "
    "kernel and call reads and writes once, weight-only work aside (the paper's DRAM and L2 counts are of its GPU). "
    "Published: A100, cuDNN's best algorithm, at the paper's sizes; G2BMM is smaller here. The published G2BMM after "
    "is an approximation, ours is exact. Kept here: what search and measuring choose on this machine, not necessarily "
    "what the paper derives for its GPU, and its speed-up over the fastest library before."
)


def _work(program: Program) -> tuple[float, float]:
    """GFLOP and megabytes of what runs."""
    folded = weight_only(program)
    runs = [e for e in program.equations if e.name not in folded and not (e.via and e.via.operator == VIEW)]
    return sum(work(e.scope).flops for e in runs) / 1e9, sum(work(e.scope).nbytes for e in runs) / 1e6


def _plan(backend: str) -> str:
    return {DIRECT: "our plan", OURS: "what is kept"}.get(backend, backend)


def fig16(results: Collection[Compared], failures: Mapping[str, str], backends: Iterable[str]) -> Sheet:
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
    return Sheet("e3", "Fig. 16: by backend", head, tuple(rows), _with(FIG16_NOTE, results, failures))


FIG16_NOTE = (
    "Before: the operator in the backend's own form; after: the program that the paper derives, its library operator "
    "and its eOperators both by that backend, in standard operators for ONNX Runtime and PyTorch. generated: every "
    "equation as a generated kernel. Our plan after, library calls where there are any and generated kernels for the "
    "rest, nothing measured, beside the fastest library before. What is kept: the contest that parts of models have, "
    "with the original in ONNX Runtime; every engine measured (e2 says what it is)."
)


def _largest(*errors: float | None) -> float | None:
    return max((error for error in errors if error is not None), default=None)


def _with(note: str, results: Iterable[Compared], failures: Mapping[str, str]) -> str:
    loads = [one.times.load for one in results]
    return " ".join([note, *busy(loads), *(f"{name} was not compared: {why}." for name, why in failures.items())])
