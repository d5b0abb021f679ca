"""Derivations from one program as a tree: its current node, undo, pins, notes, and the rules that apply."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, TypeAlias

from einnet_explore.equivalence.certificate import Certificate
from einnet_explore.equivalence.operand_rounding import certify_step
from einnet_explore.equivalence.verdict import is_at_least
from einnet_explore.ir import Path, Program, show_path
from einnet_explore.rules import ALL_RULES, INVERSE, ROUNDING_RULES, Derivation, Match, Refused, Rule
from einnet_explore.rules.base import places
from einnet_explore.session.explanations import Refusal, Refusals, applicability, is_missing_parameter, refusal_reason
from einnet_explore.session.saved_sessions import NODE_LABEL, check_pin_name
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.support.errors import RuleError
from einnet_explore.viz.tables import Matches

Observer: TypeAlias = "Callable[[DerivationTree], None]"

ScopePath: TypeAlias = "str | int | Path"
"""The path of a scope, as text, the number of an equation, or a tuple."""

Place: TypeAlias = int | str | Candidate | Derivation
"""A node of a tree: its number, its label (``#8``, ``E2``) or the name of a pin, or a derivation to it."""

MAX_NOTED = 24
"""Scopes up to which displays name the rules that apply, also further ones: some take 10 ms for each scope."""


def _note_of_further(matches: Iterable[Match[object]]) -> str:
    names = ", ".join(dict.fromkeys(match.rule.name for match in matches))
    return f"further rules of the library apply, see rules(further=True): {names}" if names else ""


class DerivationTree:
    """Derivations from one program as a tree: node *n* is ``nodes[n]``, one step more than node ``parents[n]``.

    ``here`` is a node.  *pins* are names of nodes, *notes* their texts.  *claims* are certificates from a file that no
    ``certificate`` has confirmed.  A lock guards the tree, since callbacks may run on other threads.
    """

    def __init__(self, start: Program, known: tuple[Rule[object], ...]) -> None:
        if not isinstance(start, Program):
            raise TypeError(f"found {type(start).__name__}, expected a program: ee.parse reads a text, ee.load a file")
        self.known = known
        self.nodes: list[Derivation] = [Derivation(start)]
        self.parents: list[int] = [-1]
        self.here = 0
        self.pins: dict[str, int] = {}
        self.notes: dict[int, str] = {}
        self.claims: dict[int, Certificate] = {}
        self._redo: list[int] = []
        self._proofs: dict[int, Certificate] = {}
        self._observers: list[Observer] = []
        self._lock = threading.RLock()

    @property
    def derivation(self) -> Derivation:
        """The derivation of the current node."""
        return self.nodes[self.here]

    @property
    def program(self) -> Program:
        """The program of the current node."""
        return self.derivation.end

    def _step(self, match: Match[object]) -> Program:
        """Go to the child that *match* leads to, an existing or a new one.

        Raises ``Refused`` and changes nothing.
        """
        with self._lock:
            child = self._child(self.here, self.derivation.then(match))
            self._redo.clear()
            self._go(child)
            return self.program

    def _child(self, node: int, derivation: Derivation) -> int:
        """Return the child of *node* at the end of *derivation*; an equal existing child is used again."""
        for child, parent in enumerate(self.parents):
            if parent == node and self.nodes[child] == derivation:
                return child
        self.nodes.append(derivation)
        self.parents.append(node)
        return len(self.nodes) - 1

    def undo(self) -> Program:
        """Step back to the parent; at the start this does nothing."""
        with self._lock:
            if self.parents[self.here] >= 0:
                self._redo.append(self.here)
                self._go(self.parents[self.here])
            return self.program

    def redo(self) -> Program:
        """Revert the last ``undo``; without one this does nothing."""
        with self._lock:
            if self._redo:
                self._go(self._redo.pop())
            return self.program

    @property
    def can_undo(self) -> bool:
        """Whether ``undo`` would change anything."""
        return self.parents[self.here] >= 0

    @property
    def can_redo(self) -> bool:
        """Whether ``redo`` would change anything."""
        return bool(self._redo)

    def goto(self, where: Place) -> Program:
        """Go to another node of the tree: *where* is as in ``node``, which also says what is raised."""
        with self._lock:
            node = self.node(where)
            self._redo.clear()
            self._go(node)
            return self.program

    def node(self, where: Place) -> int:
        """Return the number of the node *where*: a number, name of a pin, label, or a search's result, which is kept.

        ``"#8"`` is node 8; ``"E2"`` is the node two steps from the start on the way through the current one, or else
        the only such node.  Raises IndexError; ValueError, also for a label of several nodes; TypeError for anything
        else, such as the None of a search without a result.
        """
        match where:
            case str() if where in self.pins:
                return self.pins[where]
            case str():
                node = self._labelled_node(where)
            case int():
                node = where
            case Candidate() | Derivation():
                node = self.keep(where)
            case _:
                raise TypeError(f"found {where!r}, expected a node, a candidate or a derivation")
        if not 0 <= node < len(self.nodes):
            raise IndexError(f"node {node}: expected 0 to {len(self.nodes) - 1}")
        return node

    def _labelled_node(self, label: str) -> int:
        if not re.fullmatch(NODE_LABEL, label):
            pins = f", or a pin: {', '.join(self.pins)}" if self.pins else ""
            raise ValueError(f"node {label!r}: expected a label such as 'E7' or '#7'{pins}")
        number = int(label[1:])
        if label.startswith("#"):
            return number
        found = [n for n, derivation in enumerate(self.nodes) if len(derivation.steps) == number]
        near = [n for n in found if n in self.way() or self.here in self.way(n)]
        match near or found:
            case [node]:
                return node
            case []:
                deepest = max(len(derivation.steps) for derivation in self.nodes)
                raise IndexError(f"node {label}: expected E0 to E{deepest}")
            case several:
                raise ValueError(f"node {label!r}: expected one of {', '.join(f'#{n}' for n in several)}")

    def pin(self, where: Place | None = None, name: str = "") -> str:
        """Give the node *where* (None: the current one) a *name* and return it; a search's result is kept as a node.

        Without a *name*, the node's name, or one made of its library calls.  The name of another node moves here.
        Raises ValueError for a name like ``E7`` or ``#7``, and what ``node`` raises.
        """
        with self._lock:
            node = self.here if where is None else self.node(where)
            name = check_pin_name(name) if name else self._pin_name(node)
            self.pins[name] = node
            self._notify()
            return name

    def _pin_name(self, node: int) -> str:
        if node in self.pins.values():
            return self.name(node)
        calls = [e.via.operator for e in self.nodes[node].end.equations if e.via and e.via.is_library_call]
        stem = " + ".join(dict.fromkeys(calls)) or f"node {node}"
        return next(name for n in count(1) if (name := stem if n == 1 else f"{stem} {n}") not in self.pins)

    def name(self, node: int) -> str:
        """Return the name of the first pin of *node*, or its label, such as ``#3``."""
        return next((name for name, pinned in self.pins.items() if pinned == node), f"#{node}")

    def unpin(self, name: str) -> None:
        """Remove a name; its node and notes stay.  Raises LookupError with the names that there are."""
        with self._lock:
            if name not in self.pins:
                raise LookupError(f"no pin is called {name!r}: there are {', '.join(self.pins) or 'none'}")
            del self.pins[name]
            self._notify()

    def note(self, text: str, where: Place | None = None) -> None:
        """Attach *text* to the node *where* (None: the current one) in place of its note; an empty text removes it."""
        with self._lock:
            node = self.here if where is None else self.node(where)
            self.notes.pop(node, None)
            if text.strip():
                self.notes[node] = text.strip()
            self._notify()

    def keep(self, found: Candidate | Derivation) -> int:
        """Add the steps of *found* (from a search or a record) as nodes without going there; return the last node.

        They are added below the current node if that has their first program, else below the first node that has it.
        Existing steps are not added again.  Raises ValueError if no node has it, TypeError for another value.
        """
        with self._lock:
            derivation = found.derivation if isinstance(found, Candidate) else found
            if not isinstance(derivation, Derivation):
                raise TypeError(f"found {found!r}, expected a candidate or a derivation")
            ends = (n for n in (self.here, *range(len(self.nodes))) if self.nodes[n].end == derivation.start)
            node = next(ends, None)
            if node is None:
                raise ValueError("the derivation starts from another program than any node of this session")
            so_far = self.nodes[node]
            for step in derivation.steps:
                so_far = Derivation(so_far.start, (*so_far.steps, step))
                node = self._child(node, so_far)
            self._notify()
            return node

    def certificate(self, node: int) -> Certificate:
        """Return the certificate of the step to *node* (not the start), computed once; raises IndexError.

        The claim of a file is not trusted: it is dropped if the certificate is as strong, and kept otherwise.
        """
        if not 0 < node < len(self.nodes):
            raise IndexError(f"node {node}: expected 1 to {len(self.nodes) - 1}")
        if node not in self._proofs:
            step = self.nodes[node].steps[-1]
            found = self._proofs[node] = certify_step(step.match.rule.name, step.before, step.after)
            if (claim := self.claims.get(node)) is not None and is_at_least(found.kind, claim.kind):
                self.claims.pop(node, None)
        return self._proofs[node]

    def known_certificates(self) -> dict[int, Certificate]:
        """Return the certificates computed so far, by node."""
        return dict(self._proofs)

    def way(self, node: int | None = None) -> tuple[int, ...]:
        """Return the nodes from the start to *node* (None: the current node)."""
        found = [self.here if node is None else node]
        while self.parents[found[-1]] >= 0:
            found.append(self.parents[found[-1]])
        return tuple(reversed(found))

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call *observer* after every change; return the function that unsubscribes."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def _go(self, node: int) -> None:
        self.here = node
        self._notify()

    def _notify(self) -> None:
        for observer in tuple(self._observers):
            observer(self)

    def rule(self, name: str) -> Rule[object]:
        """Return the rule *name*, one of the session's or of the package's; raises LookupError with the names."""
        found = {rule.name: rule for rule in (*ALL_RULES, *ROUNDING_RULES, INVERSE, *self.known)}
        if name not in found:
            raise LookupError(f"no rule is called {name!r}: there are {', '.join(found)}")
        return found[name]

    @property
    def further_rules(self) -> tuple[Rule[object], ...]:
        """The rules of the library that are none of the session's, such as ``contraction_order``; it applies them, too.

        A search of one expression does not try them.
        """
        known = {rule.name for rule in self.known}
        return tuple(rule for rule in ALL_RULES if rule.name not in known)

    def rules(self, at: ScopePath | None = None, about: Iterable[str] = (), further: bool = False) -> Matches:
        """Return the legal matches at the scope *at* (None: at every scope); raises LookupError if *at* is none.

        *about* are names of iterators or tensors: only matches whose parameters name one of them.  *further*: also
        those of ``further_rules``, last.
        """
        program, paths, names = self.program, self._paths(at), {about} if isinstance(about, str) else set(about)

        def legal(rules: Iterable[Rule[object]]) -> list[Match[object]]:
            found = (m for path in paths for rule in rules for m in rule.matches(program, path))
            return [m for m in found if not names or m.mentions(names)]

        others = self.further_rules
        if further:
            return Matches((*legal(self.known), *legal(others)))
        return Matches(legal(self.known), lambda: _note_of_further(legal(others)) if len(paths) <= MAX_NOTED else "")

    def refusals(self, at: ScopePath | None = None, further: bool = False) -> Refusals:
        """Return the reason for every rule without a legal match at the scope *at* (None: at every scope).

        *further*: also those of ``further_rules``, last.
        """
        rules = (*self.known, *self.further_rules) if further else self.known
        return Refusals(refusal for path in self._paths(at) for refusal in self._refusals(path, rules))

    def _paths(self, at: ScopePath | None) -> list[Path]:
        return [path for path, _ in places(self.program)] if at is None else [self.path(at)]

    def _refusals(self, at: Path, rules: Iterable[Rule[object]]) -> Iterable[Refusal]:
        for rule in rules:
            try:
                if not any(True for _ in rule.matches(self.program, at)):
                    yield Refusal(rule.name, at, refusal_reason(rule, self.program, at))
            except RuleError as error:
                yield Refusal(rule.name, at, str(error))

    def why_refused(self, rule: str, at: ScopePath = "0") -> str:
        """Return why *rule* has no legal match at *at*, with numbers, or in how many ways it applies."""
        known, path = self.rule(rule), self.path(at)
        return applicability(rule, known, self.program, path)

    def path(self, at: ScopePath) -> Path:
        """Return *at* as a path; raises ValueError or LookupError if there is no such scope."""
        path = (at,) if isinstance(at, int) else self.program.path(at) if isinstance(at, str) else at
        self.program.scope_at(path)
        return path

    def apply(self, rule: str | Match[object], at: ScopePath = "0", **params: Any) -> Program:
        """Apply a rule by name with *params* in their JSON form, or a match, and return the new program.

        Raises ``Refused``, and changes nothing, if the rule does not apply.  If parameters are omitted, the rule must
        have exactly one legal match at *at* with the given ones.
        """
        with self._lock:
            return self._step(rule if isinstance(rule, Match) else self.match(rule, at, params))

    def match(self, rule: str, at: ScopePath, params: Mapping[str, Any]) -> Match[object]:
        """Return the match of *rule* that ``apply`` would apply at the scope *at*; raises ``Refused``.

        *params* are in their JSON form; those that are missing must be determined by the others.
        """
        return self._match(self.rule(rule), self.path(at), params)

    def _match(self, rule: Rule[object], at: Path, params: Mapping[str, object]) -> Match[object]:
        where = f"{rule.name} at {show_path(at)}"
        if params:
            try:
                return rule.match(self.program, at, **params)
            except (KeyError, ValueError) as error:
                if not is_missing_parameter(error):
                    raise
        legal = list(rule.matches(self.program, at))
        if not legal:
            raise Refused(f"{where}: {refusal_reason(rule, self.program, at)}")
        chosen = [m for m in legal if params.items() <= rule.encode(m.params).items()]
        if len(chosen) != 1:
            some = "; ".join(str(rule.encode(m.params)) for m in (chosen or legal)[:4])
            with_these = f" with {dict(params)}" if params else ""
            raise Refused(f"{where} has {len(chosen)} legal matches{with_these}, give parameters: {some}")
        return chosen[0]
