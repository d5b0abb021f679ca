"""The one mutable object: a tree of derivations, where the reader stands in it, and what may be done there.

Everything that a notebook or a widget does is one public call here, so a session can print itself as Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from os import PathLike
from typing import Any

from einnet_explore.algebra.certificate import Certificate
from einnet_explore.algebra.composition import end_to_end
from einnet_explore.checker.record import load_json
from einnet_explore.cost import program_seconds
from einnet_explore.explore import records, scripts, tables
from einnet_explore.explore.applying import Applying
from einnet_explore.explore.changes import changed
from einnet_explore.explore.comparison import Comparison
from einnet_explore.explore.faces import face
from einnet_explore.explore.figures import Figure, TreeNode, draw_tree, graph_figure
from einnet_explore.explore.mapping import MappingTable, mapping_table, nearest_operator
from einnet_explore.explore.run import Run
from einnet_explore.explore.tables import Table
from einnet_explore.explore.views import Formula
from einnet_explore.ir import Path, Program, show_path
from einnet_explore.operators import OPERATORS, Operator, find_operators
from einnet_explore.printable import counted
from einnet_explore.rules import ALL_RULES, INTER_RULES, RULES, Derivation, Rule
from einnet_explore.search.instantiation import matching_rule
from einnet_explore.search.options import Options
from einnet_explore.storage import write_atomically


class Session(Applying):
    """A tree of derivations from one program.  ``here`` is a node of it; applying a rule there makes a child.

    Places are paths (``"0.1"``), or begin with an equation's name (``"Y.1"``) where that is no number itself.
    """

    def __init__(
        self,
        start: Program,
        rules: tuple[Rule[Any], ...] = (*RULES, *INTER_RULES),
        operators: tuple[Operator, ...] = OPERATORS,
    ) -> None:
        super().__init__(start, (*rules, matching_rule(operators)))
        self.operators = operators
        self.runs: list[Run] = []

    def adopt(self, derivation: Derivation) -> Program:
        """``keep`` the steps of *derivation*, and stand at its end."""
        return self.goto(derivation)

    def compare(self, one: int, other: int) -> Comparison:
        """Two nodes side by side; raises IndexError."""
        for node in (one, other):
            if not 0 <= node < len(self.nodes):
                raise IndexError(f"node {node}: expected 0 to {len(self.nodes) - 1}")
        names = (f"node {one}", f"node {other}")
        return Comparison(self.nodes[one].end, self.nodes[other].end, names, self.operators)

    def table(self, operator: str = "", at: str | Path = "0") -> MappingTable:
        """The iterator mapping table of the scope at *at* against *operator* (the nearest one where it is empty).

        Raises ValueError for an unknown operator and LookupError where *at* is no scope.
        """
        path = self.path(at)
        if not operator:
            return mapping_table(self.program, path, nearest_operator(self.program, path, self.operators))
        return mapping_table(self.program, path, find_operators((operator,), self.operators)[0])

    def graph(self, title: str = "") -> Figure:
        """The computation graph here."""
        return graph_figure(self.program, title)

    def search(
        self,
        target: str | Iterable[str] = (),
        limit: float | None = 60,
        rules: Iterable[str] | None = None,
        **options: Any,
    ) -> Run:
        """A search from the program here, as ``ee.search``; ``goto`` takes what it found in.

        *rules* are the names of those that it may use (all where None): leaving some out forbids them.
        """
        if rules is not None:
            options["rules"] = tuple(self.rule(name) for name in rules)
        chosen = Options(**options)
        run = Run(self.program, program_seconds, target=target, limit=limit, operators=self.operators, options=chosen)
        with self._lock:
            self.runs.append(run)
            self._changed()
        return run

    def check(self) -> Certificate:
        """Prove that the program here equals the start, by the two alone or else step by step.

        A false certificate carries a counterexample.
        """
        steps = self.derivation.steps
        return end_to_end([(s.before, s.after, c) for s, c in zip(steps, self.certificates(), strict=True)])

    def certificates(self) -> tuple[Certificate, ...]:
        """A certificate for every step from the start to here."""
        return tuple(self.certificate(node) for node in self.way()[1:])

    def script(self, branches: bool = False) -> str:
        """The steps from the start to here as Python that repeats them; *branches*: the whole tree.

        Rules and operators of your own are imported from where they are defined, which may be the notebook itself;
        raises LookupError for one that has no name anywhere.
        """
        known = scripts.Known(tuple(r for r in self.known if r.name != scripts.MATCHING), self.operators)
        with self._lock:
            if branches:
                return scripts.tree_script(self.nodes, self.parents, self.here, known)
            return scripts.script(self.derivation, known)

    def record(self, case: str = "") -> dict[str, Any]:
        """The derivation to here with its certificates, as ``einnet-explore check`` reads it."""
        return records.to_record(self.derivation, self.certificates(), case=case)

    def save(self, path: str | PathLike[str], case: str = "") -> None:
        """Write the session to *path*, whole or not at all.

        As ``.eins`` all branches; otherwise the ``record`` of the derivation to here, with its certificates.
        """
        if str(path).endswith(scripts.SUFFIX):
            with self._lock:
                held = scripts.tree_to_json(self.nodes, self.parents, self.here)
            write_atomically(path, json.dumps(held, indent=1, ensure_ascii=False) + "\n")
        else:
            records.save(path, self.record(case))

    @staticmethod
    def load(
        path: str | PathLike[str],
        rules: tuple[Rule[Any], ...] = (*RULES, *INTER_RULES),
        operators: tuple[Operator, ...] = OPERATORS,
    ) -> Session:
        """The session that was saved at *path*, its rules applied again; raises RecordError or OSError.

        *rules* and *operators* are those that it shall know; it may hold steps by any of the library's rules besides.
        """
        known = (*ALL_RULES, *rules, matching_rule(operators))
        data = load_json(path)
        if str(path).endswith(scripts.SUFFIX) or (isinstance(data, dict) and data.get("format") == scripts.FORMAT):
            named = {rule.name: rule for rule in known}
            nodes, parents, here = scripts.tree_from_json(data, named, str(path))
            session = Session(nodes[0].end, rules, operators)
            session.nodes, session.parents, session.here = nodes, parents, here
            return session
        derivation = records.from_record(data, known, source=str(path))
        session = Session(derivation.start, rules, operators)
        session.adopt(derivation)
        return session

    def to_html(self, path: str | PathLike[str], title: str = "") -> None:
        """Write one interactive page that needs neither a network nor a kernel.

        Raises ValueError where no face (such as ``einnet_widgets``) is installed, and OSError.
        """
        write_atomically(path, face().page(self, title))

    def history(self, certificates: bool = False) -> Table:
        """The steps from the start to here; with *certificates*, how each was proved."""
        kinds = [c.kind for c in self.certificates()] if certificates else []
        return tables.history(self.derivation, kinds)

    def tree(self) -> Figure:
        """The tree of everything that was done here, the way to here drawn thick."""
        nodes = []
        for n, (derivation, parent) in enumerate(zip(self.nodes, self.parents, strict=True)):
            last = derivation.steps[-1].match if derivation.steps else None
            label = f"{n}: {last.rule.name} at {show_path(last.at)}" if last else "0: start"
            nodes.append(TreeNode(n, parent, label, f"node {label}"))
        return draw_tree(nodes, self.here, f"{counted(len(nodes), 'node')}; the way to here is thick")

    def formula(self) -> Formula:
        """The expression here; what the last step changed is coloured."""
        steps = self.derivation.steps
        marks = changed(steps[-1].before, steps[-1].after) if steps else ()
        return Formula(self.program, f"E_{{{len(steps)}}}", marks)

    def __repr__(self) -> str:
        steps = counted(len(self.derivation.steps), "step")
        return f"<Session at node {self.here} of {len(self.nodes)}, {steps} from the start>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.formula()._repr_mimebundle_()

    def _display_(self) -> object:
        # marimo asks for this; IPython's formatters are told by the face itself.
        try:
            return face().view(self)
        except ValueError:
            return self.formula()
