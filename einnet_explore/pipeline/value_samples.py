"""Values of a model on random inputs, as short samples that tell which values of two models may be equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log, prod

import numpy as np
import onnx
import onnxruntime

from einnet_explore.onnx_import.model import Model, Shape, copy_message
from einnet_explore.pipeline.plan import open_session, run_session
from einnet_explore.runtime.arrays import Array

PROJECTIONS = 3
"""Random projections of a value for each input."""

SAMPLE_TOLERANCE = 1e-3
"""Difference of samples, relative to their size, up to which two values may be equal; a proof decides."""


MAX_BYTES = 1 << 29
"""Bytes of the values that are kept at a time, at most."""


INFINITE = 1e30
"""The number that stands for infinity."""


@dataclass(frozen=True, slots=True)
class ValueSample:
    """Projections of a value of *shape*, divided by its norm, and the norm: for each input in turn."""

    shape: Shape
    kind: str
    numbers: tuple[float, ...]

    def may_equal(self, other: ValueSample) -> bool:
        """Return whether a value with this sample may have the elements of one with the *other*, in the same order."""
        if (prod(self.shape), self.kind) != (prod(other.shape), other.kind):
            return False
        return bool(np.allclose(self.numbers, other.numbers, rtol=SAMPLE_TOLERANCE, atol=SAMPLE_TOLERANCE))


def sample_values(model: Model, feeds: Sequence[Mapping[str, Array]]) -> Mapping[str, ValueSample]:
    """Return samples of the inputs and of every node's results, for each of *feeds*; some values may be missing."""
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
        proto = copy_message(model.proto)
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
        session = open_session(proto, 1, adjust=without_optimisations)
        for feed in feeds:
            for name, array in zip(names, run_session(session, names, feed), strict=True):
                record(name, array)
    return found


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


def without_optimisations(options: onnxruntime.SessionOptions) -> None:
    """Set the *options* of a session that computes every node as it stands."""
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def _projections(array: Array) -> tuple[float, ...]:
    """Projections of *array* to random directions, divided by its norm, and the logarithm of the norm."""
    flat = np.nan_to_num(array.astype(np.float64).reshape(-1), posinf=INFINITE, neginf=-INFINITE)
    norm = float(np.linalg.norm(flat))
    if not norm:
        return (0.0,) * (PROJECTIONS + 1)
    rng = np.random.default_rng(flat.size)
    return (*(float(rng.standard_normal(flat.size) @ flat) / norm for _ in range(PROJECTIONS)), log(norm))
