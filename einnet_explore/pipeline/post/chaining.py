r"""Fused tiling of chains across contractions: transform, product and transform as one kernel, block by block.

Fusion stops at every contraction, where an element would be computed twice.  An equation that shares a traversal with
the result can still be computed block by block, without writing it whole:

1. a reshape is merged into its reader;
2. weights of products are stored in panels, so that vectors run along the product's last traversal;
3. every equation that only one other reads, down to the result, is substituted into it;
4. the whole is generated in blocks (``rules/blocked_generation.py``).

Every step is a rule like any other; which of the two forms is run is measured.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from math import gcd, prod

from einnet_explore.analysis.equations import constant_tensors
from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.analysis.fused_chain import Stage
from einnet_explore.codegen.fused_tiling.block_sizes import tileable_chain
from einnet_explore.codegen.machine import this_machine
from einnet_explore.ir import Access, Index, Iterator, Program, Scope, Tensor, accesses, as_index, tensors
from einnet_explore.pipeline.post.steps import (
    apply_rule,
    equation_named,
    generate_equation,
    merge_scopes,
    readers_by_name,
)
from einnet_explore.rules import BLOCKED_GENERATION, EXPRESSION_FUSION, STORAGE_LAYOUT, Derivation
from einnet_explore.rules.base import NoParameters
from einnet_explore.rules.expression_fusion import Intermediate
from einnet_explore.rules.storage_layout import Stored
from einnet_explore.support.errors import Refused

PANEL_COLUMNS = 64
"""Columns of a product that are stored together, for every step of its sum."""


def chain_in_blocks(derivation: Derivation) -> Derivation | None:
    """Derive one blocked kernel for each output of *derivation* where possible; None if no output has one."""
    done = derivation
    for name in derivation.end.outputs:
        with suppress(Refused):
            done = _chained(done, name)
    return None if done is derivation else done


def _chained(derivation: Derivation, name: str) -> Derivation:
    """Derive one blocked kernel for output *name*; raises Refused."""
    if name not in {e.name for e in derivation.end.equations}:
        raise Refused(f"{name} is an input")
    fused = _panelled(_reshapes_merged(derivation, name))
    while (source := next(iter(_alone(fused.end, name)), None)) is not None:
        fused = apply_rule(fused, EXPRESSION_FUSION, name, Intermediate(source))
    if not runs_in_blocks(equation_named(fused.end, name).scope):
        raise Refused(f"{name} has no vectorised products")
    return apply_rule(fused, BLOCKED_GENERATION, name, NoParameters())


def runs_in_blocks(scope: Scope) -> bool:
    """Whether there is a kernel with vectorised products for *scope*."""
    return tileable_chain(scope, this_machine()) is not None


def _reshapes_merged(derivation: Derivation, name: str) -> Derivation:
    """Merge every reshape on the way to the equation called *name* into its only reader."""
    while (pair := next(_reshapes(derivation.end, name), None)) is not None:
        source, reader = pair
        derivation = merge_scopes(apply_rule(derivation, EXPRESSION_FUSION, reader, Intermediate(source)), reader)
    return derivation


def _reshapes(program: Program, name: str) -> Generator[tuple[str, str]]:
    found, known = readers_by_name(program), constant_tensors(program)
    for e in program.equations:
        if e.name not in known and e.name not in program.outputs and _reshape(e.scope):
            (reader, *others) = found[e.name]
            if not others:
                yield e.name, reader


def _reshape(scope: Scope) -> bool:
    if scope.padding or view_strides(scope) != (0, row_major_strides(scope.shape)):
        return False
    (read,) = accesses(scope.body)
    return prod(read.source.shape) == prod(scope.shape)


def _alone(program: Program, name: str) -> Iterable[str]:
    """Yield the equations that only the one called *name* reads and that are not known at compile time."""
    found, known = readers_by_name(program), constant_tensors(program)
    made = {e.name for e in program.equations} - known - set(program.outputs)
    for tensor in tensors(equation_named(program, name).scope):
        if tensor.name in made and found[tensor.name] == (name,):
            yield tensor.name


def _panelled(derivation: Derivation) -> Derivation:
    """Store the weights of products in panels, if they are equations of their own."""
    known = constant_tensors(derivation.end)
    made = {e.name for e in derivation.end.equations} & known
    for e in derivation.end.equations:
        if e.name in known or not Stage(e.name, e.scope).product:
            continue
        for access in accesses(e.scope.body):
            match access.source:
                case Tensor(weight) if weight in made and readers_by_name(derivation.end)[weight] == (e.name,):
                    phi = _panels(
                        equation_named(derivation.end, weight).scope.traversals, access, e.scope.traversals[-1]
                    )
                    with suppress(Refused):
                        if phi:
                            derivation = apply_rule(derivation, STORAGE_LAYOUT, weight, Stored(phi))
                            derivation = generate_equation(derivation, weight)
    return derivation


def _panels(own: tuple[Iterator, ...], access: Access, last: Iterator) -> tuple[tuple[str, Index], ...]:
    """Return Φ that puts panels of *last* innermost; empty if *last* is no dimension, or is innermost already."""
    at = [d for d, i in enumerate(access.index) if i.single == last]
    if len(at) != 1 or (at[0] == len(own) - 1 and last.extent <= PANEL_COLUMNS):
        return ()
    k = own[at[0]]
    sums = own[-1] if own[-1] != k else own[-2]
    width = gcd(k.extent, PANEL_COLUMNS)
    width = width if width >= PANEL_COLUMNS // 4 else k.extent
    others = tuple((x.name, as_index(x)) for x in own if x not in (k, sums))
    names = {x.name for x in own}
    outer, inner = (next(n for n in (f"{k.name}{c}", f"{k.name}{c}{c}") if n not in names) for c in "oi")
    whole = ((inner, as_index(k)),) if width == k.extent else ((inner, k % width),)
    panel = () if width == k.extent else ((outer, k // width),)
    return (*others, *panel, (sums.name, as_index(sums)), *whole)
