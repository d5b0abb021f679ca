r"""The notation of EinNet §3 in LaTeX: :math:`\mathop{\mathbf L}_{\vec x} \sum_{\vec y} f(T[\tau(\vec x, \vec y)])`.

Three dialects, one ``match``:

* ``amsmath`` for papers; coloured marks need the package ``xcolor``;
* ``katex`` for pages: every scope is wrapped in ``\htmlData{p=0.1}{…}`` with its path (KaTeX must trust ``\htmlData``);
* ``mathtext`` for Matplotlib, which has no ``\mathop…\limits``, no environments and no colours.

Spaces are ``~`` and *mod* is written out: MathJax treats ``\bmod`` and a backslash before a space as macros and refuses
formulas in which the expansion exceeds 5 kB, as derivations do.

Ranges are half-open, and print so: :math:`\sum_{0 \leq c < n}`.  (The paper prints :math:`\sum_{c=0}^{n}`.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count
from typing import Literal, TypeAlias

from einnet_explore.ir import (
    FLOAT32,
    Access,
    Apply,
    Atom,
    Bound,
    Compare,
    Const,
    Equation,
    Index,
    Instance,
    Iterator,
    Path,
    Program,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    Table,
    Tensor,
    element_type,
    show_path,
    tensors,
    walk_scalar,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS

_SPECIAL = {
    "\\": r"\backslash ",
    "^": r"\wedge ",
    "~": r"\sim ",
    "<": r"{<}",
    ">": r"{>}",
    "$": r"\$",
    "#": r"\# ",
    "\n": " ",
    "'": r"\prime ",
    '"': r"\prime\prime ",
    "`": r"\prime ",
    "\t": " ",
} | {c: f"\\{c}" for c in "%&_{}"}


def escape_latex(text: str) -> str:
    """Escape the characters of *text* that have a meaning in TeX."""
    return "".join(_SPECIAL.get(c, c) for c in text)


_WORDS = {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "×": r"$\times$", "·": r"$\cdot$", "−": r"$-$",
    "Δ": r"$\Delta$", "Σ": r"$\Sigma$", "Φ": r"$\Phi$", "µ": r"$\mu$", "–": "--", "…": r"\dots{}", "→": r"$\to$",
    "≤": r"$\leq$", "≥": r"$\geq$", "∞": r"$\infty$", "✓": r"$\surd$", "✗": r"$\times$", "±": r"$\pm$", "∈": r"$\in$",
} | {c: f"\\{c}" for c in "%&_{}$#"}  # fmt: skip


def latex_words(text: str) -> str:
    """Escape *text* for TeX outside formulas; characters without a command become question marks."""
    return "".join(_WORDS.get(c, c if c.isascii() else "?") for c in text)


def latex_name(text: str) -> str:
    """Print ``T1`` as ``T_{1}``; names of several letters are one italic word."""
    if text.isidentifier() and (found := re.fullmatch(r"(.*?[^\d_])_?(\d+)", text)):
        return f"{latex_name(found[1])}_{{{found[2]}}}"
    return text if len(text) == 1 and text.isalpha() else rf"\mathit{{{escape_latex(text)}}}"


def latex_number(value: float) -> str:
    """Print whole numbers without a point, and powers of ten as powers."""
    if value in (float("inf"), float("-inf")):
        return r"\infty" if value > 0 else r"-\infty"
    if float(value).is_integer() and abs(value) < 1e16:
        return str(int(value))
    digits, _, power = repr(float(value)).partition("e")
    return rf"{digits} \times 10^{{{int(power)}}}" if power else digits


def latex_index(it: Index) -> str:
    """Print an index, its positive terms first: ``y + 1 - 2h`` reads better than ``-2h + y + 1``."""
    return _index(it, _Place("amsmath", "short", {}))


def _index(it: Index, place: _Place) -> str:
    match it:
        case Index(((Remainder(numerator, d), 1),), 0):
            return _modulo(numerator, d, place)
    parts = [(k, _product(abs(k), atom, place)) for atom, k in it.terms]
    parts += [(it.const, place.token(str(abs(it.const))))] if it.const or not parts else []
    if parts[0][0] < 0:
        parts.sort(key=lambda part: part[0] < 0)
    signs = ["-" if k < 0 else "+" for k, _ in parts]
    signs[0] = signs[0].removeprefix("+")
    return "".join((place.token(sign) if sign else "") + shown for sign, (_, shown) in zip(signs, parts, strict=True))


def _product(k: int, atom: Atom, place: _Place) -> str:
    factor = "" if k == 1 else place.token(str(k))
    match atom:
        case Iterator():
            return factor + place.iterator(atom)
        case Quotient(numerator, d):
            return rf"{factor}\lfloor {_operand(numerator, place)} / {place.token(str(d))} \rfloor"
        case Remainder(numerator, d):
            return f"{factor}({_modulo(numerator, d, place)})"


def _modulo(numerator: Index, d: int, place: _Place) -> str:
    # No binary operator: TeX puts no space around those in limits, where domains stand.
    return rf"{_operand(numerator, place)}~\mathrm{{mod}}~{place.token(str(d))}"


def _operand(numerator: Index, place: _Place) -> str:
    shown = _index(numerator, place)
    match numerator:
        case Index(((Iterator() | Quotient(), k),), 0) if k > 0:
            return shown
    return f"({shown})"


OPEN, BREAK, CLOSE = "\x01\x02\x03"
"""Marks in a formula: the start of a bracket's content, a place to break the line, the end of the content."""

