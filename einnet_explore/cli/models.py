"""``einnet-explore models``: the evaluation models as ONNX files."""

from __future__ import annotations

import argparse

from einnet_explore.cli.errors import OK
from einnet_explore.cli.output import table
from einnet_explore.storage import write_atomically
from einnet_explore.graph.models import MODELS, write


def run(arguments: argparse.Namespace) -> int:
    """``list`` prints the names, ``write`` writes one model (weights are the same every time)."""
    if arguments.action == "list":
        print(table([["name", "what it is"], *([m.name, m.title] for m in MODELS)]))
        return OK
    model = write(arguments.name, arguments.batch)
    write_atomically(arguments.output, model.SerializeToString())
    print(f"wrote {arguments.output}")
    return OK
