"""Pairs of equal programs, and the number of steps of a derivation from the first to the second by hand.

By hand means with the rules of the library, where a fused expression and the merging of its scope are two steps, and
steps of the second program may be taken backwards.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from einnet_explore.ir import Program
from einnet_explore.rules import (
    BATCH_MERGING,
    BILINEAR_SUBSTITUTION,
    BOUNDARY_RELAXING,
    BOUNDARY_TIGHTENING,
    SIBLING_MERGING,
    SUMMATION_SPLITTING,
    TRAVERSAL_MERGING,
    VARIABLE_SUBSTITUTION,
    Derivation,
    Rule,
)
from einnet_explore.rules.base import places
from einnet_explore.strategies.vertical_fusion import vertical_fusions
from einnet_explore.syntax import parse
from tests.rules_kit import Steps


class Pair(NamedTuple):
    """Two programs, and the steps by hand."""

    before: Program
    after: Program
    steps: int


TEXTS: dict[str, tuple[str, str, str, int]] = {
    "linear attention": (
        "Q[8, 4] K[8, 4] V[8, 4]",
        "S[i:8, j:8] = sum[k:4] Q[i, k] * K[j, k]; Y[i:8, d:4] = sum[j:8] S[i, j] * V[j, d]",
        "S[k:4, d:4] = sum[j:8] K[j, k] * V[j, d]; Y[i:8, d:4] = sum[k:4] Q[i, k] * S[k, d]", 4,
    ),
    "absorbed projections of latent attention": (
        "x[8] W[8, 8]w c[16, 4] U[4, 8]w",
        "q[i:8] = sum[a:8] x[a] * W[a, i]; k[t:16, i:8] = sum[r:4] c[t, r] * U[r, i]; "
        "Y[t:16] = sum[i:8] q[i] * k[t, i]",
        "M[a:8, r:4] = sum[i:8] W[a, i] * U[r, i]; p[r:4] = sum[a:8] x[a] * M[a, r]; "
        "Y[t:16] = sum[r:4] p[r] * c[t, r]", 5,
    ),
    "LoRA": (
        "x[4, 8] W[8, 8]w A[8, 2]w B[2, 8]w",
        "H[i:4, r:2] = sum[k:8] x[i, k] * A[k, r]; G[i:4, j:8] = sum[r:2] H[i, r] * B[r, j]; "
        "F[i:4, j:8] = sum[k:8] x[i, k] * W[k, j]; Y[i:4, j:8] = F[i, j] + G[i, j]",
        "D[k:8, j:8] = sum[r:2] A[k, r] * B[r, j]; M[k:8, j:8] = W[k, j] + D[k, j]; "
        "Y[i:4, j:8] = sum[k:8] x[i, k] * M[k, j]", 8,
    ),
    "RepVGG": (
        "x[3, 8]p01 K[4, 3, 3]w k[4, 3]w",
        "A[f:4, h:8] = sum[c:3, r:3] x[c, h+r-1] * K[f, c, r]; B[f:4, h:8] = sum[c:3] x[c, h] * k[f, c]; "
        "Y[f:4, h:8] = A[f, h] + B[f, h]",
        "M[f:4, c:3, r:3] = K[f, c, r] + {[f:4, c:3, r:3 | 0 <= r-1 < 1] k[f, c]}[f, c, r]; "
        "Y[f:4, h:8] = sum[c:3, r:3] x[c, h+r-1] * M[f, c, r]", 4,
    ),
    "batch normalisation in the weights": (
        "x[3, 10] K[4, 3, 3]w s[4]w b[4]w",
        "C[f:4, h:8] = sum[c:3, r:3] x[c, h+r] * K[f, c, r]; Y[f:4, h:8] = C[f, h] * s[f] + b[f]",
        "M[f:4, c:3, r:3] = K[f, c, r] * s[f]; C[f:4, h:8] = sum[c:3, r:3] x[c, h+r] * M[f, c, r]; "
        "Y[f:4, h:8] = C[f, h] + b[f]", 4,
    ),
    "scale of a normalisation in the weights": (
        "x[4, 8] g[8]w W[8, 5]w",
        "S[i:4, k:8] = x[i, k] * g[k]; Y[i:4, j:5] = sum[k:8] S[i, k] * W[k, j]",
        "M[k:8, j:5] = g[k] * W[k, j]; Y[i:4, j:5] = sum[k:8] x[i, k] * M[k, j]", 4,
    ),
    "two layers of weights": (
        "x[4, 8] W[8, 5]w V[5, 3]w",
        "H[i:4, j:5] = sum[k:8] x[i, k] * W[k, j]; Y[i:4, l:3] = sum[j:5] H[i, j] * V[j, l]",
        "M[k:8, l:3] = sum[j:5] W[k, j] * V[j, l]; Y[i:4, l:3] = sum[k:8] x[i, k] * M[k, l]", 4,
    ),
    "chain of four matrices": (
        "A[2, 9] B[9, 9] C[9, 2] D[2, 5]",
        "P[i:2, k:9] = sum[j:9] A[i, j] * B[j, k]; Q[k:9, m:5] = sum[l:2] C[k, l] * D[l, m]; "
        "Y[i:2, m:5] = sum[k:9] P[i, k] * Q[k, m]",
        "Q[j:9, l:2] = sum[k:9] B[j, k] * C[k, l]; R[i:2, l:2] = sum[j:9] A[i, j] * Q[j, l]; "
        "Y[i:2, m:5] = sum[l:2] R[i, l] * D[l, m]", 8,
    ),
    "graph convolution": (
        "N[6, 6] X[6, 9] W[9, 2]w",
        "P[i:6, k:9] = sum[j:6] N[i, j] * X[j, k]; Y[i:6, f:2] = sum[k:9] P[i, k] * W[k, f]",
        "P[j:6, f:2] = sum[k:9] X[j, k] * W[k, f]; Y[i:6, f:2] = sum[j:6] N[i, j] * P[j, f]", 4,
    ),
    "positive part as a maximum, in a commuted sum": (
        "A[4, 6] B[6, 5]",
        "P[i:4, j:5] = sum[k:6] A[i, k] * B[k, j]; Y[i:4, j:5] = relu(P[i, j]) + P[i, j]",
        "P[i:4, j:5] = sum[k:6] A[i, k] * B[k, j]; Y[i:4, j:5] = P[i, j] + maximum(0, P[i, j])", 1,
    ),
    "SiLU by a hyperbolic tangent": (
        "A[4, 6]", "Y[i:4, j:6] = A[i, j] * sigmoid(A[i, j])",
        "Y[i:4, j:6] = 0.5 * A[i, j] * (1 + tanh(A[i, j] / 2))", 2,
    ),
    "powers, quotients and square roots": (
        "A[6] B[6]", "Y[i:6] = pow(A[i], 3) / B[i] / 2 - rsqrt(B[i]) + minimum(A[i], 0)",
        "Y[i:6] = 0.5 * (A[i] * A[i]) * (A[i] / B[i]) - 1 / sqrt(B[i]) - relu(-A[i])", 2,
    ),
    "Kronecker product and a vector": (
        "A[4, 3] x[3, 5] B[5, 6]",
        "K[i:4, l:6, j:3, k:5] = A[i, j] * B[k, l]; Y[i:4, l:6] = sum[j:3, k:5] K[i, l, j, k] * x[j, k]",
        "P[j:3, l:6] = sum[k:5] x[j, k] * B[k, l]; Y[i:4, l:6] = sum[j:3] A[i, j] * P[j, l]", 4,
    ),
    "trace of a product": (
        "A[5, 7] B[7, 5]",
        "P[i:5, j:5] = sum[k:7] A[i, k] * B[k, j]; Y[z:1] = sum[i:5] P[i, i]",
        "Y[z:1] = sum[i:5, k:7] A[i, k] * B[k, i]", 2,
    ),
    "quadratic form": (
        "x[6, 4] W[4, 4]w",
        "Q[i:6, k:4] = sum[a:4] x[i, a] * W[a, k]; Y[z:1] = sum[i:6, k:4] Q[i, k] * x[i, k]",
        "C[a:4, k:4] = sum[i:6] x[i, a] * x[i, k]; Y[z:1] = sum[a:4, k:4] W[a, k] * C[a, k]", 4,
    ),
    "sum of all products of rows": (
        "v[8, 3]",
        "G[i:8, j:8] = sum[d:3] v[i, d] * v[j, d]; Y[z:1] = sum[i:8, j:8] G[i, j]",
        "s[d:3] = sum[i:8] v[i, d]; Y[z:1] = sum[d:3] s[d] * s[d]", 5,
    ),
    "sum of an outer product": (
        "a[6] b[5]",
        "P[i:6, j:5] = a[i] * b[j]; Y[z:1] = sum[i:6, j:5] P[i, j]",
        "s[z:1] = sum[i:6] a[i]; t[z:1] = sum[j:5] b[j]; Y[z:1] = s[z] * t[z]", 6,
    ),
    "sum over outputs": (
        "x[4, 8] W[5, 8]w",
        "T[n:4, o:5] = sum[k:8] x[n, k] * W[o, k]; Y[n:4] = sum[o:5] T[n, o] * 1.5",
        "w[k:8] = sum[o:5] W[o, k]; Y[n:4] = sum[k:8] 1.5 * x[n, k] * w[k]", 3,
    ),
    "one product with a sum of weights": (
        "x[4, 8] A[8, 5]w B[8, 5]w",
        "F[i:4, j:5] = sum[k:8] x[i, k] * A[k, j]; G[i:4, j:5] = sum[k:8] x[i, k] * B[k, j]; "
        "Y[i:4, j:5] = F[i, j] + G[i, j]",
        "M[k:8, j:5] = A[k, j] + B[k, j]; Y[i:4, j:5] = sum[k:8] x[i, k] * M[k, j]", 5,
    ),
    "distances": (
        "a[6, 4] b[5, 4]",
        "D[i:6, j:5, k:4] = a[i, k] - b[j, k]; Y[i:6, j:5] = sum[k:4] D[i, j, k] * D[i, j, k]",
        "p[i:6] = sum[k:4] a[i, k] * a[i, k]; q[j:5] = sum[k:4] b[j, k] * b[j, k]; "
        "G[i:6, j:5] = sum[k:4] a[i, k] * b[j, k]; Y[i:6, j:5] = p[i] - 2 * G[i, j] + q[j]", 11,
    ),
    "variance": (
        "x[4, 8]",
        "m[i:4] = sum[k:8] 0.125 * x[i, k]; D[i:4, k:8] = x[i, k] - m[i]; Y[i:4] = sum[k:8] D[i, k] * x[i, k]",
        "m[i:4] = sum[k:8] 0.125 * x[i, k]; q[i:4] = sum[k:8] x[i, k] * x[i, k]; s[i:4] = sum[k:8] x[i, k]; "
        "Y[i:4] = q[i] - m[i] * s[i]", 7,
    ),
    "pool of a 1x1 convolution": (
        "x[3, 8] W[4, 3]w",
        "C[f:4, h:8] = sum[c:3] x[c, h] * W[f, c]; Y[f:4, h:4] = sum[r:2] 0.5 * C[f, 2*h+r]",
        "P[c:3, h:4] = sum[r:2] x[c, 2*h+r]; Y[f:4, h:4] = sum[c:3] 0.5 * P[c, h] * W[f, c]", 4,
    ),
    "mean of a convolution": (
        "x[3, 8]p01 K[4, 3, 3]w",
        "C[f:4, h:8] = sum[c:3, r:3] x[c, h+r-1] * K[f, c, r]; Y[f:4] = sum[h:8] 0.125 * C[f, h]",
        "B[c:3, r:3] = sum[h:8] x[c, h+r-1]; Y[f:4] = sum[c:3, r:3] 0.125 * B[c, r] * K[f, c, r]", 3,
    ),
    "1x1 convolution of an upsampling": (
        "x[3, 8] W[4, 3]w",
        "U[c:3, h:16] = x[c, h//2]; Y[f:4, h:16] = sum[c:3] U[c, h] * W[f, c]",
        "C[f:4, h:8] = sum[c:3] x[c, h] * W[f, c]; Y[f:4, h:16] = C[f, h//2]", 4,
    ),
    "sums of windows along one dimension after the other": (
        "x[12, 14]",
        "Y[r:3, s:5] = sum[h:10, w:10] x[h+r, w+s]",
        "T[r:3, w:14] = sum[h:10] x[h+r, w]; Y[r:3, s:5] = sum[w:10] T[r, w+s]", 2,
    ),
    "convolution as gathered rows and a product": (
        "x[3, 10] K[4, 3, 3]w",
        "Y[f:4, h:8] = sum[c:3, r:3] x[c, h+r] * K[f, c, r]",
        "G[h:8, c:3, r:3] = x[c, h+r]; Y[f:4, h:8] = sum[c:3, r:3] G[h, c, r] * K[f, c, r]", 2,
    ),
    "convolution as a product and shifted sums": (
        "x[3, 8]p01 K[3, 3, 4]w",
        "Y[f:4, h:8] = sum[c:3, r:3] x[c, h+r-1] * K[c, r, f]",
        "T[r:3, f:4, t:8] = sum[c:3] x[c, t] * K[c, r, f]; "
        "Y[f:4, h:8] = sum[r:3] {[r:3, f:4, t:8] T[r, f, t]} pad [0, 0, 1][r, f, h+r-1]", 7,
    ),
    "kernel of a strided convolution in halves": (
        "x[3, 17] K[4, 3, 4]w",
        "Y[f:4, h:7] = sum[c:3, r:4] x[c, 2*h+r] * K[f, c, r]",
        "Y[f:4, h:7] = sum[c:3, p:2, q:2] x[c, 2*h+2*p+q] * K[f, c, 2*p+q]", 1,
    ),
    "dilated band by residues (Fig. 14)": (
        "A[2, 8, 3] B[2, 8, 3]p040",
        "Y[b:2, m:8, w:5] = sum[k:3] A[b, m, k] * B[b, m+2*w-4, k]",
        "Y[b:2, m:8, w:5] = {[b:2, p:2, q:4, w:5] sum[k:3] A[b, 2*q+p, k] * B[b, 2*q+p+2*w-4, k]}[b, m%2, m//2, w]", 1,
    ),
    "transpositions before and after a product": (
        "A[4, 6] B[6, 5]",
        "S[i:4, j:5] = sum[k:6] A[i, k] * B[k, j]; Y[j:5, i:4] = S[i, j]",
        "T[k:6, i:4] = A[i, k]; U[j:5, k:6] = B[k, j]; Y[j:5, i:4] = sum[k:6] U[j, k] * T[k, i]", 6,
    ),
    "equal expressions": (
        "a[6]",
        "E[i:6] = exp(a[i]); F[i:6] = exp(a[i]); Y[i:6] = E[i] + tanh(F[i])",
        "E[i:6] = exp(a[i]); Y[i:6] = E[i] + tanh(E[i])", 1,
    ),
    "positive scale through relu": (
        "x[4, 8] W[8, 5]w",
        "H[i:4, j:5] = sum[k:8] x[i, k] * W[k, j]; R[i:4, j:5] = relu(0.5 * H[i, j]); Y[i:4, j:5] = 4 * R[i, j]",
        "H[i:4, j:5] = sum[k:8] x[i, k] * W[k, j]; Y[i:4, j:5] = 2 * relu(H[i, j])", 3,
    ),
    "monotone function of a maximum": (
        "x[3, 8]",
        "R[c:3, h:8] = tanh(x[c, h]); Y[c:3, h:4] = max[r:2] R[c, 2*h+r]",
        "P[c:3, h:4] = max[r:2] x[c, 2*h+r]; Y[c:3, h:4] = tanh(P[c, h])", 4,
    ),
    "exponential of a sum": ("x[8] y[8]", "Y[i:8] = exp(x[i] + y[i])", "Y[i:8] = exp(x[i]) * exp(y[i])", 1),
    "softmax without what is constant along its axis": (
        "x[4, 8] c[4]",
        "S[i:4, j:8] = x[i, j] + c[i]; m[i:4] = max[j:8] S[i, j]; E[i:4, j:8] = exp(S[i, j] - m[i]); "
        "Z[i:4] = sum[j:8] E[i, j]; Y[i:4, j:8] = E[i, j] / Z[i]",
        "m[i:4] = max[j:8] x[i, j]; E[i:4, j:8] = exp(x[i, j] - m[i]); Z[i:4] = sum[j:8] E[i, j]; "
        "Y[i:4, j:8] = E[i, j] / Z[i]", 10,
    ),
}  # fmt: skip
"""Tensors (``w``: a weight, ``p01``: padding of each dimension), both programs, steps."""


def derived() -> Iterable[tuple[str, Callable[[], Derivation]]]:
    """Yield the pairs that are the ends of a derivation by hand."""
    yield "3x3 convolution as a product and shifted sums (Fig. 7)", convolution
    yield "5x5 convolution as 3x3 with more channels (Fig. 6)", larger_convolution
    yield "strided transposed convolution (Fig. 11)", transposed_convolution
    yield "convolution to Winograd's form", lambda: first_steps(conv3x3(), BILINEAR_SUBSTITUTION, BILINEAR_SUBSTITUTION)
    yield "products of one input (Fig. 3)", lambda: first_steps(parse(SIBLINGS), SIBLING_MERGING)
    yield "products as a batch", lambda: first_steps(parse(BATCH), BATCH_MERGING)
    yield "attention in one pass", attention_in_one_pass


def pairs() -> Iterable[tuple[str, Callable[[], Pair]]]:
    """Yield all pairs by name; each is made when it is called."""
    for name, (inputs, before, after, steps) in TEXTS.items():
        yield name, lambda a=(inputs, before), b=(inputs, after), n=steps: Pair(program(*a), program(*b), n)
    for name, make in derived():
        yield name, lambda make=make: pair_of(make())


def pair_of(derivation: Derivation) -> Pair:
    return Pair(derivation.start, derivation.end, len(derivation.steps))


def program(inputs: str, equations: str) -> Program:
    """Read the short forms of ``TEXTS``."""
    tensors = []
    for shape, mark in re.findall(r"(\w+\[[^]]*\])(w|p\d+)?", inputs):
        padding = f" pad [{', '.join(mark[1:])}]" if mark.startswith("p") else ""
        tensors.append(f"tensor {shape}{' weight' if mark == 'w' else padding}")
    return parse("\n".join([*tensors, *equations.split("; "), "output Y"]))


def conv3x3() -> Program:
    return parse("""
        tensor A[1, 4, 4, 3] pad [0, 1, 1, 0]
        tensor K[3, 3, 2, 3] weight
        Y[n:1, h:4, w:4, f:2] = sum[c:3, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, f, c]
    """)


def convolution() -> Derivation:
    steps = Steps(conv3x3()).do(SUMMATION_SPLITTING, (0,), outer=["r", "s"])
    joint = next(iter(VARIABLE_SUBSTITUTION.matches(steps.end, (0, 0)))).to_json()["params"]
    steps.do(VARIABLE_SUBSTITUTION, (0, 0), **joint)
    steps.find(BOUNDARY_RELAXING, (0, 0), access=0, bounds=[0, 1]).find(TRAVERSAL_MERGING, (0,), access=0)
    return steps.find(BOUNDARY_TIGHTENING, (0, 0), ranges={"t1": [0, 4], "t2": [0, 4]}).derivation


def larger_convolution() -> Derivation:
    start = parse("""
        tensor A[1, 6, 3] pad [0, 2, 0]
        tensor K[5, 2, 3] weight
        Y[n:1, h:6, f:2] = sum[c:3, r:5] A[n, h+r-2, c] * K[r, f, c]
    """)
    steps = Steps(start).find(BOUNDARY_RELAXING, (0,), ranges={"r": [0, 6]})
    steps.find(VARIABLE_SUBSTITUTION, (0,), phi={"c": "c", "r1": "r % 3", "r2": "r // 3"})
    steps.find(SUMMATION_SPLITTING, (0,), outer=["r2"])
    steps.do(VARIABLE_SUBSTITUTION, (0, 0), phi={"n": "n", "t": "h+3*r2", "r2": "r2", "f": "f"})
    steps.find(BOUNDARY_RELAXING, (0, 0), access=0, bounds=[0]).find(TRAVERSAL_MERGING, (0,), access=0)
    return steps.derivation


def transposed_convolution() -> Derivation:
    start = parse("""
        tensor A[1, 2, 2, 3]
        tensor K[3, 4, 4, 2] weight pad [0, (4, 4), (4, 4), 0]
        Y[n:1, y:4, x:4, c:2] = sum[h:2, w:2, f:3] A[n, h, w, f] * K[f, y+1-2*h, x+1-2*w, c]
    """)
    steps = Steps(start).do(SUMMATION_SPLITTING, (0,), outer=["h", "w"])
    joint = next(iter(VARIABLE_SUBSTITUTION.matches(steps.end, (0, 0)))).to_json()["params"]
    steps.do(VARIABLE_SUBSTITUTION, (0, 0), **joint)
    steps.find(BOUNDARY_RELAXING, (0, 0), access=0, bounds=[0, 1]).find(TRAVERSAL_MERGING, (0,), access=0)
    return steps.find(BOUNDARY_TIGHTENING, (0, 0), ranges={"t1": [0, 4], "t2": [0, 4]}).derivation


SIBLINGS = """
    tensor x[4, 8]
    tensor A[8, 5] weight
    tensor B[8, 3] weight
    F[i:4, j:5] = sum[k:8] x[i, k] * A[k, j]
    G[i:4, j:3] = sum[k:8] x[i, k] * B[k, j]
    output F, G"""

BATCH = """
    tensor x[4, 8]
    tensor A[8, 5]
    tensor y[4, 8]
    tensor B[8, 5]
    F[i:4, j:5] = sum[k:8] x[i, k] * A[k, j]
    G[i:4, j:5] = sum[k:8] y[i, k] * B[k, j]
    output F, G"""


def first_steps(start: Program, *rules: Rule[object]) -> Derivation:
    """Apply the first match of each rule."""
    derivation = Derivation(start)
    for rule in rules:
        found = (match for at, _ in places(derivation.end) for match in rule.matches(derivation.end, at))
        derivation = derivation.then(next(found))
    return derivation


def attention_in_one_pass() -> Derivation:
    start = parse("""
        tensor Q[64, 8]
        tensor K[64, 8]
        tensor V[64, 8]
        S[i:64, j:64] = sum[k:8] Q[i, k] * K[j, k]
        m[i:64] = max[j:64] S[i, j]
        E[i:64, j:64] = exp(S[i, j] - m[i])
        Z[i:64] = sum[j:64] E[i, j]
        P[i:64, j:64] = E[i, j] / Z[i]
        Y[i:64, d:8] = sum[j:64] P[i, j] * V[j, d]
        output Y""")
    kinds = ((found, [e.via for e in found.end.equations if e.via]) for found in vertical_fusions(start))
    one_pass = [found for found, vias in kinds if any("one_pass" in repr(via) for via in vias)]
    return min(one_pass, key=lambda found: len(found.steps))
