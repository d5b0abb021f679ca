"""Programs in which linear algebra saves multiplications, as they occur in models, with the counts derived by hand.

``COLLAPSIBLE`` maps a name to the text of a program and the smallest number of products at run time: weights are
folded, and a point of an element-wise sum counts like a product.  ``NEAR_MISSES`` maps a name to two texts that look
equal and are not.
"""

from itertools import pairwise

N, K, F, R = 96, 80, 64, 8
"""Rows, inputs, outputs and a low rank."""
C, D, H = 16, 24, 12
"""Channels read, channels written, and the height and width of images."""


def made(tensors: str, *equations: str, output: str = "Y") -> str:
    """The text of a program: ``W*[3, 4]`` declares a weight."""
    declared = (
        f"tensor {t.replace('*', '')}{' weight' if '*' in t else ''}" for t in (t.strip() for t in tensors.split(";"))
    )
    return "\n".join((*declared, *equations, f"output {output}"))


def linear(result: str, source: str, weight: str, n: int, k: int, f: int) -> str:
    """``result = source · weight``."""
    return f"{result}[n:{n}, f:{f}] = sum[k:{k}] {source}[n, k] * {weight}[k, f]"


def conv(result: str, source: str, weight: str, c: int, f: int, h: int, r: int = 3, pad: bool = True) -> str:
    """A convolution of r × r with padding (or without it), h × h outputs."""
    shift = f"-{r // 2}" if pad and r > 1 else ""
    return (
        f"{result}[f:{f}, h:{h}, w:{h}] = sum[c:{c}, r:{r}, s:{r}] {source}[c, h+r{shift}, w+s{shift}]"
        f" * {weight}[f, c, r, s]"
    )


def chain(*sizes: int) -> str:
    """A chain of matrices, multiplied from the left."""
    lines, left = [], "A0"
    for n in range(1, len(sizes) - 1):
        lines.append(f"P{n}[i:{sizes[0]}, j:{sizes[n + 1]}] = sum[k:{sizes[n]}] {left}[i, k] * A{n}[k, j]")
        left = f"P{n}"
    return made("; ".join(f"A{n}[{a}, {b}]" for n, (a, b) in enumerate(pairwise(sizes))), *lines, output=left)


IMAGE = f"x[{C}, {H}, {H}] pad [0, 1, 1]"
POINTS = H * H

