r"""Common subexpression elimination between a forward and a backward pass, with a stash of forward values.

.. math::
   Y = f(v(X)),\quad dX = g(v(X), dY) \;\mapsto\; (Y, S) = (f(S), v(X)),\quad dX = g(S, dY)

Source: the CSE document: analysis (the largest common subexpressions), the forward pass with further outputs, the
backward pass with placeholders.

The choice of stashed values minimises the backward pass's operations.  A value that the backward pass needs is
recomputed, or read if it is stashed; a computed value needs its reads:

.. math::
   \min \sum_v o_v c_v \quad\text{where}\quad c_v + s_v \ge 1 \text{ if } v \text{ is needed: an output, or read by } u
   \text{ with } c_u = 1, \qquad \sum_v m_v s_v \le M .

Without a budget, or with a price for memory, this is a minimum cut (each value a pair of nodes: needed, computed);
with one it is a small integer program.  Source: the CSE document ("the amount of computation needed to evaluate the
backward gradients is minimized"); the cut is that of project selection (Picard 1976).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import prod

import networkx
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from einnet_explore.analysis.equations import rename_tensors, unused_names
from einnet_explore.autodiff.available_tensors import AvailableTensor, available_in, is_available, shared_inputs
from einnet_explore.autodiff.common_parts import EntryGroups, common_parts, grouped_reads, reachable_values
from einnet_explore.autodiff.pass_splitting import (
    certify_passes,
    pass_writer,
    stash_definition,
    with_placeholders,
    with_stash,
)
from einnet_explore.autodiff.pass_writer import PassWriter
from einnet_explore.autodiff.program_values import (
    ITEM_BYTES,
    Demand,
    ProgramValues,
    demand_operations,
    demands,
    read_program,
)
from einnet_explore.autodiff.values import SUM_FORMS, SumForm, Use, Value, Values
from einnet_explore.equivalence.certificate import Certificate
from einnet_explore.equivalence.reads import reads_legally
from einnet_explore.ir import Program, Scope
from einnet_explore.support.errors import Refused


@dataclass(frozen=True)
class ValueNode:
    """A value of a pass: its own *operations*, its *reads*, and the bytes of stashing it.

    *nbytes* is None for a value that cannot be stashed, and 0 for a value that the caller stores in any case.
    """

    operations: int
    reads: tuple[int, ...]
    nbytes: int | None = None


@dataclass(frozen=True)
class StashPlan:
    """A plan: the stashed values, the remaining operations, and the bytes of the stash."""

    stashed: frozenset[int]
    operations: int
    nbytes: int


@dataclass(frozen=True)
class StashProblem:
    """The values of a pass by number, and its outputs."""

    nodes: Mapping[int, ValueNode]
    roots: tuple[int, ...]

    @cached_property
    def candidates(self) -> tuple[int, ...]:
        """The values that may be stashed."""
        return tuple(n for n, node in self.nodes.items() if node.nbytes is not None)

    def outcome(self, stashed: Iterable[int]) -> StashPlan:
        """Return the plan that reads *stashed*, restricted to the values that are read."""
        stashed_values = set(stashed)
        seen: set[int] = set()
        waiting = list(self.roots)
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                if number not in stashed_values:
                    waiting.extend(self.nodes[number].reads)
        used = frozenset(seen & stashed_values)
        return StashPlan(
            used,
            sum(self.nodes[n].operations for n in seen - stashed_values),
            sum(self.nodes[n].nbytes or 0 for n in used),
        )

    def cheapest(self, price: Fraction | None = None) -> StashPlan:
        """Minimise operations + *price* · bytes; without a price operations, then bytes.

        Exact: the capacities are integers.
        """
        most = sum(node.nbytes or 0 for node in self.nodes.values())
        times, byte = (most + 1, 1) if price is None else (price.denominator, price.numerator)
        graph = networkx.DiGraph()
        graph.add_edge("from", "to", capacity=0)
        for root in self.roots:
            graph.add_edge("from", ("needed", root))
        for number, node in self.nodes.items():
            capacity = {} if node.nbytes is None else {"capacity": node.nbytes * byte}
            graph.add_edge(("needed", number), ("computed", number), **capacity)
            graph.add_edge(("computed", number), "to", capacity=node.operations * times)
            for read in node.reads:
                graph.add_edge(("computed", number), ("needed", read))
        _, (side, _) = networkx.minimum_cut(graph, "from", "to")
        return self.outcome(n for n in self.candidates if ("needed", n) in side and ("computed", n) not in side)

    def within(self, budget: int | None) -> StashPlan:
        """Minimise operations with at most *budget* bytes stashed, then bytes.

        Raises ValueError for a negative budget.
        """
        if budget is not None and budget < 0:
            raise ValueError(f"a budget of {budget} bytes: expected 0 or more")
        best = self.cheapest()
        if budget is None or best.nbytes <= budget:
            return best
        first = self._solve_milp(budget, None)
        return self._solve_milp(budget, first.operations)

    def curve(self) -> tuple[StashPlan, ...]:
        """Return the Pareto-optimal plans in operations and bytes, most bytes first."""
        found = [self.cheapest()]
        while found[-1].nbytes > 0:
            found.append(self.within(found[-1].nbytes - 1))
        return tuple(found)

    def _solve_milp(self, budget: int, most: int | None) -> StashPlan:
        """Minimise operations; if *most* is given, bytes with at most *most* operations."""
        numbers = list(self.nodes)
        place = {number: n for n, number in enumerate(numbers)}
        width = len(numbers)
        rows: list[dict[int, float]] = [{place[r]: 1, width + place[r]: 1} for r in self.roots]
        least: list[float] = [1] * len(rows)
        for number, node in self.nodes.items():
            for read in dict.fromkeys(node.reads):
                rows.append({place[read]: 1, width + place[read]: 1, place[number]: -1})
                least.append(0)
        operations = np.array([float(self.nodes[n].operations) for n in numbers] + [0.0] * width)
        nbytes = np.array([0.0] * width + [float(self.nodes[n].nbytes or 0) for n in numbers])
        matrix = np.zeros((len(rows), 2 * width))
        for n, row in enumerate(rows):
            for column, factor in row.items():
                matrix[n, column] += factor
        limits = [LinearConstraint(matrix, np.array(least), np.inf), LinearConstraint(nbytes[None], -np.inf, budget)]
        if most is not None:
            limits.append(LinearConstraint(operations[None], -np.inf, most))
        upper = [1.0] * width + [0.0 if self.nodes[n].nbytes is None else 1.0 for n in numbers]
        solved = milp(
            nbytes if most is not None else operations,
            constraints=limits,
            integrality=np.ones(2 * width),
            bounds=Bounds(0, np.array(upper)),
            options={"mip_rel_gap": 0},
        )
        if solved.x is None:
            raise ValueError(f"no plan within {budget} bytes was found: {solved.message}")
        found = self.outcome(n for n in self.candidates if solved.x[width + place[n]] > 0.5)
        if found.nbytes > budget:
            raise ValueError(f"the solver's plan takes {found.nbytes} bytes, the budget is {budget}")
        return found


@dataclass(frozen=True)
class CommonValue:
    """A value of both passes: its *scope* over the forward pass's tensors, and the cost of stashing it.

    *name*: the forward equation that stores it, or None.  *nbytes* is 0 for an output of the forward pass, which the
    caller stores in any case.  *operations* excludes those of its reads.
    """

    scope: Scope
    name: str | None
    nbytes: int
    operations: int
    demand: Demand = field(repr=False)


@dataclass(frozen=True)
class StashAnalysis:
    """A forward and a backward pass in one table of values, with their common values.

    *programs*: the originals.  *backward* has new names for equations whose names *forward* uses.  *parts*: of the
    forward pass's sums and products, and of the backward pass's.  *common*: the common values that can be stashed, by
    value number.
    """

    programs: tuple[Program, Program]
    forward: ProgramValues = field(repr=False)
    backward: ProgramValues = field(repr=False)
    values: Values = field(repr=False)
    parts: tuple[EntryGroups, EntryGroups] = field(repr=False)
    common: Mapping[int, CommonValue]
    problem: StashProblem = field(repr=False)

    @cached_property
    def largest(self) -> tuple[CommonValue, ...]:
        """The largest common subexpressions: those with a reader in the backward pass that is not common."""
        return tuple(self.common[n] for n in sorted(self.problem.cheapest().stashed) if n in self.common)

    @cached_property
    def curve(self) -> tuple[StashPlan, ...]:
        """Recomputation against memory: every plan that no other beats in both, most bytes first."""
        return self.problem.curve()


def analyse_passes(forward: Program, backward: Program, form: SumForm = "written") -> StashAnalysis:
    """Find the common values of *forward* and *backward*; *form* ``factored`` moves independent factors out of sums.

    Inputs of one name are one tensor, and so are an input of *backward* and a result of *forward* of one name.  Raises
    ValueError if their shapes differ.
    """
    values = Values(form)
    first = read_program(values, forward)
    both = {e.name for e in backward.equations} & forward.names() - set(backward.outputs)
    second = read_program(values, rename_tensors(backward, unused_names(backward, both, forward.names())), first)
    parts = common_parts(
        values,
        reachable_values(_values(first), values.reads),
        reachable_values(_values(second), values.reads),
        [term.value for term in second.terms.values() if isinstance(term, Use)],
    )

    def reads_and_parts(value: Value) -> tuple[Use, ...]:
        return (*values.reads(value), *(part.use for part in parts[0].get(value.number, ())))

    def reads_by_parts(value: Value) -> tuple[Use, ...]:
        return grouped_reads(values, value, parts[1])

    made, needed = demands(first, reads_and_parts), demands(second, reads_by_parts)
    by = pass_writer(values, first, parts[0], ())
    free = [one for _, one in shared_inputs(second, first)]
    common: dict[int, CommonValue] = {}
    nodes: dict[int, ValueNode] = {}
    for number, demand in needed.items():
        own = demand_operations(values, demand, parts[1])
        nbytes = 0 if any(is_available(one, demand.value, demand.box) for one in free) else None
        if nbytes is None and own and number in made and made[number].holds(demand):
            found = _common(first, by, demand, own)
            if found is not None and reads_legally(found.scope):
                common[number], nbytes = found, found.nbytes
        nodes[number] = ValueNode(own, tuple(use.value.number for use in reads_by_parts(demand.value)), nbytes)
    roots = tuple(dict.fromkeys(value.number for value in _values(second)))
    return StashAnalysis((forward, backward), first, second, values, parts, common, StashProblem(nodes, roots))


def _common(first: ProgramValues, by: PassWriter, demand: Demand, own: int) -> CommonValue | None:
    """Return *demand* as a common value; None if its scope would have a part that cannot be computed."""
    outputs = first.program.outputs
    holders = [(name, one) for name, one in available_in(first) if _can_stash(one, demand)]
    if holders:
        name, one = min(holders, key=lambda h: (h[0] not in outputs, prod(h[1].tensor.shape)))
        scope = next(e.scope for e in first.program.equations if e.name == name)
        return CommonValue(scope, name, 0 if name in outputs else ITEM_BYTES * prod(one.tensor.shape), own, demand)
    try:
        scope = stash_definition(by, demand, len(first.program.equations))
    except Refused:
        return None
    return CommonValue(scope, None, ITEM_BYTES * demand.points, own, demand)


def _can_stash(one: AvailableTensor, demand: Demand) -> bool:
    """Whether *one* can be the stash of *demand*: it holds all of it, and begins at 0."""
    return not one.padded and not one.domain and not one.tensor.origin and is_available(one, demand.value, demand.box)


def _values(one: ProgramValues) -> tuple[Value, ...]:
    return tuple(term.value for _, term in one.roots if isinstance(term, Use))


@dataclass(frozen=True)
class Stash:
    """A stashed value: the forward pass's output *name*, with *reads* reads in the backward pass."""

    name: str
    scope: Scope
    nbytes: int
    reads: int

    @property
    def evaluations(self) -> tuple[int, int]:
        """The evaluations by both passes together, without and with the stash."""
        return 1 + self.reads, 1


