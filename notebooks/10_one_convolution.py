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
# # What one convolution can become
#
# EinNet's Figures 6 and 7: a single convolution is the start of a whole space of programs. Nothing here is written down beforehand:
# a search gets the definition of the convolution, the rules and the library's operators, and each program below is one that it found.

# %%
import einnet_explore as ee

conv = ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3)
ee.show(conv)

# %%
ee.graph(conv, "a 3×3 convolution")

# %%
run = ee.search(conv, max_depth=3, limit=60).start().wait()
run


# %% [markdown]
# The table shows the cheapest by estimate. They are of many kinds; `the` finds the cheapest of a kind, by what is called and with which sizes.


# %%
def the(operator, **sizes):
    """The cheapest candidate that makes one call of *operator* with these attributes."""

    def fits(candidate):
        calls = [e.via for e in candidate.operators]
        return [c.operator for c in calls] == [operator] and sizes.items() <= dict(calls[0].attributes).items()

    return min((c for c in run.candidates if fits(c)), key=lambda c: c.seconds)


# %% [markdown]
# ## Matmul and OffsetReduce (Figure 7 e)
#
# The nine taps become nine times as many output channels of one product over the channels; an eOperator adds what belongs together. Every multiplication of the
# convolution is still there, but the library sees a large matrix product.

# %%
offset_reduce = the("Matmul", m=196, n=288, k=32)
ee.show(offset_reduce)

# %%
ee.graph(offset_reduce.program, "Matmul + OffsetReduce")

# %%
ee.certify(conv, offset_reduce.program)

# %% [markdown]
# ## im2col (Figure 7 i)
#
# The other way round: an eOperator gathers the window of each pixel, and the product sums over window and channels at once.

# %%
im2col = the("Matmul", m=196, n=32, k=288)
ee.graph(im2col.program, "im2col + Matmul")

# %% [markdown]
# Both are matrix products with equally many multiplications. Which one is faster depends on what has to be moved: nine times the output there, nine times
# the input here.

# %% [markdown]
# ## A 1×3 convolution with three times the channels (n, p)
#
# Half a split: one dimension of the window stays a convolution, the other becomes channels.

# %%
row = the("Conv2d", f=96, s=3, r=1)
ee.graph(row.program, "a 1×3 convolution, 3 times as many channels")

# %% [markdown]
# ## A grouped convolution (k)
#
# Each channel is a group of its own, with its own 32 filters; an eOperator adds the 32 results.

# %%
grouped = the("Conv2d", g=32, r=3, s=3, f=32)
ee.graph(grouped.program, "a grouped convolution")

# %% [markdown]
# ## Smaller windows, more channels
#
# The window is widened from 3 to 4 with zeros (*boundary relaxing*), then cut in two. What is found is dense: 2×2 windows and four times the channels.

# %%
smaller = the("Conv2d", r=2, s=2, f=128, dh=1, dw=1)
ee.graph(smaller.program, "a 2×2 convolution, 4 times as many channels")

# %% [markdown]
# ## Figure 6: a 5×5 convolution as a 3×3 one
#
# The same rules at another size. Five is no multiple of three, six is: relax the window to 6×6, split each dimension into two halves of three, and let the halves become
# output channels. Search finds it from the definition.

# %%
five = ee.ops.conv2d(N=16, H=224, W=224, C=32, F=1, R=5, S=5, layout="NCHW")
ee.graph(five, "before: Conv5×5, one output channel")

# %%
run = ee.search(five, target="Conv2d", max_depth=4, limit=4).start().wait()
three = the("Conv2d", r=3, s=3, f=4)
ee.show(three)

# %%
ee.graph(three.program, "after: Conv3×3, four output channels, and an eOperator that adds the four")

# %% [markdown]
# Each step has a certificate, also those that make the program larger:

# %%
for step, certificate in zip(three.derivation.steps, ee.check(three.derivation), strict=True):
    print(f"{step.match.rule.name:22} {certificate}")

# %% [markdown]
# ## Where they lie
#
# The search as a tree: a row is one more choice. The way to the Conv3×3 is thick.

# %%
run.tree(to=three)

# %% [markdown]
# **Exercise.** Widen another window: `ee.ops.conv2d(N=1, H=28, W=28, C=16, F=8, R=7, S=7)`. Which smaller convolutions are found, and why is none of them 3×3?
# (`run.why_refused("Conv2d")` says what stands in the way at a state.)