COLLAPSIBLE: dict[str, tuple[str, int]] = {
    # Sums after products
    "row sums of a linear layer": (
        made(
            f"x[{N}, {K}]; W*[{F}, {K}]",
            f"T[n:{N}, f:{F}] = sum[k:{K}] x[n, k] * W[f, k]",
            f"Y[n:{N}] = sum[f:{F}] T[n, f]",
        ),
        N * K,
    ),
    "mean of a linear layer with bias": (
        made(
            f"x[{N}, {K}]; W*[{K}, {F}]; b*[{F}]",
            linear("T", "x", "W", N, K, F),
            f"B[n:{N}, f:{F}] = T[n, f] + b[f]",
            f"Y[f:{F}] = sum[n:{N}] B[n, f] / {N}",
        ),
        N * K + K * F + F,
    ),
    "sum of embeddings, projected": (
        made(
            f"e[4, {N}, {K}]; W*[{K}, {F}]",
            f"P[b:4, t:{N}, f:{F}] = sum[k:{K}] e[b, t, k] * W[k, f]",
            f"Y[b:4, f:{F}] = sum[t:{N}] P[b, t, f]",
        ),
        4 * N * K + 4 * K * F,
    ),
    "2x2 pool after a 1x1 convolution": (
        made(
            f"x[{C}, {2 * H}, {2 * H}]; W*[{D}, {C}]",
            f"T[f:{D}, h:{2 * H}, w:{2 * H}] = sum[c:{C}] x[c, h, w] * W[f, c]",
            f"Y[f:{D}, h:{H}, w:{H}] = sum[r:2, s:2] 0.25 * T[f, 2*h+r, 2*w+s]",
        ),
        4 * C * POINTS + D * C * POINTS,
    ),
    "mean of a 3x3 convolution": (
        made(
            f"{IMAGE}; W*[{D}, {C}, 3, 3]",
            conv("T", "x", "W", C, D, H),
            f"Y[f:{D}] = sum[h:{H}, w:{H}] T[f, h, w]",
        ),
        9 * C * POINTS + 9 * C * D,
    ),
    "channels of a convolution, summed": (
        made(
            f"{IMAGE}; W*[{D}, {C}, 3, 3]",
            conv("T", "x", "W", C, D, H),
            f"Y[h:{H}, w:{H}] = sum[f:{D}] T[f, h, w]",
        ),
        9 * C * POINTS,
    ),
    "pooled classifier": (
        made(
            f"x[{C}, {H}, {H}]; W*[{D}, {C}]; V*[10, {D}]",
            f"T[f:{D}, h:{H}, w:{H}] = sum[c:{C}] x[c, h, w] * W[f, c]",
            f"M[f:{D}] = sum[h:{H}, w:{H}] T[f, h, w]",
            f"Y[o:10] = sum[f:{D}] M[f] * V[o, f]",
        ),
        C * POINTS + 10 * C,
    ),
    "trace of a product": (
        made(
            f"A[{N}, {K}]; B[{K}, {N}]",
            f"P[i:{N}, j:{N}] = sum[k:{K}] A[i, k] * B[k, j]",
            f"Y[z:1] = sum[i:{N}] P[i, i]",
        ),
        N * K,
    ),
    "trace of a product of low rank": (
        made(
            f"A[{N}, {R}]; B[{R}, {N}]; C[{N}, {R}]; D[{R}, {N}]",
            f"P[i:{N}, j:{N}] = sum[r:{R}] A[i, r] * B[r, j]",
            f"Q[i:{N}, j:{N}] = sum[r:{R}] C[i, r] * D[r, j]",
            f"Y[z:1] = sum[i:{N}, j:{N}] P[i, j] * Q[j, i]",
        ),
        2 * N * R * R + R * R,
    ),
    # Products in another order
    "attention without softmax": (
        made(
            f"Q[2, {N}, {R}]; K[2, {N}, {R}]; V[2, {N}, {R}]",
            f"S[b:2, i:{N}, j:{N}] = sum[k:{R}] Q[b, i, k] * K[b, j, k]",
            f"Y[b:2, i:{N}, d:{R}] = sum[j:{N}] S[b, i, j] * V[b, j, d]",
        ),
        2 * 2 * N * R * R,
    ),
    "normaliser of linear attention": (
        made(
            f"Q[{N}, {R}]; K[{N}, {R}]",
            f"S[i:{N}, j:{N}] = sum[k:{R}] Q[i, k] * K[j, k]",
            f"Y[i:{N}] = sum[j:{N}] S[i, j]",
        ),
        2 * N * R,
    ),
    "pooled attention without softmax": (
        made(
            f"Q[{N}, {R}]; K[{N}, {R}]; V[{N}, {R}]",
            f"S[i:{N}, j:{N}] = sum[k:{R}] Q[i, k] * K[j, k]",
            f"T[i:{N}, d:{R}] = sum[j:{N}] S[i, j] * V[j, d]",
            f"Y[d:{R}] = sum[i:{N}] T[i, d]",
        ),
        3 * N * R,
    ),
    "absorbed keys of latent attention": (
        made(
            f"x[1, {K}]; c[{N}, {R}]; Wq*[{K}, {K}]; Wk*[{R}, {K}]",
            f"A[n:1, k:{K}] = sum[i:{K}] x[n, i] * Wq[i, k]",
            f"B[m:{N}, k:{K}] = sum[i:{R}] c[m, i] * Wk[i, k]",
            f"Y[n:1, m:{N}] = sum[k:{K}] A[n, k] * B[m, k]",
        ),
        K * R + N * R,
    ),
    "absorbed values of latent attention": (
        made(
            f"p[{N}]; c[{N}, {R}]; Wv*[{R}, {K}]; Wo*[{K}, {F}]",
            f"V[m:{N}, k:{K}] = sum[i:{R}] c[m, i] * Wv[i, k]",
            f"O[k:{K}] = sum[m:{N}] p[m] * V[m, k]",
            f"Y[f:{F}] = sum[k:{K}] O[k] * Wo[k, f]",
        ),
        N * R + R * F,
    ),
    "values of heads that are joined before a projection": (
        made(
            f"p[4, {N}]; c[{N}, {R}]; Wv*[{R}, {K}]; Wo*[{K}, {F}]",
            f"V[m:{N}, k:{K}] = sum[i:{R}] c[m, i] * Wv[i, k]",
            f"O[h:4, d:{K // 4}] = sum[m:{N}] p[h, m] * V[m, {K // 4}*h+d]",
            f"Y[f:{F}] = sum[k:{K}] O[k//{K // 4}, k%{K // 4}] * Wo[k, f]",
        ),
        4 * N * R + 4 * R * F,
    ),
    "classifier of flattened channels": (
        made(
            f"x[{C}, {H}, {H}]; W*[64, {C}]; V*[{64 * POINTS}, 10]",
            f"T[f:64, h:{H}, w:{H}] = sum[c:{C}] x[c, h, w] * W[f, c]",
            f"Y[o:10] = sum[j:{64 * POINTS}] T[j//{POINTS}, j//{H}%{H}, j%{H}] * V[j, o]",
        ),
        10 * C * POINTS,
    ),
    "rows of a layer that a slice reads": (
        made(
            f"x[{N}, {K}]; W*[{K}, {F}]; b*[{F}]",
            linear("T", "x", "W", N, K, F),
            f"B[n:{N}, f:{F}] = T[n, f] + b[f]",
            f"Y[n:{N // 4}, f:{F}] = B[4*n, f]",
        ),
        N // 4 * K * F + N // 4 * F,
    ),
    "state of one query": (
        made(
            f"q[{K}]; k[{N}, {K}]; v[{N}, {F}]",
            f"S[i:{K}, j:{F}] = sum[t:{N}] k[t, i] * v[t, j]",
            f"Y[j:{F}] = sum[i:{K}] q[i] * S[i, j]",
        ),
        N * K + N * F,
    ),
    "graph convolution": (
        made(
            f"A[{N}, {N}]; X[{N}, {R}]; W*[{R}, {F}]",
            f"T[n:{N}, f:{F}] = sum[k:{R}] X[n, k] * W[k, f]",
            f"Y[n:{N}, f:{F}] = sum[m:{N}] A[n, m] * T[m, f]",
        ),
        N * N * R + N * R * F,
    ),
    "two graph convolutions without activation": (
        made(
            f"A[{N}, {N}]; X[{N}, {K}]; W*[{K}, {F}]; V*[{F}, {R}]",
            linear("T", "X", "W", N, K, F),
            f"U[n:{N}, f:{F}] = sum[m:{N}] A[n, m] * T[m, f]",
            linear("Z", "U", "V", N, F, R),
            f"Y[n:{N}, f:{R}] = sum[m:{N}] A[n, m] * Z[m, f]",
        ),
        N * K * R + 2 * N * N * R,
    ),
    "factors of low rank": (
        made(
            f"x[{N}, {K}]; U[{K}, {R}]; V[{R}, {F}]",
            f"W[k:{K}, f:{F}] = sum[r:{R}] U[k, r] * V[r, f]",
            linear("Y", "x", "W", N, K, F),
        ),
        N * K * R + N * R * F,
    ),
    "wide layer without activation": (
        made(
            f"x[{N}, {F}]; W*[{F}, 256]; V*[256, {F}]",
            linear("T", "x", "W", N, F, 256),
            linear("Y", "T", "V", N, 256, F),
        ),
        N * F * F,
    ),
    "wide 1x1 convolution before a 3x3 one": (
        made(
            f"x[{C}, {H + 2}, {H + 2}]; W*[64, {C}]; V*[{D}, 64, 3, 3]",
            f"T[f:64, h:{H + 2}, w:{H + 2}] = sum[c:{C}] x[c, h, w] * W[f, c]",
            conv("Y", "T", "V", 64, D, H, pad=False),
        ),
        9 * C * D * POINTS,
    ),
    "chain of matrices": (chain(40, 90, 6, 70, 5, 60), 90 * 6 * 5 + 6 * 70 * 5 + 40 * 90 * 5 + 40 * 5 * 60),
    "form of rank one": (
        made(
            f"A[{N}, {N}]; x[{N}]; y[{N}]",
            f"P[i:{N}, j:{N}] = x[i] * y[j]",
            f"Y[i:{N}] = sum[j:{N}, k:{N}] P[i, j] * A[j, k]",
        ),
        N * N + N + N,
    ),
    "Kronecker product": (
        made(
            f"A[{D}, {D}]; B[{C}, {C}]; x[{D}, {C}]",
            f"M[i:{D}, k:{C}, j:{D}, l:{C}] = A[i, j] * B[k, l]",
            f"Y[i:{D}, k:{C}] = sum[j:{D}, l:{C}] M[i, k, j, l] * x[j, l]",
        ),
        D * D * C + D * C * C,
    ),
    "tensor of low rank": (
        made(
            f"A[{K}, {R}]; B[{N}, {R}]; C[{F}, {R}]; x[{N}]; z[{F}]",
            f"T[i:{K}, j:{N}, k:{F}] = sum[r:{R}] A[i, r] * B[j, r] * C[k, r]",
            f"Y[i:{K}] = sum[j:{N}, k:{F}] T[i, j, k] * x[j] * z[k]",
        ),
        N * R + F * R + R + K * R,
    ),
    # Terms with a common factor
    "LoRA": (
        made(
            f"x[{N}, {K}]; W*[{K}, {F}]; A*[{K}, {R}]; B*[{R}, {F}]",
            linear("T", "x", "W", N, K, F),
            linear("U", "x", "A", N, K, R),
            linear("V", "U", "B", N, R, F),
            f"Y[n:{N}, f:{F}] = T[n, f] + 0.5 * V[n, f]",
        ),
        N * K * F,
    ),
    "LoRA of a convolution": (
        made(
            f"x[{C}, {H}, {H}] pad [0, 1, 1]; W*[{D}, {C}, 3, 3]; A*[4, {C}, 3, 3]; B*[{D}, 4, 1, 1]",
            conv("T", "x", "W", C, D, H),
            conv("U", "x", "A", C, 4, H),
            conv("V", "U", "B", 4, D, H, 1),
            f"Y[f:{D}, h:{H}, w:{H}] = T[f, h, w] + 0.5 * V[f, h, w]",
        ),
        9 * C * D * POINTS,
    ),
    "two adapters": (
        made(
            f"x[{N}, {K}]; W*[{K}, {F}]; A*[{K}, {R}]; B*[{R}, {F}]; P*[{K}, {R}]; Q*[{R}, {F}]",
            linear("T", "x", "W", N, K, F),
            linear("U", "x", "A", N, K, R),
            linear("V", "U", "B", N, R, F),
            linear("M", "x", "P", N, K, R),
            linear("O", "M", "Q", N, R, F),
            f"Y[n:{N}, f:{F}] = T[n, f] + V[n, f] - O[n, f]",
        ),
        N * K * F,
    ),
    "RepVGG": (
        made(
            f"x[{C}, {H}, {H}] pad [0, 1, 1]; V*[{C}, {C}, 3, 3]; W*[{C}, {C}]",
            conv("T", "x", "V", C, C, H),
            f"U[f:{C}, h:{H}, w:{H}] = sum[c:{C}] x[c, h, w] * W[f, c]",
            f"Y[f:{C}, h:{H}, w:{H}] = T[f, h, w] + U[f, h, w] + x[f, h, w]",
        ),
        9 * C * C * POINTS,
    ),
    "RepVGG with batch normalisations": (
        made(
            f"x[{C}, {H}, {H}] pad [0, 1, 1]; V*[{C}, {C}, 3, 3]; W*[{C}, {C}]; g*[{C}]; b*[{C}]; d*[{C}]; e*[{C}]",
            conv("T", "x", "V", C, C, H),
            f"U[f:{C}, h:{H}, w:{H}] = sum[c:{C}] x[c, h, w] * W[f, c]",
            f"A[f:{C}, h:{H}, w:{H}] = (T[f, h, w] - b[f]) * g[f]",
            f"B[f:{C}, h:{H}, w:{H}] = U[f, h, w] * d[f] + e[f]",
            f"Y[f:{C}, h:{H}, w:{H}] = A[f, h, w] + B[f, h, w]",
        ),
        9 * C * C * POINTS + C * POINTS,
    ),
    "3x3 and 5x5 convolutions, added": (
        made(
            f"x[{C}, {H}, {H}] pad [0, 2, 2]; V*[{D}, {C}, 3, 3]; W*[{D}, {C}, 5, 5]",
            conv("T", "x", "V", C, D, H),
            conv("U", "x", "W", C, D, H, 5),
            f"Y[f:{D}, h:{H}, w:{H}] = T[f, h, w] + U[f, h, w]",
        ),
        25 * C * D * POINTS,
    ),
    "merged projections": (
        made(
            f"x[{N}, {K}]; W[{K}, {F}]; V[{K}, {F}]",
            linear("T", "x", "W", N, K, F),
            linear("U", "x", "V", N, K, F),
            f"Y[n:{N}, f:{F}] = T[n, f] + U[n, f]",
        ),
        N * K * F + K * F,
    ),
    "one layer of two inputs, subtracted": (
        made(
            f"x[{N}, {K}]; y[{N}, {K}]; W*[{K}, {F}]",
            linear("T", "x", "W", N, K, F),
            linear("U", "y", "W", N, K, F),
            f"Y[n:{N}, f:{F}] = T[n, f] - U[n, f]",
        ),
        N * K * F + N * K,
    ),
    "residual linear layers": (
        made(
            f"x[{N}, {K}]; W*[{K}, {K}]; V*[{K}, {F}]",
            linear("T", "x", "W", N, K, K),
            f"S[n:{N}, k:{K}] = x[n, k] + T[n, k]",
            linear("Y", "S", "V", N, K, F),
        ),
        N * K * F,
    ),
    "graph convolution with self loops": (
        made(
            f"A[{N}, {N}]; X[{N}, {R}]; W*[{R}, {F}]",
            f"T[n:{N}, f:{F}] = sum[k:{R}] X[n, k] * W[k, f]",
            f"U[n:{N}, f:{F}] = sum[m:{N}] A[n, m] * T[m, f]",
            f"Y[n:{N}, f:{F}] = U[n, f] + T[n, f]",
        ),
        N * N * R + N * R + N * R * F,
    ),
    "quadratic forms of two matrices": (
        made(
            f"x[{N}, {K}]; A*[{K}, {K}]; B*[{K}, {K}]",
            f"S[n:{N}, j:{K}] = sum[i:{K}] x[n, i] * A[i, j]",
            f"T[n:{N}, j:{K}] = sum[i:{K}] x[n, i] * B[i, j]",
            f"Y[n:{N}] = sum[j:{K}] S[n, j] * x[n, j] + T[n, j] * x[n, j]",
        ),
        N * K * K + N * K,
    ),
    "mixture of layers": (
        made(
            f"g[4]; x[{N}, {K}]; W*[4, {K}, {F}]",
            f"T[e:4, n:{N}, f:{F}] = sum[k:{K}] x[n, k] * W[e, k, f]",
            f"Y[n:{N}, f:{F}] = sum[e:4] g[e] * T[e, n, f]",
        ),
        4 * K * F + N * K * F,
    ),
    # Values that do not depend on an index, or only on a quotient of it
    "1x1 convolution of an upsampling": (
        made(
            f"x[{C}, {H}, {H}]; W*[{D}, {C}]",
            f"U[c:{C}, h:{2 * H}, w:{2 * H}] = x[c, h//2, w//2]",
            f"Y[f:{D}, h:{2 * H}, w:{2 * H}] = sum[c:{C}] U[c, h, w] * W[f, c]",
        ),
        C * D * POINTS,
    ),
    "1x1 convolution of an upsampling and a skip connection": (
        made(
            f"x[{C}, {H}, {H}]; y[{R}, {2 * H}, {2 * H}]; W*[{D}, {C + R}]",
            f"U[c:{C}, h:{2 * H}, w:{2 * H}] = x[c, h//2, w//2]",
            f"V[c:{C + R}, h:{2 * H}, w:{2 * H}] = {{[c:{C}, h:{2 * H}, w:{2 * H}] U[c, h, w]}} pad [(0, {R}), 0, 0]"
            f"[c, h, w] + {{[c:{R}, h:{2 * H}, w:{2 * H}] y[c, h, w]}} pad [({C}, 0), 0, 0][c-{C}, h, w]",
            f"Y[f:{D}, h:{2 * H}, w:{2 * H}] = sum[c:{C + R}] V[c, h, w] * W[f, c]",
        ),
        C * D * POINTS + 4 * R * D * POINTS + 4 * D * POINTS,
    ),
    "3x3 convolution of an upsampling": (
        made(
            f"x[{C}, {H}, {H}]; W*[{D}, {C}, 3, 3]",
            f"U[c:{C}, h:{2 * H}, w:{2 * H}] = x[c, h//2, w//2]",
            f"Y[f:{D}, h:{2 * H}, w:{2 * H}] = sum[c:{C}, r:3, s:3] {{[c:{C}, h:{2 * H}, w:{2 * H}] U[c, h, w]}}"
            f" pad [0, 1, 1][c, h+r-1, w+s-1] * W[f, c, r, s]",
        ),
        16 * C * D * POINTS,
    ),
    "global feature beside local ones": (
        made(
            f"x[{N}, {K}]; g[{K}]; W*[{2 * K}, {F}]",
            f"C[n:{N}, k:{2 * K}] = {{[n:{N}, k:{K}] x[n, k]}} pad [0, (0, {K})][n, k]"
            f" + {{[n:{N}, k:{K}] g[k]}} pad [0, ({K}, 0)][n, k-{K}]",
            linear("Y", "C", "W", N, 2 * K, F),
        ),
        N * K * F + K * F + N * F,
    ),
    "layer of pairs": (
        made(
            f"x[{N}, {K}]; y[{N}, {K}]; W*[{K}, {R}]",
            f"P[i:{N}, j:{N}, k:{K}] = x[i, k] + y[j, k]",
            f"Y[i:{N}, j:{N}, f:{R}] = sum[k:{K}] P[i, j, k] * W[k, f]",
        ),
        2 * N * K * R + N * N * R,
    ),
    "logits of graph attention": (
        made(
            f"h[{N}, {K}]; W*[{K}, {F}]; a*[{F}]; b*[{F}]",
            linear("T", "h", "W", N, K, F),
            f"P[i:{N}, j:{N}] = sum[f:{F}] T[i, f] * a[f] + T[j, f] * b[f]",
            f"Y[i:{N}, j:{N}] = 0.5 * P[i, j]",
        ),
        2 * N * K + N * N,
    ),
    # Padding between two sums
    "1x1 convolution with bias before a padded 3x3 one": (
        made(
            f"x[{C}, {H}, {H}]; W*[64, {C}]; b*[64]; V*[{D}, 64, 3, 3]",
            f"T[k:64, h:{H}, w:{H}] = sum[c:{C}] x[c, h, w] * W[k, c]",
            f"B[k:64, h:{H}, w:{H}] = T[k, h, w] + b[k]",
            f"Y[f:{D}, h:{H}, w:{H}] = sum[k:64, r:3, s:3] {{[k:64, h:{H}, w:{H}] B[k, h, w]}} pad [0, 1, 1]"
            f"[k, h+r-1, w+s-1] * V[f, k, r, s]",
        ),
        9 * C * D * POINTS + D * POINTS,
    ),
    "padded pool after a 1x1 convolution": (
        made(
            f"x[{C}, {2 * H}, {2 * H}]; W*[{D}, {C}]",
            f"T[f:{D}, h:{2 * H}, w:{2 * H}] = sum[c:{C}] x[c, h, w] * W[f, c]",
            f"Y[f:{D}, h:{H}, w:{H}] = sum[r:3, s:3] 0.1 * {{[f:{D}, h:{2 * H}, w:{2 * H}] T[f, h, w]}} pad [0, 1, 1]"
            f"[f, 2*h+r-1, 2*w+s-1]",
        ),
        9 * C * POINTS + D * C * POINTS,
    ),
    "two 3x3 convolutions without padding": (
        made(
            f"x[{C}, {H + 4}, {H + 4}]; W*[64, {C}, 3, 3]; V*[{R}, 64, 3, 3]",
            conv("T", "x", "W", C, 64, H + 2, pad=False),
            conv("Y", "T", "V", 64, R, H, pad=False),
        ),
        25 * C * R * POINTS,
    ),
    "causal convolution of a wide layer": (
        made(
            f"x[{N}, {R}]; W*[{R}, {K}]; V*[3, {K}, {F}]",
            linear("T", "x", "W", N, R, K),
            f"Y[n:{N}, d:{F}] = sum[f:{K}, r:3] {{[n:{N}, f:{K}] T[n, f]}} pad [(2, 0), 0][n+r-2, f] * V[r, f, d]",
        ),
        3 * N * R * F,
    ),
    "band of attention without softmax": (
        made(
            f"Q[{N}, {R}]; K[{N}, {R}]; V[{N}, {R}]",
            f"S[i:{N}, j:{N}] = sum[k:{R}] Q[i, k] * K[j, k]",
            f"M[i:{N}, j:{N}] = where(j - i <= 4, where(j - i > -4, S[i, j], 0), 0)",
            f"Y[i:{N}, d:{R}] = sum[j:{N}] M[i, j] * V[j, d]",
        ),
        2 * 8 * N * R,
    ),
    # Squares
    "factorisation machine": (
        made(
            f"v[{N}, {R}]",
            f"G[i:{N}, j:{N}] = sum[d:{R}] v[i, d] * v[j, d]",
            f"Y[z:1] = sum[i:{N}, j:{N}] G[i, j]",
        ),
        N * R + R,
    ),
    "factorisation machine of features": (
        made(
            f"x[{N}]; v*[{N}, {R}]",
            f"G[i:{N}, j:{N}] = sum[d:{R}] v[i, d] * v[j, d]",
            f"S[z:1] = sum[i:{N}, j:{N}] G[i, j] * x[i] * x[j]",
            f"D[z:1] = sum[i:{N}] G[i, i] * x[i] * x[i]",
            "Y[z:1] = 0.5 * (S[z] - D[z])",
        ),
        N * R + R + 2 * N,
    ),
    "weighted sum of a Gram matrix": (
        made(
            f"X[{N}, {K}]; a[{N}]",
            f"G[i:{N}, j:{N}] = sum[k:{K}] X[i, k] * X[j, k]",
            f"Y[z:1] = sum[i:{N}, j:{N}] a[i] * a[j] * G[i, j]",
        ),
        N * K + K,
    ),
    "distances to all points": (
        made(
            f"x[{N}, {K}]; y[{F}, {K}]",
            f"D[i:{N}, j:{F}, k:{K}] = x[i, k] - y[j, k]",
            f"S[i:{N}, j:{F}] = sum[k:{K}] D[i, j, k] * D[i, j, k]",
            f"Y[i:{N}] = sum[j:{F}] S[i, j]",
        ),
        2 * F * K + 2 * N * K + N,
    ),
    "sum of all distances": (
        made(
            f"x[{N}, {K}]",
            f"D[i:{N}, j:{N}, k:{K}] = x[i, k] - x[j, k]",
            f"S[i:{N}, j:{N}] = sum[k:{K}] D[i, j, k] * D[i, j, k]",
            f"Y[z:1] = sum[i:{N}, j:{N}] S[i, j]",
        ),
        2 * N * K + 2 * K,
    ),
    # Signals and normalisations
    "short-time Fourier transform and filter bank": (
        made(
            f"x[{K * 8 + 64}]; w*[64]; C*[64, 33]; M*[33, {R}]",
            f"S[t:{K}, n:64] = x[8*t+n] * w[n]",
            f"T[n:{K}, f:33] = sum[k:64] S[n, k] * C[k, f]",
            linear("Y", "T", "M", K, 33, R),
        ),
        K * 64 * R,
    ),
    "layers around a batch normalisation": (
        made(
            f"x[{N}, {F}]; W*[{F}, 128]; s*[128]; t*[128]; V*[128, {F}]",
            linear("T", "x", "W", N, F, 128),
            f"B[n:{N}, k:128] = T[n, k] * s[k] + t[k]",
            linear("Y", "B", "V", N, 128, F),
        ),
        N * F * F + N * F,
    ),
}

