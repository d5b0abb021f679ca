"""Normalisations, softmax and variance of any size: example programs of fused kernels."""

from __future__ import annotations

from einnet_explore.ir import Program
from einnet_explore.syntax import parse


def batch_norm(n: int, c: int, h: int, w: int) -> Program:
    r"""Over (n, h, w), with scale and shift: :math:`(x - \mu_c)(\sigma_c^2 + 10^{-5})^{-1/2} g_c + b_c`."""
    return parse(f"""
        tensor X[{n}, {c}, {h}, {w}]
        tensor g[{c}]
        tensor b[{c}]
        M[c:{c}] = {{[c:{c}] sum[n:{n}, h:{h}, w:{w}] X[n, c, h, w]}}[c] / {n * h * w}
        D[n:{n}, c:{c}, h:{h}, w:{w}] = X[n, c, h, w] - M[c]
        V[c:{c}] = {{[c:{c}] sum[n:{n}, h:{h}, w:{w}] D[n, c, h, w] * D[n, c, h, w]}}[c] / {n * h * w}
        Y[n:{n}, c:{c}, h:{h}, w:{w}] = D[n, c, h, w] * rsqrt(V[c] + 0.00001) * g[c] + b[c]
        output Y""")


def layer_norm(r: int, c: int) -> Program:
    """Over the last dimension, with scale and shift."""
    return parse(f"""
        tensor X[{r}, {c}]
        tensor g[{c}]
        tensor b[{c}]
        M[i:{r}] = {{[i:{r}] sum[j:{c}] X[i, j]}}[i] / {c}
        V[i:{r}] = {{[i:{r}] sum[j:{c}] (X[i, j] - M[i]) * (X[i, j] - M[i])}}[i] / {c}
        Y[i:{r}, j:{c}] = (X[i, j] - M[i]) * rsqrt(V[i] + 0.00001) * g[j] + b[j]
        output Y""")


def instance_norm(n: int, c: int, h: int, w: int) -> Program:
    """Over (h, w), each image and channel by itself."""
    return parse(f"""
        tensor X[{n}, {c}, {h}, {w}]
        M[n:{n}, c:{c}] = {{[n:{n}, c:{c}] sum[h:{h}, w:{w}] X[n, c, h, w]}}[n, c] / {h * w}
        V[n:{n}, c:{c}] = {{[n:{n}, c:{c}] sum[h:{h}, w:{w}]
            (X[n, c, h, w] - M[n, c]) * (X[n, c, h, w] - M[n, c])}}[n, c] / {h * w}
        Y[n:{n}, c:{c}, h:{h}, w:{w}] = (X[n, c, h, w] - M[n, c]) * rsqrt(V[n, c] + 0.00001)
        output Y""")


def group_norm(n: int, groups: int, c: int, h: int, w: int) -> Program:
    """Over (c, h, w), each image and group of *c* channels by itself, with scale and shift of each channel."""
    return parse(f"""
        tensor X[{n}, {groups}, {c}, {h}, {w}]
        tensor g[{groups}, {c}]
        tensor b[{groups}, {c}]
        M[n:{n}, a:{groups}] = {{[n:{n}, a:{groups}] sum[c:{c}, h:{h}, w:{w}] X[n, a, c, h, w]}}[n, a] / {c * h * w}
        V[n:{n}, a:{groups}] = {{[n:{n}, a:{groups}] sum[c:{c}, h:{h}, w:{w}]
            (X[n, a, c, h, w] - M[n, a]) * (X[n, a, c, h, w] - M[n, a])}}[n, a] / {c * h * w}
        Y[n:{n}, a:{groups}, c:{c}, h:{h}, w:{w}] =
            (X[n, a, c, h, w] - M[n, a]) * rsqrt(V[n, a] + 0.00001) * g[a, c] + b[a, c]
        output Y""")


def softmax(r: int, c: int) -> Program:
    """Over the last dimension, less the largest."""
    return parse(f"""
        tensor X[{r}, {c}]
        M[i:{r}] = max[j:{c}] X[i, j]
        E[i:{r}, j:{c}] = exp(X[i, j] - M[i])
        S[i:{r}] = sum[j:{c}] E[i, j]
        Y[i:{r}, j:{c}] = E[i, j] / S[i]
        output Y""")


def variance(r: int, c: int) -> Program:
    """The mean of all elements, and their variance."""
    return parse(f"""
        tensor X[{r}, {c}]
        M[] = {{[] sum[i:{r}, j:{c}] X[i, j]}}[] / {r * c}
        V[] = {{[] sum[i:{r}, j:{c}] (X[i, j] - M[]) * (X[i, j] - M[])}}[] / {r * c}
        output M, V""")
