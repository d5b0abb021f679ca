r"""Part extraction: a part of a body becomes an expression of its own.

.. math::
   \mathop{L}_{\vec x} \sum_{\vec y} g\big(h(T[\tau])\big)
   \;\mapsto\;
   \mathop{L}_{\vec x} \sum_{\vec y} g(T'[\vec z]) \;\circ\; T' = \mathop{L}_{\vec z} h(T[\tau])

where :math:`\vec z` are the iterators on which the part depends.  It is the inverse of expression fusion and traversal
merging for parts without a summation; ``expression_extraction`` extracts nested sums.  Some *arguments* of a sum or a
product may be extracted alone: a product of weights and constants is then computed beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from einnet_explore.analysis.indices import iterators_of, replace_part
from einnet_explore.analysis.padding import excess
from einnet_explore.analysis.products import reads_weights
from einnet_explore.ir import Apply, Const, Equation, Path, Program, Scalar, Scope, add, mul, walk_scalar
from einnet_explore.rules.base import Rule, accepted, refusals_of
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Part:
    """The number of the part, counted in order of writing (the whole body is part 0); which *arguments*, or all."""

    part: int
    arguments: tuple[int, ...] = ()


def propose(program: Program, at: Path) -> Iterable[Part]:
    """Propose every function inside the body, and of every product what is known at compile time."""
    for n, part in enumerate(walk_scalar(program.scope_at(at).body)):
        for params in dict.fromkeys((Part(n), Part(n, known_arguments(part)))):
            if accepted(rewrite, program, at, params):
                yield params


def known_arguments(part: Scalar) -> tuple[int, ...]:
    """Return the arguments of a product that are known at compile time: several, next to others, one a weight."""
    if not (isinstance(part, Apply) and part.op == "*"):
        return ()
    known = tuple(n for n, arg in enumerate(part.args) if reads_weights(arg))
    reading = any(not isinstance(part.args[n], Const) for n in known)
    return known if reading and 1 < len(known) < len(part.args) else ()


def rewrite(program: Program, at: Path, params: Part) -> Program:
    """Apply the law; refuses a part that is no function, and an equation that is run already."""
    scope, equation = program.scope_at(at), program.equations[at[0]]
    if equation.via is not None:
        raise Refused(f"{equation.name} is instantiated already, by {equation.via.operator}")
    parts = tuple(walk_scalar(scope.body))
    if not 0 <= params.part < len(parts) or (params == Part(0) and not scope.summations):
        raise Refused(f"part {params.part}: expected 1 to {len(parts) - 1}, or 0 under a reduction")
    if not isinstance(part := parts[params.part], Apply):
        raise Refused(f"part {params.part} is {part!r}, expected a function")
    rest: tuple[Scalar, ...] = ()
    if chosen := set(params.arguments):
        if part.op not in ("+", "*") or not chosen < set(range(len(part.args))):
            raise Refused(f"{part!r} has no arguments {list(params.arguments)} next to others, in a sum or a product")
        rest = tuple(arg for n, arg in enumerate(part.args) if n not in chosen)
        part = Apply(part.op, tuple(arg for n, arg in enumerate(part.args) if n in chosen))
    kept = tuple(x for x in (*scope.traversals, *scope.summations) if x in iterators_of(part))
    if scope.domain and not {x for b in scope.domain for x in b.index.iterators}.isdisjoint(kept):
        raise Refused(f"the part would be computed outside the domain, {scope.domain[0]!r}")
    new = Equation(program.fresh("T"), Scope(kept, (), part))
    if beyond := excess(new.scope):
        raise Refused(f"the part is read under a condition only: {beyond[0]}")
    read = (add if part.op == "+" else mul)(*rest, new.tensor[kept]) if rest else new.tensor[kept]
    body = replace_part(scope.body, params.part, read)
    return program.replace_at(at, replace(scope, body=body), before=(new,))


def explain(program: Program, at: Path) -> str:
    """Return why no part can be an expression."""
    parts = enumerate(walk_scalar(program.scope_at(at).body))
    return "; ".join(dict.fromkeys(why for n, _ in parts for why in refusals_of(rewrite, program, at, Part(n))))


PART_EXTRACTION = Rule(
    "part_extraction",
    r"\mathop{L}_{\vec x} \sum_{\vec y} g(h(T)) \mapsto \mathop{L}_{\vec x} \sum_{\vec y} g(T'[\vec z]) \circ"
    r" T' = \mathop{L}_{\vec z} h(T)",
    propose,
    rewrite,
    explain=explain,
)
