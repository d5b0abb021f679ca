"""The session: a derivation tree with its current node, and the operations of a notebook.

Every action of a notebook or widget is one public call here, so a session can print itself as a Python script.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from einnet_explore.checker.record import load_json
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import Certificate, certify_chain
from einnet_explore.ir import Path, Program, read_path, show_path
from einnet_explore.operators import OPERATORS, Operator, find_operators
from einnet_explore.rules import ALL_RULES, INTER_RULES, RULES, Derivation, Match, Refused, Rule
from einnet_explore.rules.base import places
from einnet_explore.session import records, scripts
from einnet_explore.session.comparison import Comparison, MappingTable, changed_paths, mapping_table, nearest_operator
from einnet_explore.session.derivation_tree import DerivationTree
from einnet_explore.session.faces import face
from einnet_explore.session.refusals import Refusal, Refusals, is_missing_parameter, refusal_reason
from einnet_explore.session.run import Run
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.options import Options
from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import count_noun
from einnet_explore.viz import tables
from einnet_explore.viz.graph_figures import Figure, TreeNode, draw_tree, graph_figure
from einnet_explore.viz.tables import Matches, TextTable
from einnet_explore.viz.views import Formula


class RuleTree(DerivationTree):
    """A walk whose steps are applications of the *known* rules."""

    def __init__(self, start: Program, known: tuple[Rule[Any], ...]) -> None:
        super().__init__(start)
        self.known = known

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
                yield Refusal(rule.name, at, refusal_reason(rule, self.program, at))

    def why_refused(self, rule: str, at: str | Path = "0") -> str:
        """Return why *rule* has no legal match at *at*, with numbers, or in how many ways it applies."""
        known, path = self.rule(rule), self.path(at)
        ways = sum(1 for _ in known.matches(self.program, path))
        return f"{rule} applies, in {count_noun(ways, 'way')}" if ways else refusal_reason(known, self.program, path)

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
            return self._step(rule if isinstance(rule, Match) else self.match(rule, at, params))

    def match(self, rule: str, at: str | Path, params: Mapping[str, Any]) -> Match[Any]:
        """Return the match that ``apply`` would apply; raises ``Refused``."""
        return self._match(self.rule(rule), self.path(at), params)

    def _match(self, rule: Rule[Any], at: Path, params: Mapping[str, Any]) -> Match[Any]:
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


def _path(at: str, program: Program) -> Path:
    """Numbers are a path whatever equations are called, as scripts and records write it; else the longest name counts.

    Models have equations called ``"0"``, and ``"a.1"`` beside ``"a"``.
    """
    try:
        return read_path(at)
    except ValueError:
        named = {e.name: n for n, e in enumerate(program.equations) if f"{at}.".startswith(f"{e.name}.")}
        if not named:
            known = ", ".join(e.name for e in program.equations[:4]) + (", …" if len(program.equations) > 4 else "")
            first = f"or the name of an equation first: {known}"
            raise ValueError(f"path {at!r}: expected numbers separated by dots, such as 0.1, {first}") from None
        name = max(named, key=len)
        return (named[name], *read_path(at[len(name) + 1 :]))


class Session(RuleTree):
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
            self._notify()
        return run

    def check(self) -> Certificate:
        """Prove that the program here equals the start, by the two alone or else step by step.

        A false certificate carries a counterexample.
        """
        steps = self.derivation.steps
        return certify_chain([(s.before, s.after, c) for s, c in zip(steps, self.certificates(), strict=True)])

    def certificates(self) -> tuple[Certificate, ...]:
        """A certificate for every step from the start to here."""
        return tuple(self.certificate(node) for node in self.way()[1:])

    def script(self, branches: bool = False) -> str:
        """The steps from the start to here as Python that repeats them; *branches*: the whole tree.

        Rules and operators of your own are imported from where they are defined, which may be the notebook itself;
        raises LookupError for one that has no name anywhere.
        """
        known = scripts.KnownObjects(tuple(r for r in self.known if r.name != scripts.MATCHING), self.operators)
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
            records.save_record(path, self.record(case))

    @staticmethod
    def load(
        path: str | PathLike[str],
        rules: tuple[Rule[Any], ...] = (*RULES, *INTER_RULES),
        operators: tuple[Operator, ...] = OPERATORS,
    ) -> Session:
        """Return the session saved at *path*, its rules applied again; raises RecordError or OSError.

        *rules* and *operators* are those of the session; its steps may use any rule of the library.
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

    def history(self, certificates: bool = False) -> TextTable:
        """The steps from the start to here; with *certificates*, how each was proved."""
        kinds = [c.kind for c in self.certificates()] if certificates else []
        return tables.step_table(self.derivation, kinds)

    def tree(self) -> Figure:
        """The tree of everything that was done here, the way to here drawn thick."""
        nodes = []
        for n, (derivation, parent) in enumerate(zip(self.nodes, self.parents, strict=True)):
            last = derivation.steps[-1].match if derivation.steps else None
            label = f"{n}: {last.rule.name} at {show_path(last.at)}" if last else "0: start"
            nodes.append(TreeNode(n, parent, label, f"node {label}"))
        return draw_tree(nodes, self.here, f"{count_noun(len(nodes), 'node')}; the way to here is thick")

    def formula(self) -> Formula:
        """The expression here; what the last step changed is coloured."""
        steps = self.derivation.steps
        marks = changed_paths(steps[-1].before, steps[-1].after) if steps else ()
        return Formula(self.program, f"E_{{{len(steps)}}}", marks)

    def __repr__(self) -> str:
        steps = count_noun(len(self.derivation.steps), "step")
        return f"<Session at node {self.here} of {len(self.nodes)}, {steps} from the start>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.formula()._repr_mimebundle_()

    def _display_(self) -> object:
        # marimo asks for this; IPython's formatters are told by the face itself.
        try:
            return face().view(self)
        except ValueError:
            return self.formula()
