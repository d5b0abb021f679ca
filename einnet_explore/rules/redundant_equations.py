"""Redundant equations: of two equations with equal values one remains, and one that nothing reads is removed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from einnet_explore.analysis.canonical_keys import canonical_key
from einnet_explore.analysis.equations import readers, redirect_reads, remove_equation, whole_equation, widen_padding
from einnet_explore.ir import Access, Equation, Path, Program, Scope, Tensor
from einnet_explore.rules.base import Rule, accepted, explain_equation, place_rule, refusing
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Same:
    """The name of the input or earlier equation that is read instead."""

    tensor: str


def propose(program: Program, at: Path) -> Iterable[Same]:
    """Propose the tensor that the equation at *at* copies, else the first earlier equation that computes the same."""
    if len(at) != 1:
        return
    equation = program.equations[at[0]]
    names = [source.name for source in _copied_tensors(equation.scope)]
    mine, box = meaning(equation.scope), equation.scope.box
    names += [e.name for e in program.equations[: at[0]] if e.scope.box == box and meaning(e.scope) == mine]
    for name in names:
        if accepted(merge_equal, program, at, Same(name)):
            yield Same(name)
            return


@refusing()
def merge_equal(program: Program, at: Path, params: Same) -> Program:
    r"""Common subexpressions: two equations with equal values become one.

    .. math::  T_1 = \mathop{L}_{\vec x} f \;\circ\; T_2 = \mathop{L}_{\vec x} f \;\circ\; g(T_1, T_2)
               \;\mapsto\; T_1 = \mathop{L}_{\vec x} f \;\circ\; g(T_1, T_1)

    Values are equal if their canonical keys are, up to the names of iterators and the order of summations and
    commutative operands.  A plain copy of a source is replaced by the source: the same law, with a tensor as
    :math:`T_1`.  Other values, a second output and another value outside the box are refused.
    """
    equation = whole_equation(program, at)
    if params.tensor not in [source.name for source in _copied_tensors(equation.scope)]:
        _same_as(program, at[0], params.tensor)
    if equation.name in program.outputs:
        return _rename_duplicate(program, at[0], params.tensor)
    program, tensor = widen_padding(program, params.tensor, equation.scope.padding, equation.scope.value)
    return remove_equation(redirect_reads(program, equation.name, tensor), at[0])


def _rename_duplicate(program: Program, n: int, source: str) -> Program:
    """Remove output *n* by giving its name to its duplicate; refuses if that is an output too."""
    equation = program.equations[n]
    if source in program.outputs or source not in {e.name for e in program.equations}:
        raise Refused(f"{equation.name} is an output, and the equal {source} is needed outside too")
    program, _ = widen_padding(program, source, equation.scope.padding, equation.scope.value)
    twin = next(e for e in program.equations if e.name == source)
    kept = replace(twin, name=equation.name)
    program = remove_equation(program, n)
    program = replace(program, equations=tuple(kept if e is twin else e for e in program.equations))
    return redirect_reads(program, source, kept.tensor)


def _same_as(program: Program, n: int, name: str) -> None:
    equation = program.equations[n]
    for earlier in program.equations[:n]:
        if earlier.name == name:
            if earlier.scope.box != equation.scope.box or meaning(earlier.scope) != meaning(equation.scope):
                raise Refused(f"{equation.name} and {name} compute different values")
            return
    raise Refused(f"{name} is no equation before {equation.name}")


@lru_cache(1 << 12)  # each equation is compared with all others
def meaning(scope: Scope) -> Hashable:
    """Return the canonical key of the values of *scope* inside its box."""
    return canonical_key(replace(scope, padding=(), value=scope.value if scope.domain else 0))


def _copied_tensors(scope: Scope) -> Iterable[Tensor]:
    """Yield the tensor of which *scope* is a copy, element by element at the same index."""
    match scope:
        case Scope(summations=(), body=Access(Tensor() as source, index), domain=()):
            if tuple(i.single for i in index) == scope.traversals and source.box == scope.box:
                yield source


def explain(_: Program, equation: Equation, __: Path) -> str:
    """Return why *equation* stays: no earlier equation computes the same."""
    return f"no earlier equation computes what {equation.name} does, and it is no copy"


COMMON_SUBEXPRESSION = Rule(
    "common_subexpression",
    r"T_1 = \mathop{L}_{\vec x} f \circ T_2 = \mathop{L}_{\vec x} f \circ g(T_1, T_2) \mapsto T_1 \circ g(T_1, T_1)",
    propose,
    merge_equal,
    explain=explain_equation(explain),
)


@refusing()
def remove_dead(program: Program, at: Path) -> Program:
    r"""Dead-equation elimination: an equation without readers is removed.

    .. math::  T = \mathop{L}_{\vec x} f \;\circ\; P \;\mapsto\; P,
               \qquad T \text{ neither read in } P \text{ nor an output}

    Fusion into every reader leaves such equations.  The readers of an equation are all scopes, at any depth, that name
    its result.
    """
    name = whole_equation(program, at).name
    if name in program.outputs:
        raise Refused(f"{name} is an output, its value is needed outside")
    if found := [program.equations[n].name for n in readers(program, name)]:
        raise Refused(f"{name} is read by {', '.join(found)}")
    return remove_equation(program, at[0])


DEAD_EQUATION = place_rule(
    "dead_equation",
    r"T = \mathop{L}_{\vec x} f \circ P \;\mapsto\; P",
    remove_dead,
    "it is dead",
)
