"""A run of a search with its presentation (tables, figures, records, files, explanations), and runs over executors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Self, Unpack

import networkx

from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import Certificate
from einnet_explore.equivalence.operand_rounding import certify_step
from einnet_explore.ir import Program, show_path
from einnet_explore.rules import FEWER_PRODUCTS, ROUNDING_RULES, Derivation, Step
from einnet_explore.session import explanations
from einnet_explore.session.candidate_benchmark import CandidateMeasurements, bench
from einnet_explore.session.explanations import Blocker
from einnet_explore.session.faces import face
from einnet_explore.session.running_search import SEARCH_SUFFIX, RunningSearch, load_search, save_search
from einnet_explore.strategies.candidate import Candidate, combined_verdict, save_record, to_record
from einnet_explore.strategies.options import Cost, Edge, Options, SearchOptions, options_by_name
from einnet_explore.support.deprecation import renamed_argument
from einnet_explore.support.executors import ProcessExecutor, WorkExecutor, gather_results, submit_work
from einnet_explore.support.limits import available_cores, rare_collections
from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import count_noun, format_seconds
from einnet_explore.viz import tables
from einnet_explore.viz.figure import Figure
from einnet_explore.viz.graph_figures import search_graph, tree_figure
from einnet_explore.viz.tables import TextTable
from einnet_explore.viz.views import Steps

if TYPE_CHECKING:
    import pandas

SLOWER = 1.01
"""Ratio of estimates from which the best candidate is called slower than the start."""


class Run(RunningSearch):
    """A ``RunningSearch`` with proofs and pictures of its results."""

    _passed = 0

    @cached_property
    def _proofs(self) -> dict[tuple[Program, Program], Certificate]:
        """The certificates so far, by pair of programs."""
        return {}

    @cached_property
    def _through(self) -> dict[Program, float]:
        """The costs of ``reachable_seconds`` so far, of the first ``_passed`` candidates."""
        return {}

    def reachable_seconds(self, program: Program) -> float | None:
        """Return the cost of the cheapest candidate whose derivation passes through *program*; None if none does."""
        for candidate in self.candidates[self._passed :]:
            self._passed += 1
            if self._false_step(candidate.derivation) is not None:
                continue
            for step in candidate.derivation.steps:
                known = self._through.get(step.after, candidate.seconds)
                self._through[step.after] = min(known, candidate.seconds)
        return self._through.get(program)

    def certificates(self, derivation: Derivation) -> tuple[Certificate, ...]:
        """Return a certificate for every step of *derivation*; a step of several candidates is proved once."""
        return tuple(self._prove(step.before, step.after, step.match.rule.name) for step in derivation.steps)

    def _prove(self, before: Program, after: Program, rule: str = "") -> Certificate:
        pair = (before, after)
        if pair not in self._proofs:
            self._proofs[pair] = certify_step(rule, before, after)
        return self._proofs[pair]

    def verdict(self, candidate: Candidate) -> str:
        """Return the weakest certificate between the states to *candidate*; a choice and its clean-ups are one step.

        If one of these is not proved, or a rule changes the products, the weakest certificate of a step.
        """
        changing = (*FEWER_PRODUCTS, *ROUNDING_RULES)
        if any(step.match.rule in changing for step in candidate.derivation.steps):
            return combined_verdict(self.certificates(candidate.derivation))
        programs = [state.program for state in self.search.above(candidate.state)]
        kinds = combined_verdict(tuple(self._prove(a, b) for a, b in pairwise(programs)))
        return kinds if kinds == "proved" else combined_verdict(self.certificates(candidate.derivation))

    def _false_step(self, derivation: Derivation, prove: bool = True) -> Step | None:
        """Return the first step of a rule of one's own whose certificate is ``false``; None if there is none.

        Tests prove the rules of the library, so their steps are not certified here; without *prove*, no step is.
        """
        for step in derivation.steps:
            if not step.match.forwards.rule.is_library:
                pair = (step.before, step.after)
                proof = self._prove(*pair) if prove else self._proofs.get(pair)
                if proof is not None and proof.kind == "false":
                    return step
        return None

    def false_steps(self) -> dict[int, Step]:
        """Return the first false step of each candidate that has one, by its state; ``why_false`` says why.

        Only rules of one's own make such steps; while the search runs, only steps with a certificate are considered.
        """
        options = self.search.options
        before = (step.match.forwards.rule for start in options.starts for step in start.steps)
        if all(rule.is_library for rule in (*options.rules, *options.between, *before)):
            return {}
        steps = ((c.state, self._false_step(c.derivation, not self.running)) for c in tuple(self.candidates))
        return {state: step for state, step in steps if step is not None}

    def why_false(self, step: Step) -> str:
        """Return the rule and the place of a false *step*, and a counterexample."""
        proof = self._prove(step.before, step.after)
        rule, at = step.match.forwards.rule.name, show_path(step.match.at)
        return f"rule {rule} makes a false step at {at}: {proof.counterexample or proof}"

    def ranked(self) -> Iterable[Candidate]:
        """Yield the candidates without a false step, those of the lowest estimated cost and of few steps first."""
        ordered = sorted(self.candidates, key=lambda c: c.rank)
        return (c for c in ordered if self._false_step(c.derivation) is None)

    @property
    def best(self) -> Candidate | None:
        """The candidate with the lowest estimated cost; the one with fewer steps among equals.

        Candidates with a false step, which only a rule of one's own makes, are left out.
        """
        return next(iter(self.ranked()), None)

    def find(self, operator: str, **attributes: int) -> Candidate:
        """Return the best candidate that calls the library *operator* with these *attributes*.

        Raises LookupError with the calls of the candidates that the run has found.
        """
        calls = {c: [e.via for e in c.operators if e.via] for c in self.ranked()}
        for candidate, found in calls.items():
            if any(via.operator == operator and attributes.items() <= dict(via.attributes).items() for via in found):
                return candidate
        wanted = f"{operator}({', '.join(f'{name}={value}' for name, value in attributes.items())})"
        others = list(dict.fromkeys(str(via) for found in calls.values() for via in found))
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        raise LookupError(
            "; ".join((f"no candidate calls {wanted}, found {shown or 'no calls'}", *self._false_rules()))
        )

    def benchmark(
        self, limit: int = 4, device: str = "cpu", threads: int = 1, rounds: int = 15
    ) -> CandidateMeasurements:
        """Measure the program and its *limit* best candidates by estimate, in *rounds* of interleaved calls.

        Programs are compiled for *threads*; *device* is ``cpu``, ``cuda``, or ``profile:FILE.sqlite``, which gives
        recorded times without a run.  The result is displayed as a table; ``samples`` are its times in seconds, by
        ``original`` and ``candidate 1``, ….  Candidates with the same program are measured once.  Raises ValueError for
        a device that is missing, and for *limit* or *rounds* below 1.
        """
        if limit < 1:
            raise ValueError(f"limit {limit}: expected at least 1")
        programs = dict.fromkeys(c.program for c in self.ranked())
        named = {f"candidate {n}": program for n, program in enumerate(islice(programs, limit), 1)}
        *_, last = bench({"original": self.search.start, **named}, rounds, threads, device=device)
        return last

    def derivation(self, to: Candidate | int | None = None) -> Steps:
        """Return the steps *to* a candidate or the state of that number (None: the best candidate), for display.

        Raises LookupError if there is no such state or no candidate.
        """
        match self.best if to is None else to:
            case None:
                raise LookupError("the search found no candidate")
            case int() as number:
                return Steps(self.search.derivation(self._check_state(number)))
            case candidate:
                return Steps(candidate.derivation)

    def _check_state(self, state: int) -> int:
        if not 0 <= state < len(self.search.states):
            raise LookupError(f"state {state}: the search has states 0 to {len(self.search.states) - 1}")
        return state

    def edge(self, state: int) -> Edge:
        """Return the move that leads to *state* (not the start), for a search with ``forbid=``; raises LookupError."""
        if not self._check_state(state):
            raise LookupError("state 0 is the start: no move leads to it")
        states = self.search.states
        return Edge(states[states[state].parent].program, states[state].program)

    def why_pruned(self, state: int) -> tuple[str, ...]:
        """Return why moves out of *state* were not followed: the twin and the path to it, a refusal, or the run's end.

        Raises LookupError if there is no such state.
        """
        return explanations.pruning_reasons(self.search, self.pruned, self.refused, self._check_state(state))

    def report(self, case: str = "") -> dict[str, Any]:
        """Return the JSON of ``derive`` at this moment, also while the search runs; *case* names the program."""
        with self.paused():
            found, best = tuple(self.candidates), self.best
            counts = {
                "case": case,
                "target": list(self.target),
                "strategy": self.search.options.strategy,
                "max_depth": self.search.options.max_depth,
                "seconds": round(self.seconds, 4),
                "states": self.search.size + self.search.pruned,
                "unique": self.search.size,
                "pruned": self.search.pruned,
                "complete": self.search.complete,
            }
            first = self.first_found
        return {
            **counts,
            "candidates": [c.to_json(self.verdict(c)) for c in found],
            "best": None if best is None else found.index(best),
            "first_found": None if first is None else {"seconds": round(first[0], 4), "states": first[1]},
        }

    def save(self, path: str | FilePath, case: str = "") -> None:
        """Write the best derivation with its certificates as a record, or the whole run if *path* ends in ``.einx``.

        *case* is the name of the program in a record.  Raises OSError, and ValueError if a record is asked for and
        there is no candidate.
        """
        if str(path).endswith(SEARCH_SUFFIX):
            save_search(self, path)
            return
        best = self.best
        if best is None:
            why = "the search found no candidate, so there is nothing to save"
            raise ValueError("; ".join((why, *self._false_rules())))
        save_record(path, self.record(best, case))

    def to_html(self, path: str | FilePath, title: str = "") -> None:
        """Write an interactive page with a *title* to *path*, without network and kernel: the search at its best.

        Raises ValueError if no face (such as ``einnet_widgets``) is installed, and OSError.
        """
        write_atomically(path, face().page(self, title))

    @classmethod
    def load(cls, path: str | FilePath, cost: Cost) -> Self:
        """Return the run saved at *path*, which iteration continues; raises RecordError or OSError."""
        return load_search(cls, path, cost)

    def graph(self) -> Any:
        """Return the search as a graph with merges, as JSON that ``networkx.node_link_graph`` reads.

        See ``viz.graph_figures.search_graph`` for its fields.
        """
        return search_graph(self.search.states, self.pruned, {c.state: c.seconds for c in self.candidates})

    def to_networkx(self) -> networkx.MultiDiGraph:
        """Return ``graph()`` as a graph of networkx: its nodes are states; several moves may lead to one."""
        return networkx.node_link_graph(self.graph())

    def to_pandas(self) -> pandas.DataFrame:
        """Return the candidates as a data frame, cheapest first.

        Its columns: state, operators (library calls), eoperators and steps (counts), seconds (estimated), found (the
        second of the search at which it was found; missing in older files), certificate.  Raises ImportError without
        pandas, which this package does not install.
        """
        rows = [
            (
                c.state,
                ", ".join(str(e.via) for e in c.operators),
                c.eoperators,
                len(c.derivation.steps),
                c.seconds,
                self.found_seconds.get(c.state),
                self.verdict(c),
            )
            for c in sorted(self.candidates, key=lambda c: c.rank)
        ]
        head = ("state", "operators", "eoperators", "steps", "seconds", "found", "certificate")
        return tables.data_frame(head, rows)

    to_dataframe = to_pandas

    def blockers(self) -> tuple[Blocker, ...]:
        """Return the equations that have no candidate, if the search found none, each with a rewrite that helps."""
        return () if self.candidates else tuple(explanations.blockers(self.search, self.refused))

    def remarks(self) -> tuple[str, ...]:
        """Return what a reader of the results must know.

        Why there are no candidates, that none is faster than the original, or which rule of one's own makes false
        steps.
        """
        best = self.best
        if best is None:
            blocked = tuple(map(str, self.blockers())) if self.events and not self.running else ()
            return (*blocked, *self._false_rules())
        start = self.search.cost(self.search.start)[0]
        if best.seconds <= start * SLOWER:
            return self._false_rules()
        slower = (
            f"no candidate is faster than the original program, by estimate: the best takes "
            f"{format_seconds(best.seconds)}, the original {format_seconds(start)} (a generated kernel for each "
            "equation); run.benchmark() measures both"
        )
        return (slower, *self._false_rules())

    def _false_rules(self) -> tuple[str, ...]:
        """Name each rule of one's own of which a step is known to be false, with one counterexample."""
        found = dict[str, str]()
        for candidate in self.candidates:
            step = self._false_step(candidate.derivation, prove=False)
            if step is not None:
                found.setdefault(step.match.forwards.rule.name, self.why_false(step))
        return tuple(f"{says}; candidates with such a step are not among the best" for says in found.values())

    def why_not(self, derivation: Derivation) -> str:
        """Return how far the search followed *derivation*, and why no further; raises ValueError for another start."""
        return explanations.unfollowed_reason(self.search, derivation)

    def why_refused(self, name: str, state: int = 0, at: str = "0") -> str:
        """Return why the rule or library operator *name* does not apply at the scope *at* of *state*.

        *at* is as in sessions: ``"0.1"`` or ``"Y.1"``.  Raises LookupError for an unknown name, state or scope.
        """
        return explanations.refusal_reason_at(self.search, name, self._check_state(state), at)

    def record(self, candidate: Candidate, case: str = "") -> dict[str, Any]:
        """Return the record of *candidate*, named *case*: start, steps, certificates."""
        return to_record(
            candidate.derivation,
            self.certificates(candidate.derivation),
            case=case,
            target=list(self.target),
            strategy=self.search.options.strategy,
        )

    def tree(self, to: Candidate | None = None, limit: int = 240) -> Figure:
        """Draw about *limit* states of the search tree, and the path *to* a candidate (None: the best one)."""
        shown = to or self.best
        return tree_figure(self.search.states, shown.state if shown else None, limit)

    def table(self, limit: int = 8) -> TextTable:
        """Return the *limit* cheapest candidates by estimate, each with its certificate; false ones come last."""
        false = self.false_steps()
        ordered = sorted(self.candidates, key=lambda c: (c.state in false, c.rank))
        caption = (
            f"{min(limit, len(ordered))} of {count_noun(len(ordered), 'candidate')}; "
            f"{self.search.counted}, {self.search.pruned} pruned, "
            f"{self.ending}, {self.seconds:.2f} s"
        ) + "".join(f"\n{line}" for line in self.remarks())
        return tables.candidate_table(
            ((c, combined_verdict(self.certificates(c.derivation))) for c in ordered[:limit]), caption
        )

    def __repr__(self) -> str:
        candidates = count_noun(len(self.candidates), "candidate")
        return f"<Run: {candidates}, {self.search.counted}, {self.ending}, {self.seconds:.2f} s>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


