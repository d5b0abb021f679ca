r"""ONNX operators that only move elements: :math:`Y[\vec i] = A[\tau(\vec i)]`.

A reshape computes the row-major address and splits it by ``//`` and ``%`` into an index of the other shape.
Source: the ONNX operator reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np

from einnet_explore.ir import Access, Apply, Compare, Equation, Index, Scalar, Scope, add, as_index
from einnet_explore.onnx_import.known_arrays import select_by_index
from einnet_explore.onnx_import.model import Shape
from einnet_explore.onnx_import.node_call import (
    Express,
    NodeCall,
    OnnxOperator,
    access,
    as_indices,
    broadcast,
    extent_iterators,
    ravel_index,
    unravel_index,
)
from einnet_explore.support.errors import Refused

IndexMap = Callable[[NodeCall, tuple[Index, ...]], Iterable[Index]]


def _reindex(index: IndexMap) -> Express:
    """Return the expression of an operator with Y[i] = A[index(call, i)]."""

    def express(call: NodeCall) -> Iterable[Equation]:
        xs = extent_iterators(call.out.shape)
        yield call.equation(Scope(xs, (), access(call.tensor(0), *index(call, as_indices(xs)))))

    return express


def _transpose(call: NodeCall, at: tuple[Index, ...]) -> Iterable[Index]:
    order = call.get("perm", tuple(reversed(range(len(at)))))
    place = {axis: i for i, axis in zip(at, order, strict=True)}
    return (place[axis] for axis in range(len(at)))


def _reshape(call: NodeCall, at: tuple[Index, ...]) -> Iterable[Index]:
    """Re-index separately each group of dimensions that has equally many elements in both shapes."""
    here, there = call.out.shape, call.shape(0)
    out: list[Index] = []
    for (i, j), (k, m) in pairwise([(0, 0), *_borders(here, there)]):
        out += unravel_index(ravel_index(at[i:k], here[i:k]), there[j:m])
    return out


def _borders(here: Shape, there: Shape) -> Iterable[tuple[int, int]]:
    """Yield the positions in both shapes where their leading extents have equal products, and the ends."""
    i = j = 0
    left = right = 1
    while i < len(here) and j < len(there):
        if left == right:
            left, right, i, j = left * here[i], right * there[j], i + 1, j + 1
        elif left < right:
            left, i = left * here[i], i + 1
        else:
            right, j = right * there[j], j + 1
        if left == right and i < len(here) and j < len(there):
            yield i, j
    yield len(here), len(there)


def _slice(call: NodeCall, at: tuple[Index, ...]) -> Iterable[Index]:
    shape = call.shape(0)
    starts = call.integers(1, "starts") or ()
    axes = call.integers(3, "axes") or tuple(range(len(starts)))
    steps = call.integers(4, "steps") or (1,) * len(starts)
    out = list(at)
    for axis, start, step in zip(axes, starts, steps, strict=True):
        d = call.axis(axis, len(shape))
        size = shape[d]
        first = start + size if start < 0 else start
        first = min(max(first, 0), size) if step > 0 else min(max(first, 0), size - 1)
        out[d] = at[d] * step + first
    return out


def _split(call: NodeCall) -> Iterable[Equation]:
    axis = call.axis(call.get("axis", 0), len(call.shape(0)))
    start = 0
    for n, name in enumerate(call.node.outputs):
        if not name:
            raise Refused("an output is omitted")
        out = call.output(n)
        xs = extent_iterators(out.shape)
        at = [as_index(x) + start if d == axis else as_index(x) for d, x in enumerate(xs)]
        yield Equation(out.name, Scope(xs, (), access(call.tensor(0), *at)))
        start += out.shape[axis]


def _concat(call: NodeCall) -> Iterable[Equation]:
    """The sum of the operands, each shifted to its position and 0 elsewhere: a linear expression.

    Types in which a sum would be computed in another one choose by position.
    """
    axis = call.axis(call.get("axis", 0), len(call.out.shape))
    xs = extent_iterators(call.out.shape)
    start, parts = 0, list[tuple[int, Access]]()
    for n in range(len(call.node.inputs)):
        source = call.tensor(n)
        at = [as_index(x) - start if d == axis else as_index(x) for d, x in enumerate(xs)]
        start += source.shape[axis]
        parts.append((start, access(source, *at)))
    if call.out.dtype in ("float32", "float64"):
        yield call.equation(Scope(xs, (), add(*(part for _, part in parts))))
        return
    body: Scalar = parts[-1][1]
    for end, part in reversed(parts[:-1]):
        body = Apply("where", (Compare("<", as_index(xs[axis]), Index((), end)), part, body))
    yield call.equation(Scope(xs, (), body))


def _pad(call: NodeCall) -> Iterable[Equation]:
    rank = len(call.out.shape)
    mode = call.get("mode", "constant")
    if mode != "constant":
        raise Refused(f"mode is {mode}, not constant")
    pads = call.integers(1, "pads") or ()
    axes = tuple(call.axis(int(a), rank) for a in call.constant(3, "axes").reshape(-1)) if call.has(3) else range(rank)
    value = float(call.constant(2, "value").reshape(())) if call.has(2) else call.get("value", 0.0)
    before = dict(zip(axes, pads[: len(axes)], strict=True))
    xs = extent_iterators(call.out.shape)
    at = [as_index(x) - before.get(d, 0) for d, x in enumerate(xs)]
    yield call.equation(Scope(xs, (), access(call.tensor(0), *at, value=value)))


def _expand(call: NodeCall) -> Iterable[Equation]:
    xs = extent_iterators(call.out.shape)
    yield call.equation(Scope(xs, (), broadcast(call.tensor(0), as_indices(xs))))


def _tile(call: NodeCall, at: tuple[Index, ...]) -> Iterable[Index]:
    return (i % size for i, size in zip(at, call.shape(0), strict=True))


def _gather(call: NodeCall) -> Iterable[Equation]:
    xs, shape = extent_iterators(call.out.shape), call.shape(0)
    at, axis = as_indices(xs), call.axis(call.get("axis", 0), len(shape))
    wanted = call.constant(1, "indices").astype(np.int64)
    places, source = at[axis : axis + wanted.ndim], call.tensor(0)

    def read(found: Index) -> Scalar:
        return access(source, *at[:axis], found, *at[axis + wanted.ndim :])

    body = select_by_index(np.where(wanted < 0, wanted + shape[axis], wanted), places, read)
    yield call.equation(Scope(xs, (), body))


def _depth_to_space(call: NodeCall, at: tuple[Index, ...]) -> Iterable[Index]:
    b, depth = call.get("blocksize", 1), call.out.shape[1]
    n, c, h, w = at
    row, column = h % b, w % b
    column_first = call.get("mode", "DCR") == "CRD"
    channel = (
        ravel_index((c, row, column), (depth, b, b)) if column_first else ravel_index((row, column, c), (b, b, depth))
    )
    return n, channel, h // b, w // b


def _space_to_depth(call: NodeCall, at: tuple[Index, ...]) -> Iterable[Index]:
    b = call.get("blocksize", 1)
    n, c, h, w = at
    if call.get("mode", "DCR") == "CRD":
        channel, row, column = unravel_index(c, (call.shape(0)[1], b, b))
    else:
        row, column, channel = unravel_index(c, (b, b, call.shape(0)[1]))
    return n, channel, h * b + row, w * b + column


def _col2im(call: NodeCall, at: tuple[Index, ...]) -> Iterable[Index]:
    """Re-index blocks that cover the image without overlap, as patches do; others would be added."""
    image, block = call.integers(1, "image_shape") or (), call.integers(2, "block_shape") or ()
    ones = (1,) * len(block)
    strides, dilations = call.get("strides", ones), call.get("dilations", ones)
    pads = call.get("pads", (0,) * 2 * len(block))
    if strides != block or dilations != ones or any(pads) or any(n % b for n, b in zip(image, block, strict=True)):
        raise Refused(
            f"blocks of {list(block)} in steps of {list(strides)} do not cover {list(image)} once "
            f"(dilations {list(dilations)}, pads {list(pads)})"
        )
    batch, channel, *place = at
    within = ravel_index((channel, *(i % b for i, b in zip(place, block, strict=True))), (call.out.shape[1], *block))
    counts = tuple(n // b for n, b in zip(image, block, strict=True))
    return batch, within, ravel_index((i // b for i, b in zip(place, block, strict=True)), counts)


LAYOUT: tuple[OnnxOperator, ...] = (
    OnnxOperator("Transpose", "layout", _reindex(_transpose), integers=True, attributes="perm"),
    OnnxOperator("Reshape", "layout", _reindex(_reshape), integers=True, attributes="shape allowzero"),
    OnnxOperator("Flatten", "layout", _reindex(_reshape), integers=True, attributes="axis"),
    OnnxOperator("Squeeze", "layout", _reindex(_reshape), integers=True, attributes="axes"),
    OnnxOperator("Unsqueeze", "layout", _reindex(_reshape), integers=True, attributes="axes"),
    OnnxOperator("Slice", "layout", _reindex(_slice), integers=True, attributes="starts ends axes steps"),
    OnnxOperator("Split", "layout", _split, integers=True, attributes="axis split num_outputs"),
    OnnxOperator("Concat", "layout", _concat, integers=True, attributes="axis"),
    OnnxOperator("Pad", "layout", _pad, integers=True, attributes="mode pads value"),
    OnnxOperator("Expand", "layout", _expand, integers=True),
    OnnxOperator("Tile", "layout", _reindex(_tile), integers=True),
    OnnxOperator("Gather", "layout", _gather, integers=True, attributes="axis"),
    OnnxOperator("Col2Im", "layout", _reindex(_col2im), integers=True, attributes="dilations pads strides"),
    OnnxOperator("DepthToSpace", "layout", _reindex(_depth_to_space), integers=True, attributes="blocksize mode"),
    OnnxOperator("SpaceToDepth", "layout", _reindex(_space_to_depth), integers=True, attributes="blocksize mode"),
)
"""The model knows the shape of a reshape's result, so the expression does not read the shape operand."""
