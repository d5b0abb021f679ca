"""The printer of kernels for CUDA C, OpenCL C and C; it needs no device, no compiler and no package.

For CPUs a loop over blocks goes around the kernel, shared among threads by OpenMP, and threads of a block become loops
(fission).  A kernel without barriers is one loop over its threads.  A barrier ends that loop and begins another.  A
loop or a condition around a barrier, on which all threads agree (``check_kernel`` verifies it), goes outside the loops
over threads.  A variable or an array that is live across a barrier becomes an array with one part a thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from types import MappingProxyType

from einnet_explore.codegen.language.dialects import (
    ASYNC_COPY_SOURCE,
    CUDA,
    DIALECTS,
    FRAGMENT_SOURCE,
    OPENCL,
    PREFETCH_SOURCE,
    C,
    IdentifierTable,
    MemoryPrinter,
)
from einnet_explore.codegen.language.statements import (
    PACK_BYTES,
    Assign,
    Barrier,
    Comment,
    Copy,
    Declare,
    For,
    FragmentProduct,
    If,
    Kernel,
    LoadPair,
    LocalArray,
    PairOperation,
    Part,
    Prefetch,
    Statement,
    Store,
    StorePair,
    StoreTransposed,
    accessed_arrays,
    all_expressions,
    all_statements,
    assigned_names,
    check_kernel,
    counted_loop,
    declared_names,
    fragment_loops,
    has_barrier,
    integer_constant,
    is_uniform,
    launch_indices,
    map_bodies,
    rewrite_statement,
    unrolled,
    used_names,
)
from einnet_explore.codegen.language.values import (
    F16,
    F64,
    I32,
    Array,
    Binary,
    Call,
    Expr,
    LaunchIndex,
    Literal,
    Load,
    Type,
    Var,
    cast,
)
from einnet_explore.support.errors import Refused

PACK_WORDS = {2: "short", 4: "int", 8: "int2", 16: "int4"}
"""CUDA's type of each number of bytes that one instruction copies."""

CACHE_LINE_BYTES = 64
"""Vectors of every CPU are aligned in arrays that begin at a multiple of this."""


def fission_at_barriers(kernel: Kernel) -> tuple[Statement, ...]:
    """Return the body of *kernel* for a whole block, without barriers and thread indices; block indices stay.

    Raises Refused for a kernel that breaks a rule of the language.
    """
    check_kernel(kernel)
    if kernel.threads == 1:
        return tuple(_without_threads(kernel.body))
    params = frozenset(p.name for p in kernel.params if isinstance(p, Var))
    lists = _Block(kernel, assigned_names(kernel.body))
    return tuple(lists.split(kernel.body, params))


def _without_threads(body: Iterable[Statement]) -> Iterable[Statement]:
    """Return the body of a block of one thread: no barriers, thread index 0."""
    zero = Literal(0, I32)
    for s in body:
        if not isinstance(s, Barrier):
            here = rewrite_statement(s, lambda e: zero if isinstance(e, LaunchIndex) and e.of == "thread" else None)
            yield map_bodies(here, _without_threads)


