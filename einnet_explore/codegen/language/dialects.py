"""The spelling of the kernel language in its three dialects (CUDA C, OpenCL C, C for CPUs): names, types, functions.

Expressions and accesses of memory are printed here: each dialect has its own vectors, halves and copies.

Every name is spelt by an ``IdentifierTable``: no text of a user reaches a compiler as it is.

A tile of L×L elements is transposed in vector registers as a matrix of 4×4 blocks, then inside the blocks (Eklundh
1972).  Every step is one instruction on two vectors; the second half of the steps stays inside quarters of a register,
which is cheaper.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from itertools import count
from math import inf, isinf, isnan
from typing import TypeVar

import numpy as np

from einnet_explore.codegen.language.rounding import LEVEL_BITS, LEVEL_START, LEVEL_STEP, nearest_integer
from einnet_explore.codegen.language.statements import (
    WORD_TYPES,
    Copy,
    PairOperation,
    StoreTransposed,
    integer_constant,
)
from einnet_explore.codegen.language.values import (
    BF16,
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
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.support.errors import Refused

V = TypeVar("V")

_QUARTER_LANES = 4
"""Elements of a quarter of the widest register: a shuffle keeps them together or moves elements among them."""


def transpose_rows(rows: Sequence[V], shuffle: Callable[[V, V, list[int]], V]) -> list[V]:
    """Return the columns of a tile of *rows*, which have as many lanes as there are rows: 4, 8 or 16.

    ``shuffle(a, b, lanes)`` concatenates the given *lanes* of *a* and *b*.
    """
    side = len(rows)

    def pairs(a: V, b: V, part: int, within: int) -> tuple[V, V]:
        """Interleave *part* lanes of a and b in every *within* lanes: the first halves, then the second halves."""
        lanes = [(start, at) for start in range(0, side, within) for at in range(0, within // 2, part)]
        first, second = (
            [n + start + at + more for start, at in lanes for n in (0, side) for more in range(shift, shift + part)]
            for shift in (0, within // 2)
        )
        return shuffle(a, b, first), shuffle(a, b, second)

    gathered = [
        _transpose_small(rows[i::_QUARTER_LANES], lambda a, b: pairs(a, b, _QUARTER_LANES, side))
        for i in range(_QUARTER_LANES)
    ]
    done: list[V] = []
    for column in zip(*gathered, strict=True):
        done += _transpose_small(column, lambda a, b: pairs(a, b, 1, _QUARTER_LANES))
    return done


def _transpose_small(rows: Sequence[V], pairs: Callable[[V, V], tuple[V, V]]) -> list[V]:
    """Transpose 1, 2 or 4 rows of as many parts; *pairs* interleaves the first and the second halves of two rows."""
    if len(rows) == 1:
        return [*rows]
    if len(rows) == 2:
        return [*pairs(*rows)]
    # Perfect shuffles: log₂ of them, each of rows half the matrix apart, transpose.
    (a, b), (c, d) = pairs(rows[0], rows[2]), pairs(rows[1], rows[3])
    return [*pairs(a, c), *pairs(b, d)]


STREAMING_SOURCE = """\
#if defined(__GNUC__)
#define INLINE_ALWAYS static inline __attribute__((always_inline))
#else
#define INLINE_ALWAYS static inline
#endif
#if defined(__clang__)
#define SHUFFLE_LANES(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE_LANES(a, b, ...) __builtin_shuffle(a, b, (row){__VA_ARGS__})
#endif
/* A store past the caches, of whole lines: what is written would be fetched first otherwise. */
#if defined(__clang__)
#define STREAM_64(p, v) __builtin_nontemporal_store(v, p)
#define STREAM_32(p, v) __builtin_nontemporal_store(v, p)
#elif defined(__AVX512F__)
typedef float lanes_16 __attribute__((vector_size(64)));
#define STREAM_64(p, v) __builtin_ia32_movntps512((float *)(p), (lanes_16)(v))
#else
#define STREAM_64(p, v) (*(p) = (v))
#endif
#if !defined(__clang__) && defined(__AVX__)
typedef float lanes_8 __attribute__((vector_size(32)));
#define STREAM_32(p, v) __builtin_ia32_movntps256((float *)(p), (lanes_8)(v))
#elif !defined(__clang__)
#define STREAM_32(p, v) (*(p) = (v))
#endif
#define STREAM_128(p, v) (*(p) = (v))
#define STREAM_16(p, v) (*(p) = (v))
#define STREAM_8(p, v) (*(p) = (v))
#if defined(__x86_64__) && defined(__GNUC__)
#define STREAM_END() __builtin_ia32_sfence()
#else
#define STREAM_END() (void)0
#endif"""
"""Macros for the functions of ``transpose_source``."""

