"""Joins of nodes into groups, each of which becomes a subprogram.

Contractions that may merge (horizontal fusion, Fig. 3 and Fig. 15) are joined into one subprogram, which keeps its
parts: siblings, which read one value in a way that sibling merging accepts, and their followers in parallel, with equal
sizes and no activation in between.

Two contractions are joined with the work on rows between them (a softmax between scores and values) if vertical fusion
finds one kernel for all of it.  The nodes of a multilinear region (products, sums, averages, scalings and moved
elements, without a function in between) are joined if factoring across their expressions leaves fewer products.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache, partial
from itertools import combinations, permutations
from math import prod

from einnet_explore.analysis.counts import ELEMENT_BYTES, is_compute_bound
from einnet_explore.analysis.products import TensorContraction, describe_nonlinearity
from einnet_explore.codegen.register_tiles import this_machine
from einnet_explore.ir import (
    ELEMENT_TYPES,
    Access,
    Apply,
    Equation,
    Program,
    Scope,
    scopes,
    split_constants,
    tensors,
)
from einnet_explore.onnx_import.node_call import assemble
from einnet_explore.pipeline.fusion import chain_cycles
from einnet_explore.pipeline.node_groups import CHEAP_KINDS, NodeGroups
from einnet_explore.pipeline.subprogram import anonymize
from einnet_explore.pipeline.vector_layouts import chain_in_vectors, is_chain_in_vectors
from einnet_explore.rules import SIBLING_MERGING
from einnet_explore.rules.sibling_merging import Siblings
from einnet_explore.strategies.factoring import factorings, products_at_run_time
from einnet_explore.strategies.vertical_fusion import generate_rest, vertical_fusions
from einnet_explore.support.errors import Refused

ROW_WORK_KINDS = ("elementwise", "activation", "layout", "reduction")
"""Kinds of work on rows that may stand between two contractions."""


def join_rows(units: NodeGroups) -> None:
    """Join two contractions and the nodes between them if all of it is work on rows."""
    for last in units.understood:
        if units.kind(last) == "contraction":
            group = _without_siblings_layouts(units, _nodes_between(units, last))
            if sum(units.kind(n) == "contraction" for n in group) == 2:
                moved = group | _moves_after(units, last)
                units.join_all(next((g for g in (moved, group) if _fuses(units, units.program_of(g))), set()))


def _fuses(units: NodeGroups, program: Program) -> bool:
    return units.memory.holds("fuses into one kernel", str(program), lambda: fuses_into_one(program))


@lru_cache(256)  # layers of one model are often equal
def fuses_into_one(program: Program) -> bool:
    """Whether vertical fusion leaves one compute-bound kernel and nothing open."""
    found = vertical_fusions(program, is_wanted=lambda fused: _contraction_count(fused) == 1)
    finished = (done for fused in found if (done := generate_rest(fused)) is not None)
    return any(_contraction_count(done.end) == 1 for done in finished)


def _contraction_count(program: Program) -> int:
    return sum(is_compute_bound(e.scope) for e in program.equations)


def _nodes_between(units: NodeGroups, last: int) -> set[int]:
    """Return *last*, the nodes that only it reads back to another contraction, and re-indexings before either.

    Nodes that scale an operand of the other contraction join too: they scale its result as well.
    """
    group, waiting = {last}, [last]
    while waiting:
        n = waiting.pop()
        for source in sorted(units.before[n] - group):
            front = n == last or units.kind(n) in ROW_WORK_KINDS
            inside = front and not _is_complete(units, group)
            kinds = (*ROW_WORK_KINDS, "contraction") if inside else ("layout",)
            alone = units.after[source] <= group and len(units.model.nodes[source].results) == 1
            scales = n != last and not inside and _is_scaling(units.understood.get(source, ()))
            fits = scales or units.kind(source) in kinds
            if alone and fits and len(units.members[units.of[source]]) == 1:
                group.add(source)
                waiting.append(source)
    return group


def _moves_after(units: NodeGroups, last: int) -> set[int]:
    """Return the re-indexings of the result of *last*, each the only reader of the one before."""
    found = set[int]()
    while len(units.after[last]) == 1:
        (last,) = units.after[last]
        if units.kind(last) != "layout" or not units.free(last):
            break
        found.add(last)
    return found


def _is_scaling(equations: tuple[Equation, ...]) -> bool:
    """Whether *equations* are the product of one read and constants."""
    match [e.scope for e in equations]:
        case [Scope(summations=(), body=Apply("*", parts))]:
            _, others = split_constants(parts)
            return len(others) == 1 and isinstance(others[0], Access)
    return False


def _without_siblings_layouts(units: NodeGroups, group: set[int]) -> set[int]:
    """Return *group* without re-indexings of the results of contractions that have siblings.

    They stay with the siblings: parts of a merged product (the heads of Q, K and V) are re-indexed as they are cut.
    """
    front: set[int] = set()
    for n in sorted(group):
        if units.kind(n) == "layout" and units.before[n] & group <= front:
            front.add(n)
    return {n for n in group if n not in front or not _has_sibling(units, n)}


def _has_sibling(units: NodeGroups, n: int) -> bool:
    """Whether cheap nodes alone lead from a contraction to node *n*, and it merges with another of the same input."""
    while units.kind(n) in CHEAP_KINDS and len(units.before[n]) == 1:
        (n,) = units.before[n]
    if units.kind(n) != "contraction":
        return False
    read = {name for name in units.model.nodes[n].reads if name not in units.model.weights}
    others = (m for m in units.understood if m != n and units.kind(m) == "contraction")
    return any(
        not read.isdisjoint(units.model.nodes[m].reads)
        and _are_mergeable(units, units.understood[n], units.understood[m])
        for m in others
    )


def _is_complete(units: NodeGroups, group: set[int]) -> bool:
    """Whether *group* holds both contractions."""
    return sum(units.kind(n) == "contraction" for n in group) > 1


MAX_PRODUCT_SHARE = 0.9
"""A region is joined if factoring across its expressions leaves less than this part of the products."""

MAX_REGION_NODES = 64
"""A region with more nodes is cut at the smallest tensors."""


def join_products(units: NodeGroups) -> dict[int, str]:
    """Join the nodes of each multilinear region that factoring across expressions replaces with fewer products.

    Return the nodes before which the regions of contractions end, and why.
    """
    inside, ends = set[int](), dict[int, str]()
    for last in sorted(units.understood, reverse=True):
        region, found = _multilinear_region(units, last)
        if last not in inside and any(units.kind(n) == "contraction" for n in region):
            inside |= region
            ends |= found
        if len(region) > 1 and any(units.kind(n) == "contraction" for n in region):
            owners = [n for n in sorted(region) for _ in units.understood[n]]
            program = units.program_of(region)
            numbers = units.memory.numbers("is factored", str(program), partial(factored_equations, program))
            joined = {owners[number] for number in numbers if number < len(owners)}
            if any(units.kind(n) == "contraction" for n in joined):
                units.join_all(_without_front(units, joined))
    return ends


def _without_front(units: NodeGroups, nodes: set[int]) -> set[int]:
    """Return *nodes* without scalings and shifts before the others: what computes their operands does these as well."""
    left = set(nodes)
    for n in sorted(nodes):
        operands = [name for name in units.model.nodes[n].reads if name not in units.model.weights]
        if units.kind(n) == "elementwise" and len(operands) == 1 and not units.before[n] & left:
            left.remove(n)
    return left


def _multilinear_region(units: NodeGroups, last: int) -> tuple[set[int], dict[int, str]]:
    """Return *last* and the nodes back from it whose results only the region reads, all of them sums of products.

    And the understood nodes that others of them read, with the reasons why they are outside.  Large results are
    followed first, so a region that is cut for its size ends at small ones.
    """
    outputs = {value.name for value in units.model.outputs}
    region, ends = set[int](), dict[int, str]()
    waiting = [last]
    while waiting:
        n = max(waiting, key=lambda n: (units.size(n), n))
        waiting.remove(n)
        why = _why_outside(units, n)
        if n != last and not (units.after[n] <= region and outputs.isdisjoint(units.model.nodes[n].results)):
            why = why or "others read its result"
        elif len(region) == MAX_REGION_NODES:
            why = why or f"the region has {MAX_REGION_NODES} nodes"
        if why:
            ends[n] = why
            continue
        region.add(n)
        ends.pop(n, None)
        waiting += [source for source in units.before[n] if source in units.understood and source not in waiting]
    return region, ends


def _why_outside(units: NodeGroups, n: int) -> str:
    """Return why node *n* can be in no multilinear region; empty if it can."""
    reasons = (describe_nonlinearity(e.scope) for e in units.understood[n])
    joined = "it is in one kernel with other nodes" if len(units.members[units.of[n]]) > 1 else ""
    return next((why for why in reasons if why), joined)


@lru_cache(256)  # layers of one model are often equal
def factored_equations(program: Program) -> frozenset[int]:
    """Return the numbers of the equations that factoring replaces, if few of their products are left.

    Only sums count: element-wise work becomes part of the kernels around it without factoring.
    """
    joined: frozenset[int] = frozenset()
    for found in factorings(program):
        old, new = (set(one.equations) - set(other.equations) for one, other in permutations((program, found.end)))
        if _summed_products(found.end, new) < MAX_PRODUCT_SHARE * _summed_products(program, old):
            joined = frozenset(n for n, e in enumerate(program.equations) if e in old)
    return joined


def _summed_products(program: Program, equations: Collection[Equation]) -> int:
    """Return the products that those of *equations* form that sum."""
    sums = {e.name for e in equations if any(y.extent > 1 for _, s in scopes(e.scope) for y in s.summations)}
    return products_at_run_time(program, sums)


def join_siblings(units: NodeGroups) -> None:
    """Join groups of contractions that read one value, if sibling merging accepts two of their expressions."""
    readers: dict[str, dict[int, None]] = {}
    for n in sorted(units.understood):
        if units.contractions(group := units.of[n]):
            for name in units.model.nodes[n].reads:
                if name not in units.model.weights:
                    readers.setdefault(name, {})[group] = None
    for groups in readers.values():
        for one, other in combinations(groups, 2):
            a, b = units.of[one], units.of[other]
            if a != b and _are_mergeable(units, _equations(units, a), _equations(units, b)):
                units.join_horizontally(a, b)


def _are_mergeable(units: NodeGroups, one: tuple[Equation, ...], other: tuple[Equation, ...]) -> bool:
    """Whether sibling merging accepts an equation of *one* with one of *other*, over a tensor that is no weight.

    One may read results of the other, as a gate does, but not both of one another.
    """
    if _reads_result_of(one, other):
        one, other = other, one
    if _reads_result_of(one, other):
        return False
    program = anonymize(assemble((*one, *other), tuple(e.name for e in (*one, *other)))).program
    question = f"merges across {len(one)}"
    return units.memory.holds(question, str(program), lambda: _merges_across(program, len(one)))


@lru_cache(256)  # layers of one model are often equal
def _merges_across(program: Program, count: int) -> bool:
    """Whether sibling merging accepts one of the first *count* equations with one of the others."""
    weights = {t.name for t in program.inputs if t.weight}
    names = [e.name for e in program.equations]
    ours, theirs = set(names[:count]), set(names[count:])
    for n, equation in enumerate(program.equations):
        for match in SIBLING_MERGING.matches(program, (n,)):
            params: Siblings = match.params
            together = {equation.name, *params.others}
            if params.tensor not in weights and together & ours and together & theirs:
                return True
    return False


def _reads_result_of(one: tuple[Equation, ...], other: tuple[Equation, ...]) -> bool:
    """Whether *one* reads a result of *other*."""
    made = {e.name for e in other}
    return any(t.name in made for e in one for t in tensors(e.scope))


def join_parallel(units: NodeGroups) -> None:
    """Join siblings with contractions that follow them in parallel: equal sizes, independent, no activation between."""
    for group in [g for g in units.members if len(units.contractions(g)) > 1]:
        after = [n for n in sorted(units.understood) if units.kind(n) == "contraction" and _follows(n, group, units)]
        for one, other in combinations(after, 2):
            independent = not units.before[one] & units.before[other] and not units.dependent(one, other)
            if independent and _tensor_sizes(one, units) == _tensor_sizes(other, units):
                # The sum of both may be with either: then that one has to come second.
                for first, second in ((one, other), (other, one)):
                    if units.join(group, first):
                        units.join(group, second)
                        break


def _follows(n: int, group: int, units: NodeGroups) -> bool:
    """Whether node *n*, outside *group*, reads the result of a contraction in it through no activation."""
    inside = units.members[units.of[group]]
    waiting, found = list(units.before[n] & inside) if n not in inside else [], False
    while waiting:
        match units.kind(m := waiting.pop()):
            case "contraction":
                found = True
            case "activation":
                return False
            case _:
                waiting.extend(units.before[m] & inside)
    return found


def _tensor_sizes(n: int, units: NodeGroups) -> tuple[list[int], ...]:
    """Return the sizes of the tensors that node *n* reads and computes."""
    node = units.model.nodes[n]
    return tuple(sorted(prod(units.model.shape(name)) for name in names) for names in (node.reads, node.results))


def _equations(units: NodeGroups, group: int) -> tuple[Equation, ...]:
    return tuple(e for n in sorted(units.members[group]) for e in units.understood.get(n, ()))


def join_through_cache(units: NodeGroups) -> None:
    """Join each contraction of few products for each element (a depthwise convolution) with those next to it.

    One kernel in blocks has to compute all of them, so that their results stay in the cache.
    """
    for n in sorted(units.understood):
        if units.kind(n) != "contraction" or not any(_is_light(e.scope) for e in units.understood[n]):
            continue
        own = units.of[n]
        if len(units.contractions(own)) > 1:
            continue
        before = [
            g for g in units.group_sources(own) if _has_one_contraction(units, g) and units.group_readers(g) == {own}
        ]
        after = [g for g in units.group_readers(own) if _has_one_contraction(units, g)]
        after = after if len(after) == 1 == len(units.group_readers(own)) else []
        for neighbours in dict.fromkeys(((*before, *after), tuple(after), tuple(before))):
            nodes = {m for g in (own, *neighbours) for m in units.members[g]}
            if neighbours and _is_one_chain(units, nodes):
                units.join_all(nodes)
                break


def join_chains_through_cache(units: NodeGroups) -> None:
    """Join two chains around contractions of few products where the second alone reads the result of the first.

    The result does not fit the second-level cache, and one kernel in blocks computes both, by its estimate, in fewer
    cycles than two: these would write the result and read it again, and change its layout both times.
    """
    chains = [g for g in units.members if _has_light_contraction(units, g)]
    for first in sorted(chains, key=lambda g: min(units.members[g])):
        while len(readers := units.group_readers(units.of[first])) == 1:
            before, (after,) = units.of[first], readers
            nodes = units.members[before] | units.members[after]
            bytes_between = units.size(max(units.members[before])) * ELEMENT_BYTES
            if bytes_between <= this_machine().l2 or not _has_light_contraction(units, after):
                break
            if not _is_one_chain(units, nodes) or not _is_faster_joined(units, before, after):
                break
            units.join_all(nodes)


def _has_light_contraction(units: NodeGroups, group: int) -> bool:
    return any(_is_light(e.scope) for n in units.contractions(group) for e in units.understood[n])


def _is_faster_joined(units: NodeGroups, before: int, after: int) -> bool:
    """True if one kernel in blocks is estimated to compute two groups faster than one kernel for each of them."""
    programs = [units.program_of(units.members[group]) for group in (before, after)]
    whole = units.program_of(units.members[before] | units.members[after])
    question = (
        f"is faster as one chain than as two, after {len(programs[0].equations)}, of {this_machine().lanes} lanes"
    )

    def is_faster() -> bool:
        joined, *parts = (chain_in_vectors(program) for program in (whole, *programs))
        if joined is None or any(part is None for part in parts):
            return False
        return chain_cycles(joined.end, 1) < sum(chain_cycles(part.end, 1) for part in parts if part is not None)

    return units.memory.holds(question, str(whole), is_faster)


def _has_one_contraction(units: NodeGroups, group: int) -> bool:
    return len(units.contractions(group)) == 1


def _is_one_chain(units: NodeGroups, nodes: set[int]) -> bool:
    """Whether one kernel in blocks computes *nodes*, of which only the last one's result is read outside."""
    outputs = {value.name for value in units.model.outputs}
    inner = nodes - {max(nodes)}
    if not all(units.after[n] <= nodes and outputs.isdisjoint(units.model.nodes[n].results) for n in inner):
        return False
    program = units.program_of(nodes)
    question = f"is one chain in vectors of {this_machine().lanes}"
    return units.memory.holds(question, str(program), lambda: is_chain_in_vectors(program))


