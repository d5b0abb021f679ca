"""Two programs side by side: whether they are one, how far each is from an operator, what each costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from einnet_explore.algebra.certificate import Certificate, certify
from einnet_explore.algebra.keys import program_key
from einnet_explore.cost import program_seconds
from einnet_explore.explore.changes import changed
from einnet_explore.explore.tables import Table, seconds
from einnet_explore.ir import Path, Program
from einnet_explore.operators import OPERATORS, Operator
from einnet_explore.render import text
from einnet_explore.search.instantiation import nearest


@dataclass(frozen=True)
class Comparison:
    """Programs *before* and *after*, which may come from different branches; *names* say which they are."""

    before: Program
    after: Program
    names: tuple[str, str] = ("before", "after")
    operators: tuple[Operator, ...] = OPERATORS

    @cached_property
    def same(self) -> bool:
        """Whether their canonical keys are equal: the same program but for names and order."""
        return program_key(self.before) == program_key(self.after)

    @cached_property
    def certificate(self) -> Certificate:
        """Whether they mean the same."""
        return certify(self.before, self.after)

    @property
    def distances(self) -> tuple[int | None, int | None]:
        """The expression distance of each to the nearest operator."""
        return nearest(self.before, self.operators), nearest(self.after, self.operators)

    @property
    def seconds(self) -> tuple[float, float]:
        """What each is estimated to take."""
        return program_seconds(self.before)[0], program_seconds(self.after)[0]

    @property
    def changed(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """The paths in each of the smallest scopes that the other does not have in the same place."""
        return changed(self.after, self.before), changed(self.before, self.after)

    def table(self) -> Table:
        """One row a program."""
        programs = (self.before, self.after)
        rows = tuple(
            (name, "?" if d is None else str(d), seconds(s), str(len(p.equations)), text(p).rstrip("\n"))
            for name, d, s, p in zip(self.names, self.distances, self.seconds, programs, strict=True)
        )
        verdict = "the same program" if self.same else "different programs"
        caption = f"{verdict}; {self.certificate.kind}"
        return Table(("", "distance", "estimated", "equations", "program"), rows, caption)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.table()._repr_mimebundle_()
