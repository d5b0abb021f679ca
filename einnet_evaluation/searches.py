"""The searches behind the paper's figures, by our engine: Fig. 17 (``e4``), Fig. 18 (``e5``), Fig. 19 (``e6``).

The strategy is ``paper``, on one thread.  Each search runs within a time limit and is timed; times are of this machine,
so tables compare their growth with the published growth.  Its states and candidates are also counted without running it
(``einnet_evaluation/state_counts.py``), which reaches greater depths; where a search was completed, both must agree.

A level-by-level search to MaxDepth d contains the searches to all smaller depths, and the depth of every event is
known, so one run has the counts, times and costs of every smaller MaxDepth.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from time import perf_counter, process_time
from typing import Any, ParamSpec, TypeAlias, TypeVar

from einnet_evaluation.cases import CASES, Case
from einnet_evaluation.state_counts import LevelCount, StateCount
from einnet_explore.cost import program_seconds
from einnet_explore.ir import EOPERATOR, VIEW, Attribute, Program
from einnet_explore.operators.library import find_operators
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import (
    Found,
    Level,
    MatchRefused,
    Pruned,
    Reached,
    Searched,
    SearchEvent,
    State,
)
from einnet_explore.strategies.options import Options
from einnet_explore.support.errors import BackendError
from einnet_explore.support.limits import COLLECTION_THRESHOLDS

P = ParamSpec("P")
T = TypeVar("T")
Priced: TypeAlias = "tuple[float, Program]"

CHEAPEST_COUNT = 3

Flags: TypeAlias = "tuple[bool, bool]"
WITH, UNPRUNED, UNGUIDED = (True, True), (False, True), (True, False)
"""(fingerprint, converging derivation): both, without fingerprint, without converging derivation."""


@dataclass(frozen=True, slots=True)
class Depth:
    """Results of a search to MaxDepth *depth*.

    *seconds* are processor time, None if the states were counted and the search was not completed; *count_seconds* are
    those of counting, if they were counted.  *states* counts the programs that moves reached, *kept* the expanded ones;
    *cheapest* are the estimates and programs of the ``CHEAPEST_COUNT`` cheapest candidates with different library
    calls, *original* those of the original operator; *found*: a candidate calls the target; *complete*: the search
    finished the depth within its time limit, or its states were counted.
    """

    depth: int
    seconds: float | None = 0.0
    count_seconds: float | None = None
    states: int = 0
    kept: int = 0
    candidates: int = 0
    cheapest: tuple[Priced, ...] = ()
    original: Priced | None = None
    found: bool = False
    complete: bool = False


def search_depths(
    case: Case, max_depth: int, limit: float, fingerprint: bool = True, converging: bool = True
) -> tuple[Depth, ...]:
    """Search *case* by strategy ``paper`` to *max_depth* for at most *limit* seconds; return an entry for each depth.

    Depths that were not started have no entry.  If the search is exhausted at some depth, deeper entries repeat it.
    """
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    options = Options("paper", max_depth, fingerprint, converging, targets=find_operators(case.targets))
    engine = Search(case.make(), program_seconds, options)
    levels = [Depth(0)]
    began, last = perf_counter(), process_time()
    for event in engine.run():
        now = process_time()
        level = depth_of(event, engine.states)
        if level == len(levels):
            levels.append(Depth(level))
        levels[level] = _with(levels[level], event, now - last, case)
        last = now
        if perf_counter() - began > limit:
            break
    done = tuple(_summed(levels))
    # A depth counts only if all smaller depths are complete.
    done = tuple(d for d in done if d.depth == 0 or done[d.depth - 1].complete)
    if engine.complete and len(done) <= max_depth and all(d.complete for d in done):
        done += tuple(replace(done[-1], depth=d) for d in range(len(done), max_depth + 1))
    return done


def depth_of(event: SearchEvent, states: list[State]) -> int:
    """Return the smallest MaxDepth of a search that has *event*."""
    match event:
        case Level(depth):
            return depth
        case Reached(state) | Found(state):
            return state.depth
        case Pruned(parent, _, _, int(twin)) if states[twin].phase != "converging":
            return states[parent].depth + 1
        case Pruned(parent):
            return states[parent].depth
        case MatchRefused(state=number) | Searched(state=number):
            return states[number].depth


def _with(level: Depth, event: SearchEvent, seconds: float, case: Case) -> Depth:
    level = replace(level, seconds=(level.seconds or 0.0) + seconds)
    match event:
        case Level():
            return replace(level, complete=True)
        case Reached():
            return replace(level, states=level.states + 1, kept=level.kept + 1)
        case Pruned():
            return replace(level, states=level.states + 1)
        case Found(state, cost):
            here = (cost, state.program)
            first = level.depth == 0 and case.original in (name for name, _ in _calls(state.program))
            return replace(
                level,
                states=level.states + 1,
                candidates=level.candidates + 1,
                cheapest=_cheapest((*level.cheapest, here)),
                original=min(here, level.original or here, key=_price) if first else level.original,
                found=level.found or is_target(state.program, case),
            )
    return level


def _summed(levels: Iterable[Depth]) -> Iterable[Depth]:
    total: Depth | None = None
    for level in levels:
        if total is None:
            total = level
        else:
            total = Depth(
                level.depth,
                _sum(total.seconds, level.seconds),
                _sum(total.count_seconds, level.count_seconds),
                total.states + level.states,
                total.kept + level.kept,
                total.candidates + level.candidates,
                _cheapest((*total.cheapest, *level.cheapest)),
                total.original,
                total.found or level.found,
                total.complete and level.complete,
            )
        yield total


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def count_depths(case: Case, max_depth: int, limit: float) -> dict[Flags, tuple[Depth, ...]]:
    """Count the searches of *case* to *max_depth* by (fingerprint, converging), for at most *limit* seconds.

    Depths that were not completed have no entry.
    """
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    levels = tuple(StateCount(case.make(), find_operators(case.targets), program_seconds).levels(max_depth, limit))
    return {
        flags: tuple(_summed(_counted(level, case, *flags) for level in levels)) for flags in (WITH, UNGUIDED, UNPRUNED)
    }


def _counted(level: LevelCount, case: Case, fingerprint: bool, converging: bool) -> Depth:
    found, ways = (level.candidates, level.ways) if converging else (level.near, level.near_ways)
    originals = (one for one in found if case.original in (name for name, _ in _calls(one[1])))
    return Depth(
        level.depth,
        None,
        sum(level.seconds),
        level.reached + level.pruned + ways,
        level.reached if fingerprint else level.paths,
        len(found),
        _cheapest(found),
        min(originals, key=_price, default=None) if level.depth == 0 else None,
        any(is_target(program, case) for _, program in found),
        complete=True,
    )


def join_depths(counted: tuple[Depth, ...], searched: tuple[Depth, ...]) -> tuple[Depth, ...]:
    """Return *counted* with the seconds of *searched*, and the depths that only the search has.

    Raises RuntimeError if they differ in the states or candidates of a depth that both completed.
    """
    joined = list(counted)
    for depth in searched:
        if depth.depth >= len(joined):
            joined.append(depth)
        elif depth.complete:
            here = joined[depth.depth]
            if (here.kept, here.candidates, here.found) != (depth.kept, depth.candidates, depth.found):
                raise RuntimeError(
                    f"MaxDepth {depth.depth}: counted {here.kept} states and {here.candidates} candidates, the search "
                    f"has {depth.kept} and {depth.candidates}"
                )
            joined[depth.depth] = replace(here, seconds=depth.seconds)
    return tuple(joined)


def _cheapest(priced: Iterable[Priced]) -> tuple[Priced, ...]:
    kinds: dict[object, Priced] = {}
    for one in sorted(priced, key=_price):
        kinds.setdefault(_calls(one[1]), one)
    return tuple(kinds.values())[:CHEAPEST_COUNT]


def _price(one: Priced) -> float:
    return one[0]


def _calls(program: Program) -> tuple[tuple[str, tuple[tuple[str, Attribute], ...]], ...]:
    """The library calls of *program*: operators with their attributes."""
    vias = (e.via for e in program.equations if e.via and e.via.operator not in (EOPERATOR, VIEW))
    return tuple((via.operator.removeprefix("Batch"), via.attributes) for via in vias)


def is_target(program: Program, case: Case) -> bool:
    """Return whether *program* calls the paper's target operator with its attributes."""
    return any(
        name == case.wanted and case.attributes.items() <= dict(attributes).items()
        for name, attributes in _calls(program)
    )


