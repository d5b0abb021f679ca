"""One printer of kernels for CUDA C, OpenCL C and C; it needs no device, no compiler and no package.

For CPUs a loop over blocks goes around the kernel, shared among threads by OpenMP; threads of a block become loops, see
``fission``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isinf, isnan

import numpy as np

from einnet_explore.codegen.language.dialects import (
    ASYNC_COPY_SOURCE,
    CUDA,
    DIALECTS,
    OPENCL,
    PREFETCH_SOURCE,
    STREAMING_SOURCE,
    C,
    Dialect,
    IdentifierTable,
    partial_store_source,
    transpose_source,
)
from einnet_explore.codegen.language.fission import fission_at_barriers
from einnet_explore.codegen.language.statements import (
    WORD_TYPES,
    Assign,
    Barrier,
    Comment,
    Copy,
    Declare,
    For,
    If,
    Kernel,
    LoadPair,
    LocalArray,
    PairOperation,
    Prefetch,
    Statement,
    Store,
    StorePair,
    StoreTransposed,
    accessed_arrays,
    all_statements,
    check_kernel,
    counted_loop,
    integer_constant,
    launch_indices,
    own_expressions,
    walk_expression,
)
from einnet_explore.codegen.language.values import (
    BOOL,
    F16,
    F32,
    F64,
    Array,
    Binary,
    Call,
    Cast,
    Expr,
    LaunchIndex,
    Literal,
    Load,
    Select,
    Type,
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
        text, binds = self._print(e)
        return f"({text})" if binds < least else text

    def _print(self, e: Expr) -> tuple[str, int]:
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
                return f"({self.dialect.spell(kind)}){self.dialect.ids[of][dim]}", UNARY_PRECEDENCE
            case Cast(kind, arg):
                if kind == BOOL:
                    return f"{self.expr(arg, 7)} != 0", _PRECEDENCE["!="]
                return f"({self.dialect.spell(kind)}){self.expr(arg, UNARY_PRECEDENCE)}", UNARY_PRECEDENCE
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
        built_in = self.dialect.built_ins(kind).get(name)
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
        text = str(np.float32(value)) if single else repr(value)
        text = text if any(c in text for c in ".e") else f"{text}.0"
        return f"{text}{'f' if single else ''}", _ATOM_PRECEDENCE if value >= 0 and not text.startswith(
            "-"
        ) else UNARY_PRECEDENCE

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
            if (
                private
                and lanes
                and not s.is_single_transfer
                and s.size > 1
                and s.source.align == s.source.size * 4 == lanes * 4
            ):
                self.helpers.setdefault(f"part_{lanes}", partial_store_source(lanes))
                yield f"part_{lanes}({to}, {origin}, {s.size});"
            else:
                yield f"memcpy({to}, {origin}, {size});"
        elif not s.is_single_transfer:
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

    def store_transposed(self, s: StoreTransposed) -> str:
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


_JOINS = {"+": "+", "*": "*", "maximum": "max", "minimum": "min"}


def simd_reductions(loop: For) -> Mapping[str, tuple[str, ...]]:
    """Return the variables that *loop* reduces, by OpenMP's name of the operator: ``+``, ``*``, ``max`` or ``min``."""
    out: dict[str, tuple[str, ...]] = {}
    for s in loop.body:
        match s:
            case Assign(Var(name) as var, Binary(op, left) | Call(op, (left, _))) if left == var and op in _JOINS:
                out[_JOINS[op]] = (*out.get(_JOINS[op], ()), name)
            case _:
                pass
    return out


_MAX_UNROLLED_TRIPS = 64

MIN_RESIDENT_THREADS = 512
"""Threads that must fit a multiprocessor of an NVIDIA GPU at a time: 128 registers for each."""

MAX_RESIDENT_BLOCKS = 16
"""Blocks that any such multiprocessor holds at a time."""


def emit(kernel: Kernel, dialect: str) -> str:
    """Return the text of *kernel* in *dialect*: ``cuda``, ``opencl`` or ``c``.

    Raises Refused for an unknown dialect and for a kernel that breaks a rule of the language (see ``check_kernel``).
    """
    if dialect not in DIALECTS:
        raise Refused(f"dialect {dialect!r}: expected one of {', '.join(DIALECTS)}")
    check_kernel(kernel)
    return _Printer(DIALECTS[dialect]).kernel(kernel)


def entry_name(kernel: Kernel) -> str:
    """Return the identifier of *kernel* in the text, the same in every dialect."""
    return IdentifierTable().of(kernel.name)


