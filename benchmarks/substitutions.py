"""Substitutions of tensor programs, generated and proved for all sizes: ``python -m benchmarks.substitutions``.

As TASO does (Z. Jia et al., SOSP 2019), all programs of up to ``--operators`` operators are enumerated, and programs
with equal values on random integers are candidates.  Operands are the smallest programs of their values: other programs
follow by substitutions of fewer operators.  A candidate is dropped if it follows from another one: by renaming or
identifying inputs, or since both sides have a common part.  The others are proved for all sizes by the families'
checkers, where TASO tests sizes up to four or relies on axioms written by hand.

Matrices: product, sum, element-wise product, transposition, relu, product with a scalar, concatenation of rows and of
columns, and the parts of what is concatenated.  Images: convolution (padded, not padded, of stride 2; of 3x3 and 1x1),
sums and maxima of windows, a 1x1 kernel as one of 3x3, sum, element-wise product, relu, product with a scalar,
concatenation of channels (of a kernel: both kinds), and the parts of concatenated channels.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import einnet_explore as ee
from einnet_explore.support.limits import interrupt_after

Array: TypeAlias = "npt.NDArray[np.int64]"
Extents: TypeAlias = "tuple[str, ...]"
"""Sizes whose sum is one extent: several after a concatenation."""
Dims: TypeAlias = "tuple[Extents, ...]"
"""The extents of a scalar (none), a matrix (rows, columns), an image (channels, height, width) or a kernel (results,
channels, height, width)."""

SIZES = {
    "M": 2, "N": 3, "K": 4, "L": 5, "C": 2, "F": 3, "1": 1, "3": 3, "G": 2, "2*G+2": 6, "2*G": 4, "G+1": 3, "V": 3,
    "2*V+2": 8, "2*V": 6, "V+1": 4,
}  # fmt: skip
STRIDED = {"2*G+2": "G+1", "2*V+2": "V+1"}
INNER = {"2*G+2": "2*G", "2*V+2": "2*V"}
"""Extents after a stride of 2, and after a 3x3 window without padding."""

DRAWS = 4
"""Random values of each input."""

PROOF_SECONDS = 20.0
"""Seconds after which a proof is given up."""


@dataclass(frozen=True)
class Term:
    """An input, or an operator of terms; *dims* are its extents."""

    op: str
    args: tuple[Term, ...]
    dims: Dims
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
    def fingerprint(self) -> tuple[Dims, bytes]:
        """The extents and a digest of the values."""
        return self.dims, hashlib.blake2b(self.value.data, digest_size=16).digest()

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True)
class Operator:
    """An operator: the extents of its result (None: the operands do not fit), its value, and its element as text."""

    arity: int
    dims: Callable[..., Dims | None]
    value: Callable[..., Array]
    element: Callable[..., str]


def total(sizes: Extents) -> str:
    """Return the sum of *sizes* as text."""
    return "+".join(sizes)


def extent(sizes: Extents) -> int:
    """Return the sum of *sizes*."""
    return sum(SIZES[size] for size in sizes)


def iterators(rank: int) -> str:
    """Return the iterators of a result, separated by commas."""
    return ", ".join(f"i{n}" for n in range(rank))


def elementwise(arity: int, value: Callable[..., Array], element: Callable[..., str]) -> Operator:
    """Return an operator on the elements of equal extents."""

    def dims(*operands: Dims) -> Dims | None:
        return operands[0] if operands[0] and len(set(operands)) == 1 else None

    def body(term: Term, *names: str) -> str:
        return element(*(f"{name}[{iterators(len(term.dims))}]" for name in names))

    return Operator(arity, dims, value, body)


def concatenation(axis: int, ranks: Sequence[int]) -> Operator:
    """Return the concatenation of two operands of one of these *ranks* along *axis*."""

    def dims(x: Dims, y: Dims) -> Dims | None:
        fits = (
            len(x) in ranks
            and len(x) == len(y)
            and all(a == b for n, (a, b) in enumerate(zip(x, y, strict=True)) if n != axis)
        )
        return (*x[:axis], x[axis] + y[axis], *x[axis + 1 :]) if fits else None

    def body(term: Term, x: str, y: str) -> str:
        first, rank = total(term.args[0].dims[axis]), len(term.dims)
        rest = ", ".join(f"i{n}-({first})" if n == axis else f"i{n}" for n in range(rank))
        return f"where(i{axis} < {first}, {x}[{iterators(rank)}], {y}[{rest}])"

    return Operator(2, dims, lambda x, y: np.concatenate([x, y], axis + 1), body)


def part(axis: int, number: int, rank: int) -> Operator:
    """Return the first or second part of what was concatenated along *axis*."""

    def dims(x: Dims) -> Dims | None:
        fits = len(x) == rank and len(x[axis]) == 2
        return (*x[:axis], (x[axis][number],), *x[axis + 1 :]) if fits else None

    def body(term: Term, x: str) -> str:
        first = term.args[0].dims[axis][0]
        at = (f"i{n}+{first}" if n == axis and number else f"i{n}" for n in range(rank))
        return f"{x}[{', '.join(at)}]"

    def value(x: Array, of: Dims) -> Array:
        cut = SIZES[of[axis][0]]
        return x.take(range(cut, x.shape[axis + 1]) if number else range(cut), axis + 1)

    return Operator(1, dims, value, body)


def convolution(sizes: Mapping[str, str], padded: bool, stride: int = 1) -> Operator:
    """Return the convolution whose result has these *sizes*."""

    def dims(x: Dims, k: Dims) -> Dims | None:
        if len(x) != 3 or len(k) != 4 or x[0] != k[1] or (not padded and k[2] == ("1",)):
            return None
        return _resized(x, k[0], sizes)

    def value(x: Array, k: Array) -> Array:
        return np.einsum("bchwrs,bfcrs->bfhw", _windows(x, k.shape[3], k.shape[3] // 2 * padded, stride), k)

    def body(term: Term, x: str, k: str) -> str:
        image, kernel = (arg.dims for arg in term.args)
        p = SIZES[kernel[2][0]] // 2 * padded
        read = _padded(x, image, p) + f"[c, {stride}*i1+r-{p}, {stride}*i2+s-{p}]"
        return f"sum[c:{total(image[0])}, r:{kernel[2][0]}, s:{kernel[2][0]}] {read} * {k}[i0, c, r, s]"

    return Operator(2, dims, value, body)


def window(reduce: str, size: int, sizes: Mapping[str, str], stride: int, padding: int) -> Operator:
    """Return the reduction of windows of an image."""

    def value(x: Array) -> Array:
        found = _windows(x, size, padding, stride)
        return found.sum((-2, -1)) if reduce == "sum" else found.max((-2, -1))

    def body(term: Term, x: str) -> str:
        read = _padded(x, term.args[0].dims, padding)
        return f"{reduce}[r:{size}, s:{size}] {read}[i0, {stride}*i1+r-{padding}, {stride}*i2+s-{padding}]"

    return Operator(1, lambda x: _resized(x, x[0], sizes) if len(x) == 3 else None, value, body)


def _resized(x: Dims, channels: Extents, sizes: Mapping[str, str]) -> Dims | None:
    """Return the extents of an image of other *sizes*; None if *x* has none of these."""
    after = [sizes.get(size) for (size,) in x[1:]] if sizes else [size for (size,) in x[1:]]
    return (channels, *((size,) for size in after if size)) if None not in after else None


def _padded(name: str, dims: Dims, padding: int) -> str:
    """Return the image called *name* with zeros around it."""
    domain = ", ".join(f"{x}:{total(sizes)}" for x, sizes in zip("chw", dims, strict=True))
    return f"{{[{domain}] {name}[c, h, w]}} pad [0, {padding}, {padding}]"


def _windows(x: Array, size: int, padding: int, stride: int) -> Array:
    around = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    found = np.lib.stride_tricks.sliding_window_view(around, (size, size), (2, 3))
    return found[:, :, ::stride, ::stride]


OPERATORS: Mapping[str, Operator] = {
    "add": elementwise(2, np.add, "{} + {}".format),
    "mul": elementwise(2, np.multiply, "{} * {}".format),
    "relu": elementwise(1, lambda x: np.maximum(x, 0), "relu({})".format),
    "scale": Operator(
        2,
        lambda s, x: x if x and not s else None,
        lambda s, x: s.reshape(-1, *(1,) * (x.ndim - 1)) * x,
        lambda term, s, x: f"{s}[0] * {x}[{iterators(len(term.dims))}]",
    ),
    "matmul": Operator(
        2,
        lambda x, y: (x[0], y[1]) if len(x) == len(y) == 2 and x[1] == y[0] else None,
        np.matmul,
        lambda term, x, y: f"sum[k:{total(term.args[0].dims[1])}] {x}[i0, k] * {y}[k, i1]",
    ),
    "transpose": Operator(
        1,
        lambda x: x[::-1] if len(x) == 2 else None,
        lambda x: x.swapaxes(1, 2),
        lambda _, x: f"{x}[i1, i0]",
    ),
    "rows": concatenation(0, [2]),
    "columns": concatenation(1, [2]),
    "top": part(0, 0, 2),
    "bottom": part(0, 1, 2),
    "left": part(1, 0, 2),
    "right": part(1, 1, 2),
    "conv": convolution({}, True),
    "strided": convolution(STRIDED, True, 2),
    "valid": convolution(INNER, False),
    "sums": window("sum", 3, {}, 1, 1),
    "halved": window("sum", 2, STRIDED, 2, 0),
    "maxima": window("max", 2, STRIDED, 2, 0),
    "enlarge": Operator(
        1,
        lambda k: (*k[:2], ("3",), ("3",)) if k[2:] == (("1",), ("1",)) else None,
        lambda k: np.pad(k, [(0, 0)] * 3 + [(1, 1)] * 2),
        lambda term, k: (
            f"{{[f:{total(term.dims[0])}, c:{total(term.dims[1])}, r:1, s:1] {k}[f, c, r, s]}} pad [0, 0, 1, 1]"
            "[i0, i1, i2-1, i3-1]"
        ),
    ),
    "channels": concatenation(0, [3]),
    "first": part(0, 0, 3),
    "second": part(0, 1, 3),
    "results": concatenation(0, [4]),
    "operands": concatenation(1, [4]),
}


@dataclass(frozen=True)
class Language:
    """Inputs with their extents, and operators."""

    inputs: Mapping[str, Dims]
    operators: tuple[str, ...]


def _dims(text: str) -> Dims:
    return tuple((size,) for size in text.split())


ELEMENTWISE = ("add", "mul", "relu", "scale")

LANGUAGES = {
    "matrices": Language(
        {name: _dims(text) for name, text in zip("abcdefst", ["M N"] * 3 + ["N K"] * 2 + ["K L", "", ""], strict=True)},
        (*ELEMENTWISE, "matmul", "transpose", "rows", "columns", "top", "bottom", "left", "right"),
    ),
    "images": Language(
        {
            "x": _dims("C 2*G+2 2*V+2"), "y": _dims("C 2*G+2 2*V+2"), "z": _dims("C 2*G+2 2*V+2"),
            "k": _dims("F C 3 3"), "l": _dims("F C 3 3"),
            "p": _dims("F C 1 1"), "q": _dims("F C 1 1"), "s": (),
        },
        (
            *ELEMENTWISE, "conv", "strided", "valid", "sums", "halved", "maxima", "enlarge", "channels", "first",
            "second", "results", "operands",
        ),
    ),
}  # fmt: skip
"""Programs are terms of one language."""

INPUTS = {name: dims for language in LANGUAGES.values() for name, dims in language.inputs.items()}


def inputs(language: Language, seed: int = 0) -> dict[str, Term]:
    """Return the inputs of *language* with random values."""
    rng = np.random.default_rng(seed)
    return {name: fresh(name, dims, rng) for name, dims in language.inputs.items()}


def fresh(name: str, dims: Dims, rng: np.random.Generator) -> Term:
    """Return an input with random values."""
    shape = (DRAWS, *map(extent, dims))
    return Term(name, (), dims, rng.integers(2, 10, shape) * rng.choice([-1, 1], shape))


def apply(op: str, *args: Term) -> Term | None:
    """Return *op* of *args*; None if their extents do not fit."""
    operator = OPERATORS[op]
    dims = operator.dims(*(arg.dims for arg in args))
    if dims is None or (op == "relu" and len(dims) == 4):
        return None
    values = [arg.value for arg in args]
    value = operator.value(*values, args[0].dims) if op in PARTS else operator.value(*values)
    return Term(op, args, dims, np.ascontiguousarray(value))


PARTS = ("top", "bottom", "left", "right", "first", "second")


def enumerated(most: int, language: Language) -> Generator[Term, None, None]:
    """Yield the terms of up to *most* operators whose operands are the smallest of their values, the smallest first."""
    by_count: list[list[Term]] = [list(inputs(language).values())]
    seen = {term.fingerprint for term in by_count[0]}
    yield from by_count[0]
    for count in range(1, most + 1):
        smallest = list[Term]()
        for term in _applied(count, by_count, language):
            if term.fingerprint not in seen:
                seen.add(term.fingerprint)
                smallest.append(term)
            yield term
        by_count.append(smallest)


def _applied(count: int, by_count: Sequence[Sequence[Term]], language: Language) -> Iterable[Term]:
    """Yield the terms of *count* operators with operands among those of fewer."""
    for op in language.operators:
        if OPERATORS[op].arity == 1:
            yield from (made for x in by_count[count - 1] if (made := apply(op, x)) is not None)
    for left in range(count):
        for x, y in product(by_count[left], by_count[count - 1 - left]):
            for op in language.operators:
                if OPERATORS[op].arity == 2 and (made := apply(op, x, y)) is not None:
                    yield made


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
    for common in one.parts & other.parts:
        if common.args:
            new = fresh("?", common.dims, rng)
            first, second = (with_part(side, common, new) for side in (one, other))
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
    """Return both texts with the inputs and the sizes numbered in their order, the inputs after *to*.

    Element-wise programs have no sizes: their shapes are any.
    """
    names: dict[str, str] = {}
    sizes = {size: size for size in SIZES if not size.isalpha()}
    any_shape = all(part.op in ELEMENTWISE for side in pair for part in side.parts if part.args)

    def write(term: Term) -> str:
        if not term.args:
            name = (to or {}).get(term.op, term.op)
            shape = ",".join(sizes.setdefault(size, str(len(sizes))) for sum_ in term.dims for size in sum_)
            shape = "any" if any_shape and term.dims else shape
            return names.setdefault(name, f"{len(names)}[{shape}]")
        return f"{term.op}({','.join(map(write, term.args))})"

    return write(pair[0]), write(pair[1])


def identifications(pair: tuple[Term, Term]) -> Generator[tuple[str, str], None, None]:
    """Yield the pair with some of its inputs of equal extents identified, in all ways."""
    found = sorted(
        {part.op: part for side in pair for part in side.parts if not part.args}.values(), key=lambda t: t.op
    )
    choices = [[other.op for other in found if other.dims == t.dims] for t in found]
    for chosen in product(*choices):
        yield renamed(pair, dict(zip((t.op for t in found), chosen, strict=True)))


def program(term: Term, names: Sequence[str]) -> str:
    """Return *term* as a program for all sizes, with the inputs *names*."""
    lines = [f"param {', '.join(size for size in SIZES if size.isalpha())}"]
    for name in names:
        shape = ", ".join(map(total, INPUTS[name])) or "1"
        lines.append(f"tensor {name}[{shape}]")
    count = 0

    def write(term: Term, to: str = "") -> str:
        nonlocal count
        if not term.args:
            return term.op
        args = [write(arg) for arg in term.args]
        count += 1
        name = to or f"T{count}"
        lines.append(f"{name}[{_domain(term)}] = {OPERATORS[term.op].element(term, *args)}")
        return name

    if not term.args:
        lines.append(f"Y[{_domain(term)}] = {term.op}[{iterators(len(term.dims))}]")
    else:
        write(term, "Y")
    return "\n".join([*lines, "output Y"]) + "\n"


def _domain(term: Term) -> str:
    return ", ".join(f"i{n}:{total(sizes)}" for n, sizes in enumerate(term.dims))


def verdict(one: Term, other: Term) -> str:
    """Return the verdict on two terms for all sizes; ``unproved`` also after ``PROOF_SECONDS``."""
    names = sorted({part.op for side in (one, other) for part in side.parts if not part.args})
    first, second = (ee.family(program(side, names)) for side in (one, other))
    try:
        with interrupt_after(PROOF_SECONDS, "the proof"):
            return str(first.equals(second).kind)
    except TimeoutError:
        return "unproved"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the number of substitutions and of verdicts; return 1 if one is not proved."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.substitutions", description=__doc__)
    parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help=f"of {', '.join(LANGUAGES)} (default: all)")
    parser.add_argument("--operators", type=int, default=3, help="of a program, at most (default: %(default)s)")
    parser.add_argument("--most", type=int, help="prove only so many")
    parser.add_argument("--list", action="store_true", help="print each substitution and its verdict")
    parser.add_argument("--save", type=Path, metavar="FILE", help="append verdicts to this file; do not repeat its own")
    asked = parser.parse_args(argv)
    began = perf_counter()
    pairs = list[tuple[Term, Term]]()
    for name in asked.languages or LANGUAGES:
        terms = list(enumerated(asked.operators, LANGUAGES[name]))
        pairs += candidates(terms)
        print(f"{name}: {len(terms):,} programs, {perf_counter() - began:.0f} s", flush=True)
    found = list(kept(pairs))
    print(f"{len(pairs):,} pairs, {len(found):,} substitutions, {perf_counter() - began:.0f} s", flush=True)
    known = dict[str, str]()
    if asked.save and asked.save.exists():
        lines = asked.save.read_text().splitlines()
        known = {text: kind for kind, _, text in (line.partition(": ") for line in lines)}
    counts = Counter[str]()
    for one, other in found[: asked.most]:
        text = f"{one.text} = {other.text}"
        kind = known.get(text) or verdict(one, other)
        counts[kind] += 1
        if asked.list or kind != "proved":
            print(f"{kind}: {text}", flush=True)
        if asked.save and text not in known:
            with asked.save.open("a") as file:
                print(f"{kind}: {text}", file=file)
    print(", ".join(f"{count:,} {kind}" for kind, count in counts.items()), f"{perf_counter() - began:.0f} s")
    return int(counts.keys() != {"proved"})


if __name__ == "__main__":
    raise SystemExit(main())
