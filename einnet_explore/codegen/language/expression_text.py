"""Expressions and memory accesses of the kernel language as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, isinf, isnan

import numpy as np

from einnet_explore.codegen.language.dialects import CUDA, OPENCL, C, Dialect, IdentifierTable
from einnet_explore.codegen.language.register_transpose import (
    STREAMING_SOURCE,
    WORD_TYPES,
    partial_store_source,
    transpose_source,
)
from einnet_explore.codegen.language.statements import Copy, For, PairOperation, Store, StoreTransposed, counted_loop
from einnet_explore.codegen.language.tree_walk import integer_constant
from einnet_explore.codegen.language.types import BOOL, F16, F32, Type
from einnet_explore.codegen.language.values import (
    Array,
    Binary,
    Call,
    Cast,
    Expr,
    LaunchIndex,
    Literal,
    Load,
    Select,
    Unary,
    Var,
    cast,
)
from einnet_explore.support.errors import Refused

_PRECEDENCE = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
UNARY_PRECEDENCE, _ATOM_PRECEDENCE = 11, 12


@dataclass
class ExpressionPrinter:
    """Prints expressions; *helpers* collects the functions that they need and the dialect lacks, by name."""

    dialect: Dialect
    names: IdentifierTable = field(default_factory=IdentifierTable)
    helpers: dict[str, str] = field(default_factory=dict)

    def expr(self, e: Expr, least: int = 0) -> str:
        """Return the text of *e*, in parentheses if it binds less tightly than *least*."""
        text, binds = self._bound(e)
        return f"({text})" if binds < least else text

    def _bound(self, e: Expr) -> tuple[str, int]:
        match e:
            case Literal(value, kind):
                return self._literal(value, kind)
            case Var(name):
                return self.names.of(name), _ATOM_PRECEDENCE
            case LaunchIndex(of, dim):
                said = self.dialect.ids[of][dim]
                return (said, _ATOM_PRECEDENCE) if self.dialect is C else (f"(int){said}", UNARY_PRECEDENCE)
            case Unary(op, arg):
                return f"{op}{self.expr(arg, _ATOM_PRECEDENCE)}", UNARY_PRECEDENCE
            case Binary(op, left, right):
                binds = _PRECEDENCE[op]
                # Mixed logic and bits are parenthesised for compilers that warn, and for readers.
                inner = max(binds, 9) if op in ("&", "|", "^", "<<", ">>", "==", "!=") else binds
                return f"{self.expr(left, inner)} {op} {self.expr(right, max(inner, binds + 1))}", binds
            case Cast(kind, LaunchIndex(of, dim)) if self.dialect is not C and kind.integer:
                return f"({self._type(kind)}){self.dialect.ids[of][dim]}", UNARY_PRECEDENCE
            case Cast(kind, arg):
                if kind == BOOL:
                    return f"{self.expr(arg, 7)} != 0", _PRECEDENCE["!="]
                return f"({self._type(kind)}){self.expr(arg, UNARY_PRECEDENCE)}", UNARY_PRECEDENCE
            case Select(condition, yes, no):
                return f"{self.expr(condition, 1)} ? {self.expr(yes, 1)} : {self.expr(no)}", 0
            case Load(array, index):
                return self._load(array, index)
            case Call(name, args):
                return self._call(name, args), _ATOM_PRECEDENCE
        raise Refused(f"{type(e).__name__} is no expression of a kernel")

    def _load(self, array: Array, index: Expr) -> tuple[str, int]:
        if array.kind == F16 and self.dialect is OPENCL:
            return f"vload_half({self.expr(index)}, {self._half(array, 'const ')})", _ATOM_PRECEDENCE
        text = f"{self.names.of(array.name)}[{self.expr(index)}]"
        if array.kind == F16:
            return (
                (f"__half2float({text})", _ATOM_PRECEDENCE)
                if self.dialect is CUDA
                else (f"(float){text}", UNARY_PRECEDENCE)
            )
        return (text, _ATOM_PRECEDENCE)

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
        return f"{number}{suffix}", _ATOM_PRECEDENCE if number >= 0 else UNARY_PRECEDENCE

    def _float(self, value: float, kind: Type) -> tuple[str, int]:
        infinity, nan = self.dialect.infinity
        if isnan(value):
            return nan, _ATOM_PRECEDENCE
        single = kind == F32
        with np.errstate(over="ignore"):
            value = float(np.float32(value)) if single else value
        if isinf(value):
            return (infinity, _ATOM_PRECEDENCE) if value == inf else (f"-{infinity}", UNARY_PRECEDENCE)
        text = repr(np.float32(value).item()) if not single else str(np.float32(value))
        text = repr(value) if not single else text
        text = text if any(c in text for c in ".e") else f"{text}.0"
        return f"{text}{'f' if single else ''}", _ATOM_PRECEDENCE if value >= 0 and not text.startswith(
            "-"
        ) else UNARY_PRECEDENCE

    def _type(self, kind: Type) -> str:
        return self.dialect.spell(kind)

    def _half(self, array: Array, qualifier: str = "") -> str:
        return f"({self.dialect.spaces[array.space]}{qualifier}half *){self.names.of(array.name)}"


class MemoryPrinter(ExpressionPrinter):
    """Prints declarations, loads, stores and copies of arrays: each dialect has its own vectors, halves and copies."""

    def local(self, array: Array) -> str:
        """Return the declaration of a thread's or a block's array."""
        space = self.dialect.spaces[array.space]
        named = f"{self.dialect.spell(array.kind)} {self.names.of(array.name)}[{array.size}]"
        if not array.align:
            return f"{space}{named};"
        if self.dialect is OPENCL:
            return f"{space}{named} __attribute__((aligned({array.align})));"
        align = f"__align__({array.align})" if self.dialect is CUDA else f"_Alignas({array.align})"
        return f"{space}{align} {named};"

    def place(self, array: Array, index: Expr) -> str:
        """Return a pointer to an element."""
        name = self.names.of(array.name)
        return name if integer_constant(index) == 0 else f"{name} + {self.expr(index, 9)}"

    def store(self, array: Array, index: Expr, value: Expr) -> str:
        """Return a store of one element."""
        if array.kind == F16 and self.dialect is OPENCL:
            return f"vstore_half_rte({self.expr(value)}, {self.expr(index)}, {self._half(array)});"
        said = self.expr(value)
        if array.kind == F16:
            said = (
                f"__float2half_rn({said})"
                if self.dialect is CUDA
                else f"(_Float16){self.expr(value, UNARY_PRECEDENCE)}"
            )
        return f"{self.names.of(array.name)}[{self.expr(index)}] = {said};"

    def copy(self, s: Copy) -> Iterable[str]:
        """Yield a copy of several elements."""
        size = s.size * s.target.kind.size
        to, origin = self.place(s.target, s.write), self.place(s.source, s.read)
        if s.asynchronous and self.dialect is CUDA:
            yield f"copy_async<{size}>({to}, {origin});"
        elif self.dialect is C:
            private = s.source.space == "private" and integer_constant(s.read) == 0 and s.target.kind == F32
            lanes = next((n for n in (4, 8, 16) if n > s.size), 0)
            if private and lanes and not s.whole and s.size > 1 and s.source.align == s.source.size * 4 == lanes * 4:
                self.helpers.setdefault(f"part_{lanes}", partial_store_source(lanes))
                yield f"part_{lanes}({to}, {origin}, {s.size});"
            else:
                yield f"memcpy({to}, {origin}, {size});"
        elif not s.whole:
            to, origin = self.names.of(s.target.name), self.names.of(s.source.name)
            for n in range(s.size):
                yield f"{to}[{self.expr(s.write + n)}] = {origin}[{self.expr(s.read + n)}];"
        elif self.dialect is CUDA:
            yield f"*reinterpret_cast<pack_{size} *>({to}) = *reinterpret_cast<const pack_{size} *>({origin});"
        else:
            word = f"{self.dialect.spell(s.target.kind)}{s.size}"
            spaces = self.dialect.spaces
            target, source = spaces[s.target.space], spaces[s.source.space]
            yield f"*({target}{word} *)({to}) = *({source}const {word} *)({origin});"

    def load_pair(self, left: Var, right: Var, array: Array, index: Expr) -> Iterable[str]:
        """Yield a load of two neighbouring halves as two floats."""
        a, b = self.names.of(left.name), self.names.of(right.name)
        if self.dialect is CUDA:
            pair = self.names.of(f"{left.name} {right.name}")
            at = self.place(array, index)
            yield f"const float2 {pair} = __half22float2(*reinterpret_cast<const __half2 *>({at}));"
            yield f"float {a} = {pair}.x, {b} = {pair}.y;"
        elif self.dialect is OPENCL:
            pair = self.names.of(f"{left.name} {right.name}")
            where = f"({self.dialect.spaces[array.space]}const half *)({self.place(array, index)})"
            yield f"const float2 {pair} = vload_half2(0, {where});"
            yield f"float {a} = {pair}.x, {b} = {pair}.y;"
        else:
            yield f"float {a} = {self.expr(Load(array, index))}, {b} = {self.expr(Load(array, index + 1))};"

    def store_pair(self, array: Array, index: Expr, left: Expr, right: Expr) -> Iterable[str]:
        """Yield a store of two floats as two neighbouring halves."""
        a, b = self.expr(left), self.expr(right)
        at = self.place(array, index)
        if self.dialect is CUDA:
            yield f"*reinterpret_cast<__half2 *>({at}) = __float22half2_rn(make_float2({a}, {b}));"
        elif self.dialect is OPENCL:
            where = f"({self.dialect.spaces[array.space]}half *)({at})"
            yield f"vstore_half2_rte((float2)({a}, {b}), 0, {where});"
        else:
            yield self.store(array, index, left)
            yield self.store(array, index + 1, right)

    def pair_operation(self, s: PairOperation) -> Iterable[str]:
        """Yield an operation on two neighbouring halves."""
        if self.dialect is CUDA:
            name = {"+": "__hadd2", "-": "__hsub2", "*": "__hmul2"}[s.op]
            a, b = (f"*reinterpret_cast<const __half2 *>({self.place(x, s.index)})" for x in (s.left, s.right))
            yield f"*reinterpret_cast<__half2 *>({self.place(s.target, s.index)}) = {name}({a}, {b});"
            return
        each = [Binary(s.op, Load(s.left, s.index + n), Load(s.right, s.index + n)) for n in range(2)]
        yield from self.store_pair(s.target, s.index, *each)

    def turn(self, s: StoreTransposed) -> str:
        """Return a call of the C function that transposes a tile."""
        size = s.target.kind.size
        name = f"{'stream' if s.streamed else 'turn'}_{s.side}_{size}"
        self.helpers.setdefault("turn", STREAMING_SOURCE)
        self.helpers.setdefault(f"turn_{s.side}_{size}", transpose_source(s.side, size))
        word = WORD_TYPES[size]
        to, tile = self.place(s.target, s.write), self.names.of(s.tile.name)
        return f"{name}(({word} *)({to}), {s.stride}, (const {word} *){tile});"


def transpose_loops(s: StoreTransposed) -> For:
    """Return loops that transpose a tile element by element."""
    i, j = Var(":i"), Var(":j")
    value: Expr = Load(s.tile, i * s.side + j)
    place = s.write + cast(s.write.type, j * s.stride + i)
    inner = counted_loop(i, s.side, Store(s.target, place, value), hint="unroll")
    return counted_loop(j, s.side, inner, hint="unroll")
