"""``einnet-explore family``: derive a program once, prove it for all sizes, instantiate it at given sizes."""

from __future__ import annotations

import argparse

from einnet_explore.cli.output import NO, OK, STDOUT, check_writable, say, write_json
from einnet_explore.parametric.conjecture import sizes_text
from einnet_explore.parametric.family import FamilyDerivation, FamilyInstance, load_family
from einnet_explore.syntax import text


def run_family(arguments: argparse.Namespace) -> int:
    """Return exit code 0 if every step is proved for all sizes, else 1."""
    check_writable(json=arguments.json, reads=[arguments.case])
    family = load_family(arguments.case, assume=arguments.assume)
    wanted = None if arguments.at is None else _parse_sizes(arguments.at)
    if wanted is not None:
        family.ground.refuse(wanted)
    found = None if arguments.sizes is None else _parse_sizes(arguments.sizes)
    derived = family.derive(arguments.target, arguments.budget, found)
    instance = None if wanted is None else derived.instantiate(**wanted)
    if arguments.json:
        write_json(arguments.json, _report(arguments.case, derived, instance))
    shown = _shown(derived, instance)
    if arguments.json != STDOUT and arguments.latex:
        say("\n\n".join(shown.values()))
        print(derived.align())
    elif arguments.json != STDOUT:
        print("\n\n".join([shown.pop("proof"), derived.text().rstrip(), *shown.values()]))
    return OK if derived.proof.kind == "proved" else NO


def _parse_sizes(argument: str) -> dict[str, int]:
    """Parse ``H=56,W=56``; raise ValueError for any other form."""
    out: dict[str, int] = {}
    for part in argument.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        if not (name and equals and number.isdecimal()):
            raise ValueError(f"sizes {argument!r}: found {part!r}, expected a parameter and a number such as H=56")
        if name in out:
            raise ValueError(f"sizes {argument!r}: found {name} twice, expected it once")
        out[name] = int(number)
    return out


def _report(case: str, derived: FamilyDerivation, instance: FamilyInstance | None) -> dict[str, object]:
    """Return the document that ``--json`` writes."""
    steps = zip(derived.proof.rules, derived.proof.verdicts, strict=True)
    return {
        "case": case,
        "kind": derived.proof.kind,
        "guards": list(derived.guards),
        "inferred": list(derived.inferred),
        "steps": [
            {"rule": rule, "kind": v.kind, "means": list(v.means), "why": v.why or None, "sizes": dict(v.sizes) or None}
            for rule, v in steps
        ],
        "start": derived.text(0),
        "end": derived.text(),
        "instance": None
        if instance is None
        else {
            "sizes": dict(instance.sizes),
            "program": text(instance.program),
            "certificate": instance.certificate.to_json(),
        },
    }


def _shown(derived: FamilyDerivation, instance: FamilyInstance | None) -> dict[str, str]:
    """Return the lines on the proof and on the instance."""
    inferred = f"\ninferred: {', '.join(derived.inferred)}" if derived.inferred else ""
    shown = {"proof": f"{derived.proof!r}{inferred}"}
    if instance is not None:
        sizes = sizes_text(dict(instance.sizes))
        shown["instance"] = f"at {sizes}: {instance.certificate}\n{text(instance.program).rstrip()}"
    return shown
