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
# # Fewer multiplications
#
# A direct 3×3 convolution already runs at the peak arithmetic speed of a processor. No other order of the same
# multiplications is faster; only an algorithm with *fewer multiplications* is. This notebook derives two such
# algorithms and a related one by ordinary rules: the guard is checked exactly, and every step is proved.
#
# 1. **F(2, 3)** computes two outputs of a filter with three taps by four multiplications instead of six.
# 2. **Strassen's algorithm** multiplies 2×2 matrices by seven multiplications instead of eight.
# 3. **The online softmax** saves no multiplications, but it needs a single pass and stores no intermediate result.

# %%
from fractions import Fraction

import matplotlib.pyplot as plt
import numpy as np

import einnet_explore as ee

bilinear, rules = ee.bilinear, ee.rules

# %% [markdown]
# ## F(2, 3), as in a lecture
#
# Two outputs of a filter with three taps are
#
# $$y_0 = x_0 g_0 + x_1 g_1 + x_2 g_2, \qquad y_1 = x_1 g_0 + x_2 g_1 + x_3 g_2 .$$
#
# The transposed problem is a product of polynomials: $(a_0 + a_1 t)(g_0 + g_1 t + g_2 t^2)$ has four coefficients, so
# its values at four points determine it. Take $t = 0, 1, -1$ and $\infty$; at $\infty$, only the highest coefficients
# matter. At each point, the product of the polynomials is *one* multiplication of numbers. Interpolation is linear and
# needs additions only. Transposing the matrices of the product turns it into the filter.
#
# The algorithm consists of three matrices: $U$ combines the data, $V$ combines the taps, and $W$ combines the
# products.

# %%
f23 = bilinear.correlation(2, 3)
for name, table in (("U", f23.u), ("V", f23.v), ("W", f23.w)):
    print(name)
    for row in table:
        print("   ", "  ".join(f"{x!s:>5}" for x in row))

# %% [markdown]
# For example, $m_1 = (x_1 + x_2)(g_0 + g_1 + g_2)/2$. The algorithm is correct because of one exact identity: $\sum_p
# W[k,p]\,U[p,i]\,V[p,j] = [i = k + j]$. The rule checks this identity before it rewrites anything. If one number is
# changed, the check names the entry where the identity fails.

# %%
bilinear.check_bilinear(f23, bilinear.correlates)
print(f23.rank, "multiplications; the identity holds at every (k, i, j)")
wrong = type(f23)(f23.name, ((f23.u[0][0] + Fraction(1), *f23.u[0][1:]), *f23.u[1:]), f23.v, f23.w)
try:
    bilinear.check_bilinear(wrong, bilinear.correlates)
except ee.Refused as error:
    print(error)

# %% [markdown]
# The next cell replaces the filter in an expression. The transform of the taps reads only weights, so it runs at
# compile time. Between the transforms there is one product, batched over the four points.

# %%
filtered = ee.parse("""
tensor A[18, 8]
tensor K[3, 8, 4] weight
Y[h:16, f:4] = sum[r:3, c:8] A[h+r, c] * K[r, c, f]
""")
match = rules.BILINEAR_SUBSTITUTION.match(filtered, (0,), traversal="h", summation="r", outputs=2)
step = match.apply(filtered)
print(ee.text(step.after))
verdict = ee.equal(step.before, step.after)
assert verdict.kind == "proved"
verdict

# %% [markdown]
# ## How large a tile?
#
# F(m, 3) needs $m + 2$ multiplications instead of $3m$, so larger tiles save more. But more points mean larger numbers
# that cancel. The error bound is $\gamma_t \sum_c \sum_p |W| (|U||x|) (|V||g|)$. The *growth* is the ratio of this
# bound to the bound of a direct sum. In two dimensions the algorithm is nested, and both the saving and the growth are
# squared.

# %%
rng = np.random.default_rng(0)
tiles = range(2, 9)
saved, bounds, errors = [], [], []
for m in tiles:
    triple = bilinear.correlation(m, 3)
    x, g = (rng.standard_normal((200, 64, n)).astype(np.float32) for n in (m + 2, 3))
    exact = np.stack([bilinear.run_bilinear(triple, a, b, np.float64) for a, b in zip(x, g, strict=True)])
    found = np.stack([bilinear.run_bilinear(triple, a, b) for a, b in zip(x, g, strict=True)])
    limit = np.stack([bilinear.bilinear_error_bound(triple, a, b) for a, b in zip(x, g, strict=True)])
    assert (np.abs(found - exact) <= limit).all()
    saved.append(3 * m / triple.rank)
    errors.append(np.abs(found - exact).max() / np.abs(exact).max())
    bounds.append(limit.max() / np.abs(exact).max())
    growth = float(bilinear.bilinear_growth(triple))
    print(f"F({m},3): {saved[-1]:.2f} times fewer, growth {growth:10.1f}, error {errors[-1]:.1e}")

