"""``einnet-explore path``: a derivation from one program to another."""

from __future__ import annotations

import argparse

from einnet_explore.cli.output import NO, NOT_PROVED, OK, check_writable, save_file
from einnet_explore.session.program_paths import path
from einnet_explore.syntax import load_text
from einnet_explore.viz.views import derivation_page


def run_path(arguments: argparse.Namespace) -> int:
    """Return 0 if a path was found and proved, 1 if the two programs differ, else 3."""
    files = [arguments.first, arguments.second]
    check_writable(arguments.save, arguments.html, reads=files)
    found = path(load_text(arguments.first), load_text(arguments.second), arguments.budget)
    if found.derivation is not None:
        if arguments.save:
            found.save(arguments.save)
        if arguments.html:
            kinds = [each.kind for each in found.certificates]
            save_file(arguments.html, derivation_page(found.derivation, " to ".join(files), kinds))
    print(found.to_latex() if arguments.latex and found.derivation else found)
    return OK if found else NO if found.differs else NOT_PROVED
