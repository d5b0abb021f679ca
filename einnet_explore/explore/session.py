"""The one mutable object: a tree of derivations, where the reader stands in it, and who wants to know.

Everything that a notebook or a widget does is one public call here, so a session can print itself as Python (``script``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from einnet_explore.algebra.certificate import Certificate, certify
from einnet_explore.ir import Path, Program, read_path, show_path
from einnet_explore.operators import OPERATORS, Operator
from einnet_explore.rules import RULES, Derivation, Match, Refused, Rule
from einnet_explore.rules.base import places
from einnet_explore.search.instantiation import matching_rule

Observer: TypeAlias = "Callable[[Session], None]"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a rule does not apply at a place, in the rule's own words."""

    rule: str
    at: Path
    why: str


class Session:
    """A tree of derivations from one program.  ``here`` is a node of it; applying a rule there makes a child.

    Nothing is ever lost: undo moves up, and what was undone stays as a branch.  A lock guards the tree, since callbacks
    may run on other threads.
    """

    def __init__(
        self, start: Program, rules: tuple[Rule[Any], ...] = RULES, operators: tuple[Operator, ...] = OPERATORS
    ) -> None:
        self.known: tuple[Rule[Any], ...] = (*rules, matching_rule(operators))
        self.operators = operators
        self.nodes: list[Derivation] = [Derivation(start)]
        self.parents: list[int] = [-1]
        self.here = 0
        self._redo: list[int] = []
        self._observers: list[Observer] = []
        self._lock = threading.RLock()

    @property
    def derivation(self) -> Derivation:
        """The derivation that leads to where the reader stands."""
        return self.nodes[self.here]

    @property
    def program(self) -> Program:
        """The program where the reader stands."""
        return self.derivation.end

    def rule(self, name: str) -> Rule[Any]:
        """The rule called *name*; raises KeyError that lists the known ones."""
        for rule in self.known:
            if rule.name == name:
                return rule
        raise KeyError(f"rule {name!r}: expected one of {', '.join(r.name for r in self.known)}")

    def rules(self, at: str | Path | None = None) -> tuple[Match[Any], ...]:
        """The legal matches at the scope *at* (``"0.1"``), or at every scope."""
        program = self.program
        paths = [path for path, _ in places(program)] if at is None else [_path(at)]
        return tuple(m for path in paths for rule in self.known for m in rule.matches(program, path))

    def refusals(self, at: str | Path) -> tuple[Refusal, ...]:
        """For every rule without a legal match at *at*: why it is refused."""
        return tuple(self._refusals(_path(at)))

    def _refusals(self, at: Path) -> Iterable[Refusal]:
        for rule in self.known:
            if not any(True for _ in rule.matches(self.program, at)):
                yield Refusal(rule.name, at, why_refused(rule, self.program, at))

    def apply(self, rule: str | Match[Any], at: str | Path = "0", **params: Any) -> Program:
        """Apply a rule by name with parameters in their JSON form, or a match; raises ``Refused`` and changes nothing.

        Without parameters the rule must have exactly one legal match at *at*.
        """
        with self._lock:
            match = rule if isinstance(rule, Match) else self._match(self.rule(rule), _path(at), params)
            self.nodes.append(self.derivation.then(match))
            self.parents.append(self.here)
            self._redo.clear()
            self._go(len(self.nodes) - 1)
            return self.program

    def _match(self, rule: Rule[Any], at: Path, params: dict[str, Any]) -> Match[Any]:
        self.program.scope_at(at)
        if params:
            return rule.match(self.program, at, **params)
        legal = list(rule.matches(self.program, at))
        if not legal:
            raise Refused(f"{rule.name} at {show_path(at)}: {why_refused(rule, self.program, at)}")
        if len(legal) > 1:
            some = "; ".join(str(rule.encode(m.params)) for m in legal[:4])
            raise Refused(f"{rule.name} at {show_path(at)} has {len(legal)} legal matches, give parameters: {some}")
        return legal[0]

    def undo(self) -> Program:
        """Step back to the parent; at the start this does nothing."""
        with self._lock:
            if self.parents[self.here] >= 0:
                self._redo.append(self.here)
                self._go(self.parents[self.here])
            return self.program

    def redo(self) -> Program:
        """Take back the last ``undo``."""
        with self._lock:
            if self._redo:
                self._go(self._redo.pop())
            return self.program

    def goto(self, node: int) -> Program:
        """Stand at another node of the tree."""
        with self._lock:
            if not 0 <= node < len(self.nodes):
                raise IndexError(f"node {node}: expected 0 to {len(self.nodes) - 1}")
            self._redo.clear()
            self._go(node)
            return self.program

    def adopt(self, derivation: Derivation) -> Program:
        """Add every step of *derivation* (from a search or a record) as nodes below the start, and stand at its end."""
        if derivation.start != self.nodes[0].end:
            raise ValueError("the derivation starts from another program than this session")
        with self._lock:
            self.here = 0
            for step in derivation.steps:
                self.apply(step.match)
            return self.program

    def check(self) -> Certificate:
        """Prove that the program here equals the start; a false one carries a counterexample."""
        return certify(self.nodes[0].end, self.program)

    def certificates(self) -> tuple[Certificate, ...]:
        """A certificate for every step from the start to here."""
        return tuple(certify(step.before, step.after) for step in self.derivation.steps)

    def script(self) -> str:
        """The steps from the start to here as Python that repeats them on a new session."""
        lines = ["session = ee.Session(program)"]
        for step in self.derivation.steps:
            said = step.match.to_json()
            params = "".join(f", {k}={v!r}" for k, v in said["params"].items() if v is not None)
            lines.append(f"session.apply({said['rule']!r}, at={said['at']!r}{params})")
        return "\n".join(lines) + "\n"

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call *observer* after every change; returns the function that unsubscribes."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def _go(self, node: int) -> None:
        self.here = node
        for observer in tuple(self._observers):
            observer(self)


def why_refused(rule: Rule[Any], program: Program, at: Path) -> str:
    """What *rule* says when it is asked for without parameters, or that it found nothing to propose."""
    try:
        rule.rewrite(program, at, rule.decode(program, at, {}))
    except Refused as refusal:
        return str(refusal)
    except (KeyError, TypeError, ValueError):
        pass
    return "nothing to propose from this scope's extents and coefficients"


def _path(at: str | Path) -> Path:
    return read_path(at) if isinstance(at, str) else at
