"""A search with its results: in the foreground (``for event in run``), or in a thread (``start``, ``wait``)."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path as FilePath
from typing import Any, TypeAlias

from einnet_explore.algebra.certificate import Certificate, certify
from einnet_explore.explore import records, views, whys
from einnet_explore.explore.dag import search_graph
from einnet_explore.explore.figures import Figure, tree_figure
from einnet_explore.ir import Program
from einnet_explore.operators import OPERATORS, Operator
from einnet_explore.room import ROOM
from einnet_explore.rules import FEWER_PRODUCTS, Derivation
from einnet_explore.search.candidate import Candidate, verdict
from einnet_explore.search.engine import Cost, Options, Search
from einnet_explore.search.events import Found, Pruned, Reached, Refused, SearchEvent

SETTLED = 2_000
"""After so many events, the garbage collector is spared what there is: a search keeps its states, which hold no cycles,
and to walk over 20,000 of them takes seconds, in which no event comes and nothing can be stopped."""

Observer: TypeAlias = Callable[[SearchEvent], None]


def find_operators(names: Iterable[str], operators: tuple[Operator, ...] = OPERATORS) -> tuple[Operator, ...]:
    """The operators with these names (case does not matter); raises ValueError that lists the known ones."""
    known = {o.name.lower(): o for o in operators}
    wanted = list(names)
    for name in wanted:
        if name.lower() not in known:
            raise ValueError(f"unknown target {name!r}, expected one of {', '.join(o.name for o in operators)}")
    return tuple(dict.fromkeys(known[name.lower()] for name in wanted)) or operators


class Run:
    """One search and what it has found so far.

    *limit* is in seconds, *states* the most states that it makes: unlike seconds, these are the same whenever it runs.
    *target* names operators (all when empty).  It also ends where the memory is ``full`` (``room``), with what it has.
    Iterating runs it; ``start`` runs it in a thread and returns at once.
    """

    def __init__(
        self,
        start: Program,
        cost: Cost,
        *,
        target: str | Iterable[str] = (),
        limit: float | None = None,
        operators: tuple[Operator, ...] = OPERATORS,
        options: Options | None = None,
        states: int | None = None,
    ) -> None:
        names = [target] if isinstance(target, str) else list(target)
        self.target = tuple(o.name for o in find_operators(names, operators)) if names else ()
        self.search = Search(start, cost, replace(options or Options(), targets=find_operators(names, operators)))
        self.limit = limit
        self.most = states
        self.full = False
        self.candidates: list[Candidate] = []
        self.pruned: list[Pruned] = []
        self.refused: list[Refused] = []
        self.first_found: tuple[float, int] | None = None
        self.seconds = 0.0
        self.events = 0
        self._behind = 0
        self._going: Iterable[SearchEvent] | None = None
        self.error: BaseException | None = None
        self._proofs: dict[tuple[Program, Program], Certificate] = {}
        self._observers: list[Observer] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Any:
        self._stopped.clear()
        if self._behind:
            self._catch_up()
        if self._going is None:
            self._going = iter(self.search.run())
        before, began = self.seconds, time.perf_counter()
        try:
            for event in self._going:
                spent = time.perf_counter() - began
                self.seconds = before + spent
                self.events += 1
                if self.events % SETTLED == 0:
                    gc.freeze()
                self._record(event)
                yield event
                if self._stopped.is_set() or (self.limit is not None and spent > self.limit):
                    return
                if self.most is not None and len(self.search.states) >= self.most:
                    return
                if ROOM.full():
                    self.full = True
                    return
        finally:
            gc.unfreeze()

    def behind(self, events: int) -> None:
        """Say that what this run holds is what its search says in its first *events* events, without having run it."""
        self.events = self._behind = events

    def _catch_up(self) -> None:
        """Run the search again up to where it was; raises ValueError where it takes another way now."""
        held = self.search
        again = Search(held.start, held.cost, held.options)
        going = iter(again.run())
        said = sum(1 for _ in islice(going, self._behind))
        if said < self._behind or again.states != held.states:
            parts = zip(again.states, held.states, strict=False)
            n = next((n for n, (a, b) in enumerate(parts) if a != b), min(len(again.states), len(held.states)))
            raise ValueError(
                f"the search takes another way than when it was saved, from state {n} of {len(held.states)} on: "
                "another version, or another cost; it can be shown, but not gone on with"
            )
        self.search, self._going, self._behind = again, going, 0

    def _record(self, event: SearchEvent) -> None:
        match event:
            case Found(state, seconds, how):
                derivation = self.search.derivation(state.id)
                self.candidates.append(Candidate(state.id, derivation, seconds, how))
                if self.first_found is None and self.candidates[-1].operators:
                    self.first_found = (self.seconds, len(self.search.states))
            case Pruned():
                self.pruned.append(event)
            case Refused():
                self.refused.append(event)
            case _:
                pass
        for observer in tuple(self._observers):
            observer(event)

    def start(self) -> Run:
        """Run in a thread of its own; returns at once."""

        def work() -> None:
            try:
                for _ in self:
                    pass
            except BaseException as error:  # kept for the reader: a thread has nobody to raise to
                self.error = error

        self._thread = threading.Thread(target=work, name="einnet-search", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask the search to end after its current event; what it found is kept."""
        self._stopped.set()

    @property
    def running(self) -> bool:
        """Whether a started run still goes on in its thread."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, and is still at the event that it was at."""
        return self.running and self._stopped.is_set()

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until a started run ends; raises what stopped it, TimeoutError after *timeout* seconds.

        An interrupt stops the run, too: what it found is kept.
        """
        if self._thread is not None:
            try:
                self._thread.join(timeout)
            except KeyboardInterrupt:
                self.stop()
                raise
            if self._thread.is_alive():
                raise TimeoutError(f"the search still runs after {timeout} s")
        if self.error is not None:
            raise self.error
        return self

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call *observer* with every event (on the searching thread); returns the function that unsubscribes."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    @property
    def best(self) -> Candidate | None:
        """The candidate with the lowest estimated cost; the one with fewer steps among equals."""
        if not self.candidates:
            return None
        return min(self.candidates, key=lambda c: (c.seconds, len(c.derivation.steps)))

    def certificates(self, derivation: Derivation) -> tuple[Certificate, ...]:
        """A certificate for every step; steps that candidates share are proved once."""
        return tuple(self._proof(step.before, step.after) for step in derivation.steps)

    def _proof(self, before: Program, after: Program) -> Certificate:
        pair = (before, after)
        if pair not in self._proofs:
            self._proofs[pair] = certify(before, after)
        return self._proofs[pair]

    def verdict(self, candidate: Candidate) -> str:
        """The weakest certificate between the states that lead to *candidate*: a choice and its clean-ups are one.

        Where one of these is not proved, or other products are made step by step, every step decides.
        """
        if any(step.match.rule in FEWER_PRODUCTS for step in candidate.derivation.steps):
            return verdict(self.certificates(candidate.derivation))
        chain = [candidate.state]
        while chain[-1]:
            chain.append(self.search.states[chain[-1]].parent)
        programs = [self.search.states[n].program for n in reversed(chain)]
        kinds = verdict(tuple(self._proof(a, b) for a, b in pairwise(programs)))
        return kinds if kinds == "proved" else verdict(self.certificates(candidate.derivation))

    def derivation(self, to: Candidate | int | None = None) -> views.Steps:
        """The steps *to* a candidate or the state of that number (the best candidate if None), as a paper shows them.

        Raises LookupError where there is no such state, and where nothing was found yet.
        """
        match self.best if to is None else to:
            case None:
                raise LookupError("the search found no candidate")
            case int() as number:
                return views.Steps(self.search.derivation(self._known(number)))
            case candidate:
                return views.Steps(candidate.derivation)

    def _known(self, state: int) -> int:
        if not 0 <= state < len(self.search.states):
            raise LookupError(f"state {state}: the search has states 0 to {len(self.search.states) - 1}")
        return state

    def why_pruned(self, state: int) -> tuple[str, ...]:
        """Why moves out of *state* were not followed: the twin and how it was reached, a refusal, or the run's end.

        Raises LookupError where there is no such state.
        """
        search, state = self.search, self._known(state)
        pruned = [
            f"{p.why}, reached by {search.path(p.twin)}" if p.twin else p.why for p in self.pruned if p.parent == state
        ]
        refused = [f"{r.target}: {r.why}" for r in self.refused if r.state == state]
        return (*pruned, *refused, *(() if (why := search.why_unexpanded(state)) is None else (why,)))

    def report(self, case: str = "") -> dict[str, Any]:
        """The JSON of ``derive``."""
        verdicts = [self.verdict(c) for c in self.candidates]
        best = self.best
        return {
            "case": case,
            "target": list(self.target),
            "strategy": self.search.options.strategy,
            "max_depth": self.search.options.max_depth,
            "seconds": round(self.seconds, 4),
            "states": len(self.search.states) + self.search.pruned,
            "unique": len(self.search.states),
            "pruned": self.search.pruned,
            "complete": self.search.complete,
            "candidates": [c.to_json(v) for c, v in zip(self.candidates, verdicts, strict=True)],
            "best": None if best is None else self.candidates.index(best),
            "first_found": None
            if self.first_found is None
            else {"seconds": round(self.first_found[0], 4), "states": self.first_found[1]},
        }

    def save(self, path: str | FilePath, case: str = "") -> None:
        """Write the best derivation with its certificates as a record, or the whole run where *path* ends in ``.einx``.

        Raises OSError, and ValueError when nothing was found that a record could hold.
        """
        from einnet_explore.explore import saved

        if str(path).endswith(saved.SUFFIX):
            saved.save(self, path)
            return
        best = self.best
        if best is None:
            raise ValueError("the search found no candidate, so there is nothing to save")
        records.save(path, self.record(best, case))

    @staticmethod
    def load(path: str | FilePath, cost: Cost) -> Run:
        """The run saved at *path*; raises RecordError or OSError.  Iterating it goes on where it was."""
        from einnet_explore.explore import saved

        return saved.load(path, cost)

    def graph(self) -> Any:
        """The search as a graph with merges, in plain JSON (``explore.dag.search_graph``)."""
        return search_graph(self.search.states, self.pruned, {c.state: c.seconds for c in self.candidates})

    def why_not(self, derivation: Derivation) -> str:
        """How far the search went along *derivation*, and why it did not go on; raises ValueError from elsewhere."""
        return whys.why_not(self.search, derivation)

    def why_refused(self, name: str, state: int = 0, at: str = "0") -> str:
        """Why the rule or library operator *name* does not apply at the scope *at* of *state*; raises LookupError."""
        return whys.why_refused_at(self.search, name, state, at)

    def record(self, candidate: Candidate, case: str = "") -> dict[str, Any]:
        """The record of one candidate: start, steps, certificates."""
        return records.to_record(
            candidate.derivation,
            self.certificates(candidate.derivation),
            case=case,
            target=list(self.target),
            strategy=self.search.options.strategy,
        )

    def tree(self, to: Candidate | None = None, limit: int = 240) -> Figure:
        """The search tree; about *limit* states are drawn, and the way *to* a candidate (the best one if None)."""
        shown = to or self.best
        return tree_figure(self.search.states, shown.state if shown else None, limit)

    def table(self, limit: int = 8) -> views.Table:
        """The *limit* cheapest candidates by estimate, each with its certificate."""
        ordered = sorted(self.candidates, key=lambda c: (c.seconds, len(c.derivation.steps)))
        states = self.search.states
        how = "complete" if self.search.complete else "not exhausted"
        caption = (
            f"{min(limit, len(ordered))} of {len(ordered)} candidates; {len(states)} states, "
            f"{self.search.pruned} pruned, {how}, {self.seconds:.2f} s"
        )
        return views.candidates(((c, verdict(self.certificates(c.derivation))) for c in ordered[:limit]), caption)

    def __repr__(self) -> str:
        return f"<Run: {len(self.candidates)} candidates, {len(self.search.states)} states, {self.seconds:.2f} s>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


__all__ = ["Reached", "Run", "find_operators"]
