"""Ranges of sizes: dynamic dimensions of a model's inputs that have several sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log2, prod, sqrt
from operator import index
from os import PathLike
from typing import SupportsIndex, TypeAlias, TypeGuard

import onnx

from einnet_explore.onnx_import.load import read_proto
from einnet_explore.onnx_import.model import ModelError, Shape
from einnet_explore.onnx_import.shapes import declared_dimensions

Sizes: TypeAlias = "int | range | Sequence[int | range]"
"""The sizes of a dimension: one, a range of which a few are tuned, or several and ranges, each of which is tuned."""

RangedShapes: TypeAlias = "Mapping[str, tuple[Sizes, ...]]"
"""The sizes of each dimension, by input."""

MAX_SIZES = 4096
"""The most sizes, or combinations of them."""

MAX_TUNED = 9
"""The most combinations of sizes that are tuned."""


def are_single(shapes: RangedShapes) -> TypeGuard[Mapping[str, Shape]]:
    """Return whether each dimension of *shapes* has one size."""
    return all(isinstance(sizes, SupportsIndex) for shape in shapes.values() for sizes in shape)


@dataclass(frozen=True, slots=True)
class SizedDimension:
    """A dynamic dimension *name* with several *sizes*, of which some are *tuned*; *places* are its inputs and axes."""

    name: str
    sizes: tuple[int, ...]
    tuned: tuple[int, ...]
    places: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.name} ({describe_sizes(self.sizes)})"


SizeTuple: TypeAlias = "tuple[int, ...]"
"""A size for each dimension of a range."""


@dataclass(frozen=True, slots=True)
class SizeRanges:
    """The *dimensions* of a model's inputs that have several sizes; *shapes* are the given ones, by input."""

    dimensions: tuple[SizedDimension, ...]
    shapes: RangedShapes

    @property
    def tuned(self) -> tuple[SizeTuple, ...]:
        """The sizes that are tuned: the smallest first, which serve others in chunks, then the largest."""
        every = sorted(product(*(each.tuned for each in self.dimensions)))
        return (every[0], *every[:0:-1])

    @property
    def every(self) -> tuple[SizeTuple, ...]:
        """All sizes."""
        return tuple(product(*(each.sizes for each in self.dimensions)))

    def shapes_at(self, sizes: SizeTuple) -> dict[str, Shape]:
        """Return the shapes of the given inputs at *sizes*."""
        known = {place: size for each, size in zip(self.dimensions, sizes, strict=True) for place in each.places}
        return {
            name: tuple(known[name, n] if (name, n) in known else _first(size) for n, size in enumerate(shape))
            for name, shape in self.shapes.items()
        }

    def at(self, shapes: Mapping[str, Shape], sizes: SizeTuple) -> dict[str, Shape]:
        """Return *shapes* of all inputs with these *sizes*."""
        out = {name: list(shape) for name, shape in shapes.items()}
        for each, size in zip(self.dimensions, sizes, strict=True):
            for name, axis in each.places:
                out[name][axis] = size
        return {name: tuple(shape) for name, shape in out.items()}

    def sizes_of(self, shapes: Mapping[str, Shape]) -> SizeTuple:
        """Return the sizes that the first input of each dimension has in *shapes*."""
        return tuple(shapes[name][axis] for name, axis in (each.places[0] for each in self.dimensions))

    def describe(self, sizes: SizeTuple) -> str:
        """``batch = 4, length = 128``"""
        return ", ".join(f"{each.name} = {size}" for each, size in zip(self.dimensions, sizes, strict=True))


