"""A search as JSON (``.einx``): its start, its options, every state as the steps that lead to it, and the refusals.

A loaded search can be shown at once.  To continue it, the search is replayed to its checkpoint and every state is
verified: search is deterministic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from os import PathLike
from typing import Any, TypeVar

from einnet_explore.checker.record import RecordError, load_json
from einnet_explore.ir import Program, read_path, show_path
from einnet_explore.operators import OPERATORS
from einnet_explore.rules import ALL_RULES, Match
from einnet_explore.rules.base import BAD_STEP_ERRORS, Rule
from einnet_explore.session.running_search import RunningSearch
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.strategies.events import MatchRefused, Pruned, State
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.support.storage import write_atomically
from einnet_explore.syntax import parse, text

FORMAT, VERSION = "einnet-explore search", 1
SUFFIX = ".einx"

R = TypeVar("R", bound=RunningSearch)


def saved_search_to_json(run: RunningSearch) -> dict[str, Any]:
    """*run* as plain JSON values; one that runs in a thread waits meanwhile, so that all of it is of one moment."""
    with run.paused():
        return _search_to_json(run)


def _search_to_json(run: RunningSearch) -> dict[str, Any]:
    search = run.search
    return {
        "format": FORMAT,
        "version": VERSION,
        "start": text(search.start),
        "target": list(run.target),
        "limit": run.limit,
        "most": run.most,
        "options": _options_to_json(search.options),
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
                "steps": _steps_to_json(s.matches),
            }
            for s in search.states
        ],
        "candidates": [{"state": c.state, "seconds": c.seconds, "how": c.how} for c in run.candidates],
        "prunings": [
            {"parent": p.parent, "why": p.why, "twin": p.twin, "steps": _steps_to_json(p.matches)} for p in run.pruned
        ],
        "refusals": [{"state": r.state, "at": show_path(r.at), "target": r.target, "why": r.why} for r in run.refused],
    }


def save_search(run: RunningSearch, path: str | PathLike[str]) -> None:
    """Write *run* to *path*, whole or not at all; raises OSError."""
    write_atomically(path, json.dumps(saved_search_to_json(run), ensure_ascii=False) + "\n")


def load_search(kind: type[R], path: str | PathLike[str], cost: Cost) -> R:
    """The run in the file at *path*; *cost* prices what it finds when it goes on.  Raises OSError or RecordError."""
    return saved_search_from_json(kind, load_json(path), cost, str(path))


def saved_search_from_json(kind: type[R], data: object, cost: Cost, source: str = "<run>") -> R:
    """The run that *data* describes; raises RecordError where it has another form or its steps do not apply."""
    if not isinstance(data, dict) or "format" not in data or "version" not in data:
        raise RecordError(f"{source}: expected a saved search, an object with format and version")
    if (data["format"], data["version"]) != (FORMAT, VERSION):
        found = f"{data['format']!r} version {data['version']}"
        raise RecordError(f"{source}: found {found}, expected {FORMAT!r} version {VERSION}")
    try:
        return _restore(kind, data, cost)
    except RecordError as error:
        raise RecordError(f"{source}: {error}") from None
    except KeyError as error:
        raise RecordError(f"{source}: {error} is missing") from None
    except BAD_STEP_ERRORS as error:
        raise RecordError(f"{source}: {error}") from None


def _restore(kind: type[R], data: Mapping[str, Any], cost: Cost) -> R:
    options = dict(data["options"])
    if unknown := set(options) - {f.name for f in fields(Options)}:
        raise RecordError(f"unknown options {', '.join(sorted(unknown))}")
    known: dict[str, Rule[Any]] = {rule.name: rule for rule in (*ALL_RULES, matching_rule(OPERATORS))}
    options["rules"] = tuple(_find_rule(known, name) for name in options["rules"])
    options["fixed"] = frozenset(options["fixed"])
    limits = {"limit": data["limit"], "states": data.get("most")}  # older files do not say how many states at most
    run = kind(parse(data["start"]), cost, target=data["target"], options=Options(**options), **limits)
    search = run.search
    known["operator_matching"] = matching_rule(search.options.targets)
    for n, each in enumerate(data["states"]):
        if not (0 <= each["parent"] < max(n, 1)):
            raise RecordError(f"state {n}: found parent {each['parent']}, expected an earlier state")
        before = search.states[each["parent"]].program if n else search.start
        matches, program = _replay_steps(known, before, each["steps"], f"state {n}")
        search.states.append(State(n, each["parent"], matches, program, each["depth"], each["phase"], each["distance"]))
    there = range(len(search.states))
    for n, each in enumerate(data["candidates"]):
        derivation = search.derivation(_check_state(each, "state", there, f"candidate {n}"))
        run.candidates.append(Candidate(each["state"], derivation, float(each["seconds"]), each["how"]))
    for n, each in enumerate(data["prunings"]):
        _check_state(each, "parent", there, f"pruning {n}")
        matches, _ = _replay_steps(known, search.states[each["parent"]].program, each["steps"], f"pruning {n}")
        run.pruned.append(Pruned(each["parent"], matches, each["why"], each["twin"]))
    for n, each in enumerate(data["refusals"]):
        _check_state(each, "state", there, f"refusal {n}")
    run.refused = [MatchRefused(r["state"], read_path(r["at"]), r["target"], r["why"]) for r in data["refusals"]]
    search.pruned, search.complete, search.ended = data["pruned"], data["complete"], data["ended"]
    search.expanded.update(data["expanded"])
    search.best = min((c.seconds for c in run.candidates), default=float("inf"))
    first = data["first_found"]
    run.first_found = None if first is None else (first[0], first[1])
    run.seconds = float(data["seconds"])
    run.require_replay(data["events"])
    return run


def _check_state(entry: Mapping[str, Any], key: str, there: range, where: str) -> int:
    if not isinstance(found := entry[key], int) or found not in there:
        raise RecordError(f"{where}: found {key} {found!r}, expected one of the {len(there)} states")
    return found


def _options_to_json(options: Options) -> dict[str, Any]:
    """Every option but the targets, which the run names."""
    said: dict[str, Any] = {f.name: getattr(options, f.name) for f in fields(Options) if f.name != "targets"}
    return said | {"rules": [rule.name for rule in options.rules], "fixed": sorted(options.fixed)}


def _steps_to_json(matches: Iterable[Match[Any]]) -> list[dict[str, Any]]:
    return [match.to_json() for match in matches]


def _find_rule(known: Mapping[str, Rule[Any]], name: str) -> Rule[Any]:
    if name not in known:
        raise RecordError(f"found the rule {name!r}, expected one of {', '.join(known)}")
    return known[name]


def _replay_steps(
    known: Mapping[str, Rule[Any]], program: Program, steps: Iterable[Mapping[str, Any]], where: str
) -> tuple[tuple[Match[Any], ...], Program]:
    matches: list[Match[Any]] = []
    for step in steps:
        rule, at = _find_rule(known, step["rule"]), read_path(step["at"])
        try:
            program.scope_at(at)
            match = Match(rule, at, rule.decode(program, at, step["params"]))
            program = match.apply(program).after
        except BAD_STEP_ERRORS as error:
            raise RecordError(f"{where}: {rule.name} at {step['at']}: {error}") from None
        matches.append(match)
    return tuple(matches), program
