r"""The notation of EinNet §3 in LaTeX: :math:`\mathop{\mathbf L}_{\vec x} \sum_{\vec y} f(T[\tau(\vec x, \vec y)])`.

Three dialects, one ``match``:

* ``amsmath`` for papers; coloured marks need the package ``xcolor``;
* ``katex`` for pages: every scope is wrapped in ``\htmlData{p=0.1}{…}`` with its path (KaTeX must trust ``\htmlData``);
* ``mathtext`` for Matplotlib, which has no ``\mathop…\limits``, no environments and no colours.

Spaces are ``~`` and *mod* is written out: to MathJax, ``\bmod`` and a backslash before a space are macros, whose text
it puts before all that follows, and it refuses to where that is longer than 5 kB.  Derivations are.

Ranges are half-open: :math:`\sum_{c=0}^{n}` stops before :math:`n`, as the paper's iteration spaces do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal, TypeAlias

from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Equation,
    Index,
    Instance,
    Iterator,
    Path,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    show_path,
)
from einnet_explore.syntax.notation import (
    escape_latex,
    latex_function,
    latex_index,
    latex_matrix,
    latex_name,
    latex_number,
)

Dialect: TypeAlias = Literal["amsmath", "katex", "mathtext"]
Ranges: TypeAlias = Literal["short", "full"]

SUM, PRODUCT, ATOM = range(3)
"""How tightly the operators bind, loosest first."""

_COMPARE = {"<": "<", "<=": r"\leq", ">": ">", ">=": r"\geq", "==": "=", "!=": r"\neq"}
_REDUCE = {"sum": r"\sum", "prod": r"\prod", "max": r"\max", "min": r"\min"}


@dataclass(frozen=True, slots=True)
class _Place:
    """How to print, and where in the tree: *numbers* counts the accesses of the scope at *path* from left to right."""

    dialect: Dialect
    ranges: Ranges
    marks: Mapping[Path, str]
    path: Path = ()
    numbers: count[int] = field(default_factory=count)

    def below(self, step: int) -> _Place:
        return replace(self, path=(*self.path, step), numbers=count())


def latex(
    it: Program | Scope | Scalar | Index,
    dialect: Dialect = "amsmath",
    marks: Mapping[Path, str] | None = None,
    ranges: Ranges = "short",
) -> str:
    r"""*it* in LaTeX, without dollar signs; several equations are ``aligned``.

    *marks* gives scopes, named by their paths, a colour (``mathtext`` underlines them). *ranges* is ``"full"`` for
    :math:`\sum_{c=0}^{512}` instead of :math:`\sum_c`. As ``mathtext`` knows no environments, there a program of
    several equations is one line an equation, to be drawn one by one. Raises ValueError for an unknown dialect.
    """
    if dialect not in ("amsmath", "katex", "mathtext"):
        raise ValueError(f"dialect {dialect!r}, expected amsmath, katex or mathtext")
    if ranges not in ("short", "full"):
        raise ValueError(f"ranges {ranges!r}, expected short or full")
    place = _Place(dialect, ranges, marks or {})
    shown = _latex(it, place)
    return shown.replace(r"\&", "&") if dialect == "mathtext" else shown  # there & is a letter like any other


def _latex(it: Program | Scope | Scalar | Index, place: _Place) -> str:
    match it:
        case Program(equations=equations):
            return _stack_lines([_equation(e, place.below(n)) for n, e in enumerate(equations)], place.dialect)
        case Scope():
            return _outer_scope(it, place)
        case Index():
            return latex_index(it)
        case _:
            return _scalar(it, place)


def align(programs: Sequence[Program], reasons: Sequence[str], dialect: Dialect = "amsmath") -> str:
    r"""An ``align*`` block for a derivation :math:`E_0 \Rightarrow E_1 \Rightarrow \dots`, each step with its reason.

    After the first program only the equations that a step made or changed are shown; the reason stands before them,
    where it is seen however long they are.  Raises ValueError unless there is at least one program and one reason a
    step, and for ``mathtext``, which knows no environments.
    """
    if not programs:
        raise ValueError("no programs to align, expected at least one")
    if len(reasons) != len(programs) - 1:
        raise ValueError(f"{len(programs)} programs have {len(reasons)} reasons, expected one fewer than programs")
    if dialect == "mathtext":
        raise ValueError("dialect 'mathtext' has no environments, expected amsmath or katex")
    lines: list[str] = []
    known: set[Equation] = set()
    for step, it in enumerate(programs):
        place = _Place(dialect, "short", {}).below(step)
        new = [n for n, e in enumerate(it.equations) if e not in known] or range(len(it.equations))
        known = set(it.equations)
        shown = [f"& {' = '.join(_equation(it.equations[n], place.below(n)))}" for n in new]
        if step:
            shown[0] = rf"\text{{{escape_latex(reasons[step - 1])}}}~\Rightarrow~{shown[0]}"
        lines += shown
    return "\\begin{align*}\n" + " \\\\\n".join(lines) + "\n\\end{align*}"


def _stack_lines(equations: Sequence[tuple[str, str]], dialect: Dialect) -> str:
    if len(equations) == 1 or dialect == "mathtext":
        return "\n".join(map(" = ".join, equations))
    return "\\begin{aligned}\n" + " \\\\\n".join(map(" &= ".join, equations)) + "\n\\end{aligned}"


def _equation(equation: Equation, place: _Place) -> tuple[str, str]:
    via = rf" \qquad \triangleright~{_instance(equation.via)}" if equation.via else ""
    return latex_name(equation.name), _outer_scope(equation.scope, place) + via


def _outer_scope(scope: Scope, place: _Place) -> str:
    """A scope that is not read by another: its braces are left out where there is no padding to note on them."""
    return _wrap_marks(_brace_scope(scope, place) if scope.padding or scope.value else _scope_body(scope, place), place)


def _wrap_marks(shown: str, place: _Place) -> str:
    if colour := place.marks.get(place.path):
        shown = rf"\underline{{{shown}}}" if place.dialect == "mathtext" else rf"\textcolor{{{colour}}}{{{shown}}}"
    return rf"\htmlData{{p={show_path(place.path)}}}{{{shown}}}" if place.dialect == "katex" else shown


def _brace_scope(scope: Scope, place: _Place) -> str:
    edges = r",\,".join(str(lo) if lo == hi else f"({lo},{hi})" for lo, hi in scope.padding)
    notes = [rf"\mathrm{{pad}}~{edges}"] if scope.padding else []
    notes += [rf"\mathrm{{value}}~{latex_number(scope.value)}"] if scope.value else []
    note = r",~".join(notes)
    return rf"\left\{{{_scope_body(scope, place)}\right\}}" + (f"^{{{note}}}" if note else "")


def _scope_body(scope: Scope, place: _Place) -> str:
    domain = r",~".join(_bound(b) for b in scope.domain)
    head = _operator(None, scope.traversals, domain, place)
    plain = not scope.summations and scope.reduce == "sum"
    sums = "" if plain else _operator(scope.reduce, scope.summations, "", place)
    # A reduction takes all that follows, but in print a sum would seem to end it.
    return " ".join(filter(None, (head, sums, _scalar(scope.body, place, SUM if plain else PRODUCT))))


def _operator(reduce: str | None, over: Sequence[Iterator], domain: str, place: _Place) -> str:
    """``L`` (*reduce* None) or a reduction over iterators: one sign for all, or one with its range for each."""
    condition = rf" \mid {domain}" if domain else ""
    if place.ranges == "short" or not over:
        return _sign(reduce, ",".join(latex_name(x.name) for x in over) + condition, "", place)
    last = len(over) - 1
    return r"\;".join(  # limits are wider than their signs: without it they would touch
        _sign(reduce, f"{latex_name(x.name)}={x.lo}" + (condition if n == last else ""), str(x.hi), place)
        for n, x in enumerate(over)
    )


def _sign(reduce: str | None, below: str, above: str, place: _Place) -> str:
    if reduce:
        return _REDUCE[reduce] + (f"_{{{below}}}" if below else "") + (f"^{{{above}}}" if above else "")
    if place.dialect == "mathtext":
        sign = rf"\underset{{{below}}}{{\mathbf{{L}}}}" if below else r"\mathbf{L}"
        return rf"\overset{{{above}}}{{{sign}}}" if above else sign
    limits = (f"_{{{below}}}" if below else "") + (f"^{{{above}}}" if above else "")
    return r"\mathop{\mathbf{L}}" + (rf"\limits{limits}" if limits else "")


def _bound(bound: Bound) -> str:
    return rf"{bound.lo} \leq {latex_index(bound.index)} < {bound.hi}"


def _scalar(body: Scalar, place: _Place, level: int = SUM) -> str:
    """*body*, in parentheses if it binds more loosely than *level*."""
    match body:
        case Access():
            return _access(body, place)
        case Const(value):
            return _parenthesise(latex_number(value), value < 0 and level > SUM)
        case Compare(op, left, right):
            return f"{latex_index(left)} {_COMPARE[op]} {latex_index(right)}"
        case Apply("+" | "-" as op, (first, *rest)):
            shown = f" {op} ".join((_scalar(first, place), *(_scalar(a, place, PRODUCT) for a in rest)))
            return _parenthesise(shown, level > SUM)
        case Apply("*", (Const(value), *rest)) if value < 0:
            return _parenthesise(
                r"\,".join((latex_number(value), *(_scalar(a, place, ATOM) for a in rest))), level > SUM
            )
        case Apply("*", args):
            return _parenthesise(r"\,".join(_scalar(a, place, ATOM) for a in args), level > PRODUCT)
        case Apply("/", (above, below)):
            return rf"\frac{{{_scalar(above, place)}}}{{{_scalar(below, place)}}}"
        case Apply("neg", (inner,)):
            return _parenthesise(f"-{_scalar(inner, place, PRODUCT)}", level > SUM)
        case Apply(op, args):
            return latex_function(op, [_scalar(a, place) for a in args], place.dialect)


def _access(access: Access, place: _Place) -> str:
    inside = place.below(next(place.numbers))
    at = ", ".join(latex_index(i) for i in access.index)
    match access.source:
        case Scope() as scope:
            return f"{_wrap_marks(_brace_scope(scope, inside), inside)}[{at}]"
        case Table() as table:
            return f"{latex_matrix(table, place.dialect)}[{at}]"
        case Tensor() as tensor:
            return f"{latex_name(tensor.name)}[{at}]"


def _instance(via: Instance) -> str:
    shown: Iterable[str] = (
        f"{latex_name(k)}{{=}}{escape_latex(v) if isinstance(v, str) else v}" for k, v in via.attributes
    )
    return rf"\mathrm{{{escape_latex(via.operator)}}}({', '.join(shown)})"


def _parenthesise(shown: str, parentheses: bool) -> str:
    return rf"\left({shown}\right)" if parentheses else shown