def count_case(name: str, max_depth: int, limit: float) -> dict[Flags, tuple[Depth, ...]]:
    """Run ``count_depths`` of the case *name*; its arguments can be pickled."""
    return count_depths(CASES[name], max_depth, limit)


def search_case(name: str, max_depth: int, limit: float, fingerprint: bool, converging: bool) -> tuple[Depth, ...]:
    """Run ``search_depths`` of the case *name*; its arguments can be pickled."""
    return search_depths(CASES[name], max_depth, limit, fingerprint, converging)


def run_in_process(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``work(*args)`` in a new process, so that caches of earlier searches do not affect its time.

    The process always ends with this call.  Raises the error of *work*, or RuntimeError if the process dies.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, work, args, kwargs), daemon=True)
    process.start()
    theirs.close()
    try:
        ok, result = ours.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the process of {work.__name__} ended with code {process.exitcode}") from None
    finally:
        ours.close()
        if process.is_alive():
            process.terminate()
        process.join()
    if not ok:
        raise result
    done: T = result
    return done


def _serve(pipe: Connection, work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # The command handles Ctrl-C and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send((True, work(*args, **kwargs)))
    except Exception as error:
        pipe.send((False, RuntimeError(f"{type(error).__name__}: {error}")))


Variant: TypeAlias = "tuple[str, bool, bool]"


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """MaxDepth, time limits of each search and of each count, and whether the cheapest candidates are measured."""

    max_depth: int = 7
    limit: float = 60.0
    count_limit: float = 3600.0
    measure: bool = True


QUICK = SearchEffort(3, 3.0, 3.0, measure=False)


@dataclass(slots=True)
class SearchLab:
    """Searches shared by several figures, each run once in its own process; *note* is called before each.

    The searches of a case share a count.
    """

    effort: SearchEffort
    note: Callable[[str], object] = lambda _: None
    counts: dict[str, dict[Flags, tuple[Depth, ...]]] = field(default_factory=dict)
    results: dict[Variant, tuple[Depth, ...]] = field(default_factory=dict)

    def run(self, variants: Iterable[Variant]) -> None:
        """Run the searches without results; ``results`` are valid after an interrupt."""
        for variant in variants:
            if variant not in self.results:
                name, fingerprint, converging = variant
                if name not in self.counts:
                    self.note(f"{name}: count")
                    effort = self.effort
                    self.counts[name] = run_in_process(count_case, name, effort.max_depth, effort.count_limit)
                off = [w for w, on in (("no fingerprint", fingerprint), ("no converging", converging)) if not on]
                self.note(" ".join([name, *off]))
                searched = run_in_process(
                    search_case, name, self.effort.max_depth, self.effort.limit, fingerprint, converging
                )
                self.results[variant] = join_depths(self.counts[name][fingerprint, converging], searched)


def needed(experiment: str) -> tuple[Variant, ...]:
    """Return the searches of *experiment*."""
    match experiment:
        case "e4":
            return tuple((name, *WITH) for name, case in CASES.items() if case.milliseconds)
        case "e5":
            return tuple((name, *flags) for name in CASES for flags in (WITH, UNGUIDED))
        case "e6":
            return tuple((name, *flags) for name in CASES for flags in (WITH, UNPRUNED))
        case _:
            raise ValueError(f"experiment {experiment!r}: expected one of e4, e5, e6")


def measured_seconds(depths: Iterable[Depth]) -> dict[Program, float]:
    """Measure each original and cheapest candidate of *depths* on one thread, in interleaved rounds.

    A program that cannot be compiled has no entry.
    """
    from einnet_explore.runtime.measurement import time_calls
    from einnet_explore.runtime.program import CompiledProgram, compile_program

    programs = dict.fromkeys(
        program for d in depths for _, program in (*d.cheapest, *((d.original,) if d.original else ()))
    )
    compiled: dict[str, tuple[Program, CompiledProgram]] = {}
    for program in programs:
        try:
            compiled[str(len(compiled))] = program, compile_program(program)
        except BackendError:
            continue
    if not compiled:
        return {}
    timings = time_calls({name: held.execute for name, (_, held) in compiled.items()}, rounds=5)
    return {program: timings[name].median for name, (program, _) in compiled.items()}