def read_ranges(model: str | PathLike[str] | onnx.ModelProto, shapes: RangedShapes) -> SizeRanges:
    """Return the ranges of sizes in *shapes* for the inputs of *model*, a file or a protocol buffer.

    Raises ModelError for a dimension that the model fixes, sizes below 1, none or more than ``MAX_SIZES``, other sizes
    of the same named dimension, and more than ``MAX_TUNED`` combinations to tune.
    """
    file, proto = read_proto(model)
    shapes = {name: tuple(map(_as_sizes, shape)) for name, shape in shapes.items()}
    declared = {name: dims for name, dims in declared_dimensions(proto.graph).items() if dims is not None}
    found: dict[str, SizedDimension] = {}
    every = [(name, axis, given) for name, shape in shapes.items() for axis, given in enumerate(shape)]
    for name, axis, given in sorted(every, key=lambda each: isinstance(each[2], int)):  # ranges first
        dim = declared[name][axis] if axis < len(declared.get(name, ())) else None
        named = dim if isinstance(dim, str) and dim.isidentifier() else None
        symbol, where = named or f"{name}[{axis}]", f"{file}: shape {name}, dimension {axis}"
        if isinstance(given, int):
            if symbol in found and found[symbol].sizes != (given,):
                raise ModelError(f"{where} ({symbol}): found {given}, {_as_before(found[symbol])}")
            continue
        sizes, tuned = _sizes(where, given)
        if isinstance(dim, int):
            raise ModelError(
                f"{where}: found sizes {describe_sizes(sizes)}, expected {dim}, which the model fixes: a range needs a "
                "dynamic dimension"
            )
        same = ((other, n) for other, dims in declared.items() for n, each in enumerate(dims) if each == named)
        made = SizedDimension(symbol, sizes, tuned, tuple(same) if named else ((name, axis),))
        if found.setdefault(symbol, made) != made:
            raise ModelError(f"{where} ({symbol}): found {describe_sizes(sizes)}, {_as_before(found[symbol])}")
    ranges = SizeRanges(tuple(found.values()), shapes)
    if (count := prod(len(each.sizes) for each in ranges.dimensions)) > MAX_SIZES:
        raise ModelError(f"{file}: found {count} combinations of sizes, expected at most {MAX_SIZES}")
    if (count := prod(len(each.tuned) for each in ranges.dimensions)) > MAX_TUNED:
        names = " and ".join(str(each) for each in ranges.dimensions)
        raise ModelError(
            f"{file}: found {count} combinations of sizes to tune of {names}, expected at most {MAX_TUNED}: a range is "
            "tuned at three sizes, a list at each"
        )
    return ranges


def _as_before(known: SizedDimension) -> str:
    """Say which sizes a dimension has in the input that was read before."""
    return f"expected {describe_sizes(known.sizes)}, its sizes in another input"


def _as_sizes(given: Sizes) -> Sizes:
    """Return *given* with integers of Python, also for those of other libraries."""
    return index(given) if isinstance(given, SupportsIndex) else given


def _sizes(where: str, given: range | Sequence[int | range]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes that are *given*, and those to tune; raises ModelError."""
    parts = [given] if isinstance(given, range) else list(given)
    if (count := sum(len(part) if isinstance(part, range) else 1 for part in parts)) > MAX_SIZES:
        raise ModelError(f"{where}: found {count} sizes, expected at most {MAX_SIZES}")
    sizes = sorted({n for part in parts for n in (part if isinstance(part, range) else (part,))})
    if not sizes or sizes[0] < 1:
        raise ModelError(f"{where}: found {f'size {sizes[0]}' if sizes else 'no size'}, expected at least 1")
    tuned = {n for part in parts for n in (_tuned_sizes(part) if isinstance(part, range) else (part,))}
    return tuple(sizes), tuple(sorted(tuned))


def _tuned_sizes(sizes: range) -> Iterable[int]:
    """Return the smallest of *sizes*, the largest, and the one next to the power of two in the middle."""
    if not sizes:
        return ()
    low, high = min(sizes), max(sizes)
    middle = 2 ** round(log2(sqrt(low * high)))
    return low, min(sizes, key=lambda n: (abs(n - middle), n)), high


def describe_sizes(sizes: Sequence[int]) -> str:
    """``1..8``, or ``1, 2, 4, 8``"""
    if len(sizes) > 2 and list(sizes) == list(range(sizes[0], sizes[-1] + 1)):
        return f"{sizes[0]}..{sizes[-1]}"
    return ", ".join(map(str, sizes))


def _first(sizes: Sizes) -> int:
    """Return the first of *sizes*."""
    match sizes:
        case int():
            return sizes
        case range():
            return sizes[0]
    return _first(sizes[0])
