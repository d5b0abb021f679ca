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
# # From an expression to a tiled kernel
#
# How does a compiler write a good GPU kernel for an operator that it has never seen? PlaidML's answer, told in "PlaidML 中 Kernel 自動產生機制心得" (notes on how PlaidML generates kernels), has four steps, and each is a
# small computation on numbers: flatten the expression to a table, choose a tile size by a cost model, lay the tile out in shared memory, share it among threads. This notebook
# does all four for the example of that document, a 3×3 convolution with a ReLU, and comes to its numbers.

# %%
import numpy as np

import einnet_explore as ee
from einnet_explore.analysis.flattening import flatten_scope
from einnet_explore.codegen.language import I32, emit
from einnet_explore.codegen.tiling import (
    Hardware,
    as_contraction,
    local_layout,
    search_best_first,
    thread_layout,
    tile_contraction,
    tile_cost,
)
from einnet_explore.runtime import opencl
from einnet_explore.viz.kernels import tile_figure

# %% [markdown]
# ## Flattening
#
# A tensor lies in memory as one row of elements. So an access such as `M[i, i+j]` of a 16×16 matrix is one polynomial, $16 i + (i + j) = 17 i + j$. Nothing but such
# coefficients is left of a contraction: for every iterator its range, and how far one step moves every tensor.

# %%
conv = ee.parse("""
tensor D[32, 224, 224, 64] pad [0, 1, 1, 0]
tensor K[3, 3, 64, 64] weight
R[n:32, x:224, y:224, co:64] = relu({[n:32, x:224, y:224, co:64] sum[ci:64, i:3, j:3] D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]}[n, x, y, co])
""")
found = as_contraction(conv.equations[0].scope)
found.table

# %% [markdown]
# Below the table are the constraints that ranges do not express: the window leaves the image at its edges. (From a shell: `einnet-explore show conv.ein --table`.)
#
# The same table says which dimensions may be squashed. Rows merge where every tensor has them as neighbours. Here is a sum of two images, one row in the end:

# %%
total = ee.parse("tensor A[8, 32, 32]\ntensor B[8, 32, 32]\nY[c:8, x:32, y:32] = A[c, x, y] + B[c, x, y]")
print(flatten_scope(total.equations[0].scope, "Y"))
print(flatten_scope(total.equations[0].scope, "Y").squashed())

# %% [markdown]
# ## What a tile size costs
#
# So many multiply-accumulates it takes:

# %%
problem = found.problem()
print(f"{problem.products:,}")

# %% [markdown]
# A work group gets a box of them, a *tile*. From the table alone follows what it has to read and to write, in whole memory transactions, how much shared memory and how many
# registers that takes, and how many operations a byte come out. These are four entries of the document's log; the order of a size is `ci, co, i, j, n, x, y`.

# %%
for size in ((8, 32, 1, 3, 16, 8, 2), (8, 32, 1, 3, 16, 4, 4), (16, 32, 1, 1, 16, 2, 2), (8, 32, 2, 1, 16, 2, 2)):
    print(tile_cost(problem, size, Hardware()).log())

# %% [markdown]
# ## Looking for the best one
#
# Start with a tile of one product. Take the best size so far, double it in each direction, compute what that costs, again and again. It takes a look at a few hundred of
# about seventy thousand possible sizes.

# %%
search = search_best_first(problem, Hardware())
print(len(search.visited), "sizes visited")
print(dict(zip([row.name for row in found.table.rows], search.chosen.tile, strict=True)))

# %%
tile_figure(search)

# %% [markdown]
# Larger tiles re-use more of what they load, so the score climbs until the tile does not fit any more: the marks at the bottom. Many sizes reach a score of 1. Then memory is not what is
# waited for, and the model has nothing more to say; which of them is taken depends on the order of the search.
#
# ## In shared memory
#
# `x` and `i` move along the same dimension of the image. A tile of 2 rows and a window of 2 rows need 3 rows, not 4. So iterators that move together merge, with one stride in memory
# and another one in the tile. Strides in the tile are odd: threads that are neighbours then use different banks.

# %%
for column in found.table.inputs:
    print(column.name)
    print(local_layout(found.table, column, search.chosen.tile))

# %% [markdown]
# 2·2·16·32 = 2048 results are shared by 256 threads. Each holds eight sums.

# %%
layout = thread_layout(found.table, search.chosen.tile, 256)
{row.name: n for row, n in zip(found.table.rows, layout.counts, strict=True) if row.output}

# %% [markdown]
# ## The kernel
#
# Clear the sums; for every tile of the inputs: load, wait for all threads, accumulate, wait; then the post-operations (here the ReLU), and write.

# %%
made = tile_contraction(conv)
print(emit(made.kernel, "opencl"))

# %% [markdown]
# It is a value, printed as OpenCL here and as CUDA by `emit(…, "cuda")`. A smaller one runs on this machine's processor, threads, barriers, shared memory and all. The sizes do not divide, there are a
# bias and a residual, and integers tell whether every single product is right.

# %%
small = ee.parse("""
tensor D[2, 11, 9, 5] pad [0, 1, 1, 0]
tensor K[3, 3, 6, 5] weight
tensor b[6]
tensor r[2, 11, 9, 6]
R[n:2, x:11, y:9, co:6] = relu({[n:2, x:11, y:9, co:6] sum[ci:5, i:3, j:3] D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]}[n, x, y, co] + b[co] + r[n, x, y, co])
""")
made = tile_contraction(small, Hardware(threads=32, memory=2048, registers=2048, groups=4), kind=I32)
random = np.random.default_rng(0)
inputs = {t.name: random.integers(-9, 10, t.shape).astype(np.int32) for t in made.inputs}
result = np.empty((2, 11, 9, 6), np.int32)
if opencl.opencl_device_name():
    opencl.load_opencl_kernel(made.kernel)(*inputs.values(), result)
    print("equal to the exact value:", np.array_equal(result, ee.evaluate(small, inputs)["R"]))
print("tile", made.cost.tile, "in", made.kernel.grid[0], "blocks of", made.kernel.block[0], "threads")
