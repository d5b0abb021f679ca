"""One printer of kernels for CUDA C, OpenCL C and C; it needs no device, no compiler and no package.

For CPUs a loop over blocks goes around the kernel, shared among threads by OpenMP; threads of a block become loops, see
``fission``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from einnet_explore.codegen.language.dialects import ASYNC_COPY_SOURCE, CUDA, DIALECTS, OPENCL, C, IdentifierTable
from einnet_explore.codegen.language.expression_text import MemoryPrinter, transpose_loops
from einnet_explore.codegen.language.fission import fission_at_barriers
from einnet_explore.codegen.language.register_transpose import PREFETCH_SOURCE
from einnet_explore.codegen.language.statements import (
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
)
from einnet_explore.codegen.language.tree_walk import (
    accessed_arrays,
    all_statements,
    integer_constant,
    launch_indices,
    own_expressions,
    subexpressions,
)
from einnet_explore.codegen.language.types import F16, F64, Type
from einnet_explore.codegen.language.validation import check_kernel
from einnet_explore.codegen.language.values import Array, Binary, Call, Expr, LaunchIndex, Var
from einnet_explore.support.errors import Refused

_JOINS = {"+": "+", "*": "*", "maximum": "max", "minimum": "min"}


def simd_reductions(loop: For) -> Mapping[str, tuple[str, ...]]:
    """Return the variables that *loop* reduces, by OpenMP's name of the operator: ``+``, ``*``, ``max`` or ``min``."""
    out: dict[str, tuple[str, ...]] = {}
    for s in loop.body:
        match s:
            case Assign(Var(name) as var, Binary(op, left, _)) if left == var and op in _JOINS:
                out[_JOINS[op]] = (*out.get(_JOINS[op], ()), name)
            case Assign(Var(name) as var, Call(op, (left, _))) if left == var and op in _JOINS:
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
                *self._groups(kernel),
                *(f"        {line}" for line in self._lines(fission_at_barriers(kernel))),
                *(["        STREAM_END();"] if streamed else []),
                "    }",
            ]
            params += ["int grid_x", "int grid_y", "int grid_z", "int threads"]
            head = f"void {name}({_wrapped(params)})"
        else:
            body = [f"    {line}" for line in self._lines(kernel.body)]
            x, y, z = kernel.block
            # Without a number of blocks the assembler saves registers for more of them than are of use, and spills.
            blocks = min(max(1, MIN_RESIDENT_THREADS // kernel.threads), MAX_RESIDENT_BLOCKS)
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
            if any(isinstance(s, Prefetch) for s in all_statements(kernel.body)):
                yield PREFETCH_SOURCE
        if self.dialect is CUDA and F16 in kinds:
            yield "#include <cuda_fp16.h>"
        if self.dialect is OPENCL and F64 in kinds:
            yield "#pragma OPENCL EXTENSION cl_khr_fp64 : enable"
        if self.dialect is CUDA:
            for size in sorted(_packs(kernel.body)):
                word = {2: "short", 4: "int", 8: "int2", 16: "int4"}[size]
                yield f"typedef {word} pack_{size};"
            if any(isinstance(s, Copy) and s.asynchronous for s in all_statements(kernel.body)):
                yield ASYNC_COPY_SOURCE

    def _groups(self, kernel: Kernel) -> Iterable[str]:
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
                yield f"{self._type(var.type)} {self.names.of(var.name)};"
            case Declare(var, Expr() as value):
                yield f"{self._type(var.type)} {self.names.of(var.name)} = {self.expr(value)};"
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
                yield self.turn(s)
            case StoreTransposed():
                yield from self._for(transpose_loops(s))
            case Prefetch(array, index, write):
                if self.dialect is C:
                    yield f"FETCH_LINE({self.place(array, index)}, {int(write)});"
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
            extrema = {v: self._own(f"odd_{v}") for op in ("max", "min") for v in found.get(op, ())}
            yield from (f"int {odd} = {self.names.of(v)} != {self.names.of(v)};" for v, odd in extrema.items())
            if extrema:
                joined.append(f"reduction(|:{', '.join(extrema.values())})")
            yield " ".join(("#pragma omp simd", *joined)) if joined or s.vector else "#pragma GCC ivdep"
        step_text = f"++{var}" if bounds[2] == 1 else f"{var} += {self.expr(s.step)}"
        head = f"{self._type(s.var.type)} {var} = {self.expr(s.start)}; {var} < {self.expr(s.stop, 8)}; {step_text}"
        yield f"for ({head}) {{"
        yield from (f"    {line}" for inner in s.body for line in self._step(inner, extrema))
        yield "}"
        for v, odd in extrema.items():
            yield f"{self.names.of(v)} = {odd} ? {self.dialect.infinity[1]} : {self.names.of(v)};"

    def _step(self, s: Statement, extrema: Mapping[str, str]) -> Iterable[str]:
        """Print one statement of a loop; an extremum records NaNs, which OpenMP's reduction would lose."""
        match s:
            case Assign(Var(name) as var, Call(op, (left, value))) if left == var and name in extrema:
                better, v, new = ">" if op == "maximum" else "<", self.names.of(name), self._own("new")
                yield (
                    f"{{ const {self._type(var.type)} {new} = {self.expr(value)}; "
                    f"{v} = {new} {better} {v} ? {new} : {v}; {extrema[name]} |= {new} != {new}; }}"
                )
            case _:
                yield from self._statement(s)

    def _own(self, stem: str) -> str:
        """Return an identifier that no variable of the kernel has."""
        return self.names.of(f"{stem}\0")


def _wrapped(params: list[str]) -> str:
    line = ", ".join(params)
    return line if len(line) <= 50 else "\n    " + ",\n    ".join(params)


def _kinds(kernel: Kernel) -> frozenset[Type]:
    found = {p.kind for p in kernel.params}
    for s in all_statements(kernel.body):
        found |= {a.kind for a in accessed_arrays(s)}
        found |= {e.type for x in own_expressions(s) for e in subexpressions(x)}
    return frozenset(found)


def _packs(body: Iterable[Statement]) -> frozenset[int]:
    return frozenset(
        s.size * s.target.kind.size
        for s in all_statements(body)
        if isinstance(s, Copy) and s.whole and not s.asynchronous
    )
