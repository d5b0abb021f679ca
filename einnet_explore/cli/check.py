"""``einnet-explore check``: a record's certificates, proved again without rules or search."""

from __future__ import annotations

import argparse

from einnet_explore.checker import check_file
from einnet_explore.cli.errors import NO, OK
from einnet_explore.cli.output import STDOUT, writable, write_json


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0: every step holds; 1: one is false (its counterexample is printed)."""
    writable(arguments.json)
    report = check_file(arguments.record)
    if arguments.json:
        write_json(arguments.json, report.to_json())
    if arguments.json != STDOUT:
        print(report)
    return OK if report.ok else NO
