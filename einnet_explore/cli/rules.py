"""``einnet-explore rules``: what may be done here, and why the rest may not."""

from __future__ import annotations

import argparse

from einnet_explore.cli.errors import OK
from einnet_explore.cli.output import STDOUT, check_writable, format_table, write_json
from einnet_explore.ir import show_path
from einnet_explore.rules.base import places
from einnet_explore.session.session import Session
from einnet_explore.syntax import load_text


def run_rules(arguments: argparse.Namespace) -> int:
    """Print the legal matches at a path (or everywhere) and the refusals."""
    check_writable(json=arguments.json, reads=[arguments.case])
    session = Session(load_text(arguments.case))
    paths = [session.path(arguments.at)] if arguments.at is not None else [path for path, _ in places(session.program)]
    matches = [m.to_json() for path in paths for m in session.rules(path)]
    refusals = [r for path in paths for r in session.refusals(path)]
    refused = [{"rule": r.rule, "at": show_path(r.at), "why": r.why} for r in refusals]
    if arguments.json:
        write_json(arguments.json, {"case": arguments.case, "matches": matches, "refused": refused})
    if arguments.json != STDOUT:
        print(
            format_table([["at", "rule", "parameters"], *([m["at"], m["rule"], _short(m["params"])] for m in matches)])
        )
        if refused:
            print()
            print(format_table([["at", "rule", "refused because"], *([r["at"], r["rule"], r["why"]] for r in refused)]))
    return OK


def _short(params: object, most: int = 100) -> str:
    said = str(params)
    return said if len(said) <= most else f"{said[:most]} …"
