r"""ONNX's attention operators and position embeddings, as several equations each.

Attention is two contractions with a softmax between them, for every head *h* of the batch:

.. math::  S[i, j] = s \sum_d Q[i, d]\, K[j, d] + M[i, j], \quad P = \operatorname{softmax}_j S, \quad
           Y[i, v] = \sum_j P[i, j]\, V[j, v]

With grouped queries, several query heads read one key/value head; a mask excludes keys by :math:`-\infty`.

Linear attention is written without its recurrence, as a masked product; with decay, :math:`L` is the sum of its
logarithms up to a position:

.. math::  Y[i, v] = s \sum_{j \le i} \Big( \sum_d Q[i, d]\, K[j, d]\, e^{L[i, d] - L[j, d]} \Big) V[j, v]

Source: the ONNX operator reference (attention: operator sets 23 and 24; linear attention: 27; rotary embedding: 23).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from einnet_explore.ir import (
    Access,
    Compare,
    Const,
    Equation,
    Index,
    IndexLike,
    Iterator,
    Scalar,
    Scope,
    Tensor,
    add,
    as_index,
    mul,
)
from einnet_explore.onnx_import.elementwise import fn
from einnet_explore.onnx_import.known_arrays import index_with_values, select_by_mask
from einnet_explore.onnx_import.node_call import NodeCall, OnnxOperator, access, as_indices, broadcast, extent_iterators
from einnet_explore.onnx_import.reduction import prefix_sum, softmax_parts
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
    yield (scores := call.equation(Scope((b, h, i, j), (), _mask_scores(call, score, (b, h, i, j))), "scores"))
    element = access(scores.tensor, *at)
    power, total = yield from softmax_parts(call, scores.tensor, element, (b, h, i, j), (3,))
    share = fn("/", broadcast(power, at), broadcast(total, at))
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


def _mask_scores(call: NodeCall, score: Scalar, xs: tuple[Iterator, ...]) -> Scalar:
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
        score = _causal(score, at[2], at[3], -inf)
    return score


def _causal(score: Scalar, query: IndexLike, key: IndexLike, otherwise: float) -> Scalar:
    """Return *score* where the position *key* is not after the position *query*, else *otherwise*."""
    return fn("where", Compare("<=", as_index(key), as_index(query)), score, Const(otherwise))


_PAST, _DECAY = 3, 4


def _linear_attention(call: NodeCall) -> Iterable[Equation]:
    """Also compute the optional output: the state after the last position."""
    rule = call.get("update_rule", "gated_delta")
    if rule not in ("linear", "gated"):
        raise Refused(f"update_rule is {rule}, neither linear nor gated: its state depends on products of its steps")
    logs = None
    if rule == "gated":
        yield (total := call.equation(prefix_sum(call.tensor(_DECAY), 1), "decay"))
        logs = total.tensor
    heads, key_heads = int(call.get("q_num_heads", 0)), int(call.get("kv_num_heads", 0))
    (batch, length, channels), values = call.shape(_KEY), call.shape(_VALUE)[-1]
    extents = (batch, heads, key_heads, length, length, channels // key_heads, values // key_heads)
    attention = _LinearAttention(call, logs, *(Iterator(x, 0, n) for x, n in zip("bhhijdv", extents, strict=True)))
    yield from attention.result()
    if len(call.node.results) > 1:
        yield from attention.state()


@dataclass(frozen=True, slots=True)
class _LinearAttention:
    """Linear attention for batch *b*, query head *h*, key/value head *g*, positions *i* and *j*, channels *d* and *v*.

    *logs* are the sums of the logarithms of the decay up to each position; None without decay.
    """

    call: NodeCall
    logs: Tensor | None
    b: Iterator
    h: Iterator
    g: Iterator
    i: Iterator
    j: Iterator
    d: Iterator
    v: Iterator

    def decay(self, head: IndexLike, to: IndexLike, since: IndexLike | None = None) -> tuple[Scalar, ...]:
        """Return the factor by which the state changes from *since* (None: the start) to *to*; () without decay."""
        if self.logs is None:
            return ()
        channel = as_index(head) if self.logs.shape[-1] == self.g.extent else as_index(head) * self.d.extent + self.d
        end = access(self.logs, self.b, to, channel)
        return (fn("exp", end if since is None else fn("-", end, access(self.logs, self.b, since, channel))),)

    def result(self) -> Iterable[Equation]:
        """Yield the equations of Y."""
        call, b, h, i, j, d, v = self.call, self.b, self.h, self.i, self.j, self.d, self.v
        key_head = as_index(h) * self.g.extent // h.extent
        scale = Const(call.get("scale", 0.0) or 1 / sqrt(d.extent))
        query = _element(call, _QUERY, b, h, i, d)
        product, decay = mul(scale, query, _element(call, _KEY, b, key_head, j, d)), self.decay(key_head, i, j)
        if self.logs is not None and self.logs.shape[-1] != self.g.extent:  # each channel of the product decays
            share = Scope((b, h, i, j), (d,), _causal(mul(product, *decay), i, j, 0))
        else:
            yield (scores := call.equation(Scope((b, h, i, j), (d,), product), "scores"))
            share = Scope((b, h, i, j), (), _causal(mul(access(scores.tensor, b, h, i, j), *decay), i, j, 0))
        yield (shares := call.equation(share, "shares"))
        mixed = mul(access(shares.tensor, b, h, i, j), _element(call, _VALUE, b, key_head, j, v))
        yield (by_head := call.equation(Scope((b, h, i, v), (j,), mixed), "heads"))
        parts = [by_head.tensor]
        if call.has(_PAST):
            before = mul(scale, query, *self.decay(key_head, i), access(call.tensor(_PAST), b, key_head, d, v))
            yield (past := call.equation(Scope((b, h, i, v), (d,), before), "past"))
            parts.append(past.tensor)
        x = Iterator("x", 0, h.extent * v.extent)
        reads = [access(part, b, x // v.extent, i, x % v.extent) for part in parts]
        yield call.equation(Scope((b, i, x), (), add(*reads) if len(reads) > 1 else reads[0]))

    def state(self) -> Iterable[Equation]:
        """Yield the equations of the state after the last position."""
        call, b, g, j, d, v = self.call, self.b, self.g, self.j, self.d, self.v
        last = as_index(j.extent - 1)
        update = mul(_element(call, _KEY, b, g, j, d), *self.decay(g, last, j), _element(call, _VALUE, b, g, j, v))
        added = Scope((b, g, d, v), (j,), update)
        if call.has(_PAST):
            yield (new := call.equation(added, "update"))
            old = access(call.tensor(_PAST), b, g, d, v)
            kept = mul(*decay, old) if (decay := self.decay(g, last)) else old
            added = Scope((b, g, d, v), (), add(access(new.tensor, b, g, d, v), kept))
        yield Equation(call.output(1).name, added)


def _rotary_embedding(call: NodeCall) -> Iterable[Equation]:
    """Y = cos·X ∓ sin·(the other element of its pair); elements from *rotary_embedding_dim* on are those of X."""
    xs = extent_iterators(call.out.shape)
    side_by_side = len(xs) == 3
    b, place, *_ = xs if side_by_side else (xs[0], xs[2])
    size = xs[-1].extent // int(call.get("num_heads", 0)) if side_by_side else xs[-1].extent
    element = xs[-1] % size if side_by_side else as_index(xs[-1])
    rotated = int(call.get("rotary_embedding_dim", 0)) or size
    half = rotated // 2
    if call.get("interleaved", 0):
        pair, second, other = element // 2 % half, element % 2, element // 2 * 2 + 1 - element % 2
        is_first = Compare("<=", second, Index())
    else:
        pair, other = element % half, (element + half) % rotated
        is_first = Compare("<=", element, Index((), half - 1))
    at = as_indices((b, place))
    if call.has(3):
        at = (index_with_values(call.constant(3, "position_ids").astype(np.int64), at),)
    cos, sin = access(call.tensor(1), *at, pair), access(call.tensor(2), *at, pair)
    partner = access(call.tensor(0), *xs[:-1], xs[-1] // size * size + other)
    by_sine = mul(sin, partner)
    here = access(call.tensor(0), *xs)
    body: Scalar = add(mul(cos, here), fn("where", is_first, mul(Const(-1), by_sine), by_sine))
    if rotated < size:
        body = fn("where", Compare("<=", element, Index((), rotated - 1)), body, here)
    yield call.equation(Scope(xs, (), body))


ATTENTION: tuple[OnnxOperator, ...] = (
    OnnxOperator(
        "Attention",
        "reduction",
        _attention,
        attributes="is_causal kv_num_heads q_num_heads qk_matmul_output_mode scale softcap softmax_precision",
    ),
    OnnxOperator(
        "LinearAttention",
        "reduction",
        _linear_attention,
        attributes="chunk_size kv_num_heads q_num_heads scale update_rule",
    ),
    OnnxOperator(
        "RotaryEmbedding", "elementwise", _rotary_embedding, attributes="interleaved num_heads rotary_embedding_dim"
    ),
)
"""A computed mask is refused: for a row without keys ONNX defines the result 0, whereas a softmax is undefined."""
