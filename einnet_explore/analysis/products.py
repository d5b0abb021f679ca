r"""Sums of products: recognition, factors, nested sums, and the cheapest order of a contraction.

A contraction :math:`\sum_{\vec y} f_1 f_2 \cdots f_n` can be computed as a binary tree; at each node, iterators that no
other factor and no output depends on are summed.  A node costs as many multiplications as its grid has points,

.. math::  c(S) = \min_{S = A \uplus B} c(A) + c(B) + \prod_{x \in A \cup B} |x|,

over all subsets, which for a chain of matrices is the classic recurrence (S. Godbole, 1973; for contractions
R. Pfeifer et al., 2014).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import inf, isfinite, prod
from typing import TypeAlias

from einnet_explore.analysis.canonical_keys import canonical_key
from einnet_explore.analysis.indices import is_inside_box, iterators_of, rename_iterators, substitute
from einnet_explore.analysis.regions import always_holds
from einnet_explore.ir import (
    ELEMENT_TYPES,
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Equation,
    Iterator,
    Scalar,
    Scope,
    Tensor,
    accesses,
    add,
    element_type,
    factors,
    map_accesses,
    mul,
    terms,
)
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class TensorContraction:
    r"""A contraction :math:`Y[b, m, n] = \sum_k A[b, m, k] B[b, k, n]`, its iterators grouped by operand.

    *left* and *right* are the two reads.  Traversals that index neither are in none of the groups.
    """

    scope: Scope
    left: Access
    right: Access
    batch: tuple[Iterator, ...]
    m: tuple[Iterator, ...]
    n: tuple[Iterator, ...]

    @property
    def k(self) -> tuple[Iterator, ...]:
        """The summations."""
        return self.scope.summations

    @classmethod
    def of(cls, scope: Scope) -> TensorContraction:
        """Recognise a sum of products of two reads; raises Refused with the reduction, domain or factors found."""
        summed_factors(scope)
        if not scope.summations:
            raise Refused("the scope sums nothing, expected a plain sum")
        left, right = two_reads(scope.body)
        in_left, in_right = iterators_of(left), iterators_of(right)
        batch = tuple(x for x in scope.traversals if x in in_left and x in in_right)
        m = tuple(x for x in scope.traversals if x in in_left and x not in in_right)
        n = tuple(x for x in scope.traversals if x in in_right and x not in in_left)
        return cls(scope, left, right, batch, m, n)


def is_contraction(scope: Scope) -> bool:
    """True if *scope* is a sum of products of two reads."""
    try:
        TensorContraction.of(scope)
    except Refused:
        return False
    return True


def match_matrix_product(scope: Scope) -> TensorContraction | None:
    """*scope* as a matrix product; None if it reads padding, has a domain, or is no product of two affine reads."""
    try:
        product = TensorContraction.of(scope)
    except Refused:
        return None
    reads = (product.left, product.right)
    for access in reads:
        if not isinstance(access.source, Tensor) or not all(i.affine for i in access.index):
            return None
        if not is_inside_box(access.index, access.source.box):
            return None
    in_a, in_b = map(iterators_of, reads)
    if not all(x in in_a and x in in_b for x in product.k) or not all(x in in_a | in_b for x in scope.traversals):
        return None
    # Without a traversal of one operand alone there is nothing to multiply: a kernel is better at elementwise work.
    return product if product.m or product.n else None


def match_window_product(scope: Scope) -> TensorContraction | None:
    """*scope* as a sum of products of elements at affine places, such as a convolution; None if it is none.

    Every traversal belongs to one operand, and one operand is read inside its box.
    """
    try:
        product = TensorContraction.of(scope)
    except Refused:
        return None
    reads = (product.left, product.right)
    if not all(isinstance(a.source, Tensor) and all(i.affine for i in a.index) for a in reads) or product.batch:
        return None
    in_a, in_b = map(iterators_of, reads)
    if not all(x in in_a and x in in_b for x in product.k) or not all(x in in_a | in_b for x in scope.traversals):
        return None
    return product if any(is_inside_box(a.index, a.source.box) for a in reads) else None


def multiplies_bytes(scope: Scope) -> bool:
    """Whether *scope* sums products of elements of 8 bits of two tensors, in ``int32``."""
    try:
        product = TensorContraction.of(scope)
    except Refused:
        return False
    sides = (product.left.source, product.right.source)
    return element_type(scope) == "int32" and all(
        isinstance(side, Tensor) and ELEMENT_TYPES[side.dtype].bits == 8 for side in sides
    )


def match_integer_product(scope: Scope) -> TensorContraction | None:
    """Return *scope* as a sum of products of bytes that a kernel computes; None if it is none."""
    return match_matrix_product(scope) or match_window_product(scope) if multiplies_bytes(scope) else None


def summed_factors(scope: Scope) -> tuple[Scalar, ...]:
    """Return the factors of the product that *scope* sums; raises Refused for another reduction, or with a domain."""
    if scope.reduce != "sum" or scope.domain:
        where = " over a domain" if scope.domain else ""
        raise Refused(f"the scope takes the {scope.reduce}{where}, expected a plain sum")
    return factors(scope.body)


def two_reads(body: Scalar) -> tuple[Access, Access]:
    """Return the two reads that *body* multiplies; raises Refused if it is another product."""
    match factors(body):
        case (Access() as left, Access() as right):
            return left, right
    raise Refused(f"the body is no product of two reads: {body!r}")


def split_factors(body: Scalar, moving: Collection[Iterator]) -> tuple[tuple[Scalar, ...], tuple[Scalar, ...]]:
    """Split the factors of *body*: those that depend on one of *moving*, and the others."""
    parts = [(f, not iterators_of(f).isdisjoint(moving)) for f in factors(body)]
    return tuple(f for f, moves in parts if moves), tuple(f for f, moves in parts if not moves)


def quotient_factors(body: Scalar) -> tuple[Scalar, ...]:
    """Return the factors of *body*; a quotient a / b has the factors of a, and 1 / b.

    If a condition on indices makes *body* 0, its reads and constants are factors beside the one with the condition.
    An exponential is 0 where a condition makes its argument minus infinity.
    """
    out: list[Scalar] = []
    for factor in factors(body):
        match factor:
            case Apply("where", (Compare() as holds, part, Const(0))) if part != Const(1):
                inside = quotient_factors(part)
                moving = tuple(f for f in inside if isinstance(f, Access | Const))
                left = tuple(f for f in inside if not isinstance(f, Access | Const))
                out += [Apply("where", (holds, mul(*left), Const(0))), *moving]
            case Apply("/", (a, b)) if a != Const(1):
                out += [*quotient_factors(a), Apply("/", (Const(1), b))]
            case Apply("exp", (Apply("where", (Compare() as holds, a, Const(value))),)) if value == -inf:
                out += quotient_factors(Apply("where", (holds, Apply("exp", (a,)), Const(0))))
            case _:
                out.append(factor)
    return tuple(out)


def multiply_out(body: Scalar) -> tuple[tuple[Scalar, ...], ...]:
    """Return the terms of *body*, each as its factors, with products of sums multiplied out."""
    match body:
        case Apply("+", args):
            return tuple(term for arg in args for term in multiply_out(arg))
        case Apply("-", (a, b)):
            return (*multiply_out(a), *((Const(-1), *term) for term in multiply_out(b)))
        case Apply("neg", (a,)):
            return tuple((Const(-1), *term) for term in multiply_out(a))
        case Apply("*", args):
            return tuple(sum(choice, ()) for choice in product(*map(multiply_out, args)))
        case Apply("/", (a, b)) if a != Const(1):
            return tuple((*term, Apply("/", (Const(1), b))) for term in multiply_out(a))
    return ((body,),)


def has_finite_padding(body: Scalar) -> bool:
    """Whether no read of *body* has an infinite padding: 0 times infinity is no number."""
    return all(isfinite(access.source.value) for access in accesses(body))


def open_reduction(access: Access, reduce: str, used: Iterable[Iterator]) -> tuple[Scalar, tuple[Iterator, ...]]:
    """Return the body and the summations of the scope that *access* reads, in the reader's iterators, *used*.

    Raises Refused where the scope is more than a reduction by *reduce* of its body at that place.
    """
    scope = access.source
    if not isinstance(scope, Scope) or not scope.summations:
        raise Refused(f"{access!r} reads no reduction")
    if scope.reduce != reduce:
        raise Refused(f"the inner scope reduces by {scope.reduce}, expected {reduce}")
    if scope.domain:
        raise Refused(f"the inner scope has a domain: {scope.domain[0]!r}")
    for i, (lo, hi) in zip(access.index, scope.box, strict=True):
        if not always_holds(Bound(i, lo, hi)):
            least, most = i.bounds
            raise Refused(f"it is read at {i!r} ∈ [{least}, {most}], outside its box [{lo}, {hi})")
    inner = rename_iterators(scope, {x.name for x in used})
    return substitute(inner.body, dict(zip(inner.traversals, access.index, strict=True))), inner.summations


def open_scope(body: Scalar) -> Scalar:
    """Return what *body* reads, if that is a scope that sums nothing, read inside its box; else *body* itself."""
    match body:
        case Access(Scope(summations=(), domain=()) as scope, index) if is_inside_box(index, scope.box):
            return substitute(scope.body, dict(zip(scope.traversals, index, strict=True)))
    return body


@dataclass(frozen=True, slots=True)
class SummedProduct:
    """A sum over a product: its factors (*parts*), its constant factors and its summations."""

    parts: tuple[Scalar, ...]
    constants: tuple[Scalar, ...]
    summations: tuple[Iterator, ...]

    @property
    def reads(self) -> tuple[frozenset[Iterator], ...]:
        """The iterators of each factor."""
        return tuple(map(iterators_of, self.parts))

    @property
    def weights(self) -> frozenset[int]:
        """The factors that read only weights."""
        return frozenset(n for n, part in enumerate(self.parts) if reads_weights(part))


@lru_cache(1 << 10)  # several rules ask for the same sum, one after the other
def flatten_product(body: Scalar, used: tuple[Iterator, ...], summations: tuple[Iterator, ...] = ()) -> SummedProduct:
    """Return the sum of *body* over *summations* with all sums that are its factors substituted.

    The iterators of the sums are renamed so that they differ from *used*.
    """
    parts: list[Scalar] = []
    constants: list[Scalar] = []
    over, names = list(summations), [*used]

    def collect(body: Scalar) -> None:
        for factor in quotient_factors(body):
            if isinstance(factor, Access) and isinstance(factor.source, Scope) and factor.source.summations:
                try:
                    inner, inside = open_reduction(factor, "sum", (*names, *over))
                except Refused:
                    pass
                else:
                    if has_finite_padding(inner):
                        over.extend(inside)
                        collect(inner)
                        continue
            (constants if _is_constant(factor) else parts).append(factor)

    collect(body)
    return SummedProduct(tuple(parts), tuple(constants), tuple(over))


Tree: TypeAlias = "int | tuple[Tree, Tree]"
"""A factor by its number, or two trees whose product is summed over what nothing else needs."""

MAX_FACTORS = 12
"""Factors up to which every tree is compared: 3ⁿ / 2 splits of subsets."""

FactorReads: TypeAlias = "Sequence[frozenset[Iterator]]"


def tree_leaves(tree: Tree) -> tuple[int, ...]:
    """Return the factors of *tree*, from left to right."""
    return (tree,) if isinstance(tree, int) else (*tree_leaves(tree[0]), *tree_leaves(tree[1]))


def open_iterators(reads: FactorReads, inside: Iterable[int], kept: frozenset[Iterator]) -> frozenset[Iterator]:
    """Return the iterators of the product of *inside* that remain once all others are summed."""
    chosen = set(inside)
    own = frozenset[Iterator]().union(*(reads[n] for n in chosen))
    elsewhere = frozenset[Iterator]().union(*(r for n, r in enumerate(reads) if n not in chosen))
    return own & (elsewhere | kept)


def reads_weights(body: Scalar) -> bool:
    """Whether *body* is known at compile time: it reads only weights and coefficients, at any depth."""
    for access in accesses(body):
        match access.source:
            case Tensor(weight=False):
                return False
            case Scope(body=inner) if not reads_weights(inner):
                return False
    return True


@lru_cache(1 << 12)
def count_products(scope: Scope) -> int:
    """Count the products of *scope* at run time: those that it forms at each point of its grid, and its nested scopes'.

    An addition without a product counts like one; equal nested scopes count once.
    """
    seen = set[Hashable]()

    def count(scope: Scope) -> int:
        key = canonical_key(scope)
        if reads_weights(scope.body) or key in seen:
            return 0
        seen.add(key)
        moves = isinstance(scope.body, Access) and not scope.summations
        points = prod(x.extent for x in (*scope.traversals, *scope.summations))
        here = 0 if moves else points * max(1, *_operations(scope.body))
        return here + sum(count(a.source) for a in accesses(scope.body) if isinstance(a.source, Scope))

    return count(scope)


def _operations(body: Scalar) -> tuple[int, int]:
    """Return the numbers of products and of additions in *body*; products by constants count as none."""
    if not isinstance(body, Apply):
        return 0, 0
    inside = [_operations(arg) for arg in body.args]
    varying = sum(not _is_constant(arg) for arg in body.args)
    products, additions = sum(a for a, _ in inside), sum(b for _, b in inside)
    if body.op in ("+", "-"):
        return products, additions + len(body.args) - 1
    return products + max(0, varying - 1), additions


def _is_constant(body: Scalar) -> bool:
    return not iterators_of(body) and not any(True for _ in accesses(body))


def least_products(scope: Scope) -> int:
    """Return the products of *scope* at run time if each sum of a product in it is computed in the cheapest order."""
    return count_products(_cheapest_order(scope))


@lru_cache(1 << 14)
def _cheapest_order(scope: Scope) -> Scope:
    if scope.reduce != "sum" or (scope.domain and scope.summations):
        return scope
    found = terms(scope.body)
    ordered = []
    for term in found:
        flat = flatten_product(term, scope.traversals, scope.summations)
        flat = replace(flat, parts=tuple(map_accesses(part, _nested_order) for part in flat.parts))
        if 2 <= len(flat.parts) <= MAX_FACTORS:
            tree = cheapest_tree(flat.reads, frozenset(scope.traversals), flat.weights)
            body, summations = order_product(flat, tree, scope.traversals)
        else:
            body, summations = mul(*flat.constants, *flat.parts), flat.summations
        if len(found) == 1:
            return replace(scope, summations=summations, body=body)
        kept = tuple(x for x in scope.traversals if x in iterators_of(body))
        ordered.append(Scope(kept, summations, body)[kept] if summations else body)
    return replace(scope, summations=(), body=add(*ordered))


def _nested_order(access: Access) -> Access:
    return replace(access, source=_cheapest_order(access.source)) if isinstance(access.source, Scope) else access


def order_product(
    flat: SummedProduct, tree: Tree, traversals: tuple[Iterator, ...]
) -> tuple[Scalar, tuple[Iterator, ...]]:
    """Return the product of *flat* in the order of *tree*, over *traversals*, and the summations that are left.

    A node that sums, and one that has fewer points than the node above or only weights, is a scope of its own.
    """
    reads, kept, own = flat.reads, frozenset(traversals), (*traversals, *flat.summations)
    weights, summed = flat.weights, set[Iterator]()

    def node(tree: Tree, parent: tuple[Tree, Tree]) -> Scalar:
        leaves = tree_leaves(tree)
        there = open_iterators(reads, leaves, kept)
        read = frozenset[Iterator]().union(*(reads[n] for n in leaves))
        body = product_of(tree)
        gone = tuple(y for y in flat.summations if y in read and y not in there and y not in summed)
        summed.update(gone)
        first_known = weights.issuperset(leaves) and not weights.issuperset(tree_leaves(parent))
        apart = len(leaves) > 1 and (there < _grid(parent, reads, kept) or first_known)
        over = tuple(x for x in own if x in there)
        return Scope(over, gone, body)[over] if gone or apart else body

    def product_of(tree: Tree) -> Scalar:
        return flat.parts[tree] if isinstance(tree, int) else mul(*(node(part, tree) for part in tree))

    body = product_of(tree)
    return mul(*flat.constants, body), tuple(y for y in flat.summations if y not in summed)


def multiplications(
    tree: Tree, reads: FactorReads, kept: frozenset[Iterator], weights: frozenset[int] = frozenset()
) -> int:
    """Return the cost of *tree*: the points of its nodes' grids; products of *weights* alone are free."""
    if isinstance(tree, int):
        return 0
    here = 0 if weights.issuperset(tree_leaves(tree)) else prod(x.extent for x in _grid(tree, reads, kept))
    return here + sum(multiplications(part, reads, kept, weights) for part in tree)


