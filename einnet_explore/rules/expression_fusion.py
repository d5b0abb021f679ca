r"""Expression fusion (Table 1; §4.2): an intermediate is substituted into its reader.

.. math::
   \mathop{L}_{\vec y} g(T'[\pi(\vec y)]) \;\circ\; T' = \mathop{L}_{\vec x} f(T[\tau(\vec x)])
   \;\mapsto\; \mathop{L}_{\vec y} g\big(\{\mathop{L}_{\vec x} f(T[\tau(\vec x)])\}[\pi(\vec y)]\big)

The intermediate's equation is removed, so it must have no other reader and must not be an output.  Traversal merging
can then merge the scope into the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from einnet_explore.analysis.equations import whole_equation
from einnet_explore.ir import Equation, Path, Program, Scope, map_tensors, tensors
from einnet_explore.rules.base import Rule, accepted, explain_equation, refusals_of, refusing
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Intermediate:
    """The name of the equation to substitute."""

    tensor: str


def propose(program: Program, at: Path) -> Iterable[Intermediate]:
    """Propose every equation that only the equation at *at* reads."""
    if len(at) == 1:
        names = {e.name for e in program.equations}
        for tensor in tensors(program.scope_at(at)):
            if tensor.name in names and accepted(check_only_reader, program, at[0], tensor.name):
                yield Intermediate(tensor.name)


def rewrite(program: Program, at: Path, params: Intermediate) -> Program:
    """Substitute; raises Refused where another equation or the caller reads the intermediate."""
    with refusing():
        reader = whole_equation(program, at)
    check_only_reader(program, at[0], params.tensor)
    source = next(e for e in program.equations if e.name == params.tensor)
    fused = replace(reader, scope=inline(reader.scope, source), via=None)
    kept = tuple(fused if e is reader else e for e in program.equations if e is not source)
    return replace(program, equations=kept)


def inline(scope: Scope, source: Equation) -> Scope:
    """Return *scope* with every read of *source*'s tensor, at any depth, replaced by a read of its scope."""

    return map_tensors(scope, lambda tensor: source.scope if tensor.name == source.name else tensor)


def check_only_reader(program: Program, reader: int, name: str) -> None:
    """Raise Refused unless *name* is an equation, not an output, and only equation *reader* reads it."""
    if name not in {e.name for e in program.equations}:
        raise Refused(f"{name} is no equation of this program")
    if name in program.outputs:
        raise Refused(f"{name} is an output, its value is needed outside")
    readers, only = [e.name for e in program.equations if _reads(e, name)], program.equations[reader].name
    if readers != [only]:
        raise Refused(f"{name} is read by {', '.join(readers) or 'no equation'}, expected only {only}")


def _reads(equation: Equation, name: str) -> bool:
    """Whether *equation* reads the tensor called *name*."""
    return any(t.name == name for t in tensors(equation.scope))


def explain(program: Program, equation: Equation, at: Path) -> str:
    """Return why no intermediate can be fused into *equation*."""
    names = {e.name for e in program.equations}
    read = [t.name for t in tensors(equation.scope) if t.name in names]
    reasons = [reason for name in read for reason in refusals_of(check_only_reader, program, at[0], name)]
    return "; ".join(reasons) or f"{equation.name} reads no other equation's result"


def encode(params: Intermediate) -> dict[str, object]:
    """``{"tensor": "T1"}``."""
    return {"tensor": params.tensor}


def decode(program: Program, at: Path, params: Mapping[str, object]) -> Intermediate:
    """The JSON form; without a name, the one intermediate that can be fused."""
    if "tensor" in params:
        return Intermediate(str(params["tensor"]))
    legal = list(propose(program, at))
    if len(legal) != 1:
        raise Refused(f"{len(legal)} intermediates can be fused here, expected a name in 'tensor'")
    return legal[0]


EXPRESSION_FUSION = Rule(
    name="expression_fusion",
    law=r"\mathop{L}_y g(T'[\pi]) \circ T' = \mathop{L}_x f \mapsto \mathop{L}_y g(\{\mathop{L}_x f\}[\pi])",
    propose=propose,
    rewrite=rewrite,
    encode=encode,
    decode=decode,
    explain=explain_equation(explain),
)
