# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Across operators
#
# A library runs one operator after the other. Linear algebra does not care where an operator ends: $(Q K^T) V$ is
# $Q (K^T V)$, and the second takes a fraction of the multiplications. Runtimes leave the order as it is, since each of
# their operators is a black box. Here each is a sum of products, and sums of products can be reordered.
#
# 1. **Normal form**: intermediates that are sums of products are put into their readers, which gives one sum over all
#    factors.
# 2. **Factoring**: the summations are carried out in the order with the fewest multiplications. Products of weights
#    are free, since they are computed beforehand.
# 3. Every step is a rule with a certificate.

# %%
import einnet_explore as ee


def factor(text):
    """The program of *text* in the factoring with the fewest multiplications, as a derivation."""
    start = ee.parse(text)
    *_, best = (None, *ee.factorings(start))
    before = ee.products_at_run_time(start)
    if best is None:
        print(f"{before:,} multiplications; no other order has fewer")
        return start
    after = ee.products_at_run_time(best.end)
    print(f"{before:,} multiplications before, {after:,} after: 1/{before / after:.0f}")
    return best


# %% [markdown]
# ## $(Q K^T) V$
#
# Attention without its softmax, for 1,024 positions and 64 channels.

# %%
linear_attention = factor("""
tensor Q[1024, 64]
tensor K[1024, 64]
tensor V[1024, 64]
S[i:1024, j:1024] = sum[d:64] Q[i, d] * K[j, d]
Y[i:1024, v:64] = sum[j:1024] S[i, j] * V[j, v]
output Y
""")
ee.show(linear_attention)

# %% [markdown]
# The same steps by hand. `expression_fusion` puts $S$ into $Y$; `contraction_order` carries the sums out in another
# order; `expression_extraction` makes an expression of the inner sum, so that it can be matched with an operator.

# %%
session = ee.explore(linear_attention.start)
for step in linear_attention.steps:
    session.apply(step.match)
session.formula()

# %%
session.check()

# %% [markdown]
# `ee.path` answers the opposite question: given two programs, by which rules does one become the other? It searches from
# both ends, so some steps are taken backwards.

# %%
by_hand = ee.parse("""
tensor Q[1024, 64]
tensor K[1024, 64]
tensor V[1024, 64]
C[d:64, v:64] = sum[j:1024] K[j, d] * V[j, v]
Y[i:1024, v:64] = sum[d:64] Q[i, d] * C[d, v]
output Y
""")
ee.path(linear_attention.start, by_hand)

# %% [markdown]
# `ee.search` does all of it, and matches the new expressions with operators.

# %%
run = ee.search(linear_attention.start, budget=20)
best = min(run.candidates, key=lambda c: c.seconds)
ee.show(best.program)

# %% [markdown]
# ## The order depends on the sizes
#
# With 16 positions the product $Q K^T$ is small, and its order is kept.

# %%
short = factor("""
tensor Q[16, 64]
tensor K[16, 64]
tensor V[16, 64]
S[i:16, j:16] = sum[d:64] Q[i, d] * K[j, d]
Y[i:16, v:64] = sum[j:16] S[i, j] * V[j, v]
output Y
""")

# %% [markdown]
# ## Sums, pools and upsampling
#
# The sum over all outputs of a layer needs the sum of the weights' rows only.

# %%
row_sums = factor("""
tensor x[128, 1024]
tensor W[1024, 1024] weight
T[n:128, o:1024] = sum[k:1024] x[n, k] * W[o, k] / 2
Y[n:128] = sum[o:1024] T[n, o] * 1.5
output Y
""")
ee.show(row_sums.end)

# %% [markdown]
# A 1×1 convolution after an upsampling computes each value four times. What is read through $\lfloor h/2 \rfloor$ is
# computed once for each value of $\lfloor h/2 \rfloor$ (`traversal_factoring`).

# %%
upsampled = factor("""
tensor x[64, 28, 28]
tensor W[32, 64] weight
U[c:64, h:56, w:56] = x[c, h//2, w//2]
Y[f:32, h:56, w:56] = sum[c:64] U[c, h, w] * W[f, c]
output Y
""")
ee.show(upsampled.end)

# %% [markdown]
# ## A square out of a double sum
#
# Factorisation machines add up the products of all pairs of vectors. Both inner sums are the same expression, which is
# computed once and squared.

# %%
pairs = factor("""
tensor v[512, 32]
G[i:512, j:512] = sum[d:32] v[i, d] * v[j, d]
Y[] = sum[i:512, j:512] G[i, j]
output Y
""")
ee.show(pairs.end)

