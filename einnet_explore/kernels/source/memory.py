"""Statements that move memory, as text: each dialect has its own words for vectors, halves and copies."""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.kernels.source.arrays import Array, Load
from einnet_explore.kernels.source.dialects import CUDA, OPENCL, C
from einnet_explore.kernels.source.shuffles import STREAMING, WORDS, part_in_c, turn_in_c
from einnet_explore.kernels.source.statements import Copy, For, PairOperation, Store, Turn, counted
from einnet_explore.kernels.source.terms import UNARY, Terms
from einnet_explore.kernels.source.types import F16, F32
from einnet_explore.kernels.source.values import Binary, Expr, Var, cast
from einnet_explore.kernels.source.walk import constant


class Memory(Terms):
    """What declares, reads and writes arrays."""

    def local(self, array: Array) -> str:
        """The declaration of an array of this thread's, or of its block's."""
        space = self.dialect.spaces[array.space]
        named = f"{self.dialect.spell(array.kind)} {self.names.of(array.name)}[{array.size}]"
        if not array.align:
            return f"{space}{named};"
        if self.dialect is OPENCL:
            return f"{space}{named} __attribute__((aligned({array.align})));"
        align = f"__align__({array.align})" if self.dialect is CUDA else f"_Alignas({array.align})"
        return f"{space}{align} {named};"

    def place(self, array: Array, index: Expr) -> str:
        """A pointer to an element."""
        name = self.names.of(array.name)
        return name if constant(index) == 0 else f"{name} + {self.expr(index, 9)}"

    def store(self, array: Array, index: Expr, value: Expr) -> str:
        """One element written."""
        if array.kind == F16 and self.dialect is OPENCL:
            return f"vstore_half_rte({self.expr(value)}, {self.expr(index)}, {self._half(array)});"
        said = self.expr(value)
        if array.kind == F16:
            said = f"__float2half_rn({said})" if self.dialect is CUDA else f"(_Float16){self.expr(value, UNARY)}"
        return f"{self.names.of(array.name)}[{self.expr(index)}] = {said};"

    def copy(self, s: Copy) -> Iterable[str]:
        """Several elements at once."""
        size = s.size * s.target.kind.size
        to, origin = self.place(s.target, s.write), self.place(s.source, s.read)
        if s.asynchronous and self.dialect is CUDA:
            yield f"copy_async<{size}>({to}, {origin});"
        elif self.dialect is C:
            private = s.source.space == "private" and constant(s.read) == 0 and s.target.kind == F32
            lanes = next((n for n in (4, 8, 16) if n > s.size), 0)
            if private and lanes and not s.whole and s.size > 1 and s.source.align == s.source.size * 4 == lanes * 4:
                self.helpers.setdefault(f"part_{lanes}", part_in_c(lanes))
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
        """Two neighbours, halves, as two floats."""
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
        """Two floats as two neighbours, halves."""
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
        """Two neighbours computed at once."""
        if self.dialect is CUDA:
            name = {"+": "__hadd2", "-": "__hsub2", "*": "__hmul2"}[s.op]
            a, b = (f"*reinterpret_cast<const __half2 *>({self.place(x, s.index)})" for x in (s.left, s.right))
            yield f"*reinterpret_cast<__half2 *>({self.place(s.target, s.index)}) = {name}({a}, {b});"
            return
        each = [Binary(s.op, Load(s.left, s.index + n), Load(s.right, s.index + n)) for n in range(2)]
        yield from self.store_pair(s.target, s.index, *each)

    def turn(self, s: Turn) -> str:
        """A tile transposed by a function of its own, in C."""
        size = s.target.kind.size
        name = f"{'stream' if s.streamed else 'turn'}_{s.side}_{size}"
        self.helpers.setdefault("turn", STREAMING)
        self.helpers.setdefault(f"turn_{s.side}_{size}", turn_in_c(s.side, size))
        word = WORDS[size]
        to, tile = self.place(s.target, s.write), self.names.of(s.tile.name)
        return f"{name}(({word} *)({to}), {s.stride}, (const {word} *){tile});"


def turn_loops(s: Turn) -> For:
    """A tile transposed element by element."""
    i, j = Var(":i"), Var(":j")
    value: Expr = Load(s.tile, i * s.side + j)
    place = s.write + cast(s.write.type, j * s.stride + i)
    inner = counted(i, s.side, Store(s.target, place, value), unroll=True)
    return counted(j, s.side, inner, unroll=True)
