r"""Rematerialisation planning: the choice of stashed values that minimises the backward pass's operations.

A value that the backward pass needs is recomputed, or read if it is stashed; a computed value needs its reads:

.. math::
   \min \sum_v o_v c_v \quad\text{where}\quad c_v + s_v \ge 1 \text{ if } v \text{ is needed: an output, or read by } u
   \text{ with } c_u = 1, \qquad \sum_v m_v s_v \le M .

Without a budget, or with a price for memory, this is a minimum cut (each value a pair of nodes: needed, computed);
with one it is a small integer program.  Source: the CSE document ("the amount of computation needed to evaluate the
backward gradients is minimized"); the cut is that of project selection (Picard 1976).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import networkx
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp


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
        held = set(stashed)
        seen: set[int] = set()
        waiting = list(self.roots)
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                if number not in held:
                    waiting.extend(self.nodes[number].reads)
        used = frozenset(seen & held)
        return StashPlan(
            used,
            sum(self.nodes[n].operations for n in seen - held),
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
            held = {} if node.nbytes is None else {"capacity": node.nbytes * byte}
            graph.add_edge(("needed", number), ("computed", number), **held)
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