# %% [markdown]
# ## Causal: chunks
#
# With a causal mask, position $t$ reads the positions $s \le t$ only, so the sums cannot change places. A sum up to a
# position is a sum of whole blocks before it, and of the part of its own block (`prefix_splitting`):
#
# $$\sum_s [s \le t]\, f(s) = \sum_{S\,r} [S < \lfloor t/g \rfloor]\, f(g S + r)
#   + \sum_r [r \le t \bmod g]\, f(g \lfloor t/g \rfloor + r).$$
#
# In the first sum, the condition does not depend on the place in a block, and the sums can change places. This is the
# chunked form of linear attention and of state-space models. The search tries block sizes and keeps the one with the
# fewest multiplications.

# %%
chunked = factor("""
tensor C[4096, 64]
tensor B[4096, 64]
tensor X[4096, 64]
S[t:4096, s:4096] = sum[d:64] C[t, d] * B[s, d]
M[t:4096, s:4096] = where(s <= t, S[t, s], 0)
Y[t:4096, v:64] = sum[s:4096] M[t, s] * X[s, v]
output Y
""")
ee.show(chunked.end)

# %%
session = ee.explore(chunked.start)
session.adopt(chunked)
session.history(certificates=True)

# %% [markdown]
# Gates let what was read fade: position $s$ counts $e^{L_t - L_s}$ at position $t$, where $L$ falls. Apart, $e^{L_t}$ and
# $e^{-L_s}$ overflow. `recentring` splits the exponential at the ends of blocks, so no exponent is positive:
#
# $$e^{L_t - L_s} = e^{L_t - L_{g T}}\; e^{L_{g T} - L_{g S + g - 1}}\; e^{L_{g S + g - 1} - L_s},
#   \qquad T = \lfloor t/g \rfloor, \quad S = \lfloor s/g \rfloor < T.$$

# %%
gated = factor("""
tensor L[4096]
tensor C[4096, 64]
tensor B[4096, 64]
tensor X[4096, 64]
S[t:4096, s:4096] = sum[d:64] C[t, d] * B[s, d]
M[t:4096, s:4096] = where(s <= t, exp(L[t] - L[s]) * S[t, s], 0)
Y[t:4096, v:64] = sum[s:4096] M[t, s] * X[s, v]
output Y
""")
ee.show(gated.end)

# %% [markdown]
# ## What is not equal
#
# A function that is not linear ends the region: with a ReLU in between, nothing is reordered.

# %%
walled = factor("""
tensor Q[256, 16]
tensor K[256, 16]
tensor V[256, 16]
S[i:256, j:256] = sum[d:16] Q[i, d] * K[j, d]
R[i:256, j:256] = relu(S[i, j])
Y[i:256, v:16] = sum[j:256] R[i, j] * V[j, v]
output Y
""")

# %% [markdown]
# Reordering changes the rounding, so `ee.optimize` measures the error of what it keeps, and measures whether it is
# faster. Decisions [0049](../docs/decisions/0049-factoring-across-expressions.md),
# [0052](../docs/decisions/0052-sums-up-to-a-position-in-blocks.md) and
# [0054](../docs/decisions/0054-decay-relative-to-the-ends-of-blocks.md) have the details.

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
positions = ee.Exercise(
    "`positions`: with 64 channels, from how many positions on has $Q (K^T V)$ fewer multiplications than $(Q K^T) V$?",
    65,
    hint="Compare n·n·64 with n·64·64.",
    why="the one form takes 2n²·64 multiplications, the other 2n·64²: the second is smaller for n > 64",
)
positions

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
positions.grade(next(n for n in range(1, 200) if 2 * n * 64 * 64 < 2 * n * n * 64))

# %% jupyter={"source_hidden": true} tags=["hide-input"]
all_pairs = ee.parse("""
tensor v[6, 3]
G[i:6, j:6] = sum[d:3] v[i, d] * v[j, d]
Y[] = sum[i:6, j:6] G[i, j]
output Y
""")


def without_pairs(program):
    return "it still forms all pairs of i and j" if "i:6, j:6" in ee.text(program) else ""


squared = ee.Exercise(
    "`squared`: write the program `all_pairs` without a value for each pair. Answer with a text.",
    all_pairs,
    hint="Both sums can be taken before the product.",
    why="one sum over the rows, which is squared",
    objection=without_pairs,
)
squared

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
answer = """
tensor v[6, 3]
S[d:3] = sum[i:6] v[i, d]
Y[] = sum[d:3] S[d] * S[d]
output Y
"""
squared.grade(answer)