# %%
figure, axes = plt.subplots(figsize=(6, 3.5))
axes.semilogy(tiles, bounds, "o--", label="bound")
axes.semilogy(tiles, errors, "o-", label="measured against double precision")
axes.axhline(1e-4, color="grey", linewidth=1)
axes.text(6.1, 1.2e-4, "error limit", color="grey")
axes.set_xlabel("outputs of a tile, m")
axes.set_ylabel("error over the largest output")
right_axis = axes.twinx()
right_axis.plot(tiles, saved, "s:", color="tab:green")
right_axis.set_ylabel("times fewer multiplications", color="tab:green")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# The saving stays below 3, while the error continues to grow. From four outputs on, each further output saves little
# and costs precision. The error grows in steps: points of both signs and their reciprocals balance each other, and
# F(2, 3), F(4, 3) and F(6, 3) have complete sets of such points. The search therefore tries m = 4, 2 and 6 and
# measures the time of each. It rejects results that differ by more than $10^{-4}$ of the largest output. With
# `--numerics reassociate` it does not try these algorithms.

# %% [markdown]
# ## Fused tiling of the transforms
#
# In two dimensions, $F(4{\times}4, 3{\times}3)$ needs four times fewer multiplications than the convolution. Executed
# equation by equation, it is less than twice as fast: the transforms of the data, the product, and the transforms of
# the result each write megabytes that the next equation reads. But all of them traverse the same *tiles*. Cut the rows
# of the result into blocks of four, and compute the region of every stage that one block needs. The region is a box
# that moves with the block; the indices determine it.

# %%
wide = ee.parse("""
tensor A[1, 64, 56, 56] pad [0, 0, 1, 1]
tensor K[64, 64, 3, 3] weight
Y[n:1, k:64, h:56, w:56] = sum[c:64, r:3, s:3] A[n, c, h+r-1, w+s-1] * K[k, c, r, s]
""")
winograd = rules.BILINEAR_SUBSTITUTION
tiles = rules.Derivation(wide).then(winograd.match(wide, (0,), traversal="h", summation="r", outputs=4))
product_at = next(n for n, e in enumerate(tiles.end.equations) if e.name.startswith("M"))
tiles = tiles.then(winograd.match(tiles.end, (product_at,), traversal="w", summation="s", outputs=4))
blocks = ee.kernels.chain_in_blocks(tiles)
assert blocks is not None
stages = ee.kernels.find_chain(blocks.end.equations[-1].scope)
rows = next(cut for cut in stages.cuts() if cut.traversal.name == "h")
for name, region in sorted(stages.regions((rows,)).items()):
    kib = 4 * region.points / 1024
    print(f"{name}: {list(region.extent)} from {list(region.origin)}, {kib:.0f} KiB")
assert stages.multiplications((rows,)) == stages.multiplications()  # no product is done twice

# %% [markdown]
# `@h` is the number of the block. The data of one block fits in the second-level cache, so one kernel can run the
# whole chain block by block, and no intermediate result is written to memory. The method is not specific to Winograd's
# algorithm: it applies to any chain of scopes with a common traversal. The derivation consists of rules, and each step
# is proved:

# %%
for done in blocks.steps[len(tiles.steps) :]:
    print(f"{done.match.rule.name}: {ee.equal(done.before, done.after).kind}")
blocks.end.equations[-1].via

# %% [markdown]
# ## Strassen's seven products
#
# Three matrices of the same kind describe another bilinear form: the 2×2 matrix product $c_{ik} = \sum_j a_{ij}
# b_{jk}$. The direct algorithm needs eight products. Strassen found one with seven:

# %%
seven = bilinear.strassen()


def total(coefficients, name):
    terms = (f"{'-+'[x > 0]} {name(n)}" for n, x in enumerate(coefficients) if x)
    return " ".join(terms).removeprefix("+ ")


def entry(letter):
    return lambda n: f"{letter}{n // 2}{n % 2}"


for p in range(seven.rank):
    print(f"m{p} = ({total(seven.u[p], entry('a'))})({total(seven.v[p], entry('b'))})")
for k in range(4):
    print(f"{entry('c')(k)} = {total(seven.w[k], lambda p: f'm{p}')}")
bilinear.check_bilinear(seven, bilinear.matrix_product_form((2, 2, 2)))

# %% [markdown]
# The numbers may be matrix blocks. The rule then cuts both matrices into four blocks and computes seven products of
# half the size. Applied again, it computes 49 products of a quarter of the size. Each level multiplies the growth of
# the error.

