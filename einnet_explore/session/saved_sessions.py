"""Session files (``.eins``): a whole session as JSON, for later releases too.

The tree of derivations is stored as steps, which are applied again.  The certificates are claims: a session that is
read proves its steps itself and compares.  Pins, notes, searches, and the settings of front ends are optional fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from einnet_explore.checker.record import RecordError
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import Certificate
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator
from einnet_explore.rules import INTER_RULES, RULES, Derivation, Rule
from einnet_explore.rules.base import BAD_STEP_ERRORS, match_from_json
from einnet_explore.session.run import Run
from einnet_explore.session.running_search import saved_search_from_json, saved_search_to_json
from einnet_explore.strategies.instantiation import known_rules
from einnet_explore.support.json_values import JsonObject, as_object, as_texts, json_field
from einnet_explore.syntax import parse, text

SESSION_FORMAT, SESSION_VERSION = "einnet-explore session", 1
SESSION_SUFFIX = ".eins"

NODE_LABEL = r"[E#]\d+"
"""Labels of nodes, as ``DerivationTree.node`` reads them; no pin has such a name."""

T = TypeVar("T")

USUAL_RULES = (*RULES, *INTER_RULES)
"""The rules of a session that is made without ``rules=``."""


@dataclass(slots=True)
class SavedSession:
    """The content of a session file.

    *claims* are the certificates of nodes, *view* is what a front end keeps of its selection.
    """

    nodes: Sequence[Derivation]
    parents: Sequence[int]
    here: int = 0
    pins: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[int, str] = field(default_factory=dict)
    claims: Mapping[int, Certificate] = field(default_factory=dict)
    runs: Sequence[Run] = ()
    view: JsonObject = field(default_factory=dict)
    rules: tuple[Rule[object], ...] = USUAL_RULES
    operators: tuple[Operator, ...] = OPERATORS

    def to_json(self) -> JsonObject:
        """Return the content as JSON; what is empty or usual is left out."""
        steps = [
            {"parent": parent, **derivation.steps[-1].match.to_json()}
            for derivation, parent in zip(self.nodes[1:], self.parents[1:], strict=True)
        ]
        optional: JsonObject = {
            "rules": [rule.name for rule in self.rules] if self.rules != USUAL_RULES else [],
            "operators": [operator.name for operator in self.operators] if self.operators != OPERATORS else [],
            "pins": [{"name": name, "node": node} for name, node in self.pins.items()],
            "notes": [{"node": node, "text": note} for node, note in sorted(self.notes.items())],
            "certificates": [{"node": node, **claim.to_json()} for node, claim in sorted(self.claims.items())],
            "runs": [saved_search_to_json(run) for run in self.runs],
            "view": self.view,
        }
        start = text(self.nodes[0].end)
        tree = {"format": SESSION_FORMAT, "version": SESSION_VERSION, "start": start, "steps": steps, "here": self.here}
        return tree | {name: value for name, value in optional.items() if value}

    @staticmethod
    def from_json(
        data: object,
        source: str = "<session>",
        rules: Sequence[Rule[object]] = (),
        operators: Sequence[Operator] = (),
    ) -> SavedSession:
        """Return the content of *data*; raises RecordError that names the field.

        It may name *rules* and *operators* besides those of the library.
        """
        if not isinstance(data, dict) or "format" not in data:
            raise RecordError(f"{source}: expected {SESSION_FORMAT!r} version {SESSION_VERSION}")
        if (data["format"], data.get("version")) != (SESSION_FORMAT, SESSION_VERSION):
            found = f"{data['format']!r} version {data.get('version')!r}"
            raise RecordError(f"{source}: found {found}, expected {SESSION_FORMAT!r} version {SESSION_VERSION}")
        reader = _Reader(data, source, tuple(rules), (*OPERATORS, *(o for o in operators if o not in OPERATORS)))
        try:
            return reader.read()
        except RecordError:
            raise
        except KeyError as error:
            raise RecordError(f"{source}: {reader.where}: {error} is missing") from None
        except BAD_STEP_ERRORS as error:
            raise RecordError(f"{source}: {reader.where}: {error}") from None


@dataclass(slots=True)
class _Reader:
    """The fields of *data* as values; *where* is the field that is read."""

    data: JsonObject
    source: str
    rules: tuple[Rule[object], ...]
    operators: tuple[Operator, ...]
    where: str = "$"

    def read(self) -> SavedSession:
        known = known_rules(self.operators) | {rule.name: rule for rule in self.rules}
        nodes, parents = [Derivation(parse(json_field(self.data, "start", str)))], [-1]
        for step in self._entries("steps", required=True):
            parent = self._node(step, "parent", len(nodes))
            nodes.append(nodes[parent].then(match_from_json(known, nodes[parent].end, step)))
            parents.append(parent)
        self.where = "$"
        here = self._node(self.data, "here", len(nodes))
        pins: dict[str, int] = {}
        for pin in self._entries("pins"):
            name = check_pin_name(json_field(pin, "name", str))
            if name in pins:
                raise ValueError(f"name: found {name!r} twice")
            pins[name] = self._node(pin, "node", len(nodes))
        notes = {self._node(note, "node", len(nodes)): json_field(note, "text", str) for note in self._entries("notes")}
        claims = {
            self._node(claim, "node", len(nodes), 1): Certificate.from_json(claim)
            for claim in self._entries("certificates")
        }
        runs = [
            saved_search_from_json(
                Run, run, program_seconds, f"{self.source}: {self.where}", self.rules, self.operators
            )
            for run in self._entries("runs")
        ]
        self.where = "$"
        view = json_field({"view": {}, **self.data}, "view", dict)
        own = {operator.name: operator for operator in self.operators}
        return SavedSession(
            nodes,
            parents,
            here,
            pins,
            notes,
            claims,
            runs,
            view,
            self._named("rules", known) or USUAL_RULES,
            self._named("operators", own) or OPERATORS,
        )

    def _entries(self, name: str, required: bool = False) -> Iterable[Mapping[str, object]]:
        """Yield the objects of the list *name*, which may be missing unless it is *required*."""
        entries = json_field(self.data if required else {name: [], **self.data}, name, list)
        for n, entry in enumerate(entries):
            self.where = f"$.{name}[{n}]"
            yield as_object(entry)

    def _node(self, entry: Mapping[str, object], name: str, count: int, first: int = 0) -> int:
        node = entry[name]
        if type(node) is not int or not first <= node < count:
            raise RecordError(f"{self.source}: {self.where}.{name}: found {node!r}, expected {first} to {count - 1}")
        return node

    def _named(self, name: str, known: Mapping[str, T]) -> tuple[T, ...]:
        """Return the values of *known* that the list *name* names."""
        self.where = f"$.{name}"
        names = as_texts(self.data.get(name, []))
        if strange := [each for each in names if each not in known]:
            raise ValueError(f"found {strange[0]!r}, which is none of the library's: pass it, as {name}=")
        return tuple(known[each] for each in names)


def check_pin_name(name: str) -> str:
    """Return *name* without blanks around it; raises ValueError if it is empty or a label such as ``E7`` or ``#7``."""
    if not (name := name.strip()) or re.fullmatch(NODE_LABEL, name):
        raise ValueError(f"name {name!r}: expected a text that is no label of a node, such as E7 or #7")
    return name