TOKEN, NAMED, END = "\x04\x05\x06"
"""Marks of a token in a formula: its start, the end of its name, which may be empty, and its end.  Tokens nest."""

_BRACKETS = re.compile(r"\\left\((.*)\\right\)", re.DOTALL)


def unbroken(shown: str) -> str:
    """Remove all marks of places to break *shown* at."""
    return re.sub(f"[{OPEN}{BREAK}{CLOSE}]", "", shown)


def latex_function(op: str, shown: Sequence[str], dialect: str, token: Callable[[str], str] = str) -> str:
    """Print a call of function *op* with printed arguments; *token* prints its name."""
    if op == "where" and any(BREAK in one for one in shown):
        return token(r"\mathrm{where}") + f"({OPEN}" + rf",\,{BREAK}".join(shown) + f"{CLOSE})"
    if op == "where" and dialect != "mathtext":
        condition, x, y = shown
        return rf"\begin{{cases}} {x} & {condition} \\ {y} & \text{{otherwise}} \end{{cases}}"
    known = SCALAR_FUNCTIONS.get(op)
    form = known.latex if known and known.latex and len(shown) == known.arity else ""
    form = form or rf"\mathrm{{{op}}}\left({', '.join(['%s'] * len(shown))}\right)"
    name, bracket, arguments = form.partition(r"\left(")
    form = token(name) + bracket + arguments if name and bracket else form
    if not any(BREAK in one for one in shown):
        return form % tuple(shown)
    if not form.endswith(r"\right)"):  # no line ends inside of a root
        return form % tuple(map(unbroken, shown))
    return _BRACKETS.sub(rf"({OPEN}\1{CLOSE})", form).replace(", ", f", {BREAK}") % tuple(shown)


def latex_matrix(table: Table, dialect: str) -> str:
    """Print a table of rank 2 as a matrix; other ranks, and mathtext, get the entries in a row."""
    shown = [str(x) if x.denominator == 1 else _fraction(x) for x in table.entries]
    if len(table.shape) != 2 or dialect == "mathtext":
        return rf"\left({', '.join(shown)}\right)"
    columns = table.shape[1]
    rows = r" \\ ".join(" & ".join(shown[n : n + columns]) for n in range(0, len(shown), columns))
    return rf"\left[\begin{{smallmatrix}} {rows} \end{{smallmatrix}}\right]"


def _fraction(x: Fraction) -> str:
    sign = "-" if x < 0 else ""
    return rf"{sign}\frac{{{abs(x.numerator)}}}{{{x.denominator}}}"


Dialect: TypeAlias = Literal["amsmath", "katex", "mathtext"]
Ranges: TypeAlias = Literal["short", "full"]

SUM, PRODUCT, ATOM = range(3)
"""How tightly the operators bind, loosest first."""

