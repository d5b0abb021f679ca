"""A partly drawn random ONNX graph, and proposals of further nodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx

Shape = tuple[int, ...]

LARGEST = 2048
"""Elements of a value."""

WORDS = ("x", "conv", "a.b", "/layer/out", "relu", "sum", "w__", "__1", "tensor", "1", "ä µ", 'q"uote', "it's", "a\nb",
         "\\n", "${x}", "%s%n", "{0}", "<b>&", "../up", "a;b", "# no", "x" * 70)  # fmt: skip

POSITIVE = ("Abs", "Exp", "Relu", "ReduceL2", "ReduceSumSquare", "Sigmoid", "Softmax", "Softplus")


@dataclass
class Growing:
    """A graph as far as it is drawn: real values with their shapes, and weights."""

    rng: random.Random
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: dict[str, Shape] = field(default_factory=dict)
    inputs: dict[str, Shape] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def name(self) -> str:
        """A new name; now and then an awkward one."""
        stem = self.rng.choice(WORDS) if self.rng.random() < 0.15 else "v"
        found = next(f"{stem}{n or ''}" for n in range(10_000) if f"{stem}{n or ''}" not in self.used)
        self.used.add(found)
        return found

    def weight(self, shape: Sequence[int], dtype: Any = np.float32) -> str:
        """A new weight of small numbers; sometimes with zeros, sometimes one that exists."""
        same = [n for n, w in self.weights.items() if w.shape == tuple(shape) and w.dtype == dtype]
        if same and self.rng.random() < 0.2:
            return self.rng.choice(same)
        numbers = np.random.default_rng(self.rng.getrandbits(32))
        array = numbers.standard_normal(tuple(shape)) * self.rng.choice([0.3, 1.0])
        if self.rng.random() < 0.2:
            array = array * numbers.integers(0, 2, tuple(shape))
        return self.known(array.astype(dtype))

    def known(self, array: Any, dtype: Any = None) -> str:
        """A new weight that holds *array*."""
        name = self.name()
        self.weights[name] = np.asarray(array, dtype)
        return name

    def pick(self, rank: int | None = None) -> str:
        """A value, of *rank* where one is asked for; raises Fruitless where there is none.  Later ones more often."""
        names = [n for n, s in self.values.items() if rank is None or len(s) == rank]
        if not names:
            raise Fruitless
        return names[min(len(names) - 1, int(len(names) * self.rng.random() ** 0.5))]

    def positive(self) -> str:
        """A value that is not negative; raises Fruitless where there is none."""
        made = {name: node.op_type for node in self.nodes for name in node.output}
        names = [name for name, op in made.items() if op in POSITIVE]
        if not names:
            raise Fruitless
        return self.rng.choice(names)

    def like(self, shape: Shape) -> str:
        """A value or a weight that broadcasts with *shape*."""
        if self.rng.random() < 0.4 and (fit := [n for n, s in self.values.items() if broadcasts(s, shape)]):
            return self.rng.choice(fit)
        kept = [1 if self.rng.random() < 0.3 else n for n in shape]
        return self.weight(kept[self.rng.choice([0, 0, len(kept)]) :] if self.rng.random() < 0.3 else kept)


class Fruitless(Exception):
    """Nothing in the graph takes the operator that was proposed."""


def broadcasts(one: Shape, other: Shape) -> bool:
    """Whether the shapes broadcast, and the result is not larger than *other* or a little."""
    try:
        return prod(np.broadcast_shapes(one, other)) <= LARGEST
    except ValueError:
        return False


Proposal = Callable[[Growing], tuple[str, Sequence[str], Mapping[str, Any]]]