PREFETCH_SOURCE = """\
#if defined(__GNUC__)
#define FETCH_LINE(p, write) __builtin_prefetch(p, write, 3)
#else
#define FETCH_LINE(p, write) (void)0
#endif"""
"""A macro that prefetches a line."""


def transpose_source(side: int, size: int) -> str:
    """Return C functions ``turn_S_B`` and ``stream_S_B``: store a tile of *side*² elements of *size* bytes transposed.

    ``stream`` bypasses the caches where whole aligned lines are written, else it calls ``turn``. Without the vector
    types of GCC and Clang they are loops.
    """
    lines: list[str] = []
    numbers = count()

    def let(value: str) -> str:
        name = f"v{next(numbers)}"
        lines.append(f"    const row {name} = {value};")
        return name

    rows = [let(f"from[{n}]") for n in range(side)]
    done = transpose_rows(rows, lambda a, b, lanes: let(f"SHUFFLE_LANES({a}, {b}, {', '.join(map(str, lanes))})"))
    word, bytes_ = WORD_TYPES[size], side * size
    every = (f"for (int {x} = 0; {x} < {n}; ++{x})" for x, n in (("j", "rows"), ("i", side)))
    loops = f"    {' '.join(every)} to[j * step + i] = tile[i * {side} + j];"
    head = f"({word} *to, long long step, const {word} *tile, int rows)"
    typed = f"    typedef {word} row __attribute__((vector_size({bytes_}), aligned({size}), may_alias));"
    whole = f"    typedef {word} line __attribute__((vector_size({bytes_}), may_alias));"
    start = "    const row *from = (const row *)tile;"
    turn = [
        typed,
        start,
        *lines,
        *(f"    if ({n} < rows) *(row *)(to + {n} * step) = {v};" for n, v in enumerate(done)),
    ]
    stream = [
        typed,
        whole,
        f"    if (((unsigned long long)to | (unsigned long long)(step * {size})) % {bytes_} != 0) {{",
        f"        turn_{side}_{size}(to, step, tile, rows);",
        "        return;",
        "    }",
        start,
        *lines,
        *(f"    if ({n} < rows) STREAM_{bytes_}((line *)(to + {n} * step), (line){v});" for n, v in enumerate(done)),
    ]
    out: list[str] = []
    for name, body in (("turn", turn), ("stream", stream)):
        out += [f"INLINE_ALWAYS void {name}_{side}_{size}{head} {{", "#if defined(__GNUC__)", *body]
        out += ["#else", loops, "#endif", "}"]
    return "\n".join(out)


def _reciprocal(value: float, kind: Type) -> tuple[float, ...]:
    """Return (high, low) of *kind* and of one sign, whose sum is 1 / *value*.

    Empty if *value* has an exact or an extreme reciprocal.  Infinity times either is then infinity.
    """
    real = np.float32 if kind == F32 else np.float64
    divisor = float(real(value))
    if not MIN_DIVISOR < abs(divisor) < 1 / MIN_DIVISOR:
        return ()
    exact = 1 / Fraction(divisor)
    high = real(exact)
    if abs(Fraction(float(high))) > abs(exact):
        high = np.nextafter(high, real(0))
    low = real(exact - Fraction(float(high)))
    return (float(high), float(low)) if low else ()


MIN_DIVISOR = 1e-18
"""Divisors of less, and of more than the reciprocal of it, are not replaced by products: those may underflow."""


def partial_store_source(lanes: int) -> str:
    """Return the C function ``part_N(to, from, size)``: store the first *size* of *lanes* aligned float32.

    It is one instruction if possible.

    memcpy goes through memory for a number that is not a power of 2.
    """
    name = {4: "128", 8: "256", 16: "512"}[lanes]
    mask = "short" if lanes == 16 else "char"
    return f"""#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512VL__)
static inline __attribute__((always_inline)) void part_{lanes}(float *to, const float *from, int size) {{
    typedef float line __attribute__((vector_size({4 * lanes}), may_alias));
    __builtin_ia32_storeups{name}_mask((void *)to, *(const line *)from, (unsigned {mask})((1 << size) - 1));
}}
#else
#define part_{lanes}(to, from, size) memcpy(to, from, 4 * (size))
#endif"""


_C = {
    "bool": "unsigned char", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int", "uint64": "unsigned long long",
    "float16": "_Float16", "bfloat16": "unsigned short", "float32": "float", "float64": "double",
}  # fmt: skip

