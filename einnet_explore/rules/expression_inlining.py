r"""Expression inlining: one reader computes an intermediate's elements itself; it remains for other readers.

.. math::
   \mathop{L}_{\vec y} g(T'[\pi(\vec y)]) \;\circ\; T' = \mathop{L}_{\vec x} f
   \;\mapsto\; \mathop{L}_{\vec y} g\big(\{\mathop{L}_{\vec x} f\}[\pi(\vec y)]\big) \;\circ\; T'

It is expression fusion (Table 1; §4.2) for an intermediate with several readers, or for an output.  The
caller decides which elements are cheap enough to be computed again, such as a re-indexing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from einnet_explore.analysis.equations import equation_number, map_reads, whole_equation
from einnet_explore.ir import Access, Equation, Path, Program, tensors
from einnet_explore.rules.base import Rule, explain_equation, refusing
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Inlined:
    """The name of the equation whose scope is read in its place."""

    tensor: str


def propose(program: Program, at: Path) -> Iterable[Inlined]:
    """Propose every intermediate that only re-indexes: reading through it repeats no computation."""
    if len(at) != 1:
        return
    plain = {e.name for e in program.equations if not e.scope.summations and isinstance(e.scope.body, Access)}
    for tensor in tensors(program.scope_at(at)):
        if tensor.name in plain:
            yield Inlined(tensor.name)


@refusing()
def rewrite(program: Program, at: Path, params: Inlined) -> Program:
    """Apply the law; refuses a tensor that is no equation, or that the equation at *at* does not read."""
    reader = whole_equation(program, at)
    source = program.equations[equation_number(program, params.tensor)]
    if not any(t.name == params.tensor for t in tensors(reader.scope)):
        raise Refused(f"{reader.name} does not read {params.tensor}")
    scope = map_reads(reader.scope, params.tensor, lambda access: Access(source.scope, access.index))
    return replace(
        program,
        equations=tuple(replace(e, scope=scope, via=None) if e is reader else e for e in program.equations),
    )


def explain(program: Program, equation: Equation, _: Path) -> str:
    """Return why nothing is proposed: no intermediate that *equation* reads is a mere re-indexing."""
    made = {e.name for e in program.equations}
    read = [t.name for t in tensors(equation.scope) if t.name in made]
    return f"none of {', '.join(read)} only re-indexes" if read else "it reads no other equation's result"


def encode(params: Inlined) -> dict[str, object]:
    """``{"tensor": "T1"}``."""
    return {"tensor": params.tensor}


def decode(_: Program, __: Path, params: Mapping[str, object]) -> Inlined:
    """The inverse of ``encode``."""
    with refusing():
        return Inlined(str(params["tensor"]))


EXPRESSION_INLINING = Rule(
    "expression_inlining",
    r"\mathop{L}_y g(T'[\pi]) \circ T' = \mathop{L}_x f \mapsto \mathop{L}_y g(\{\mathop{L}_x f\}[\pi]) \circ T'",
    propose,
    rewrite,
    encode,
    decode,
    explain=explain_equation(explain),
)
