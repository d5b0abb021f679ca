"""Vertical fusion of eOperators, to the end (EinNet §6.3, Fig. 11; inverse layout transforms: Fig. 14).

A chain of memory-bound equations reads and writes memory once for every link.  Two things make one kernel of two:

* an intermediate that *computes* something is substituted into its reader, if no element is computed twice: one
  equation reads it, each of its points another element (in a diamond the branches are fused first, and all reads are
  of the same element);
* an intermediate that only *moves* elements is read through by each of its readers.  A transform and its inverse then
  leave nothing but a copy, and a copy is its source.  What a sum reads several times, along another dimension than
  memory, is moved once instead: the sum's vectors would be gathered every time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from einnet_explore.analysis.bijection import bijection
from einnet_explore.analysis.counts import is_transposed_for, reads_once
from einnet_explore.analysis.equations import is_generated, weight_only
from einnet_explore.ir import VIEW, Access, Equation, Scope, Tensor, accesses, scopes
from einnet_explore.pipeline.post.steps import (
    apply_rule,
    equation_named,
    generate_equation,
    merge_scopes,
    readers_by_name,
)
from einnet_explore.rules import (
    COMMON_SUBEXPRESSION,
    DEAD_EQUATION,
    EXPRESSION_FUSION,
    EXPRESSION_INLINING,
    Derivation,
    Rule,
)
from einnet_explore.rules.blocked_generation import BLOCKED
from einnet_explore.rules.expression_fusion import Intermediate
from einnet_explore.rules.expression_inlining import Inlined
from einnet_explore.support.errors import Refused


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
        longer = _one_pair(derivation, refused)
        if longer is None:
            return FusionResult(derivation, refused)
        derivation = longer


def share_results(derivation: Derivation) -> Derivation:
    """Compute duplicates once, read copies at their source, and remove dead equations."""
    while True:
        before = derivation
        for n in range(len(before.end.equations)):
            derivation = _step(derivation, COMMON_SUBEXPRESSION, n)
        for n in reversed(range(len(derivation.end.equations))):  # what only the dead read is dead too
            derivation = _step(derivation, DEAD_EQUATION, n)
        if derivation is before:
            return derivation


def _step(derivation: Derivation, rule: Rule[object], n: int) -> Derivation:
    """Apply the first match of *rule* at equation *n*, if there is one."""
    if n < len(derivation.end.equations):
        for match in rule.matches(derivation.end, (n,)):
            return derivation.then(match)
    return derivation


def _one_pair(derivation: Derivation, refused: dict[tuple[str, str], str]) -> Derivation | None:
    """Fuse one pair; None if there is none, with the reasons in *refused*."""
    program = derivation.end
    made = {e.name: e for e in program.equations}
    known = weight_only(program)
    for name, found in readers_by_name(program).items():
        if name in made and is_generated(made[name]):
            for reader in found:
                if name in known and is_blocked_chain(made[reader]):
                    refused[name, reader] = f"{name} is made beforehand, stored as the products of {reader} read it"
                elif is_generated(made[reader]):
                    try:
                        return _pair(derivation, made[name], made[reader])
                    except Refused as why:
                        refused[name, reader] = str(why)
    return None


def _pair(derivation: Derivation, source: Equation, reader: Equation) -> Derivation:
    """Fuse *source* into *reader*; raises Refused."""
    if is_movement(source):
        if is_transposed_for(source, reader):
            raise Refused(f"{reader.name} sums elements of {source.name} several times, which are turned for it once")
        return _read_through(derivation, source, reader)
    if reader.via is None or not reader.via.is_eoperator:
        raise Refused(f"{reader.name} is a view, it computes nothing")
    check_no_recomputation(source, reader)
    longer = apply_rule(derivation, EXPRESSION_FUSION, reader.name, Intermediate(source.name))
    return generate_equation(merge_scopes(longer, reader.name), reader.name)


def is_blocked_chain(e: Equation) -> bool:
    """Whether *e* is a chain that runs block by block."""
    return e.via == BLOCKED


def is_movement(e: Equation) -> bool:
    """Whether *e* only re-indexes one tensor."""
    return not e.scope.summations and isinstance(e.scope.body, Access) and not isinstance(e.scope.body.source, Scope)


def check_no_recomputation(source: Equation, reader: Equation) -> None:
    """Raise Refused if *reader* would compute elements of *source* more than once."""
    reads = {a for _, scope in scopes(reader.scope) for a in accesses(scope.body) if _reads(a, source)}
    if len(reads) > 1:
        raise Refused(
            f"{reader.name} reads {source.name} at {len(reads)} places: {', '.join(sorted(map(repr, reads)))}"
        )
    read = next(iter(reads))
    if read not in set(accesses(reader.scope.body)):
        raise Refused(f"a scope inside {reader.name} reads {source.name}")
    if not reads_each_once(reader.scope, read):
        raise Refused(f"{reader.name} reads elements of {source.name} again at {read!r}")


def _reads(access: Access, source: Equation) -> bool:
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
        else apply_rule(derivation, EXPRESSION_INLINING, reader.name, Inlined(source.name))
    )
    longer = generate_equation(merge_scopes(longer, reader.name), reader.name)
    became = equation_named(longer.end, reader.name)
    was_view = reader.via is not None and reader.via.operator == VIEW
    is_view = became.via is not None and became.via.operator == VIEW
    if was_view and not is_view and not alone:
        raise Refused(f"{reader.name} would no longer be a view, and others read {source.name}")
    return longer
