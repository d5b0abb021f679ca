"""Canonical keys: two scopes, or two programs, have equal keys exactly if they are alpha-equal.

**Scopes** are alpha-equal if they are equal up to the names of iterators, the order of summations, of the operands of
``+``, ``*``, ``maximum`` and ``minimum`` and of domain bounds.  The order of traversals is the layout and counts.
(EinNet §6.2 requires these invariants of its fingerprint; a key is no hash: whole structures are compared.)

A scope's key is a nested tuple in which traversals are numbered by position and summations in a canonical order, found
by individualisation and refinement (McKay & Piperno, "Practical graph isomorphism, II", 2014):

1. summations start in cells of equal range;
2. a cell is split by the code of the scope with one member marked, until no cell splits;
3. if a cell with several members is left, each of them is tried in front of the others (one of those that can be
   exchanged without changing the scope is enough), and the smallest outcome is the key.

The keys of nested scopes are cached, so that a rewrite of one scope recomputes only the keys of those around it.

**Programs** are alpha-equal if their equations are, up to the names and the order of the equations; results of
equations are compared by value.  Equations are put in a canonical topological order: of those whose reads are all
placed, the one with the smallest code is next.  A code has the positions of the tensors that are read, the
implementation of the equation, and its scope with the reads numbered in the order of these positions, so that a scope's
code is independent of its place.

Equations of equal code are distinguished by their readers: refinement over the graph of equations gives them colours.
Equations that still share a colour are tried one after the other; of two that an automorphism of the program exchanges,
one is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from einnet_explore.ir import (
    FLOAT32,
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Index,
    Iterator,
    Padding,
    Program,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.support.limits import MEMO_ENTRIES

Names: TypeAlias = "tuple[tuple[str, int], ...]"
"""The tensors made by equations that a scope reads, and their canonical positions."""
Code: TypeAlias = "tuple[Any, ...]"
"""A nested tuple that starts with a tag, so that any two of one place compare."""
Colours: TypeAlias = "dict[Iterator, int]"
Cells: TypeAlias = "list[list[Iterator]]"

COMMUTATIVE = frozenset(f.name for f in SCALAR_FUNCTIONS.values() if f.is_commutative)
_MARKED = -1


def canonical_key(scope: Scope) -> Hashable:
    """The canonical key of *scope*: ``key(a) == key(b)`` exactly if *a* and *b* are alpha-equal."""
    return scope_code(scope, ())


def numbering(scope: Scope) -> dict[Iterator, int]:
    """Number the summations of *scope* independently of their names and order.

    Summations that may be exchanged without changing the scope are numbered in either order.
    """
    body = _body(scope, ())
    fixed = {x: n for n, x in enumerate(scope.traversals)}
    cells = _by((y, (y.lo, y.hi)) for y in scope.summations)
    _, colours = _smallest(lambda c: (body(c), _domain(scope.domain, c)), fixed, cells)
    return {y: colours[y] for y in scope.summations}


@lru_cache(MEMO_ENTRIES)
def read_tensor_names(scope: Scope) -> frozenset[str]:
    sources = {access.source for access in accesses(scope.body)}
    own = {source.name for source in sources if isinstance(source, Tensor)}
    return frozenset(own.union(*(read_tensor_names(source) for source in sources if isinstance(source, Scope))))


@lru_cache(MEMO_ENTRIES)
def scope_code(scope: Scope, names: Names) -> Code:
    body = _body(scope, names)
    fixed = {x: n for n, x in enumerate(scope.traversals)}

    def encode(colours: Colours) -> Code:
        return body(colours), _domain(scope.domain, colours)

    return (
        tuple((x.lo, x.hi) for x in scope.traversals),
        tuple(sorted((y.lo, y.hi) for y in scope.summations)),
        scope.reduce,
        _padding(scope.padding),
        scope.value,
        _smallest(encode, fixed, _by((y, (y.lo, y.hi)) for y in scope.summations))[0],
    )


def _smallest(read: Callable[[Colours], Code], fixed: Colours, cells: Cells) -> tuple[Code, Colours]:
    """The smallest reading over all numberings of the summations that respect *cells*, and such a numbering."""
    cells = _refined(read, fixed, cells)
    colours = _coloured(fixed, cells)
    tied = next((n for n, cell in enumerate(cells) if len(cell) > 1), None)
    if tied is None:
        return read(colours), colours
    cell = cells[tied]
    one_by_one = _coloured(fixed, [[y] for c in cells for y in c])
    here = read(one_by_one)
    tried: list[Iterator] = []
    best: tuple[Code, Colours] | None = None
    for y in cell:
        if any(read({**one_by_one, y: one_by_one[z], z: one_by_one[y]}) == here for z in tried):
            continue
        tried.append(y)
        rest = [z for z in cell if z is not y]
        found = _smallest(read, fixed, [*cells[:tied], [y], rest, *cells[tied + 1 :]])
        best = found if best is None or found[0] < best[0] else best
    assert best is not None
    return best


def _refined(read: Callable[[Colours], Code], fixed: Colours, cells: Cells) -> Cells:
    """*cells* split by how the scope reads with one member marked, until nothing splits."""
    while any(len(cell) > 1 for cell in cells):
        colours = _coloured(fixed, cells)
        split = [
            part
            for cell in cells
            for part in ([cell] if len(cell) == 1 else _by((y, read({**colours, y: _MARKED})) for y in cell))
        ]
        if len(split) == len(cells):
            break
        cells = split
    return cells


def _by(signed: Iterable[tuple[Iterator, Code]]) -> Cells:
    """The iterators in cells of equal sign, in the order of their signs."""
    cells: dict[Code, list[Iterator]] = {}
    for y, sign in signed:
        cells.setdefault(sign, []).append(y)
    return [cells[sign] for sign in sorted(cells)]


def _coloured(fixed: Colours, cells: Cells) -> Colours:
    colours = dict(fixed)
    number = len(fixed)
    for cell in cells:
        for y in cell:
            colours[y] = number
        number += len(cell)
    return colours


def _body(scope: Scope, names: Names) -> Callable[[Colours], Code]:
    """The reader of a scope's body; sources do not depend on colours and are encoded once."""
    sources: dict[Tensor | Table | Scope, Code] = {}

    def source(at: Tensor | Table | Scope) -> Code:
        if at not in sources:
            sources[at] = _source(at, names)
        return sources[at]

    def code(body: Scalar, colours: Colours) -> Code:
        match body:
            case Access():
                return 1, source(body.source), tuple([_index(i, colours) for i in body.index])
            case Apply():
                args = [code(a, colours) for a in body.args]
                if body.op in COMMUTATIVE:
                    args.sort()
                return 2, body.op, tuple(args)
            case Const():
                return 0, body.value
            case Compare():
                op, left, right = body.op, _index(body.left, colours), _index(body.right, colours)
                if op in (">", ">=") or (op in ("==", "!=") and right < left):
                    op, left, right = op.replace(">", "<"), right, left
                return 3, op, left, right

    return lambda colours: code(scope.body, colours)


