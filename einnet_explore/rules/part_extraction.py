r"""Part extraction: a part of a body becomes an expression of its own.

.. math::
   \mathop{L}_{\vec x} \sum_{\vec y} g\big(h(T[\tau])\big)
   \;\mapsto\;
   \mathop{L}_{\vec x} \sum_{\vec y} g(T'[\vec z]) \;\circ\; T' = \mathop{L}_{\vec z} h(T[\tau])

where :math:`\vec z` are the iterators on which the part depends.  It is the inverse of expression fusion and traversal
merging for parts that sum nothing; ``expression_extraction`` is that for nested sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from einnet_explore.analysis.indices import iterators_of, replace_part
from einnet_explore.analysis.padding import excess
from einnet_explore.ir import Apply, Equation, Path, Program, Scope, walk_scalar
from einnet_explore.rules.base import Rule, accepted, refusals_of
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Part:
    """The number of the part, counted in order of writing; the whole body is part 0."""

    part: int


def propose(program: Program, at: Path) -> Iterable[Part]:
    """Propose every function inside the body."""
    for n, _ in enumerate(walk_scalar(program.scope_at(at).body)):
        if n and accepted(rewrite, program, at, Part(n)):
            yield Part(n)


def rewrite(program: Program, at: Path, params: Part) -> Program:
    """Apply the law; refuses a part that is no function, and an equation that is run already."""
    scope, equation = program.scope_at(at), program.equations[at[0]]
    if equation.via is not None:
        raise Refused(f"{equation.name} is instantiated already, by {equation.via.operator}")
    parts = tuple(walk_scalar(scope.body))
    if not 0 < params.part < len(parts):
        raise Refused(f"part {params.part}: expected 1 to {len(parts) - 1}")
    if not isinstance(part := parts[params.part], Apply):
        raise Refused(f"part {params.part} is {part!r}, expected a function")
    kept = tuple(x for x in (*scope.traversals, *scope.summations) if x in iterators_of(part))
    if scope.domain and not {x for b in scope.domain for x in b.index.iterators}.isdisjoint(kept):
        raise Refused(f"the part would be computed outside the domain, {scope.domain[0]!r}")
    new = Equation(program.fresh("T"), Scope(kept, (), part))
    if beyond := excess(new.scope):
        raise Refused(f"the part is read under a condition only: {beyond[0]}")
    body = replace_part(scope.body, params.part, new.tensor[kept])
    return program.replace_at(at, replace(scope, body=body), before=(new,))


def explain(program: Program, at: Path) -> str:
    """Return why no part can be an expression."""
    parts = enumerate(walk_scalar(program.scope_at(at).body))
    return "; ".join(dict.fromkeys(why for n, _ in parts if n for why in refusals_of(rewrite, program, at, Part(n))))


PART_EXTRACTION = Rule(
    "part_extraction",
    r"\mathop{L}_{\vec x} \sum_{\vec y} g(h(T)) \mapsto \mathop{L}_{\vec x} \sum_{\vec y} g(T'[\vec z]) \circ"
    r" T' = \mathop{L}_{\vec z} h(T)",
    propose,
    rewrite,
    explain=explain,
)