MAX_LIGHT_SUM = 64
"""Products for each element of a contraction that memory is likely to bound, at most."""


def _is_light(scope: Scope) -> bool:
    """Whether *scope* sums few products, and each element of its operands is in few of them."""
    try:
        product = TensorContraction.of(scope)
    except Refused:
        return False
    alone = min(prod(x.extent for x in group) for group in (product.m, product.n))
    return alone == 1 and prod(y.extent for y in scope.summations) <= MAX_LIGHT_SUM


def join_conversions(units: NodeGroups) -> None:
    """Join each contraction with the nodes before it that make its operands from narrower elements, and move them."""
    for n in units.understood:
        for source in sorted(units.before[n]) if units.kind(n) == "contraction" else ():
            reader = n
            for node in _conversion(units, source, n):
                units.join(node, reader)
                reader = node


def _conversion(units: NodeGroups, source: int, reader: int) -> list[int]:
    """Return *source* and the nodes before it up to one that widens elements or reads weights only; else nothing.

    Nobody else may read them.
    """
    found = list[int]()
    while units.free(source) and units.after[source] == {reader}:
        found.append(source)
        if _widens(units.understood[source][-1]) or units.model.weights.keys() >= {*units.model.nodes[source].reads}:
            return found
        if units.kind(source) != "layout" or len(units.before[source]) != 1:
            break
        reader, (source,) = source, units.before[source]
    return []


