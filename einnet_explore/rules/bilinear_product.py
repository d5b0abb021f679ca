r"""Bilinear products: a small bilinear form, or a matrix product by blocks, with fewer multiplications.

.. math::
   \mathop{L}_{k\,\vec x} \sum_{i, j, \vec y} T[k,i,j]\, A[i, \cdot]\, B[j, \cdot]
   \;\mapsto\;
   \mathop{L}_{k\,\vec x} \sum_p W[k,p] \Big\{ \mathop{L}_{p\,\vec x} \sum_{\vec y}
     \Big\{ \sum_i U[p,i]\, A[i, \cdot] \Big\} \Big\{ \sum_j V[p,j]\, B[j, \cdot] \Big\} \Big\}

for a table `T`, and for :math:`\sum_k A[m,k]\, B[k,n]` where `m`, `k` and `n` are cut into equal blocks, whose product
is such a form of blocks.  The guard is :math:`\sum_p W[k,p]\,U[p,i]\,V[p,j] = T[k,i,j]`, entry by entry.  The
transforms and the product become new equations.

Sources: V. Strassen, 1969; J. Laderman, 1976; A. Karatsuba and Y. Ofman, 1962 (``analysis/bilinear.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from einnet_explore.analysis.bilinear import (
    Bilinear,
    Form,
    Matrix,
    Sizes,
    as_table,
    bilinear_from_json,
    bilinear_to_json,
    check_bilinear,
    gauss,
    karatsuba,
    laderman,
    matrix_product_form,
    strassen,
    table_entries,
)
from einnet_explore.analysis.indices import fresh_name, iterator_by_name, iterators_of, substitute
from einnet_explore.analysis.products import summed_factors
from einnet_explore.ir import (
    Access,
    Const,
    Equation,
    Index,
    IndexLike,
    Iterator,
    Path,
    Program,
    Scalar,
    Scope,
    Table,
    as_index,
    factors,
    mul,
)
from einnet_explore.rules.base import Rule, accepted, refusals_of, refusing
from einnet_explore.support.errors import Refused
from einnet_explore.support.json_values import as_integers

KNOWN: Mapping[str, Bilinear] = {x.name: x for x in (strassen(), laderman(), karatsuba(), gauss())}
MATRICES: Mapping[str, Sizes] = {"Strassen": (2, 2, 2), "Laderman": (3, 3, 3)}


@dataclass(frozen=True, slots=True)
class Blocks:
    """Iterators *rows*, *between* and *columns* of a matrix product, numbers of blocks (*sizes*), the algorithm."""

    rows: Iterator
    between: Iterator
    columns: Iterator
    sizes: Sizes
    algorithm: Bilinear


@dataclass(frozen=True, slots=True)
class Given:
    """The algorithm that replaces the bilinear form given by the table that the scope reads."""

    algorithm: Bilinear


Params = Blocks | Given


def propose(program: Program, at: Path) -> Iterable[Params]:
    """Propose every known algorithm of the scope's table, and block algorithms whose sizes divide the extents."""
    scope = program.scope_at(at)
    tried: list[Params] = [Given(triple) for triple in KNOWN.values()]
    for name, sizes in MATRICES.items():
        for m in scope.traversals:
            for n in scope.traversals:
                tried += [Blocks(m, k, n, sizes, KNOWN[name]) for k in scope.summations if m != n]
    for params in tried:
        if accepted(rewrite, program, at, params):
            yield params


def rewrite(program: Program, at: Path, params: Params) -> Program:
    """Apply the law; refuses a scope of another form, and an algorithm with a wrong entry (the first is shown)."""
    scope = program.scope_at(at)
    summed_factors(scope)
    match params:
        case Blocks():
            return _by_blocks(program, at, scope, params)
        case Given(algorithm):
            return _given(program, at, scope, algorithm)


def _checked(algorithm: Bilinear, form: Form, shape: Sizes) -> None:
    if algorithm.shape != shape:
        raise Refused(f"{algorithm.name} is for (outputs, data, filter) = {algorithm.shape}, expected {shape}")
    check_bilinear(algorithm, form)


