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
# # Post-optimisation
#
# A derivation can leave overhead in the program: kernels that only move data, transforms of weights, and layout
# changes that the next operator reverses. EinNet removes them after the search (§6.3, Figures 11 and 14). Here each of
# these optimisations is a rule, so it has a certificate too.

# %%
import einnet_explore as ee


def calls(candidate):
    return " + ".join(repr(e.via) for e in candidate.operators)


def kernels(program):
    return [e.name for e in program.equations if e.via and e.via.operator == "eOperator"]


# %% [markdown]
# ## Fig. 11: the end of a generator
#
# Two transposed convolutions with stride 2 turn a 4×4 image into a 16×16 image. ReLU and tanh follow them. The weights
# of the second one are stored with the output channel first, as in a convolution.

# %%
generator = ee.parse("""
tensor X[1, 48, 4, 4]
tensor K[48, 24, 4, 4] weight pad [0, 0, 7, 7]
tensor L[8, 24, 4, 4] weight pad [0, 0, 15, 15]
Y[n:1, c:24, y:8, x:8] = sum[f:48, h:4, w:4] X[n, f, h, w] * K[f, c, y-2*h+1, x-2*w+1]
R[n:1, c:24, y:8, x:8] = relu(Y[n, c, y, x])
Z[n:1, c:8, y:16, x:16] = sum[f:24, h:8, w:8] R[n, f, h, w] * L[c, f, y-2*h+1, x-2*w+1]
T[n:1, c:8, y:16, x:16] = tanh(Z[n, c, y, x])
output T
""")
ee.graph(generator, "before")

# %% [markdown]
# The search turns both into matrix products. This is the cheapest candidate with two products:

# %%
found = ee.search(generator, budget=20, max_depth=2).candidates
products = next(c for c in found if calls(c).count("Matmul") == 2)
ee.graph(products.program, "as searched")

# %% [markdown]
# Every eOperator is a kernel, and it reads the previous kernel's result from memory. Two optimisations reduce this
# cost:
#
# 1. **Fuse consecutive eOperators** (the dashed boxes of the paper's figure). Expression fusion substitutes one
#    expression into the other.
# 2. **Evaluate at compile time everything that depends only on weights.** The layout of $L$ is changed once, not at
#    each call. (Views cost nothing: they read the same memory with other strides.)

# %%
after = ee.post_optimize(products)
print(len(kernels(products.program)), "eOperators become", len(kernels(after.end)))
ee.graph(after.end, "fused; what only depends on weights runs at compile time")

# %%
session = ee.explore(generator)
session.adopt(after)
session.history(certificates=True)

# %% [markdown]
# The overlap-add of the first transposed convolution and its ReLU are now one expression, $R$. Each pixel is a sum of
# four elements of the product, and the sum is not written to memory before ReLU.

# %%
print(next(line for line in ee.text(after.end).splitlines() if line.startswith("R[")))

# %%
session.check()

# %% [markdown]
# ## Fig. 14: attention to every second neighbour
#
# In LongFormer's attention, each row reads a *band* of $2W+1$ neighbouring rows, here 9. With dilation 2, the band
# contains every second row. The program computes scores $S$, a softmax over the band, and a weighted sum of $V$.

# %%
attention = ee.parse("""
tensor Q[2, 64, 16]
tensor K[2, 64, 16] pad [0, 8, 0]
tensor V[2, 64, 16] pad [0, 8, 0]
S[b:2, m:64, w:9] = sum[k:16] Q[b, m, k] * K[b, m+2*w-8, k]
M[b:2, m:64] = max[w:9] S[b, m, w]
E[b:2, m:64, w:9] = exp(S[b, m, w] - M[b, m])
D[b:2, m:64] = sum[w:9] E[b, m, w]
P[b:2, m:64, w:9] = E[b, m, w] / D[b, m]
Y[b:2, m:64, n:16] = sum[w:9] P[b, m, w] * V[b, m+2*w-8, n]
output Y
""")
ee.graph(attention, "before: both bands are dilated")

# %% [markdown]
# A dilated band reads memory with gaps. Even rows read only even rows, and odd rows only odd rows. If the layout
# separates the two classes, the band is dense. Reordering the rows is not sufficient: at the border between the even
# and the odd rows, a window would include rows of the other class. The search finds a correct form: the residue
# becomes a *batch* dimension, so that each class has its own zero padding.

# %%
found = ee.search(attention, budget=25, max_depth=3).candidates
dense = next(
    c for c in found if [e.via.operator for e in c.operators] == ["G2BMM", "GBMM"] and calls(c).count("d=1") == 2
)
print(calls(dense))
ee.graph(dense.program, "as searched: two dense bands")

# %% [markdown]
# The cost is a layout transform before each product and its inverse after it. The softmax between the products works
# on each row separately, so it can run in any order of the rows. Layouts are therefore assigned to *all* tensors
# together (an integer program, solved by `scipy`'s `milp`), and the transforms in the middle cancel.

# %%
after = ee.post_optimize(dense)
moves = [e.name for e in after.end.equations if e.via and dict(e.via.attributes).get("kind") == "layout"]
print("remaining transforms:", ", ".join(moves))
ee.graph(after.end, "after: the inverse pair is removed")

# %%
session = ee.explore(attention)
session.adopt(after)
session.history(certificates=True)

# %%
session.check()

# %% [markdown]
# The band, the softmax and the sum of this program can also be one kernel over rows, which never writes the scores to
# memory. `ee.search` and `optimize` find that kernel by vertical fusion
# ([decision 0048](../docs/decisions/0048-vertical-fusion-is-a-search.md)).
#

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
compile_time = ee.Exercise(
    "`compile_time`: which eOperator of the fused generator (Fig. 11) runs at compile time?",
    "L1",
    hint="It depends on weights only.",
    why="L1 changes the layout of the weights L; K1 is a view and costs nothing",
)
compile_time

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
compile_time.grade("L1")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
classes = ee.Exercise(
    "`classes`: a band with dilation 3 over 63 rows becomes dense if rows are separated by residue. How many classes are "
    "there, and how many rows has each? Answer with a pair.",
    (3, 21),
    hint="Rows 0, 3, 6, … are the first class.",
    why="the residue modulo 3 becomes the batch",
)
classes

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
classes.grade((3, 63 // 3))