@dataclass(frozen=True)
class Passes:
    """Both passes with a stash between them, and their costs.

    *operations*: of the backward pass; *before*: without the stash.  *nbytes*: the bytes of the stash (float32),
    without the original outputs.  *certificates*: of the forward pass's original outputs, and of the backward pass
    given the stash.  *forms*: the analyses compared, with factors inside and outside of sums.
    """

    forward: Program
    backward: Program
    stashes: tuple[Stash, ...]
    operations: int
    before: int
    nbytes: int
    certificates: tuple[Certificate, Certificate]
    forms: tuple[StashAnalysis, ...] = field(repr=False)

    @cached_property
    def curve(self) -> tuple[StashPlan, ...]:
        """Recomputation against memory: every plan that no other beats in both, most bytes first."""
        return tuple(plan for _, plan in pareto_front(self.forms))

    def within(self, memory: int | None) -> Passes:
        """Split the passes under another budget; raises ValueError for a negative one."""
        return _best_passes(self.forms, memory)

    def __repr__(self) -> str:
        names = ", ".join(s.name for s in self.stashes) or "nothing"
        return f"<stash of {names}: {self.nbytes} bytes, {self.operations} of {self.before} operations remain>"


def cse(forward: Program, backward: Program, memory: int | None = None) -> Passes:
    """Stash common values to minimise the operations of *backward*, within *memory* bytes if given.

    The result's ``forward`` has the stash as further outputs, its ``backward`` reads them as inputs of these names.
    Raises ValueError for a negative *memory*, for tensors of one name with different shapes, and for a stashed value
    with the name of an output of *backward*.
    """
    return _best_passes(tuple(analyse_passes(forward, backward, form) for form in SUM_FORMS), memory)


