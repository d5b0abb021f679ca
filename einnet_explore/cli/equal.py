"""``einnet-explore equal``: prove that two models or programs are equal, or show where they differ."""

from __future__ import annotations

import argparse
from xml.etree.ElementTree import Element, SubElement, tostring

from einnet_explore.cli.output import NO, NOT_PROVED, OK, STDOUT, check_writable, one_line, save_file, say, write_json
from einnet_explore.cli.values import parse_domains, parse_shapes
from einnet_explore.parametric.equality import equal
from einnet_explore.support.wording import count_noun


def run_equal(arguments: argparse.Namespace) -> int:
    """Return 0 if equality is proved, 1 if the two differ, else 3; ``--require rounded`` accepts rounding."""
    files = [arguments.first, arguments.second]
    check_writable(arguments.inputs, arguments.html, arguments.junit, json=arguments.json, reads=files)
    name = " equals ".join(files)
    try:
        found = equal(
            arguments.first,
            arguments.second,
            budget=arguments.budget,
            parts=bool(arguments.html),
            shapes=parse_shapes(arguments.shape),
            all_sizes=arguments.all_sizes,
            domains=parse_domains(arguments.domain),
        )
    except Exception as error:  # a report of an earlier run must not stay
        if arguments.junit:
            save_file(arguments.junit, _junit(name, "error", type(error).__name__, [one_line(error)]))
        raise
    if arguments.json != STDOUT:
        print(found, flush=True)
    if found.kind == "unknown" and found.models and not arguments.html:
        say("--html FILE shows which values are proved; parts of the models may be compared alone")
    if arguments.certificates:
        saved = found.save_certificates(arguments.certificates)
        again = f": python -m einnet_check {arguments.certificates}/*.json proves them again" if saved else ""
        say(f"saved {count_noun(saved, 'record')} in {arguments.certificates}{again}")
    if arguments.inputs and found.difference is not None:
        found.difference.save_inputs(arguments.inputs)
        say(f"saved {arguments.inputs}")
    elif arguments.inputs:
        why = "no difference was found"
        if found.kind == "different":
            why = "the programs are too large to be evaluated, or agree up to rounding"
        say(f"{arguments.inputs} is not written: {why}")
    if arguments.html:
        save_file(arguments.html, found.page(" and ".join(files)))
    if arguments.json:
        write_json(arguments.json, found.to_json())
    accepted = found.kind in ("proved", arguments.require)
    if found.kind == "rounded" and not accepted:
        say("rounded is not accepted: --require rounded accepts it")
    if arguments.junit:
        outcome = "system-out" if accepted else "failure"
        save_file(arguments.junit, _junit(name, outcome, found.kind, found.lines(), found.seconds))
    return OK if accepted else NO if found.kind == "different" else NOT_PROVED


def _junit(name: str, outcome: str, kind: str, lines: list[str], seconds: float = 0.0) -> str:
    """Return a JUnit report of one test case with the element *outcome*: ``failure``, ``error`` or ``system-out``."""
    counts = {"tests": "1", "failures": str(int(outcome == "failure")), "errors": str(int(outcome == "error"))}
    time = {"time": f"{seconds:.3f}"}
    suite = Element("testsuite", {"name": "einnet-explore equal", **counts, **time})
    case = SubElement(suite, "testcase", {"classname": "equal", "name": name, **time})
    about = {} if outcome == "system-out" else {"type": kind, "message": "; ".join(lines)}
    SubElement(case, outcome, about).text = "\n".join(lines)
    return tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
