"""The session: a tree of derivations with a current node, and the operations of a notebook.

Every action of a notebook or widget is one public call here, so a session can print itself as a Python script.  Undo
keeps the undone steps as a branch.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from os import PathLike
from typing import Any, TypeAlias, Unpack

from einnet_explore.checker.record import load_json, read_json
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import Certificate, certify_chain
from einnet_explore.equivalence.operand_rounding import certify_step
from einnet_explore.equivalence.verdict import is_at_least
from einnet_explore.ir import Path, Program, show_path
from einnet_explore.operators.library import OPERATORS, find_operators
from einnet_explore.operators.operator import Operator
from einnet_explore.rules import (
    ALL_RULES,
    INTER_RULES,
    INVERSE,
    ROUNDING_RULES,
    RULES,
    Derivation,
    Match,
    Refused,
    Rule,
    find_rules,
)
from einnet_explore.rules.base import places
from einnet_explore.session.comparison import Comparison, MappingTable, changed_paths, mapping_table, nearest_operator
from einnet_explore.session.explanations import (
    Advice,
    Refusal,
    Refusals,
    applicability,
    is_missing_parameter,
    refusal_reason,
)
from einnet_explore.session.faces import face
from einnet_explore.session.records import MATCHING, derivation_script, from_record, tree_script
from einnet_explore.session.run import Run
from einnet_explore.session.saved_sessions import (
    NODE_LABEL,
    SESSION_FORMAT,
    SESSION_SUFFIX,
    USUAL_RULES,
    SavedSession,
    check_pin_name,
)
from einnet_explore.strategies.candidate import Candidate, save_record, to_record
from einnet_explore.strategies.instantiation import guided_matching, known_rules, matching_rule
from einnet_explore.strategies.moves import clean
from einnet_explore.strategies.options import SearchOptions, SteeringOptions, options_by_name
from einnet_explore.strategies.rounding_levels import derivation_level
from einnet_explore.support.deprecation import renamed_argument
from einnet_explore.support.errors import RuleError
from einnet_explore.support.json_values import JsonObject
from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import count_noun, format_seconds
from einnet_explore.viz import tables
from einnet_explore.viz.figure import Figure
from einnet_explore.viz.graph_figures import TreeNode, draw_tree, graph_figure
from einnet_explore.viz.tables import Matches, TextTable
from einnet_explore.viz.views import Formula

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


class Session(DerivationTree):
    """A tree of derivations from one program.  ``here`` is the current node; applying a rule makes a child of it.

    *at* is the path of a scope (``"0.1"``); the name of the equation may replace its number (``"Y.1"``).
    """

    def __init__(
        self,
        start: Program,
        rules: Iterable[Rule[object] | str] = (*RULES, *INTER_RULES),
        operators: Iterable[Operator | str] = OPERATORS,
    ) -> None:
        self.operators = find_operators(operators)
        super().__init__(start, find_rules((*find_rules(rules), matching_rule(self.operators))))
        self.runs: list[Run] = []
        self.view: JsonObject = {}

    @property
    def added_rules(self) -> tuple[Rule[object], ...]:
        """The rules that are not the library's."""
        return tuple(rule for rule in self.known if not rule.is_library)

    def _own_rules(self) -> tuple[Rule[object], ...]:
        """Return the rules without the one that matches operators."""
        return tuple(rule for rule in self.known if rule.name != MATCHING)

    def clean(self) -> Program:
        """Apply the clean-ups of the current program (``ee.clean``) as steps: merging, relaxing, tightening."""
        for match in clean(self.program, rules=self.known)[0]:
            self._step(match)
        return self.program

    def adopt(self, derivation: Derivation) -> Program:
        """``keep`` the steps of *derivation*, and go to its end."""
        return self.goto(derivation)

    def compare(self, one: Place, other: Place) -> Comparison:
        """Compare the nodes *one* and *other*: programs, graphs, costs, numerics, and the steps between them.

        Raises what ``node`` raises.
        """
        one, other = self.node(one), self.node(other)
        names = (self.name(one), self.name(other))
        levels = (derivation_level(self.nodes[one]), derivation_level(self.nodes[other]))
        ends = (self.nodes[one].end, self.nodes[other].end)
        return Comparison(*ends, names, self.operators, self._steps_between(one, other), levels)

    def _shared_way(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes on the ways to all of *nodes*, from the start on."""
        ways = map(self.way, nodes)
        return [here for here, *others in zip(*ways, strict=False) if all(other == here for other in others)]

    def _steps_between(self, one: int, other: int) -> tuple[str, ...]:
        """Describe the steps from a node back to where the branches part, and on to another node."""
        ways, shared = (self.way(one), self.way(other)), len(self._shared_way((one, other)))
        steps = [("back: ", n) for n in reversed(ways[0][shared:])] + [("", n) for n in ways[1][shared:]]
        matches = ((back, self.nodes[n].steps[-1].match) for back, n in steps)
        return tuple(
            f"{back}{m.title.replace('_', ' ')} at {show_path(m.at)}: {tables.format_parameters(m)}".removesuffix(": ")
            for back, m in matches
        )

    def table(self, operator: str = "", at: ScopePath = "0") -> MappingTable:
        """Return the iterator mapping table of the scope at *at* and *operator* (the nearest one if empty).

        Raises ValueError for an unknown operator and LookupError if *at* is no scope.
        """
        path = self.path(at)
        if not operator:
            return mapping_table(self.program, path, nearest_operator(self.program, path, self.operators))
        return mapping_table(self.program, path, find_operators((operator,), self.operators)[0])

    def converge(self, operator: str, at: ScopePath = "0") -> Program:
        """Join iterators of the scope at *at* until it is a call of *operator*; each step is a node nearer to it.

        The steps are those of EinNet's converging derivation (§6.1), guided by the expression distance.  Raises
        ValueError for an unknown operator, or with the reason why joining iterators leads to none.
        """
        target = find_operators((operator,), self.operators)[0]
        return self.adopt(guided_matching(self.program, self.path(at), target))

    def graph(self, title: str = "", folded: bool = False) -> Figure:
        """Return the graph of the current program with a *title*; *folded*: with one node for each of its layers."""
        return graph_figure(self.program, title, folded)

    @renamed_argument("limit", "budget")
    def search(
        self,
        target: str | Iterable[str] = (),
        budget: float | None = 60,
        rules: Iterable[Rule[object] | str] | None = None,
        starts: Iterable[Place] = (),
        **options: Unpack[SteeringOptions],
    ) -> Run:
        """Search from the current program, as ``ee.search``, and return the finished run; ``goto`` goes to its results.

        *target*, *budget* and *options* are those of ``ee.search``.  *rules* are the rules that it uses, as values or
        by name (None: those of ``ee.search`` and the session's ``added_rules``).  With *starts* (pins, nodes, results)
        it searches from these instead, as one search from the last node that leads to all of them.
        """
        return self.live_search(target, budget, rules, starts, **options).finish()

    @renamed_argument("limit", "budget")
    def live_search(
        self,
        target: str | Iterable[str] = (),
        budget: float | None = 60,
        rules: Iterable[Rule[object] | str] | None = None,
        starts: Iterable[Place] = (),
        **options: Unpack[SteeringOptions],
    ) -> Run:
        """Return a search from the current program that has not begun, as ``ee.live_search``.

        The arguments are those of ``search``: *target*, *budget*, *rules*, *starts* and *options*.
        """
        chosen: SearchOptions = {}
        if rules is None and self.added_rules:
            chosen["rules"] = (*RULES, *self.added_rules)
        elif rules is not None:
            known = [self.rule(each) if isinstance(each, str) else each for each in rules]
            chosen["rules"] = tuple(rule for rule in known if rule not in INTER_RULES)
            chosen["between"] = tuple(rule for rule in known if rule in INTER_RULES)
        start = self.program
        if nodes := [self.node(where) for where in starts]:
            shared = self.nodes[self._shared_way(nodes)[-1]]
            start, done = shared.end, len(shared.steps)
            chosen["starts"] = tuple(Derivation(start, self.nodes[node].steps[done:]) for node in nodes)
        found = options_by_name({**options, **chosen})
        run = Run(start, program_seconds, target=target, budget=budget, operators=self.operators, options=found)
        with self._lock:
            self.runs.append(run)
            self._notify()
        return run

    def advise(self, target: str | Iterable[str] = (), budget: float = 5.0) -> Advice:
        """Return the first step to the cheapest candidate that a search from here finds in *budget* seconds.

        *target* names its operators (all when empty).  The search is not one of ``runs``.
        ``session.apply(advice.match)`` takes the step.
        """
        run = Run(self.program, program_seconds, target=target, budget=budget, operators=self.operators).finish()
        best = run.best
        if best is None:
            return Advice(None, "; ".join(run.remarks()) or f"no candidate was found ({run.ending})")
        steps = best.derivation.steps
        calls = tables.format_calls(best.program)
        here, there = format_seconds(program_seconds(self.program)[0]), format_seconds(best.seconds)
        if not steps:
            return Advice(None, f"this program is the cheapest that was found, estimated {there}")
        why = f"the first of {count_noun(len(steps), 'step')} to {calls or 'kernels'}, estimated {there} (here {here})"
        return Advice(steps[0].match, why)

    def check(self) -> Certificate:
        """Prove that the current program equals the start, directly or step by step.

        A false certificate carries a counterexample.
        """
        steps = self.derivation.steps
        return certify_chain([(s.before, s.after, c) for s, c in zip(steps, self.certificates(), strict=True)])

    def certificates(self) -> tuple[Certificate, ...]:
        """Return a certificate for every step from the start to the current node."""
        return tuple(self.certificate(node) for node in self.way()[1:])

    def script(self, branches: bool = False) -> str:
        """Return Python that repeats the steps from the start to the current node; *branches*: the whole tree.

        Your own rules and operators are imported from the module, or notebook, that defines them; raises LookupError
        for one without a name.
        """
        with self._lock:
            if branches:
                return tree_script(self.nodes, self.parents, self.here, self.known, self.operators)
            return derivation_script(self.derivation, self.known, self.operators)

    def record(self, case: str = "") -> dict[str, Any]:
        """Return the current derivation with its certificates, as ``einnet-explore check`` reads it, named *case*."""
        return to_record(self.derivation, self.certificates(), case=case)

    def save(self, path: str | PathLike[str], case: str = "") -> None:
        """Write the session to *path*, whole or not at all.

        A path ``.eins`` gets everything: all branches, pins, notes, searches, certificates, and the selection of front
        ends.  Any other gets the ``record`` of the current derivation, named *case*.  Raises OSError.
        """
        if str(path).endswith(SESSION_SUFFIX):
            write_atomically(path, self.to_text())
        else:
            save_record(path, self.record(case))

    def to_text(self) -> str:
        """Return the text of a file ``.eins``; a running search is paused meanwhile."""
        with self._lock:
            tree = self.nodes, self.parents, self.here, self.pins, self.notes, self.claims | self._proofs
            data = SavedSession(*tree, self.runs, self.view, self._own_rules(), self.operators).to_json()
        # A search has thousands of states, so that lines for its fields would be most of the file.
        return json.dumps(data, indent=None if self.runs else 1, ensure_ascii=False) + "\n"

    @staticmethod
    def load(
        path: str | PathLike[str],
        rules: Iterable[Rule[object] | str] | None = None,
        operators: Iterable[Operator | str] | None = None,
    ) -> Session:
        """Return the session saved at *path*, its rules applied again; raises RecordError or OSError.

        *rules* and *operators* are those of the session (None: those that it was saved with); its steps may use any
        rule of the library.  Certificates of the file are claims, which ``certificate`` compares with its own.
        """
        own, calls = find_rules(rules or ()), find_operators(operators or ())
        data = load_json(path)
        if str(path).endswith(SESSION_SUFFIX) or (isinstance(data, dict) and data.get("format") == SESSION_FORMAT):
            saved = SavedSession.from_json(data, str(path), own, calls)
            session = Session(saved.nodes[0].end)
            session._restore(
                replace(
                    saved,
                    rules=saved.rules if rules is None else own,
                    operators=saved.operators if operators is None else calls,
                )
            )
            return session
        derivation = from_record(data, (*known_rules(calls).values(), *own), source=str(path))
        session = Session(derivation.start, USUAL_RULES if rules is None else own, calls)
        session.adopt(derivation)
        return session

    def open(self, path: str | PathLike[str]) -> None:
        """Replace this whole session by the one saved at *path* (``.eins``); raises RecordError or OSError.

        The file may use the rules and operators of this session.  Nothing changes if it cannot be read.
        """
        self._open(load_json(path), str(path))

    def open_text(self, text: str, source: str = "<session>") -> None:
        """``open`` the *text* of a file ``.eins``, as of ``to_text``, called *source* in errors."""
        self._open(read_json(text, source), source)

    def _open(self, data: object, source: str) -> None:
        saved = SavedSession.from_json(data, source, self._own_rules(), self.operators)
        with self._lock:
            for run in self.runs:
                run.stop()
            self._restore(saved)
            self._notify()

    def _restore(self, saved: SavedSession) -> None:
        self.operators, self.known = saved.operators, (*saved.rules, matching_rule(saved.operators))
        self.nodes, self.parents, self.here = list(saved.nodes), list(saved.parents), saved.here
        self.pins, self.notes, self.claims = dict(saved.pins), dict(saved.notes), dict(saved.claims)
        self.runs, self.view = list(saved.runs), saved.view
        self._proofs, self._redo = {}, []

    def to_html(self, path: str | PathLike[str], title: str = "") -> None:
        """Write one interactive page with a *title* to *path*, which needs neither a network nor a kernel.

        Raises ValueError if no face (such as ``einnet_widgets``) is installed, and OSError.
        """
        write_atomically(path, face().page(self, title))

    def history(self, certificates: bool = False) -> TextTable:
        """Return the steps from the start to the current node; with *certificates*, the proof of each."""
        kinds = [c.kind for c in self.certificates()] if certificates else []
        return tables.step_table(self.derivation, kinds)

    def tree(self) -> Figure:
        """Draw the tree, the path to the current node thick."""
        nodes = []
        for n, (derivation, parent) in enumerate(zip(self.nodes, self.parents, strict=True)):
            last = derivation.steps[-1].match if derivation.steps else None
            label = f"#{n}: {last.title} at {show_path(last.at)}" if last else "#0: start"
            nodes.append(TreeNode(n, parent, label, label))
        return draw_tree(nodes, self.here, f"{count_noun(len(nodes), 'node')}; the way to here is thick")

    def formula(self) -> Formula:
        """Return the current expression; the parts that the last step changed are coloured."""
        steps = self.derivation.steps
        marks = changed_paths(steps[-1].before, steps[-1].after) if steps else ()
        return Formula(self.program, f"E_{{{len(steps)}}}", marks)

    def __repr__(self) -> str:
        steps = count_noun(len(self.derivation.steps), "step")
        return f"<Session at node {self.here} of {len(self.nodes)}, {steps} from the start>"

    def __str__(self) -> str:
        lines = [repr(self), str(self.program)]
        if len(self._paths(None)) <= MAX_NOTED:
            names = ", ".join(dict.fromkeys(match.rule.name for match in self.rules()))
            lines.append(
                f"rules() lists the matches of {names}" if names else "no rule of the session has a legal match"
            )
        return "\n".join(lines)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.formula()._repr_mimebundle_()

    def _display_(self) -> object:
        # Called by marimo; faces register their own IPython formatters.
        try:
            return face().view(self)
        except ValueError:
            return self.formula()
