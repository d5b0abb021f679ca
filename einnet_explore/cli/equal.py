"""``einnet-explore equal``: prove that two models or programs are equal, or show where they differ."""

from __future__ import annotations

import argparse
from html import escape
from pathlib import Path

from einnet_explore.cli.output import NO, NOT_PROVED, OK, STDOUT, check_writable, save_file, write_json
from einnet_explore.ir import Program
from einnet_explore.session.model_equality import equal
from einnet_explore.syntax import parse
from einnet_explore.syntax.parser import text_of
from einnet_explore.viz.views import html_page


def run_equal(arguments: argparse.Namespace) -> int:
    """Return 0 if equality is proved, 1 if the two differ, else 3; ``--require rounded`` accepts rounded weights."""
    files = [arguments.first, arguments.second]
    check_writable(arguments.inputs, arguments.html, json=arguments.json, reads=files)
    found = equal(_read(arguments.first), _read(arguments.second), limit=arguments.limit_seconds)
    if arguments.certificates:
        found.save_certificates(arguments.certificates)
    if arguments.inputs and found.difference is not None:
        found.difference.save_inputs(arguments.inputs)
    if arguments.html:
        lines = "".join(f"<p>{escape(line)}</p>" for line in found.lines())
        save_file(arguments.html, html_page(" and ".join(files), [lines, found.table()._repr_html_()]))
    if arguments.json:
        write_json(arguments.json, found.to_json())
    if arguments.json != STDOUT:
        print(found)
    if found.kind == "different":
        return NO
    return OK if found.kind in ("proved", arguments.require) else NOT_PROVED


def _read(file: str) -> str | Program:
    """Return the program of a text file; other files are models."""
    return parse(text_of(file), file) if Path(file).suffix == ".ein" else file
