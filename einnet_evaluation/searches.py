"""The searches behind the paper's figures, by our engine: Fig. 17 (``e4``), Fig. 18 (``e5``), Fig. 19 (``e6``).

The strategy is ``paper``, on one thread.  Counts are deterministic; times are of this machine, so tables compare the
growth of times with the published growth.  Every search has a time limit; ``complete`` says whether it finished.

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
from einnet_explore.cost import program_seconds
from einnet_explore.ir import EOPERATOR, VIEW, Attribute, Program
from einnet_explore.operators import find_operators
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

P = ParamSpec("P")
T = TypeVar("T")
Priced: TypeAlias = "tuple[float, Program]"

CHEAPEST_COUNT = 3


@dataclass(frozen=True, slots=True)
class Depth:
    """Results of a search to MaxDepth *depth*.

    *seconds* are processor time; *states* counts the programs that moves reached, *kept* the expanded ones; *cheapest*
    are the estimates and programs of the ``CHEAPEST_COUNT`` cheapest candidates with different library calls,
    *original* those of the original operator; *found*: a candidate calls the target; *complete*: the search finished
    the depth within its time limit.
    """

    depth: int
    seconds: float = 0.0
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
    gc.set_threshold(50_000, 20, 20)  # expressions have no reference cycles, see ``derive``
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
    level = replace(level, seconds=level.seconds + seconds)
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
                total.seconds + level.seconds,
                total.states + level.states,
                total.kept + level.kept,
                total.candidates + level.candidates,
                _cheapest((*total.cheapest, *level.cheapest)),
                total.original,
                total.found or level.found,
                total.complete and level.complete,
            )
        yield total


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

WITH, UNPRUNED, UNGUIDED = (True, True), (False, True), (True, False)
"""(fingerprint, converging derivation): both, without fingerprint, without converging derivation."""


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """MaxDepth, time limit of each search, and whether the cheapest candidates are measured."""

    max_depth: int = 6
    limit: float = 60.0
    measure: bool = True


QUICK = SearchEffort(3, 3.0, False)


@dataclass(slots=True)
class SearchLab:
    """Searches shared by several figures, each run once in its own process; *note* is called before each."""

    effort: SearchEffort
    note: Callable[[str], object] = lambda _: None
    results: dict[Variant, tuple[Depth, ...]] = field(default_factory=dict)

    def run(self, variants: Iterable[Variant]) -> None:
        """Run the searches without results; ``results`` are valid after an interrupt."""
        for variant in variants:
            if variant not in self.results:
                name, fingerprint, converging = variant
                off = [w for w, on in (("no fingerprint", fingerprint), ("no converging", converging)) if not on]
                self.note(" ".join([name, *off]))
                self.results[variant] = run_in_process(
                    search_case, name, self.effort.max_depth, self.effort.limit, fingerprint, converging
                )


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