_OPENCL = {
    "bool": "uchar", "int8": "char", "int16": "short", "int32": "int", "int64": "long",
    "uint8": "uchar", "uint16": "ushort", "uint32": "uint", "uint64": "ulong",
    "float16": "ushort", "bfloat16": "ushort", "float32": "float", "float64": "double",
}  # fmt: skip

_DOUBLE = {f.name: f.c_name for f in SCALAR_FUNCTIONS.values() if f.c_name} | {"floor": "floor", "fma": "fma"}
_SINGLE = {name: f"{spelt}f" for name, spelt in _DOUBLE.items()}
_GPU_ONLY = {f.name: f.gpu_name for f in SCALAR_FUNCTIONS.values() if f.gpu_name}

HELPER_SOURCES = {f.name: f.c_definition for f in SCALAR_FUNCTIONS.values() if f.c_definition}
"""Functions that a dialect lacks, or whose built-in form loses NaNs; T stands for the type, N for its name.

With a constant as one operand a maximum is one instruction, since `b != b` is then known.
"""


BFLOAT16_LOAD = """float load_bfloat16(unsigned short a) {
    const union { unsigned i; float f; } made = {(unsigned)a << 16};
    return made.f;
}"""
"""A number of bfloat16, by its bits: the first half of those of float32."""

BFLOAT16_STORE = """unsigned short store_bfloat16(float a) {
    const union { float f; unsigned i; } x = {a};
    return (unsigned short)((a == a ? x.i + (0x7fffu + (x.i >> 16 & 1u)) : x.i | 0x400000u) >> 16);
}"""
"""The bits of the number of bfloat16 nearest to a float32, ties to even; a NaN stays one."""

EXP_SOURCE = """T exp_N(T a) {
    const union { float f; int i; } given = {a};
    const unsigned below = (unsigned)(given.i < 0x42b20000 ? given.i : 0x42b20000);
    const union { unsigned i; float f; } x = {below < 0xc2d00000u ? below : 0xc2d00000u};
    const union { float f; unsigned i; } t = {x.f * 1.44269504f + 12583166.0f};
    const float n = t.f - 12583166.0f;
    const float r = x.f - n * 0.693359375f + n * 2.12194440e-4f;
    const float s = r * r;
    const float low = 1.666652038e-1f * r + 4.999999343e-1f;
    const float high = 1.381454735e-3f * s + (8.368747212e-3f * r + 4.166839084e-2f);
    const float q = ((high * s + low) * s + r) + 1.0f;
    const unsigned h = t.i >> 1;
    const union { unsigned i; float f; } one = {h << 23}, other = {(t.i - h) << 23};
    return a == a ? q * one.f * other.f : a;
}"""
r"""The C dialect's exponential of float32, without a branch or a call, so that compilers vectorise it.

.. math::  e^x = 2^n e^r, \quad n = \lfloor x / \ln 2 \rceil, \quad r = (x - n c_1) + n c_2

:math:`c_1 = 355/512` has few enough digits for an exact product (Cody and Waite).  `x` is clamped to [-104, 89] as an
integer: floats are ordered like integers, and an integer comparison takes one instruction where a float one takes two.
Adding :math:`1.5 \cdot 2^{23} + 254` rounds to `n` and leaves `n + 254` in the last bits, the sum of the exponents of
two factors of :math:`2^n`, neither of which overflows or underflows.  The polynomial of degree 6 has a relative error
below :math:`4 \cdot 10^{-9}`; it is in Estrin's order, since a processor otherwise waits for one multiplication after
the other.  In all, the error is at most 1.1 units in the last place.
"""


@dataclass(frozen=True, slots=True)
class OddQuotient:
    r"""The odd function :math:`x\, P(x^2)/Q(x^2)` of float32 for |x| ≤ *end*; from there on it is 1, or -1.

    *above* and *below* are the coefficients of `P` and of `Q`, of the highest power first.
    """

    end: int
    above: tuple[float, ...]
    below: tuple[float, ...]

    def source(self, name: str) -> str:
        """Return the function *name* in C; comparisons with NaN are false, so that a NaN stays one."""
        p, q = (reduce(lambda total, c: f"({total} * s + {c}f)", c[1:], f"{c[0]}f") for c in (self.above, self.below))
        return f"""T {name}_N(T a) {{
    const float less = {self.end}.0f < a ? {self.end}.0f : a, x = -{self.end}.0f > less ? -{self.end}.0f : less;
    const float s = x * x, y = x * {p} / {q}, most = 1.0f < y ? 1.0f : y;
    return -1.0f > most ? -1.0f : most;
}}"""


