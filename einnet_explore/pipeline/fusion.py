r"""Post-optimisation: fusion of eOperators (EinNet §6.3, Fig. 11 and 14), and of chains across contractions, by rules.

A chain of memory-bound equations reads and writes memory once for every link.  ``fuse_eoperators`` makes one kernel of
two in two cases:

* an intermediate that *computes* something is substituted into its reader, if no element is computed twice: one
  equation reads it, each of its points another element (in a diamond the branches are fused first, and all reads are
  of the same element);
* an intermediate that only *moves* elements is read through by each of its readers.  A transform and its inverse then
  leave nothing but a copy, and a copy is its source.  An intermediate whose elements a sum reads several times along
  another dimension than memory stays: it is moved once, so that the sum reads vectors.

That fusion stops at every contraction, where an element would be computed twice.  An equation that shares a traversal
with the result can still be computed block by block, without writing it whole.  ``chain_in_blocks`` fuses transform,
product and transform in four steps:

1. merge a reshape into its reader;
2. store the weights of products in panels, so that vectors run along the product's last traversal;
3. substitute every equation that only one other reads, down to the result;
4. generate the whole in blocks (``rules/generation.py``).

Measurement decides between the two forms.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import gcd, prod

from einnet_explore.analysis.counts import is_transposed_for, reads_once
from einnet_explore.analysis.equations import (
    constant_tensors,
    equation_number,
    find_equation,
    is_generated,
    tensor_names,
    weight_only,
)
from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.analysis.fused_chain import Stage
from einnet_explore.analysis.products import match_integer_product, multiplies_bytes
from einnet_explore.analysis.regions import bijection
from einnet_explore.codegen.fused_tiling.block_sizes import choose_parts, parts_cycles, tileable_chain
from einnet_explore.codegen.register_tiles import this_machine
from einnet_explore.ir import (
    VIEW,
    Access,
    EOperatorKind,
    Equation,
    Index,
    Iterator,
    Program,
    Scope,
    Tensor,
    accesses,
    as_index,
    scopes,
    tensors,
)
from einnet_explore.operators.library import OPERATORS
from einnet_explore.rules import (
    BLOCKED_GENERATION,
    COMMON_SUBEXPRESSION,
    DEAD_EQUATION,
    EOPERATOR_GENERATION,
    EXPRESSION_FUSION,
    EXPRESSION_INLINING,
    STORAGE_LAYOUT,
    Derivation,
    Match,
    Rule,
)
from einnet_explore.rules.expression_fusion import Intermediate
from einnet_explore.rules.generation import BLOCKED
from einnet_explore.rules.storage_layout import Stored
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.moves import merge_scopes
from einnet_explore.support.errors import Refused


def apply_rule(derivation: Derivation, rule: Rule[object], name: str, params: object) -> Derivation:
    """Apply *rule* at the equation called *name*; raises Refused."""
    return derivation.then(Match(rule, (equation_number(derivation.end, name),), params))


def readers_by_name(program: Program) -> Mapping[str, tuple[str, ...]]:
    """Return the equations that read each tensor, by name."""
    found: dict[str, tuple[str, ...]] = {}
    for e in program.equations:
        for name in tensor_names(e.scope):
            found[name] = (*found.get(name, ()), e.name)
    return found


def generate_equation(derivation: Derivation, name: str) -> Derivation:
    """Generate the equation called *name* as an eOperator or view, or as a chain in blocks; raises Refused."""
    at = (equation_number(derivation.end, name),)
    try:
        return derivation.then(EOPERATOR_GENERATION.match(derivation.end, at))
    except Refused as why:
        try:
            return derivation.then(BLOCKED_GENERATION.match(derivation.end, at))
        except Refused:
            raise why from None


def match_library_again(derivation: Derivation, name: str, operator: str) -> Derivation:
    """Match the equation called *name* to *operator* again; raises Refused if that takes other computation."""
    program = derivation.end
    at = (equation_number(program, name),)
    for match in matching_rule(OPERATORS).matches(program, at):
        if is_named(match.params.operator, operator):
            longer = derivation.then(match)
            new = [e for e in longer.end.equations if e.name not in program.names() or e.name == name]
            calls = [e for e in new if not is_generated(e)]
            if len(calls) == 1 and all(e.via and e.via.operator == VIEW for e in new if e is not calls[0]):
                return longer
    raise Refused(f"{name} is no {operator} in this layout")


def is_named(pattern: str, operator: str) -> bool:
    """Whether *operator* is a name of the operator called *pattern*."""
    return any(pattern in o.names and operator in o.names for o in OPERATORS)


@dataclass(frozen=True, slots=True)
class FusionResult:
    """A derivation that has been fused to the end, and why each remaining pair (source, reader) was refused."""

    derivation: Derivation
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)


def fuse_eoperators(derivation: Derivation) -> Derivation:
    """Fuse eOperators until none can be fused; remove duplicate and dead equations."""
    return fuse_with_refusals(derivation).derivation


def fuse_with_refusals(derivation: Derivation) -> FusionResult:
    """Fuse as ``fuse_eoperators`` does, and report refused pairs."""
    while True:
        derivation = share_results(derivation)
        refused: dict[tuple[str, str], str] = {}
        longer = _fuse_one_pair(derivation, refused)
        if longer is None:
            return FusionResult(derivation, refused)
        derivation = longer


def share_results(derivation: Derivation) -> Derivation:
    """Compute duplicates once, read copies at their source, and remove dead equations."""
    while True:
        before = derivation
        for n in range(len(before.end.equations)):
            derivation = _apply_first(derivation, COMMON_SUBEXPRESSION, n)
        for n in reversed(range(len(derivation.end.equations))):  # what only the dead read is dead too
            derivation = _apply_first(derivation, DEAD_EQUATION, n)
        if derivation is before:
            return derivation


def _apply_first(derivation: Derivation, rule: Rule[object], n: int) -> Derivation:
    """Apply the first match of *rule* at equation *n*, if there is one."""
    if n < len(derivation.end.equations):
        for match in rule.matches(derivation.end, (n,)):
            return derivation.then(match)
    return derivation


def _fuse_one_pair(derivation: Derivation, refused: dict[tuple[str, str], str]) -> Derivation | None:
    """Fuse one pair; None if there is none, with the reasons in *refused*."""
    program = derivation.end
    made = {e.name: e for e in program.equations}
    known = weight_only(program)
    for name, found in readers_by_name(program).items():
        if name in made and is_generated(made[name]):
            for reader in found:
                if name in known and is_blocked_chain(made[reader]):
                    refused[name, reader] = f"{name} is computed at compile time, in the layout that {reader} reads"
                elif is_generated(made[reader]):
                    try:
                        return _fuse_pair(derivation, made[name], made[reader])
                    except Refused as why:
                        refused[name, reader] = str(why)
    return None


def _fuse_pair(derivation: Derivation, source: Equation, reader: Equation) -> Derivation:
    """Fuse *source* into *reader*; raises Refused."""
    if is_movement(source):
        if is_transposed_for(source, reader):
            raise Refused(f"{reader.name} sums elements of {source.name} several times, so they are transposed once")
        return _read_through(derivation, source, reader)
    if reader.via is None or not reader.via.is_eoperator:
        raise Refused(f"{reader.name} is a view, it computes nothing")
    if match_integer_product(source.scope) is not None:
        raise Refused(f"{source.name} multiplies bytes: compilation measures whether {reader.name} is its epilogue")
    products = {e.name for e in derivation.end.equations if match_integer_product(e.scope) is not None}
    if all(products.intersection(tensor_names(e.scope)) for e in (source, reader)):
        raise Refused(f"{source.name} and {reader.name} read products of bytes, which have an epilogue each")
    check_no_recomputation(source, reader)
    longer = apply_rule(derivation, EXPRESSION_FUSION, reader.name, Intermediate(source.name))
    merged = merge_scopes(longer, reader.name)
    if sums_with_strides(source.scope):  # a chain in blocks would gather its elements again for every tile of columns
        return merged.then(EOPERATOR_GENERATION.match(merged.end, (equation_number(merged.end, reader.name),)))
    return generate_equation(merged, reader.name)


def sums_with_strides(scope: Scope) -> bool:
    """True if *scope* is a sum that reads elements which are not neighbours along one of its traversals."""
    moves = ((x, i.coefficient(x)) for a in accesses(scope.body) for i in a.index for x in i.iterators)
    return bool(scope.summations) and any(abs(k) > 1 and x in scope.traversals and x.extent > 1 for x, k in moves)


def is_blocked_chain(e: Equation) -> bool:
    """Whether *e* is a chain that runs block by block."""
    return e.via == BLOCKED


def is_movement(e: Equation) -> bool:
    """Whether *e* only re-indexes one tensor."""
    return not e.scope.summations and isinstance(e.scope.body, Access) and not isinstance(e.scope.body.source, Scope)


def check_no_recomputation(source: Equation, reader: Equation) -> None:
    """Raise Refused if *reader* would compute elements of *source* more than once."""
    reads = {a for _, scope in scopes(reader.scope) for a in accesses(scope.body) if _is_read_of(a, source)}
    if len(reads) > 1:
        raise Refused(
            f"{reader.name} reads {source.name} at {len(reads)} places: {', '.join(sorted(map(repr, reads)))}"
        )
    read = next(iter(reads))
    if read not in set(accesses(reader.scope.body)):
        raise Refused(f"a scope inside {reader.name} reads {source.name}")
    if not reads_each_once(reader.scope, read):
        raise Refused(f"{reader.name} reads elements of {source.name} again at {read!r}")


def _is_read_of(access: Access, source: Equation) -> bool:
    return isinstance(access.source, Tensor) and access.source.name == source.name


def reads_each_once(reader: Scope, access: Access) -> bool:
    """Whether *reader* reads every element at most once through *access*: the index is injective."""
    if reads_once(reader, access):
        return True
    own = tuple(x for x in (*reader.traversals, *reader.summations) if x.extent > 1)
    moving = tuple(i for i in access.index if i.iterators)
    if {x for i in moving for x in i.iterators if x.extent > 1} != set(own):
        return False
    plain = tuple(i.substitute(lambda x: x if x.extent > 1 else x.lo) for i in moving)
    try:
        bijection(own, tuple(f"z{n}" for n in range(len(plain))), plain)
    except ValueError:
        return False
    return True


def _read_through(derivation: Derivation, source: Equation, reader: Equation) -> Derivation:
    """Let *reader* read through *source*, a re-indexing; a view does so only if it stays one or is the only reader."""
    alone = readers_by_name(derivation.end)[source.name] == (reader.name,) and source.name not in derivation.end.outputs
    longer = (
        apply_rule(derivation, EXPRESSION_FUSION, reader.name, Intermediate(source.name))
        if alone
        else apply_rule(derivation, EXPRESSION_INLINING, reader.name, Intermediate(source.name))
    )
    longer = generate_equation(merge_scopes(longer, reader.name), reader.name)
    became = find_equation(longer.end, reader.name)
    was_view = reader.via is not None and reader.via.operator == VIEW
    is_view = became.via is not None and became.via.operator == VIEW
    if was_view and not is_view and not alone:
        raise Refused(f"{reader.name} would no longer be a view, and others read {source.name}")
    return longer


PANEL_VECTORS = 2
"""Vectors of columns of a product that are stored together, for every step of its sum: those of most tiles, read in one
stream.  A panel has one vector at least; a product with other columns is stored in rows."""


def chain_in_blocks(derivation: Derivation) -> Derivation | None:
    """Derive one blocked kernel for each output of *derivation* where possible; None if no output has one.

    Products of bytes have kernels of their own, with instructions that a blocked kernel has not.
    """
    if any(multiplies_bytes(e.scope) for e in derivation.end.equations):
        return None
    done = derivation
    for name in derivation.end.outputs:
        with suppress(Refused):
            done = _chain_output(done, name)
    return None if done is derivation else done


def _chain_output(derivation: Derivation, name: str) -> Derivation:
    """Derive one blocked kernel for output *name*; raises Refused."""
    if name not in {e.name for e in derivation.end.equations}:
        raise Refused(f"{name} is an input")
    fused = _store_in_panels(_merge_reshapes(derivation, name))
    while (source := next(iter(_sole_intermediates(fused.end, name)), None)) is not None:
        fused = apply_rule(fused, EXPRESSION_FUSION, name, Intermediate(source))
    if not runs_in_blocks(find_equation(fused.end, name).scope):
        raise Refused(f"{name} has no vectorised products")
    return _generate_constants(apply_rule(fused, BLOCKED_GENERATION, name, None))


def _generate_constants(derivation: Derivation) -> Derivation:
    """Generate the open equations that move weights, which a chain reads as arrays."""
    known = constant_tensors(derivation.end)
    for e in derivation.end.equations:
        if e.name in known and e.via is None and is_movement(e):
            derivation = generate_equation(derivation, e.name)
    return derivation


def runs_in_blocks(scope: Scope) -> bool:
    """Whether there is a kernel with vectorised products for *scope*."""
    return tileable_chain(scope, this_machine()) is not None


def chain_cycles(program: Program, threads: int) -> float:
    """Estimate the cycles of the kernels in blocks of *program*."""
    machine = this_machine()
    scopes_in_blocks = (e.scope for e in program.equations if e.via and e.via.eoperator_kind is EOperatorKind.BLOCKED)
    chains = [chain for scope in scopes_in_blocks if (chain := tileable_chain(scope, machine)) is not None]
    return sum(parts_cycles(choose_parts(chain, threads, machine), threads, machine) for chain in chains)


def _merge_reshapes(derivation: Derivation, name: str) -> Derivation:
    """Merge every reshape on the way to the equation called *name* into its only reader."""
    while (pair := next(_find_reshapes(derivation.end, name), None)) is not None:
        source, reader = pair
        derivation = merge_scopes(apply_rule(derivation, EXPRESSION_FUSION, reader, Intermediate(source)), reader)
    return derivation


def _find_reshapes(program: Program, name: str) -> Generator[tuple[str, str]]:
    found, known = readers_by_name(program), constant_tensors(program)
    for e in program.equations:
        if e.name not in known and e.name not in program.outputs and _is_reshape(e.scope):
            (reader, *others) = found[e.name]
            if not others:
                yield e.name, reader


def _is_reshape(scope: Scope) -> bool:
    if scope.padding or view_strides(scope) != (0, row_major_strides(scope.shape)):
        return False
    (read,) = accesses(scope.body)
    return prod(read.source.shape) == prod(scope.shape)


def _sole_intermediates(program: Program, name: str) -> Iterable[str]:
    """Yield the equations that only the one called *name* reads and that are not known at compile time."""
    found, known = readers_by_name(program), constant_tensors(program)
    made = {e.name for e in program.equations} - known - set(program.outputs)
    for tensor in tensors(find_equation(program, name).scope):
        if tensor.name in made and found[tensor.name] == (name,):
            yield tensor.name


def _store_in_panels(derivation: Derivation) -> Derivation:
    """Store the weights of products in panels, if they are equations of their own."""
    known = constant_tensors(derivation.end)
    made = {e.name for e in derivation.end.equations} & known
    for e in derivation.end.equations:
        if e.name in known or not Stage(e.name, e.scope).product:
            continue
        for access in accesses(e.scope.body):
            match access.source:
                case Tensor(weight) if weight in made and readers_by_name(derivation.end)[weight] == (e.name,):
                    phi = _panel_layout(
                        find_equation(derivation.end, weight).scope.traversals, access, e.scope.traversals[-1]
                    )
                    with suppress(Refused):
                        if phi:
                            derivation = apply_rule(derivation, STORAGE_LAYOUT, weight, Stored(phi))
                            if not is_movement(find_equation(derivation.end, weight)):  # that might become a view
                                derivation = generate_equation(derivation, weight)
    return derivation


def _panel_layout(own: tuple[Iterator, ...], access: Access, last: Iterator) -> tuple[tuple[str, Index], ...]:
    """Return Φ that puts panels of *last* innermost; empty if *last* is no dimension, or is innermost already."""
    at = [d for d, i in enumerate(access.index) if i.single == last]
    lanes = this_machine().lanes
    most = PANEL_VECTORS * lanes
    few = most if last.extent % most == 0 else 2 * most
    if len(at) != 1 or (at[0] == len(own) - 1 and last.extent <= few):
        return ()
    k = own[at[0]]
    sums = own[-1] if own[-1] != k else own[-2]
    width = gcd(k.extent, most)
    width = width if width >= lanes else k.extent
    others = tuple((x.name, as_index(x)) for x in own if x not in (k, sums))
    names = {x.name for x in own}
    outer, inner = (next(n for n in (f"{k.name}{c}", f"{k.name}{c}{c}") if n not in names) for c in "oi")
    whole = ((inner, as_index(k)),) if width == k.extent else ((inner, k % width),)
    panel = () if width == k.extent else ((outer, k // width),)
    return (*others, *panel, (sums.name, as_index(sums)), *whole)