def pareto_front(forms: tuple[StashAnalysis, ...]) -> tuple[tuple[StashAnalysis, StashPlan], ...]:
    """Return the Pareto-optimal plans of *forms* in operations and bytes, most bytes first."""
    every = sorted(((f, p) for f in forms for p in f.curve), key=lambda e: (e[1].nbytes, e[1].operations))
    out: list[tuple[StashAnalysis, StashPlan]] = []
    for form, plan in every:
        if not out or plan.operations < out[-1][1].operations:
            out.append((form, plan))
    return tuple(reversed(out))


def _best_passes(forms: tuple[StashAnalysis, ...], memory: int | None) -> Passes:
    plans = [(form, form.problem.within(memory)) for form in forms]
    found, plan = min(plans, key=lambda p: (p[1].operations, p[1].nbytes))
    return split_passes(found, plan, forms)


def split_passes(found: StashAnalysis, plan: StashPlan, forms: tuple[StashAnalysis, ...] = ()) -> Passes:
    """Split the passes of *found* at the values of *plan*; raises ValueError like ``cse``.

    *forms*: all analyses compared, the unchanged passes first.
    """
    chosen = [found.common[n] for n in sorted(plan.stashed) if n in found.common]
    before, after = found.programs
    forward, tensors = with_stash(
        found.values, found.forward, found.parts[0], [(c.demand, c.name) for c in chosen], after.names()
    )
    backward, counts = with_placeholders(found.values, found.backward, found.forward, found.parts[1], tensors)
    backward = rename_tensors(backward, _equation_names(found, backward))
    stashes = tuple(
        Stash(one.tensor.name, common.scope, common.nbytes, counts[one.tensor.name])
        for common, one in zip(chosen, tensors, strict=True)
    )
    return Passes(
        forward,
        backward,
        stashes,
        plan.operations,
        (forms or (found,))[0].problem.outcome(()).operations,
        plan.nbytes,
        certify_passes(before, after, forward, backward),
        forms or (found,),
    )


def _equation_names(found: StashAnalysis, backward: Program) -> dict[str, str]:
    """Return the original names of equations of *backward* that are free."""
    names = zip(found.backward.program.equations, found.programs[1].equations, strict=True)
    inputs = {t.name for t in backward.inputs}
    made = {e.name for e in backward.equations}
    return {n.name: o.name for n, o in names if n.name != o.name and o.name not in inputs and n.name in made}
