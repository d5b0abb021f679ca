r"""ONNX operators that choose by position: :math:`Y[\vec i] = c(\vec i) ? A[\vec i] : B[\vec i]`.

A mask that is known before the model runs, and is a band of its last two dimensions, is a comparison of indices: causal
masks, windows of attention, the padding at the end of a sequence.
Source: the ONNX operator reference.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from einnet_explore.graph.reading.call import Call, OnnxOperator, Unclear, indices, iterators
from einnet_explore.graph.reading.elementwise import fn
from einnet_explore.graph.reading.model import Array
from einnet_explore.ir import Compare, Const, Equation, Index, Scalar, Scope


def _where(call: Call) -> Iterable[Equation]:
    xs = iterators(call.out.shape)
    at = indices(xs)
    mask = call.constant(0, "condition")
    one, other = call.read(1, at), call.read(2, at)
    yield call.equation(Scope(xs, (), chosen(mask, at, one, other)))


def _trilu(call: Call) -> Iterable[Equation]:
    xs = iterators(call.out.shape)
    at = indices(xs)
    k = int(call.constant(1, "k").reshape(())) if call.has(1) else 0
    test = Compare(">=" if call.get("upper", 1) else "<=", at[-1] - at[-2], Index((), k))
    yield call.equation(Scope(xs, (), fn("where", test, call.read(0, at), Const(0))))


def chosen(mask: Array, at: tuple[Index, ...], one: Scalar, other: Scalar) -> Scalar:
    """*one* where *mask* holds at *at*, else *other*."""
    if mask.all() or not mask.any():
        return one if mask.all() else other
    leading, (rows, columns) = mask.shape[:-2], (1, 1, *mask.shape)[-2:]
    if any(size > 1 for size in leading):
        raise Unclear(f"its condition of shape {mask.shape} differs along more than two dimensions")
    table = mask.reshape(rows, columns)
    places = np.arange(columns) - np.arange(rows)[:, None] if columns > 1 else np.arange(rows)[:, None]
    place = at[-2] if columns == 1 else at[-1] - at[-2] if rows > 1 else at[-1]
    for wanted, yes, no in ((table, one, other), (~table, other, one)):
        first, last = int(places[wanted].min()), int(places[wanted].max())
        if np.array_equal(wanted, (places >= first) & (places <= last)):
            return _between(place, first, last, (int(places.min()), int(places.max())), yes, no)
    raise Unclear("its condition is no band of its last two dimensions")


def _between(place: Index, first: int, last: int, most: tuple[int, int], yes: Scalar, no: Scalar) -> Scalar:
    """*yes* where first <= place <= last, else *no*; a limit that *most* keeps in any case is left out."""
    if last < most[1]:
        yes = fn("where", Compare("<=", place, Index((), last)), yes, no)
    return yes if first <= most[0] else fn("where", Compare(">=", place, Index((), first)), yes, no)


SELECTION: tuple[OnnxOperator, ...] = (
    OnnxOperator("Where", "elementwise", _where, integers=True),
    OnnxOperator("Trilu", "elementwise", _trilu, integers=True, attributes="upper"),
)
"""A condition that is computed when the model runs is no number, and subprograms compute numbers: it stays."""
