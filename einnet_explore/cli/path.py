"""``einnet-explore path``: a derivation from one program to another."""

from __future__ import annotations

import argparse

from einnet_explore.cli.output import (
    NO,
    NOT_PROVED,
    OK,
    STDOUT,
    check_width,
    check_writable,
    save_file,
    say,
    write_json,
)
from einnet_explore.session.program_paths import path
from einnet_explore.viz.views import derivation_page


def run_path(arguments: argparse.Namespace) -> int:
    """Return 0 if a path was found and proved, 1 if the two programs differ, else 3."""
    files = [arguments.first, arguments.second]
    check_writable(arguments.save, arguments.html, json=arguments.json, reads=files)
    check_width(arguments.width, arguments.latex)
    found = path(arguments.first, arguments.second, arguments.budget)
    if arguments.json != STDOUT:
        print(found.to_latex(width=arguments.width) if arguments.latex and found.derivation else found, flush=True)
    if found.derivation is None:
        for file in filter(None, (arguments.save, arguments.html)):
            say(f"{file} is not written: no path was found")
    else:
        if arguments.save:
            found.save(arguments.save)
            say(f"saved {arguments.save}")
        if arguments.html:
            kinds = [each.kind for each in found.certificates]
            save_file(arguments.html, derivation_page(found.derivation, " to ".join(files), kinds))
    if arguments.json:
        write_json(arguments.json, found.to_json())
    return OK if found else NO if found.differs else NOT_PROVED
