"""Candidates of a search: programs in which every equation is instantiated; derivations as JSON and as records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from einnet_explore.analysis.equations import weight_only
from einnet_explore.checker.record import FORMAT, VERSION
from einnet_explore.equivalence.certificate import Certificate, compose_certificates
from einnet_explore.equivalence.verdict import weakest_kind
from einnet_explore.ir import Equation, Program
from einnet_explore.rules import Derivation, Refused
from einnet_explore.rules.base import BAD_STEP_ERRORS, MatchJson, match_from_json
from einnet_explore.strategies.instantiation import known_rules
from einnet_explore.support.json_values import JsonObject, as_items, as_object
from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax import text


@dataclass(frozen=True, slots=True)
class Candidate:
    """A derivation that ends in an executable program, its estimated cost and the state it came from."""

    state: int
    derivation: Derivation
    seconds: float
    how: str

    @property
    def program(self) -> Program:
        """The executable program."""
        return self.derivation.end

    @property
    def rank(self) -> tuple[float, int]:
        """The sort key: estimated cost, then the number of steps."""
        return self.seconds, len(self.derivation.steps)

    @property
    def operators(self) -> tuple[Equation, ...]:
        """The equations that a library operator runs."""
        return tuple(e for e in self.program.equations if e.via and e.via.is_library_call)

    @property
    def eoperators(self) -> int:
        """The number of generated kernels that run: views and equations on weights alone cost nothing at run time."""
        folded = weight_only(self.program)
        return sum(bool(e.via and e.via.is_eoperator) and e.name not in folded for e in self.program.equations)

    def to_json(self, certificate: str) -> dict[str, object]:
        """Return the entry of ``candidates`` in the JSON of ``derive``; *certificate* is the verdict."""
        return {
            "operators": [
                {"name": e.via.operator, "attributes": dict(e.via.attributes)} for e in self.operators if e.via
            ],
            "eoperators": self.eoperators,
            "depth": len(self.derivation.steps),
            "estimated_seconds": self.seconds,
            "certificate": certificate,
            "steps": [step.match.to_json() for step in self.derivation.steps],
        }

    def __repr__(self) -> str:
        kernels = [count_noun(self.eoperators, "eOperator")] if self.eoperators else []
        calls = " + ".join([*(str(e.via) for e in self.operators), *kernels]) or "views"
        steps = count_noun(len(self.derivation.steps), "step")
        return f"<Candidate {self.state}: {calls}, {steps}, {self.seconds * 1e6:.1f} µs>"


def combined_verdict(certificates: tuple[Certificate, ...]) -> str:
    """Return the weakest kind among *certificates*, ``none`` without any."""
    return weakest_kind(c.kind for c in certificates) if certificates else "none"


def steps_to_json(derivation: Derivation) -> list[MatchJson]:
    """Return the matches of *derivation* as JSON values; ``replay`` applies them again."""
    return [step.match.to_json() for step in derivation.steps]


def replay(start: Program, steps: object) -> Derivation:
    """Apply the *steps* of ``steps_to_json`` to *start*; raises Refused for a step that does not apply."""
    known = known_rules()
    derivation = Derivation(start)
    for n, step in enumerate(as_items(steps), 1):
        try:
            derivation = derivation.then(match_from_json(known, derivation.end, as_object(step)))
        except BAD_STEP_ERRORS as why:
            raise Refused(f"step {n}: {type(why).__name__}: {why}") from None
    return derivation


def replay_at_other_sizes(start: Program, steps: Iterable[MatchJson]) -> Derivation | None:
    """Apply *steps* of a program that differs from *start* in extents, until *start* is executable.

    Attributes of library operators are solved again.  Returns None if a step does not apply.
    """
    known, derivation = known_rules(), Derivation(start)
    for step in steps:
        params = {name: value for name, value in as_object(step["params"]).items() if name != "attributes"}
        try:
            derivation = derivation.then(match_from_json(known, derivation.end, {**step, "params": params}))
        except BAD_STEP_ERRORS:
            return None
        if all(e.via for e in derivation.end.equations):
            return derivation
    return None


_RESERVED_FIELDS = ("format", "version", "start", "steps", "certificate")


def to_record(derivation: Derivation, certificates: Sequence[Certificate] = (), **meta: object) -> JsonObject:
    """Return *derivation* as JSON, with one certificate a step (or none) and the fields *meta* (case, target, …).

    With certificates, the record also has their composition: the certificate of the first and the last program.

    Raises ValueError if the certificates are not as many as the steps, or *meta* uses a name of the format.
    """
    if certificates and len(certificates) != len(derivation.steps):
        raise ValueError(f"{len(certificates)} certificates for {len(derivation.steps)} steps")
    if taken := [name for name in meta if name in _RESERVED_FIELDS]:
        raise ValueError(f"{', '.join(taken)}: names of the format itself")
    steps = [
        {
            **step.match.to_json(),
            "after": text(step.after),
            "certificate": certificates[n].to_json() if certificates else None,
        }
        for n, step in enumerate(derivation.steps)
    ]
    record: JsonObject = {"format": FORMAT, "version": VERSION, **meta, "start": text(derivation.start), "steps": steps}
    if certificates:
        chain = [(s.before, s.after, c) for s, c in zip(derivation.steps, certificates, strict=True)]
        record["certificate"] = compose_certificates(chain).to_json()
    return record


def save_record(path: str | PathLike[str], record: JsonObject) -> None:
    """Write *record* to *path*, whole or not at all; raises OSError."""
    written = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    # A case's name may be no UTF-8, but JSON's \udcff.
    write_atomically(path, written.encode(errors="backslashreplace"))


def save_records(folder: str | PathLike[str], records: Mapping[str, JsonObject]) -> None:
    """Write each of *records* below *folder*, to the file ``NAME.json``, where a name may have folders."""
    for name, record in records.items():
        file = Path(folder) / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        save_record(file, record)
