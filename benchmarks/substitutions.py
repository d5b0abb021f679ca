"""Substitutions of matrix programs, generated and proved for all sizes: ``python -m benchmarks.substitutions``.

As TASO does (Z. Jia et al., SOSP 2019), all programs of up to ``--operators`` operators are enumerated, and programs
with equal values on random integers are candidates.  A candidate is dropped if it follows from another: by renaming or
identifying inputs, since both sides have a common part, or since their operands are equal.  The others are proved for
all sizes by the families' checkers, where TASO tests sizes up to four or relies on axioms written by hand.

Operators: product, sum, element-wise product, transposition, relu, product with a scalar, concatenation of rows and of
columns, and the first and second part of what is concatenated.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import einnet_explore as ee

Array: TypeAlias = "npt.NDArray[np.int64]"
Extents: TypeAlias = "tuple[str, ...]"
"""Sizes whose sum is one extent: several after a concatenation."""

SIZES = {"M": 2, "N": 3, "K": 4, "L": 5}
INPUTS = {
    "a": (("M",), ("N",)), "b": (("M",), ("N",)), "c": (("M",), ("N",)), "d": (("N",), ("K",)), "e": (("N",), ("K",)),
    "f": (("K",), ("L",)), "s": ((), ()), "t": ((), ()),
}  # fmt: skip
"""Matrices with their rows and columns, and two scalars."""

DRAWS = 4
"""Random values of each input."""


@dataclass(frozen=True)
class Term:
    """An input, or an operator of terms; *rows* and *columns* are its extents."""

    op: str
    args: tuple[Term, ...]
    rows: Extents
    columns: Extents
    value: Array = field(repr=False, compare=False)

    @cached_property
    def operators(self) -> int:
        """The number of operators."""
        return 0 if not self.args else 1 + sum(arg.operators for arg in self.args)

    @cached_property
    def text(self) -> str:
        """The term in one line."""
        return f"{self.op}({', '.join(arg.text for arg in self.args)})" if self.args else self.op

    @cached_property
    def parts(self) -> frozenset[Term]:
        """The term and the terms in it."""
        return frozenset({self}).union(*(arg.parts for arg in self.args))

    @cached_property
    def fingerprint(self) -> tuple[Extents, Extents, bytes]:
        """The extents and values."""
        return self.rows, self.columns, self.value.tobytes()

    def __hash__(self) -> int:
        return hash(self.text)


def inputs(seed: int = 0) -> dict[str, Term]:
    """Return the inputs with random values."""
    rng = np.random.default_rng(seed)
    return {name: fresh(name, rows, columns, rng) for name, (rows, columns) in INPUTS.items()}


def fresh(name: str, rows: Extents, columns: Extents, rng: np.random.Generator) -> Term:
    """Return an input with random values."""
    shape = (DRAWS, *((extent(rows), extent(columns)) if rows else ()))
    values = rng.integers(2, 10, shape) * rng.choice([-1, 1], shape)
    return Term(name, (), rows, columns, values)


def extent(sizes: Extents) -> int:
    """Return the sum of *sizes*."""
    return sum(SIZES[size] for size in sizes)


def apply(op: str, *args: Term) -> Term | None:
    """Return *op* of *args*; None if their extents do not fit."""
    if any(not arg.rows for arg in args[op == "scale" :]) or (op == "scale" and args[0].rows):
        return None
    x, y = args[0], args[-1]
    same_rows, same_columns = x.rows == y.rows, x.columns == y.columns
    match op:
        case "add" | "mul" if same_rows and same_columns:
            return Term(op, args, x.rows, x.columns, x.value + y.value if op == "add" else x.value * y.value)
        case "matmul" if x.columns == y.rows:
            return Term(op, args, x.rows, y.columns, x.value @ y.value)
        case "transpose":
            return Term(op, args, x.columns, x.rows, np.ascontiguousarray(x.value.swapaxes(1, 2)))
        case "relu":
            return Term(op, args, x.rows, x.columns, np.maximum(x.value, 0))
        case "scale":
            return Term(op, args, y.rows, y.columns, x.value[:, None, None] * y.value)
        case "rows" if same_columns:
            return Term(op, args, x.rows + y.rows, x.columns, np.concatenate([x.value, y.value], 1))
        case "columns" if same_rows:
            return Term(op, args, x.rows, x.columns + y.columns, np.concatenate([x.value, y.value], 2))
        case "top" | "bottom" if len(x.rows) == 2:
            kept, cut = x.rows[op == "bottom"], extent(x.rows[:1])
            value = x.value[:, :cut] if op == "top" else x.value[:, cut:]
            return Term(op, args, (kept,), x.columns, np.ascontiguousarray(value))
        case "left" | "right" if len(x.columns) == 2:
            kept, cut = x.columns[op == "right"], extent(x.columns[:1])
            value = x.value[..., :cut] if op == "left" else x.value[..., cut:]
            return Term(op, args, x.rows, (kept,), np.ascontiguousarray(value))
    return None


UNARY = ("transpose", "relu", "top", "bottom", "left", "right")
BINARY = ("add", "mul", "matmul", "scale", "rows", "columns")


def enumerated(most: int) -> list[Term]:
    """Return all terms of up to *most* operators, the smallest first."""
    by_count: list[list[Term]] = [list(inputs().values())]
    for count in range(1, most + 1):
        found = [made for op in UNARY for x in by_count[count - 1] if (made := apply(op, x)) is not None]
        for left in range(count):
            pairs = product(by_count[left], by_count[count - 1 - left])
            found += [made for x, y in pairs for op in BINARY if (made := apply(op, x, y)) is not None]
        by_count.append(found)
    return [term for terms in by_count for term in terms]


def candidates(terms: Iterable[Term]) -> Generator[tuple[Term, Term], None, None]:
    """Yield each term with the smallest one of equal values, if there is a smaller."""
    first: dict[Any, Term] = {}
    for term in terms:
        known = first.setdefault(term.fingerprint, term)
        if known is not term:
            yield term, known


def kept(pairs: Iterable[tuple[Term, Term]]) -> Generator[tuple[Term, Term], None, None]:
    """Yield the *pairs* that do not follow from another one, or from equal operands or a common part of both sides.

    Small pairs come first, and those with many different inputs before those in which some are identified.
    """

    def rank(pair: tuple[Term, Term]) -> tuple[int, int]:
        return sum(side.operators for side in pair), -len(
            {part for side in pair for part in side.parts if not part.args}
        )

    implied = set[tuple[str, str]]()
    for pair in sorted(pairs, key=rank):
        if renamed(pair) in implied or follows_from_operands(*pair) or has_common_part(*pair):
            continue
        implied.update(identifications(pair))
        yield pair


def follows_from_operands(one: Term, other: Term) -> bool:
    """Return whether both apply one operator to equal operands."""
    return (
        one.op == other.op
        and bool(one.args)
        and all(a.fingerprint == b.fingerprint for a, b in zip(one.args, other.args, strict=True))
    )


def has_common_part(one: Term, other: Term) -> bool:
    """Return whether both stay equal if an input replaces a part that they have in common."""
    rng = np.random.default_rng(1)
    for part in one.parts & other.parts:
        if part.args:
            new = fresh("?", part.rows, part.columns, rng)
            first, second = (with_part(side, part, new) for side in (one, other))
            if first.fingerprint == second.fingerprint:
                return True
    return False


def with_part(term: Term, old: Term, new: Term) -> Term:
    """Return *term* with *new* in place of *old*."""
    if term == old:
        return new
    if not term.args:
        return term
    made = apply(term.op, *(with_part(arg, old, new) for arg in term.args))
    assert made is not None
    return made


def renamed(pair: tuple[Term, Term], to: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return both texts with the inputs and the sizes numbered in their order, the inputs after *to*."""
    names: dict[str, str] = {}
    sizes: dict[str, str] = {}

    def write(term: Term) -> str:
        if not term.args:
            name = (to or {}).get(term.op, term.op)
            shape = ",".join(sizes.setdefault(size, str(len(sizes))) for size in (*term.rows, *term.columns))
            return names.setdefault(name, f"{len(names)}[{shape}]")
        return f"{term.op}({','.join(map(write, term.args))})"

    return write(pair[0]), write(pair[1])


