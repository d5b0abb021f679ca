"""``einnet-explore derive``: search, prove and print candidates."""

from __future__ import annotations

import argparse

from einnet_explore.cli.output import (
    INTERRUPTED,
    NO,
    OK,
    STDOUT,
    check_writable,
    format_table,
    progress_bar,
    say,
    write_json,
)
from einnet_explore.cost import program_seconds
from einnet_explore.session.run import Run
from einnet_explore.session.running_search import SEARCH_SUFFIX
from einnet_explore.strategies.candidate import Candidate, save_record
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.support.limits import format_bytes, limit_memory, rare_collections
from einnet_explore.support.wording import count_noun, format_seconds
from einnet_explore.syntax import load_text, text

_TABLE_ROWS = 10
"""Kinds of candidates in the table."""


def run_derive(arguments: argparse.Namespace) -> int:
    """Return exit code 0 if a candidate (with the target operators) was found, 1 if none was, 130 if interrupted."""
    options = Options(
        strategy=arguments.strategy,
        max_depth=arguments.max_depth,
        fingerprint=not arguments.no_fingerprint,
        converging=not arguments.no_converging,
    )
    _check_pick(arguments)
    program = load_text(arguments.case)
    cost = _cost(arguments.device, arguments.threads)
    search = Run(
        program,
        cost,
        target=arguments.target,
        budget=arguments.budget,
        options=options,
        states=arguments.limit_states,
    )
    check_writable(arguments.save, json=arguments.json, reads=[arguments.case])
    with limit_memory(arguments.memory):
        interrupted = _search(search)
    if search.full:
        say(f"stopped near {format_bytes(arguments.memory)} of memory: {_found(search)} found and reported")
    picked = _pick(search, arguments)
    wanted = [c for c in search.candidates if c.operators or not arguments.target] if picked else []
    # The record is written first, so that a second Ctrl-C cannot lose it.
    if arguments.save and arguments.save.endswith(SEARCH_SUFFIX):
        search.save(arguments.save, arguments.case)
        say(f"saved {arguments.save}")
    elif arguments.save and picked is not None:
        save_record(arguments.save, search.record(picked, arguments.case))
        say(f"saved {arguments.save}")
    elif arguments.save:
        say(f"{arguments.save}: not written, no such candidate was found")
    if arguments.json:
        write_json(arguments.json, search.report(arguments.case))
    if arguments.json != STDOUT:
        print(_summary(search, picked))
    if interrupted:
        say(f"interrupted: {_found(search)} found and reported")
        return INTERRUPTED
    return OK if wanted else NO


def _cost(device: str, threads: int | None) -> Cost:
    if device == "cpu":
        if threads is not None:
            raise ValueError(f"--threads {threads}: expected with --device profile:FILE.sqlite, whose times it chooses")
        return program_seconds
    # It loads compilers, which a search on this machine does not need.
    from einnet_explore.runtime.profile_store import device_cost

    return device_cost(device, threads)


def _search(search: Run) -> bool:
    try:
        with rare_collections(), progress_bar() as bar:
            for _ in search:
                bar.update()
                bar.set_postfix(candidates=len(search.candidates), refresh=False)
    except KeyboardInterrupt:
        return True
    return False


def _check_pick(arguments: argparse.Namespace) -> None:
    """Add the one operator of ``--target`` to a call of ``--pick`` without one; raises ValueError if there is none."""
    if arguments.pick and not arguments.pick[0]:
        if len(arguments.target) != 1:
            raise ValueError("--pick: found no operator and no single --target, expected an operator: Matmul,m=196")
        arguments.pick = (arguments.target[0], arguments.pick[1])


def _pick(search: Run, arguments: argparse.Namespace) -> Candidate | None:
    """Return the candidate of ``--pick``, by default the best one; None if there is none."""
    if arguments.pick is None:
        return search.best
    operator, attributes = arguments.pick
    try:
        return search.find(operator, **attributes)
    except LookupError as error:
        say(f"--pick: {error}")
        return None


def _summary(search: Run, picked: Candidate | None) -> str:
    best = search.best
    counts = f"{search.search.counted}, {search.search.pruned} pruned"
    head = f"{counts}, {search.seconds:.2f} s ({search.ending}); {_found(search)}"
    if best is None:
        return "\n".join([head, *(search.remarks() or ["no candidate was found"])])
    kinds = _kinds(search)
    head_row: list[object] = ["estimate", "candidates", "steps", "eOperators", "certificate", "library operators"]
    rows = [_row(search, operators, candidates) for operators, candidates in kinds[:_TABLE_ROWS]]
    left = count_noun(len(kinds) - _TABLE_ROWS, "kind")
    more = [f"and {left} more (--json lists every candidate)"] if len(kinds) > _TABLE_ROWS else []
    return "\n".join(
        [
            head,
            "",
            format_table([head_row, *rows]),
            *more,
            *search.remarks(),
            "",
            *([] if picked is None else ["the best:" if picked == best else "picked:", text(picked.program).rstrip()]),
        ]
    ).rstrip()


def _found(search: Run) -> str:
    return count_noun(len(search.candidates), "candidate")


def _kinds(search: Run) -> list[tuple[str, list[Candidate]]]:
    """Group candidates with equal library operators and equally many eOperators; the cheapest group comes first."""
    kinds: dict[tuple[str, int], list[Candidate]] = {}
    for c in sorted(search.candidates, key=lambda c: c.seconds):
        named = "; ".join(repr(e.via) for e in c.operators) or "none"
        kinds.setdefault((named, c.eoperators), []).append(c)
    return [(operators, candidates) for (operators, _), candidates in kinds.items()]


def _row(search: Run, operators: str, candidates: list[Candidate]) -> list[object]:
    """Return the table row of a group: its cheapest candidate with the fewest steps, proved here."""
    c = min(candidates, key=lambda c: (c.seconds, len(c.derivation.steps)))
    steps = len(c.derivation.steps)
    return [format_seconds(c.seconds), len(candidates), steps, c.eoperators, search.verdict(c), operators]
