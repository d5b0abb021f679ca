"""One subprogram: its original against derived candidates, measured on this device (EinNet §6.3, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import prod
from time import perf_counter

from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

from einnet_explore.cost.counted_work import ELEMENT_BYTES
from einnet_explore.ir import Program
from einnet_explore.pipeline.finalists import (
    MAX_ESTIMATE_RATIO,
    Variant,
    find_variants,
    select_finalists,
    variants_by_algorithm,
)
from einnet_explore.pipeline.post.chaining import chain_in_blocks
from einnet_explore.pipeline.post.fusing import fuse_eoperators
from einnet_explore.rules import Derivation
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.keys import Key, key_of
from einnet_explore.runtime.measurement import after, compare, pause, times_faster
from einnet_explore.runtime.outputs import AGREEMENT, Arrays, largest_error
from einnet_explore.strategies.closure import compute_bound
from einnet_explore.strategies.options import Cost
from einnet_explore.support.errors import BackendError
from einnet_explore.support.limits import ROOM
from einnet_explore.support.wording import counted

ProgramCompiler = Callable[[Program, Arrays], Callable[[Arrays], Arrays]]
"""Makes a program, with the arrays of its weights, into what computes its outputs from its inputs, all by name."""

MAX_CHAIN_VARIANTS = 4
"""How many entries of one algorithm are looked at for one that runs in blocks."""

OUT_OF_MEMORY = (MemoryError, Fail, RuntimeException)
"""What it is called by NumPy and by ONNX Runtime, which has classes of its own for what fails in a run."""

MAX_WINNER_RATIO = 0.95
"""A candidate replaces the original when it takes less than this part of its time: less is within the noise."""

MAX_CONTENDER_RATIO = 1.25
"""The fastest candidate that takes less than this part of the original's time may still pay beside its neighbours."""

MODEL_SEARCH_SECONDS = 45.0
"""Seconds of search for a whole model, dealt out to its subprograms by their part of its time."""

MIN_SEARCH_SECONDS = 0.5
"""Seconds of search for the smallest subprogram that is worth one."""

MAX_SEARCH_SECONDS = 120.0
"""Seconds of search for any subprogram."""

NEGLIGIBLE_SHARE = 1e-3
"""The part of the model's time below which a subprogram is left alone: any gain drowns in the noise of the whole."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to search and to measure for one subprogram, and what shall run it.

    *runtime* is ``plan`` (kernels, library calls and sessions in turn) or ``onnxruntime`` (one exported model).
    *numerics* is the most that a derivation may do to the last digits (``graph/numerics.py``).  *states* bounds a
    search in place of *seconds*: so bounded it finds the same whenever it is held.
    """

    threads: int = 1
    max_depth: int = 7
    seconds: float = 4.0
    finalists: int = 4
    runtime: str = "plan"
    numerics: str = "approximate"
    states: int | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a contest: the winner's derivation (None: the original stays) and the times measured.

    Without a winner, *contender* is the fastest candidate if it came near.
    """

    seconds_before: float
    seconds_after: float
    winner: Derivation | None
    search_seconds: float
    states: int
    why: str
    contender: Derivation | None = None


OriginalOpener = Callable[[], "tuple[Callable[[], Arrays], Arrays]"]
"""The original, ready to run, with what it is run on: its outputs by name, and the inputs by the program's names."""