def identifications(pair: tuple[Term, Term]) -> Generator[tuple[str, str], None, None]:
    """Yield the pair with some of its inputs of equal extents identified, in all ways."""
    found = sorted(
        {part.op: part for side in pair for part in side.parts if not part.args}.values(), key=lambda t: t.op
    )
    choices = [[other.op for other in found if (other.rows, other.columns) == (t.rows, t.columns)] for t in found]
    for chosen in product(*choices):
        yield renamed(pair, dict(zip((t.op for t in found), chosen, strict=True)))


def program(term: Term, names: Sequence[str]) -> str:
    """Return *term* as a program for all sizes, with the inputs *names*."""
    lines = ["param M, N, K, L"]
    for name in names:
        rows, columns = INPUTS[name]
        lines.append(f"tensor {name}[{f'{rows[0]}, {columns[0]}' if rows else '1'}]")
    count = 0

    def write(term: Term, to: str = "") -> str:
        nonlocal count
        if not term.args:
            return term.op
        args = [write(arg) for arg in term.args]
        count += 1
        name = to or f"T{count}"
        lines.append(f"{name}[i:{total(term.rows)}, j:{total(term.columns)}] = {BODIES[term.op](term, *args)}")
        return name

    if not term.args:
        lines.append(f"Y[i:{total(term.rows)}, j:{total(term.columns)}] = {term.op}[i, j]")
    else:
        write(term, "Y")
    return "\n".join([*lines, "output Y"]) + "\n"


