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
# # From an expression to a tiled kernel
#
# How does a compiler write a good GPU kernel for an operator that it has never seen? The notes "PlaidML 中 Kernel
# 自動產生機制心得" (on how PlaidML generates kernels) describe four steps, and each is a small computation on integers:
# flatten the expression into a table, choose a tile size by a cost model, lay out the tile in shared memory, and
# distribute it over the threads. This notebook executes the four steps for the example of the notes, a 3×3 convolution
# with a ReLU, and reproduces their numbers.

# %%
import numpy as np

import einnet_explore as ee
from einnet_evaluation import gpu_emulation

kernels = ee.kernels

# %% [markdown]
# ## Flattening
#
# A tensor is stored in memory as one sequence of elements. An access such as `M[i, i+j]` of a 16×16 matrix is
# therefore one polynomial: $16 i + (i + j) = 17 i + j$. These coefficients describe a contraction completely. The
# table has one row for each iterator: its range, and the distance in memory that one step moves in each tensor.

# %%
conv = ee.parse("""
tensor D[32, 224, 224, 64] pad [0, 1, 1, 0]
tensor K[3, 3, 64, 64] weight
R[n:32, x:224, y:224, co:64] = relu({[n:32, x:224, y:224, co:64] sum[ci:64, i:3, j:3] D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]}[n, x, y, co])
""")
found = kernels.as_contraction(conv.equations[0].scope)
found.table

# %% [markdown]
# The constraints that ranges cannot express follow the table: the window exceeds the image at its edges. (In a shell:
# `einnet-explore show conv.ein --table`.)
#
# The table also shows the dimensions that can be collapsed. Two rows merge if they are contiguous in every tensor.
# This sum of two images becomes a single row:

# %%
total = ee.parse("tensor A[8, 32, 32]\ntensor B[8, 32, 32]\nY[c:8, x:32, y:32] = A[c, x, y] + B[c, x, y]")
print(kernels.flatten_scope(total.equations[0].scope, "Y"))
print(kernels.flatten_scope(total.equations[0].scope, "Y").merge_neighbours())

# %% [markdown]
# ## The cost of a tile size
#
# The number of multiply-accumulates of the convolution:

# %%
problem = found.problem()
print(f"{problem.products:,}")

# %% [markdown]
# A work group computes a box of them, a *tile*. The table determines the cost of a tile: the data that it reads and
# writes, in whole memory transactions; its shared memory and registers; and the operations for each byte. The next
# cell prints four entries of the log in the notes. The order of a tile size is `ci, co, i, j, n, x, y`.

# %%
for size in ((8, 32, 1, 3, 16, 8, 2), (8, 32, 1, 3, 16, 4, 4), (16, 32, 1, 1, 16, 2, 2), (8, 32, 2, 1, 16, 2, 2)):
    print(kernels.tile_cost(problem, size, kernels.Hardware()).log())

# %% [markdown]
# ## Best-first search for the tile size
#
# Start with a tile of one product. Repeatedly take the best size so far, double it in each direction, and compute the
# cost of each new size. The search visits a few hundred of about seventy thousand possible sizes.

# %%
search = kernels.search_best_first(problem, kernels.Hardware())
print(len(search.visited), "sizes visited")
print(dict(zip([row.name for row in found.table.rows], search.chosen.tile, strict=True)))

# %%
kernels.tile_figure(search)

# %% [markdown]
# Larger tiles reuse more of the data that they load, so the score rises until the tile no longer fits in memory (the
# marks at the bottom). Many sizes reach the score of 1. At that point memory is no longer the bottleneck, and the
# model cannot distinguish them; the order of the search decides.
#
# ## In shared memory
#
# `x` and `i` move along the same dimension of the image. A tile of 2 rows and a window of 2 rows need 3 rows, not 4.
# Therefore iterators that move together are merged, with one stride in memory and another in the tile. Strides in the
# tile are odd, so that neighbouring threads use different banks.

# %%
for column in found.table.inputs:
    print(column.name)
    print(kernels.local_layout(found.table, column, search.chosen.tile))

# %% [markdown]
# 256 threads share 2·2·16·32 = 2048 results, so each thread has eight sums.

# %%
layout = kernels.thread_layout(found.table, search.chosen.tile, 256)
{row.name: n for row, n in zip(found.table.rows, layout.counts, strict=True) if row.output}

# %% [markdown]
# ## The kernel
#
# The kernel clears the sums. For every tile of the inputs it loads the tile, waits for all threads, accumulates, and
# waits again. Finally it applies the post-operations (here the ReLU) and writes the results.

# %%
made = kernels.tile_contraction(conv)
print(kernels.emit(made.kernel, "opencl"))

# %% [markdown]
# The kernel is a value. It is printed here as OpenCL; `emit(…, "cuda")` prints it as CUDA. A smaller kernel runs on
# this machine's processor, with threads, barriers and shared memory. Its sizes are not multiples of the tile, and it
# has a bias and a residual input. Integer inputs make every wrong product visible.

# %%
small = ee.parse("""
tensor D[2, 11, 9, 5] pad [0, 1, 1, 0]
tensor K[3, 3, 6, 5] weight
tensor b[6]
tensor r[2, 11, 9, 6]
R[n:2, x:11, y:9, co:6] = relu({[n:2, x:11, y:9, co:6] sum[ci:5, i:3, j:3] D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]}[n, x, y, co] + b[co] + r[n, x, y, co])
""")
made = kernels.tile_contraction(
    small, kernels.Hardware(threads=32, memory=2048, registers=2048, groups=4), kind=kernels.I32
)
random = np.random.default_rng(0)
inputs = {t.name: random.integers(-9, 10, t.shape).astype(np.int32) for t in made.inputs}
result = np.empty((2, 11, 9, 6), np.int32)
if gpu_emulation.opencl_available():
    gpu_emulation.load_opencl_kernel(made.kernel)(*inputs.values(), result)
    print("equal to the exact value:", np.array_equal(result, ee.evaluate(small, inputs)["R"]))
print("tile", made.cost.tile, "in", made.kernel.grid[0], "blocks of", made.kernel.block[0], "threads")

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
coefficients = ee.Exercise(
    "`coefficients`: `M` has 16 rows of 8 elements. What are the coefficients of `i` and `j` in the flat address of "
    "`M[i, 2*j]`? Answer with a pair.",
    (8, 2),
    hint="A step to the next row moves by a whole row.",
    why="8i + 2j",
)
coefficients

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
coefficients.grade((8, 2))

# %% jupyter={"source_hidden": true} tags=["hide-input"]
window = ee.Exercise(
    "`window`: how many rows of the image does a tile of 4 rows with a window of 3 rows need?",
    6,
    hint="Row and window move along the same dimension.",
    why="x + i takes 4 + 3 - 1 values",
)
window

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
window.grade(len({x + i for x in range(4) for i in range(3)}))