@renamed_argument("limit", "budget")
def run_searches(
    programs: Iterable[Program] | Mapping[str, Program],
    executor: WorkExecutor | None = None,
    *,
    target: str | Iterable[str] = (),
    budget: float | None = None,
    states: int | None = None,
    **options: Unpack[SearchOptions],
) -> list[dict[str, Any]]:
    """Search each of *programs*; return their reports (JSON of ``derive``) in order.

    *executor* runs the searches (by default processes of this machine).  Apart from the seconds in them, the reports
    equal those of searches in this process, unless *budget* (seconds) ends a search by the clock; *states* ends it
    after a number of states, which is deterministic.  The keys of a mapping name the cases.  *options* are those of
    ``strategies.options.Options``.  Raises ValueError for unknown options or targets, and the exceptions of a search.
    """
    named = dict(programs) if isinstance(programs, Mapping) else {str(n): p for n, p in enumerate(programs)}
    names = (target,) if isinstance(target, str) else tuple(target)
    check_options(named, names, options)
    items = [(case, program, names, budget, options, states) for case, program in named.items()]
    if executor is not None:
        return gather_results(submit_work(executor, run_search, *each) for each in items)
    with ProcessExecutor(available_cores()) as processes:
        return gather_results(submit_work(processes, run_search, *each) for each in items)


def check_options(programs: Mapping[str, Program], target: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Raise ValueError for invalid options of searches of *programs*, before any of them starts."""
    for program in list(programs.values())[:1]:
        Run(program, program_seconds, target=target, options=options_by_name(options))


def run_search(
    case: str,
    program: Program,
    target: tuple[str, ...],
    budget: float | None,
    options: Mapping[str, Any],
    states: int | None = None,
) -> dict[str, Any]:
    """Return the report of one search: plain values in and out, for use in another process."""
    run = Run(program, program_seconds, target=target, budget=budget, states=states, options=Options(**options))
    with rare_collections():
        for _ in run:
            pass
        return run.report(case)
