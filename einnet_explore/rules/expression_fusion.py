"""Intermediates and their readers: fusion and inlining substitute an intermediate, extraction makes one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from einnet_explore.analysis.equations import equation_number, readers, whole_equation
from einnet_explore.ir import Access, Equation, Path, Program, map_tensors, tensors
from einnet_explore.rules.base import Rule, accepted, explain_equation, place_rule, refusals_of, refusing
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Intermediate:
    """The name of the equation whose scope is read in the place of its tensor."""

    tensor: str


def _read_results(program: Program, equation: Equation) -> tuple[str, ...]:
    """Return the names of the equations that *equation* reads."""
    names = {e.name for e in program.equations}
    return tuple(t.name for t in tensors(equation.scope) if t.name in names)


def _inline(program: Program, reader: Equation, source: Equation) -> Program:
    """Return *program* where *reader* reads the scope of *source*, at any depth."""
    scope = map_tensors(reader.scope, lambda tensor: source.scope if tensor.name == source.name else tensor)
    inlined = replace(reader, scope=scope, via=None)
    return replace(program, equations=tuple(inlined if e is reader else e for e in program.equations))


def propose_fusion(program: Program, at: Path) -> Iterable[Intermediate]:
    """Propose every equation that only the equation at *at* reads."""
    if len(at) == 1:
        for name in _read_results(program, program.equations[at[0]]):
            if accepted(_check_only_reader, program, at[0], name):
                yield Intermediate(name)


@refusing()
def fuse(program: Program, at: Path, params: Intermediate) -> Program:
    r"""Expression fusion (Table 1; §4.2): an intermediate is substituted into its reader.

    .. math::
       \mathop{L}_{\vec y} g(T'[\pi(\vec y)]) \;\circ\; T' = \mathop{L}_{\vec x} f(T[\tau(\vec x)])
       \;\mapsto\; \mathop{L}_{\vec y} g\big(\{\mathop{L}_{\vec x} f(T[\tau(\vec x)])\}[\pi(\vec y)]\big)

    The intermediate's equation is removed, so it must have no other reader and must not be an output.  Traversal
    merging can then merge the scope into the reader.
    """
    reader = whole_equation(program, at)
    _check_only_reader(program, at[0], params.tensor)
    source = program.equations[equation_number(program, params.tensor)]
    fused = _inline(program, reader, source)
    return replace(fused, equations=tuple(e for e in fused.equations if e is not source))


def _check_only_reader(program: Program, reader: int, name: str) -> None:
    """Raise Refused unless *name* is an equation, not an output, and only equation *reader* reads it."""
    if name not in {e.name for e in program.equations}:
        raise Refused(f"{name} is no equation of this program")
    if name in program.outputs:
        raise Refused(f"{name} is an output, its value is needed outside")
    if (found := readers(program, name)) != (reader,):
        others, only = ", ".join(program.equations[n].name for n in found), program.equations[reader].name
        raise Refused(f"{name} is read by {others or 'no equation'}, expected only {only}")


def _why_not_fused(program: Program, equation: Equation, at: Path) -> str:
    read = _read_results(program, equation)
    reasons = [reason for name in read for reason in refusals_of(_check_only_reader, program, at[0], name)]
    return "; ".join(reasons) or f"{equation.name} reads no other equation's result"


EXPRESSION_FUSION = Rule(
    "expression_fusion",
    r"\mathop{L}_y g(T'[\pi]) \circ T' = \mathop{L}_x f \mapsto \mathop{L}_y g(\{\mathop{L}_x f\}[\pi])",
    propose_fusion,
    fuse,
    explain=explain_equation(_why_not_fused),
)


def propose_inlining(program: Program, at: Path) -> Iterable[Intermediate]:
    """Propose every intermediate that only re-indexes: reading through it repeats no computation."""
    if len(at) == 1:
        plain = {e.name for e in program.equations if not e.scope.summations and isinstance(e.scope.body, Access)}
        for name in _read_results(program, program.equations[at[0]]):
            if name in plain:
                yield Intermediate(name)


@refusing()
def inline(program: Program, at: Path, params: Intermediate) -> Program:
    r"""Expression inlining: one reader computes an intermediate's elements itself; it remains for other readers.

    .. math::
       \mathop{L}_{\vec y} g(T'[\pi(\vec y)]) \;\circ\; T' = \mathop{L}_{\vec x} f
       \;\mapsto\; \mathop{L}_{\vec y} g\big(\{\mathop{L}_{\vec x} f\}[\pi(\vec y)]\big) \;\circ\; T'

    It is expression fusion (Table 1; §4.2) for an intermediate with several readers, or for an output.  The
    caller decides which elements are cheap enough to be computed again, such as a re-indexing.
    """
    reader = whole_equation(program, at)
    source = program.equations[equation_number(program, params.tensor)]
    if params.tensor not in _read_results(program, reader):
        raise Refused(f"{reader.name} does not read {params.tensor}")
    return _inline(program, reader, source)


def _why_not_inlined(program: Program, equation: Equation, _: Path) -> str:
    read = _read_results(program, equation)
    return f"none of {', '.join(read)} only re-indexes" if read else "it reads no other equation's result"


EXPRESSION_INLINING = Rule(
    "expression_inlining",
    r"\mathop{L}_y g(T'[\pi]) \circ T' = \mathop{L}_x f \mapsto \mathop{L}_y g(\{\mathop{L}_x f\}[\pi]) \circ T'",
    propose_inlining,
    inline,
    explain=explain_equation(_why_not_inlined),
)


def extract(program: Program, at: Path) -> Program:
    r"""Expression extraction, the inverse of expression fusion: a nested scope becomes an expression of its own.

    .. math::
       \mathop{L}_{\vec y} g\big(\{\mathop{L}_{\vec x} f\}[\pi(\vec y)]\big)
       \;\mapsto\;
       \mathop{L}_{\vec y} g(T'[\pi(\vec y)]) \;\circ\; T' = \mathop{L}_{\vec x} f

    Like any other expression, the new one can be searched, shared, or computed at compile time.  A nested scope that
    sums nothing is refused if its reader computes each element once, where it reads it.
    """
    equation = program.equations[at[0]]
    if len(at) == 1:
        raise Refused(f"{equation.name} is an expression already")
    if equation.via is not None:
        raise Refused(f"{equation.name} is instantiated already, by {equation.via.operator}")
    scope = program.scope_at(at)
    reader = program.scope_at(at[:-1])
    once = not reader.summations and prod(reader.shape) <= prod(scope.shape)
    if not scope.summations and (once or isinstance(scope.body, Access)):
        raise Refused("the nested scope sums nothing: its reader computes each element once, where it reads it")
    new = Equation(program.fresh("T"), scope)
    return program.replace_at(at, new.tensor, before=(new,))


EXPRESSION_EXTRACTION = place_rule(
    "expression_extraction",
    r"\mathop{L}_y g(\{\mathop{L}_x f\}[\pi]) \mapsto \mathop{L}_y g(T'[\pi]) \circ T' = \mathop{L}_x f",
    extract,
    "its nested scope can be an expression",
)
