r"""ONNX's Attention: two contractions with a softmax between them, for every head *h* of the batch.

.. math::  S[i, j] = s \sum_d Q[i, d]\, K[j, d] + M[i, j], \quad P = \operatorname{softmax}_j S, \quad
           Y[i, v] = \sum_j P[i, j]\, V[j, v]

With grouped queries, several query heads read one key/value head; a mask excludes keys by :math:`-\infty`.
Source: the ONNX operator reference (operator sets 23 and 24).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, sqrt

import numpy as np

from einnet_explore.ir import Access, Compare, Const, Equation, IndexLike, Iterator, Scalar, Scope, add, mul
from einnet_explore.onnx_import.elementwise import fn, select_by_mask
from einnet_explore.onnx_import.node_call import NodeCall, OnnxOperator, access, as_indices, broadcast
from einnet_explore.onnx_import.reduction import reduction_scope
from einnet_explore.support.errors import Refused

_QUERY, _KEY, _VALUE, _MASK = range(4)


def _attention(call: NodeCall) -> Iterable[Equation]:
    _require_supported(call)
    heads, key_heads = _heads(call, _QUERY), _heads(call, _KEY)
    rows, columns = (call.shape(n)[-2] for n in (_QUERY, _KEY))
    depth, width = _depth(call, _QUERY), _depth(call, _VALUE)
    b, h = Iterator("b", 0, call.out.shape[0]), Iterator("h", 0, heads)
    i, j = Iterator("i", 0, rows), Iterator("j", 0, columns)
    d, v = Iterator("d", 0, depth), Iterator("v", 0, width)
    key_head = h if key_heads == heads else h * key_heads // heads
    factors = _element(call, _QUERY, b, h, i, d), _element(call, _KEY, b, key_head, j, d)
    yield (product := call.equation(Scope((b, h, i, j), (d,), mul(*factors)), "product"))
    at = as_indices((b, h, i, j))
    score = mul(Const(call.get("scale", 1 / sqrt(depth))), access(product.tensor, *at))
    if cap := call.get("softcap", 0.0):
        score = mul(Const(cap), fn("tanh", mul(Const(1 / cap), score)))
    yield (scores := call.equation(Scope((b, h, i, j), (), _masked(call, score, (b, h, i, j))), "scores"))
    yield (largest := call.equation(reduction_scope(scores.tensor, (3,), "max"), "max"))
    power = fn("exp", fn("-", access(scores.tensor, *at), broadcast(largest.tensor, at)))
    yield (powers := call.equation(Scope((b, h, i, j), (), power), "exp"))
    yield (total := call.equation(reduction_scope(powers.tensor, (3,)), "total"))
    share = fn("/", broadcast(powers.tensor, at), broadcast(total.tensor, at))
    yield (shares := call.equation(Scope((b, h, i, j), (), share), "shares"))
    mixed = Scope((b, h, i, v), (j,), mul(access(shares.tensor, *at), _element(call, _VALUE, b, key_head, j, v)))
    if len(call.out.shape) == 4:
        yield call.equation(mixed)
        return
    yield (by_head := call.equation(mixed, "heads"))
    x = Iterator("x", 0, heads * width)
    yield call.equation(Scope((b, i, x), (), access(by_head.tensor, b, x // width, i, x % width)))


def _require_supported(call: NodeCall) -> None:
    """Refuse key/value caches, further outputs and a softmax in another precision."""
    call.require_single_output()
    if any(call.has(n) for n in range(_MASK + 1, len(call.node.inputs))):
        raise Refused("it has a cache")
    if call.get("softmax_precision", 1) != 1:
        raise Refused("its softmax is in another precision")


def _heads(call: NodeCall, n: int) -> int:
    """Return the number of heads of input *n*: a dimension, or an attribute if heads share the last dimension."""
    shape = call.shape(n)
    heads = call.get("q_num_heads" if n == _QUERY else "kv_num_heads", 0)
    return shape[1] if len(shape) == 4 else int(heads)


def _depth(call: NodeCall, n: int) -> int:
    shape = call.shape(n)
    return shape[3] if len(shape) == 4 else shape[2] // _heads(call, n)


def _element(call: NodeCall, n: int, b: IndexLike, h: IndexLike, place: Iterator, d: Iterator) -> Access:
    if len(call.shape(n)) == 4:
        return access(call.tensor(n), b, h, place, d)
    (start,) = as_indices((h,))
    return access(call.tensor(n), b, place, start * d.extent + d)


def _masked(call: NodeCall, score: Scalar, xs: tuple[Iterator, ...]) -> Scalar:
    """Return *score* with -∞ where the mask excludes a key; refuse a mask that excludes every key of a row."""
    at = as_indices(xs)
    if call.has(_MASK):
        mask = call.constant(_MASK, "attn_mask")
        causal = np.tri(xs[2].extent, xs[3].extent, dtype=bool) if call.get("is_causal", 0) else True
        allowed = (mask if mask.dtype == bool else mask > -inf) & causal
        if mask.shape[-1] != xs[3].extent or not allowed.any(axis=-1).all():
            raise Refused(f"its mask of shape {mask.shape} leaves some row none of the {xs[3].extent} keys")
        score = (
            select_by_mask(mask, at, score, Const(-inf)) if mask.dtype == bool else add(score, call.operand(_MASK, at))
        )
    if call.get("is_causal", 0):
        score = fn("where", Compare("<=", at[3], at[2]), score, Const(-inf))
    return score


ATTENTION: tuple[OnnxOperator, ...] = (
    OnnxOperator(
        "Attention",
        "reduction",
        _attention,
        attributes="is_causal kv_num_heads q_num_heads qk_matmul_output_mode scale softcap softmax_precision",
    ),
)
"""A computed mask is refused: for a row without keys ONNX defines the result 0, whereas a softmax is undefined."""
