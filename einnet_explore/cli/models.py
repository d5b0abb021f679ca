"""``einnet-explore models``: the evaluation models as ONNX files."""

from __future__ import annotations

import argparse

from einnet_explore.cli.errors import OK
from einnet_explore.cli.output import save, table, writable
from einnet_explore.graph.models import MODELS, write


def run(arguments: argparse.Namespace) -> int:
    """``list`` prints the names, ``write`` writes one model (weights are the same every time)."""
    if arguments.action == "list":
        print(table([["name", "what it is"], *([m.name, m.title] for m in MODELS)]))
        return OK
    writable(arguments.output)
    save(arguments.output, write(arguments.name, arguments.batch).SerializeToString())
    return OK
