"""The iterator mapping table of a scope against an operator (EinNet Table 2, §6.1), mismatches marked."""

from __future__ import annotations

from dataclasses import dataclass

from einnet_explore.explore.tables import Table
from einnet_explore.ir import Path, Program, show_path
from einnet_explore.operators import Operator, Unmatched, distance, match
from einnet_explore.operators.form import Distance


@dataclass(frozen=True, slots=True)
class MappingTable:
    """How the scope at *at* stands to *operator*.

    *distance* is None where they cannot be compared; *iterators* is the first match's map, where there is one; *why*
    says what is in the way of a match.
    """

    at: Path
    operator: Operator
    distance: Distance | None
    iterators: tuple[tuple[str, tuple[str, ...]], ...]
    why: str

    @property
    def tensors(self) -> tuple[str, ...]:
        """The columns of a group's letters: the operator's operands, then its result."""
        pattern = self.operator.pattern
        return (*(operand.name for operand in pattern.operands), pattern.output)

    def table(self) -> Table:
        """One row a group of the table."""
        rows = tuple(
            (
                g.group,
                ", ".join(g.expected) or "–",
                ", ".join(f"{x.name}:{x.extent}" for x in g.found) or "–",
                f"✗ {g.mismatch}" if g.mismatch else "✓",
            )
            for g in (self.distance.groups if self.distance else ())
        )
        far = "cannot be compared" if self.distance is None else f"distance {self.distance.total}"
        says = f"scope {show_path(self.at)} against {self.operator.name}: {far}"
        head = (f"in {', '.join(self.tensors)}", f"{self.operator.name} has", "the scope has", "mismatch")
        return Table(head, rows, f"{says}; {self.why}" if self.why else says)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


def mapping_table(program: Program, at: Path, operator: Operator) -> MappingTable:
    """The table of the scope at *at* of *program* against *operator*; raises LookupError where there is none."""
    scope = program.scope_at(at)
    try:
        far = distance(scope, operator)
    except Unmatched as reason:
        return MappingTable(at, operator, None, (), str(reason))
    try:
        way = match(scope, operator)[0]
    except Unmatched as reason:
        return MappingTable(at, operator, far, (), str(reason))
    return MappingTable(at, operator, far, tuple((name, tuple(x.name for x in xs)) for name, xs in way.iterators), "")


def nearest_operator(program: Program, at: Path, operators: tuple[Operator, ...]) -> Operator:
    """The operator of *operators* that the scope at *at* is nearest to; the first one where none is comparable."""
    scope = program.scope_at(at)

    def far(n: int) -> tuple[float, int]:
        try:
            return distance(scope, operators[n]).total, n
        except Unmatched:
            return float("inf"), n

    return operators[min(range(len(operators)), key=far)]
