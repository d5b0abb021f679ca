"""``einnet-explore derive``: search, prove, print."""

from __future__ import annotations

import argparse
import gc
from typing import Any

from einnet_explore.cli.errors import INTERRUPTED, NO, OK
from einnet_explore.cli.output import STDOUT, progress, say, seconds, table, writable, write_json
from einnet_explore.cost import program_seconds
from einnet_explore.explore.run import Run
from einnet_explore.render import text
from einnet_explore.search.engine import Options
from einnet_explore.text import load_text

ROWS = 10
"""Kinds of candidates that the table shows."""


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when a candidate was found (for the targets asked for), 1 when none was, 130 when interrupted."""
    options = Options(
        strategy=arguments.strategy,
        max_depth=arguments.max_depth,
        fingerprint=not arguments.no_fingerprint,
        converging=not arguments.no_converging,
    )
    program = load_text(arguments.case)
    search = Run(program, program_seconds, target=arguments.target, limit=arguments.limit_seconds, options=options)
    writable(arguments.save, arguments.json)
    # Expressions are trees that refer to nothing above them: looking for cycles among them costs a fifth of the time.
    gc.set_threshold(50_000, 20, 20)
    interrupted = _search(search)
    wanted = [c for c in search.candidates if c.operators or not arguments.target]
    # The record first: it is what a second Ctrl-C must not lose.
    if arguments.save and search.candidates:
        search.save(arguments.save, arguments.case)
        say(f"saved {arguments.save}")
    elif arguments.save:
        say(f"{arguments.save}: not written, no candidate was found")
    report = search.report(arguments.case)
    if arguments.json:
        write_json(arguments.json, report)
    if arguments.json != STDOUT:
        print(_summary(search, report["candidates"]))
    if interrupted:
        say(f"interrupted: {len(search.candidates)} candidates found so far are reported")
        return INTERRUPTED
    return OK if wanted else NO


def _search(search: Run) -> bool:
    try:
        with progress() as bar:
            for _ in search:
                bar.update()
                bar.set_postfix(candidates=len(search.candidates), refresh=False)
    except KeyboardInterrupt:
        return True
    return False


def _summary(search: Run, described: list[dict[str, Any]]) -> str:
    best = search.best
    stopped = "complete" if search.search.complete else "not exhausted"
    head = (
        f"{len(search.search.states)} states, {search.search.pruned} pruned, {search.seconds:.2f} s ({stopped}); "
        f"{len(search.candidates)} candidates"
    )
    if best is None:
        whys = list(dict.fromkeys(f"  {r.target}: {r.why}" for r in search.refused))
        return "\n".join([head, "no candidate was found; refusals:", *whys[:8]])
    rows = _rows(search, described)
    more = [f"and {len(rows) - 1 - ROWS} kinds more (--json lists every candidate)"] if len(rows) - 1 > ROWS else []
    return "\n".join([head, "", table(rows[: ROWS + 1]), *more, "", "the best:", text(best.program)])


def _rows(search: Run, described: list[dict[str, Any]]) -> list[list[object]]:
    """One row a kind of candidate (the same library operators and as many eOperators), cheapest first."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for n in sorted(range(len(described)), key=lambda n: search.candidates[n].seconds):
        c = search.candidates[n]
        named = "; ".join(repr(e.via) for e in c.operators) or "none"
        kinds.setdefault((named, c.eoperators), []).append(n)
    rows: list[list[object]] = [["estimate", "ways", "steps", "eOperators", "certificate", "library operators"]]
    for (operators, kernels), ways in kinds.items():
        first = min(ways, key=lambda n: (search.candidates[n].seconds, len(search.candidates[n].derivation.steps)))
        c = search.candidates[first]
        proof = described[first]["certificate"]
        rows.append([seconds(c.seconds), len(ways), len(c.derivation.steps), kernels, proof, operators])
    return rows