SHARED = """tensor x[5, 5] pad [1, 1]
tensor y[5, 5]
tensor A[5, 5]
tensor B[5, 5]
tensor K[5, 5, 3]
tensor g[5]
tensor h[5]
"""

NEAR_MISSES: dict[str, tuple[str, str]] = {
    "sum over the wrong axis": (
        "T[n:5, f:5] = sum[k:5] y[n, k] * A[f, k]\nY[n:5] = sum[f:5] T[n, f]",
        "S[f:5] = sum[k:5] A[f, k]\nY[n:5] = sum[k:5] y[n, k] * S[k]",
    ),
    "mean without its scale": (
        "T[n:5, f:5] = sum[k:5] y[n, k] * A[k, f]\nY[f:5] = sum[n:5] 0.2 * T[n, f]",
        "S[k:5] = sum[n:5] y[n, k]\nY[f:5] = sum[k:5] S[k] * A[k, f]",
    ),
    "bias that is summed once instead of at every row": (
        "T[n:5, f:5] = sum[k:5] y[n, k] * A[k, f]\nY[f:5] = sum[n:5] T[n, f] + g[f]",
        "S[k:5] = sum[n:5] y[n, k]\nY[f:5] = sum[k:5] S[k] * A[k, f] + 0.2 * g[f]",
    ),
    "bias that is added after the padding": (
        "Y[h:5] = sum[k:5, r:3] {[h:5, k:5] y[h, k] + g[k]} pad [1, 0][h+r-1, k] * K[h, k, r]",
        "Y[h:5] = {[h:5] sum[k:5, r:3] {[h:5, k:5] y[h, k]} pad [1, 0][h+r-1, k] * K[h, k, r]}[h]"
        " + {[h:5] sum[k:5, r:3] g[k] * K[h, k, r]}[h]",
    ),
    "padding between two windows": (
        "Y[h:5] = sum[r:3] {[h:5] sum[s:3] x[0, h+s-1] * g[s]} pad [1][h+r-1] * h[r]",
        "Y[h:5] = sum[r:3, s:3] {[h:5] x[0, h]} pad [2][h+r+s-2] * g[s] * h[r]",
    ),
    "band that is one place wider": (
        "Y[i:5] = sum[j:5] where(j - i <= 1, where(j - i >= -1, y[i, j], 0), 0) * g[j]",
        "Y[i:5] = sum[r:3] {[i:5, j:5] y[i, j]} pad [0, (1, 2)][i, i+r] * {[j:5] g[j]} pad [(1, 2)][i+r]",
    ),
    "matrices in another order": (
        "T[i:5, j:5] = sum[k:5] y[i, k] * A[k, j]\nY[i:5, j:5] = sum[k:5] T[i, k] * B[k, j]",
        "T[i:5, j:5] = sum[k:5] B[i, k] * A[k, j]\nY[i:5, j:5] = sum[k:5] y[i, k] * T[k, j]",
    ),
    "keys that are not transposed": (
        "S[i:5, j:5] = sum[k:5] y[i, k] * A[j, k]\nY[i:5, d:5] = sum[j:5] S[i, j] * B[j, d]",
        "T[k:5, d:5] = sum[j:5] A[k, j] * B[j, d]\nY[i:5, d:5] = sum[k:5] y[i, k] * T[k, d]",
    ),
    "activation between two layers": (
        "T[i:5, j:5] = relu({[i:5, j:5] sum[k:5] y[i, k] * A[k, j]}[i, j])\nY[i:5, j:5] = sum[k:5] T[i, k] * B[k, j]",
        "T[i:5, j:5] = sum[k:5] A[i, k] * B[k, j]\nY[i:5, j:5] = relu({[i:5, j:5] sum[k:5] y[i, k] * T[k, j]}[i, j])",
    ),
    "maximum instead of a sum": (
        "T[n:5, f:5] = sum[k:5] y[n, k] * A[f, k]\nY[n:5] = max[f:5] T[n, f]",
        "S[k:5] = max[f:5] A[f, k]\nY[n:5] = sum[k:5] y[n, k] * S[k]",
    ),
    "window one place too far": (
        "T[i:5, f:5] = sum[c:5, r:3] x[i+r-1, c] * K[f, c, r]\nY[f:5] = sum[i:5] T[i, f]",
        "S[c:5, r:3] = sum[i:5] x[i+r-1, c]\nY[f:5] = sum[c:5, r:3] S[c, 2-r] * K[f, c, r]",
    ),
    "window without its padding": (
        "T[i:5, f:5] = sum[c:5, r:3] x[i+r-1, c] * K[f, c, r]\nY[f:5] = sum[i:5] T[i, f]",
        "S[c:5] = sum[i:5] x[i, c]\nY[f:5] = sum[c:5, r:3] S[c] * K[f, c, r]",
    ),
    "1x1 kernel added beside the centre": (
        "T[i:5, f:5] = sum[c:5, r:3] x[i+r-1, c] * K[f, c, r]\nY[i:5, f:5] = T[i, f] + {[i:5, f:5] sum[c:5] x[i, c]"
        " * A[f, c]}[i, f]",
        "W[f:5, c:5, r:3] = K[f, c, r] + where(r == 0, A[f, c], 0)\n"
        "Y[i:5, f:5] = sum[c:5, r:3] x[i+r-1, c] * W[f, c, r]",
    ),
    "residual added to the wrong channel": (
        "Y[i:5, f:5] = {[i:5, f:5] sum[c:5] x[i, c] * A[f, c]}[i, f] + x[i, f]",
        "W[f:5, c:5] = A[f, c] + where(c == 4-f, 1, 0)\nY[i:5, f:5] = sum[c:5] x[i, c] * W[f, c]",
    ),
    "LoRA without its scale": (
        "T[i:5, f:5] = sum[k:5] y[i, k] * A[k, f]\nU[i:5, f:5] = sum[k:5] T[i, k] * B[k, f]\n"
        "Y[i:5, f:5] = T[i, f] + 0.5 * U[i, f]",
        "W[k:5, f:5] = A[k, f] + {[k:5, f:5] sum[r:5] A[k, r] * B[r, f]}[k, f]\n"
        "Y[i:5, f:5] = sum[k:5] y[i, k] * W[k, f]",
    ),
    "difference with exchanged signs": (
        "Y[i:5, f:5] = {[i:5, f:5] sum[k:5] y[i, k] * A[k, f]}[i, f] - {[i:5, f:5] sum[k:5] y[i, k] * B[k, f]}[i, f]",
        "W[k:5, f:5] = B[k, f] - A[k, f]\nY[i:5, f:5] = sum[k:5] y[i, k] * W[k, f]",
    ),
    "concatenation in another order": (
        "C[i:5, k:10] = {[i:5, k:5] y[i, k]} pad [0, (0, 5)][i, k] + {[i:5, k:5] A[i, k]} pad [0, (5, 0)][i, k-5]\n"
        "Y[i:5] = sum[k:10] C[i, k] * {[k:10] g[k//2]}[k]",
        "S[i:5] = sum[k:5] A[i, k] * g[k//2]\nY[i:5] = S[i] + {[i:5] sum[k:5] y[i, k] * g[(k+5)//2]}[i]",
    ),
    "concatenation cut one place too early": (
        "C[i:5, k:10] = {[i:5, k:5] y[i, k]} pad [0, (0, 5)][i, k] + {[i:5, k:5] A[i, k]} pad [0, (5, 0)][i, k-5]\n"
        "Y[i:5] = sum[k:10] C[i, k] * {[k:10] g[k//2]}[k]",
        "S[i:5] = sum[k:4] y[i, k] * g[k//2]\nY[i:5] = S[i] + {[i:5] sum[k:5] A[i, k] * g[(k+5)//2]}[i]",
    ),
    "upsampling by rounding up": (
        "Y[h:8, f:5] = sum[c:5] y[h//2, c] * A[f, c]",
        "T[h:5, f:5] = sum[c:5] y[h, c] * A[f, c]\nY[h:8, f:5] = T[(h+1)//2, f]",
    ),
    "phase of an upsampling before a window": (
        "Y[h:8] = sum[c:5, r:3] {[h:8, c:5] y[h//2, c]} pad [1, 0][h+r-1, c] * K[c, c, r]",
        "G[p:2, u:2, c:5] = sum[r:3] where((p+r)//2 == u, K[c, c, r], 0)\n"
        "Y[h:8] = sum[c:5, u:2] {[h:5, c:5] y[h, c]} pad [1, 0][h//2+h%2+u-1, c] * G[h%2, u, c]",
    ),
    "window of two windows without its ends": (
        "T[h:3] = sum[c:5, r:3] y[h+r, c] * K[c, c, r]\nY[h:1] = sum[s:3] T[h+s] * g[s]",
        "G[c:5, u:4] = sum[r:3, s:3] where(r+s == u, K[c, c, r] * g[s], 0)\nY[h:1] = sum[c:5, u:4] y[h+u, c] * G[c, u]",
    ),
    "rows that a slice does not read": (
        "T[i:5, f:5] = sum[k:5] y[i, k] * A[k, f]\nY[i:2, f:5] = T[2*i, f]",
        "Y[i:2, f:5] = sum[k:5] y[2*i+1, k] * A[k, f]",
    ),
    "heads in another order": (
        "O[h:2, d:2] = sum[k:5] y[h, k] * A[k, 2*h+d]\nY[f:5] = sum[k:4] O[k//2, k%2] * B[k, f]",
        "O[h:2, d:2] = sum[k:5] y[h, k] * A[k, 2*h+d]\nY[f:5] = sum[h:2, d:2] O[h, d] * B[h+2*d, f]",
    ),
    "trace of another product": (
        "P[i:5, j:5] = sum[k:5] A[i, k] * B[k, j]\nY[z:1] = sum[i:5] P[i, i]",
        "Y[z:1] = sum[i:5, k:5] A[i, k] * B[i, k]",
    ),
    "square of a sum, and sum of squares": (
        "G[i:5, j:5] = sum[d:5] y[i, d] * y[j, d]\nY[z:1] = sum[i:5, j:5] G[i, j]",
        "Y[z:1] = sum[i:5, d:5] y[i, d] * y[i, d]",
    ),
    "distances without the mixed term's factor": (
        "S[i:5, j:5] = sum[d:5] (y[i, d] - A[j, d]) * (y[i, d] - A[j, d])\nY[i:5] = sum[j:5] S[i, j]",
        "T[d:5] = sum[j:5] A[j, d]\nY[i:5] = {[i:5] sum[d:5] 5 * y[i, d] * y[i, d] - y[i, d] * T[d]}[i]"
        " + {[z:1] sum[j:5, d:5] A[j, d] * A[j, d]}[0]",
    ),
    "normaliser of another row": (
        "S[i:5, j:5] = sum[k:5] y[i, k] * A[j, k]\nN[i:5] = sum[j:5] S[i, j]\n"
        "Y[i:5, d:5] = sum[j:5] S[i, j] * B[j, d] / (1 + N[i] * N[i])",
        "T[k:5, d:5] = sum[j:5] A[j, k] * B[j, d]\nN[i:5] = sum[j:5] {[i:5, j:5] sum[k:5] y[i, k] * A[j, k]}[i, j]\n"
        "Y[i:5, d:5] = sum[k:5] y[i, k] * T[k, d] / (1 + N[d] * N[d])",
    ),
    "scale of a batch normalisation also on its shift": (
        "Y[i:5, f:5] = {[i:5, f:5] sum[k:5] y[i, k] * A[k, f]}[i, f] * g[f] + h[f]",
        "W[k:5, f:5] = A[k, f] * g[f]\nY[i:5, f:5] = {[i:5, f:5] sum[k:5] y[i, k] * W[k, f]}[i, f] + h[f] * g[f]",
    ),
    "gates of another expert": (
        "Y[i:5, f:5] = sum[e:3] g[e] * {[e:3, i:5, f:5] sum[c:5] y[i, c] * K[f, c, e]}[e, i, f]",
        "W[f:5, c:5] = sum[e:3] g[e+1] * K[f, c, e]\nY[i:5, f:5] = sum[c:5] y[i, c] * W[f, c]",
    ),
}
