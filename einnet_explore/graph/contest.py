"""One subprogram: its original against derived candidates, measured on this device (EinNet §6.3, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.algebra.measure import intensity
from einnet_explore.backends.errors import BackendError
from einnet_explore.backends.measure import compare, times_faster
from einnet_explore.backends.profiles import Key, ProfileStore, key_of
from einnet_explore.backends.program import CompiledProgram, compile_program
from einnet_explore.graph.fuse import fuse
from einnet_explore.ir import Program
from einnet_explore.rules import Derivation
from einnet_explore.search.engine import Cost, Options, Search
from einnet_explore.search.events import Found

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

AGREEMENT = 1e-4
"""The largest error allowed, relative to the largest output."""

MARGIN = 0.95
"""A candidate replaces the original when it takes less than this part of its time: less is within the noise."""

EFFORT = 45.0
"""Seconds of search for a whole model, dealt out to its subprograms by their part of its time."""

LEAST = 0.5
"""Seconds of search for the smallest subprogram that is worth one."""

NEGLIGIBLE = 1e-3
"""The part of the model's time below which a subprogram is left alone: any gain drowns in the noise of the whole."""

COMPUTE_BOUND = 4.0
"""The paper's threshold (§5): FLOPs a tensor element below which an expression is memory-bound."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to search and to measure for one subprogram."""

    threads: int = 1
    max_depth: int = 7
    seconds: float = 4.0
    finalists: int = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a contest: the winner's derivation (None: the original stays) and the times measured."""

    seconds_before: float
    seconds_after: float
    winner: Derivation | None
    search_seconds: float
    states: int
    why: str


def candidates(program: Program, cost: Cost, settings: Settings) -> tuple[list[tuple[float, int]], Search]:
    """The search, and its executable programs as (estimated seconds, state), cheapest first.

    Choices are made on the compute-bound equations; the others are generated as they are.
    """
    heavy = {e.name for e in program.equations if intensity(e.scope) >= COMPUTE_BOUND}
    fixed = frozenset(e.name for e in program.equations if heavy and e.name not in heavy)
    search = Search(program, cost, Options(max_depth=settings.max_depth, fixed=fixed))
    until = perf_counter() + settings.seconds
    found: list[tuple[float, int]] = []
    for event in search.run():
        if isinstance(event, Found):
            found.append((event.seconds, event.state.id))
        if perf_counter() > until:
            break
    return sorted(found), search


def contest(
    program: Program,
    original: Callable[[], Arrays],
    feeds: Arrays,
    constants: Arrays,
    cost: Cost,
    settings: Settings,
    store: ProfileStore,
    model_seconds: float,
) -> Outcome:
    """Search *program*, run the finalists on *feeds* beside *original* and say which is the fastest that agrees.

    The search lasts as long as the part of *model_seconds* that *original* takes is worth; there is none where that
    part is too small to be seen in the whole.

    *feeds* and *constants* are keyed by *program*'s input names, *original* returns its outputs by name.  Times go to
    *store*; a contest whose times are all there is not measured again.
    """
    began = perf_counter()
    want = original()
    mine = replace(key_of(program, settings.threads), operator="onnxruntime")
    # Measured alone, under a name of its own: the same search is held again however the finalists' times came out.
    before = _time(store, replace(mine, operator="onnxruntime alone"), original)
    share = before / model_seconds
    if share < NEGLIGIBLE:
        why = f"takes {before * 1e6:.0f} µs of the model's {model_seconds * 1e3:.1f} ms: no gain there could be seen"
        return Outcome(before, before, None, perf_counter() - began, 0, why)
    settings = replace(settings, seconds=min(settings.seconds, max(LEAST, EFFORT * share)))
    ranked, search = candidates(program, cost, settings)
    promising = [search.derivation(state) for seconds, state in ranked[: settings.finalists] if seconds < before]
    if not promising:
        least = f"{ranked[0][0] * 1e6:.0f} µs" if ranked else "no candidate"
        why = f"the cheapest of {len(ranked)} candidates: estimated {least}, the original takes {before * 1e6:.0f} µs"
        return Outcome(before, before, None, perf_counter() - began, len(search.states), why)
    runners: dict[str, Callable[[], object]] = {"original": original}
    entered: dict[str, Derivation] = {}
    refused: list[str] = []
    for n, derivation in enumerate(promising):
        fused = fuse(derivation)
        try:
            compiled = compile_program(fused.end, settings.threads, constants=constants)
            error = largest_error(want, compiled.run(feeds))
        except BackendError as problem:
            refused.append(str(problem))
            continue
        if error > AGREEMENT:
            refused.append(f"a candidate differs by {error:.1e} of the largest output")
            continue
        entered[str(n)] = fused
        runners[str(n)] = runner(compiled, feeds)
    keys = {"original": mine, **{name: key_of(d.end, settings.threads) for name, d in entered.items()}}
    times = _times(store, keys, runners)
    before = times.pop("original")
    spent = perf_counter() - began
    best = min(times, key=lambda name: times[name], default=None)
    if best is None:
        return Outcome(before, before, None, spent, len(search.states), "; ".join(refused))
    after = times[best]
    if after > MARGIN * before:
        why = f"the fastest of {len(entered)} measured candidates takes {after / before:.2f} of the original's time"
        return Outcome(before, after, None, spent, len(search.states), why)
    return Outcome(before, after, entered[best], spent, len(search.states), f"{before / after:.2f}x in its own right")


def _time(store: ProfileStore, key: Key, call: Callable[[], object]) -> float:
    known = store.get(key)
    if known:
        return known.seconds
    measured = compare({"it": call}, rounds=5, min_seconds=0.02)["it"].low
    store.put(key, measured, "measured alone")
    return measured


def _times(store: ProfileStore, keys: Mapping[str, Key], calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The time of each call: as stored if all are, else all measured in turns and stored."""
    known = {name: profile.seconds for name, key in keys.items() if (profile := store.get(key))}
    if len(known) == len(keys):
        return known
    timings = compare(calls, rounds=9, min_seconds=0.05)
    base = timings["original"]
    measured = {name: base.low / times_faster(base, timing) for name, timing in timings.items()}
    for name, seconds in measured.items():
        store.put(keys[name], seconds, "measured in turns")
    return measured


def runner(compiled: CompiledProgram, feeds: Arrays) -> Callable[[], object]:
    """A call that runs *compiled* as a plan does: inputs copied in, outputs out."""
    return lambda: compiled.run(feeds)


def largest_error(want: Arrays, got: Arrays) -> float:
    """The largest difference over all outputs, relative to each output's largest magnitude."""
    return max((_relative(want[name], got[name]) for name in want), default=0.0)


def _relative(want: Array, got: Array) -> float:
    if want.shape != got.shape:
        return float("inf")
    if not want.size:
        return 0.0
    difference = float(np.max(np.abs(want.astype(np.float64) - got.astype(np.float64))))
    largest = float(np.max(np.abs(want)))
    if np.isnan(difference):
        return 0.0 if np.array_equal(want, got, equal_nan=True) else float("inf")
    return difference / largest if largest else difference
