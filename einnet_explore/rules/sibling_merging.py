r"""Sibling merging (Table 1, expression merging; §4.2, Fig. 3, Fig. 15): expressions of a shared operand become one.

.. math::
   \mathop{L}_{\vec x, f_1} \sum_{\vec y} A[\tau]\, K_1[\vec y, f_1] \;\sim\;
   \mathop{L}_{\vec x, f_2} \sum_{\vec y} A[\tau]\, K_2[\vec y, f_2]
   \;\Longrightarrow\;
   \mathop{L}_{\vec x, n} \sum_{\vec y} A[\tau]\, K[\vec y, n], \qquad K = K_1 \,\|\, K_2

A new equation concatenates the operands K₁, K₂; for weights, it is evaluated at compile time.  Each result is a part of
the merged one.  Windows may differ: a smaller one (Conv1x1) is a larger one (Conv3x3) with zero weights.
With equal windows, any reduction, or none, of any function of the two operands merges alike: max (A + Kᵢ), Σ (A − Kᵢ)².
An equation that a library operator runs may be merged as well; the result is matched again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from einnet_explore.analysis.concatenation import Sibling
from einnet_explore.analysis.equations import (
    check_operands_free,
    constant_tensors,
    equations_to_merge,
    exchange_equations,
    fresh_names,
    is_generated,
    resolve_access,
    whole_equation,
)
from einnet_explore.analysis.siblings import make_sibling, merge_siblings, source_name
from einnet_explore.ir import Equation, Path, Program, accesses, tensors
from einnet_explore.rules.base import Rule, accepted, explain_equation, refusals_of, refusing
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Siblings:
    """The *others* to merge with the equation at the path, and the *tensor* that all of them read in the same way."""

    others: tuple[str, ...]
    tensor: str


def propose(program: Program, at: Path) -> Iterable[Siblings]:
    """Propose the later equations that merge over a tensor: all, then each alone; those on weights first."""
    if len(at) != 1 or is_generated(base := program.equations[at[0]]):
        return
    constant = constant_tensors(program)
    later = {e.name: _operands(program, e) for e in program.equations[at[0] + 1 :] if not is_generated(e)}
    for tensor in sorted(dict.fromkeys(_operands(program, base)), key=lambda name: name in constant):
        readers = (name for name, read in later.items() if tensor in read)
        alone = [s for name in readers if accepted(_merge, program, at, s := Siblings((name,), tensor))]
        together = Siblings(tuple(s.others[0] for s in alone), tensor)
        if len(alone) > 1 and accepted(_merge, program, at, together):
            yield together
        yield from alone


def _operands(program: Program, equation: Equation) -> tuple[str, ...]:
    """Return the tensors that *equation* reads, through views."""
    return tuple(source_name(resolve_access(program, a)) for a in accesses(equation.scope.body))


def _merge(program: Program, at: Path, params: Siblings) -> Program:
    """Apply the law; refuses also element-wise expressions whose operands would be copied."""
    merged = rewrite(program, at, params)
    if all(y.extent == 1 for y in program.scope_at(at).summations):
        check_operands_free(program, merged)
    return merged


def rewrite(program: Program, at: Path, params: Siblings) -> Program:
    """Apply the law; refuses with the index maps, ranges or reductions that differ, or with a dependence."""
    with refusing():
        base = whole_equation(program, at)
        equations = equations_to_merge(program, (base.name, *params.others))
        operand, whole = fresh_names(program, "K", "M")
        found = merge_siblings((_sibling(program, e, params.tensor) for e in equations), operand, whole)
    parts = {e.name: replace(e, scope=found.parts[e.name], via=None) for e in equations}
    with refusing():
        return exchange_equations(program, parts, (found.operand, found.whole))


def _sibling(program: Program, equation: Equation, tensor: str) -> Sibling:
    if is_generated(equation) and equation.via is not None:
        raise Refused(f"{equation.name} is run as {equation.via.operator}: there is nothing to merge")
    why = Refused(f"{equation.name} has no operand that reads {tensor}: it reads {_read(equation)}")
    for access in dict.fromkeys(accesses(equation.scope.body)):
        if source_name(read := resolve_access(program, access)) == tensor:
            try:
                return make_sibling(equation.name, equation.scope, access, read)
            except ValueError as error:
                why = Refused(str(error))
    raise why


def _read(equation: Equation) -> str:
    return ", ".join(t.name for t in tensors(equation.scope)) or "nothing"


def explain(program: Program, base: Equation, at: Path) -> str:
    """Return why no other equation merges with *base*: the difference, for each one that reads a tensor of it."""
    reasons: list[str] = []
    mine = _operands(program, base)
    for other in program.equations[at[0] + 1 :]:
        for tensor in _operands(program, other):
            if tensor in mine:
                reasons += refusals_of(_merge, program, at, Siblings((other.name,), tensor))
    return (
        "; ".join(dict.fromkeys(reasons))
        or f"no later equation shares an operand with {base.name}, which reads {_read(base)}"
    )


SIBLING_MERGING = Rule(
    name="sibling_merging",
    law=r"\mathop{L}_{\vec x, f_1} \sum_{\vec y} A\, K_1[\vec y, f_1] \sim \mathop{L}_{\vec x, f_2} \sum_{\vec y} A\,"
    r" K_2[\vec y, f_2] \Longrightarrow \mathop{L}_{\vec x, n} \sum_{\vec y} A\, (K_1 \| K_2)[\vec y, n]",
    propose=propose,
    rewrite=rewrite,
    explain=explain_equation(explain),
)
