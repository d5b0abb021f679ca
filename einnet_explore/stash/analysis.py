"""What a forward and a backward pass have in common, and what stashing each of it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from einnet_explore.algebra.reads import illegal_read
from einnet_explore.ir import Program, Scope
from einnet_explore.stash.costs import ITEM, Demand, demands, operations
from einnet_explore.stash.held import Held, given, held, holds
from einnet_explore.stash.lifting import Nowhere
from einnet_explore.stash.parts import Parts, below, common_parts, reads_with
from einnet_explore.stash.plan import Chosen, Node, Problem
from einnet_explore.stash.reading import Pass, read
from einnet_explore.stash.splitting import apart, definition, renamed, writer
from einnet_explore.stash.uses import Use, Value
from einnet_explore.stash.values import Values
from einnet_explore.stash.writing import Writer


@dataclass(frozen=True)
class Common:
    """A value that both passes compute: its *scope* in the forward pass's terms, and what stashing it takes.

    *name*: the forward equation that holds it, None where none does.  *nbytes* is 0 for an output of the forward pass,
    which its caller holds anyway.  *operations* are its own, what it reads left out.
    """

    scope: Scope
    name: str | None
    nbytes: int
    operations: int
    demand: Demand = field(repr=False)


@dataclass(frozen=True)
class Analysis:
    """A forward and a backward pass read into one table of values, and what they have in common.

    *programs*: as they were given.  *backward*, as read, calls its equations otherwise where *forward* has the name.
    *parts*: of the forward pass's sums and products, and of the backward pass's.  *common*: what both compute and can
    be stashed, by the values' numbers.
    """

    programs: tuple[Program, Program]
    forward: Pass = field(repr=False)
    backward: Pass = field(repr=False)
    values: Values = field(repr=False)
    parts: tuple[Parts, Parts] = field(repr=False)
    common: Mapping[int, Common]
    problem: Problem = field(repr=False)

    @cached_property
    def largest(self) -> tuple[Common, ...]:
        """The largest common subexpressions: those that the backward pass reads for something that is not common."""
        return tuple(self.common[n] for n in sorted(self.problem.cheapest().stashed) if n in self.common)

    @cached_property
    def curve(self) -> tuple[Chosen, ...]:
        """Recomputation against memory: every plan that no other beats in both, most bytes first."""
        return self.problem.curve()


def analyse(forward: Program, backward: Program, factored: bool = False) -> Analysis:
    """What *forward* and *backward* have in common.  *factored*: factors that a sum does not move stand outside it.

    Inputs of both that have one name are one tensor, and so are an input of *backward* and a result of *forward*.
    Raises ValueError where such two have different shapes.
    """
    values = Values(factored)
    first = read(values, forward)
    both = {e.name for e in backward.equations} & forward.names() - set(backward.outputs)
    second = read(values, renamed(backward, apart(backward, both, forward.names())), first)
    parts = common_parts(
        values,
        below(_values(first), values.reads),
        below(_values(second), values.reads),
        [term.value for term in second.terms.values() if isinstance(term, Use)],
    )

    def beside(value: Value) -> tuple[Use, ...]:
        return (*values.reads(value), *(part.use for part in parts[0].get(value.number, ())))

    def instead(value: Value) -> tuple[Use, ...]:
        return reads_with(values, value, parts[1])

    made, needed = demands(first, beside), demands(second, instead)
    by = writer(values, first, parts[0], ())
    free = [one for _, one in given(second, first)]
    common: dict[int, Common] = {}
    nodes: dict[int, Node] = {}
    for number, demand in needed.items():
        own = operations(values, demand, parts[1])
        nbytes = 0 if any(holds(one, demand.value, demand.box) for one in free) else None
        if nbytes is None and own and number in made and made[number].holds(demand):
            found = _common(first, by, demand, own)
            if found is not None and illegal_read(found.scope) is None:
                common[number], nbytes = found, found.nbytes
        nodes[number] = Node(own, tuple(use.value.number for use in instead(demand.value)), nbytes)
    roots = tuple(dict.fromkeys(value.number for value in _values(second)))
    return Analysis((forward, backward), first, second, values, parts, common, Problem(nodes, roots))


def _common(first: Pass, by: Writer, demand: Demand, own: int) -> Common | None:
    """*demand* as common to both passes; None where a scope of its own would have a part that cannot be computed."""
    outputs = first.program.outputs
    holders = [(name, one) for name, one in held(first) if _fits(one, demand)]
    if holders:
        name, one = min(holders, key=lambda h: (h[0] not in outputs, prod(h[1].tensor.shape)))
        scope = next(e.scope for e in first.program.equations if e.name == name)
        return Common(scope, name, 0 if name in outputs else ITEM * prod(one.tensor.shape), own, demand)
    try:
        scope = definition(by, demand, len(first.program.equations))
    except Nowhere:
        return None
    return Common(scope, None, ITEM * demand.points, own, demand)


def _fits(one: Held, demand: Demand) -> bool:
    """Whether *one* can be handed over as the stash of *demand*: it holds all of it, and begins at 0."""
    return not one.padded and not one.domain and not one.tensor.origin and holds(one, demand.value, demand.box)


def _values(one: Pass) -> tuple[Value, ...]:
    return tuple(term.value for _, term in one.roots if isinstance(term, Use))
