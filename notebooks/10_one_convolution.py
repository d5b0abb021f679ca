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
# # What one convolution can become
#
# EinNet's Figures 6 and 7 show many programs that are equal to one convolution. This notebook finds them again.
# Nothing is prepared in advance: the input of the search is the definition of the convolution, the rules, and the
# operators of the library.

# %%
import einnet_explore as ee

conv = ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1)
ee.show(conv)

# %%
ee.graph(conv, "a 3×3 convolution")

# %%
run = ee.search(conv, max_depth=3, budget=60)
run

# %% [markdown]
# The table shows the cheapest candidates by estimated time. They use different operators. `run.find` returns the best
# candidate that calls a given operator with given sizes.

# %% [markdown]
# ## Matmul and OffsetReduce (Figure 7 e)
#
# The nine taps become additional output channels: one matrix product over the channels has nine times as many columns.
# An eOperator then adds nine shifted slices. The number of multiplications is unchanged, but the library now runs one
# large matrix product.

# %%
offset_reduce = run.find("Matmul", m=196, n=288, k=32)
ee.show(offset_reduce)

# %%
ee.graph(offset_reduce.program, "Matmul + OffsetReduce")

# %%
ee.equal(conv, offset_reduce.program)

# %% [markdown]
# ## im2col (Figure 7 i)
#
# This is the opposite order. An eOperator first gathers the window of each pixel; then one product sums over the
# window and the channels together.

# %%
im2col = run.find("Matmul", m=196, n=32, k=288)
ee.graph(im2col.program, "im2col + Matmul")

# %% [markdown]
# Both matrix products do the same number of multiplications. Their speed depends on the data that they move: the first
# writes nine times the output, the second reads nine times the input.

# %% [markdown]
# ## A 1×3 convolution with three times the channels (n, p)
#
# Only one dimension of the window becomes channels; the other remains a convolution.

# %%
row = run.find("Conv2d", f=96, s=3, r=1)
ee.graph(row.program, "a 1×3 convolution, 3 times as many channels")

# %% [markdown]
# ## A grouped convolution (k)
#
# Each input channel becomes a group with its own 32 filters. An eOperator adds the 32 results.

# %%
grouped = run.find("Conv2d", g=32, r=3, s=3, f=32)
ee.graph(grouped.program, "a grouped convolution")

# %% [markdown]
# ## Smaller windows, more channels
#
# The window is widened from 3 to 4 by zeros (*boundary relaxing*), then cut into two halves. The result is a dense
# convolution with 2×2 windows and four times as many channels.

# %%
smaller = run.find("Conv2d", r=2, s=2, f=128, dh=1, dw=1)
ee.graph(smaller.program, "a 2×2 convolution, 4 times as many channels")

# %% [markdown]
# ## Figure 6: a 5×5 convolution as a 3×3 one
#
# The same rules apply at another size. Five is not a multiple of three, but six is. Relax the window to 6×6, split
# each dimension into two halves of three, and turn the halves into output channels. The search finds this derivation
# from the definition alone.

# %%
five = ee.ops.conv2d(N=16, H=224, W=224, C=32, F=1, R=5, S=5, layout="NCHW", padding=2)
ee.graph(five, "before: Conv5×5, one output channel")

# %%
run = ee.search(five, target="Conv2d", max_depth=4, budget=4)
three = run.find("Conv2d", r=3, s=3, f=4)
ee.show(three)

# %%
ee.graph(three.program, "after: Conv3×3, four output channels, and an eOperator that adds the four")

# %% [markdown]
# Each step has a certificate, including the steps that make the program larger:

# %%
for step, certificate in zip(three.derivation.steps, ee.check(three.derivation), strict=True):
    print(f"{step.match.rule.name:22} {certificate}")

# %% [markdown]
# ## The search tree
#
# Each row of the tree is one more choice. The thick line is the derivation of the 3×3 convolution.

# %%
run.tree(to=three)

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
wider = ee.Exercise(
    "`wider`: the search turns a 7×7 convolution with 8 output channels into one with a 3×3 window. How many output channels "
    "has it?",
    72,
    hint="Seven is not a multiple of three. To which size is the window widened?",
    why="the window is widened to 9×9, which has 3·3 parts of 3×3: 8·9 channels",
)
wider

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
wider.grade(8 * (9 // 3) ** 2)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
taps = ee.Exercise(
    "`taps`: Figure 6 turns a 5×5 window into four 3×3 windows. How many times as many multiplications are there?",
    1.44,
    hint="Count the taps of all windows, zeros included.",
    why="36 taps instead of 25: it pays only where the 3×3 kernel is that much better",
)
taps

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
taps.grade(4 * 9 / 25)
