"""Expressions of the kernel language as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isinf, isnan

import numpy as np

from einnet_explore.kernels.source.arrays import Array, Load
from einnet_explore.kernels.source.calls import Call, Select
from einnet_explore.kernels.source.dialects import CUDA, OPENCL, C, Dialect
from einnet_explore.kernels.source.names import Names
from einnet_explore.kernels.source.types import BOOL, F16, F32, KernelError, Type
from einnet_explore.kernels.source.values import Binary, Cast, Expr, Id, Literal, Unary, Var

_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
UNARY, _ATOM = 11, 12


@dataclass
class Terms:
    """Prints expressions; *helpers* collects the functions that they need and the dialect lacks, by name."""

    dialect: Dialect
    names: Names = field(default_factory=Names)
    helpers: dict[str, str] = field(default_factory=dict)

    def expr(self, e: Expr, least: int = 0) -> str:
        """*e* as text; in parentheses where it binds less than *least*."""
        text, binds = self._bound(e)
        return f"({text})" if binds < least else text

    def _bound(self, e: Expr) -> tuple[str, int]:
        match e:
            case Literal(value, kind):
                return self._literal(value, kind)
            case Var(name):
                return self.names.of(name), _ATOM
            case Id(of, dim):
                said = self.dialect.ids[of][dim]
                return (said, _ATOM) if self.dialect is C else (f"(int){said}", UNARY)
            case Unary(op, arg):
                return f"{op}{self.expr(arg, _ATOM)}", UNARY
            case Binary(op, left, right):
                binds = _PRECEDENCE[op]
                # Mixed logic and bits are parenthesised for compilers that warn, and for readers.
                inner = max(binds, 9) if op in ("&", "|", "^", "<<", ">>", "==", "!=") else binds
                return f"{self.expr(left, inner)} {op} {self.expr(right, max(inner, binds + 1))}", binds
            case Cast(kind, Id(of, dim)) if self.dialect is not C and kind.integer:
                return f"({self._type(kind)}){self.dialect.ids[of][dim]}", UNARY
            case Cast(kind, arg):
                if kind == BOOL:
                    return f"{self.expr(arg, 7)} != 0", _PRECEDENCE["!="]
                return f"({self._type(kind)}){self.expr(arg, UNARY)}", UNARY
            case Select(condition, yes, no):
                return f"{self.expr(condition, 1)} ? {self.expr(yes, 1)} : {self.expr(no)}", 0
            case Load(array, index):
                return self._load(array, index)
            case Call(name, args):
                return self._call(name, args), _ATOM
        raise KernelError(f"{type(e).__name__} is no expression of a kernel")

    def _load(self, array: Array, index: Expr) -> tuple[str, int]:
        if array.kind == F16 and self.dialect is OPENCL:
            return f"vload_half({self.expr(index)}, {self._half(array, write=False)})", _ATOM
        text = f"{self.names.of(array.name)}[{self.expr(index)}]"
        if array.kind == F16:
            return (f"__half2float({text})", _ATOM) if self.dialect is CUDA else (f"(float){text}", UNARY)
        return (text, _ATOM)

    def _call(self, name: str, args: tuple[Expr, ...]) -> str:
        kind = args[0].type
        said = ", ".join(self.expr(a) for a in args)
        built_in = self.dialect.function(name, kind)
        if built_in is None:
            built_in = f"{name}_{kind!r}"
            for needed in (*self.dialect.needs(name, kind), name):
                self.helpers.setdefault(f"{needed}_{kind!r}", self.dialect.helper_text(needed, kind))
        return f"{built_in}({said})"

    def _literal(self, value: float | int | bool, kind: Type) -> tuple[str, int]:
        if kind.kind == "float":
            return self._float(float(value), kind)
        number = int(value)
        suffix = self.dialect.suffix.get(repr(kind), "")
        if number == -(1 << kind.bits - 1) and kind.kind == "int" and kind.bits >= 32:
            return f"-{-(number + 1)}{suffix} - 1", 0
        return f"{number}{suffix}", _ATOM if number >= 0 else UNARY

    def _float(self, value: float, kind: Type) -> tuple[str, int]:
        infinity, nan = self.dialect.infinity
        if isnan(value):
            return nan, _ATOM
        single = kind == F32
        with np.errstate(over="ignore"):
            value = float(np.float32(value)) if single else value
        if isinf(value):
            return (infinity, _ATOM) if value == inf else (f"-{infinity}", UNARY)
        text = repr(np.float32(value).item()) if not single else str(np.float32(value))
        text = repr(value) if not single else text
        text = text if any(c in text for c in ".e") else f"{text}.0"
        return f"{text}{'f' if single else ''}", _ATOM if value >= 0 and not text.startswith("-") else UNARY

    def _type(self, kind: Type) -> str:
        return self.dialect.spell(kind)

    def _half(self, array: Array, write: bool = True) -> str:
        const = "" if write else "const "
        return f"({self.dialect.spaces[array.space]}{const}half *){self.names.of(array.name)}"