def _grid(tree: tuple[Tree, Tree], reads: FactorReads, kept: frozenset[Iterator]) -> frozenset[Iterator]:
    """Return the iterators of the two operands of the product at the top of *tree*."""
    return frozenset[Iterator]().union(*(open_iterators(reads, tree_leaves(part), kept) for part in tree))


def cheapest_tree(reads: FactorReads, kept: frozenset[Iterator], weights: frozenset[int] = frozenset()) -> Tree:
    """Return the tree with the fewest multiplications, by dynamic programming over subsets of the factors.

    Of several, one with the fewest products of *weights*.  Subsets of factors and of iterators are bits.  Raises
    ValueError for fewer than two factors, or more than ``MAX_FACTORS``.
    """
    count = len(reads)
    if not 2 <= count <= MAX_FACTORS:
        raise ValueError(f"{count} factors: expected 2 to {MAX_FACTORS}")
    iterators = tuple(frozenset[Iterator]().union(*reads))
    bit = {x: 1 << n for n, x in enumerate(iterators)}
    always, every = sum(bit[x] for x in iterators if x in kept), (1 << count) - 1
    read = _read_by_subsets([sum(bit[x] for x in found) for found in reads])
    still = [read[chosen] & (read[every ^ chosen] | always) for chosen in range(every + 1)]
    known = sum(1 << n for n in weights)
    shift = prod(x.extent for x in iterators).bit_length() + count  # products of weights count less than any other

    @lru_cache(1 << 16)
    def points(grid: int) -> int:
        return prod(x.extent for x in iterators if grid & bit[x])

    cost, first = [0] * (every + 1), [0] * (every + 1)
    for chosen in range(1, every + 1):
        low = chosen & -chosen
        rest = part = chosen ^ low
        if not rest:
            continue
        least = None
        while part:
            part = (part - 1) & rest
            one, other = low | part, rest ^ part
            inside = cost[one] + cost[other]
            if least is None or inside < least:
                here = points(still[one] | still[other])
                total = inside + (here << shift if chosen & ~known else here)
                if least is None or total < least:
                    least, first[chosen] = total, one
        cost[chosen] = least or 0

    def tree(chosen: int) -> Tree:
        if not chosen & (chosen - 1):
            return chosen.bit_length() - 1
        return tree(first[chosen]), tree(chosen ^ first[chosen])

    return tree(every)


