"""``einnet-explore check``: a record's certificates, proved again without rules or search."""

from __future__ import annotations

import argparse

from einnet_explore.checker import check_record, load_json, read_record
from einnet_explore.cli.errors import NO, OK
from einnet_explore.cli.output import STDOUT, check_writable, write_json


def run_check(arguments: argparse.Namespace) -> int:
    """Exit code 0: every step holds; 1: one is false (its counterexample is printed), or evaluation differs."""
    check_writable(json=arguments.json, reads=[arguments.record])
    record = load_json(arguments.record)
    report = check_record(record, source=arguments.record)
    said, opinion = report.to_json(), None
    if arguments.modular:
        from einnet_explore.interpreter.modular import second_opinion

        held = read_record(record, arguments.record)
        opinion = second_opinion(held.start, held.steps[-1].after if held.steps else held.start)
        said["second_opinion"] = opinion.to_json()
    if arguments.json:
        write_json(arguments.json, said)
    if arguments.json != STDOUT:
        print(report)
        if opinion is not None:
            print(f"start to end: {opinion}")
    return OK if report.ok and (opinion is None or opinion.differs is None) else NO
