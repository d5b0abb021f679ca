"""Random legal programs, for every test that states a law.

``scopes_()`` draws one scope, ``programs()`` one to three equations; both are legal by construction: an index is drawn
first, its ``bounds`` are computed, and what it reads is made to reach that far: partly as stored elements, partly as
padding (so negative indices and reads beyond the end occur all the time).  What exists already (an input, an earlier
equation) is read again by bringing the index into its reach with ``%``.  Everything is small: exact evaluation of a
drawn program takes milliseconds.

What occurs: up to three traversals, with origins below zero; up to two summations under each monoid; nested scopes,
also nested twice, that use the same iterator names with other ranges; ``//`` and ``%``; asymmetric padding with values
other than 0; domains; products of one to three accesses, sums, differences, constants, scalar functions, ``where``;
tensors without dimensions; weights; ``via`` (only if asked for, since it is not executable).

``inputs_for`` gives small integers, on which evaluation in int64 and in float64 is exact and agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from einnet_explore.ir import (
    REDUCTIONS,
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Equation,
    Index,
    Instance,
    Iterator,
    Program,
    Scalar,
    Scope,
    Tensor,
    add,
    as_index,
    mul,
    padded,
    program,
    tensors,
)
from einnet_explore.ir.scalar_functions import FUNCTIONS

EXACT = ("relu", "abs", "maximum", "minimum", "where")
"""The scalar functions that map integers to integers."""

NAMES = "hwnfcrs"
POINTS = 300
"""At most so many points (traversals times summations) in one scope."""


@dataclass(frozen=True)
class Kind:
    """The parts that may occur in a drawn program: parameters of ``scopes_`` and ``programs``."""

    polynomial: bool = False
    depth: int = 2
    quotients: bool = True
    domains: bool = True
    origins: bool = True
    functions: tuple[str, ...] = EXACT
    reductions: tuple[str, ...] = tuple(REDUCTIONS)

    @property
    def pure(self) -> Kind:
        """The polynomial part: sums of products of reads, constants, and sum reductions; padding reads 0."""
        return replace(self, functions=(), reductions=("sum",)) if self.polynomial else self


@dataclass
class Pool:
    """The tensors made so far: inputs by name, and earlier results."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    results: list[Tensor] = field(default_factory=list)

    @property
    def readable(self) -> list[Tensor]:
        return [*self.results, *self.results, *self.inputs.values()]  # results twice: chains are what tests need


def iterators(lo: int = -2, extent: int = 4) -> SearchStrategy[Iterator]:
    """One iterator that starts at *lo* or later and takes at most *extent* values."""
    return st.builds(
        lambda name, start, n: Iterator(name, start, start + n),
        st.sampled_from(NAMES),
        st.sampled_from([0, 0, *range(lo, 1)]) if lo else st.just(0),
        st.integers(1, extent),
    )


@st.composite
def indices(draw: DrawFn, over: Sequence[Iterator], quotients: bool = True) -> Index:
    """An index of a few of the iterators *over*, with small coefficients, sometimes divided or taken modulo."""
    index = as_index(draw(st.integers(-2, 2)) if not over or draw(st.integers(0, 3)) == 0 else 0)
    for x in draw(st.lists(st.sampled_from(over), min_size=1, max_size=2, unique=True)) if over else ():
        index += x * draw(st.sampled_from([1, 1, 1, 2, -1, 3]))
    if quotients and draw(st.integers(0, 4)) == 0:
        divisor = draw(st.integers(2, 4))
        index = index // divisor if draw(st.booleans()) else index % divisor
        if draw(st.booleans()):
            index = index * draw(st.sampled_from([2, -1])) + draw(st.integers(-1, 1))
    return index


@st.composite
def scopes_(
    draw: DrawFn,
    *,
    polynomial: bool = False,
    depth: int = 2,
    quotients: bool = True,
    domains: bool = True,
    origins: bool = True,
    functions: tuple[str, ...] = EXACT,
    reductions: tuple[str, ...] = tuple(REDUCTIONS),
) -> Scope:
    """A legal scope with at most *depth* scopes nested in one another.

    *polynomial* keeps to ``+ - *``, constants and sum reductions, with padding that reads 0.  *functions* and
    *reductions* name what may occur otherwise; *quotients*, *domains* and *origins* switch off ``//`` and ``%``,
    domains, and ranges that start elsewhere than at 0.  Its tensors: ``ir.tensors(scope)``.
    """
    kind = Kind(polynomial, depth, quotients, domains, origins, functions, reductions).pure
    return draw(_scopes(kind, Pool(), kind.depth))