@dataclass(frozen=True)
class _Block:
    kernel: Kernel
    changing: frozenset[str]

    def split(
        self,
        body: tuple[Statement, ...],
        alike: frozenset[str],
        kept: Mapping[Var | Array, Array] = MappingProxyType({}),
    ) -> Iterable[Statement]:
        """Split *body* into loops over threads, one from barrier to barrier.

        *alike*: names with one value a block; *kept*: what lives across barriers, in arrays with one part a thread.
        """
        first, far, rest = self._split_declarations(body, alike)
        alike |= {s.var.name for s in first if isinstance(s, Declare)}
        own = {old: self._expand_per_thread(old) for old in far}
        kept = {**kept, **own}
        yield from first
        yield from map(LocalArray, own.values())
        run: list[Statement] = []
        for s in rest:
            if not has_barrier(s):
                run.append(s)
                continue
            yield from self._loop_over_threads(run, kept)
            run = []
            if not isinstance(s, Barrier):
                inside = alike | {s.var.name} if isinstance(s, For) else alike
                yield map_bodies(s, partial(self.split, alike=inside, kept=kept))
        yield from self._loop_over_threads(run, kept)

    def _expand_per_thread(self, old: Var | Array) -> Array:
        """Return the array that holds *old* of every thread; parts that are arrays are aligned."""
        size = 1
        if isinstance(old, Array):
            unit = max(old.align, PACK_BYTES)
            size = -(-old.size * old.kind.size // unit) * unit // old.kind.size
        return Array(f"{old.name} of each", old.kind, size * self.kernel.threads, "private", align=CACHE_LINE_BYTES)

    def _split_declarations(
        self, body: tuple[Statement, ...], alike: frozenset[str]
    ) -> tuple[list[Statement], list[Var | Array], list[Statement]]:
        """Return (declarations once a block, what each thread keeps across barriers, the other statements)."""
        first: list[Statement] = []
        rest: list[Statement] = []
        for s in body:
            match s:
                case LocalArray(Array(space="shared")):
                    first.append(s)
                case Declare(var, value) if value and var.name not in self.changing and is_uniform(value, alike):
                    first.append(s)
                    alike |= {var.name}
                case _:
                    rest.append(s)
        far = _live_across_barriers(rest)
        spread: list[Var | Array] = []
        kept: list[Statement] = []
        for s in rest:
            match s:
                case Declare(var, value) if var.name in far:
                    spread.append(var)
                    kept += [Assign(var, value)] if value is not None else []
                case LocalArray(array) if array.name in far:
                    spread.append(array)
                case LoadPair(left, right, array, index) if {left.name, right.name} & far:
                    spread += [left, right]
                    kept += [Assign(var, Load(array, index + n)) for n, var in enumerate((left, right))]
                case _:
                    kept.append(s)
        return first, spread, kept

    def _loop_over_threads(self, run: list[Statement], kept: Mapping[Var | Array, Array]) -> Iterable[Statement]:
        """Run *run* for every thread, on its own parts of the arrays *kept*; comments alone need no loop."""
        if all(isinstance(s, Comment) for s in run):
            yield from run
            return
        sizes = self.kernel.block
        dims = [d for d in range(3) if sizes[d] > 1]
        place = sum((LaunchIndex("thread", d) * prod(sizes[:d]) for d in dims), Literal(0, I32))
        used = {name for s in run for name in used_names(s)}
        mine = {old: each for old, each in kept.items() if old.name in used}
        parts = (
            Declare(old, each[place]) if isinstance(old, Var) else Part(old, each, place * (each.size // prod(sizes)))
            for old, each in mine.items()
        )
        assigned = assigned_names(run)
        stores = (
            Store(each, place, old) for old, each in mine.items() if isinstance(old, Var) and old.name in assigned
        )
        ids = {LaunchIndex("thread", d): _thread(d) if n > 1 else Literal(0, I32) for d, n in enumerate(sizes)}
        body = tuple(
            rewrite_statement(s, lambda e: ids.get(e) if isinstance(e, LaunchIndex) else None)
            for s in (*parts, *run, *stores)
        )
        # The first dimension runs fastest, as it does on a GPU; a barrier's promise is that threads are independent.
        for d in dims:
            is_simd = d == dims[0] and not any(isinstance(s, For) for s in all_statements(run))
            body = (counted_loop(_thread(d), sizes[d], *body, hint="simd" if is_simd else None),)
        yield from body


def _thread(d: int) -> Var:
    return Var(f"thread {'xyz'[d]}", I32)


def _live_across_barriers(body: list[Statement]) -> frozenset[str]:
    """Return the names declared in *body* that are used on the other side of a barrier."""
    home: dict[str, int] = {}
    far: set[str] = set()
    part = 0
    for s in body:
        inside = has_barrier(s)
        part += inside
        far |= {name for name in used_names(s) if name in home and (inside or home[name] != part)}
        home |= dict.fromkeys(declared_names(s), part)
        part += inside
    return frozenset(far)


def transpose_loops(s: StoreTransposed) -> For:
    """Return loops that transpose a tile element by element."""
    i, j = Var(":i"), Var(":j")
    value: Expr = Load(s.tile, i * s.side + j)
    place = s.write + cast(s.write.type, j * s.stride + i)
    return unrolled(j, s.rows or s.side, unrolled(i, s.side, Store(s.target, place, value)))


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

RESIDENT_SHARED_BYTES, BLOCK_SHARED_BYTES = 228 << 10, 1 << 10
"""Shared memory of a multiprocessor from sm_90 on, and what a block takes of it in addition to its arrays."""


def emit(kernel: Kernel, dialect: str) -> str:
    """Return the text of *kernel* in *dialect*: ``cuda``, ``opencl`` or ``c``.

    Raises Refused for an unknown dialect and for a kernel that breaks a rule of the language (see ``check_kernel``).
    """
    if dialect not in DIALECTS:
        raise Refused(f"dialect {dialect!r}: expected one of {', '.join(DIALECTS)}")
    check_kernel(kernel)
    if DIALECTS[dialect] is not CUDA:
        kernel = replace(kernel, body=tuple(_without_fragments(kernel.body)))
    return _Printer(DIALECTS[dialect]).kernel(kernel)


def _without_fragments(body: Iterable[Statement]) -> Iterable[Statement]:
    for s in body:
        if isinstance(s, FragmentProduct):
            yield from fragment_loops(s)
        else:
            yield map_bodies(s, _without_fragments)


def entry_name(kernel: Kernel) -> str:
    """Return the identifier of *kernel* in the text, the same in every dialect."""
    return IdentifierTable().of(kernel.name)


class _Printer(MemoryPrinter):
    dynamic: Mapping[Array, int] = MappingProxyType({})
    """Arrays in the shared memory that a launch gives, by their first byte."""

    @property
    def shared_memory(self) -> str:
        return self._fresh_name("shared memory")

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
            if self.dialect is CUDA and kernel.dynamic_shared_bytes:
                self.dynamic = kernel.shared_places
            body = [f"    {line}" for line in self._lines(kernel.body)]
            if self.dynamic:
                body.insert(0, f"    extern __shared__ __align__({PACK_BYTES}) unsigned char {self.shared_memory}[];")
            x, y, z = kernel.block
            # Without a number of blocks the assembler saves registers for more of them than are of use, and spills.
            shared = max(1, RESIDENT_SHARED_BYTES // (kernel.shared_bytes + BLOCK_SHARED_BYTES))
            blocks = min(max(1, MIN_RESIDENT_THREADS // kernel.threads), MAX_RESIDENT_BLOCKS, shared)
            bounds = f"__launch_bounds__({kernel.threads}, {kernel.resident or blocks})"
            size = f"__attribute__((reqd_work_group_size({x}, {y}, {z})))"
            first = f'extern "C" __global__ void {bounds}' if self.dialect is CUDA else f"__kernel {size}\nvoid"
            head = f"{first} {name}({_wrap_parameters(params)})"
        return "\n".join([*self._preamble(kernel), *self.helpers.values(), head, "{", *body, "}", ""])

    def _preamble(self, kernel: Kernel) -> Iterable[str]:
        kinds, statements = _used_kinds(kernel), tuple(all_statements(kernel.body))
        used = {type(s) for s in statements}
        if self.dialect is C:
            yield "#include <math.h>\n#include <string.h>"
            if Prefetch in used:
                yield PREFETCH_SOURCE
        if self.dialect is OPENCL and F64 in kinds:
            yield "#pragma OPENCL EXTENSION cl_khr_fp64 : enable"
        if self.dialect is CUDA:
            if F16 in kinds:
                yield "#include <cuda_fp16.h>"
            copies = [s for s in statements if isinstance(s, Copy)]
            transfers = (s for s in copies if s.is_single_transfer and not s.asynchronous)
            for size in sorted({s.size * s.target.kind.size for s in transfers}):
                yield f"typedef {PACK_WORDS[size]} pack_{size};"
            if any(s.asynchronous for s in copies):
                yield ASYNC_COPY_SOURCE
            if FragmentProduct in used:
                yield FRAGMENT_SOURCE

    def _loop_over_blocks(self, kernel: Kernel) -> Iterable[str]:
        yield "    const long long groups = (long long)grid_x * grid_y * grid_z;"
        yield "    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)"
        yield "    for (long long group = 0; group < groups; ++group) {"
        where = (
            "group < grid_x ? group : group % grid_x",
            "group / grid_x % grid_y",
            "group / ((long long)grid_x * grid_y)",
        )
        asked = launch_indices(kernel.body)
        for d, at in enumerate(where):
            if LaunchIndex("block", d) in asked:
                yield f"        const int block_{'xyz'[d]} = (int)({at});"

    def _parameter(self, p: Array | Var) -> str:
        match p:
            case Var(_, kind):
                return f"const {self.dialect.spell(kind)} {self.name(p)}"
            case Array(_, kind, _, _, const, noalias):
                restrict = "" if not noalias else "__restrict__ " if self.dialect is CUDA else "restrict "
                space = f"{self.dialect.spaces['global']}{'const ' if const else ''}"
                return f"{space}{self.dialect.spell(kind)} *{restrict}{self.name(p)}"

    def _lines(self, body: Iterable[Statement]) -> Iterable[str]:
        for s in body:
            yield from self._statement(s)

    def _statement(self, s: Statement) -> Iterable[str]:
        match s:
            case Declare(var, value):
                said = "" if value is None else f" = {self.expr(value)}"
                yield f"{self.dialect.spell(var.type)} {self.name(var)}{said};"
            case LocalArray(array) if array in self.dynamic:
                kind, place = self.dialect.spell(array.kind), f"{self.shared_memory} + {self.dynamic[array]}"
                yield f"{kind} *const {self.name(array)} = reinterpret_cast<{kind} *>({place});"
            case LocalArray(array):
                yield self.local(array)
            case Part(array, whole, first):
                yield f"{self.dialect.spell(array.kind)} *const {self.name(array)} = {self.place(whole, first)};"
            case Assign(var, value):
                yield f"{self.name(var)} = {self.expr(value)};"
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
            case FragmentProduct(sums, at, left, left_at, left_stride, right, right_at, right_stride):
                places = [self.place(*pair) for pair in ((sums, at), (left, left_at), (right, right_at))]
                yield f"multiply_fragments({places[0]}, {places[1]}, {left_stride}, {places[2]}, {right_stride});"
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
        var = self.name(s.var)
        bounds = [integer_constant(e) for e in (s.start, s.stop, s.step)]
        if s.hint == "unroll" and None not in bounds:
            start, stop, step = (b or 0 for b in bounds)
            trips = max(1, -(-(stop - start) // step))
            # LLVM 14, as pocl runs it, loses the condition around such a loop where another one is inside: it writes
            # where no thread would.
            lost = self.dialect is OPENCL and any(isinstance(inner, If) for inner in all_statements(s.body))
            if trips <= _MAX_UNROLLED_TRIPS and not lost:
                yield f"#pragma GCC unroll {trips}" if self.dialect is C else "#pragma unroll"
        extrema: dict[str, str] = {}
        if s.hint in ("simd", "vector") and self.dialect is C:
            found = simd_reductions(s)
            joined = [f"reduction({op}:{', '.join(map(self.names.of, names))})" for op, names in found.items()]
            floating = {a.var.name for a in s.body if isinstance(a, Assign) and a.var.type.kind == "float"}
            extrema = {
                v: self._fresh_name(f"odd_{v}") for op in ("max", "min") for v in found.get(op, ()) if v in floating
            }
            yield from (f"int {odd} = {self.names.of(v)} != {self.names.of(v)};" for v, odd in extrema.items())
            if extrema:
                joined.append(f"reduction(|:{', '.join(extrema.values())})")
            yield " ".join(("#pragma omp simd", *joined)) if joined or s.hint == "vector" else "#pragma GCC ivdep"
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
    arrays = (a.kind for s in all_statements(kernel.body) for a in accessed_arrays(s))
    return frozenset((*(p.kind for p in kernel.params), *arrays, *(e.type for e in all_expressions(kernel.body))))
