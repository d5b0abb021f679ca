"""Values of a model on random inputs, as short samples that tell which values of two models may be equal.

Models whose values exceed the memory are not run.  A block of consecutive elements of each value is evaluated, and of
the other values only the elements that these blocks need.  Blocks begin at the same part of every value, so that they
need much the same elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log, prod

import numpy as np
import onnx

from einnet_explore.equivalence.slices import grid_points, slice_scope
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Access, Box, Equation, Scope, Tensor, accesses, map_tensors, scopes, tensors
from einnet_explore.onnx_import.model import Model, Shape, copy_message
from einnet_explore.pipeline.model_sessions import open_session, run_session, without_optimisations
from einnet_explore.runtime.arrays import Array

PROJECTIONS = 3
"""Random projections of a value for each input."""

ROW_ELEMENTS = 1 << 12
"""Elements of a row, when a value is projected."""

SAMPLE_TOLERANCE = 1e-3
"""Difference of samples, relative to their size, up to which two values may be equal; a proof decides."""


MAX_BYTES = 1 << 29
"""Bytes of the values that are kept at a time, at most; a model with more is sampled in blocks, if it can be."""

BLOCK_ELEMENTS = 32
"""Elements of a block."""

BLOCK_STARTS = (0.3721, 0.8143)
"""Parts of a value after which its block begins, for each input in turn."""

MAX_BLOCK_POINTS = 1 << 34
"""Grid points of the equations that the blocks of a model need, at most."""


INFINITE = 1e30
"""The number that stands for infinity."""


@dataclass(frozen=True, slots=True)
class ValueSample:
    """Projections of a value of *shape*, divided by its norm, and the norm: for each input in turn."""

    shape: Shape
    kind: str
    numbers: tuple[float, ...]

    def may_equal(self, other: ValueSample, tolerance: float = SAMPLE_TOLERANCE) -> bool:
        """Return whether a value with this sample may have the elements of one with the *other*, in the same order."""
        if (prod(self.shape), self.kind) != (prod(other.shape), other.kind):
            return False
        return all(
            a == b or abs(a - b) <= tolerance * (1 + abs(b)) for a, b in zip(self.numbers, other.numbers, strict=True)
        )


def sample_values(model: Model, feeds: Sequence[Mapping[str, Array]], stop: float = inf) -> Mapping[str, ValueSample]:
    """Return samples of the inputs and of every node's results, for each of *feeds*; some values may be missing.

    Raises TimeoutError at *stop*, a time of ``perf_counter``.
    """
    found: dict[str, ValueSample] = {}

    def record(name: str, array: object) -> None:
        if isinstance(array, np.ndarray) and array.dtype.kind in "fiub":
            before = found[name].numbers if name in found else ()
            found[name] = ValueSample(array.shape, array.dtype.str, (*before, *_projections(array)))

    for feed in feeds:
        for name, array in feed.items():
            record(name, array)
    outputs = {value.name for value in model.outputs}
    for names in _portions(model) if feeds else ():
        proto = copy_message(model.graph_proto)
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
        session = open_session(proto, 1, adjust=without_optimisations, weights=model.weights)
        for feed in feeds:
            for name, array in zip(names, run_session(session, names, feed, stop), strict=True):
                record(name, array)
    return found


def sample_blocks(
    model: Model, feeds: Sequence[Mapping[str, Array]], equations: Mapping[str, Equation], tensor: Callable[[str], str]
) -> Mapping[str, ValueSample] | None:
    """Return samples of blocks of the inputs and of every node's results; None if these need too many elements.

    *equations* are those of all nodes' results, in order, by the names that *tensor* returns for the values.
    """
    found = dict[str, tuple[float, ...]]()
    for start, feed in zip(BLOCK_STARTS, feeds, strict=False):
        arrays = {tensor(name): array for name, array in {**model.weights, **feed}.items()}
        values = _evaluate_blocks(equations, arrays, start)
        if values is None:
            return None
        for name, array in values.items():
            found[name] = (*found.get(name, ()), *_projections(array))
    samples = dict[str, ValueSample]()
    for name in (*(value.name for value in model.inputs), *(name for node in model.nodes for name in node.results)):
        value, numbers = model.values[name], found.get(tensor(name))
        if numbers is not None and value.shape is not None and value.dtype is not None:
            samples[name] = ValueSample(value.shape, value.dtype.str, numbers)
    return samples


def _evaluate_blocks(
    equations: Mapping[str, Equation], arrays: Mapping[str, Array], start: float
) -> Mapping[str, Array] | None:
    """Return the blocks of *arrays* and *equations* that begin after this part of each; None if that is too much."""
    shapes = {name: array.shape for name, array in arrays.items()}
    shapes |= {name: equation.scope.shape for name, equation in equations.items()}
    windows = {name: _block(shape, start) for name, shape in shapes.items()}
    slices, points = dict[str, Scope](), 0
    for name, equation in reversed(tuple(equations.items())):
        slices[name] = scope = slice_scope(equation.scope, windows[name])
        points += grid_points(scope)
        for access, source in _tensor_reads(scope):
            read = [
                (max(a, 0), min(b + 1, n))
                for (a, b), n in zip((i.bounds for i in access.index), source.shape, strict=True)
            ]
            if all(lo < hi for lo, hi in read):  # not padding alone
                windows[source.name] = tuple(
                    (min(a, lo), max(b, hi)) for (a, b), (lo, hi) in zip(windows[source.name], read, strict=True)
                )
    if points > MAX_BLOCK_POINTS:
        return None
    known = {name: array[_at(windows[name])].astype(np.float64) for name, array in arrays.items()}

    def restrict(t: Tensor) -> Tensor:
        window = windows[t.name]
        padding = tuple((lo - a, b - hi) for (lo, hi), (a, b) in zip(window, t.reach, strict=True))
        shape, origin = tuple(hi - lo for lo, hi in window), tuple(lo for lo, _ in window)
        return Tensor(t.name, shape, padding, t.value, origin=origin, dtype=t.dtype)

    for name in equations:
        scope = map_tensors(slices[name], restrict)
        known[name] = evaluate(scope, {t.name: known[t.name] for t in tensors(scope)}, np.float64)
    return {name: _elements(known[name], windows[name], shape, start) for name, shape in shapes.items()}


def _range(shape: Shape, start: float) -> range:
    """Return the positions of a block's elements, in row-major order."""
    size = prod(shape)
    first = int(size * start)
    return range(first, min(first + BLOCK_ELEMENTS, size))