@st.composite
def programs(
    draw: DrawFn,
    *,
    equations: int = 3,
    via: bool = False,
    polynomial: bool = False,
    depth: int = 2,
    quotients: bool = True,
    domains: bool = True,
    origins: bool = True,
    functions: tuple[str, ...] = EXACT,
    reductions: tuple[str, ...] = tuple(REDUCTIONS),
) -> Program:
    """A legal program of at most *equations* equations, the later ones reading the earlier ones now and then.

    Parameters as of ``scopes_``.  *via* puts made-up operator instances on some equations: for printers and records
    only, as they say nothing about the scope.  With *via*, outputs are sometimes named explicitly.
    """
    kind = Kind(polynomial, depth, quotients, domains, origins, functions, reductions).pure
    pool = Pool()
    made: list[Equation] = []
    for n in range(draw(st.integers(1, equations))):
        scope = draw(_scopes(kind, pool, kind.depth))
        equation = Equation(f"Y{n}", scope, draw(instances()) if via and draw(st.booleans()) else None)
        made.append(equation)
        pool.results.append(equation.tensor)
    read = {t.name for e in made for t in tensors(e.scope)}
    outputs = tuple(e.name for e in made if e.name not in read)
    if via and draw(st.booleans()):
        names = [e.name for e in made]
        outputs = tuple(draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
    return Program(tuple(pool.inputs.values()), tuple(made), outputs)


def single(scope: Scope) -> Program:
    """The program of one equation ``Y``."""
    return program(scope)


def instances() -> SearchStrategy[Instance]:
    """Operator instances with attributes of every type."""
    value = st.one_of(st.integers(-3, 99), st.text('NT "\\é', max_size=3), st.lists(st.integers(-2, 9)).map(tuple))
    attributes = st.lists(
        st.tuples(st.sampled_from(["m", "n", "ta", "pad"]), value), max_size=3, unique_by=lambda a: a[0]
    )
    return st.builds(Instance, st.sampled_from(["Matmul", "Conv", "eOperator", "View"]), attributes.map(tuple))


def inputs_for(of: Program | Scope, rng: np.random.Generator | int = 0) -> dict[str, np.ndarray]:
    """Integers in [-3, 3] for every input of a program, or for every tensor that a scope reads, by name."""
    rng = np.random.default_rng(rng)
    needed = of.inputs if isinstance(of, Program) else tensors(of)
    return {t.name: rng.integers(-3, 4, size=t.shape, dtype=np.int64) for t in needed}


@st.composite
def _scopes(draw: DrawFn, kind: Kind, pool: Pool, depth: int, box: tuple[tuple[int, int], ...] | None = None) -> Scope:
    """A scope over *box*, or over a box of its own."""
    start = -2 if kind.origins else 0
    if box is None:
        rank = draw(st.sampled_from([0, 1, 1, 2, 2, 3]))
        heads = draw(st.lists(iterators(start), min_size=rank, max_size=rank, unique_by=lambda x: x.name))
    else:
        names = draw(st.permutations(NAMES))
        heads = [Iterator(name, lo, hi) for name, (lo, hi) in zip(names, box, strict=False)]
    assume(prod(x.extent for x in heads) <= POINTS)
    taken = {x.name for x in heads}
    sums = [
        x for x in draw(st.lists(iterators(start, 3), max_size=2, unique_by=lambda x: x.name)) if x.name not in taken
    ]
    while prod(x.extent for x in (*heads, *sums)) > POINTS:
        sums.pop()
    body = draw(_bodies(kind, pool, depth, (*heads, *sums)))
    reduce = draw(st.sampled_from(kind.reductions)) if sums else "sum"
    domain = draw(_domains(kind, heads)) if kind.domains and heads and draw(st.integers(0, 3)) == 0 else ()
    edges = st.tuples(st.sampled_from([0, 0, 1, 2]), st.sampled_from([0, 0, 1, 2]))
    padding = tuple(draw(edges) for _ in heads) if box is None and draw(st.integers(0, 3)) == 0 else ()
    value = draw(_values(kind)) if padding or domain else 0
    made = Scope(tuple(heads), tuple(sums), body, reduce, domain, value=value)
    return padded(made, padding)  # type: ignore[return-value]


@st.composite
def _domains(draw: DrawFn, kind: Kind, over: Sequence[Iterator]) -> tuple[Bound, ...]:
    index = draw(indices(over, kind.quotients))
    lo, hi = index.bounds
    start = draw(st.integers(lo - 1, hi))
    return (Bound(index, start, draw(st.integers(start + 1, hi + 2))),)


@st.composite
def _bodies(draw: DrawFn, kind: Kind, pool: Pool, depth: int, over: Sequence[Iterator]) -> Scalar:
    """A product of one to three reads; less often a sum, a difference or a function of such products."""

    def product() -> Scalar:
        reads = [draw(_reads(kind, pool, depth, over)) for _ in range(draw(st.sampled_from([1, 2, 2, 3])))]
        return mul(*reads, *([Const(draw(st.sampled_from([-2, 2, 3])))] if draw(st.integers(0, 5)) == 0 else []))

    match draw(st.sampled_from(["product", "product", "product", "sum", "minus", "function"])):
        case "sum":
            return add(product(), product(), *([Const(draw(st.integers(1, 2)))] if draw(st.booleans()) else []))
        case "minus":
            return Apply("-", (product(), product())) if draw(st.booleans()) else Apply("neg", (product(),))
        case "function" if kind.functions:
            name = draw(st.sampled_from(kind.functions))
            if name != "where":
                return Apply(name, tuple(product() for _ in range(FUNCTIONS.get(name, 2))))
            op = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
            left, right = draw(indices(over, kind.quotients)), draw(indices(over, kind.quotients))
            return Apply("where", (Compare(op, left, right), product(), product()))
    return product()


@st.composite
def _reads(draw: DrawFn, kind: Kind, pool: Pool, depth: int, over: Sequence[Iterator]) -> Access:
    choice = draw(st.sampled_from(["new", "new", "known", "known", "scope"]))
    if choice == "known" and pool.readable:
        return draw(_again(draw(st.sampled_from(pool.readable)), kind, over))
    rank = draw(st.sampled_from([0, 1, 1, 2, 2, 3]))
    index = tuple(draw(indices(over, kind.quotients)) for _ in range(rank))
    if choice == "scope" and depth > 1:
        box, padding = draw(_covers(index, kind, from_zero=False))
        value = draw(_values(kind)) if padding else 0
        inner = draw(_scopes(kind, pool, depth - 1, box))
        inner = replace(inner, value=value) if not inner.domain else inner
        return Access(padded(inner, padding), index)
    box, padding = draw(_covers(index, kind, from_zero=True))
    name = "ABCDEGIJKLMOPQTUVWXZ"[len(pool.inputs) % 20] + str(len(pool.inputs) // 20 or "")
    value = draw(_values(kind)) if any(map(any, padding)) else 0
    tensor = Tensor(name, tuple(hi for _, hi in box), value=value, weight=draw(st.integers(0, 3)) == 0)
    pool.inputs[name] = made = padded(tensor, padding)  # type: ignore[assignment]
    return Access(made, index)


@st.composite
def _again(draw: DrawFn, tensor: Tensor, kind: Kind, over: Sequence[Iterator]) -> Access:
    """A read of something that exists: each index is brought into its reach where it would leave it."""
    index = []
    for lo, hi in tensor.reach:
        i = draw(indices(over, kind.quotients))
        if not (lo <= i.bounds[0] and i.bounds[1] < hi):
            i = i % (hi - lo) + lo if kind.quotients else as_index(draw(st.integers(lo, hi - 1)))
        index.append(i)
    return Access(tensor, tuple(index))


@st.composite
def _covers(
    draw: DrawFn, index: tuple[Index, ...], kind: Kind, *, from_zero: bool
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """A box and a padding that together hold every value of *index*; a tensor's box starts *from_zero*."""
    box, padding = [], []
    for lo, hi in (i.bounds for i in index):
        if from_zero or not kind.origins:
            start, stop = 0, draw(st.integers(max(1, hi - 1), max(1, hi + 2)))
        else:
            start = draw(st.sampled_from([lo, lo, min(lo + 1, hi), lo - 1]))
            stop = draw(st.integers(max(start + 1, hi), hi + 1))
        box.append((start, stop))
        padding.append((max(0, start - lo), max(0, hi + 1 - stop)))
    return tuple(box), tuple(padding)


def _values(kind: Kind) -> SearchStrategy[int]:
    return st.just(0) if kind.polynomial else st.sampled_from([0, 0, 0, 1, -2])