_COMPARE = {"<": "<", "<=": r"\leq", ">": ">", ">=": r"\geq", "==": "=", "!=": r"\neq"}
_REDUCE = {"sum": r"\sum", "prod": r"\prod", "max": r"\max", "min": r"\min"}


@dataclass(frozen=True, slots=True)
class _Place:
    """Options of printing, and the place in the tree: *numbers* counts the accesses of the scope at *path*."""

    dialect: Dialect
    ranges: Ranges
    marks: Mapping[Path, str]
    breaks: bool = False
    path: Path = ()
    numbers: count[int] = field(default_factory=count)
    tensors: Mapping[str, int] | None = None
    iterators: tuple[Iterator, ...] = ()
    factors: count[int] = field(default_factory=count)

    def below(self, step: int) -> _Place:
        return replace(self, path=(*self.path, step), numbers=count(), factors=count())

    def mark(self, mark: str) -> str:
        return mark if self.breaks else ""

    def token(self, shown: str, name: str = "") -> str:
        """Print *shown* as a token if the *tensors* of the program are numbered."""
        return shown if self.tensors is None else f"{TOKEN}{name}{NAMED}{shown}{END}"

    def named(self, kind: str, number: int | None = None) -> str:
        """Return the name of a token: a letter, the path of its scope or access, and a number."""
        return f"{kind}{show_path(self.path)}" + ("" if number is None else f"_{number}")

    def iterator(self, it: Iterator) -> str:
        known = it in self.iterators
        return self.token(latex_name(it.name), self.named("x", self.iterators.index(it)) if known else "")

    def tensor(self, name: str) -> str:
        return self.token(latex_name(name), "" if self.tensors is None else f"t{self.tensors[name]}")


def latex(
    it: Program | Scope | Scalar | Index,
    dialect: Dialect = "amsmath",
    marks: Mapping[Path, str] | None = None,
    ranges: Ranges = "short",
) -> str:
    r"""Print *it* in LaTeX, without dollar signs; several equations are ``aligned``.

    *marks* gives scopes, named by their paths, a colour (``mathtext`` underlines them). *ranges* is ``"full"`` for
    :math:`\sum_{0 \leq c < 512}` instead of :math:`\sum_c`. ``mathtext`` has no environments: there a program is one
    line per equation. Raises ValueError for an unknown dialect.
    """
    if dialect not in ("amsmath", "katex", "mathtext"):
        raise ValueError(f"dialect {dialect!r}, expected amsmath, katex or mathtext")
    if ranges not in ("short", "full"):
        raise ValueError(f"ranges {ranges!r}, expected short or full")
    place = _Place(dialect, ranges, marks or {})
    shown = _latex(it, place)
    return shown.replace(r"\&", "&") if dialect == "mathtext" else shown  # there & is a letter like any other


def breakable_formula(it: Equation | Scope, dialect: Dialect) -> str:
    """Print *it* with marks of the places at which it may be broken; both brackets have one size.

    The marks are the same in every *dialect*.
    """
    place = _Place(dialect, "short", {}, breaks=True)
    shown = _outer_scope(it, place) if isinstance(it, Scope) else " = ".join(_equation(it, place))
    return shown.replace(r"\&", "&") if dialect == "mathtext" else shown