def _given(program: Program, at: Path, scope: Scope, algorithm: Bilinear) -> Program:
    tables = [f for f in factors(scope.body) if isinstance(f, Access) and isinstance(f.source, Table)]
    found = [tuple(i.single for i in f.index) for f in tables]
    if len(found) != 1 or len(found[0]) != 3 or None in found[0] or len(set(found[0])) < 3:
        raise Refused(f"{len(tables)} factors are tables, expected one of three iterators")
    table = tables[0].source
    assert isinstance(table, Table)
    k, i, j = (x for x in found[0] if x is not None)
    if k not in scope.traversals or {i, j} - set(scope.summations) or any(x.lo for x in (k, i, j)):
        raise Refused(f"the table is read at ({k.name}, {i.name}, {j.name}), expected a traversal and two summations")
    known = table_entries(table)
    _checked(algorithm, lambda *where: known[where], (k.extent, i.extent, j.extent))  # type: ignore[arg-type]
    rest = tuple(f for f in factors(scope.body) if f != tables[0])
    data, filters = _pair(rest, i, j)
    p = Iterator(fresh_name("p", _names(scope)), 0, algorithm.rank)
    left = _transform(program, "X", algorithm.u, p, i, data)
    right = _transform(program, "L", algorithm.v, p, j, filters)
    over = (p, *(x for x in scope.traversals if x != k))
    sums = tuple(y for y in scope.summations if y not in (i, j))
    middle = Equation(program.fresh("M"), Scope(over, sums, mul(_access_all(left), _access_all(right))))
    body = mul(as_table(algorithm.w)[k, p], middle.tensor[over])
    return program.replace_at(at, replace(scope, summations=(p,), body=body), (left, right, middle))