def total(sizes: Extents) -> str:
    """Return the sum of *sizes* as text."""
    return "+".join(sizes)


BODIES: Mapping[str, Callable[..., str]] = {
    "add": lambda _, x, y: f"{x}[i, j] + {y}[i, j]",
    "mul": lambda _, x, y: f"{x}[i, j] * {y}[i, j]",
    "matmul": lambda term, x, y: f"sum[k:{total(term.args[0].columns)}] {x}[i, k] * {y}[k, j]",
    "transpose": lambda _, x: f"{x}[j, i]",
    "relu": lambda _, x: f"relu({x}[i, j])",
    "scale": lambda _, s, x: f"{s}[0] * {x}[i, j]",
    "rows": lambda t, x, y: f"where(i < {total(t.args[0].rows)}, {x}[i, j], {y}[i-({total(t.args[0].rows)}), j])",
    "columns": lambda t, x, y: (
        f"where(j < {total(t.args[0].columns)}, {x}[i, j], {y}[i, j-({total(t.args[0].columns)})])"
    ),
    "top": lambda _, x: f"{x}[i, j]",
    "bottom": lambda t, x: f"{x}[i+{t.args[0].rows[0]}, j]",
    "left": lambda _, x: f"{x}[i, j]",
    "right": lambda t, x: f"{x}[i, j+{t.args[0].columns[0]}]",
}  # fmt: skip


def verdict(one: Term, other: Term) -> str:
    """Return the verdict on two terms for all sizes."""
    names = sorted({part.op for side in (one, other) for part in side.parts if not part.args})
    first, second = (ee.family(program(side, names)) for side in (one, other))
    return str(first.equals(second).kind)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the number of substitutions and of verdicts; return 1 if one is not proved."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.substitutions", description=__doc__)
    parser.add_argument("--operators", type=int, default=3, help="of a program, at most (default: %(default)s)")
    parser.add_argument("--most", type=int, help="prove only so many")
    parser.add_argument("--list", action="store_true", help="print each substitution and its verdict")
    asked = parser.parse_args(argv)
    began = perf_counter()
    terms = enumerated(asked.operators)
    found = list(kept(candidates(terms)))
    print(f"{len(terms):,} programs, {len(found):,} substitutions, {perf_counter() - began:.0f} s", flush=True)
    counts = Counter[str]()
    for one, other in found[: asked.most]:
        kind = verdict(one, other)
        counts[kind] += 1
        if asked.list or kind != "proved":
            print(f"{kind}: {one.text} = {other.text}", flush=True)
    print(", ".join(f"{count:,} {kind}" for kind, count in counts.items()), f"{perf_counter() - began:.0f} s")
    return int(counts.keys() != {"proved"})


if __name__ == "__main__":
    raise SystemExit(main())