class _Printer(MemoryPrinter):
    def kernel(self, kernel: Kernel) -> str:
        name = self.names.of(kernel.name)
        params = [self._parameter(p) for p in kernel.params]
        if self.dialect is C:
            streamed = any(isinstance(s, StoreTransposed) and s.streamed for s in all_statements(kernel.body))
            body = [
                *self._loop_over_blocks(kernel),
                *(f"        {line}" for line in self._lines(fission_at_barriers(kernel))),
                *(["        STREAM_END();"] if streamed else []),
                "    }",
            ]
            params += ["int grid_x", "int grid_y", "int grid_z", "int threads"]
            head = f"void {name}({_wrap_parameters(params)})"
        else:
            body = [f"    {line}" for line in self._lines(kernel.body)]
            x, y, z = kernel.block
            # Without a number of blocks the assembler saves registers for more of them than are of use, and spills.
            blocks = min(max(1, MIN_RESIDENT_THREADS // kernel.threads), MAX_RESIDENT_BLOCKS)
            bounds = f"__launch_bounds__({kernel.threads}, {blocks})"
            size = f"__attribute__((reqd_work_group_size({x}, {y}, {z})))"
            first = f'extern "C" __global__ void {bounds}' if self.dialect is CUDA else f"__kernel {size}\nvoid"
            head = f"{first} {name}({_wrap_parameters(params)})"
        return "\n".join([*self._preamble(kernel), *self.helpers.values(), head, "{", *body, "}", ""])

    def _preamble(self, kernel: Kernel) -> Iterable[str]:
        kinds = _used_kinds(kernel)
        if self.dialect is C:
            yield "#include <math.h>"
            yield "#include <string.h>"
            if any(isinstance(s, Prefetch) for s in all_statements(kernel.body)):
                yield PREFETCH_SOURCE
        if self.dialect is CUDA and F16 in kinds:
            yield "#include <cuda_fp16.h>"
        if self.dialect is OPENCL and F64 in kinds:
            yield "#pragma OPENCL EXTENSION cl_khr_fp64 : enable"
        if self.dialect is CUDA:
            for size in sorted(_pack_sizes(kernel.body)):
                word = {2: "short", 4: "int", 8: "int2", 16: "int4"}[size]
                yield f"typedef {word} pack_{size};"
            if any(isinstance(s, Copy) and s.asynchronous for s in all_statements(kernel.body)):
                yield ASYNC_COPY_SOURCE

    def _loop_over_blocks(self, kernel: Kernel) -> Iterable[str]:
        yield "    const long long groups = (long long)grid_x * grid_y * grid_z;"
        yield "    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)"
        yield "    for (long long group = 0; group < groups; ++group) {"
        where = ("group % grid_x", "group / grid_x % grid_y", "group / ((long long)grid_x * grid_y)")
        asked = launch_indices(kernel.body)
        for d, at in enumerate(where):
            if LaunchIndex("block", d) in asked:
                yield f"        const int block_{'xyz'[d]} = (int)({at});"

    def _parameter(self, p: Array | Var) -> str:
        match p:
            case Var(name, kind):
                return f"const {self.dialect.spell(kind)} {self.names.of(name)}"
            case Array(name, kind, _, _, const, noalias):
                restrict = "" if not noalias else "__restrict__ " if self.dialect is CUDA else "restrict "
                return (
                    f"{self.dialect.spaces['global']}{'const ' if const else ''}{self.dialect.spell(kind)} *{restrict}"
                    f"{self.names.of(name)}"
                )

    def _lines(self, body: Iterable[Statement]) -> Iterable[str]:
        for s in body:
            yield from self._statement(s)

    def _statement(self, s: Statement) -> Iterable[str]:
        match s:
            case Declare(var, None):
                yield f"{self.dialect.spell(var.type)} {self.names.of(var.name)};"
            case Declare(var, Expr() as value):
                yield f"{self.dialect.spell(var.type)} {self.names.of(var.name)} = {self.expr(value)};"
            case LocalArray(array):
                yield self.local(array)
            case Assign(var, value):
                yield f"{self.names.of(var.name)} = {self.expr(value)};"
            case Store(array, index, value):
                yield self.store(array, index, value)
            case Copy():
                yield from self.copy(s)
            case LoadPair(left, right, array, index):
                yield from self.load_pair(left, right, array, index)
            case StorePair(array, index, left, right):
                yield from self.store_pair(array, index, left, right)
            case PairOperation():
                yield from self.pair_operation(s)
            case StoreTransposed() if self.dialect is C:
                yield self.store_transposed(s)
            case StoreTransposed():
                yield from self._for(transpose_loops(s))
            case Prefetch(array, index, write):
                if self.dialect is C:
                    yield f"FETCH_LINE({self.place(array, index)}, {int(write)});"
            case _:
                yield from self._control(s)

    def _control(self, s: Statement) -> Iterable[str]:
        match s:
            case For():
                yield from self._for(s)
            case If(condition, then, orelse):
                yield f"if ({self.expr(condition)}) {{"
                yield from (f"    {line}" for line in self._lines(then))
                if orelse:
                    yield "} else {"
                    yield from (f"    {line}" for line in self._lines(orelse))
                yield "}"
            case Barrier(copies):
                if copies and self.dialect is CUDA:
                    yield "await_copies();"
                yield self.dialect.barrier
            case Comment(text):
                kept = re.sub(r"[^A-Za-z0-9 .,:;=+<>()\[\]-]", "", text)
                yield f"// {kept.strip()[:100]}"

    def _for(self, s: For) -> Iterable[str]:
        var = self.names.of(s.var.name)
        bounds = [integer_constant(e) for e in (s.start, s.stop, s.step)]
        if s.unroll and None not in bounds:
            start, stop, step = (b or 0 for b in bounds)
            trips = max(1, -(-(stop - start) // step))
            # LLVM 14, as pocl runs it, loses the condition around such a loop where another one is inside: it writes
            # where no thread would.
            lost = self.dialect is OPENCL and any(isinstance(inner, If) for inner in all_statements(s.body))
            if trips <= _MAX_UNROLLED_TRIPS and not lost:
                yield f"#pragma GCC unroll {trips}" if self.dialect is C else "#pragma unroll"
        extrema: dict[str, str] = {}
        if s.simd and self.dialect is C:
            found = simd_reductions(s)
            joined = [f"reduction({op}:{', '.join(map(self.names.of, names))})" for op, names in found.items()]
            extrema = {v: self._fresh_name(f"odd_{v}") for op in ("max", "min") for v in found.get(op, ())}
            yield from (f"int {odd} = {self.names.of(v)} != {self.names.of(v)};" for v, odd in extrema.items())
            if extrema:
                joined.append(f"reduction(|:{', '.join(extrema.values())})")
            yield " ".join(("#pragma omp simd", *joined)) if joined or s.vector else "#pragma GCC ivdep"
        kind = self.dialect.spell(s.var.type)
        advance = f"++{var}" if bounds[2] == 1 else f"{var} += {self.expr(s.step)}"
        yield f"for ({kind} {var} = {self.expr(s.start)}; {var} < {self.expr(s.stop, 8)}; {advance}) {{"
        yield from (f"    {line}" for inner in s.body for line in self._step(inner, extrema))
        yield "}"
        for v, odd in extrema.items():
            yield f"{self.names.of(v)} = {odd} ? {self.dialect.infinity[1]} : {self.names.of(v)};"

    def _step(self, s: Statement, extrema: Mapping[str, str]) -> Iterable[str]:
        """Print one statement of a loop; an extremum records NaNs, which OpenMP's reduction would lose."""
        match s:
            case Assign(Var(name) as var, Call(op, (left, value))) if left == var and name in extrema:
                better, v, new = ">" if op == "maximum" else "<", self.names.of(name), self._fresh_name("new")
                yield (
                    f"{{ const {self.dialect.spell(var.type)} {new} = {self.expr(value)}; "
                    f"{v} = {new} {better} {v} ? {new} : {v}; {extrema[name]} |= {new} != {new}; }}"
                )
            case _:
                yield from self._statement(s)

    def _fresh_name(self, stem: str) -> str:
        """Return an identifier that no variable of the kernel has."""
        return self.names.of(f"{stem}\0")


def _wrap_parameters(params: list[str]) -> str:
    line = ", ".join(params)
    return line if len(line) <= 50 else "\n    " + ",\n    ".join(params)


def _used_kinds(kernel: Kernel) -> frozenset[Type]:
    found = {p.kind for p in kernel.params}
    for s in all_statements(kernel.body):
        found |= {a.kind for a in accessed_arrays(s)}
        found |= {e.type for x in own_expressions(s) for e in walk_expression(x)}
    return frozenset(found)


def _pack_sizes(body: Iterable[Statement]) -> frozenset[int]:
    return frozenset(
        s.size * s.target.kind.size
        for s in all_statements(body)
        if isinstance(s, Copy) and s.is_single_transfer and not s.asynchronous
    )