def _by_blocks(program: Program, at: Path, scope: Scope, params: Blocks) -> Program:
    m, k, n, (a, b, c) = params.rows, params.between, params.columns, params.sizes
    if m == n or m not in scope.traversals or n not in scope.traversals or k not in scope.summations:
        raise Refused(f"{m.name}, {k.name}, {n.name}: expected a traversal, a summation and another traversal")
    _checked(params.algorithm, matrix_product_form(params.sizes), (a * c, a * b, b * c))
    for x, parts in ((m, a), (k, b), (n, c)):
        if x.lo or x.extent % parts:
            raise Refused(f"{x.name} ∈ [{x.lo}, {x.hi}) cannot be cut into {parts} equal blocks from 0")
    data, filters = _pair(factors(scope.body), m, n)
    if k not in iterators_of(data) or k not in iterators_of(filters):
        raise Refused(f"{k.name} is not summed between {data!r} and {filters!r}")
    used = _names(scope)
    p, i, j = (
        Iterator(fresh_name(s, used), 0, e) for s, e in (("p", params.algorithm.rank), ("i", a * b), ("j", b * c))
    )
    small = {x: Iterator(x.name, 0, x.extent // parts) for x, parts in ((m, a), (k, b), (n, c))}

    def block_index(x: Iterator, block: Index) -> Index:
        return block * small[x].extent + as_index(small[x])

    here: dict[Iterator, IndexLike] = {m: block_index(m, as_index(i) // b), k: block_index(k, as_index(i) % b)}
    there: dict[Iterator, IndexLike] = {k: block_index(k, as_index(j) // c), n: block_index(n, as_index(j) % c)}
    left = _transform(program, "X", params.algorithm.u, p, i, substitute(data, here))
    right = _transform(program, "L", params.algorithm.v, p, j, substitute(filters, there))
    over = (p, *(small.get(x, x) for x in scope.traversals))
    sums = tuple(small.get(y, y) for y in scope.summations)
    middle = Equation(program.fresh("M"), Scope(over, sums, mul(_access_all(left), _access_all(right))))
    place = (as_index(m) // small[m].extent) * c + as_index(n) // small[n].extent
    whole = (p, *(as_index(x) % small[x].extent if x in (m, n) else x for x in scope.traversals))
    body = mul(as_table(params.algorithm.w)[place, p], middle.tensor[whole])
    return program.replace_at(at, replace(scope, summations=(p,), body=body), (left, right, middle))


def _pair(parts: Iterable[Scalar], one: Iterator, other: Iterator) -> tuple[Scalar, Scalar]:
    """Return the two factors: only the first reads *one*, only the second *other*, which takes the constants too."""
    constants = [f for f in parts if isinstance(f, Const)]
    rest = [f for f in parts if not isinstance(f, Const)]
    first, second = ([f for f in rest if x in iterators_of(f)] for x in (one, other))
    if len(rest) != 2 or len(first) != 1 or len(second) != 1 or first == second:
        found = f"{one.name} occurs in {len(first)} and {other.name} in {len(second)} of {len(rest)} factors"
        raise Refused(f"{found}, expected each in one of two factors")
    return first[0], mul(*constants, second[0])


def _transform(program: Program, stem: str, matrix: Matrix, p: Iterator, i: Iterator, body: Scalar) -> Equation:
    """Return Σ_i matrix[p, i] · body over p and the other iterators of *body*, in the order in which it reads them."""
    order = [x for f in factors(body) for x in _ordered(f) if x != i]
    return Equation(program.fresh(stem), Scope((p, *dict.fromkeys(order)), (i,), mul(as_table(matrix)[p, i], body)))


def _ordered(body: Scalar) -> Iterable[Iterator]:
    if isinstance(body, Access):
        return tuple(x for at in body.index for x in at.iterators)
    return tuple(sorted(iterators_of(body), key=lambda x: x.name))


def _access_all(equation: Equation) -> Access:
    return equation.tensor[equation.scope.traversals]


def _names(scope: Scope) -> set[str]:
    return {x.name for x in (*scope.traversals, *scope.summations)}


def explain(program: Program, at: Path) -> str:
    """Return why no known algorithm fits."""
    reasons = (reason for triple in KNOWN.values() for reason in refusals_of(rewrite, program, at, Given(triple)))
    return "; ".join((*dict.fromkeys(reasons), "no three iterators make a matrix product of blocks that can be cut"))


def encode(params: Params) -> dict[str, object]:
    """``{"algorithm": "Strassen", "rows": "m", "between": "k", "columns": "n"}``; of tables only the algorithm.

    What is not known by its name is written out: ``"u"``, ``"v"``, ``"w"``, and ``"sizes"`` for blocks.
    """
    triple = params.algorithm
    out: dict[str, object] = {"algorithm": triple.name}
    if KNOWN.get(triple.name) != triple:
        out |= bilinear_to_json(triple)
    match params:
        case Blocks(m, k, n, sizes):
            out |= {"rows": m.name, "between": k.name, "columns": n.name}
            return out if MATRICES.get(triple.name) == sizes and "u" not in out else out | {"sizes": list(sizes)}
        case Given():
            return out


def decode(program: Program, at: Path, params: Mapping[str, object]) -> Params:
    """The inverse of ``encode``."""
    scope = program.scope_at(at)
    with refusing():
        name = str(params["algorithm"])
        if "u" in params:
            triple = bilinear_from_json(name, params)
        elif name in KNOWN:
            triple = KNOWN[name]
        else:
            raise Refused(f"algorithm {name!r}: expected one of {', '.join(KNOWN)}, or u, v and w")
        if "rows" not in params:
            return Given(triple)
        m, n = (iterator_by_name(scope.traversals, str(params[x])) for x in ("rows", "columns"))
        a, b, c = as_integers(params.get("sizes", MATRICES.get(name, ())))
        return Blocks(m, iterator_by_name(scope.summations, str(params["between"])), n, (a, b, c), triple)


BILINEAR_PRODUCT = Rule(
    "bilinear_product",
    r"\sum_{i, j} T[k,i,j]\, A[i]\, B[j] \;\mapsto\; \sum_p W[k,p]"
    r"\Big(\sum_i U[p,i] A[i]\Big)\Big(\sum_j V[p,j] B[j]\Big), \qquad \sum_p W[k,p] U[p,i] V[p,j] = T[k,i,j]",
    propose,
    rewrite,
    encode,
    decode,
    explain=explain,
)
