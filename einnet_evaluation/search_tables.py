"""Tables of the searches: Fig. 17 (``e4``), Fig. 18 (``e5``) and Fig. 19 (``e6``) with the published numbers."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import TypeAlias

from einnet_evaluation.cases import CASES, PUBLISHED_PRUNED, UNPRUNED_DEPTH, Case, Published
from einnet_evaluation.searches import UNPRUNED, WITH, Depth, Variant, measured_seconds, needed
from einnet_explore.viz.tables import Cell, ResultTable

Results: TypeAlias = "Mapping[Variant, tuple[Depth, ...]]"


def search_tables(experiment: str, results: Results, measure: bool = False) -> tuple[ResultTable, ...]:
    """Return the tables of *experiment* from the searches in *results*; raise ValueError for an unknown experiment."""
    have = {v: results[v] for v in needed(experiment) if v in results}
    match experiment:
        case "e4":
            return (speedups(have, measure),)
        case "e5":
            return growth(have), steps(have)
        case _:
            return (ablation(have),)


def speedups(results: Results, measure: bool) -> ResultTable:
    """Fig. 17: speed-up of the best candidate within a MaxDepth over the original."""
    rows: list[tuple[Cell, ...]] = []
    for (name, *_), depths in results.items():
        milliseconds = CASES[name].milliseconds
        times = measured_seconds(depths) if measure else {}
        ours = {d.depth: d for d in depths}
        for depth in range(1, max(len(milliseconds), max(ours, default=0)) + 1):
            theirs = milliseconds[depth - 1] if depth <= len(milliseconds) else None
            published = (milliseconds[0] / theirs, theirs) if theirs else (None, None)
            d = ours.get(depth)
            if d is None or d.original is None or not d.cheapest:
                rows.append((name, depth, None, None, *published, None, None, None, False))
                continue
            ran = [times[program] for _, program in d.cheapest if program in times]
            rows.append(
                (
                    name,
                    depth,
                    d.original[0] / d.cheapest[0][0],
                    times[d.original[1]] / min(ran) if ran and d.original[1] in times else None,
                    *published,
                    d.cheapest[0][0] * 1e3,
                    min(ran) * 1e3 if ran else None,
                    d.states,
                    d.complete,
                )
            )
    head = (
        "case", "max_depth", "speedup_estimated", "speedup_measured", "speedup_published", "published_ms",
        "estimated_ms", "measured_ms", "states", "complete",
    )  # fmt: skip
    return ResultTable("e4", "Fig. 17: speed-up against MaxDepth", head, tuple(rows), SPEEDUP_NOTE)


SPEEDUP_NOTE = (
    "Speed-up: the original operator as one library call, over the best candidate within MaxDepth. Estimated: by the "
    "cost model, for this kind of processor; measured: the fastest of the cheapest candidates by estimate, run here on "
    "one thread, interleaved with the original. Published: A100, relative to MaxDepth 1. The published G2BMM is an "
    "approximation: its windows reach into the next residue class; ours is exact. States and candidates are counted "
    "without running the search. Depths without our numbers were not completed within the time limit."
)


def growth(results: Results) -> ResultTable:
    """Fig. 18(a): search time and states against MaxDepth, with and without converging derivation."""
    rows: list[tuple[Cell, ...]] = []
    for (name, _, converging), depths in results.items():
        published = CASES[name].searches if converging else {}
        ours = {d.depth: d for d in depths}
        for depth in sorted({*ours, *published} - {0}):
            d, theirs = ours.get(depth), published.get(depth)
            rows.append(
                (
                    name,
                    converging,
                    depth,
                    d.seconds if d else None,
                    _growth(d, ours) if d else None,
                    d.count_seconds if d else None,
                    d.states if d else None,
                    d.candidates if d else None,
                    theirs.seconds if theirs else None,
                    _published_growth(depth, published) if theirs else None,
                    theirs.states if theirs else None,
                    bool(d and d.complete),
                )
            )
    head = (
        "case", "converging", "max_depth", "seconds", "times_per_depth", "count_seconds", "states", "candidates",
        "published_seconds", "published_times_per_depth", "published_states", "complete",
    )  # fmt: skip
    return ResultTable("e5", "Fig. 18(a): search time against MaxDepth", head, tuple(rows), GROWTH_NOTE)


GROWTH_NOTE = (
    "Seconds: processor time of the search, one thread; empty if it did not complete this MaxDepth within its time "
    "limit. Times per depth: seconds over the seconds of the next smaller MaxDepth (a geometric mean if depths are "
    "missing). States and candidates are counted without running the search, in count seconds, which count with and "
    "without converging derivation at once; completed searches have the same. Published: the authors' artifact, C++, "
    "one thread of another machine. Incomplete rows reached the time limit and count only the states until then."
)


def _growth(d: Depth, ours: Mapping[int, Depth]) -> float | None:
    before = ours.get(d.depth - 1)
    if not (before and d.complete and before.complete and d.seconds and before.seconds):
        return None
    return d.seconds / before.seconds


def _published_growth(depth: int, published: Mapping[int, Published]) -> float | None:
    before = max((n for n in published if n < depth), default=None)
    if before is None:
        return None
    return float((published[depth].seconds / published[before].seconds) ** (1 / (depth - before)))


def steps(results: Results) -> ResultTable:
    """Fig. 18(b): the explorative steps after which the target is found, with and without converging derivation."""
    rows: list[tuple[Cell, ...]] = []
    for (name, _, converging), depths in results.items():
        case = CASES[name]
        found = next((d.depth for d in depths if d.found), None)
        done = max((d.depth for d in depths if d.complete), default=None)
        first = found if found is not None else f"> {done}" if done is not None else None
        paper = case.paper_steps[0 if converging else 1] if case.paper_steps else None
        theirs = case.steps[0 if converging else 1]
        rows.append((name, _target(case), converging, first, paper, theirs, done, found is not None))
    head = (
        "case", "target", "converging", "explorative_steps", "paper_steps", "artifact_steps", "searched_to_depth",
        "found",
    )  # fmt: skip
    return ResultTable("e5_steps", "Fig. 18(b): explorative steps to the target", head, tuple(rows), STEPS_NOTE)


STEPS_NOTE = (
    "Our simplifications (tightening, merging) count as steps. The paper divides rules into steps differently, so "
    "compare numbers of steps only between the rows of one case. `> n`: not found by a complete search to MaxDepth n."
)


def _target(case: Case) -> str:
    return f"{case.wanted}({', '.join(f'{k}={v}' for k, v in case.attributes.items())})"


def ablation(results: Results) -> ResultTable:
    """Fig. 19: states and time without the fingerprint, at each MaxDepth that both searches completed."""
    rows: list[tuple[Cell, ...]] = []
    pruned: list[float] = []
    saved: list[float] = []
    for name in dict.fromkeys(name for name, *_ in results):
        kept, all_of = (results.get((name, *flags), ()) for flags in (WITH, UNPRUNED))
        both = list(zip(kept[1:], all_of[1:], strict=False))
        for on, off in both:
            complete = on.complete and off.complete
            rows.append(
                (
                    name,
                    on.depth,
                    on.kept,
                    off.kept,
                    _less(on.kept, off.kept) if complete else None,
                    on.seconds,
                    off.seconds,
                    _less(on.seconds, off.seconds) if complete and on.seconds and off.seconds else None,
                    on.candidates,
                    off.candidates,
                    complete,
                )
            )
        done = [(on, off) for on, off in both if on.complete and off.complete]
        pruned += [_less(on.kept, off.kept) for on, off in done[-1:]]
        timed = [(on.seconds, off.seconds) for on, off in done if on.seconds and off.seconds]
        saved += [_less(on, off) for on, off in timed[-1:]]
    for name in dict.fromkeys(name for name, *_ in results):
        case = CASES[name]
        states = case.searches[UNPRUNED_DEPTH].states
        less = _less(states, case.unpruned)
        rows.append((f"{name}, artifact", UNPRUNED_DEPTH, states, case.unpruned, less, *(None,) * 5, True))
    head = (
        "case", "max_depth", "states_with", "states_without", "pruned_percent", "seconds_with", "seconds_without",
        "time_saved_percent", "candidates_with", "candidates_without", "complete",
    )  # fmt: skip
    return ResultTable("e6", "Fig. 19: states pruned by the fingerprint", head, tuple(rows), _note(pruned, saved))


def _note(pruned: list[float], saved: list[float]) -> str:
    said = (
        "States: expanded states, counted without running the search; without the fingerprint, a state is expanded "
        "once for each path to it. Seconds: processor time of the search, where it was completed; completed searches "
        "have the counted states and candidates. Published average at MaxDepth "
        f"{UNPRUNED_DEPTH}: {PUBLISHED_PRUNED[0]} % of the states pruned, {PUBLISHED_PRUNED[1]} % of the time saved."
    )
    ours = [
        f"{fmean(values):.1f} % of the {kind} at the deepest MaxDepth with both {numbers}"
        for values, kind, numbers in ((pruned, "states", "counts"), (saved, "time", "times"))
        if values
    ]
    if not ours:
        return said
    return (
        f"{said} Ours: {', '.join(ours)}. Our search remembers results by scope, also without the fingerprint, so "
        "expanding a state again costs little time."
    )


def _less(now: float, before: float) -> float:
    return 100 * (1 - now / before) if before else 0.0
