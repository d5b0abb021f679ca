"""A search and its results so far: run here (``finish``, ``for event in it``), in a thread (``start``), saved as JSON.

A saved search (``.einx``) has its start, its options, every state as the steps that lead to it, and the refusals.  It
can be shown at once.  To continue it, the search is replayed to its checkpoint and every state is verified: search is
deterministic.
"""

from __future__ import annotations

import gc
import json
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import islice
from numbers import Real
from os import PathLike
from types import NoneType
from typing import Self, TypeAlias, TypeVar

from einnet_explore.checker.record import RecordError, load_json
from einnet_explore.ir import Program, read_path, show_path
from einnet_explore.operators.library import OPERATORS, find_operators
from einnet_explore.operators.operator import Operator
from einnet_explore.rules import Derivation, Match, Rule
from einnet_explore.rules.base import BAD_STEP_ERRORS, match_from_json
from einnet_explore.strategies.candidate import Candidate, steps_to_json
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found, MatchRefused, Pruned, SearchEvent, State
from einnet_explore.strategies.instantiation import known_rules, matching_rule
from einnet_explore.strategies.options import Cost, Edge, Options
from einnet_explore.strategies.program_search import ProgramSearch, search_program
from einnet_explore.support.json_values import JsonObject, json_field
from einnet_explore.support.limits import MEMORY_LIMIT
from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax import parse, text

EVENTS_BEFORE_FREEZE = 2_000
"""Events after which existing objects are exempted from garbage collection: states have no reference cycles, and a walk
over 20,000 of them takes seconds, during which the search cannot be stopped."""

Observer: TypeAlias = Callable[[SearchEvent], None]


def _post_optimise(derivation: Derivation) -> Derivation:
    # Imports the solver and the compilers when it is called: ``import einnet_explore`` stays quick.
    from einnet_explore.pipeline.layouts import post_optimise

    return post_optimise(derivation)


