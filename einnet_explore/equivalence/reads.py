"""Legality of reads: every read stays within its source's reach.

A read is made at every point of its scope's domain; a read in a branch of ``where`` only if the branch is taken.
Intervals decide almost all reads; integer sets decide the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

import islpy as isl

from einnet_explore.equivalence.integer_sets import sample_term_point
from einnet_explore.equivalence.linear_space import (
    Env,
    Form,
    TermSpace,
    Undecided,
    complement,
    scope_conditions,
    with_summations,
)
from einnet_explore.equivalence.term_relation import Term, condition_pieces
from einnet_explore.ir import Access, Apply, Compare, Const, Scalar, Scope, Tensor, accesses


def illegal_reads(scope: Scope) -> Iterable[str]:
    """Yield the reads of *scope* and of nested scopes beyond their sources' reach, each with numbers of an example.

    A scope in which one iterator runs twice is illegal.
    """
    own = (*scope.traversals, *scope.summations)
    if len(set(own)) < len(own):
        yield f"an iterator runs twice in one scope, of {', '.join(x.name for x in own)}"
        return
    if not _surely_legal(scope):
        yield from _reads_beyond_reach(scope)
    for access in accesses(scope.body):
        if isinstance(access.source, Scope):
            yield from illegal_reads(access.source)


def reads_legally(scope: Scope) -> bool:
    """Whether every read of *scope* and of nested scopes stays within its source's reach."""
    return not any(illegal_reads(scope))


def _surely_legal(scope: Scope) -> bool:
    for access in accesses(scope.body):
        if len(access.index) != len(access.source.shape):
            return False
        for index, (lo, hi) in zip(access.index, access.source.reach, strict=True):
            least, most = index.bounds
            if least < lo or most >= hi:
                return False
    return True


def _reads_beyond_reach(scope: Scope) -> Iterable[str]:
    space = TermSpace(scope.box, lambda a, b: False)
    env, inside = scope_conditions(space, scope, space.point)
    if inside is None:
        return
    env, summed = with_summations(space, scope, env)
    for access, guards in guarded_accesses(space, scope.body, env, inside):
        name = access.source.name if isinstance(access.source, Tensor) else "a scope"
        if len(access.index) != len(access.source.shape):
            yield f"{name} has {len(access.source.shape)} dimensions and is read with {len(access.index)} indices"
            continue
        at = tuple(space.form(i, env) for i in access.index)
        for beyond in complement(space.within(at, access.source.reach)):
            own = (*scope.traversals, *scope.summations)
            term = Term(1, (("", tuple(env[x] for x in own)),), summed, (*guards, *beyond))
            try:
                point = sample_term_point(space, term)
            except isl.Error as error:
                raise Undecided(f"integer sets: {error}") from None
            if point is not None:
                values = dict(zip(own, point[len(space.coordinates) :], strict=True))
                at_text = ", ".join(f"{x.name}={values[x]}" for x in own)
                reads = ", ".join(str(i.evaluate(values.__getitem__)) for i in access.index)
                reach = " × ".join(f"[{lo}, {hi})" for lo, hi in access.source.reach)
                read = f"{name}[{', '.join(map(repr, access.index))}]"
                yield f"{read} at {at_text} reads [{reads}], outside its reach {reach}"


def guarded_accesses(
    space: TermSpace, scalar: Scalar, env: Env, guards: tuple[Form, ...]
) -> Iterable[tuple[Access, tuple[Form, ...]]]:
    """Yield every access with the conditions under which it is made, in disjoint pieces."""
    match scalar:
        case Access():
            yield scalar, guards
        case Apply("where", (Compare() as condition, yes, no)):
            for pieces, branch in zip(condition_pieces(space, condition, env), (yes, no), strict=True):
                for piece in pieces:
                    yield from guarded_accesses(space, branch, env, (*guards, *piece))
        case Apply(args=args):
            for arg in args:
                yield from guarded_accesses(space, arg, env, guards)
        case Const() | Compare():
            pass