ODD_QUOTIENTS = {
    "erf": OddQuotient(
        4,
        (1.98656151e-6, 2.84541321e-4, 3.88312709e-3, 5.31010976e-2, 1.93542843e-1, 1.12837914),
        (3.74165516e-5, 1.18547968e-3, 1.52068641e-2, 1.15348755e-1, 5.04855439e-1, 1.0),
    ),
    "tanh": OddQuotient(
        9,
        (1.33542249e-8, 2.06087597e-5, 3.49556844e-3, 1.33810091e-1, 9.99999979e-1),
        (7.77637699e-7, 3.28560263e-4, 2.58769075e-2, 4.67143247e-1, 1.0),
    ),
}
r"""The functions that are computed so on CPUs, with relative errors of the quotients below :math:`3 \cdot 10^{-8}`.

With rounding, at most 5 and 6 units in the last place.  A library's functions take several times as long, and it has
one for vectors and another for single elements, whose last bits differ; gradients of a maximum compare an element that
is computed again with the maximum.
"""

QUOTIENT_SOURCE = """T NAME(T a, T divisor, T high, T low) {
#if defined(__FMA__) || defined(__aarch64__)
    return (void)divisor, FMA(a, high, a * low);
#else
    return (void)high, (void)low, a / divisor;
#endif
}"""
"""The C dialect's quotient of a number by a constant, whose reciprocal is *high* + *low*.

It is the correctly rounded one, except for a few pairs of numbers, where it differs in the last bit (Brisebarre, Muller
and Raina 2004); a division takes five times as long.
"""

NEAREST_INTEGER_SOURCE = """int NAME(T x, int shift, int low, int high) {
#if defined(__GNUC__) && !defined(__clang__)
#define TO_INTEGER(x) IRINT(x)
#else
#define TO_INTEGER(x) (int)RINT(x)
#endif
    const union { T f; BITS i; } given = {x}, most = {(T)(high - shift)};
    const union { BITS i; T f; } less = {given.i < most.i ? given.i : most.i};
    const T bounded = high >= shift ? less.f : x < most.f ? x : most.f;
    const int near = TO_INTEGER(bounded), least = low - shift;
#undef TO_INTEGER
    return (near > least ? near : least) + shift;
}"""
"""The C dialect's integer from *low* to *high* that is nearest to *x*, plus *shift*.

One instruction rounds and converts vectors; numbers below all integers become the least one.  A number and one that is
not negative are ordered like their bits, whose minimum takes one instruction where that of numbers takes two.
"""

_ROUNDED_SUM = f"""
#if defined(__FMA__) || defined(__aarch64__)
    const float inner = fmaf(low, s, rest);
    const union {{ float f; int i; }} x = {{fmaf(high, s, inner)}};
#else
    const float inner = (float)((double)low * s + rest);
    const union {{ float f; int i; }} x = {{(float)((double)high * s + inner)}};
#endif
    const int end = {LEVEL_BITS} + (most - first) * {LEVEL_STEP}, start = {LEVEL_BITS} + (least - first) * {LEVEL_STEP};
    const int below = x.i < end ? x.i : end, level = below > start ? below : start;"""

ROUNDED_SUM_SOURCE = f"""int rounded_sum(float high, float s, float low, float rest, int least, int most, int first) {{
{_ROUNDED_SUM.strip()}
    return (level >> {LEVEL_STEP.bit_length() - 1}) - {LEVEL_BITS // LEVEL_STEP} + first;
}}"""
"""The C dialect's ``rounded_sum`` as an integer: levels are steps of the bits of a number from 256 to 512.

Without fused multiply-adds it is computed as it is verified (``RoundedSum.agrees``).
"""

ROUNDED_SUM_NUMBER_SOURCE = f"""float rounded_sum_float32(
    float high, float s, float low, float rest, int least, int most, int first)
{{
{_ROUNDED_SUM.strip()}
    const union {{ int i; float f; }} whole = {{level & -{LEVEL_STEP}}};
    return whole.f - (float)({LEVEL_START} - first);
}}"""
"""The same as a number: without the bits of fractions, so that nothing is converted."""


C_SOURCES = {
    "exp": EXP_SOURCE,
    "rounded_sum": ROUNDED_SUM_NUMBER_SOURCE,
    **{name: quotient.source(name) for name, quotient in ODD_QUOTIENTS.items()},
}
"""Functions of float32 that the C dialect defines."""


