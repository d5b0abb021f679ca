r"""Cost by roofline (EinNet §6.1): measured times where there are any, else the larger of two times,

.. math::  t = t_0 + \max\left(\frac{\text{FLOPs}}{\text{peak} \cdot \text{efficiency}},
           \frac{\text{bytes}}{\text{bandwidth}}\right)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from einnet_explore.algebra.equations import weight_only
from einnet_explore.cost.device import CPU_DEFAULT, Device
from einnet_explore.cost.least import products
from einnet_explore.cost.work import ELEMENT, row_utilisation, utilisation, work
from einnet_explore.ir import EOPERATOR, VIEW, Access, Equation, Program, tensors
from einnet_explore.operators import OPERATORS, Operator

Measured = Callable[[Equation], "float | None"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds, and how they were found: ``measured``, ``flops``, ``bytes``, ``view``, ``constant`` or ``mixed``."""

    seconds: float
    how: str


@dataclass(frozen=True)
class CostModel:
    """Estimates for *device*; *measured* gives the stored seconds of an equation, or None."""

    device: Device = CPU_DEFAULT
    measured: Measured | None = None
    operators: Sequence[Operator] = OPERATORS

    def estimate(self, equation: Equation) -> Estimate:
        """One run of *equation*: a view is free, and so is what only reads weights, since it is evaluated beforehand.

        Only the tensors' own ``weight`` counts here; ``program_cost`` also knows equations that read weights through
        others.
        """
        if equation.via is not None and equation.via.operator == VIEW:
            return Estimate(0.0, "view")
        reads = tuple(tensors(equation.scope))
        if reads and all(t.weight for t in reads):
            return Estimate(0.0, "constant")
        if self.measured is not None and (seconds := self.measured(equation)) is not None:
            return Estimate(seconds, "measured")
        done = work(equation.scope)
        compute = done.flops / (self.device.peak_flops * self._efficiency(equation))
        transfer = done.nbytes / self.device.bandwidth(done.nbytes)
        how = "flops" if compute > transfer else "bytes"
        return Estimate(self.device.call_seconds + max(compute, transfer), how)

    def program_cost(self, program: Program) -> Estimate:
        """The sum over the equations that are run when the program is run."""
        constant = weight_only(program)
        parts = [self.estimate(e) for e in program.equations if e.name not in constant]
        kinds = {p.how for p in parts} - {"view", "constant"}
        how = kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "constant" if constant else "view"
        return Estimate(sum(p.seconds for p in parts), how)

    def lower_bound(self, program: Program) -> float:
        """Seconds that no program derived from *program* stays below, by this model.

        What is instantiated already costs what it costs.  What is not costs at least ``least``; copies, views and the
        results of views may still vanish, so bytes only count where nothing is instantiated.
        """
        constant = weight_only(program)
        done = sum(self.estimate(e).seconds for e in program.equations if e.via is not None and e.name not in constant)
        return done + self.least(program)

    def least(self, program: Program) -> float:
        """What the equations of *program* that are not instantiated cost at least: products, and results written."""
        constant = weight_only(program)
        rest = [e for e in program.equations if e.via is None and e.name not in constant]
        flops = 2 * sum(products(e.scope) for e in rest)
        compute = flops / (self.device.peak_flops * max(self.device.library, self.device.tiled, self.device.generated))
        written = 0
        if not any(e.via for e in program.equations):
            written = sum(prod(e.scope.shape) for e in rest if e.name in program.outputs)
        best = max(self.device.cache_bandwidth, self.device.memory_bandwidth)
        moved = written * ELEMENT / best if any(map(_computes, rest)) else 0.0
        return max(compute, moved) + (self.device.call_seconds if flops else 0.0)

    def _efficiency(self, equation: Equation) -> float:
        """The part of the peak that the best engine for *equation* reaches."""
        via, device = equation.via, self.device
        tiled = device.tiled * row_utilisation(equation.scope, device.lanes)
        operator = next((o for o in self.operators if via is not None and via.operator in o.names), None)
        if via is None or via.operator == EOPERATOR or operator is None or operator.onnx is None:
            return max(device.generated, tiled)
        return max(device.library * utilisation(equation.scope, device.lanes), tiled)


def _computes(equation: Equation) -> bool:
    """Whether *equation* does more than move elements, which a view may do for nothing."""
    scope = equation.scope
    return not isinstance(scope.body, Access) or any(y.extent > 1 for y in scope.summations)


def program_least(program: Program) -> float:
    """``CostModel().least``: what a search whose cost is ``program_seconds`` may take as its bound."""
    return CostModel().least(program)


def program_seconds(program: Program) -> tuple[float, str]:
    """``CostModel().program_cost`` as the pair that a search takes."""
    found = CostModel().program_cost(program)
    return found.seconds, found.how
