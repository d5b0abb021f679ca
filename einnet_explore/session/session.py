"""The session: a tree of derivations with a current node, and the operations of a notebook.

Every action of a notebook or widget is one public call here, so a session can print itself as a Python script.  Undo
keeps the undone steps as a branch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from typing import Any, Unpack

from einnet_explore.checker.record import load_json, read_json
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import Certificate, certify_chain
from einnet_explore.ir import Program, show_path
from einnet_explore.operators.library import OPERATORS, find_operators
from einnet_explore.operators.operator import Operator
from einnet_explore.rules import INTER_RULES, RULES, Derivation, Rule, find_rules
from einnet_explore.session.comparison import Comparison, MappingTable, changed_paths, mapping_table, nearest_operator
from einnet_explore.session.derivation_tree import MAX_NOTED, DerivationTree, Place, ScopePath
from einnet_explore.session.explanations import Advice
from einnet_explore.session.faces import face
from einnet_explore.session.records import MATCHING, derivation_script, from_record, tree_script
from einnet_explore.session.run import Run
from einnet_explore.session.saved_sessions import SESSION_FORMAT, SESSION_SUFFIX, USUAL_RULES, SavedSession
from einnet_explore.strategies.candidate import save_record, to_record
from einnet_explore.strategies.instantiation import guided_matching, known_rules, matching_rule
from einnet_explore.strategies.moves import clean
from einnet_explore.strategies.options import SearchOptions, SteeringOptions, options_by_name
from einnet_explore.strategies.rounding_levels import derivation_level
from einnet_explore.support.deprecation import renamed_argument
from einnet_explore.support.json_values import JsonObject
from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import count_noun, format_seconds
from einnet_explore.viz import tables
from einnet_explore.viz.figure import Figure
from einnet_explore.viz.graph_figures import TreeNode, draw_tree, graph_figure
from einnet_explore.viz.tables import TextTable
from einnet_explore.viz.views import Formula


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