@dataclass(frozen=True)
class Dialect:
    """Spellings of one dialect: *types*, built-in functions of float32 and float64, qualifiers."""

    name: str
    types: Mapping[str, str]
    single: Mapping[str, str]
    double: Mapping[str, str]
    helper: str
    spaces: Mapping[str, str]
    ids: Mapping[str, str]
    """Launch coordinates, where n stands for the number of the dimension and axis for its letter."""
    barrier: str
    infinity: tuple[str, str]
    suffix: Mapping[str, str]
    aligned: str
    """A declaration of an array with an alignment."""

    def spell(self, kind: Type) -> str:
        """Return the name of *kind*."""
        return self.types[repr(kind)]

    def launch_index(self, of: str, dim: int) -> str:
        """Return the launch coordinate *of* dimension *dim*."""
        return self.ids[of].format(n=dim, axis="xyz"[dim])

    def built_ins(self, kind: Type) -> Mapping[str, str]:
        """Return the built-in functions of *kind*, by name; helpers replace others."""
        return {F32: self.single, F64: self.double}.get(kind, {})

    def needs(self, name: str, kind: Type) -> tuple[str, ...]:
        """Return the helpers that the helper *name* of *kind* calls."""
        return ("exp",) if "EXP(" in self._source(name, kind) and "exp" not in self.built_ins(kind) else ()

    def _source(self, name: str, kind: Type) -> str:
        """Return the source of the helper *name* of *kind*, empty if there is none."""
        return C_SOURCES[name] if kind == F32 and name in C_SOURCES else HELPER_SOURCES.get(name, "")

    def helper_text(self, name: str, kind: Type) -> str:
        """Return the definition of the helper *name* of *kind*."""
        source = self._source(name, kind)
        if not source:
            raise Refused(f"{name} of {kind!r} is no function of {self.name}, and its entry has no c_definition")
        return self.define(name, source, kind)

    def define(self, name: str, source: str, kind: Type) -> str:
        """Return the definition of the helper *name*, whose *source* has signs for the type and its functions."""
        word, suffix, own = self.spell(kind), "f" if kind == F32 else "", self.built_ins(kind)
        for sign, text in (
            ("NAME", name), ("_N", f"_{kind!r}"), ("T ", f"{word} "), ("(T)", f"({word})"), ("ONE", f"1.0{suffix}"),
            ("BITS", self.spell(Type("int", kind.bits))), ("EXP", own.get("exp", f"exp_{kind!r}")),
            ("SQRT", own.get("sqrt", "SQRT")), ("FMA(", f"__builtin_fma{suffix}("),
            ("IRINT(", f"__builtin_irint{suffix}("), ("RINT(", f"rint{suffix}("),
        ):  # fmt: skip
            source = source.replace(sign, text)
        return f"{self.helper} {source}"


CUDA = Dialect(
    "cuda",
    {**_C, "float16": "__half"},
    {**_SINGLE, **{name: f"{spelt}f" for name, spelt in _GPU_ONLY.items()}},
    _DOUBLE | _GPU_ONLY,
    "static __device__ __forceinline__",
    {"global": "", "shared": "__shared__ ", "private": ""},
    {"thread": "threadIdx.{axis}", "block": "blockIdx.{axis}", "grid": "gridDim.{axis}"},
    "__syncthreads();",
    ("__int_as_float(0x7f800000)", "__int_as_float(0x7fffffff)"),
    {"int64": "LL", "uint64": "ULL", "uint32": "U"},
    "__align__({align}) {declaration}",
)

OPENCL = Dialect(
    "opencl",
    _OPENCL,
    _DOUBLE | _GPU_ONLY,
    _DOUBLE | _GPU_ONLY,
    "static inline",
    {"global": "__global ", "shared": "__local ", "private": ""},
    {"thread": "get_local_id({n})", "block": "get_group_id({n})", "grid": "get_num_groups({n})"},
    "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    ("INFINITY", "NAN"),
    {"int64": "L", "uint64": "UL", "uint32": "U"},
    "{declaration} __attribute__((aligned({align})))",
)

C = Dialect(
    "c",
    _C,
    {name: spelt for name, spelt in _SINGLE.items() if name not in C_SOURCES},
    _DOUBLE,
    "static inline",
    {"global": "", "shared": "", "private": ""},
    {"thread": "0", "block": "block_{axis}", "grid": "grid_{axis}"},
    "",
    ("INFINITY", "NAN"),
    {"int64": "LL", "uint64": "ULL", "uint32": "U"},
    "_Alignas({align}) {declaration}",
)

