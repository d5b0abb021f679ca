# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Several expressions as one
#
# The rules of the tour rewrite *one* expression. Three more work *between* expressions (EinNet §4.2):
#
# - **sibling merging**: products with one shared operand become one product with the other operands side by side;
# - **batch merging**: the same expression of other tensors becomes one expression with a batch in front;
# - **expression splitting**: the way back.
#
# Here they are by hand, and then a search finds Fig. 3 and Fig. 15 of the paper with them.

# %%
import einnet_explore as ee
from einnet_explore.pipeline.post.fusing import fuse_eoperators
from einnet_explore.strategies.closure import Limits, candidates

# %% [markdown]
# ## By hand: queries, keys and values
#
# An attention layer multiplies one input by three matrices of weights. `V`'s matrix is stored transposed here, to make it harder.

# %%
attention = ee.parse("""
tensor X[64, 32]
tensor A[32, 24] weight
tensor B[32, 24] weight
tensor C[16, 32] weight
Q[m:64, n:24] = sum[k:32] X[m, k] * A[k, n]
K[m:64, n:24] = sum[k:32] X[m, k] * B[k, n]
V[m:64, n:16] = sum[j:32] X[m, j] * C[n, j]
output Q, K, V
""")
session = ee.explore(attention)
session.rules(at="Q")

# %% [markdown]
# Sibling merging matches iterators, not names: it has seen that `j` is `k`, and that `V` reads its weights the other way round.

# %%
session.apply("sibling_merging", at="Q", others=["K", "V"], tensor="X")
session

# %% [markdown]
# Each of the three is a part of `M1` now. `K1` only depends on weights, so it is evaluated at compile time. In the graph:

# %%
ee.graph(attention, "before")

# %%
ee.graph(session.program, "after")

# %%
session.check()

# %% [markdown]
# **The way back.** The readers of `M1`, and the parts of `K1`, suggest where to cut. (The program that comes out is an equal one, not the same.)

# %%
session.rules(at="M1")

# %% [markdown]
# **Refusals name what differs.** Of these two, one reads every second row.

# %%
other = ee.explore(
    ee.parse("""
tensor X[64, 32]
tensor A[32, 24] weight
Q[m:64, n:24] = sum[k:32] X[m, k] * A[k, n]
K[m:32, n:24] = sum[k:32] X[2*m, k] * A[k, n]
output Q, K
""")
)
print(other.why_refused("batch_merging", at="Q"))

# %% [markdown]
# ## Fig. 3: a 3×3 and a 1×1 convolution of one image
#
# As ResNet and Inception have them. The 3×3 convolution is followed by a ReLU.

# %%
fig3 = ee.parse("""
tensor A[1, 24, 9, 8] pad [0, 0, 1, 1]
tensor K[16, 24, 3, 3] weight
tensor L[32, 24, 1, 1] weight
Y[n:1, f:16, h:9, w:8] = sum[c:24, r:3, s:3] A[n, c, h+r-1, w+s-1] * K[f, c, r, s]
Z[n:1, f:32, h:9, w:8] = sum[c:24, r:1, s:1] A[n, c, h+r, w+s] * L[f, c, r, s]
R[n:1, f:16, h:9, w:8] = relu(Y[n, f, h, w])
output R, Z
""")
ee.graph(fig3, "before")

# %% [markdown]
# One step makes them one convolution: the 1×1 kernel is a 3×3 kernel with eight zeros. That is legal, and seldom worth it.

# %%
session = ee.explore(fig3)
session.apply("sibling_merging", at="Y", others=["Z"], tensor="A")
session

# %% [markdown]
# The paper does something better: the 3×3 convolution becomes a matrix product first, and *then* the two are siblings. Algorithm 1 finds it: it forms the
# closure of the program under the rules between expressions, searches each expression of each member, and lets the same rules meet the results. Here are the
# kinds of programs it finds, cheapest first by estimate.

# %%
found = sorted(candidates(fig3, ee.program_seconds, Limits(seconds=20, max_depth=2)), key=lambda c: c.seconds)


def calls(candidate):
    return " + ".join(repr(e.via) for e in candidate.operators)


def between(candidate):
    rules = ("sibling_merging", "batch_merging", "expression_splitting")
    return [s.match.rule.name for s in candidate.derivation.steps if s.match.rule.name in rules]


kinds = {calls(c): c for c in reversed(found)}
for candidate in sorted(kinds.values(), key=lambda c: c.seconds)[:12]:
    print(f"{candidate.seconds * 1e6:8.1f} µs  {', '.join(between(candidate)) or '-':18} {calls(candidate)}")

# %% [markdown]
# Nine times 16 channels and 32 more: one product of 176 rows. Its derivation, with a proof for each step:

# %%
product = next(
    c for c in found if between(c) and any(dict(e.via.attributes).get("m") == 9 * 16 + 32 for e in c.operators)
)
session = ee.explore(fig3)
session.adopt(product.derivation)
session.history(certificates=True)

# %%
session.check()

# %% [markdown]
# What is left around the product are eOperators. Fused to the end, the OffsetReduce and the ReLU are one kernel, as in the figure.

# %%
session.adopt(fuse_eoperators(session.derivation))
ee.graph(session.program, "after")

# %% [markdown]
# ## Fig. 15: separable convolutions
#
# GCN has a large window at a small price: a column of $k$ then a row of $k$, the same the other way round, and the sum of both.

# %%
fig15 = ee.parse("""
tensor X[1, 24, 8, 7] pad [0, 0, 2, 2]
tensor A[9, 24, 5, 1] weight
tensor B[9, 9, 1, 5] weight
tensor C[9, 24, 1, 5] weight
tensor D[9, 9, 5, 1] weight
P[n:1, f:9, h:8, w:7] = sum[c:24, r:5, s:1] X[n, c, h+r-2, w+s] * A[f, c, r, s] pad [0, 0, 0, 2]
Q[n:1, f:9, h:8, w:7] = sum[c:9, r:1, s:5] P[n, c, h+r, w+s-2] * B[f, c, r, s]
R[n:1, f:9, h:8, w:7] = sum[c:24, r:1, s:5] X[n, c, h+r, w+s-2] * C[f, c, r, s] pad [0, 0, 2, 0]
S[n:1, f:9, h:8, w:7] = sum[c:9, r:5, s:1] R[n, c, h+r-2, w+s] * D[f, c, r, s]
Y[n:1, f:9, h:8, w:7] = Q[n, f, h, w] + S[n, f, h, w]
""")
ee.graph(fig15, "before")

# %% [markdown]
# The first two read one image, the last two do not. So the first two should become one product with the weights side by side, the last two a
# batch of two products. Nobody tells the search.

# %%
found = sorted(candidates(fig15, ee.program_seconds, Limits(seconds=20, max_depth=2)), key=lambda c: c.seconds)
pairs = next(c for c in found if sorted(between(c)) == ["batch_merging", "sibling_merging"])
print(f"{len(found)} programs; {calls(pairs)}")

# %%
session = ee.explore(fig15)
session.adopt(pairs.derivation)
session.history(certificates=True)

# %%
session.check()

# %%
session.adopt(fuse_eoperators(session.derivation))
ee.graph(session.program, "after")
