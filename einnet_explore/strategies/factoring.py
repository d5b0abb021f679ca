r"""Factoring across expressions: one sum over all factors, and back by the order with the fewest products.

.. math::
   Y = \mathop{L} \sum_j \Big\{ \mathop{L} \sum_k Q\, K \Big\} V
   \;\mapsto\; \mathop{L} \sum_{j k} Q\, K\, V
   \;\mapsto\; \mathop{L} \sum_k Q \Big\{ \mathop{L} \sum_j K\, V \Big\}

.. code-block:: text

    normal form: substitute each intermediate that is a sum of products or moves elements (fusion, inlining), multiply
                 products of sums out and sum each term on its own (distributivity), sum only what is read
                 (traversal factoring)
    padding:     move the padding of a sum to the factors that it has (padding exchange), or drop it where these are 0
                 (boundary relaxing)
    bands:       sum over a window where a condition confines a sum to a band (boundary tightening)
    blocks:      split a sum up to a position (prefix splitting), make decay relative to the blocks' ends (recentring)
    phases:      divide a traversal that a quotient has together with a summation (variable substitution)
    factoring:   add terms first that have a common factor (common factor) or read one element (like terms), eliminate
                 the summations in the cheapest order (contraction order), compute what is read through a quotient once
                 (traversal factoring), make nested scopes expressions of their own (expression extraction), share
                 equal ones (common subexpression)

Every step is a rule.  Products of weights alone are free, since they are computed beforehand.  The results are open
programs: each of their expressions is searched like any other, and the costs compete with the start's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from math import isqrt, log
from typing import TypeAlias, TypeVar

from einnet_explore.analysis.access_structure import residue_divisors
from einnet_explore.analysis.equations import find_equation, readers, tensor_names, weight_only
from einnet_explore.analysis.indices import iterators_of, read_indices
from einnet_explore.analysis.padding import sliding_windows
from einnet_explore.analysis.products import (
    MAX_FACTORS,
    cheapest_tree,
    count_products,
    flatten_product,
    is_multilinear,
    quotient_factors,
    reads_weights,
)
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Equation,
    Index,
    Iterator,
    Path,
    Program,
    Quotient,
    Scalar,
    Scope,
    Tensor,
    accesses,
    as_index,
    factors,
    scopes,
    terms,
    walk_scalar,
)
from einnet_explore.rules import (
    BOUNDARY_RELAXING,
    BOUNDARY_TIGHTENING,
    COMMON_FACTOR,
    COMMON_SUBEXPRESSION,
    CONTRACTION_ORDER,
    DISTRIBUTIVITY,
    EXPRESSION_EXTRACTION,
    EXPRESSION_SPLITTING,
    LIKE_TERMS,
    PADDING_EXCHANGE,
    PART_EXTRACTION,
    PREFIX_SPLITTING,
    RECENTRING,
    SUMMATION_SPLITTING,
    TRAVERSAL_FACTORING,
    VARIABLE_SUBSTITUTION,
    Derivation,
    Match,
    Refused,
    Rule,
)
from einnet_explore.rules.base import accepted, keeps_types, places
from einnet_explore.rules.boundaries import Tightening, Wider
from einnet_explore.rules.contraction_order import Order
from einnet_explore.rules.distributivity import Inwards, Termwise
from einnet_explore.rules.expression_splitting import Cut
from einnet_explore.rules.padding_exchange import PaddedFactors, PaddedRead
from einnet_explore.rules.part_extraction import Part
from einnet_explore.rules.prefix_splitting import Blocks, block_sizes, last_summed, summed_end
from einnet_explore.rules.recentring import Place
from einnet_explore.rules.traversal_factoring import Selection
from einnet_explore.rules.variable_substitution import Substitution, divide_iterator
from einnet_explore.strategies.moves import (
    LazySequence,
    Position,
    host_program,
    merge_scopes,
    position_of,
)
from einnet_explore.strategies.vertical_fusion import substitute_intermediate
from einnet_explore.support.limits import MEMO_ENTRIES

T = TypeVar("T")

LocalMove: TypeAlias = "tuple[Rule[object], object]"
"""A local rule, and parameters that it takes at a scope."""

LocalMoves: TypeAlias = "Callable[[Program, Path, Scope], Iterable[LocalMove]]"
"""Yields moves at a path, which depend on the scope there and on whether that is a whole equation."""

MAX_BLOCK_SIZES = 6
"""Block sizes that are tried for a sum up to a position, at most."""

MAX_SUBSTITUTIONS = 64
"""Intermediates that are substituted, at most."""

MAX_TERMS = 40
"""An expression with more terms, in nested scopes too, is not multiplied out further: factoring compares all pairs."""


def factorings(program: Program) -> Iterable[Derivation]:
    """Yield derivations of *program* with fewer and fewer products, as ``products_at_run_time`` counts them.

    Each step is a rule; the last derivation has the fewest products, and nothing is yielded if *program* has them.
    Intermediates are substituted one by one, from the outputs upwards, and what results is factored each time: sums
    over products are carried out in the order with the fewest products (variable elimination; decision 0049).
    """
    least = products_at_run_time(program)
    for fused in multiplied_out(program):
        for normal in _normal_forms(fused):
            found = factored(normal)
            if (count := products_at_run_time(found.end)) < least:
                least = count
                yield found


def _normal_forms(fused: Derivation) -> Iterable[Derivation]:
    """Yield *fused* with padding kept and moved, each also in phases; in bands, or else in blocks."""
    for moved in (fused, *_with_padded_factors(fused)):
        yield moved
        yield from _in_phases(moved)
    yield from tuple(_in_bands(fused)) or _in_blocks(fused)


def multiplied_out(program: Program) -> Iterable[Derivation]:
    """Yield derivations of *program* with one more multilinear intermediate multiplied out each time, from none on."""
    start = Derivation(program)
    yield start
    yield from _substituted(start)


def _with_padded_factors(derivation: Derivation) -> Iterable[Derivation]:
    """Yield *derivation* with the padding of nested sums moved to what they read, so that they join the sums around."""
    if not any(e.via is None and _joins_padded_values(e.scope) for e in derivation.end.equations):
        return
    while (match := next(iter(_paddings(derivation.end)), None)) is not None:
        derivation = _merged(derivation.then(match))
    yield derivation


@lru_cache(MEMO_ENTRIES)  # a step leaves most equations as they are
def _joins_padded_values(root: Scope) -> bool:
    """Return whether a padded value in *root* is in a sum or product, or is added to values of a tensor that it reads.

    Otherwise, as in a concatenation of independent products, no term has fewer products if padding moves.
    """
    return any(_joins_here(scope) for _, scope in scopes(root))


def _joins_here(scope: Scope) -> bool:
    """Return whether *scope* itself sums or multiplies a padded value, or adds it to values of what it reads."""
    read = accesses(scope.body)
    padded = [access for access in read if isinstance(access.source, Scope) and _is_padded_value(access.source)]
    products = [tuple(part for part in factors(term) if not isinstance(part, Const)) for term in terms(scope.body)]
    if scope.summations or any((access,) not in products for access in padded):
        return bool(padded)
    names = [name for access in read for name in _names_read(access)]
    return bool(padded) and len(set(names)) < len(names)


def _names_read(access: Access) -> tuple[str, ...]:
    """Return the names of the tensors whose elements *access* reads, each once."""
    match access.source:
        case Tensor(name):
            return (name,)
        case Scope() as inner:
            return tensor_names(inner)
    return ()


def _is_padded_value(scope: Scope) -> bool:
    """Whether *scope* is padded, and more than a copy of a tensor."""
    match scope.body:
        case Access(Tensor(), index) if not scope.summations and tuple(i.single for i in index) == scope.traversals:
            return False
    return bool(scope.padding)


def _paddings(program: Program) -> Iterable[Match[object]]:
    """Yield matches that sum terms on their own, and that move the padding of nested scopes, or drop it."""
    for at, scope in places(program):
        found = (Match(rule, at, params) for rule, params in _moves_of(_padding_moves, scope, position_of(at)))
        yield from (match for match in found if keeps_types(match, program))
        for n, access in enumerate(accesses(scope.body)):
            is_padded = isinstance(access.source, Scope) and any(map(any, access.source.padding))
            for params in (PaddedRead(n), PaddedFactors(n)) if is_padded else ():
                exchange = Match(PADDING_EXCHANGE, at, params)
                if accepted(exchange.rule.rewrite, program, at, params) and keeps_types(exchange, program):
                    yield exchange


def _padding_moves(program: Program, at: Path, scope: Scope) -> Iterable[LocalMove]:
    if accepted(DISTRIBUTIVITY.rewrite, program, at, Termwise()):
        yield DISTRIBUTIVITY, Termwise()
    is_nested = len(at) > 1 and _is_padded_value(scope)
    for x, (before, after) in zip(scope.traversals, scope.padding, strict=True) if is_nested else ():
        wider = Wider(((x, x.lo - before, x.hi + after),))
        if (before or after) and accepted(BOUNDARY_RELAXING.rewrite, program, at, wider):
            yield BOUNDARY_RELAXING, wider


def _in_bands(derivation: Derivation) -> Iterable[Derivation]:
    """Yield *derivation* with sums over a window in place of those that a condition confines to a band."""
    start = derivation
    while (match := next(iter(_bands(derivation.end)), None)) is not None:
        derivation = derivation.then(match)
    if derivation is not start:
        yield from _with_padded_factors(derivation)
        yield derivation


def _bands(program: Program) -> Iterable[Match[object]]:
    return _remembered(program, _band_moves)


def _band_moves(program: Program, at: Path, scope: Scope) -> Iterable[LocalMove]:
    if any(isinstance(part, Compare) for part in walk_scalar(scope.body)):
        narrow = tuple(window for window in sliding_windows(scope) if 2 * window[2] <= window[0].extent)
        tightening = Tightening(window=narrow)
        if accepted(BOUNDARY_TIGHTENING.rewrite, program, at, tightening):
            yield BOUNDARY_TIGHTENING, tightening


def _in_phases(derivation: Derivation) -> Iterable[Derivation]:
    """Yield *derivation* with each traversal divided that a quotient has together with a summation.

    A window of an upsampling reads at most two elements in each phase, whatever its size is.
    """
    divided = _repeated(derivation, _phases)
    if divided is not derivation:
        yield divided


def _phases(program: Program) -> Iterable[Match[object]]:
    for at, scope in places(program):
        atoms = [atom for index in read_indices(scope.body) for atom, _ in index.terms if isinstance(atom, Quotient)]
        windows = [atom for atom in atoms if not set(scope.summations).isdisjoint(atom.numerator.iterators)]
        for x, d in residue_divisors(scope, scope.traversals) if windows else ():
            is_read = any(x in atom.numerator.iterators and atom.divisor == d for atom in windows)
            if is_read and not x.lo and not x.extent % d:
                yield Match(VARIABLE_SUBSTITUTION, at, divide_iterator(scope, x, d))


def _in_blocks(derivation: Derivation) -> Iterable[Derivation]:
    """Yield *derivation* with a sum up to a position split into blocks, and the position into block and place."""
    derivation = _with_exponentials_in_one_sum(derivation)
    for at, scope in places(derivation.end):
        for s in scope.summations:
            if not accepted(last_summed, scope, s):
                continue
            position, whole = last_summed(scope, s)[0], tuple[int, ...]()
            if accepted(summed_end, scope, s):
                end = summed_end(scope, s)[0]
                position, whole = end.position, tuple(block_sizes(end, s))
            for size in _balanced_sizes(whole, position.bounds[1] - position.bounds[0] + 1):
                try:
                    split = _split_prefix(*_in_whole_blocks(derivation, at, position, s, size), Blocks(s, size))
                except Refused:
                    continue
                yield _with_decay_by_blocks(normalised(split))


def _balanced_sizes(whole: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return block sizes for *count* positions, near their square root: this balances the sums over and in blocks.

    They are among *whole*, the sizes without a rest, unless these are much smaller or larger.
    """

    def imbalance(size: int) -> float:
        return abs(log(size**2 / count))

    nearest = sorted(whole, key=imbalance)[:MAX_BLOCK_SIZES]
    if nearest and imbalance(nearest[0]) <= log(4):
        return tuple(nearest)
    root = isqrt(count)
    return tuple(size for size in (root, 1 << root.bit_length() - 1, 1 << root.bit_length()) if 1 < size <= count // 2)


def _in_whole_blocks(
    derivation: Derivation, at: Path, position: Index, s: Iterator, size: int
) -> tuple[Derivation, Path]:
    """Compute positions that are in no whole block in expressions of their own; return the place of the others.

    The others begin with a block, and end within the range of *s*.
    """
    x = (position - position.const).single
    if x is None or len(at) > 1:
        return derivation, at
    first = max(x.lo, -position.const)
    low = first + -(first + position.const) % size
    high = min(x.hi, s.hi - position.const)
    high -= (high - low) % size
    if cuts := tuple(cut for cut in (low, high) if x.lo < cut < x.hi):
        known = derivation.end.names()
        derivation = derivation.then(Match(EXPRESSION_SPLITTING, at, Cut(x, cuts)))
        made = (n for n, e in enumerate(derivation.end.equations) if e.name not in known)
        blocks = Iterator(x.name, low, high)
        at = (next((n for n in made if blocks in derivation.end.scope_at((n,)).traversals), at[0]),)
    if low:
        scope = derivation.end.scope_at(at)
        shifted = tuple((y.name, y - low if y.name == x.name else as_index(y)) for y in scope.traversals)
        derivation, at = derivation.then(Match(VARIABLE_SUBSTITUTION, at, Substitution(shifted))), (*at, 0)
    return derivation, at


def _split_prefix(derivation: Derivation, at: Path, blocks: Blocks) -> Derivation:
    """Divide the position, if it is one traversal and whole blocks, and the sum up to it."""
    scope = derivation.end.scope_at(at)
    position = summed_end(scope, blocks.summation)[0].position
    x = (position - position.const).single
    if x is not None and not (x.lo or x.extent % blocks.size or position.const % blocks.size):
        substitution = divide_iterator(scope, x, blocks.size)
        derivation, at = derivation.then(Match(VARIABLE_SUBSTITUTION, at, substitution)), (*at, 0)
    return derivation.then(Match(PREFIX_SPLITTING, at, blocks))


def _with_exponentials_in_one_sum(derivation: Derivation) -> Derivation:
    """Join nested sums that have an exponential as a factor, such as decay for each channel, with the sums around."""
    while True:
        for match in _matches(derivation.end, (DISTRIBUTIVITY,)):
            scope = derivation.end.scope_at(match.at)
            if isinstance(match.params, Inwards) and _has_exponential(quotient_factors(scope.body)[match.params.part]):
                derivation = derivation.then(match)
                break
        else:
            return derivation


def _has_exponential(factor: Scalar) -> bool:
    match factor:
        case Access(Scope(body=body)):
            return any(isinstance(part, Apply) and part.op == "exp" for part in factors(body))
    return False


def _with_decay_by_blocks(derivation: Derivation) -> Derivation:
    """Make decay between blocks relative to the end of the earlier one and to the beginning of the later one."""
    while True:
        found = _matches(derivation.end, (RECENTRING,))
        match = next((match for match in found if isinstance(match.params, Place)), None)
        if match is None:
            return derivation
        derivation = derivation.then(match)


def products_at_run_time(program: Program, among: Collection[str] | None = None) -> int:
    """Return how many products of two numbers *program* forms in a run (its equations called *among*; None: all).

    Equations that depend on weights only are not counted: they are computed once, before the first run.
    """
    constant = weight_only(program)
    counted = (e for e in program.equations if e.name not in constant and (among is None or e.name in among))
    return sum(count_products(e.scope) for e in counted)


def _substituted(derivation: Derivation) -> Iterable[Derivation]:
    """Yield *derivation* with one more multilinear intermediate substituted each time, until none is left.

    Element-wise work that joins element-wise work leaves every sum as it was, so what results is not yielded.
    """
    refused, is_new = set[str](), False
    for _ in range(MAX_SUBSTITUTIONS):
        program = derivation.end
        for name in _intermediates(program):
            if name not in refused:
                try:
                    further = normalised(substitute_intermediate(derivation, name))
                    break
                except Refused:
                    refused.add(name)
        else:
            break
        joined = (find_equation(program, name), *(program.equations[n] for n in readers(program, name)))
        if any(_term_count(further.end, e.name) > MAX_TERMS for e in joined[1:]):
            break
        derivation = further
        if is_new := any(s.summations for e in joined for _, s in scopes(e.scope)):
            yield derivation
    if not is_new and derivation.steps:
        yield derivation


def _term_count(program: Program, name: str) -> int:
    """Return how many terms the equation of *program* called *name* has, with those of its nested scopes."""
    return sum(len(terms(s.body)) for _, s in scopes(find_equation(program, name).scope))


def _intermediates(program: Program) -> Iterable[str]:
    """Yield the intermediates that can join the sums of products of all their readers, the last one first.

    Neither an exponential nor a sum in one is computed again for several reads.
    """
    for equation in reversed(program.equations):
        found = [program.equations[n] for n in readers(program, equation.name)]
        if not found or equation.name in program.outputs or not all(map(is_multilinear, (equation, *found))):
            continue
        is_repeated = equation.scope.summations and any(_is_exponent(equation.name, e.scope) for e in found)
        if not is_repeated and not (_exponentials(equation.scope) and _read_count(found, equation.tensor) > 1):
            yield equation.name


def _read_count(equations: Iterable[Equation], tensor: Tensor) -> int:
    """Return how often *equations*, with their nested scopes, read *tensor*."""
    every = (access.source for e in equations for _, s in scopes(e.scope) for access in accesses(s.body))
    return sum(source == tensor for source in every)


def _is_exponent(name: str, scope: Scope) -> bool:
    """Whether *scope* reads the tensor called *name* in an exponential, where a sum would be computed again."""
    read = (access.source for part in _exponentials(scope) for access in accesses(part))
    return any(isinstance(source, Tensor) and source.name == name for source in read)


def _exponentials(scope: Scope) -> tuple[Scalar, ...]:
    return tuple(part for part in walk_scalar(scope.body) if isinstance(part, Apply) and part.op == "exp")


def normalised(derivation: Derivation) -> Derivation:
    """Merge the scopes that sum nothing into their readers, and sum each term on its own, where it is not 0."""
    while True:
        derivation = _merged(derivation)
        match = next(iter(_towards_normal_form(derivation.end)), None)
        if match is None:
            return derivation
        derivation = derivation.then(match)


def _merged(derivation: Derivation) -> Derivation:
    for equation in derivation.end.equations:
        derivation = merge_scopes(derivation, equation.name)
    return derivation


def _towards_normal_form(program: Program) -> Iterable[Match[object]]:
    """Yield matches that sum terms on their own, or do not sum padding or what is not read; innermost scopes first."""
    return _remembered(program, _normal_moves, innermost_first=True)


def _normal_moves(program: Program, at: Path, scope: Scope) -> Iterable[LocalMove]:
    if accepted(DISTRIBUTIVITY.rewrite, program, at, Termwise()):
        yield DISTRIBUTIVITY, Termwise()
    yield from _tightenings(program, at, scope)
    yield from _mixed_radix(program, at, scope)
    found = TRAVERSAL_FACTORING.propose(program, at)
    yield from ((TRAVERSAL_FACTORING, params) for params in found if isinstance(params, Selection))


def _remembered(program: Program, moves: LocalMoves, innermost_first: bool = False) -> Iterable[Match[object]]:
    """Yield the *moves* in *program* as matches; equal equations, as most are after a step, are asked once."""
    for n, equation in _ordered(enumerate(program.equations), innermost_first):
        for rule, path, params in _moves_below(moves, equation.scope, innermost_first) if equation.via is None else ():
            match = Match(rule, (n, *path), params)
            if keeps_types(match, program):
                yield match


@lru_cache(MEMO_ENTRIES)
def _moves_below(
    moves: LocalMoves, root: Scope, innermost_first: bool
) -> LazySequence[tuple[Rule[object], Path, object]]:
    """Return the *moves* of the equation *root* and of the scopes below it."""

    def find() -> Iterable[tuple[Rule[object], Path, object]]:
        for path, scope in _ordered(scopes(root), innermost_first):
            yield from ((rule, path, params) for rule, params in _moves_of(moves, scope, position_of((0, *path))))

    return LazySequence(find)


def _ordered(items: Iterable[T], is_reversed: bool) -> Iterable[T]:
    return reversed(tuple(items)) if is_reversed else items


@lru_cache(MEMO_ENTRIES)
def _moves_of(moves: LocalMoves, scope: Scope, position: Position) -> LazySequence[LocalMove]:
    return LazySequence(lambda: moves(*host_program(scope, position), scope))


def _mixed_radix(program: Program, at: Path, scope: Scope) -> Iterable[LocalMove]:
    """Yield moves that sum over the quotient and the remainder of a summation, if all factors read these.

    Such as after a reshape: an index of joined heads or pixels becomes one for each dimension.
    """
    for y, d in residue_divisors(scope, scope.summations):
        if not y.lo and not y.extent % d:
            params = divide_iterator(scope, y, d)
            divided = VARIABLE_SUBSTITUTION.rewrite(program, at, params).scope_at(at)
            if _quotient_count(divided) < _quotient_count(scope):
                yield VARIABLE_SUBSTITUTION, params


def _quotient_count(scope: Scope) -> int:
    """Return how many quotients and remainders of summations the body of *scope* reads at."""
    atoms = (atom for index in read_indices(scope.body) for atom, _ in index.terms if not isinstance(atom, Iterator))
    return sum(not set(scope.summations).isdisjoint(atom.numerator.iterators) for atom in atoms)


def _tightenings(program: Program, at: Path, scope: Scope) -> Iterable[LocalMove]:
    """Yield moves that drop from the ranges of *scope* where it reads padding, and is 0."""
    if any(access.source.padding for access in accesses(scope.body)):
        found = BOUNDARY_TIGHTENING.propose(program, at)
        yield from ((BOUNDARY_TIGHTENING, params) for params in found if not params.window)


def _work_on_weights(program: Program) -> Iterable[Match[object]]:
    """Yield matches that shorten products of weights: in the cheapest order, and without zeros around windows."""
    return _remembered(program, _weight_moves)


def _weight_moves(program: Program, at: Path, scope: Scope) -> Iterable[LocalMove]:
    if len(at) == 1 or not reads_weights(scope.body):
        return
    yield from _tightenings(program, at, scope)
    flat = flatten_product(scope.body, scope.traversals, scope.summations)
    if scope.reduce == "sum" and flat.summations == scope.summations and 2 < len(flat.parts) <= MAX_FACTORS:
        order = Order(cheapest_tree(flat.reads, frozenset(scope.traversals)))
        if accepted(CONTRACTION_ORDER.rewrite, program, at, order):
            yield CONTRACTION_ORDER, order


def factored(derivation: Derivation) -> Derivation:
    """Apply the rules that factor until none applies, then make expressions of nested scopes, and share equal ones."""
    derivation = _in_single_sums(
        exhausted(derivation, (COMMON_FACTOR, LIKE_TERMS, TRAVERSAL_FACTORING, CONTRACTION_ORDER))
    )
    derivation = _repeated(derivation, _work_on_weights)
    derivation = _merged(exhausted(derivation, (EXPRESSION_EXTRACTION,)))
    return _repeated(_repeated(derivation, _conditions), _shared)


def exhausted(derivation: Derivation, rules: Iterable[Rule[object]]) -> Derivation:
    """Return *derivation* with *rules* applied until none of them applies."""
    return _repeated(derivation, lambda program: _matches(program, rules))


def _repeated(derivation: Derivation, matches: Callable[[Program], Iterable[Match[object]]]) -> Derivation:
    """Return *derivation* with the first of *matches* applied until there are none."""
    while (match := next(iter(matches(derivation.end)), None)) is not None:
        derivation = derivation.then(match)
    return derivation


def _in_single_sums(derivation: Derivation) -> Derivation:
    """Sum the elements of windows along one dimension after the other, as long as that takes fewer additions."""
    while True:
        found = min(_divided_sums(derivation), key=lambda d: products_at_run_time(d.end), default=derivation)
        if products_at_run_time(found.end) >= products_at_run_time(derivation.end):
            return derivation
        derivation = found


def _divided_sums(derivation: Derivation) -> Iterable[Derivation]:
    """Yield *derivation* with one sum of single elements split, whose inner sums several points of windows share.

    First those that leave the last dimension for the outer sum: its elements are contiguous.
    """
    for at, scope in places(derivation.end):
        if isinstance(scope.body, Access):
            for split in reversed(list(SUMMATION_SPLITTING.matches(derivation.end, at))):
                divided = derivation.then(split)
                for position in TRAVERSAL_FACTORING.matches(divided.end, (*at, 0)):
                    yield _merged(divided.then(position))


def _conditions(program: Program) -> Iterable[Match[object]]:
    """Yield matches that make a tensor of a condition, or of an exponential, that is one of several factors.

    A condition alone is known beforehand; an exponential would be computed again along the iterators that it lacks.
    """
    for at, scope in places(program):
        for number in _separate_parts(scope):
            match = Match(PART_EXTRACTION, at, Part(number))
            if accepted(match.rule.rewrite, program, at, match.params) and keeps_types(match, program):
                yield match


@lru_cache(MEMO_ENTRIES)
def _separate_parts(scope: Scope) -> tuple[int, ...]:
    """Return the numbers of the conditions and exponentials in *scope* that become tensors."""
    parts = tuple(walk_scalar(scope.body))
    if not any(isinstance(part, Apply) and part.op in ("where", "exp") for part in parts):
        return ()
    found = [factor for term in terms(scope.body) for factor in quotient_factors(term)]

    def is_separate(part: Scalar) -> bool:
        match part:
            case Apply("where", (Compare(), inside, Const(0))) if scope.summations:
                return not accesses(part) or (isinstance(inside, Apply) and inside.op == "exp")
            case Apply("exp"):
                return part in found and len(iterators_of(part)) < len(iterators_of(scope.body))
        return False

    return tuple(n for n, part in enumerate(parts) if is_separate(part)) if len(found) > 1 else ()


def _matches(program: Program, rules: Iterable[Rule[object]]) -> Iterable[Match[object]]:
    for rule in rules:
        if rule.local:
            yield from _remembered(program, _proposals(rule))
        else:
            for at, _ in places(program):
                yield from rule.matches(program, at)


@lru_cache(1 << 6)
def _proposals(rule: Rule[object]) -> LocalMoves:
    """Return what the local *rule* proposes as moves."""
    return lambda program, at, _: ((rule, params) for params in rule.propose(program, at))


def _shared(program: Program) -> Iterable[Match[object]]:
    for n in range(len(program.equations)):
        yield from COMMON_SUBEXPRESSION.matches(program, (n,))