@dataclass(frozen=True)
class TuningTask:
    """*program* against its original, which is *opened* if it has to be run.

    *constants* are the arrays of its weights, *engine* runs candidates, *cost* orders them, times go to *store*.
    *written* says how the original is written (``originals.written``): its time is that of its own operators.
    """

    program: Program
    opened: OriginalOpener
    constants: Arrays
    engine: ProgramCompiler
    cost: Cost
    settings: Settings
    store: ProfileStore
    found: Callable[[], tuple[list[Variant], int]] | None = None
    """The candidates, where they were searched elsewhere."""
    written: str = ""

    @cached_property
    def alone(self) -> float:
        """Seconds of the original by itself.

        It has a name of its own among the times: the same search is held again however the finalists' times came out.
        """
        return _time(self.store, self._key("onnxruntime alone"), lambda: self.opened()[0])

    @property
    def timed(self) -> bool:
        """Whether the time of the original by itself is known."""
        return self.store.get(self._key("onnxruntime alone")) is not None

    def effort(self, model_seconds: float) -> float | None:
        """Seconds of search that the original's part of *model_seconds* is worth, at most so many an expression.

        None where that part is too small for any gain to be seen in the whole.
        """
        share = self.alone / model_seconds
        if share < NEGLIGIBLE_SHARE:
            return None
        most = self.settings.seconds * max(1, len(compute_bound(self.program)))
        return min(most, max(MIN_SEARCH_SECONDS, MODEL_SEARCH_SECONDS * share), MAX_SEARCH_SECONDS)

    def negligible(self, model_seconds: float) -> Trial:
        """The outcome where ``effort`` is None."""
        before = self.alone
        why = f"takes {before * 1e6:.0f} µs of the model's {model_seconds * 1e3:.1f} ms: no gain there could be seen"
        return Trial(before, before, None, 0.0, 0, why)

    def hold(self, seconds: float) -> Trial:
        """Search for *seconds*, run the finalists beside the original and say which is the fastest that agrees.

        A contest whose times are all stored is not measured again.
        """
        began = perf_counter()
        before = self.alone
        ranked, states = self.found() if self.found else self._searched(seconds)
        promising = select_finalists(ranked, self.settings.finalists, MAX_ESTIMATE_RATIO * before)
        if not promising:
            least = f"{ranked[0].seconds * 1e6:.0f} µs" if ranked else "no candidate"
            found = counted(len(ranked), "candidate")
            why = f"the cheapest of {found}: estimated {least}, the original takes {before * 1e6:.0f} µs"
            return Trial(before, before, None, perf_counter() - began, states, why)
        if (lacks := ROOM.lacks(working_set_bytes(self.program), "the original")) is not None:
            return Trial(before, before, None, perf_counter() - began, states, lacks)
        original, feeds = self.opened()
        forms = [fuse_eoperators(entry.derivation()) for entry in promising]
        forms += blocked_forms(chain_groups(ranked, self.settings, MAX_ESTIMATE_RATIO * before))
        entered, runners, refused = self._entered(forms, original(), feeds)
        keys = {name: self._key("program", derivation.end) for name, derivation in entered.items()}
        times = _times(self.store, {"original": self._key("onnxruntime"), **keys}, {"original": original, **runners})
        before = times.pop("original")
        spent = perf_counter() - began
        if not times:
            return Trial(before, before, None, spent, states, "; ".join(refused))
        best = min(times, key=lambda name: times[name])
        after = times[best]
        if after <= MAX_WINNER_RATIO * before:
            return Trial(before, after, entered[best], spent, states, f"{before / after:.2f}x in its own right")
        why = f"the fastest of {len(entered)} measured candidates takes {after / before:.2f} of the original's time"
        contender = entered[best] if after <= MAX_CONTENDER_RATIO * before else None
        return Trial(before, after, None, spent, states, why, contender)

    def _searched(self, seconds: float) -> tuple[list[Variant], int]:
        chosen = self.settings
        return find_variants(self.program, self.cost, chosen.max_depth, seconds, chosen.numerics, chosen.states)

    def _entered(
        self, forms: Iterable[Derivation], want: Arrays, feeds: Arrays
    ) -> tuple[dict[str, Derivation], dict[str, Callable[[], object]], list[str]]:
        """Those of *forms* that agree, with what runs them; and why the others are out."""
        entered: dict[str, Derivation] = {}
        runners: dict[str, Callable[[], object]] = {}
        refused: list[str] = []
        for n, derivation in enumerate(forms):
            if why := ROOM.lacks(working_set_bytes(derivation.end), "a candidate"):
                refused.append(why)
                continue
            try:
                run = self.engine(derivation.end, self.constants)
                error = largest_error(want, run(feeds))
            except (BackendError, ValueError) as problem:
                refused.append(str(problem))
                continue
            except OUT_OF_MEMORY as problem:
                ROOM.wanting += 1
                refused.append(f"a candidate does not fit: {type(problem).__name__}: {problem}")
                continue
            if error > AGREEMENT:
                refused.append(f"a candidate differs by {error:.1e} of the largest output")
                continue
            entered[str(n)] = derivation
            runners[str(n)] = _runner(run, feeds)
        return entered, runners, refused

    def _key(self, operator: str, program: Program | None = None) -> Key:
        key = replace(key_of(program or self.program, self.settings.threads), operator=operator)
        if program is None:  # no kernel of ours is in it
            key = replace(key, attributes=f"{key.attributes} {self.written}".strip(), engine="onnxruntime")
        if self.settings.runtime == "plan":
            return key
        return replace(key, operator=f"{operator} in {self.settings.runtime}")


