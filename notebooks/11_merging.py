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
# # Several expressions as one
#
# The rules of the tour rewrite *one* expression. Three more rules work *between* expressions (EinNet §4.2):
#
# - **Sibling merging** turns products with a shared operand into one product; it concatenates the other operands.
# - **Batch merging** turns copies of one expression over different tensors into one expression with a batch dimension.
# - **Expression splitting** is the inverse of both.
#
# This notebook first applies them by hand. Then a search uses them to find Fig. 3 and Fig. 15 of the paper.

# %%
import einnet_explore as ee

# %% [markdown]
# ## By hand: queries, keys and values
#
# An attention layer multiplies one input by three weight matrices. To make the example harder, the matrix of `V` is
# stored transposed.

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
# Sibling merging matches iterators by their role, not by their name. It finds that `j` corresponds to `k`, and that
# `V` reads its weights transposed.

# %%
session.apply("sibling_merging", at="Q", others=["K", "V"], tensor="X")
session

# %% [markdown]
# Each of the three results is now a part of `M1`. `K1` depends only on weights, so it is evaluated at compile time.
# The graphs before and after:

# %%
ee.graph(attention, "before")

# %%
ee.graph(session.program, "after")

# %%
session.check()

# %% [markdown]
# **The inverse.** The readers of `M1` and the parts of `K1` suggest where to split. (The result of splitting is equal
# to the original program, but not identical.)

# %%
session.rules(at="M1")

# %% [markdown]
# **Refusals name the difference.** One of these two expressions reads every second row.

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
# ResNet and Inception contain this pattern. A ReLU follows the 3×3 convolution.

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
# One step merges them into one convolution: the 1×1 kernel is extended to a 3×3 kernel with eight zeros. This is
# legal, but rarely faster.

# %%
session = ee.explore(fig3)
session.apply("sibling_merging", at="Y", others=["Z"], tensor="A")
session

# %% [markdown]
# The paper has a better derivation: the 3×3 convolution first becomes a matrix product, and *then* the two are
# siblings. Algorithm 1 finds it in three stages. It computes the closure of the program under the rules between
# expressions, searches each expression of each program in the closure, and applies the rules between expressions to
# the results. The next cell prints the cheapest candidate of each kind, sorted by estimated time.

# %%
run = ee.search(fig3, budget=60, max_depth=2)
found = sorted(run.candidates, key=lambda c: c.rank)


def calls(candidate):
    return " + ".join(repr(e.via) for e in candidate.operators)


def between(candidate):
    rules = ("sibling_merging", "batch_merging", "expression_splitting")
    return [s.match.rule.name for s in candidate.derivation.steps if s.match.rule.name in rules]


kinds = {calls(c): c for c in reversed(found)}
for candidate in sorted(kinds.values(), key=lambda c: c.seconds)[:12]:
    print(f"{candidate.seconds * 1e6:8.1f} µs  {', '.join(between(candidate)) or '-':18} {calls(candidate)}")

# %% [markdown]
# One product of 176 rows combines nine times 16 channels and 32 more. This is its derivation, with a certificate for
# each step:

# %%
product = run.find("Matmul", m=9 * 16 + 32)
session = ee.explore(fig3)
session.adopt(product.derivation)
session.history(certificates=True)

# %%
session.check()

# %% [markdown]
# The other equations are eOperators. After post-optimisation, the OffsetReduce and the ReLU are one kernel, as in the paper's
# figure.

# %%
session.adopt(ee.post_optimize(session.derivation))
ee.graph(session.program, "after")

# %% [markdown]
# ## Fig. 15: separable convolutions
#
# GCN computes a large window cheaply: a column of $k$ followed by a row of $k$, the same in the opposite order, and
# the sum of both.

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
# The first two convolutions read the same image; the last two read different tensors. So the first two should become
# one product with concatenated weights, and the last two a batch of two products. The search finds both without a
# hint; the loop stops it there.

# %%
run = ee.live_search(fig15, budget=60, max_depth=2)
for _ in run:
    if run.candidates and sorted(between(run.candidates[-1])) == ["batch_merging", "sibling_merging"]:
        break
pairs = run.candidates[-1]
print(f"candidate {len(run.candidates)}: {calls(pairs)}")

# %%
session = ee.explore(fig15)
session.adopt(pairs.derivation)
session.history(certificates=True)

# %%
session.check()

# %%
session.adopt(ee.post_optimize(session.derivation))
ee.graph(session.program, "after")

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
columns = ee.Exercise(
    "`columns`: how many columns has the product that replaces queries, keys and values?",
    64,
    hint="The weights are concatenated; they have 24, 24 and 16 columns.",
    why="24 + 24 + 16; each result is a slice",
)
columns

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
columns.grade(24 + 24 + 16)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
pair = ee.parse("""
tensor X[6, 4]
tensor A[4, 5] weight
tensor B[2, 4] weight
Q[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
K[m:6, n:2] = sum[k:4] X[m, k] * B[n, k]
output Q, K
""")


def reads_x_once(program):
    reads = ee.text(program).count("X[") - 1
    return "" if reads == 1 else f"X is read in {reads} places, expected one product"


siblings = ee.Exercise(
    "`siblings`: derive from `pair` a program in which one product computes `Q` and `K`. Answer with the session.",
    pair,
    hint="The shared tensor is X.",
    why="sibling merging concatenates A and the transposed B",
    objection=reads_x_once,
)
siblings

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
session = ee.explore(pair)
session.apply("sibling_merging", at="Q", others=["K"], tensor="X")
siblings.grade(session)
