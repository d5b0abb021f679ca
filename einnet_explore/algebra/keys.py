r"""Canonical keys: two scopes, or two programs, have equal keys exactly if they are alpha-equal.

Scopes are keyed in ``algebra.scope_keys``.  Programs are alpha-equal if they are so up to the names and the order of
their equations; tensors made by equations count by what they are.

Equations are put in a canonical topological order: of those whose reads are all placed, the one with the smallest code
is next.  A code holds the positions of what is read, how the equation is run, and its scope with the reads numbered in
the order of these positions.  So it says where things stand, yet the scope's part is one fact wherever they stand.

Copies (equations of one code) are told apart by who reads them: their colours come from refinement over the graph of
equations (McKay & Piperno, "Practical graph isomorphism, II", 2014).  Each of those that it leaves alike is tried,
but one is enough of two from which the same program follows in some order: an automorphism exchanges them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from einnet_explore.algebra.scope_keys import COMMUTATIVE, Code, key, numbering, reads, scope_code, tensor_code
from einnet_explore.ir import Program

__all__ = ["COMMUTATIVE", "key", "numbering", "program_key"]

_REMEMBERED = 1 << 10


@lru_cache(_REMEMBERED)
def program_key(program: Program) -> Hashable:
    """The canonical key of *program*; raises ValueError where equations read one another in a circle."""
    return tuple(sorted(tensor_code(t, ()) for t in program.inputs)), _smallest(_begun(_Graph(program)))


class _Graph:
    """Which equations (by their numbers) each equation reads, and which read it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.equations = program.equations
        number = {e.name: n for n, e in enumerate(self.equations)}
        self.reads = [sorted(number.keys() & reads(e.scope)) for e in self.equations]
        self.sources = [[number[name] for name in names] for names in self.reads]
        self.readers: list[list[int]] = [[] for _ in self.equations]
        for n, sources in enumerate(self.sources):
            for source in sources:
                self.readers[source].append(n)

    def code(self, n: int, places: Sequence[int]) -> Code:
        """Equation *n*, the tensors that it reads at *places*."""
        equation = self.equations[n]
        via = equation.via
        how = (via.operator, tuple((k, type(v).__name__, v) for k, v in via.attributes)) if via else ("", ())
        return *how, scope_code(equation.scope, tuple(zip(self.reads[n], places, strict=True)))

    @cached_property
    def colours(self) -> list[int]:
        """A number for every equation: what it is, whence it comes and what becomes of it, as far as refinement says.

        An edge is what the reader is with this read marked.
        """
        marked = {
            (n, s): self.code(n, [int(s == other) for other in sources])
            for n, sources in enumerate(self.sources)
            for s in sources
        }
        edges = dict(zip(marked, _ranked(list(marked.values())), strict=True))
        outputs = self.program.outputs
        known = _ranked(
            [
                (tuple(k for k, name in enumerate(outputs) if name == e.name), self.code(n, [0] * len(self.reads[n])))
                for n, e in enumerate(self.equations)
            ]
        )
        while True:
            finer = _ranked(
                [
                    (
                        known[n],
                        tuple(sorted((edges[n, s], known[s]) for s in self.sources[n])),
                        tuple(sorted((edges[r, n], known[r]) for r in self.readers[n])),
                    )
                    for n in range(len(known))
                ]
            )
            if len(set(finer)) == len(set(known)):
                return finer
            known = finer


def _ranked(signs: Sequence[Code]) -> list[int]:
    """The rank of every sign among them all."""
    rank = {sign: n for n, sign in enumerate(sorted(set(signs)))}
    return [rank[sign] for sign in signs]


@dataclass(slots=True, eq=False)
class _Order:
    """The equations of *graph* placed so far, and the codes of those that may be next."""

    graph: _Graph
    codes: list[Code]
    placed: dict[int, int]
    ready: dict[int, Code]
    missing: dict[int, int]
    """How many reads of an equation are not placed yet."""

    def place(self, n: int) -> None:
        """Put equation *n* next: what waits for it alone is ready then."""
        self.placed[n] = len(self.codes)
        self.codes.append(self.ready.pop(n))
        for reader in self.graph.readers[n]:
            self.missing[reader] -= 1
            if not self.missing[reader]:
                del self.missing[reader]
                at = [self.placed[s] for s in self.graph.sources[reader]]
                places = tuple(sorted(at))
                self.ready[reader] = (places, *self.graph.code(reader, [places.index(p) for p in at]))

    def then(self, n: int) -> _Order:
        """This order with equation *n* next, as another one."""
        other = _Order(self.graph, list(self.codes), dict(self.placed), dict(self.ready), dict(self.missing))
        other.place(n)
        return other

    def next(self) -> list[int]:
        """The copies one of which is next."""
        least = min(self.ready.values())
        copies = [n for n, code in self.ready.items() if code == least]
        if len(copies) > 1:
            colours = self.graph.colours
            first = min(colours[n] for n in copies)
            copies = [n for n in copies if colours[n] == first]
        return copies

    def outcome(self) -> Code:
        """All codes in order, and where the outputs are; raises ValueError where not every equation could be placed."""
        program = self.graph.program
        if self.missing:
            circle = ", ".join(program.equations[n].name for n in sorted(self.missing))
            raise ValueError(f"equations {circle} read one another in a circle")
        where = {program.equations[n].name: position for n, position in self.placed.items()}
        return tuple(self.codes), tuple((1, "", where[o]) if o in where else (0, o, 0) for o in program.outputs)


def _begun(graph: _Graph) -> _Order:
    """The order in which nothing is placed yet."""
    first = {n: ((), *graph.code(n, ())) for n, sources in enumerate(graph.sources) if not sources}
    return _Order(graph, [], {}, first, {n: len(sources) for n, sources in enumerate(graph.sources) if sources})


def _smallest(order: _Order) -> Code:
    """The smallest outcome of all orders that begin with *order*, which is continued."""
    while order.ready:
        copies = order.next()
        if len(copies) > 1:
            tried: dict[int, Code] = {}
            for n in copies:
                outcome = _any(order.then(n))
                if outcome not in tried.values():
                    tried[n] = outcome
            if len(tried) > 1:
                return min(_smallest(order.then(n)) for n in tried)
        order.place(copies[0])
    return order.outcome()


def _any(order: _Order) -> Code:
    """The outcome of one order that begins with *order*, which is continued: of copies any is next."""
    while order.ready:
        order.place(order.next()[0])
    return order.outcome()