def chain_groups(ranked: Iterable[Variant], settings: Settings, below: float) -> tuple[tuple[Variant, ...], ...]:
    """Those of *ranked*, estimated *below* so many seconds, that are looked at for one in blocks, by algorithm.

    None where *settings* ask for standard operators: there nothing is blocked.
    """
    if settings.runtime != "plan":
        return ()
    return tuple(group[:MAX_CHAIN_VARIANTS] for group in variants_by_algorithm(ranked, settings.finalists, below))


def requested_variants(ranked: Sequence[Variant], settings: Settings, below: float) -> Iterable[Variant]:
    """Those of *ranked* whose derivations a contest may ask for."""
    return chain(select_finalists(ranked, settings.finalists, below), *chain_groups(ranked, settings, below))


def blocked_forms(groups: Iterable[Iterable[Variant]]) -> tuple[Derivation, ...]:
    """The cheapest of each of *groups*, run in blocks, where one is a chain; equal estimates may differ in order."""
    forms = ((chain_in_blocks(fuse_eoperators(entry.derivation())) for entry in group) for group in groups)
    return tuple(made for group in forms if (made := next(filter(None, group), None)) is not None)


def _time(store: ProfileStore, key: Key, opened: Callable[[], Callable[[], object]]) -> float:
    known = store.get(key)
    if known:
        return known.seconds
    measured = compare({"it": opened()}, rounds=5, min_seconds=0.02, settle=pause(key.threads))["it"].low
    store.put(key, measured, "measured alone")
    return measured


def _times(store: ProfileStore, keys: Mapping[str, Key], calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The time of each call: as stored if all are, else all measured in turns and stored."""
    known = {name: profile.seconds for name, key in keys.items() if (profile := store.get(key))}
    if len(known) == len(keys):
        return known
    settle = pause(keys["original"].threads)
    timings = compare(calls, rounds=9, min_seconds=0.05, settle=settle, enough=after(5, 1.0))
    base = timings["original"]
    measured = {name: base.low / times_faster(base, timing) for name, timing in timings.items()}
    for name, seconds in measured.items():
        store.put(keys[name], seconds, "measured in turns")
    return measured


def working_set_bytes(program: Program) -> int:
    """Bytes of all that *program* reads and writes when it is run beside its original, each held twice."""
    shapes = (*(t.shape for t in program.inputs), *(e.scope.shape for e in program.equations))
    return 2 * ELEMENT_BYTES * sum(prod(shape) for shape in shapes)


def _runner(run: Callable[[Arrays], Arrays], feeds: Arrays) -> Callable[[], object]:
    """A call that runs on *feeds* as a plan does: inputs copied in, outputs out."""
    return lambda: run(feeds)