def _source(source: Tensor | Table | Scope, names: Names) -> Code:
    match source:
        case Tensor():
            return tensor_code(source, names)
        case Table():
            return _table(source)
        case Scope():
            return _nested(source, names)


def _nested(scope: Scope, names: Names) -> Code:
    if names:
        read = read_tensor_names(scope)
        names = tuple(n for n in names if n[0] in read)
    return 2, scope_code(scope, names)


@lru_cache(MEMO_ENTRIES)
def _table(table: Table) -> Code:
    """Integers: fractions are slow to hash, and codes are hashed often."""
    return 3, table.shape, tuple(n for x in table.entries for n in (x.numerator, x.denominator))


@lru_cache(MEMO_ENTRIES)
def tensor_code(tensor: Tensor, names: Names) -> Code:
    position = dict(names).get(tensor.name)
    which = (0, tensor.name) if position is None else (1, position)
    own = () if tensor.dtype == FLOAT32 else (tensor.dtype,)  # keys are stored
    return *which, tensor.shape, _padding(tensor.padding), tensor.value, tensor.weight, tensor.origin, *own


def _padding(padding: Padding) -> Padding:
    return padding if any(map(any, padding)) else ()


def _domain(domain: tuple[Bound, ...], colours: Colours) -> Code:
    return tuple(sorted({(_index(b.index, colours), b.lo, b.hi) for b in domain})) if domain else ()


def _index(index: Index, colours: Colours) -> Code:
    """(constant, terms): the normal form's terms, ordered by colour instead of by name."""
    terms = index.terms
    if len(terms) == 1 and terms[0][0].__class__ is Iterator:  # most indices
        return index.const, ((0, colours[terms[0][0]], terms[0][1]),)
    codes = [_term(atom, k, colours) for atom, k in terms]
    codes.sort()
    return index.const, tuple(codes)


def _term(atom: Iterator | Quotient | Remainder, k: int, colours: Colours) -> Code:
    match atom:
        case Iterator():
            return 0, colours[atom], k
        case Quotient():
            return 1, atom.divisor, _index(atom.numerator, colours), k
        case Remainder():
            return 2, atom.divisor, _index(atom.numerator, colours), k


_PROGRAM_KEYS = 1 << 10


@lru_cache(_PROGRAM_KEYS)
def program_key(program: Program) -> Hashable:
    """Return the canonical key of *program*: equal for programs that differ only in names and order (EinNet §6.2).

    Names are those of iterators and equations, order that of equations, summations and operands of ``+`` and ``*``.
    Raises ValueError where equations read one another in a circle.
    """
    return tuple(sorted(tensor_code(t, ()) for t in program.inputs)), _smallest_order(_begun(_Graph(program)))


class _Graph:
    """Sources and readers of each equation, by number."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.equations = program.equations
        number = {e.name: n for n, e in enumerate(self.equations)}
        self.reads = [sorted(number.keys() & read_tensor_names(e.scope)) for e in self.equations]
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
        """The colour of each equation, refined by the equations that it reads and by its readers.

        The label of an edge is the code of the reader with this read marked.
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
    """Number of reads of an equation that are not placed yet."""

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


def _smallest_order(order: _Order) -> Code:
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
                return min(_smallest_order(order.then(n)) for n in tried)
        order.place(copies[0])
    return order.outcome()


def _any(order: _Order) -> Code:
    """The outcome of one order that begins with *order*, which is continued: of copies any is next."""
    while order.ready:
        order.place(order.next()[0])
    return order.outcome()


__all__ = ["COMMUTATIVE", "canonical_key", "numbering", "program_key"]
