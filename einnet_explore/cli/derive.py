"""``einnet-explore derive``: search, prove, print."""

from __future__ import annotations

import argparse
import sys

from einnet_explore.cli.errors import INTERRUPTED, NO, OK
from einnet_explore.cli.output import progress, seconds, table, write_json
from einnet_explore.cost import program_seconds
from einnet_explore.explore.run import Run
from einnet_explore.render import text
from einnet_explore.search.engine import Options
from einnet_explore.text import load_text


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when a candidate was found (for the targets asked for), 1 when none was."""
    options = Options(
        strategy=arguments.strategy,
        max_depth=arguments.max_depth,
        fingerprint=not arguments.no_fingerprint,
        converging=not arguments.no_converging,
    )
    search = Run(
        load_text(arguments.case),
        program_seconds,
        target=arguments.target,
        limit=arguments.limit_seconds,
        options=options,
    )
    interrupted = _search(search)
    report = search.report(arguments.case)
    wanted = [c for c in search.candidates if c.operators or not arguments.target]
    if arguments.json:
        write_json(arguments.json, report)
    if arguments.json != "-":
        print(_summary(search, report["candidates"]))
    if arguments.save and search.candidates:
        search.save(arguments.save, arguments.case)
        print(f"saved {arguments.save}", file=sys.stderr)
    if interrupted:
        print(f"interrupted: {len(search.candidates)} candidates found so far are reported", file=sys.stderr)
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


def _summary(search: Run, described: list[dict[str, object]]) -> str:
    best = search.best
    stopped = "complete" if search.search.complete else "not exhausted"
    head = (
        f"{len(search.search.states)} states, {search.search.pruned} pruned, {search.seconds:.2f} s ({stopped}); "
        f"{len(search.candidates)} candidates"
    )
    if best is None:
        whys = list(dict.fromkeys(f"  {r.target}: {r.why}" for r in search.refused))
        return "\n".join([head, "no candidate was found; refusals:", *whys[:8]])
    rows: list[list[object]] = [["estimate", "steps", "eOperators", "certificate", "library operators"]]
    order = sorted(range(len(described)), key=lambda n: search.candidates[n].seconds)
    for n in order[:10]:
        c = search.candidates[n]
        named = "; ".join(repr(e.via) for e in c.operators) or "none"
        rows.append([seconds(c.seconds), len(c.derivation.steps), c.eoperators, described[n]["certificate"], named])
    return "\n".join([head, "", table(rows), "", "the best:", text(best.program)])