def tokens_of(program: Program) -> str:
    r"""Print *program* for pages that break and colour it: one line per equation, with marks of places and of tokens.

    The name of a token is a letter for its kind, the path of its scope or access, and a number: ``p0.1`` a scope,
    ``a0.1`` an access, ``i0.1_2`` an index of it, ``x0_3`` an iterator of a scope, ``f0_2`` a factor, term or argument,
    ``t4`` a tensor (inputs first, then equations).  Numbers, signs and operators are tokens without a name.
    """
    names = dict.fromkeys((*(t.name for t in program.inputs), *(e.name for e in program.equations)))
    place = _Place("amsmath", "short", {}, breaks=True, tensors={name: n for n, name in enumerate(names)})
    return "\n".join(" = ".join(_equation(e, place.below(n))) for n, e in enumerate(program.equations))


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
    r"""Print a derivation :math:`E_0 \Rightarrow E_1 \Rightarrow \dots` as an ``align*`` block with a reason per step.

    After the first program only the equations that a step made or changed are shown, preceded by the reason. Raises
    ValueError unless there is at least one program and one reason per step, and for ``mathtext``, which has no
    environments.
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
    via = rf" \qquad {place.mark(BREAK)}\triangleright~{_instance(equation.via, place)}" if equation.via else ""
    return place.tensor(equation.name), _outer_scope(equation.scope, place) + _types(equation.scope, place) + via


def _types(scope: Scope, place: _Place) -> str:
    """Print the types of what *scope* reads and of its result, if one is not ``float32``."""
    reads, result = tuple(tensors(scope)), element_type(scope)
    if result == FLOAT32 and all(t.dtype == FLOAT32 for t in reads):
        return ""
    shown = r",\,".join(rf"{place.tensor(t.name)}\colon \mathrm{{{t.dtype}}}" for t in reads)
    return rf" \quad {place.mark(BREAK)}({shown} \to \mathrm{{{result}}})"


def _outer_scope(scope: Scope, place: _Place) -> str:
    """Print a scope that no other reads: without braces, unless it has padding."""
    return _wrap_marks(_brace_scope(scope, place) if scope.padding or scope.value else _scope_body(scope, place), place)


def _wrap_marks(shown: str, place: _Place) -> str:
    if colour := place.marks.get(place.path):
        shown = rf"\underline{{{shown}}}" if place.dialect == "mathtext" else rf"\textcolor{{{colour}}}{{{shown}}}"
    if place.dialect == "katex":
        return rf"\htmlData{{p={show_path(place.path)}}}{{{shown}}}"
    return place.token(shown, place.named("p"))


def _brace_scope(scope: Scope, place: _Place) -> str:
    edges = r",\,".join(str(lo) if lo == hi else f"({lo},{hi})" for lo, hi in scope.padding)
    notes = [rf"\mathrm{{pad}}~{edges}"] if scope.padding else []
    notes += [rf"\mathrm{{value}}~{latex_number(scope.value)}"] if scope.value else []
    note = r",~".join(notes)
    inside = _scope_body(scope, place)
    left, right = place.token(r"\{"), place.token(r"\}")
    shown = f"{left}{OPEN}{inside}{CLOSE}{right}" if place.breaks else rf"\left\{{{inside}\right\}}"
    return shown + (f"^{{{place.token(note)}}}" if note else "")


def _scope_body(scope: Scope, place: _Place) -> str:
    place = replace(place, iterators=(*scope.traversals, *scope.summations))
    domain = r",~".join(_bound(b, place) for b in scope.domain)
    head = _operator(None, scope.traversals, domain, place)
    plain = not scope.summations and scope.reduce == "sum"
    sums = "" if plain else _operator(scope.reduce, scope.summations, "", place)
    # A reduction takes all that follows, but in print a sum would seem to end it.
    parts = filter(None, (head, sums, _scalar(scope.body, place, SUM if plain else PRODUCT)))
    return (rf"\; {BREAK}" if place.breaks else " ").join(parts)  # Matplotlib sets no space after an operator


def _operator(reduce: str | None, over: Sequence[Iterator], domain: str, place: _Place) -> str:
    """Print ``L`` (*reduce* None) or a reduction over iterators: one sign for all, or one with its range for each."""
    condition = rf" \mid {domain}" if domain else ""
    if place.ranges == "short" or not over:
        return _sign(reduce, ",".join(map(place.iterator, over)) + condition, place)
    last = len(over) - 1
    return r"\;".join(  # ranges are wider than their signs: without it they would touch
        _sign(reduce, rf"{x.lo} \leq {place.iterator(x)} < {x.hi}" + (condition if n == last else ""), place)
        for n, x in enumerate(over)
    )


def _sign(reduce: str | None, below: str, place: _Place) -> str:
    if reduce:
        sign = _REDUCE[reduce] if place.tensors is None else rf"\mathop{{{place.token(_REDUCE[reduce])}}}\limits"
        return sign + (f"_{{{below}}}" if below else "")
    if place.dialect == "mathtext":
        return rf"\underset{{{below}}}{{\mathbf{{L}}}}" if below else r"\mathbf{L}"
    return r"\mathop{" + place.token(r"\mathbf{L}") + "}" + (rf"\limits_{{{below}}}" if below else "")


def _bound(bound: Bound, place: _Place) -> str:
    lo, hi = place.token(str(bound.lo)), place.token(str(bound.hi))
    return rf"{lo} \leq {_index(bound.index, place)} < {hi}"


def _scalar(body: Scalar, place: _Place, level: int = SUM) -> str:
    """Print *body*, parenthesised if it binds more loosely than *level*."""
    match body:
        case Access():
            return _access(body, place)
        case Const(value):
            return _parenthesise(place.token(latex_number(value)), SUM if value < 0 else ATOM, level)
        case _:
            name = place.named("f", next(place.factors))
            return place.token(_operation(body, place, level), name)


def _operation(body: Scalar, place: _Place, level: int) -> str:
    match body:
        case Compare(op, left, right):
            return f"{_index(left, place)} {place.token(_COMPARE[op])} {_index(right, place)}"
        case Apply("+" | "-" as op, (first, *rest)):
            terms = (_scalar(first, place), *(_scalar(a, place, PRODUCT) for a in rest))
            return _parenthesise(f" {place.mark(BREAK)}{place.token(op)} ".join(terms), SUM, level)
        case Apply("*", (Const(value), *rest)) if value < 0:
            factors = (place.token(latex_number(value)), *(_scalar(a, place, ATOM) for a in rest))
            return _parenthesise(rf"\,{place.mark(BREAK)}".join(factors), SUM, level)
        case Apply("*", args):
            return _parenthesise(rf"\,{place.mark(BREAK)}".join(_scalar(a, place, ATOM) for a in args), PRODUCT, level)
        case Apply("/", (above, below)) if place.breaks and _has_scopes(body):
            quotient = f"{_scalar(above, place, PRODUCT)} {BREAK}{place.token('/')} {_scalar(below, place, ATOM)}"
            return _parenthesise(quotient, PRODUCT, level)
        case Apply("/", (above, below)):
            place = replace(place, breaks=False)
            return rf"\frac{{{_scalar(above, place)}}}{{{_scalar(below, place)}}}"
        case Apply("neg", (inner,)):
            return _parenthesise(f"{place.token('-')}{_scalar(inner, place, PRODUCT)}", SUM, level)
        case Apply(op, args):
            return latex_function(op, [_scalar(a, place) for a in args], place.dialect, place.token)
    raise TypeError(f"found {body!r}, expected an operation")


def _has_scopes(body: Scalar) -> bool:
    return any(isinstance(part, Access) and isinstance(part.source, Scope) for part in walk_scalar(body))


def _access(access: Access, place: _Place) -> str:
    inside = place.below(next(place.numbers))
    indices = (place.token(_index(it, place), inside.named("i", n)) for n, it in enumerate(access.index))
    at = f"[{place.mark(OPEN)}{f', {place.mark(BREAK)}'.join(indices)}{place.mark(CLOSE)}]"
    match access.source:
        case Scope() as scope:
            source = _wrap_marks(_brace_scope(scope, inside), inside)
        case Table() as table:
            source = place.token(latex_matrix(table, place.dialect))
        case Tensor() as tensor:
            source = place.tensor(tensor.name)
    return place.token(source + at, inside.named("a"))


def _instance(via: Instance, place: _Place) -> str:
    shown: Iterable[str] = (
        place.token(f"{latex_name(k)}{{=}}{escape_latex(v) if isinstance(v, str) else v}") for k, v in via.attributes
    )
    inside = f", {place.mark(BREAK)}".join(shown)
    operator = place.token(rf"\mathrm{{{escape_latex(via.operator)}}}")
    return rf"{operator}({place.mark(OPEN)}{inside}{place.mark(CLOSE)})"


def _parenthesise(shown: str, binding: int, level: int) -> str:
    """Parenthesise *shown*, whose operator binds as tightly as *binding*, if *level* binds more tightly."""
    if level <= binding:
        return shown
    return rf"({OPEN}{shown}{CLOSE})" if BREAK in shown else rf"\left({shown}\right)"