class RunningSearch:
    """One search and its results so far.

    *budget* is in seconds; *states* is the maximum number of states, which is deterministic.  *target* names operators
    (all when empty).  The search also ends, with its results, when the memory is ``full``.
    Iterating runs it; ``finish`` runs it to its end; ``start`` runs it in a thread and returns at once.
    """

    def __init__(
        self,
        start: Program,
        cost: Cost,
        *,
        target: str | Iterable[str] = (),
        budget: float | None = None,
        operators: tuple[Operator, ...] = OPERATORS,
        options: Options | None = None,
        states: int | None = None,
    ) -> None:
        if not isinstance(start, Program):
            raise TypeError(f"found {type(start).__name__}, expected a program: ee.parse reads a text, ee.load a file")
        names = [target] if isinstance(target, str) else list(target)
        targets = find_operators(names, operators)
        self.target = tuple(o.name for o in targets) if names else ()
        # Negated to refuse NaN, which is neither more nor less than 0.
        if budget is not None and not (isinstance(budget, Real) and budget >= 0):
            raise ValueError(f"budget {budget!r}: expected 0 or more seconds, or None for no limit")
        if states is not None and states < 1:
            raise ValueError(f"states {states}: expected 1 or more, or None for no limit")
        self.search = search_program(start, cost, replace(options or Options(), targets=targets), _post_optimise)
        self.budget = budget
        self.most = states
        self.full = False
        self.interrupted = False
        self._limit = ""
        self._finished = False
        self.candidates: list[Candidate] = []
        self.found_seconds: dict[int, float] = {}
        """The second of the search at which each candidate was found, by state; files of older releases have none."""
        self.pruned: list[Pruned] = []
        self.refused: list[MatchRefused] = []
        self.first_found: tuple[float, int] | None = None
        self.seconds = 0.0
        self.events = 0
        self._pause, self._event = threading.RLock(), threading.RLock()
        self._events_to_replay: int | None = None
        self._going: Generator[SearchEvent] | None = None
        self.error: BaseException | None = None
        self._observers: list[Observer] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def finish(self) -> Self:
        """Run to the end, the budget or the number of states; an interrupt ends it, too.  All results are kept.

        If it has not reached its end, ``finish`` continues it, for another budget.
        """
        self._finished = self.interrupted = False
        try:
            for _ in self:
                pass
        except KeyboardInterrupt:
            self.interrupted = True
        self._finished = True
        return self

    def _warn_if_finished(self) -> bool:
        """Warn of the spellings of the time when ``ee.search`` returned a run that had not begun; once for each run."""
        finished, self._finished = self._finished, False
        if finished:
            warnings.warn(
                "the run is finished: leave out start() and loops after search(), write live_search() for a run that "
                "has not begun, and finish() to continue",
                DeprecationWarning,
                stacklevel=3,
            )
        return finished

    def __iter__(self) -> Generator[SearchEvent]:
        if self._warn_if_finished():
            return (event for event in islice(self._new_search().run(), self.events))
        if self.running:
            raise ValueError("the search runs in a thread: expected that it is stopped and waited for before it is run")
        self._stopped = threading.Event()
        return self._go(self._stopped)

    def _go(self, stopped: threading.Event) -> Generator[SearchEvent]:
        """Yield events until the end, a limit, or *stopped*, the event of this iteration."""
        if self._events_to_replay is not None and not self._catch_up(self._events_to_replay, stopped):
            return
        before, began = self.seconds, time.perf_counter()
        self._limit = ""
        try:
            while (event := self._next(began - before)) is not None:
                if self.events % EVENTS_BEFORE_FREEZE == 0:
                    gc.freeze()
                for observer in tuple(self._observers):
                    observer(event)
                yield event
                if limit := self._limit_reached(stopped, self.seconds - before):
                    self._limit = limit
                    return
        finally:
            gc.unfreeze()

    def _limit_reached(self, stopped: threading.Event, seconds: float) -> str:
        """Return what ends an iteration that has taken *seconds*, in words; empty if nothing does."""
        if stopped.is_set():
            return "stopped"
        if self.budget is not None and seconds > self.budget:
            return f"budget of {self.budget:g} s spent"
        if self.most is not None and self.search.size >= self.most:
            return f"limit of {count_noun(self.most, 'state')} reached"
        if MEMORY_LIMIT.full():
            self.full = True
            return "memory limit reached"
        return ""

    @property
    def ending(self) -> str:
        """Why the search ended, in a few words: complete, nothing cheaper, or the limit; or that it has not ended."""
        search, options = self.search, self.search.options
        if search.complete:
            cut = any(s.depth == options.max_depth and s.phase == "explorative" for s in search.states)
            return f"complete to depth {options.max_depth}" if cut else "complete"
        if search.ended:
            return f"ended: nothing cheaper in {count_noun(options.patience, 'level')}"
        if self.interrupted:
            return "interrupted: finish() continues"
        if self.running:
            return "running"
        return f"not exhausted: {self._limit}" if self._limit else "not exhausted"

    def _next(self, since: float) -> SearchEvent | None:
        """Record and return the next event, or None at the end; *since* is the time at which the seconds were 0.

        An exception, such as an interrupt, loses nothing: the next iteration replays the search up to this event.
        """
        with self._pause:  # a thread that waits for a pause holds it, and comes first
            pass
        with self._event:
            if self._going is None:
                self._going = (event for event in self.search.run())
            events, first = self.events, self.first_found
            lengths = [(kept, len(kept)) for kept in (self.search.states, self.candidates, self.pruned, self.refused)]
            try:
                event: SearchEvent | None = next(self._going, None)
                if event is not None:
                    self.seconds = time.perf_counter() - since
                    self._record(event)
                return event
            except BaseException:
                if self.events == events:  # otherwise the event was recorded
                    for kept, count in lengths:
                        del kept[count:]
                    self.first_found = first
                    self.behind(events)
                raise

    @contextmanager
    def paused(self) -> Generator[None]:
        """Pause the search between two events, also one in a thread, so that its results are of one moment."""
        with self._pause, self._event:
            yield

    def behind(self, events: int) -> None:
        """Declare that the results are those of the first *events* events, and that the search has to be replayed.

        This is so for a loaded run, and after an exception.
        """
        self._going, self.events, self._events_to_replay = None, events, events

    def _catch_up(self, events: int, stopped: threading.Event) -> bool:
        """Replay *events* events unless *stopped*; return whether all were replayed.

        Raises ValueError if the search makes other states now.
        """
        saved, again = self.search, self._new_search()
        going = (event for event in again.run())
        replayed = 0
        for _ in islice(going, events):
            replayed += 1
            if stopped.is_set():
                return False
        if replayed < events or again.states != saved.states:
            parts = zip(again.states, saved.states, strict=False)
            n = next((n for n, (a, b) in enumerate(parts) if a != b), min(len(again.states), len(saved.states)))
            raise ValueError(
                f"the search differs from the saved one from state {n} of {len(saved.states)} on: "
                "another version, or another cost; it can be shown, but not continued"
            )
        with self._event:
            self.search, self._going, self._events_to_replay = again, going, None
        return True

    def _new_search(self) -> Search | ProgramSearch:
        """Return the search as it was before its first event."""
        return search_program(self.search.start, self.search.cost, self.search.options, _post_optimise)

    def _record(self, event: SearchEvent) -> None:
        match event:
            case Found(state, seconds, how):
                derivation = self.search.derivation(state.id)
                self.candidates.append(Candidate(state.id, derivation, seconds, how))
                self.found_seconds[state.id] = self.seconds
                if self.first_found is None and self.candidates[-1].operators:
                    self.first_found = (self.seconds, self.search.size)
            case Pruned():
                self.pruned.append(event)
            case MatchRefused():
                self.refused.append(event)
            case _:
                pass
        self.events += 1

    def start(self) -> Self:
        """Run in a thread and return at once; a running search is left alone, one that is stopping continues."""
        if self._warn_if_finished():
            return self
        before = self._thread if self.running else None
        if before is not None and not self.stopping:
            return self
        self._stopped, self.error = (stopped := threading.Event()), None

        def work() -> None:
            if before is not None:
                before.join()
            try:
                for _ in self._go(stopped):
                    pass
            except BaseException as error:  # ``wait`` raises it
                self.error = error

        self._thread = threading.Thread(target=work, name="einnet-search", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask the search to end after its current event; its results are kept."""
        self._stopped.set()

    @property
    def running(self) -> bool:
        """Whether a started run still runs in its thread."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop and has not finished its current event."""
        return self.running and self._stopped.is_set()

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until a started run ends; raises the exception that ended it, and TimeoutError after *timeout* seconds.

        An interrupt stops the run, too; its results are kept.
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
        """Call *observer* with every event, on the searching thread; return the function that unsubscribes."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)


SEARCH_FORMAT, SAVED_VERSION = "einnet-explore search", 1
SEARCH_SUFFIX = ".einx"

R = TypeVar("R", bound=RunningSearch)


def saved_search_to_json(run: RunningSearch) -> JsonObject:
    """Return *run* as JSON; a run in a thread is paused meanwhile, so that all results are of one moment."""
    with run.paused():
        search = run.search
        return {
            "format": SEARCH_FORMAT,
            "version": SAVED_VERSION,
            "start": text(search.start),
            "target": list(run.target),
            "limit": run.budget,
            "most": run.most,
            "options": _options_to_json(search),
            "events": run.events,
            "seconds": run.seconds,
            "complete": search.complete,
            "ended": search.ended,
            "expanded": sorted(search.expanded),
            "pruned": search.pruned,
            "first_found": run.first_found,
            "states": [
                {
                    "parent": s.parent,
                    "depth": s.depth,
                    "phase": s.phase,
                    "distance": s.distance,
                    "steps": [m.to_json() for m in s.matches],
                }
                for s in search.states
            ],
            "candidates": [
                {"state": c.state, "seconds": c.seconds, "how": c.how}
                | ({"found": run.found_seconds[c.state]} if c.state in run.found_seconds else {})
                for c in run.candidates
            ],
            "prunings": [
                {"parent": p.parent, "why": p.why, "twin": p.twin, "steps": [m.to_json() for m in p.matches]}
                for p in run.pruned
            ],
            "refusals": [
                {"state": r.state, "at": show_path(r.at), "target": r.target, "why": r.why} for r in run.refused
            ],
        }


def _options_to_json(search: Search | ProgramSearch) -> JsonObject:
    """Return the options that matter to *search* but the targets, which the run names."""
    options, unused = search.options, {"targets"}
    if isinstance(search, Search):
        unused |= {"between", "combinations"}
    steered: JsonObject = {
        "must_use": list(options.must_use),
        "forbid": [[text(edge.before), text(edge.after)] for edge in options.forbid],
        "starts": [steps_to_json(start) for start in options.starts],
    }
    unused |= steered.keys()
    plain: JsonObject = {f.name: getattr(options, f.name) for f in fields(Options) if f.name not in unused}
    plain |= {name: value for name, value in steered.items() if value}
    named = {group: [rule.name for rule in getattr(options, group)] for group in ("rules", "between")}
    return plain | {group: names for group, names in named.items() if group in plain} | {"fixed": sorted(options.fixed)}


def save_search(run: RunningSearch, path: str | PathLike[str]) -> None:
    """Write *run* to *path*, whole or not at all; raises OSError."""
    write_atomically(path, json.dumps(saved_search_to_json(run), ensure_ascii=False) + "\n")


def load_search(kind: type[R], path: str | PathLike[str], cost: Cost) -> R:
    """Return the run in the file at *path*, which continues with *cost*.  Raises OSError or RecordError."""
    return saved_search_from_json(kind, load_json(path), cost, str(path))


def saved_search_from_json(
    kind: type[R],
    data: object,
    cost: Cost,
    source: str = "<run>",
    rules: Iterable[Rule[object]] = (),
    operators: tuple[Operator, ...] = OPERATORS,
) -> R:
    """Return the run that *data* describes; raises RecordError if it has another form or its steps do not apply.

    It may name *rules* besides those of the library, and *operators*.
    """
    if not isinstance(data, dict) or "format" not in data or "version" not in data:
        raise RecordError(f"{source}: expected a saved search, an object with format and version")
    if (data["format"], data["version"]) != (SEARCH_FORMAT, SAVED_VERSION):
        found = f"{data['format']!r} version {data['version']}"
        raise RecordError(f"{source}: found {found}, expected {SEARCH_FORMAT!r} version {SAVED_VERSION}")
    try:
        known = known_rules(operators) | {rule.name: rule for rule in rules}
        run = _start_of_saved_search(kind, data, cost, known, operators)
        _restore_results(run, data, known | {(rule := matching_rule(run.search.options.targets)).name: rule})
    except KeyError as error:
        raise RecordError(f"{source}: {error} is missing") from None
    except BAD_STEP_ERRORS as error:
        raise RecordError(f"{source}: {error}") from None
    return run


def _start_of_saved_search(
    kind: type[R], data: JsonObject, cost: Cost, known: Mapping[str, Rule[object]], operators: tuple[Operator, ...]
) -> R:
    """Return the run without results."""
    options = dict(json_field(data, "options", dict))
    if unknown := set(options) - {f.name for f in fields(Options)}:
        raise RecordError(f"unknown options {', '.join(sorted(unknown))}")
    options = {"between": (), **options}  # a search of one expression has no rules between expressions
    for group in ("rules", "between"):
        if strange := [name for name in options[group] if name not in known]:
            raise RecordError(f"found the rule {strange[0]!r}, expected one of {', '.join(known)}")
        options[group] = tuple(known[name] for name in options[group])
    options["fixed"] = frozenset(options["fixed"])
    start = parse(json_field(data, "start", str))
    for n, steps in enumerate(starts := list(options.pop("starts", ()))):
        derivation = Derivation(start)
        for match in _replay_steps(known, start, steps, f"start {n}")[0]:
            derivation = derivation.then(match)
        starts[n] = derivation
    edges = [Edge(parse(before), parse(after)) for before, after in options.pop("forbid", ())]
    options |= {"starts": tuple(starts), "forbid": tuple(edges)}
    return kind(
        start,
        cost,
        target=json_field(data, "target", list),
        budget=json_field(data, "limit", int, float, NoneType),
        states=json_field({"most": None, **data}, "most", int, NoneType),  # older files have no limit of states
        operators=operators,
        options=Options(**options),
    )


def _restore_results(run: RunningSearch, data: JsonObject, known: Mapping[str, Rule[object]]) -> None:
    search = run.search
    # The steps to where a search starts may call operators that are none of its targets.
    starts = {json.dumps(steps_to_json(start)): start for start in search.options.starts if start.steps}
    for n, entry in enumerate(json_field(data, "states", list)):
        parent = json_field(entry, "parent", int)
        if not 0 <= parent < max(n, 1):
            raise RecordError(f"state {n}: found parent {parent}, expected an earlier state")
        before = search.states[parent].program if n else search.start
        steps = json_field(entry, "steps", list)
        if (start := starts.get(json.dumps(steps))) is not None and not parent:
            matches, program = tuple(step.match for step in start.steps), start.end
        else:
            matches, program = _replay_steps(known, before, steps, f"state {n}")
        phase, distance = json_field(entry, "phase", str), json_field(entry, "distance", int, NoneType)
        search.states.append(State(n, parent, matches, program, json_field(entry, "depth", int), phase, distance))
    count = len(search.states)
    for n, entry in enumerate(json_field(data, "candidates", list)):
        state = _state_field(entry, "state", count, f"candidate {n}")
        seconds, how = float(json_field(entry, "seconds", int, float)), json_field(entry, "how", str)
        run.candidates.append(Candidate(state, search.derivation(state), seconds, how))
        if "found" in entry:
            run.found_seconds[state] = float(json_field(entry, "found", int, float))
    for n, entry in enumerate(json_field(data, "prunings", list)):
        parent = _state_field(entry, "parent", count, f"pruning {n}")
        steps, program = json_field(entry, "steps", list), search.states[parent].program
        matches, _ = _replay_steps(known, program, steps, f"pruning {n}")
        why, twin = json_field(entry, "why", str), json_field(entry, "twin", int, NoneType)
        run.pruned.append(Pruned(parent, matches, why, twin))
    for n, entry in enumerate(json_field(data, "refusals", list)):
        state = _state_field(entry, "state", count, f"refusal {n}")
        at, target = read_path(json_field(entry, "at", str)), json_field(entry, "target", str)
        run.refused.append(MatchRefused(state, at, target, json_field(entry, "why", str)))
    search.pruned = json_field(data, "pruned", int)
    search.complete, search.ended = json_field(data, "complete", bool), json_field(data, "ended", bool)
    search.expanded.update(json_field(data, "expanded", list))
    search.best = min((c.seconds for c in run.candidates), default=float("inf"))
    if first := json_field(data, "first_found", list, tuple, NoneType):
        run.first_found = first[0], first[1]
    run.seconds = float(json_field(data, "seconds", int, float))
    run.behind(json_field(data, "events", int))


def _state_field(entry: object, name: str, count: int, where: str) -> int:
    state = json_field(entry, name, int)
    if not 0 <= state < count:
        raise RecordError(f"{where}: found {name} {state!r}, expected one of the {count} states")
    return state


def _replay_steps(
    known: Mapping[str, Rule[object]], program: Program, steps: Iterable[Mapping[str, object]], where: str
) -> tuple[tuple[Match[object], ...], Program]:
    matches: list[Match[object]] = []
    for step in steps:
        name, at = step["rule"], step["at"]
        try:
            matches.append(match_from_json(known, program, step))
            program = matches[-1].apply(program).after
        except BAD_STEP_ERRORS as error:
            raise RecordError(f"{where}: {name} at {at}: {error}") from None
    return tuple(matches), program