def _read_by_subsets(reads: Sequence[int]) -> list[int]:
    """Return, for every subset of the factors, the union of the sets of bits that they read."""
    union = [0]
    for bits in reads:
        union += [found | bits for found in union]
    return union


def is_multilinear(equation: Equation) -> bool:
    """Whether *equation* is open, and a sum of products of reads, constants, reciprocals and functions of weights.

    An exponential of reads that are added and subtracted is a factor as well, such as decay between two positions.
    """
    return equation.via is None and not describe_nonlinearity(equation.scope)


@lru_cache(1 << 12)  # of each node in each region, and of each equation after each step
def describe_nonlinearity(scope: Scope) -> str:
    """Return why *scope* is no sum of products in which every factor can move; empty if it is one."""
    if scope.reduce != "sum":
        return f"a {scope.reduce} is no sum"
    if scope.domain:
        return f"it has the domain {scope.domain[0]!r}"
    if not has_finite_padding(scope.body):
        return "it reads an infinite padding"
    parts = (factor for term in multiply_out(scope.body) for part in term for factor in quotient_factors(part))
    other = next((factor for factor in parts if not _is_factor(factor)), None)
    if other is None:
        return ""
    return f"{other.op} is no product" if isinstance(other, Apply) else f"{other!r} is no product"


def _is_factor(factor: Scalar) -> bool:
    match factor:
        case Access() | Const():
            return True
        case Apply("/", (Const(), divisor)) if all(isinstance(part, Access | Const) for part in factors(divisor)):
            return True
        case Apply("exp", (argument,)) | Apply("where", (Compare(), Apply("exp", (argument,)), Const(0))):
            return _is_sum_of_reads(argument)
        case Apply("where", (Compare(), argument, Const(value))) if value == -inf:
            return _is_sum_of_reads(argument)  # of an exponential
    return reads_weights(factor)


def _is_sum_of_reads(body: Scalar) -> bool:
    return all(isinstance(part, Access | Const) for term in multiply_out(body) for part in term)
