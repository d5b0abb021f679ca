"""The tables of the operator studies: Table 3 (``e2``) and Fig. 16 (``e3``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from einnet_explore.algebra.equations import weight_only
from einnet_explore.cost import work
from einnet_explore.explore.operator_cases import AFTER, BEFORE, Compared, label_of
from einnet_explore.explore.sheet import Cell, Sheet
from einnet_explore.graph.bench.cases import called
from einnet_explore.graph.bench.engines import COMPILED, DIRECT, GENERATED, NUMPY, ORT, OURS, TORCH
from einnet_explore.ir import VIEW, Program


def table3(results: Iterable[Compared], failures: Mapping[str, str]) -> Sheet:
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
        was, now = _work(start), _work(end)
        rows.append(
            (
                one.case.name, one.case.figure, before, first * 1e3, called(end), _plan(after), then * 1e3,
                one.speedup(after, before), was[0], now[0], was[1], now[1],
                *one.case.published, one.case.published[0] / one.case.published[1],
                len(one.derivation.steps), one.certificate,
                one.times.said.get(label_of(AFTER, OURS)), kept,
            )
        )  # fmt: skip
    head = (
        "case", "figure", "before_by", "before_ms", "after", "after_by", "after_ms", "speedup", "before_gflop",
        "after_gflop", "before_mb", "after_mb", "published_before_ms", "published_after_ms", "published_speedup",
        "steps", "certificate", "kept_here", "kept_speedup",
    )  # fmt: skip
    return Sheet("e2", "Table 3: the case studies", head, tuple(rows), _with(TABLE3_NOTE, failures))


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


def fig16(results: Iterable[Compared], failures: Mapping[str, str], backends: Iterable[str]) -> Sheet:
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
                    "; ".join(why) or None,
                )
            )
    head = ("case", "backend", "before_ms", "after_ms", "speedup", "before_by", "refused")
    return Sheet("e3", "Fig. 16: by backend", head, tuple(rows), _with(FIG16_NOTE, failures))


FIG16_NOTE = (
    "Before: the operator in the backend's own form; after: the derived program, its library operator and its "
    "eOperators both by that backend, in standard operators for ONNX Runtime and PyTorch. generated: every equation as "
    "a generated kernel. Our plan after, library calls and generated kernels, beside the fastest library before, "
    "as is what search and measuring keep on this machine (e2 says what it is)."
)


def _with(note: str, failures: Mapping[str, str]) -> str:
    return " ".join([note, *(f"{name} was not compared: {why}." for name, why in failures.items())])
