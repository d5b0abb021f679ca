"""Filters in an expression: a traversal and a summation that only meet as k·(h ± r), where data meet taps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from einnet_explore.ir import Access, Const, Index, Iterator, Scope, as_index, factors, mul


@dataclass(frozen=True, slots=True)
class Window:
    """Where h and r meet: *data* at its dimension *d*, and the access of the *taps*.

    The index there is *start* + *step* · (outputs from 0 + taps from 0); *start* may depend on other iterators.
    """

    data: Access
    d: int
    start: Index
    step: int
    taps: Access
    backwards: bool

    @property
    def beside(self) -> tuple[Iterator, ...]:
        """The iterators that *start* depends on."""
        return self.start.iterators


def window_of(scope: Scope, h: Iterator, r: Iterator) -> Window | str:
    """How *h* and *r* meet; where they do not as a filter does, why."""
    if scope.reduce != "sum" or scope.domain:
        return f"the scope takes the {scope.reduce}{' over a domain' if scope.domain else ''}, expected a plain sum"
    parts = factors(scope.body)
    if not all(isinstance(f, Access | Const) for f in parts):
        return "the body is no product of elements"
    reads = [f for f in parts if isinstance(f, Access)]
    of_h = [a for a in reads if any(h in i.iterators for i in a.index)]
    of_r = [a for a in reads if any(r in i.iterators for i in a.index)]
    if len(of_h) != 1 or len(of_r) != 2 or of_h[0] not in of_r or of_r[0] == of_r[1]:
        return f"{h.name} occurs in {len(of_h)} factors and {r.name} in {len(of_r)}, expected 1 and that and another"
    data = of_h[0]
    taps = next(a for a in of_r if a is not data)
    where = [d for d, i in enumerate(data.index) if h in i.iterators or r in i.iterators]
    index = data.index[where[0]]
    step = index.coefficient(h)
    rest = index - as_index(h) * step - as_index(r) * index.coefficient(r)
    if len(where) != 1 or step < 1 or abs(index.coefficient(r)) != step or {h, r} & set(rest.iterators):
        told = ", ".join(repr(data.index[d]) for d in where)
        return f"the data are read at {told}, expected a multiple of {h.name} + {r.name} or of {h.name} - {r.name}"
    backwards = index.coefficient(r) < 0
    first = 1 - r.hi if backwards else r.lo
    return Window(data, where[0], rest + step * (h.lo + first), step, taps, backwards)


def channels_last(scope: Scope, window: Window) -> tuple[Scope, Window, Scope | None]:
    """*scope* and *window* with what does not move, summed channels and the taps' own traversals, innermost.

    Coefficients that hang on the moving dimension then hang on outer iterators, and vectors run along memory.  The last
    is what turns data that lie otherwise, None where none has to: the returned window reads the given data by the
    turned index, for the caller to put what was made of them in their place.
    """
    data, taps = window.data, window.taps
    moving = {x for i in data.index for x in i.iterators if x in scope.traversals}
    order = sorted(range(len(data.index)), key=lambda d: (not moving & set(data.index[d].iterators), d))
    own = {x for i in taps.index for x in i.iterators} - moving
    inner = replace(scope, traversals=tuple(sorted(scope.traversals, key=lambda x: x in own)), padding=(), value=0)
    return _turned(inner, window, order)


def in_place(scope: Scope, window: Window, h: Iterator) -> tuple[Scope, Window, Scope | None] | str:
    """*scope* and *window* as they lie, but with another dimension along which the data move innermost.

    Where the filter moves along the innermost one, which coefficients must not hang on, it is put outside the next that
    moves: what is returned is that of ``channels_last``.  Why not, where nothing else moves.
    """
    index = window.data.index
    moving = {x for x in scope.traversals if x.extent > 1 and x != h}
    others = [d for d, i in enumerate(index) if d != window.d and moving & set(i.iterators)]
    inner = replace(scope, padding=(), value=0)
    if not others:
        return f"the data are read at {', '.join(map(repr, index))}: nothing but {h.name} moves"
    if window.d < others[-1]:
        return inner, window, None
    order = [d for d in range(len(index)) if d != window.d]
    order.insert(order.index(others[-1]), window.d)
    beside = [x for x in scope.traversals if x != h]
    beside.insert(min(n for n, x in enumerate(beside) if x in index[others[-1]].iterators), h)
    return _turned(replace(inner, traversals=tuple(beside)), window, order)


def _turned(scope: Scope, window: Window, order: list[int]) -> tuple[Scope, Window, Scope | None]:
    """*scope* reading its data with the dimensions in *order*, and what turns them; None where they lie so already."""
    data = window.data
    if order == sorted(order):
        return scope, window, None
    source = data.source
    z = tuple(Iterator(f"z{d + 1}", *span) for d, span in enumerate(source.box))
    turned = Scope(
        tuple(z[d] for d in order),
        (),
        source[z],
        padding=tuple(source.padding[d] for d in order) if source.padding else (),
        value=source.value,
    )
    read = Access(turned, tuple(data.index[d] for d in order))
    body = mul(*(read if f == data else f for f in factors(scope.body)))
    return replace(scope, body=body), replace(window, data=read, d=order.index(window.d)), turned
