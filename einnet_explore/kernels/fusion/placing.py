"""Which stage every value is made in, what of it is kept, and what is computed where it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from einnet_explore.algebra.regions import always
from einnet_explore.algebra.substitute import substitute, substitute_domain
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Iterator,
    Scalar,
    accesses,
    as_index,
    map_accesses,
)
from einnet_explore.kernels.fusion.operations import Operation, read_name, weight
from einnet_explore.kernels.fusion.stages import Nest, Stage, Step, here

STORED = 8
"""What storing a value and loading it again costs, in additions: what costs more is not repeated."""


@dataclass
class _Draft:
    """A nest while it is filled."""

    traversals: tuple[Iterator, ...]
    summations: tuple[Iterator, ...]
    steps: dict[str, Step] = field(default_factory=dict)


@dataclass
class _Placing:
    """Which stage every value is made in, and what of it is kept."""

    found: tuple[Operation, ...]
    grid: frozenset[Iterator]
    floating: frozenset[str] = frozenset()
    made: dict[str, int] = field(default_factory=dict)
    homes: dict[str, _Draft | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_name = {o.name: o for o in self.found}

    def inner(self, operation: Operation) -> tuple[Iterator, ...]:
        """The axes of a value inside its grid point."""
        return tuple(x for x in operation.scope.traversals if x not in self.grid)

    def scalar(self, operation: Operation) -> bool:
        """Whether it is one value a grid point, made of such values."""
        return not self.inner(operation) and not operation.reduces

    def place(self) -> None:
        """The first stage in which each value can be made."""
        for operation in self.found:
            self.made[operation.name] = max((self._waits(a, operation) for a in operation.reads), default=0)

    def _waits(self, access: Access, reader: Operation) -> int:
        operation = self.by_name.get(read_name(access))
        if operation is None:
            return 0
        stage = self.made[operation.name]
        if operation.reduces:
            return stage + 1
        if operation.name in self.floating or self.scalar(operation) or self._beside(access, operation, reader):
            return stage
        return stage + 1

    def _beside(self, access: Access, operation: Operation, reader: Operation) -> bool:
        """Whether reader and value go over the same points, so that it may be read where it is made."""
        same = set(self.inner(operation)) == set(reader.axes) - self.grid
        return same and here(access, operation)

    def may_float(self, operation: Operation) -> bool:
        """Whether every reader may compute the value itself."""
        if operation.output or operation.reduces or self.scalar(operation):
            return False
        return all(_inside(a) for o in self.found for a in o.reads if read_name(a) == operation.name)

    def worth_floating(self, operation: Operation) -> bool:
        """Whether computing it where it is read costs no more than storing it."""
        reads = [(a, o) for o in self.found for a in o.reads if read_name(a) == operation.name]
        once = all(here(a, operation) for a, _ in reads)
        places = {(self._stage(o), self._over(o)) for _, o in reads}
        apart = any(set(self._over(o)) != set(self.inner(operation)) for _, o in reads)
        full = self._full_weight(operation)
        return (once and not apart and len(places) == 1) or full * max(1, len(places) - 1, len(reads) - 1) <= STORED

    def _stage(self, operation: Operation) -> int:
        """The stage in which a value is first needed."""
        if operation.name not in self.floating:
            return self.made[operation.name]
        needing = [self._stage(o) for o in self.found if any(read_name(a) == operation.name for a in o.reads)]
        return min(needing, default=0)

    def _over(self, operation: Operation) -> frozenset[Iterator]:
        if operation.name in self.floating:
            return frozenset(self.inner(operation))
        return frozenset(operation.axes) - self.grid

    def _full_weight(self, operation: Operation) -> int:
        below = (self.by_name[n] for a in operation.reads if (n := read_name(a)) in self.floating)
        return weight(operation.scope.body) + sum(map(self._full_weight, below))

    def stages(self) -> tuple[Stage, ...]:
        """The stages, filled."""
        kept = [o for o in self.found if o.name not in self.floating]
        return tuple(self._stage_of(n, kept) for n in range(1 + max(self.made[o.name] for o in kept)))

    def _stage_of(self, stage: int, kept: list[Operation]) -> Stage:
        mine = [o for o in kept if self.made[o.name] == stage]
        drafts: list[_Draft] = []
        heads = _Draft((), ())
        for operation in sorted(mine, key=lambda o: not o.reduces):
            self.homes[operation.name] = heads if self.scalar(operation) else self._home(operation, drafts)
        for operation in mine:
            draft = self.homes[operation.name]
            assert draft is not None
            self._add(operation, draft, stage)
        nests = tuple(Nest(d.traversals, d.summations, tuple(d.steps.values())) for d in drafts)
        return Stage(tuple(heads.steps.values()), nests, False)

    def _home(self, operation: Operation, drafts: list[_Draft]) -> _Draft:
        inner, sums = self.inner(operation), operation.scope.summations
        for draft in drafts:
            if operation.reduces:
                fits = set(draft.traversals) == set(inner) and set(draft.summations) == set(sums)
            else:
                fits = set(draft.traversals) | set(draft.summations) == set(inner)
            if fits:
                return draft
        drafts.append(_Draft(inner, sums))
        return drafts[-1]

    def _add(self, operation: Operation, draft: _Draft, stage: int, keep: bool = True) -> None:
        scope = operation.scope
        body = self._forwarded(scope.body, draft, stage)
        reduce = scope.reduce if operation.reduces else None
        memory = operation.output or bool(self.inner(operation))
        step = Step(operation.name, body, reduce, scope.domain, scope.value, keep and memory)
        draft.steps[operation.name] = step

    def _forwarded(self, body: Scalar, draft: _Draft, stage: int) -> Scalar:
        """*body* with what is computed at the point where it is read instead of being loaded."""

        def swap(access: Access) -> Scalar:
            operation = self.by_name.get(read_name(access))
            if operation is None or operation.reduces or self.scalar(operation):
                return access
            name = operation.name
            if name not in self.floating and self.made[name] < stage:
                return access
            if here(access, operation):
                if name not in draft.steps:
                    self._add(operation, draft, stage, keep=False)
                return access
            return self._forwarded(inlined(access, operation), draft, stage)

        return map_accesses(body, swap)


def _inside(access: Access) -> bool:
    return all(always(Bound(i, lo, hi)) for i, (lo, hi) in zip(access.index, access.source.box, strict=True))


def inlined(access: Access, operation: Operation) -> Scalar:
    """What *access* reads, computed there: the body at its indices, the constant where the domain does not hold."""
    scope = operation.scope
    to = dict(zip(scope.traversals, access.index, strict=True))
    body = substitute(scope.body, to)
    for bound in substitute_domain(scope.domain, to):
        value = Const(scope.value)
        for op, limit in ((">=", bound.lo), ("<", bound.hi)):
            body = Apply("where", (Compare(op, bound.index, as_index(limit)), body, value))
    return body


def stages(found: tuple[Operation, ...], grid: tuple[Iterator, ...]) -> tuple[Stage, ...]:
    """The stages of the operations *found* at every point of *grid*."""
    first = _Placing(found, frozenset(grid))
    able = frozenset(o.name for o in found if first.may_float(o))
    first.floating = able
    first.place()
    last = _Placing(found, frozenset(grid), frozenset(n for n in able if first.worth_floating(first.by_name[n])))
    last.place()
    return _synchronised(last.stages(), {o.name: o for o in found})


def _synchronised(made: tuple[Stage, ...], known: Mapping[str, Operation]) -> tuple[Stage, ...]:
    """The stages with a barrier after those whose memory another thread reads later."""
    out = []
    for n, stage in enumerate(made):
        later = [(nest, s) for after in made[n + 1 :] for nest in after.nests for s in nest.steps]
        heads = [s for after in made[n + 1 :] for s in after.heads]
        barrier = any(
            any(read_name(a) == step.name for s in heads for a in accesses(s.body))
            or any(
                not (nest.flat and other.flat and nest.axes == other.axes and here(a, known[step.name]))
                for other, s in later
                for a in accesses(s.body)
                if read_name(a) == step.name
            )
            for nest in stage.nests
            for step in nest.steps
            if step.stores and (step.reduce is None or nest.traversals)
        )
        out.append(Stage(stage.heads, stage.nests, barrier))
    return tuple(out)