def _block(shape: Shape, start: float) -> Box:
    """Return the box around the elements of a block."""
    positions = _range(shape, start)
    low, high = (np.unravel_index(at, shape) for at in (positions[0], positions[-1]))
    box, is_inside = list[tuple[int, int]](), True
    for lo, hi, n in zip(low, high, shape, strict=True):
        box.append((int(lo), int(hi) + 1) if is_inside else (0, n))
        is_inside &= bool(lo == hi)
    return tuple(box)


def _elements(array: Array, window: Box, shape: Shape, start: float) -> Array:
    """Return the elements of a block from *array*, the *window* of a value of *shape*."""
    if not shape:
        return array.reshape(-1)
    at = np.unravel_index(np.asarray(_range(shape, start)), shape)
    return array[tuple(i - lo for i, (lo, _) in zip(at, window, strict=True))]


def _at(window: Box) -> tuple[slice, ...]:
    return tuple(slice(lo, hi) for lo, hi in window)


def _tensor_reads(scope: Scope) -> Iterable[tuple[Access, Tensor]]:
    """Yield the reads of tensors in *scope* and its nested scopes."""
    for _, inner in scopes(scope):
        for access in accesses(inner.body):
            if isinstance(access.source, Tensor):
                yield access, access.source


def value_bytes(model: Model) -> int:
    """Return the bytes of all results of a model's nodes."""
    values = (model.values[name] for node in model.nodes for name in node.results)
    return sum(prod(value.shape or ()) * (value.dtype.itemsize if value.dtype else 0) for value in values)


def _portions(model: Model) -> Iterable[Sequence[str]]:
    """Yield the names of all results in portions that fit into memory together."""
    portion, size = list[str](), 0
    for name in (name for node in model.nodes for name in node.results):
        value = model.values[name]
        size += prod(value.shape or ()) * 8
        if portion and size > MAX_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(name)
    yield portion


def _projections(array: Array) -> tuple[float, ...]:
    """Projections of *array* to random directions, divided by its norm, and the logarithm of the norm.

    A direction is the outer product of a column and a row, so that few random numbers are drawn for a large array.
    """
    flat = np.nan_to_num(array.astype(np.float64).reshape(-1), posinf=INFINITE, neginf=-INFINITE)
    norm = float(np.linalg.norm(flat))
    if not norm:
        return (0.0,) * (PROJECTIONS + 1)
    rng = np.random.default_rng(flat.size)
    rows = np.pad(flat, (0, -flat.size % ROW_ELEMENTS)).reshape(-1, ROW_ELEMENTS)
    directions = ((rng.standard_normal(n) for n in rows.shape) for _ in range(PROJECTIONS))
    return (*(float(column @ rows @ row) / norm for column, row in directions), log(norm))
