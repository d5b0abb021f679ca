r"""Layouts of a chain in which every product is one of vectors.

A product with a constant operand is computed in vectors of a traversal that moves only this operand (the output
channels of a convolution).  The constant is stored with that traversal last, and so is the result:

.. math::  Y[f, h, w] = \sum_c X[c, h, w]\, K[f, c] \;\mapsto\; Y'[h, w, f] = \sum_c X[c, h, w]\, K'[c, f]

Readers take the layout over: a depthwise convolution multiplies vectors of its channels.  Outputs keep their layout,
and the last stage of the chain transposes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from einnet_explore.analysis.equations import constant_tensors, equation_number, find_equation, weight_only
from einnet_explore.analysis.products import TensorContraction, is_contraction
from einnet_explore.ir import Access, Index, Iterator, Program, Scope, Tensor, accesses, as_index, scopes
from einnet_explore.operators.library import OPERATORS
from einnet_explore.pipeline.fusion import apply_rule, chain_in_blocks, generate_equation, is_named, sums_with_strides
from einnet_explore.rules import STORAGE_LAYOUT, VARIABLE_SUBSTITUTION, Derivation
from einnet_explore.rules.storage_layout import InputCopy, Stored
from einnet_explore.rules.variable_substitution import Substitution
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.vertical_fusion import in_normal_spelling
from einnet_explore.support.errors import Refused


def with_vector_layouts(program: Program) -> Derivation:
    """Return a derivation of *program* in which its products run along vectors; raises Refused if it has none."""
    derivation = in_normal_spelling(program, factors=False)
    vectors: dict[str, int] = {}
    found = False
    known = constant_tensors(derivation.end)
    for name in (e.name for e in derivation.end.equations if e.name not in known):
        scope = find_equation(derivation.end, name).scope
        x = _vector_traversal(derivation.end, scope, vectors)
        if x is None:
            continue
        found = True
        derivation = _store_inputs(derivation, name, x)
        order = (*(y for y in scope.traversals if y != x), x)
        if name in derivation.end.outputs:
            if scope.summations and _is_before_others(scope.traversals, x):
                turned = Substitution(tuple((f"{y.name}v", as_index(y)) for y in order))
                derivation = apply_rule(derivation, VARIABLE_SUBSTITUTION, name, turned)
            continue
        if order != scope.traversals:
            derivation = apply_rule(
                derivation, STORAGE_LAYOUT, name, Stored(tuple((y.name, as_index(y)) for y in order))
            )
        vectors[name] = len(order) - 1
    if not found:
        raise Refused("no product has a constant operand with a traversal of its own")
    return derivation


def products_in_vectors(program: Program) -> Derivation | None:
    """Derive *program* with its products in vectors, a kernel for each equation; None if none reads with strides.

    The kernel of a product of its own gathers its input once.  A chain in blocks reads strided elements again for every
    tile of columns, from lines of which it uses a part.
    """
    try:
        derivation = with_vector_layouts(program)
        if not any(sums_with_strides(e.scope) for e in derivation.end.equations):
            return None
        for e in derivation.end.equations:
            if e.via is None:
                derivation = _generate_or_match(derivation, e.name)
    except Refused:
        return None
    return derivation


def _generate_or_match(derivation: Derivation, name: str) -> Derivation:
    """Generate the equation called *name*, or match a product without a stage before it; raises Refused."""
    try:
        return generate_equation(derivation, name)
    except Refused as why:
        before = derivation.end
        for match in matching_rule(OPERATORS).matches(before, (equation_number(before, name),)):
            if is_named(match.params.operator, "Matmul"):
                derivation = derivation.then(match)
                opened = [e.name for e in derivation.end.equations if e.via is None and e.name not in before.names()]
                for other in opened:
                    derivation = generate_equation(derivation, other)
                return derivation
        raise why from None


def _vector_traversal(program: Program, scope: Scope, vectors: Mapping[str, int]) -> Iterator | None:
    """Return the traversal of *scope* that vectors run along, or None; *vectors* has the dimensions of its sources."""
    try:
        product = TensorContraction.of(scope)
    except Refused:
        pass
    else:
        known = constant_tensors(program)
        sides = ((product.left, product.m), (product.right, product.n))
        own = [x for read, group in sides if _name(read) in known for x in group if x.extent > 1]
        both = [
            x
            for x in product.batch
            if x.extent > 1 and not {_name(product.left), _name(product.right)} & vectors.keys()
        ]
        if own or both:
            return max(own or both, key=lambda x: x.extent)
    for access in accesses(scope.body):
        if (dimension := vectors.get(_name(access))) is not None:
            moving = _moving(access.index[dimension])
            if len(moving) == 1 and moving[0] in scope.traversals:
                return moving[0]
    return None


def _name(access: Access) -> str:
    return access.source.name if isinstance(access.source, Tensor) else ""


def _moving(index: Index) -> tuple[Iterator, ...]:
    return tuple(x for x in index.iterators if x.extent > 1)


def _is_before_others(traversals: tuple[Iterator, ...], x: Iterator) -> bool:
    return any(y.extent > 1 for y in traversals[traversals.index(x) + 1 :])


def _store_inputs(derivation: Derivation, name: str, x: Iterator) -> Derivation:
    """Store the operands of a product that *x* moves, inputs that the equation called *name* reads, with *x* last."""
    inputs = {t.name: t for t in derivation.end.inputs}
    scope = find_equation(derivation.end, name).scope
    products = (inner for _, inner in scopes(scope) if inner.summations)
    for access in dict.fromkeys(a for inner in products for a in accesses(inner.body) if _name(a) in inputs):
        at = [d for d, index in enumerate(access.index) if x in index.iterators]
        shape = inputs[_name(access)].shape
        if len(at) == 1 and any(n > 1 for n in shape[at[0] + 1 :]):
            others = tuple(d for d in range(len(shape)) if d != at[0])
            if inputs[_name(access)].weight:  # the longest sum is innermost
                others = tuple(sorted(others, key=lambda d: shape[d]))
            derivation = apply_rule(derivation, STORAGE_LAYOUT, name, InputCopy(_name(access), (*others, at[0])))
    return derivation


@lru_cache(256)  # layers of one model are often equal, and partition, order and tuning ask
def chain_in_vectors(program: Program) -> Derivation | None:
    """Derive one kernel in blocks for each output of *program*, in vectors; None if no output has one."""
    try:
        return chain_in_blocks(with_vector_layouts(program))
    except Refused:
        return None


def is_chain_in_vectors(program: Program) -> bool:
    """Whether one kernel in blocks computes *program*."""
    found = chain_in_vectors(program)
    return found is not None and len(found.end.equations) == 1 + len(weight_only(found.end))


def is_fixed_chain(program: Program) -> bool:
    """True if one kernel in blocks computes several contractions of *program*, which is then not searched.

    A contraction of few products for each element, such as a depthwise convolution, is one of them.
    """
    return sum(is_contraction(e.scope) for e in program.equations) > 1 and chain_in_vectors(program) is not None
