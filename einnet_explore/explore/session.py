"""The one mutable object: a tree of derivations, where the reader stands in it, and who wants to know.

Everything that a notebook or a widget does is one public call here, so a session can print itself as Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any, TypeAlias

from einnet_explore.algebra.certificate import Certificate, certify
from einnet_explore.cost import program_seconds
from einnet_explore.explore import records, views
from einnet_explore.explore.figures import Figure, TreeNode, draw_tree
from einnet_explore.explore.refusals import Refusal, Refusals, incomplete, why_refused
from einnet_explore.explore.run import Run
from einnet_explore.explore.views import Formula, Matches, Table
from einnet_explore.ir import Path, Program, read_path, show_path
from einnet_explore.operators import OPERATORS, Operator
from einnet_explore.rules import RULES, Derivation, Match, Refused, Rule
from einnet_explore.rules.base import places
from einnet_explore.search.engine import Options
from einnet_explore.search.instantiation import matching_rule

Observer: TypeAlias = "Callable[[Session], None]"


class Session:
    """A tree of derivations from one program.  ``here`` is a node of it; applying a rule there makes a child.

    Nothing is ever lost: undo moves up, and what was undone stays as a branch.  A lock guards the tree, since callbacks
    may run on other threads.  Places are paths (``"0.1"``), or begin with an equation's name (``"Y.1"``).
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
        """The rule called *name*; raises LookupError that lists the known ones."""
        for rule in self.known:
            if rule.name == name:
                return rule
        raise LookupError(f"no rule is called {name!r}: there are {', '.join(r.name for r in self.known)}")

    def rules(self, at: str | Path | None = None) -> Matches:
        """The legal matches at the scope *at*, or at every scope; raises LookupError where *at* is none."""
        program = self.program
        paths = [path for path, _ in places(program)] if at is None else [self.path(at)]
        return Matches(m for path in paths for rule in self.known for m in rule.matches(program, path))

    def refusals(self, at: str | Path) -> Refusals:
        """For every rule without a legal match at *at*: why it is refused."""
        return Refusals(self._refusals(self.path(at)))

    def _refusals(self, at: Path) -> Iterable[Refusal]:
        for rule in self.known:
            if not any(True for _ in rule.matches(self.program, at)):
                yield Refusal(rule.name, at, why_refused(rule, self.program, at))

    def why_refused(self, rule: str, at: str | Path = "0") -> str:
        """Why *rule* has no legal match at *at*, with the numbers that failed; says so where it has one."""
        known, path = self.rule(rule), self.path(at)
        ways = sum(1 for _ in known.matches(self.program, path))
        return f"{rule} applies, in {ways} ways" if ways else why_refused(known, self.program, path)

    def path(self, at: str | Path) -> Path:
        """*at* as a path here; raises ValueError or LookupError where there is no such scope."""
        path = _path(at, self.program) if isinstance(at, str) else at
        self.program.scope_at(path)
        return path

    def apply(self, rule: str | Match[Any], at: str | Path = "0", **params: Any) -> Program:
        """Apply a rule by name with parameters in their JSON form, or a match; raises ``Refused`` and changes nothing.

        Where parameters are left out, the rule must have exactly one legal match at *at* with those that are given.
        """
        with self._lock:
            match = rule if isinstance(rule, Match) else self._match(self.rule(rule), self.path(at), params)
            self.nodes.append(self.derivation.then(match))
            self.parents.append(self.here)
            self._redo.clear()
            self._go(len(self.nodes) - 1)
            return self.program

    def _match(self, rule: Rule[Any], at: Path, params: dict[str, Any]) -> Match[Any]:
        where = f"{rule.name} at {show_path(at)}"
        if params:
            try:
                return rule.match(self.program, at, **params)
            except (KeyError, ValueError) as error:
                if not incomplete(error):
                    raise
        legal = list(rule.matches(self.program, at))
        if not legal:
            raise Refused(f"{where}: {why_refused(rule, self.program, at)}")
        chosen = [m for m in legal if params.items() <= rule.encode(m.params).items()]
        if len(chosen) != 1:
            some = "; ".join(str(rule.encode(m.params)) for m in (chosen or legal)[:4])
            with_these = f" with {params}" if params else ""
            raise Refused(f"{where} has {len(chosen)} legal matches{with_these}, give parameters: {some}")
        return chosen[0]

    def undo(self) -> Program:
        """Step back to the parent; at the start this does nothing."""
        with self._lock:
            if self.parents[self.here] >= 0:
                self._redo.append(self.here)
                self._go(self.parents[self.here])
            return self.program

    def redo(self) -> Program:
        """Take back the last ``undo``; without one this does nothing."""
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

    def goto(self, node: int) -> Program:
        """Stand at another node of the tree; raises IndexError."""
        with self._lock:
            if not 0 <= node < len(self.nodes):
                raise IndexError(f"node {node}: expected 0 to {len(self.nodes) - 1}")
            self._redo.clear()
            self._go(node)
            return self.program

    def adopt(self, derivation: Derivation) -> Program:
        """Add the steps of *derivation* (from a search or a record) as nodes, and stand at its end.

        They go below where the reader stands if that is the program it starts from, else below the start.  Steps that
        the tree has already are walked, not added.  Raises ValueError where it starts from neither program.
        """
        with self._lock:
            node = self.here if derivation.start == self.program else 0
            so_far = self.nodes[node]
            if derivation.start != so_far.end:
                raise ValueError("the derivation starts from another program than this session")
            for step in derivation.steps:
                so_far = Derivation(so_far.start, (*so_far.steps, step))
                known = (k for k, parent in enumerate(self.parents) if parent == node and self.nodes[k] == so_far)
                child = next(known, None)
                if child is None:
                    self.nodes.append(so_far)
                    self.parents.append(node)
                    child = len(self.nodes) - 1
                node = child
            return self.goto(node)

    def search(self, target: str | Iterable[str] = (), limit: float | None = 60, **options: Any) -> Run:
        """A search from the program here, as ``ee.search``; ``adopt`` takes a candidate's derivation in."""
        chosen = Options(**options)
        return Run(self.program, program_seconds, target=target, limit=limit, operators=self.operators, options=chosen)

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
            done = step.match.to_json()
            params = "".join(f", {k}={v!r}" for k, v in done["params"].items() if v is not None)
            lines.append(f"session.apply({done['rule']!r}, at={done['at']!r}{params})")
        return "\n".join(lines) + "\n"

    def record(self, case: str = "") -> dict[str, Any]:
        """The derivation to here with its certificates, as ``einnet-explore check`` reads it."""
        return records.to_record(self.derivation, self.certificates(), case=case)

    def save(self, path: str | PathLike[str], case: str = "") -> None:
        """Write ``record`` to *path*, whole or not at all; branches that do not lead here are not in it."""
        records.save(path, self.record(case))

    @staticmethod
    def load(path: str | PathLike[str]) -> Session:
        """A session at the end of the record at *path*, its rules applied again; raises RecordError or OSError."""
        derivation = records.from_record(records.load(path), source=str(path))
        session = Session(derivation.start)
        session.adopt(derivation)
        return session

    def history(self, certificates: bool = False) -> Table:
        """The steps from the start to here; with *certificates*, how each was proved."""
        kinds = [c.kind for c in self.certificates()] if certificates else []
        return views.history(self.derivation, kinds)

    def tree(self) -> Figure:
        """The tree of everything that was done here, the way to here drawn thick."""
        nodes = []
        for n, (derivation, parent) in enumerate(zip(self.nodes, self.parents, strict=True)):
            last = derivation.steps[-1].match if derivation.steps else None
            label = f"{n}: {last.rule.name} at {show_path(last.at)}" if last else "0: start"
            nodes.append(TreeNode(n, parent, label, f"node {label}"))
        return draw_tree(nodes, self.here, f"{len(nodes)} nodes; the way to here is thick")

    def formula(self) -> Formula:
        """The expression here; what the last step changed is coloured."""
        steps = self.derivation.steps
        marks = views.changed(steps[-1].before, steps[-1].after) if steps else ()
        return Formula(self.program, f"E_{{{len(steps)}}}", marks)

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call *observer* after every change; returns the function that unsubscribes."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def _go(self, node: int) -> None:
        self.here = node
        for observer in tuple(self._observers):
            observer(self)

    def __repr__(self) -> str:
        return f"<Session at node {self.here} of {len(self.nodes)}, {len(self.derivation.steps)} steps from the start>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.formula()._repr_mimebundle_()


def _path(at: str, program: Program) -> Path:
    for n, equation in enumerate(program.equations):
        if at == equation.name or at.startswith(f"{equation.name}."):
            return (n, *read_path(at[len(equation.name) + 1 :]))
    return read_path(at)
