"""Transposition of a square tile in vector registers.

A tile of L×L elements is transposed as a matrix of 4×4 blocks, then inside the blocks (Eklundh 1972).  Every step is
one instruction on two vectors; the second half of the steps stays inside quarters of a register, which is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

V = TypeVar("V")

_QUARTER_LANES = 4
"""Elements of a quarter of the widest register: a shuffle keeps them together or moves elements among them."""

TILE_SIDES = (16, 8, 4)
"""The sides of tiles."""


def transpose_rows(rows: Sequence[V], shuffle: Callable[[V, V, list[int]], V]) -> list[V]:
    """Return the columns of a tile of *rows*, which have as many lanes as there are rows: 4, 8 or 16.

    ``shuffle(a, b, lanes)`` concatenates the given *lanes* of *a* and *b*.
    """
    side = len(rows)

    def pairs(a: V, b: V, part: int, within: int) -> tuple[V, V]:
        """In every *within* lanes: the first, then the second halves of a's and b's, *part* lanes in turn."""
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


WORD_TYPES = {2: "short", 4: "int", 8: "long long"}
"""The C integer of each number of bytes: tiles are moved as integers."""

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
    every = (f"for (int {x} = 0; {x} < {side}; ++{x})" for x in "ji")
    loops = f"    {' '.join(every)} to[j * step + i] = tile[i * {side} + j];"
    head = f"({word} *to, long long step, const {word} *tile)"
    typed = f"    typedef {word} row __attribute__((vector_size({bytes_}), aligned({size}), may_alias));"
    whole = f"    typedef {word} line __attribute__((vector_size({bytes_}), may_alias));"
    out = [
        f"INLINE_ALWAYS void turn_{side}_{size}{head} {{",
        "#if defined(__GNUC__)",
        typed,
        "    const row *from = (const row *)tile;",
    ]
    out += [
        *lines,
        *(f"    *(row *)(to + {n} * step) = {v};" for n, v in enumerate(done)),
        "#else",
        loops,
        "#endif",
        "}",
    ]
    out += [f"INLINE_ALWAYS void stream_{side}_{size}{head} {{", "#if defined(__GNUC__)", typed, whole]
    out += [f"    if (((unsigned long long)to | (unsigned long long)(step * {size})) % {bytes_} != 0) {{"]
    out += [
        f"        turn_{side}_{size}(to, step, tile);",
        "        return;",
        "    }",
        "    const row *from = (const row *)tile;",
    ]
    out += [*lines, *(f"    STREAM_{bytes_}((line *)(to + {n} * step), (line){v});" for n, v in enumerate(done))]
    out += ["#else", loops, "#endif", "}"]
    return "\n".join(out)


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
