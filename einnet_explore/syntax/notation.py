"""The small parts of LaTeX that the dialects share: names, numbers, indices, functions, matrices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from einnet_explore.ir import SCALAR_FUNCTIONS, Atom, Index, Iterator, Quotient, Remainder, Table

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
    """*text* with the characters that mean something to TeX escaped."""
    return "".join(_SPECIAL.get(c, c) for c in text)


_WORDS = {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "×": r"$\times$", "·": r"$\cdot$", "−": r"$-$",
    "Δ": r"$\Delta$", "Σ": r"$\Sigma$", "Φ": r"$\Phi$", "µ": r"$\mu$", "–": "--", "…": r"\dots{}", "→": r"$\to$",
    "≤": r"$\leq$", "≥": r"$\geq$", "∞": r"$\infty$", "✓": r"$\surd$", "✗": r"$\times$", "±": r"$\pm$", "∈": r"$\in$",
} | {c: f"\\{c}" for c in "%&_{}$#"}  # fmt: skip


def latex_words(text: str) -> str:
    """*text* for TeX outside formulas; a sign that has no command there becomes a question mark."""
    return "".join(_WORDS.get(c, c if c.isascii() else "?") for c in text)


def latex_name(text: str) -> str:
    """``T1`` as ``T_{1}``; names of several letters as one italic word."""
    if text.isidentifier() and (found := re.fullmatch(r"(.*?[^\d_])_?(\d+)", text)):
        return f"{latex_name(found[1])}_{{{found[2]}}}"
    return text if len(text) == 1 and text.isalpha() else rf"\mathit{{{escape_latex(text)}}}"


def latex_number(value: float) -> str:
    """Whole numbers without a point, powers of ten as such."""
    if value in (float("inf"), float("-inf")):
        return r"\infty" if value > 0 else r"-\infty"
    if float(value).is_integer() and abs(value) < 1e16:
        return str(int(value))
    digits, _, power = repr(float(value)).partition("e")
    return rf"{digits} \times 10^{{{int(power)}}}" if power else digits


def latex_index(it: Index) -> str:
    """An index, its positive terms first: ``y + 1 - 2h`` reads better than ``-2h + y + 1``."""
    match it:
        case Index(((Remainder(numerator, d), 1),), 0):
            return _modulo(numerator, d)
    parts = [(k, _product(abs(k), atom)) for atom, k in it.terms]
    parts += [(it.const, str(abs(it.const)))] if it.const or not parts else []
    if parts[0][0] < 0:
        parts.sort(key=lambda part: part[0] < 0)
    first, *rest = parts
    return ("-" if first[0] < 0 else "") + first[1] + "".join(f"{'-' if k < 0 else '+'}{shown}" for k, shown in rest)


def _product(k: int, atom: Atom) -> str:
    factor = "" if k == 1 else str(k)
    match atom:
        case Iterator(text):
            return factor + latex_name(text)
        case Quotient(numerator, d):
            return rf"{factor}\lfloor {_operand(numerator)} / {d} \rfloor"
        case Remainder(numerator, d):
            return f"{factor}({_modulo(numerator, d)})"


def _modulo(numerator: Index, d: int) -> str:
    # No binary operator: TeX puts no space around those in limits, where domains stand.
    return rf"{_operand(numerator)}~\mathrm{{mod}}~{d}"


def _operand(numerator: Index) -> str:
    shown = latex_index(numerator)
    match numerator:
        case Index(((Iterator() | Quotient(), k),), 0) if k > 0:
            return shown
    return f"({shown})"


def latex_function(op: str, shown: Sequence[str], dialect: str) -> str:
    """The function *op* of the text form of arguments that are printed already."""
    if op == "where" and dialect != "mathtext":
        condition, x, y = shown
        return rf"\begin{{cases}} {x} & {condition} \\ {y} & \text{{otherwise}} \end{{cases}}"
    known = SCALAR_FUNCTIONS.get(op)
    if known and known.latex and len(shown) == known.arity:
        return known.latex % tuple(shown)
    return rf"\mathrm{{{op}}}\left({', '.join(shown)}\right)"


def latex_matrix(table: Table, dialect: str) -> str:
    """A matrix as one; mathtext and tables of another rank get the entries in a row."""
    shown = [str(x) if x.denominator == 1 else _fraction(x) for x in table.entries]
    if len(table.shape) != 2 or dialect == "mathtext":
        return rf"\left({', '.join(shown)}\right)"
    columns = table.shape[1]
    rows = r" \\ ".join(" & ".join(shown[n : n + columns]) for n in range(0, len(shown), columns))
    return rf"\left[\begin{{smallmatrix}} {rows} \end{{smallmatrix}}\right]"


def _fraction(x: Fraction) -> str:
    sign = "-" if x < 0 else ""
    return rf"{sign}\frac{{{abs(x.numerator)}}}{{{x.denominator}}}"
