"""``einnet-explore models``: the evaluation models as ONNX files."""

from __future__ import annotations

import argparse

from einnet_evaluation.models import MODELS, PARTS, write
from einnet_explore.cli.output import OK, check_writable, format_table, save_file


def run_models(arguments: argparse.Namespace) -> int:
    """Print the names (``list``), or write one model with deterministic weights (``write``)."""
    if arguments.action == "list":
        rows = [[m.name, m.title, f"{m.size} {m.counts}" if m.counts else ""] for m in (*MODELS, *PARTS)]
        print(format_table([["name", "description", "size"], *rows]))
        return OK
    check_writable(arguments.output)
    save_file(arguments.output, write(arguments.name, arguments.batch, arguments.size).SerializeToString())
    return OK
