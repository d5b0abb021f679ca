"""``python -m einnet_check RECORD.json …``: exit 0 proved, 1 not proved, 2 no record, 3 proved up to rounding of
constants or operands; of several records the code of the worst.

``--program FILE`` names the program that the records have to start from; with one record, a second file whose name
ends in ``.ein`` is that program, too.  ``--rule NAME`` allows steps of a rule that is not the library's,
``--numerics bf16`` steps that round operands of products to bfloat16.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from einnet_check.record import RULES, Verdict, check, weakest_kind


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raises ValueError for a name that occurs twice, since JSON readers treat it differently."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError(f"one object has a name twice, of {', '.join(found)}")
    return found


def shown(text: str) -> str:
    """Return *text* in one line without control characters, since a record may contain any names."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def main(arguments: list[str]) -> int:
    """Check every record that is named; return the exit code of the worst one."""
    parser = argparse.ArgumentParser(prog="python -m einnet_check", description="Prove every step of records.")
    parser.add_argument("records", metavar="RECORD.json", nargs="+")
    parser.add_argument("--program", metavar="FILE", help="the program that the records have to start from")
    parser.add_argument("--rule", metavar="NAME", action="append", default=[], help="also allow steps of this rule")
    parser.add_argument("--numerics", choices=("bf16",), help="also allow steps that round operands to bfloat16")
    given = parser.parse_args(arguments)
    records = list(given.records)
    if given.program is None and len(records) == 2 and records[1].endswith(".ein"):
        given.program = records.pop()
    try:
        program = Path(given.program).read_text(encoding="utf-8-sig") if given.program else None
    except (OSError, ValueError) as error:
        print(shown(f"error: {given.program}: {error}"), file=sys.stderr)
        return 2
    codes = []
    for path in records:
        if len(records) > 1:
            print(shown(f"{path}:"))
        codes.append(print_verdicts(path, program, {*RULES, *given.rule}, given.numerics == "bf16"))
    return min(codes, key=(2, 1, 3, 0).index)


def print_verdicts(path: str, program: str | None, rules: set[str], rounding: bool) -> int:
    """Print one line for each step of the record at *path* and one for the whole; return its exit code."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=unique)
        verdicts = list[Verdict]()
        for verdict in check(record, program, rules, rounding):
            if verdict.why is not None:
                print(shown(f"{path}: {verdict.step}: NOT PROVED: {verdict.why}"), file=sys.stderr)
                return 1
            print(", ".join((f"{verdict.step}: {verdict.kind}", *sorted(verdict.axioms))))
            verdicts.append(verdict)
        kind, axioms = weakest_kind(verdicts), frozenset[str]().union(*(v.axioms for v in verdicts))
        whole = f"the last program computes what the first does{verdicts[0].step.removeprefix('start')}"
        print(", ".join((f"{path}: {kind}, {whole}", *sorted(axioms))))
        return 0 if kind == "proved" else 3
    except (OSError, RecursionError, ValueError) as error:
        print(shown(f"error: {path}: {error}"), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