ASYNC_COPY_SOURCE = r"""template <int bytes>
static __device__ __forceinline__ void copy_async(void *to, const void *from)
{
#if __CUDA_ARCH__ >= 800
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(to);
    if (bytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(at), "l"(from), "n"(bytes) : "memory");
    }
#else
    for (int n = 0; n < bytes / 4; ++n) {
        ((int *)to)[n] = ((const int *)from)[n];
    }
#endif
}
static __device__ __forceinline__ void await_copies()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}"""
"""Asynchronous copies from global to shared memory in CUDA; before sm_80 they are plain copies."""

FRAGMENT_SOURCE = r"""static __device__ __forceinline__ void multiply_fragments(
    float *sums, const __half *left, int left_stride, const __half *right, int right_stride)
{
    const int lane = (int)threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const unsigned int a0 = *reinterpret_cast<const unsigned int *>(left + row * left_stride + column);
    const unsigned int a1 = *reinterpret_cast<const unsigned int *>(left + (row + 8) * left_stride + column);
    const unsigned int a2 = *reinterpret_cast<const unsigned int *>(left + row * left_stride + column + 8);
    const unsigned int a3 = *reinterpret_cast<const unsigned int *>(left + (row + 8) * left_stride + column + 8);
    const unsigned int b0 = *reinterpret_cast<const unsigned int *>(right + row * right_stride + column);
    const unsigned int b1 = *reinterpret_cast<const unsigned int *>(right + row * right_stride + column + 8);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}"""
"""``FragmentProduct`` on tensor cores, as the PTX documentation lays out the registers of ``mma.m16n8k16``."""

DIALECTS = {d.name: d for d in (CUDA, OPENCL, C)}

_WORDS = """
    HUGE_VALF INFINITY MAXFLOAT NAN NULL abs acos alignas alignof all and and_eq any asin asm atan atomic_int auto
    barrier bitand bitor bitselect blockDim blockIdx block_x block_y block_z bool break case catch ceil char
    char16_t char32_t char8_t clamp class clz co_await co_return co_yield compl complex concept const const_cast
    constant consteval constexpr constinit continue cos cosh cross ctz decltype default degrees delete dim3 distance
    do dot double dynamic_cast else enum errno event event_t exp exp10 exp2 explicit expm1 export extern fabs
    false fence float floor fma fmax fmin fmod for frexp friend gamma generic global goto gridDim grid_x grid_y
    grid_z group groups hadd half hypot i386 if image2d_t imaginary import inline int intptr_t isequal isinf isnan
    j0 j1 jn kernel ldexp length lgamma linux local log log10 log1p log2 long mad mad24 main max maximum maxmag min
    minimum minmag mix modf module mul24 mul_hi mutable namespace nan native_exp ndrange_t new noexcept normalize
    not not_eq nullptr operator or or_eq pipe popcount pow prefetch printf private protected ptrdiff_t public quad
    queue_t quotient radians read_only read_write register reinterpret_cast requires restrict return rhadd rint rotate
    round rsqrt sampler_t select short shuffle shuffle2 sigmoid sign signbit signed signgam sin sinh size_t sizeof sqrt
    static static_assert static_cast stdin step struct switch tan tanh template tgamma this threadIdx thread_local
    threads throw true trunc try typedef typeid typename typeof uchar uint uintptr_t ulong uniform union unix
    unsigned upsample ushort using virtual void volatile warpSize wchar_t while write_only xor xor_eq y0 y1 yn
"""

RESERVED_NAMES = frozenset(_WORDS.split()).union(HELPER_SOURCES, C_SOURCES, _DOUBLE.values())
"""Words with a meaning in one of the dialects; no name of a kernel is spelt like one."""

RESERVED_PATTERN = re.compile(
    r"\w+_t|(u?(char|short|int|long)|float|double|half|bool)\d+|pack_\d+"
    rf"|({'|'.join((*HELPER_SOURCES, *C_SOURCES))})_\w+|({'|'.join((*_DOUBLE.values(), *_GPU_ONLY.values()))})f"
    r"|mem(cpy|set|move)|make_\w+|v(load|store)_?\w*"
    r"|(copy|await|choose|load|store|multiply|nearest|quotient)_\w+|(turn|stream)_\d+_\d+|(lanes|part)_\d+"
    r"|(convert|get|as|native|half|work|sub|async|wait|atomic|atom|omp)_\w+|[A-Z][A-Z0-9]*_[A-Z0-9_]+|EOF|FILE|BUFSIZ"
)
"""Names of types, functions and macros that follow a pattern."""


