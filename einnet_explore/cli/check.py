"""``einnet-explore check``: replay the certificates of records and bundles without rules or search."""

from __future__ import annotations

import argparse
from pathlib import Path

from einnet_explore.checker.bundle import check_files
from einnet_explore.checker.record import RULE_NAMES, Report, check_record, load_json, read_record
from einnet_explore.cli.output import NO, NOT_PROVED, OK, STDOUT, check_writable, write_json
from einnet_explore.equivalence.certificate import ModularComparison, compare_modulo_prime
from einnet_explore.equivalence.verdict import CertificateKind, is_at_least
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator
from einnet_explore.support.json_values import JsonObject


def run_check(arguments: argparse.Namespace) -> int:
    """Return the exit code of the worst record: 0 if proved, 1 if a step is false or an evaluation differs, else 3.

    ``--require`` names the weakest verdict with exit code 0.  A bundle's file that differs from its manifest is false.
    JSON has one document, or a list of several; those of a bundle are its files and then its records.
    """
    check_writable(json=arguments.json, reads=arguments.records)
    several = len(arguments.records) > 1
    rules, operators = (*RULE_NAMES, *arguments.rule), (*OPERATORS, *map(_operator, arguments.operator))
    documents: list[JsonObject] = []
    codes = [OK]
    for given in arguments.records:
        sources, is_bundle = [given], Path(given).is_dir()
        if is_bundle:
            files = check_files(given)
            sources = [file.path for file in files if file.is_record and file.wrong is None]
            documents.append({"bundle": given, "files": [file.to_json() for file in files]})
            codes += [NO for file in files if file.wrong is not None]
            _print(arguments, *files)
        for source in sources:
            record = load_json(source)
            report = check_record(
                record, source=source, operators=operators, rules=rules, rounding=arguments.numerics == "bf16"
            )
            opinion = _second_opinion(record, source) if arguments.modular else None
            documents.append(report.to_json() | ({} if opinion is None else {"second_opinion": opinion.to_json()}))
            codes.append(_exit_code(report, opinion, arguments.require))
            title = [f"{source}:"] if several else []
            _print(arguments, *([report.verdict] if is_bundle else [*title, report]))
            if opinion is not None:
                _print(arguments, f"start to end: {opinion}")
    if arguments.json:
        alone = len(documents) == 1 and "record" in documents[0]
        write_json(arguments.json, documents[0] if alone else documents)
    return min(codes, key=[NO, NOT_PROVED, OK].index)


def _print(arguments: argparse.Namespace, *lines: object) -> None:
    """Print *lines*, unless standard output has the JSON."""
    if arguments.json != STDOUT:
        print(*lines, sep="\n")


def _second_opinion(record: object, source: str) -> ModularComparison:
    """Compare the ends of *record* modulo a prime."""
    replay = read_record(record, source)
    return compare_modulo_prime(replay.start, replay.steps[-1].after if replay.steps else replay.start)


def _exit_code(report: Report, opinion: ModularComparison | None, require: CertificateKind) -> int:
    if report.kind == "false" or (opinion is not None and opinion.differs is not None):
        return NO
    rounded = opinion is not None and opinion.rounded
    accepted = is_at_least(report.kind, require) and not (rounded and not is_at_least("rounded", require))
    return OK if accepted else NOT_PROVED


def _operator(text: str) -> Operator:
    name, colon, expression = text.partition(":")
    if not name.strip().isidentifier() or not colon:
        raise ValueError(f"--operator {text!r}: found no name before a colon, expected NAME: Y[i] = A[i] * B[i]")
    return Operator(name.strip(), expression.strip())
