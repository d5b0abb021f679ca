"""``einnet-explore check``: replay a record's certificates without rules or search."""

from __future__ import annotations

import argparse

from einnet_explore.checker.record import RULE_NAMES, check_record, load_json, read_record
from einnet_explore.cli.output import NO, NOT_PROVED, OK, STDOUT, check_writable, write_json
from einnet_explore.equivalence.certificate import compare_modulo_prime
from einnet_explore.equivalence.verdict import is_at_least
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator


def run_check(arguments: argparse.Namespace) -> int:
    """Return exit code 0 if the record is proved, 1 if a step is false or an evaluation differs, else 3.

    ``--require`` names the weakest verdict with exit code 0.
    """
    check_writable(json=arguments.json, reads=[arguments.record])
    record = load_json(arguments.record)
    report = check_record(
        record,
        source=arguments.record,
        operators=(*OPERATORS, *map(_operator, arguments.operator)),
        rules=(*RULE_NAMES, *arguments.rule),
    )
    document, opinion = report.to_json(), None
    if arguments.modular:
        replay = read_record(record, arguments.record)
        opinion = compare_modulo_prime(replay.start, replay.steps[-1].after if replay.steps else replay.start)
        document["second_opinion"] = opinion.to_json()
    if arguments.json:
        write_json(arguments.json, document)
    if arguments.json != STDOUT:
        print(report)
        if opinion is not None:
            print(f"start to end: {opinion}")
    if report.kind == "false" or (opinion is not None and opinion.differs is not None):
        return NO
    accepted = is_at_least(report.kind, arguments.require)
    if opinion is not None and opinion.rounded:
        accepted = accepted and is_at_least("rounded", arguments.require)
    return OK if accepted else NOT_PROVED


def _operator(text: str) -> Operator:
    name, colon, expression = text.partition(":")
    if not name.strip().isidentifier() or not colon:
        raise ValueError(f"--operator {text!r}: found no name before a colon, expected NAME: Y[i] = A[i] * B[i]")
    return Operator(name.strip(), expression.strip())
