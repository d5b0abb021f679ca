r"""Flattening: accesses as row-major addresses, and a scope as a table of ranges and address coefficients.

.. math::  \mathrm{flat}(T[\tau]) = \sum_d (\tau_d - lo_d)\, \prod_{e > d} n_e
           = \mathit{off}_T + \sum_k c_{k,T}\, x_k, \qquad 0 \le x_k < n_k

``M[i, i+j]`` of 16×16 is 17i + j.  Constraints that ranges do not express (reads stay inside their tensors; the domain)
are listed below the table.  Source: PlaidML's automatic kernel generation (flattening); EinNet §5.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from html import escape
from itertools import accumulate, permutations

from einnet_explore.analysis.indices import is_inside_box
from einnet_explore.analysis.regions import always_holds
from einnet_explore.ir import Access, Bound, Index, Iterator, Scope, Table, Tensor, accesses
from einnet_explore.support.limits import MEMO_ENTRIES
from einnet_explore.support.wording import align_right


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of an array of *shape* whose last dimension is contiguous."""
    return tuple(accumulate((1, *shape[:0:-1]), lambda a, b: a * b))[::-1] if shape else ()


@lru_cache(MEMO_ENTRIES)
def flat_address(access: Access) -> Index:
    """Return the row-major position of the element that *access* reads, as one index.

    It is valid only if the read is inside the source's box.
    """
    source = access.source
    total = Index()
    for i, (lo, _), stride in zip(access.index, source.box, row_major_strides(source.shape), strict=True):
        total = total + (i - lo) * stride
    return total


def view_strides(scope: Scope) -> tuple[int, tuple[int, ...]] | None:
    """Return (offset, strides), in elements, of *scope* as a view of the tensor that it reads.

    A dimension of one element has the stride of a packed array. None if *scope* computes anything, reads padding, has a
    domain, or has an address that is not affine.
    """
    match scope:
        case Scope(summations=(), body=Access(Tensor()) as access, domain=()):
            pass
        case _:
            return None
    if not stays_inside(access):
        return None
    flat = flat_address(access)
    if not flat.affine:
        return None
    own = row_major_strides(scope.shape)
    strides = tuple(o if x.extent == 1 else flat.coefficient(x) for x, o in zip(scope.traversals, own, strict=True))
    return flat.evaluate(lambda x: x.lo), strides


NEXT = r" \\ "


@dataclass(frozen=True, slots=True)
class IteratorRow:
    """An iterator, counted from 0; *output* if it moves along the result."""

    name: str
    extent: int
    output: bool


@dataclass(frozen=True, slots=True)
class AddressColumn:
    """A tensor's address: a coefficient for every row, in elements, and the address at 0.

    *kinds* has a number for every row where indices leave the source: rows of one kind move those dimensions alike.
    """

    name: str
    coefficients: tuple[int, ...]
    offset: int = 0
    kinds: tuple[int, ...] = ()


@dataclass(frozen=True)
class FlattenedScope:
    """*rows* sorted by name; the result's column, then one for each different read; *constraints* of the scope."""

    rows: tuple[IteratorRow, ...]
    columns: tuple[AddressColumn, ...]
    constraints: tuple[Bound, ...] = ()

    @property
    def output(self) -> AddressColumn:
        """The result's column."""
        return self.columns[0]

    @property
    def inputs(self) -> tuple[AddressColumn, ...]:
        """The columns of the reads."""
        return self.columns[1:]

    @property
    def ranges(self) -> tuple[int, ...]:
        """The number of values of each row."""
        return tuple(r.extent for r in self.rows)

    @cached_property
    def moving(self) -> tuple[tuple[int, ...], ...]:
        """The rows on which each column's address depends."""
        return tuple(tuple(n for n, c in enumerate(column.coefficients) if c) for column in self.columns)

    def merge_neighbours(self) -> FlattenedScope:
        """Merge rows that are neighbours in every column, the inner one whole (dimension collapsing).

        Only rows of one kind (results or summations) that no constraint reads are merged.
        """
        bound = {x.name for c in self.constraints for x in c.index.iterators}
        free = [n for n, r in enumerate(self.rows) if r.name not in bound]
        for x, y in permutations(free, 2):
            outer, inner = self.rows[x], self.rows[y]
            steps = [(c.coefficients[x], c.coefficients[y]) for c in self.columns]
            if outer.output == inner.output and are_neighbours(steps, inner.extent):
                rows = list(self.rows)
                rows[x] = IteratorRow(outer.name, outer.extent * inner.extent, outer.output)
                columns = [list(c.coefficients) for c in self.columns]
                for c in columns:
                    c[x] = c[y]
                    del c[y]
                del rows[y]
                made = tuple(replace(c, coefficients=tuple(k)) for c, k in zip(self.columns, columns, strict=True))
                return FlattenedScope(tuple(rows), made, self.constraints).merge_neighbours()
        return self

    @property
    def head(self) -> tuple[str, ...]:
        """The names of the columns, as a heading."""
        return ("", "range", *(c.name for c in self.columns))

    @property
    def lines(self) -> tuple[tuple[str, ...], ...]:
        """The rows as text, and the offsets below them."""
        rows = [
            (r.name, str(r.extent), *(str(c.coefficients[n]) for c in self.columns)) for n, r in enumerate(self.rows)
        ]
        return (*rows, ("off", "", *(str(c.offset) for c in self.columns)))

    def __repr__(self) -> str:
        return "\n".join((align_right((self.head, *self.lines)), *map(repr, self.constraints)))

    def latex(self) -> str:
        """Return the table as a LaTeX array, with the constraints below it."""
        cells = [" & ".join(_latex_word(c) for c in line) for line in (self.head, *self.lines)]
        body = NEXT.join(cells[1:])
        right = "r" * (len(self.head) - 1)
        table = rf"\begin{{array}}{{l{right}}} {cells[0]} \\ \hline {body} \end{{array}}"
        said = [rf"{c.lo} \le {_latex_address(c.index)} < {c.hi}" for c in self.constraints]
        return table if not said else rf"\begin{{gathered}} {NEXT.join((table, *said))} \end{{gathered}}"

    def _repr_latex_(self) -> str:
        return f"${self.latex()}$"

    def _repr_html_(self) -> str:
        right = "style='text-align:right;padding:.2em .7em'"
        head = "".join(f"<th {right} scope='col'>{escape(c)}</th>" for c in self.head)
        body = "".join("<tr>" + "".join(f"<td {right}>{escape(c)}</td>" for c in line) + "</tr>" for line in self.lines)
        said = "".join(f"<div>{escape(repr(c))}</div>" for c in self.constraints)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{said}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/latex": self._repr_latex_(), "text/plain": repr(self)}