MAX_NAME_LENGTH = 40
"""Characters of a name that its identifier keeps."""


@dataclass
class IdentifierTable:
    """Unique identifiers by name: letters, digits and single underscores only, none reserved."""

    given: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """Return the identifier of *name*, the same at each call."""
        if name not in self.given:
            stem = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:MAX_NAME_LENGTH].rstrip("_")
            stem = stem if stem[:1].isalpha() else f"v{stem}"
            stem = f"v_{stem}" if RESERVED_PATTERN.fullmatch(stem) else stem
            taken = {*self.given.values(), *RESERVED_NAMES}
            n, made = 1, stem
            while made in taken:
                n, made = n + 1, f"{stem}_{n}"
            self.given[name] = made
        return self.given[name]


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

    def name(self, what: Var | Array) -> str:
        """Return the identifier of *what*."""
        return self.names.of(what.name)

    def expr(self, e: Expr, least: int = 0) -> str:
        """Return the text of *e*, in parentheses if it binds less tightly than *least*."""
        text, binds = self._print(e)
        return f"({text})" if binds < least else text

    def _print(self, e: Expr) -> tuple[str, int]:
        match e:
            case Literal(value, kind):
                return self._literal(value, kind)
            case Var():
                return self.name(e), _ATOM_PRECEDENCE
            case LaunchIndex(of, dim):
                said = self.dialect.launch_index(of, dim)
                return (said, _ATOM_PRECEDENCE) if self.dialect is C else (f"(int){said}", UNARY_PRECEDENCE)
            case Unary(op, arg):
                return f"{op}{self.expr(arg, _ATOM_PRECEDENCE)}", UNARY_PRECEDENCE
            case Binary("/", left, Literal(value, kind)) if (
                self.dialect is C and kind in (F32, F64) and (parts := _reciprocal(value, kind))
            ):
                operands = (left, Literal(value, kind), *(Literal(part, kind) for part in parts))
                name = self._helper("quotient", QUOTIENT_SOURCE, kind)
                return f"{name}({', '.join(map(self.expr, operands))})", _ATOM_PRECEDENCE
            case Binary(op, left, right):
                binds = _PRECEDENCE[op]
                # Mixed logic and bits are parenthesised for compilers that warn, and for readers.
                inner = max(binds, 9) if op in ("&", "|", "^", "<<", ">>", "==", "!=") else binds
                return f"{self.expr(left, inner)} {op} {self.expr(right, max(inner, binds + 1))}", binds
            case Cast(kind, LaunchIndex(of, dim)) if self.dialect is not C and kind.integer:
                return f"({self.dialect.spell(kind)}){self.dialect.launch_index(of, dim)}", UNARY_PRECEDENCE
            case Cast(kind, arg) if self.dialect is C and (
                whole := nearest_integer(arg if isinstance(arg, Cast) and not kind.integer else e)
            ):
                name = self._helper("nearest_integer", NEAREST_INTEGER_SOURCE, whole[0].type)
                ends = ", ".join(f"{n:.0f}" for n in whole[1:])
                return f"({self.dialect.spell(kind)}){name}({self.expr(whole[0])}, {ends})", UNARY_PRECEDENCE
            case Cast(kind, Call("rounded_sum", args)) if self.dialect is C and kind.integer:
                given = [*map(self.expr, args[:4]), *(f"{n.value:.0f}" for n in args[4:] if isinstance(n, Literal))]
                name = self._helper("rounded_sum", ROUNDED_SUM_SOURCE)
                return f"({self.dialect.spell(kind)}){name}({', '.join(given)})", UNARY_PRECEDENCE
            case Cast(kind, Cast(_, Call("rounded_sum") as number)) if self.dialect is C and kind == F32:
                return self.expr(number), _ATOM_PRECEDENCE
            case Cast(kind, arg):
                if kind == BOOL:
                    return f"{self.expr(arg, 7)} != 0", _PRECEDENCE["!="]
                return f"({self.dialect.spell(kind)}){self.expr(arg, UNARY_PRECEDENCE)}", UNARY_PRECEDENCE
            case Select(condition, yes, no, eager=True) if self.dialect is C:
                said = ", ".join(map(self.expr, (condition, yes, no)))
                word = self.dialect.spell(yes.type)
                name = f"choose_{yes.type!r}"
                # Arguments are evaluated, so that compilers need no masks for loads.
                source = f"{word} {name}(int condition, {word} yes, {word} no) {{ return condition ? yes : no; }}"
                return f"{self._helper(name, source)}({said})", _ATOM_PRECEDENCE
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
        text = f"{self.name(array)}[{self.expr(index)}]"
        if array.kind == BF16:
            return f"{self._helper('load_bfloat16', BFLOAT16_LOAD)}({text})", _ATOM_PRECEDENCE
        if array.kind == F16 and self.dialect is CUDA:
            return f"__half2float({text})", _ATOM_PRECEDENCE
        return (f"(float){text}", UNARY_PRECEDENCE) if array.kind == F16 else (text, _ATOM_PRECEDENCE)

    def _helper(self, stem: str, source: str, kind: Type = F32) -> str:
        """Return the name of the function of *source* for *kind*: *stem*, and the type unless it is float32."""
        name = stem if kind == F32 else f"{stem}_{kind!r}"
        self.helpers.setdefault(name, self.dialect.define(name, source, kind))
        return name

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
        binds = UNARY_PRECEDENCE if value < 0 or text.startswith("-") else _ATOM_PRECEDENCE
        return f"{text}{'f' if single else ''}", binds

    def _half(self, array: Array, qualifier: str = "") -> str:
        return f"({self.dialect.spaces[array.space]}{qualifier}half *){self.name(array)}"


