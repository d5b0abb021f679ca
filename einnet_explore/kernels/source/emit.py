"""Kernels as text: one printer for CUDA C, OpenCL C and C.  No device, no compiler, no package is needed.

A kernel for CPUs gets its blocks from a loop around it, which OpenMP shares among threads where it is compiled with
that; its threads are loops too, see ``fission``.  Names are spelt anew: nothing that a user wrote is emitted as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from einnet_explore.kernels.source.arrays import Array, Load
from einnet_explore.kernels.source.check import check
from einnet_explore.kernels.source.dialects import (
    ASYNCHRONOUS,
    CUDA,
    DIALECTS,
    OPENCL,
    C,
)
from einnet_explore.kernels.source.fission import fissioned
from einnet_explore.kernels.source.names import Names
from einnet_explore.kernels.source.shuffles import FETCHING, STREAMING, WORDS, part_in_c, turn_in_c
from einnet_explore.kernels.source.statements import (
    Assign,
    Barrier,
    Copy,
    Declare,
    Fetch,
    For,
    If,
    Kernel,
    LoadPair,
    Local,
    Note,
    PairOperation,
    Statement,
    Store,
    StorePair,
    Turn,
    counted,
)
from einnet_explore.kernels.source.sums import sums
from einnet_explore.kernels.source.terms import UNARY, Terms
from einnet_explore.kernels.source.types import F16, F32, F64, KernelError, Type
from einnet_explore.kernels.source.values import Binary, Expr, Id, Var, cast
from einnet_explore.kernels.source.walk import arrays, constant, each, everything, expressions, ids

_MOST_UNROLLED = 64

RESIDENT = 512
"""Threads that are to fit a multiprocessor of an NVIDIA GPU at a time, at least: 128 registers for each."""

MOST_BLOCKS = 16
"""Blocks that any such multiprocessor holds at a time."""


def emit(kernel: Kernel, dialect: str) -> str:
    """The text of *kernel* in *dialect*: ``cuda``, ``opencl`` or ``c``.

    Raises KernelError for an unknown dialect, and for a kernel that breaks a rule of the language (see ``check``).
    """
    if dialect not in DIALECTS:
        raise KernelError(f"dialect {dialect!r}: expected one of {', '.join(DIALECTS)}")
    check(kernel)
    return _Printer(DIALECTS[dialect]).kernel(kernel)


def entry(kernel: Kernel) -> str:
    """What *kernel* is called in the text, in every dialect."""
    return Names().of(kernel.name)


class _Printer(Terms):
    def kernel(self, kernel: Kernel) -> str:
        name = self.names.of(kernel.name)
        params = [self._parameter(p) for p in kernel.params]
        if self.dialect is C:
            streamed = any(isinstance(s, Turn) and s.streamed for s in each(kernel.body))
            body = [
                *self._groups(kernel),
                *(f"        {line}" for line in self._lines(fissioned(kernel))),
                *(["        STREAM_END();"] if streamed else []),
                "    }",
            ]
            params += ["int grid_x", "int grid_y", "int grid_z", "int threads"]
            head = f"void {name}({_wrapped(params)})"
        else:
            body = [f"    {line}" for line in self._lines(kernel.body)]
            x, y, z = kernel.block
            # Without a number of blocks the assembler saves registers for more of them than are of use, and spills.
            blocks = min(max(1, RESIDENT // kernel.threads), MOST_BLOCKS)
            bounds = f"__launch_bounds__({kernel.threads}, {blocks})"
            size = f"__attribute__((reqd_work_group_size({x}, {y}, {z})))"
            first = f'extern "C" __global__ void {bounds}' if self.dialect is CUDA else f"__kernel {size}\nvoid"
            head = f"{first} {name}({_wrapped(params)})"
        return "\n".join([*self._preamble(kernel), *self.helpers.values(), head, "{", *body, "}", ""])

    def _preamble(self, kernel: Kernel) -> Iterable[str]:
        kinds = _kinds(kernel)
        if self.dialect is C:
            yield "#include <math.h>"
            yield "#include <string.h>"
            if any(isinstance(s, Fetch) for s in each(kernel.body)):
                yield FETCHING
        if self.dialect is CUDA and F16 in kinds:
            yield "#include <cuda_fp16.h>"
        if self.dialect is OPENCL and F64 in kinds:
            yield "#pragma OPENCL EXTENSION cl_khr_fp64 : enable"
        if self.dialect is CUDA:
            for size in sorted(_packs(kernel.body)):
                word = {2: "short", 4: "int", 8: "int2", 16: "int4"}[size]
                yield f"typedef {word} pack_{size};"
            if any(isinstance(s, Copy) and s.asynchronous for s in each(kernel.body)):
                yield ASYNCHRONOUS

    def _groups(self, kernel: Kernel) -> Iterable[str]:
        yield "    const long long groups = (long long)grid_x * grid_y * grid_z;"
        yield "    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)"
        yield "    for (long long group = 0; group < groups; ++group) {"
        where = ("group % grid_x", "group / grid_x % grid_y", "group / ((long long)grid_x * grid_y)")
        asked = ids(kernel.body)
        for d, at in enumerate(where):
            if Id("block", d) in asked:
                yield f"        const int block_{'xyz'[d]} = (int)({at});"

    def _parameter(self, p: Array | Var) -> str:
        match p:
            case Var(name, kind):
                return f"const {self.dialect.spell(kind)} {self.names.of(name)}"
            case Array(name, kind, _, _, const, noalias):
                restrict = "" if not noalias else "__restrict__ " if self.dialect is CUDA else "restrict "
                return (
                    f"{self.dialect.spaces['global']}{'const ' if const else ''}{self._memory(kind)} *{restrict}"
                    f"{self.names.of(name)}"
                )

    def _memory(self, kind: Type) -> str:
        return self.dialect.spell(kind)

    def _lines(self, body: Iterable[Statement]) -> Iterable[str]:
        for s in body:
            yield from self._statement(s)

    def _statement(self, s: Statement) -> Iterable[str]:
        match s:
            case Declare(var, None):
                yield f"{self._type(var.type)} {self.names.of(var.name)};"
            case Declare(var, Expr() as value):
                yield f"{self._type(var.type)} {self.names.of(var.name)} = {self.expr(value)};"
            case Local(array):
                yield self._local(array)
            case Assign(var, value):
                yield f"{self.names.of(var.name)} = {self.expr(value)};"
            case Store(array, index, value):
                yield self._store(array, index, value)
            case Copy():
                yield from self._copy(s)
            case LoadPair(left, right, array, index):
                yield from self._load_pair(left, right, array, index)
            case StorePair(array, index, left, right):
                yield from self._store_pair(array, index, left, right)
            case PairOperation():
                yield from self._pair_operation(s)
            case Turn():
                yield from self._turn(s)
            case Fetch(array, index, write):
                if self.dialect is C:
                    yield f"FETCH_LINE({self._place(array, index)}, {int(write)});"
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
            case Note(text):
                kept = re.sub(r"[^A-Za-z0-9 .,:;=+<>()\[\]-]", "", text)
                yield f"// {kept.strip()[:100]}"

    def _local(self, array: Array) -> str:
        named = f"{self._memory(array.kind)} {self.names.of(array.name)}[{array.size}]"
        if not array.align:
            return f"{self.dialect.spaces[array.space]}{named};"
        if self.dialect is OPENCL:
            return f"{self.dialect.spaces[array.space]}{named} __attribute__((aligned({array.align})));"
        align = f"__align__({array.align})" if self.dialect is CUDA else f"_Alignas({array.align})"
        return f"{self.dialect.spaces[array.space]}{align} {named};"

    def _place(self, array: Array, index: Expr) -> str:
        """A pointer to an element."""
        name = self.names.of(array.name)
        return name if constant(index) == 0 else f"{name} + {self.expr(index, 9)}"

    def _store(self, array: Array, index: Expr, value: Expr) -> str:
        if array.kind == F16 and self.dialect is OPENCL:
            return f"vstore_half_rte({self.expr(value)}, {self.expr(index)}, {self._half(array)});"
        said = self.expr(value)
        if array.kind == F16:
            said = f"__float2half_rn({said})" if self.dialect is CUDA else f"(_Float16){self.expr(value, UNARY)}"
        return f"{self.names.of(array.name)}[{self.expr(index)}] = {said};"

    def _copy(self, s: Copy) -> Iterable[str]:
        size = s.size * s.target.kind.size
        to, origin = self._place(s.target, s.write), self._place(s.source, s.read)
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
            word = f"{self._memory(s.target.kind)}{s.size}"
            spaces = self.dialect.spaces
            target, source = spaces[s.target.space], spaces[s.source.space]
            yield f"*({target}{word} *)({to}) = *({source}const {word} *)({origin});"

    def _load_pair(self, left: Var, right: Var, array: Array, index: Expr) -> Iterable[str]:
        a, b = self.names.of(left.name), self.names.of(right.name)
        if self.dialect is CUDA:
            pair = self.names.of(f"{left.name} {right.name}")
            at = self._place(array, index)
            yield f"const float2 {pair} = __half22float2(*reinterpret_cast<const __half2 *>({at}));"
            yield f"float {a} = {pair}.x, {b} = {pair}.y;"
        elif self.dialect is OPENCL:
            pair = self.names.of(f"{left.name} {right.name}")
            where = f"({self.dialect.spaces[array.space]}const half *)({self._place(array, index)})"
            yield f"const float2 {pair} = vload_half2(0, {where});"
            yield f"float {a} = {pair}.x, {b} = {pair}.y;"
        else:
            yield f"float {a} = {self.expr(Load(array, index))}, {b} = {self.expr(Load(array, index + 1))};"

    def _store_pair(self, array: Array, index: Expr, left: Expr, right: Expr) -> Iterable[str]:
        a, b = self.expr(left), self.expr(right)
        at = self._place(array, index)
        if self.dialect is CUDA:
            yield f"*reinterpret_cast<__half2 *>({at}) = __float22half2_rn(make_float2({a}, {b}));"
        elif self.dialect is OPENCL:
            where = f"({self.dialect.spaces[array.space]}half *)({at})"
            yield f"vstore_half2_rte((float2)({a}, {b}), 0, {where});"
        else:
            yield self._store(array, index, left)
            yield self._store(array, index + 1, right)

    def _pair_operation(self, s: PairOperation) -> Iterable[str]:
        if self.dialect is CUDA:
            name = {"+": "__hadd2", "-": "__hsub2", "*": "__hmul2"}[s.op]
            a, b = (f"*reinterpret_cast<const __half2 *>({self._place(x, s.index)})" for x in (s.left, s.right))
            yield f"*reinterpret_cast<__half2 *>({self._place(s.target, s.index)}) = {name}({a}, {b});"
            return
        each = [Binary(s.op, Load(s.left, s.index + n), Load(s.right, s.index + n)) for n in range(2)]
        yield from self._store_pair(s.target, s.index, *each)

    def _turn(self, s: Turn) -> Iterable[str]:
        size = s.target.kind.size
        if self.dialect is C:
            name = f"{'stream' if s.streamed else 'turn'}_{s.side}_{size}"
            self.helpers.setdefault("turn", STREAMING)
            self.helpers.setdefault(f"turn_{s.side}_{size}", turn_in_c(s.side, size))
            word = WORDS[size]
            to, tile = self._place(s.target, s.write), self.names.of(s.tile.name)
            yield f"{name}(({word} *)({to}), {s.stride}, (const {word} *){tile});"
            return
        i, j = Var(":i"), Var(":j")
        value: Expr = Load(s.tile, i * s.side + j)
        place = s.write + cast(s.write.type, j * s.stride + i)
        inner = counted(i, s.side, Store(s.target, place, value), unroll=True)
        yield from self._for(counted(j, s.side, inner, unroll=True))

    def _for(self, s: For) -> Iterable[str]:
        var = self.names.of(s.var.name)
        bounds = [constant(e) for e in (s.start, s.stop, s.step)]
        if s.unroll and None not in bounds:
            start, stop, step = (b or 0 for b in bounds)
            trips = max(1, -(-(stop - start) // step))
            # LLVM 14, as pocl runs it, loses the condition around such a loop where another one is inside: it writes
            # where no thread would.
            lost = self.dialect is OPENCL and any(isinstance(inner, If) for inner in each(s.body))
            if trips <= _MOST_UNROLLED and not lost:
                yield f"#pragma GCC unroll {trips}" if self.dialect is C else "#pragma unroll"
        if s.simd and self.dialect is C:
            joined = [f"reduction({op}:{', '.join(map(self.names.of, names))})" for op, names in sums(s).items()]
            yield " ".join(("#pragma omp simd", *joined)) if joined or s.vector else "#pragma GCC ivdep"
        step_text = f"++{var}" if bounds[2] == 1 else f"{var} += {self.expr(s.step)}"
        head = f"{self._type(s.var.type)} {var} = {self.expr(s.start)}; {var} < {self.expr(s.stop, 8)}; {step_text}"
        yield f"for ({head}) {{"
        yield from (f"    {line}" for line in self._lines(s.body))
        yield "}"


def _wrapped(params: list[str]) -> str:
    line = ", ".join(params)
    return line if len(line) <= 50 else "\n    " + ",\n    ".join(params)


def _kinds(kernel: Kernel) -> frozenset[Type]:
    found = {p.kind for p in kernel.params}
    for s in each(kernel.body):
        found |= {a.kind for a in arrays(s)}
        found |= {e.type for x in expressions(s) for e in everything(x)}
    return frozenset(found)


def _packs(body: Iterable[Statement]) -> frozenset[int]:
    return frozenset(
        s.size * s.target.kind.size for s in each(body) if isinstance(s, Copy) and s.whole and not s.asynchronous
    )
