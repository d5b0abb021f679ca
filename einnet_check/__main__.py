"""``python -m einnet_check RECORD.json [PROGRAM.ein]``: exit 0 proved, 1 not proved, 2 no record,
3 proved up to rounding of constants.

``--rule NAME`` allows steps of a rule that is not the library's.
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
    """Print one line for each step and one for the whole record; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m einnet_check", description="Prove every step of a record.")
    parser.add_argument("record", metavar="RECORD.json")
    parser.add_argument(
        "program", metavar="PROGRAM.ein", nargs="?", help="the program that the record has to start from"
    )
    parser.add_argument("--rule", metavar="NAME", action="append", default=[], help="also allow steps of this rule")
    given = parser.parse_args(arguments)
    try:
        record = json.loads(Path(given.record).read_text(encoding="utf-8"), object_pairs_hook=unique)
        program = Path(given.program).read_text(encoding="utf-8-sig") if given.program else None
        verdicts = list[Verdict]()
        for verdict in check(record, program, {*RULES, *given.rule}):
            if verdict.why is not None:
                print(shown(f"{given.record}: {verdict.step}: NOT PROVED: {verdict.why}"), file=sys.stderr)
                return 1
            print(", ".join((f"{verdict.step}: {verdict.kind}", *sorted(verdict.axioms))))
            verdicts.append(verdict)
        kind, axioms = weakest_kind(verdicts), frozenset[str]().union(*(v.axioms for v in verdicts))
        whole = f"the last program computes what the first does{verdicts[0].step.removeprefix('start')}"
        print(", ".join((f"{given.record}: {kind}, {whole}", *sorted(axioms))))
        return 0 if kind == "proved" else 3
    except (OSError, RecursionError, ValueError) as error:
        print(shown(f"error: {given.record}: {error}"), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