class MemoryPrinter(ExpressionPrinter):
    """Prints declarations, loads, stores and copies of arrays: each dialect has its own vectors, halves and copies."""

    def local(self, array: Array) -> str:
        """Return the declaration of a thread's or a block's array."""
        declaration = f"{self.dialect.spell(array.kind)} {self.name(array)}[{array.size}]"
        if array.align:
            declaration = self.dialect.aligned.format(declaration=declaration, align=array.align)
        return f"{self.dialect.spaces[array.space]}{declaration};"

    def place(self, array: Array, index: Expr) -> str:
        """Return a pointer to an element."""
        name = self.name(array)
        return name if integer_constant(index) == 0 else f"{name} + {self.expr(index, 9)}"

    def store(self, array: Array, index: Expr, value: Expr) -> str:
        """Return a store of one element."""
        if array.kind == F16 and self.dialect is OPENCL:
            return f"vstore_half_rte({self.expr(value)}, {self.expr(index)}, {self._half(array)});"
        said = self.expr(value)
        if array.kind == BF16:
            said = f"{self._helper('store_bfloat16', BFLOAT16_STORE)}({said})"
        if array.kind == F16 and self.dialect is CUDA:
            said = f"__float2half_rn({said})"
        elif array.kind == F16:
            said = f"(_Float16){self.expr(value, UNARY_PRECEDENCE)}"
        return f"{self.name(array)}[{self.expr(index)}] = {said};"

    def copy(self, s: Copy) -> Iterable[str]:
        """Yield a copy of several elements."""
        size = s.size * s.target.kind.size
        to, origin = self.place(s.target, s.write), self.place(s.source, s.read)
        if s.asynchronous and self.dialect is CUDA:
            yield f"copy_async<{size}>({to}, {origin});"
        elif self.dialect is C:
            lanes = next((n for n in (4, 8, 16) if n > s.size), 0)
            is_row = s.source.space == "private" and integer_constant(s.read) == 0 and s.target.kind == F32
            is_row = is_row and s.source.align == s.source.size * 4 == lanes * 4
            if is_row and lanes and s.size > 1 and not s.is_single_transfer:
                self.helpers.setdefault(f"part_{lanes}", partial_store_source(lanes))
                yield f"part_{lanes}({to}, {origin}, {s.size});"
            else:
                yield f"memcpy({to}, {origin}, {size});"
        elif not s.is_single_transfer:
            to, origin = self.name(s.target), self.names.of(s.source.name)
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
        a, b = self.name(left), self.names.of(right.name)
        if self.dialect is C:
            yield f"float {a} = {self.expr(Load(array, index))}, {b} = {self.expr(Load(array, index + 1))};"
            return
        pair = self.names.of(f"{left.name} {right.name}")
        at, space = self.place(array, index), self.dialect.spaces[array.space]
        cuda = f"__half22float2(*reinterpret_cast<const __half2 *>({at}))"
        value = cuda if self.dialect is CUDA else f"vload_half2(0, ({space}const half *)({at}))"
        yield f"const float2 {pair} = {value};"
        yield f"float {a} = {pair}.x, {b} = {pair}.y;"

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
        return f"{name}(({word} *)({to}), {s.stride}, (const {word} *){tile}, {s.rows or s.side});"
