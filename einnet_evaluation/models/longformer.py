r"""One layer of LongFormer (Beltagy et al. 2020; EinNet §8, Fig. 14): attention to a dilated window, then two layers.

.. math::
   S[m, w] = \tfrac{1}{\sqrt K} \sum_k Q[m, k]\, K[m + d(w - W), k], \qquad
   Y[m, n] = \sum_w \mathrm{softmax}_w(S + B)[m, w]\, V[m + d(w - W), n]

Every head gathers, for every position, the window of keys that it sees: the keys are padded with zeros on both sides
and read through a table of positions.  Positions outside the sequence do not count: `B`, read through the same table,
is very negative there (the paper's G2BMM gives 0 there, and says nothing of a softmax).  That is how dilated windows
are written in standard operators; chunks of neighbouring rows, as for windows without dilation, read `d` times what
they need.  All windows of one head take 2.6 GB at the published size, so heads are taken one by one.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from einnet_evaluation.models.builder import XAVIER, Builder, EvaluationModel

POSITIONS, FEATURES, HEADS, WINDOW, DILATION = 10_000, 512, 8, 1000, 4

OUTSIDE = -1e9
"""What is added to the score of a position outside the sequence: its weight is 0 in single precision."""


def _integers(b: Builder, word: str, values: np.ndarray[Any, Any]) -> str:
    name = f"{word}_{len(b.weights)}"
    b.weights.append(numpy_helper.from_array(values, name))
    return name


def _split(b: Builder, x: str, parts: int) -> list[str]:
    """*x* in so many equal parts along its last dimension."""
    name = f"Split_{len(b.nodes)}"
    outputs = [f"{name}_{n}" for n in range(parts)]
    b.nodes.append(helper.make_node("Split", [x], outputs, name, axis=-1, num_outputs=parts))
    return outputs


def _linear(b: Builder, x: str, c: int, f: int) -> str:
    """x·W + b over the last dimension."""
    product = b.node("MatMul", x, b.normal("weight", c, f, fan=c, gain=XAVIER))
    return b.node("Add", product, b.bias("bias", f))


def _attention(b: Builder, x: str, size: int, batch: int, reach: int) -> str:
    """All heads, side by side again."""
    per = FEATURES // HEADS
    window = 2 * reach + 1
    at = np.arange(size)[:, None] + DILATION * np.arange(window)[None]
    table = _integers(b, "positions", at.astype(np.int32))
    outside = b.weight("outside", np.pad(np.zeros(size), DILATION * reach, constant_values=OUTSIDE))
    between = _integers(b, "between", np.array([1, size, 1, window]))
    scale = b.weight("scale", np.array(1 / sqrt(per)))
    pads = _integers(b, "pads", np.array([0, DILATION * reach, 0, 0, DILATION * reach, 0]))
    row = _integers(b, "row", np.array([batch, size, 1, per]))
    flat = _integers(b, "flat", np.array([batch, size, per]))
    queries, keys, values = (_split(b, part, HEADS) for part in _split(b, _linear(b, x, FEATURES, 3 * FEATURES), 3))
    heads = []
    for q, k, v in zip(queries, keys, values, strict=True):
        seen, held = (b.node("Gather", b.node("Pad", y, pads), table, axis=1) for y in (k, v))
        mask = b.node("Reshape", b.node("Gather", outside, table, axis=0), between)
        scores = b.node("MatMul", b.node("Reshape", q, row), b.node("Transpose", seen, perm=[0, 1, 3, 2]))
        weights = b.node("Softmax", b.node("Add", b.node("Mul", scores, scale), mask), axis=-1)
        heads.append(b.node("Reshape", b.node("MatMul", weights, held), flat))
    return b.node("Concat", *heads, axis=2)


def layer(batch: int, size: int, window: int = WINDOW) -> onnx.ModelProto:
    """The layer on *size* positions, each of which sees *window* / 2 to either side, every ``DILATION``-th."""
    b = Builder("longformer", seed=6)
    attended = b.node("Add", "input", _linear(b, _attention(b, "input", size, batch, window // 2), FEATURES, FEATURES))
    hidden = b.node("Relu", _linear(b, attended, FEATURES, FEATURES))
    out = b.node("Add", attended, _linear(b, hidden, FEATURES, FEATURES))
    shape = (batch, size, FEATURES)
    return b.model({"input": shape}, out, shape)


def _write(batch: int, size: int) -> onnx.ModelProto:
    """Shorter sequences have shorter windows: a tenth of the sequence, as at the published size."""
    return layer(batch, size, min(WINDOW, size // (POSITIONS // WINDOW)))


LONGFORMER = EvaluationModel(
    "longformer",
    f"a layer of LongFormer, {HEADS} heads, windows of {WINDOW}, dilation {DILATION}",
    _write,
    size=POSITIONS,
    counts="positions",
    step=POSITIONS // WINDOW * DILATION,
)
"""One layer: the evaluation's shapes say everything of it."""
