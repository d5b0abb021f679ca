# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Gallery
#
# Each figure is followed by its code, which continues that of the figures above it. `figure.save("figure.pdf")` writes
# it; [Figures for papers](figures.md) explains formats, styles and widths.

# %%
import einnet_explore as ee

conv = ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1)
run = ee.search(conv, max_depth=3, budget=60)
best = run.find("Matmul", m=196, n=288, k=32)

# %% [markdown]
# ## An expression

# %%
ee.figures.expression(conv)

# %% [markdown]
# ## A derivation

# %%
ee.figures.derivation(best)

# %% [markdown]
# ## A search tree, for a paper

# %%
ee.figures.search_tree(run, to=best)

# %% [markdown]
# ## A search tree, all states

# %%
run.tree(to=best)

# %% [markdown]
# ## A computation graph, for a paper

# %%
ee.figures.graph(best)

# %% [markdown]
# ## A computation graph

# %%
chain = ee.parse("""
tensor X[64, 32]
tensor A[32, 24] weight
tensor B[32, 24] weight
Q[m:64, n:24] = sum[k:32] X[m, k] * A[k, n]
K[m:64, n:24] = sum[k:32] X[m, k] * B[k, n]
S[m:64, n:64] = sum[d:24] Q[m, d] * K[n, d]
output S
""")
ee.graph(chain, "queries and keys")

# %% [markdown]
# ## Times of candidates

# %%
ee.figures.comparison({f"{c.operators[0].via.operator} (state {c.state})": c.seconds for c in run.candidates[:5]})

# %% [markdown]
# ## Roofline

# %%
ee.figures.roofline({"convolution": conv, "Matmul and OffsetReduce": best})

# %% [markdown]
# ## The tree of a session

# %%
session = ee.explore(conv)
session.apply("summation_splitting", at="Y", outer=["r", "s"])
session.undo()
session.apply("operator_matching", at="Y", operator="Conv2d")
session.tree()

# %% [markdown]
# ## The stages of a fused kernel

# %%
softmax = ee.parse("""
tensor X[512, 768]
M[i:512] = max[j:768] X[i, j]
E[i:512, j:768] = exp(X[i, j] - M[i])
S[i:512] = sum[j:768] E[i, j]
Y[i:512, j:768] = E[i, j] / S[i]
output Y
""")
kernels = ee.kernels
kernels.draw_graph(kernels.stage_graph(kernels.fuse_program(softmax)), "softmax in one kernel")

# %% [markdown]
# ## The search for a tile size

# %%
wide = ee.parse("""
tensor D[32, 224, 224, 64] pad [0, 1, 1, 0]
tensor K[3, 3, 64, 64] weight
R[n:32, x:224, y:224, f:64] = relu({[n:32, x:224, y:224, f:64]
    sum[c:64, i:3, j:3] D[n, x+i-1, y+j-1, c] * K[i, j, f, c]}[n, x, y, f])
""")
problem = kernels.as_contraction(wide.equations[0].scope).problem()
kernels.tile_figure(kernels.search_best_first(problem, kernels.Hardware()))
