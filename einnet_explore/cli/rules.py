"""``einnet-explore rules``: the legal rule matches, and the reasons of refusals."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from einnet_explore.cli.output import OK, STDOUT, check_writable, format_table, write_json
from einnet_explore.ir import show_path
from einnet_explore.rules.base import MatchJson, places
from einnet_explore.session.session import Session
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax import load_text


def run_rules(arguments: argparse.Namespace) -> int:
    """Print the legal matches and the refusals at a path, or at every path."""
    check_writable(json=arguments.json, reads=[arguments.case])
    session = Session(load_text(arguments.case))
    paths = [session.path(arguments.at)] if arguments.at is not None else [path for path, _ in places(session.program)]
    legal = [m for path in paths for m in session.rules(path, further=True)]
    own, further = [[m.to_json() for m in legal if (m.rule in session.known) is known] for known in (True, False)]
    matches = [*own, *further] if arguments.further else own
    refusals = [r for path in paths for r in session.refusals(path, further=arguments.further)]
    refused = [{"rule": r.rule, "at": show_path(r.at), "why": r.why} for r in refusals]
    if arguments.json:
        write_json(arguments.json, {"case": arguments.case, "matches": matches, "refused": refused})
    if arguments.json != STDOUT:
        rows = [[m["at"], m["rule"], _shorten(m["params"])] for m in matches]
        print(format_table([["at", "rule", "parameters"], *rows]))
        if refused:
            print()
            print(format_table([["at", "rule", "refused because"], *([r["at"], r["rule"], r["why"]] for r in refused)]))
        if further and not arguments.further:
            print(
                f"\n--further lists {count_noun(len(further), 'match', 'matches')} of further rules: {_names(further)}"
            )
    return OK


def _names(matches: Iterable[MatchJson]) -> str:
    return ", ".join(dict.fromkeys(m["rule"] for m in matches))


def _shorten(params: object, limit: int = 100) -> str:
    text = str(params)
    return text if len(text) <= limit else f"{text[:limit]} …"