def reads_packs(access: Access, x: Iterator, size: int) -> bool:
    """True if *size* values of *x* at a time are neighbours in memory, at multiples of it, all inside or outside."""
    place = flat_address(access)
    rest = place - x
    if x in rest.iterators or x.extent % size or (place.const + x.lo) % size or any(k % size for _, k in rest.terms):
        return False
    along = [(i, box) for i, box in zip(access.index, access.source.box, strict=True) if x in i.iterators]
    return all(is_inside_box((i,), (box,)) for i, box in along)


def are_neighbours(steps: Iterable[tuple[int, int]], inner: int) -> bool:
    """True if two iterators act as one in every address: steps (outer, inner), *inner* values inside."""
    return all(outer == within * inner for outer, within in steps)


def flatten_scope(scope: Scope, name: str = "O") -> FlattenedScope:
    """Return the table of *scope*, whose result is called *name*; repeated reads share a column.

    Raises ValueError with the address that is not affine.
    """
    iterators = sorted((*scope.traversals, *scope.summations), key=lambda x: x.name)
    rows = tuple(IteratorRow(x.name, x.extent, x in scope.traversals) for x in iterators)
    own = dict(zip(scope.traversals, row_major_strides(scope.shape), strict=True))
    columns = [AddressColumn(name, tuple(own.get(x, 0) for x in iterators))]
    constraints: dict[Bound, None] = {}
    for access in dict.fromkeys(accesses(scope.body)):
        flat = flat_address(access)
        if not flat.affine:
            raise ValueError(f"{flat!r}, where {_source_label(access)} is read, is no polynomial of the iterators")
        steps = tuple(flat.coefficient(x) for x in iterators)
        start = flat.evaluate(lambda x: x.lo)
        label = _fresh_column_name(_source_label(access), columns)
        columns.append(AddressColumn(label, steps, start, _row_kinds(access, iterators, steps)))
        constraints |= dict.fromkeys(bounds_inside_source(access))
    constraints |= dict.fromkeys(scope.domain)
    return FlattenedScope(rows, tuple(columns), tuple(constraints))


def _row_kinds(access: Access, iterators: Sequence[Iterator], steps: Sequence[int]) -> tuple[int, ...]:
    """Return, for each row, the first one that moves the dimensions in which *access* leaves its source alike."""
    leaving = [bound.index for bound in bounds_inside_source(access)]
    if not leaving:
        return ()
    slopes = [[Fraction(i.coefficient(x), k or 1) for i in leaving] for x, k in zip(iterators, steps, strict=True)]
    return tuple(map(slopes.index, slopes))


def bounds_inside_source(access: Access) -> Iterable[Bound]:
    """Yield the conditions for *access* to lie inside its source, except those that the ranges imply."""
    for index, (lo, hi) in zip(access.index, access.source.box, strict=True):
        bound = Bound(index, lo, hi)
        if not always_holds(bound):
            yield bound


def stays_inside(access: Access) -> bool:
    """Return whether *access* never leaves its source."""
    return not any(True for _ in bounds_inside_source(access))


def _source_label(access: Access) -> str:
    match access.source:
        case Tensor(name):
            return name
        case Table():
            return "table"
        case Scope():
            return "scope"


def _fresh_column_name(name: str, columns: list[AddressColumn]) -> str:
    used = {c.name for c in columns}
    return next(n for k in range(1, len(used) + 2) if (n := name if k == 1 else f"{name}.{k}") not in used)


def _latex_word(cell: str) -> str:
    if cell.lstrip("-").isdigit() or not cell:
        return cell
    plain = "".join(c if c.isalnum() else rf"\{c}" if c in "_#$%&{}" else c for c in cell)
    return rf"\mathrm{{{plain}}}"


def _latex_address(index: Index) -> str:
    return repr(index).replace("*", r"\,").replace("_", r"\_")
