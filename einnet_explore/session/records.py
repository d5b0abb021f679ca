"""Records: a derivation with its certificates as JSON, and back.

A record holds its programs in the text form, so that the checker reads it without rules; ``from_record`` applies the
rules again and sees that they still lead to the same programs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from typing import Any

from einnet_explore.checker.record import FORMAT, VERSION, RecordedStep, RecordError, load_json, read_record
from einnet_explore.equivalence.certificate import Certificate, compose_certificates
from einnet_explore.ir import Program, read_path
from einnet_explore.operators import OPERATORS
from einnet_explore.rules import ALL_RULES
from einnet_explore.rules.base import BAD_STEP_ERRORS, Derivation, Match, Rule
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.support.storage import write_atomically
from einnet_explore.syntax import text

_RESERVED = ("format", "version", "start", "steps", "certificate")


def to_record(derivation: Derivation, certificates: Sequence[Certificate] = (), **meta: Any) -> dict[str, Any]:
    """*derivation* as plain JSON values, with one certificate a step (or none) and *meta* (case, target, …) beside it.

    With certificates the record has one of its own, too: what these say of the first and the last program together.

    Raises ValueError where the certificates are not as many as the steps, or *meta* uses a name of the format.
    """
    if certificates and len(certificates) != len(derivation.steps):
        raise ValueError(f"{len(certificates)} certificates for {len(derivation.steps)} steps")
    if taken := [name for name in meta if name in _RESERVED]:
        raise ValueError(f"{', '.join(taken)}: names of the format itself")
    steps = [
        {
            **step.match.to_json(),
            "after": text(step.after),
            "certificate": certificates[n].to_json() if certificates else None,
        }
        for n, step in enumerate(derivation.steps)
    ]
    held = {"format": FORMAT, "version": VERSION, **meta, "start": text(derivation.start), "steps": steps}
    if not certificates:
        return held
    chain = [(s.before, s.after, c) for s, c in zip(derivation.steps, certificates, strict=True)]
    return {**held, "certificate": compose_certificates(chain).to_json()}


def from_record(record: object, rules: tuple[Rule[object], ...] | None = None, source: str = "<record>") -> Derivation:
    """The derivation of *record*, its rules applied again.

    *rules* are those that it may name (all of the library's when None).  Raises RecordError where the record has
    another form, names an unknown rule, or where a rule is refused or no longer gives the recorded program.
    """
    held = read_record(record, source)
    every = (*ALL_RULES, matching_rule(OPERATORS))
    known = {rule.name: rule for rule in (every if rules is None else rules)}
    derivation = Derivation(held.start)
    for n, step in enumerate(held.steps):
        derivation = _replay_step(derivation, step, known, f"{source}: $.steps[{n}]")
    return derivation


def save_record(path: str | PathLike[str], record: dict[str, Any]) -> None:
    """Write *record* to *path*, whole or not at all; raises OSError."""
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode(errors="backslashreplace"))  # a case's name may be no UTF-8, but JSON's \udcff


def load_record(path: str | PathLike[str]) -> dict[str, Any]:
    """The record in the file at *path*; raises OSError where it cannot be read, RecordError where it is none."""
    data = load_json(path)
    read_record(data, str(path))
    assert isinstance(data, dict)
    return data


def _replay_step(derivation: Derivation, step: RecordedStep, known: dict[str, Rule[object]], where: str) -> Derivation:
    if step.rule not in known:
        raise RecordError(f"{where}.rule: found {step.rule!r}, expected one of {', '.join(known)}")
    rule, program, at = known[step.rule], derivation.end, read_path(step.at)
    try:
        program.scope_at(at)
        longer = derivation.then(Match(rule, at, rule.decode(program, at, step.params)))
    except BAD_STEP_ERRORS as error:
        raise RecordError(f"{where}: {step.rule} at {step.at}: {error}") from None
    if not _same_text(longer.end, step.after):
        raise RecordError(f"{where}.after: {step.rule} at {step.at} now gives another program:\n{text(longer.end)}")
    return longer


def _same_text(one: Program, other: Program) -> bool:
    return one == other or text(one) == text(other)
