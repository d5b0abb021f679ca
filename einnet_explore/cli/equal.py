"""``einnet-explore equal``: prove that two models or programs are equal, or show where they differ."""

from __future__ import annotations

import argparse
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring

from einnet_explore.cli.output import NO, NOT_PROVED, OK, STDOUT, check_writable, save_file, write_json
from einnet_explore.ir import Program
from einnet_explore.session.model_equality import Equality, equal
from einnet_explore.syntax import parse
from einnet_explore.syntax.parser import text_of


def run_equal(arguments: argparse.Namespace) -> int:
    """Return 0 if equality is proved, 1 if the two differ, else 3; ``--require rounded`` accepts rounded weights."""
    files = [arguments.first, arguments.second]
    check_writable(arguments.inputs, arguments.html, arguments.junit, json=arguments.json, reads=files)
    first, second = map(_read, files)
    found = equal(first, second, budget=arguments.budget, parts=bool(arguments.html))
    if arguments.certificates:
        found.save_certificates(arguments.certificates)
    if arguments.inputs and found.difference is not None:
        found.difference.save_inputs(arguments.inputs)
    if arguments.html:
        save_file(arguments.html, found.page(" and ".join(files)))
    if arguments.json:
        write_json(arguments.json, found.to_json())
    if arguments.json != STDOUT:
        print(found)
    accepted = found.kind in ("proved", arguments.require)
    if arguments.junit:
        save_file(arguments.junit, _junit(found, " equals ".join(files), accepted))
    return OK if accepted else NO if found.kind == "different" else NOT_PROVED


def _junit(found: Equality, name: str, accepted: bool) -> str:
    """Return a JUnit report of one test case, which fails unless the verdict is *accepted*."""
    counts = {"tests": "1", "failures": str(int(not accepted)), "time": f"{found.seconds:.3f}"}
    suite = Element("testsuite", {"name": "einnet-explore equal", **counts})
    case = SubElement(suite, "testcase", {"classname": "equal", "name": name, "time": counts["time"]})
    failure = {"type": found.kind, "message": found.lines()[-1]}
    outcome = SubElement(case, "system-out") if accepted else SubElement(case, "failure", failure)
    outcome.text = str(found)
    return tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _read(file: str) -> str | Program:
    """Return the program of a text file; other files are models."""
    return parse(text_of(file), file) if Path(file).suffix == ".ein" else file