def _widens(equation: Equation) -> bool:
    """Return whether each element of *equation* is computed from one of a narrower type."""
    made = equation.tensor
    read = (t for t in tensors(equation.scope) if t.shape == made.shape)
    return any(ELEMENT_TYPES[t.dtype].bits < ELEMENT_TYPES[made.dtype].bits for t in read)


def join_around_contractions(units: NodeGroups) -> None:
    """Join each contraction with the cheap nodes that read its group, and with re-indexings before it.

    A node with a larger result is left out: a small product that scales a large tensor has no part in its cost.  So is
    one with wider elements: narrow ones are written.
    """
    for n in units.understood:
        if units.kind(n) != "contraction":
            continue
        for source in units.before[n]:
            if units.kind(source) == "layout" and units.free(source) and units.after[source] == {n}:
                units.join(source, n)
        frontier = sorted(units.after[n])
        while frontier:
            m = frontier.pop(0)
            inside = units.of[m] == units.of[n] and units.kind(m) != "contraction"
            fits = units.free(m) and units.size(m) <= units.size(n) and not _widens(units.understood[m][-1])
            fits = fits and _keeps_values_inside(m, n, units)
            if inside or (fits and units.join(n, m)):
                frontier = sorted({*frontier, *units.after[m]})


def _keeps_values_inside(m: int, n: int, units: NodeGroups) -> bool:
    """Whether the values that node *m* reads of the group of *n* are read by that group alone, once cheap readers join.

    Otherwise the value is written in any case.  A gate (``x·sigmoid(x)``) reads a value and what became of it.
    """
    group = units.members[units.of[n]] | {m}
    open_ = units.before[m] & group
    return all(reader in group or units.free(reader) for source in open_ for reader in units.after[source])


def join_chains(units: NodeGroups) -> None:
    """Join the cheap nodes and reductions that are left with their producers, unless others read these."""
    left = [n for n in units.understood if units.free(n) or units.kind(n) == "reduction"]
    rest = set(left)
    for n in left:
        for source in sorted(units.before[n] & rest):
            if units.after[source] <= rest:
                units.join(source, n)


def join_operands(units: NodeGroups) -> None:
    """Join cheap nodes that no group takes with the contraction that reads them, such as gates of its operand.

    One kernel in blocks has to compute both, so that the operand is not written.
    """
    for n in sorted(units.understood):
        if units.free(n) and units.kind(n) != "layout" and len(units.after[n]) == 1:
            group = units.of[next(iter(units.after[n]))]
            if units.contractions(group) and _is_one_chain(units, units.members[group] | {n}):
                units.join(n, group)
