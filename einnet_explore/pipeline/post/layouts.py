"""Layout assignment: layouts of a program's intermediates chosen together, so that transforms are shared.

This goes beyond EinNet §6.3.  An eOperator reads and writes any layout, at a cost that depends on it; a library
operator only those in which it matches without further equations (a matrix product its transposes).  Inputs and
outputs keep their layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from einnet_explore.analysis.bijection import Bijection, bijection
from einnet_explore.analysis.equations import is_generated, map_reads, weight_only
from einnet_explore.ir import VIEW, Access, Equation, Program, Scope, Tensor, tensors
from einnet_explore.pipeline.post.layout_assignment import (
    Mode,
    Phi,
    Transform,
    assign_modes,
    candidate_layouts,
    total_seconds,
)
from einnet_explore.pipeline.post.steps import (
    apply_rule,
    equation_named,
    generate_equation,
    match_library_again,
    merge_scopes,
)
from einnet_explore.rules import STORAGE_LAYOUT, Derivation, Refused
from einnet_explore.rules.storage_layout import Stored, map_index, with_layout

Price = Callable[[Equation], float]
"""Seconds of one run of an instantiated equation."""

MIN_MEASURED_GAIN = 0.98
"""Layouts change if all operators together then take less than this part of their measured time."""

MIN_ESTIMATED_GAIN = 0.999
"""The same for estimated times, which have no noise."""

MAX_MEASURED_MODES = 48
"""Modes of one program that are measured; with more, estimates choose."""

MAX_MEASURING_SECONDS = 20.0
"""Estimated seconds of measuring them; beyond, estimates choose."""

RUNS_PER_MODE = 50
"""Approximate runs of a mode that is measured, of all engines together."""

MAX_MODES = 12
"""Modes of one equation that are priced; beyond, only those that change one tensor."""


def assign_layouts(derivation: Derivation, rough: Price, exact: Price | None = None) -> Derivation:
    """Change *derivation* to the cheapest layouts, if that gains enough.

    The price is *exact* if there are at most ``MAX_MEASURED_MODES`` and they are short, else *rough*.
    """
    problem = LayoutProblem(derivation.end, rough)
    if not any(len(found) > 1 for found in problem.layouts.values()):
        return derivation
    operators, worth = [problem.modes(e) for e in derivation.end.equations], MIN_ESTIMATED_GAIN
    free = [mode.seconds for modes in operators if len(modes) > 1 for mode in modes]
    if exact is not None and len(free) <= MAX_MEASURED_MODES and RUNS_PER_MODE * sum(free) <= MAX_MEASURING_SECONDS:
        problem, worth = LayoutProblem(derivation.end, exact), MIN_MEASURED_GAIN
        operators = [problem.modes(e) for e in derivation.end.equations]
    chosen = assign_modes(operators, problem.transform)
    taken = [modes[m] for modes, m in zip(operators, chosen.modes, strict=True)]
    changed = {name: layout for mode in taken for name, layout in mode.makes.items() if layout}
    if chosen.seconds > worth * total_seconds((modes[0] for modes in operators), problem.transform):
        return derivation
    try:
        return problem.apply(derivation, changed, chosen.transforms, taken)
    except Refused:
        return derivation


@dataclass(frozen=True)
class LayoutProblem:
    """The modes of *program*'s equations and what transforms cost, by *price*."""

    program: Program
    price: Price
    turned: dict[Transform, float] = field(default_factory=dict)

    @cached_property
    def known(self) -> frozenset[str]:
        """The equations of weights only."""
        return weight_only(self.program)

    @cached_property
    def layouts(self) -> Mapping[str, tuple[Phi, ...]]:
        """The candidate layouts of each intermediate, by name, without weights (made beforehand) and views (free)."""
        known = self.known
        return {
            e.name: candidate_layouts(self.program, e)
            for e in self.program.equations
            if e.name not in known and not _view(e) and e.via is not None
        }

    def modes(self, e: Equation) -> list[Mode]:
        """Return the modes of *e* that can be run, its own first."""
        own = [e.name] if e.name in self.layouts else []
        read = [t.name for t in tensors(e.scope) if t.name in self.layouts]
        free = [*own, *dict.fromkeys(read)]
        choices = list(product(*(range(len(self.layouts[name])) for name in free)))
        if len(choices) > MAX_MODES:
            choices = [c for c in choices if sum(map(bool, c)) <= 1]
        found = []
        for choice in choices:
            at = dict(zip(free, choice, strict=True))
            if (made := self.relaid(e, at)) is not None:
                seconds = self._seconds(made) if len(choices) > 1 else 0.0  # what has no choice plays no part
                makes = {name: at[name] for name in own}
                found.append(Mode(seconds, {name: at[name] for name in read}, makes))
        return found

    def _seconds(self, made: Equation) -> float:
        known = all(t.weight or t.name in self.known for t in tensors(made.scope))
        return 0.0 if known or _view(made) else self.price(made)

    def relaid(self, e: Equation, at: Mapping[str, int]) -> Equation | None:
        """Instantiate *e* with its tensors in the layouts *at*; None if that takes more than one equation."""
        if not any(at.values()):
            return e
        scope = e.scope
        for name, layout in at.items():
            if layout:
                phi = self.phi(name, layout)
                try:
                    made = Equation(name, with_layout(equation_named(self.program, name).scope, phi)).tensor
                except Refused:
                    return None
                if name == e.name:
                    scope = with_layout(scope, phi)
                else:
                    scope = map_reads(scope, name, lambda a, t=made, f=phi: Access(t, map_index(f, a.index)))  # type: ignore[misc]
        return _alone(replace(e, scope=scope, via=None), e)

    def phi(self, name: str, layout: int) -> Bijection:
        """Return the bijection from the tensor's layout to another one."""
        found = self.layouts[name][layout]
        xs = equation_named(self.program, name).scope.traversals
        return bijection(xs, tuple(n for n, _ in found), tuple(i for _, i in found))

    def transform(self, what: Transform) -> float:
        """Return the seconds of a transform."""
        if what not in self.turned:
            self.turned[what] = self._turn(*what)
        return self.turned[what]

    def _turn(self, name: str, before: int, after: int) -> float:
        source = self._tensor(name, before)
        back = self.phi(name, after)
        xs = equation_named(self.program, name).scope.traversals
        old = tuple(back.to_target[x] for x in xs)
        index = map_index(self.phi(name, before), old) if before else old
        copy = Equation(f"{name}__copy", Scope(back.target, (), Access(source, index)))
        try:
            made = generate_equation(Derivation(_program(copy)), copy.name)
        except Refused:
            return 0.0
        return self._seconds(made.end.equations[0])

    def _tensor(self, name: str, layout: int) -> Tensor:
        e = equation_named(self.program, name)
        return Equation(name, with_layout(e.scope, self.phi(name, layout))).tensor if layout else e.tensor

    def apply(
        self, derivation: Derivation, changed: Mapping[str, int], copies: Iterable[Transform], taken: list[Mode]
    ) -> Derivation:
        """Change tensors to the layouts *changed* and make *copies* in others; raises Refused."""
        reads = {e.name: mode.reads for e, mode in zip(self.program.equations, taken, strict=True)}
        for name, _, after in sorted(copies):
            if not after:
                raise Refused(f"{name} would be copied back to its own layout")
            # Copies are made from the old layout: what changes that one changes their reads of it too.
            wanting = tuple(reader for reader, found in reads.items() if found.get(name) == after)
            derivation = apply_rule(derivation, STORAGE_LAYOUT, name, Stored(self.layouts[name][after], wanting))
        for name, layout in changed.items():
            derivation = apply_rule(derivation, STORAGE_LAYOUT, name, Stored(self.layouts[name][layout]))
        old = {e.name: e for e in self.program.equations}
        for e in derivation.end.equations:
            if e.via is None:
                derivation = _again(derivation, e.name, old.get(e.name))
        return derivation


def _again(derivation: Derivation, name: str, old: Equation | None) -> Derivation:
    """Instantiate the equation called *name* again, as *old* was; raises Refused."""
    if old is not None and old.via is not None and not is_generated(old):
        return match_library_again(derivation, name, old.via.operator)
    return generate_equation(merge_scopes(derivation, name), name)


def _alone(e: Equation, old: Equation) -> Equation | None:
    try:
        found = _again(Derivation(_program(e)), e.name, old)
    except Refused:
        return None
    return found.end.equations[0] if len(found.end.equations) == 1 else None


def _program(e: Equation) -> Program:
    return Program(tuple({t.name: t for t in tensors(e.scope)}.values()), (e,), (e.name,))


def _view(e: Equation) -> bool:
    return e.via is not None and e.via.operator == VIEW