# %%
matmul = ee.parse("""
tensor A[8, 8]
tensor B[8, 8]
Y[m:8, n:8] = sum[k:8] A[m, k] * B[k, n]
""")
two_by_two = {"algorithm": "Strassen", "rows": "m", "between": "k", "columns": "n"}
halved = rules.BILINEAR_PRODUCT.match(matmul, (0,), **two_by_two).apply(matmul)
print([(e.name, e.scope.shape) for e in halved.after.equations])
print(ee.equal(halved.before, halved.after))
print(
    "growth of one level and of two:",
    float(bilinear.bilinear_growth(seven)),
    float(bilinear.bilinear_growth(bilinear.nest_algorithms(seven, seven))),
)

# %% [markdown]
# ## The online softmax in three steps
#
# Attention is a weighted sum of values with softmax weights: $Y = \sum_w e^{S_w - M} V_w \,/\, \sum_w e^{S_w - M}$
# with $M = \max_w S_w$. It seems to need all scores before it can begin, since $M$ is known last. Three steps show
# that this is not necessary.
#
# **Step 1, blocks.** Variable substitution writes the position $w$ as a block $j$ and a position $i$ in the block.
#
# **Step 2, re-centring.** $e^{S - M} = e^{S - c_j}\, e^{c_j - M}$, where $c_j$ is the largest score of the block. This
# is the only step that uses a property of the exponential, $e^{a+b} = e^a e^b$, and its certificate says so.
#
# **Step 3, distributivity.** $e^{c_j - M}$ does not depend on $i$, so it is moved out of the inner sum.

# %%
weighted = ee.parse("""
tensor S[3, 12]
tensor V[12, 2]
tensor M[3]
Y[m:3, n:2] = sum[w:12] exp(S[m, w] - M[m]) * V[w, n]
""")
steps = rules.Derivation(weighted)
steps = steps.then(rules.VARIABLE_SUBSTITUTION.match(weighted, (0,), phi={"j": "w//4", "i": "w%4"}))
where = (0,) if len(steps.end.scope_at((0,)).summations) == 2 else (0, 0)
steps = steps.then(rules.RECENTRING.match(steps.end, where, factor=0, within=["i"]))
steps = steps.then(rules.SUMMATION_SPLITTING.match(steps.end, where, outer=["j"], apart=True))
for done in steps.steps:
    print(f"{done.match.rule.name}: {ee.equal(done.before, done.after)}")
print(ee.text(steps.end))
whole = ee.equal(steps.start, steps.end)
assert whole.kind == "proved"
whole

# %% [markdown]
# Three numbers now represent a block: its largest score, the sum of its exponentials, and its weighted sum. An
# operation $\oplus$ combines the triples of two blocks. The blocks may be combined in any grouping if $\oplus$ is
# associative and the triple of a concatenation is the combination of the triples of its parts, that is, if the mapping
# to triples is a *homomorphism* into a monoid. With $2^t$ instead of $e^t$, this can be checked without rounding:

# %%
law = ee.kernels.softmax_homomorphism(Fraction(2))
scores = [(3, Fraction(1)), (-1, Fraction(2)), (4, Fraction(-1)), (0, Fraction(5)), (4, Fraction(1, 2))]
print(law.whole(scores))
print(law.in_blocks([scores[:2], scores[2:3], scores[3:]]))
assert law.whole(scores) == law.in_blocks([scores[:2], scores[2:3], scores[3:]])

# %% [markdown]
# A kernel may therefore store one triple for every row and process the columns block by block. This is the structure
# of flash attention: a single pass, and memory for one block of scores. `einnet-explore optimize` finds it in a
# MatMul, Softmax, MatMul sequence.

# %%
attention = ee.parse("""
tensor Q[64, 16]
tensor K[96, 16]
tensor V[96, 16]
S[m:64, w:96] = sum[k:16] Q[m, k] * K[w, k]
M[m:64] = max[w:96] S[m, w]
E[m:64, w:96] = exp(S[m, w] - M[m])
T[m:64] = sum[w:96] E[m, w]
P[m:64, w:96] = E[m, w] / T[m]
Y[m:64, n:16] = sum[w:96] P[m, w] * V[w, n]
output Y
""")
found = ee.fuse_vertically(attention)
print([done.match.rule.name for done in found.steps])
print(found.end.equations[-1].via, "·", ee.equal(attention, found.end).kind)

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
each_output = ee.Exercise(
    "`each_output`: how many multiplications does each output of F(4, 3) take?",
    1.5,
    hint="F(m, 3) takes m + 2 for a tile.",
    why="6 for 4 outputs; a direct filter takes 3",
)
each_output

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
each_output.grade((4 + 2) / 4)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
nested = ee.Exercise(
    "`nested`: how many times fewer multiplications has a 3×3 convolution with F(4, 3) in both dimensions?",
    4,
    hint="The saving of one dimension is squared.",
    why="(3 / 1.5)²",
)
nested

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
nested.grade((3 / 1.5) ** 2)
