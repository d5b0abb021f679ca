r"""Cost by roofline (EinNet §6.1): measured times where there are any, else the larger of two times,

.. math::  t = t_0 + \max\left(\frac{\text{FLOPs}}{\text{peak} \cdot \text{efficiency}},
           \frac{\text{bytes}}{\text{bandwidth}}\right)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from einnet_explore.cost.device import CPU_DEFAULT, Device
from einnet_explore.cost.work import ELEMENT, utilisation, work
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Program, tensors
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

        What is instantiated already costs what it costs; what is not must at least read its inputs and write its
        outputs once.  Intermediate tensors may still vanish.
        """
        constant = weight_only(program)
        inputs = {t.name for t in program.inputs if not t.weight}
        done = 0.0
        moved: dict[str, int] = {}
        for e in program.equations:
            if e.name in constant:
                continue
            if e.via is not None:
                done += self.estimate(e).seconds
                continue
            moved |= {t.name: prod(t.shape) for t in tensors(e.scope) if t.name in inputs}
            if e.name in program.outputs:
                moved[e.name] = prod(e.scope.shape)
        best = max(self.device.cache_bandwidth, self.device.memory_bandwidth)
        return done + sum(moved.values()) * ELEMENT / best

    def _efficiency(self, equation: Equation) -> float:
        via = equation.via
        operator = next((o for o in self.operators if via is not None and via.operator in o.names), None)
        if via is None or via.operator == EOPERATOR or operator is None or operator.onnx is None:
            return self.device.generated
        return self.device.library * utilisation(equation.scope, self.device.lanes)


def weight_only(program: Program) -> frozenset[str]:
    """The equations that depend on weights alone, also through one another: they are evaluated at compile time."""
    known = {t.name for t in program.inputs if t.weight}
    found: set[str] = set()
    for e in program.equations:
        if all(t.name in known for t in tensors(e.scope)):
            known.add(e.name)
            found.add(e.name)
    return frozenset(found)


def program_seconds(program: Program) -> tuple[float, str]:
    """``CostModel().program_cost`` as the pair that a search takes."""
    found = CostModel().program_cost(program)
    return found.seconds, found.how
