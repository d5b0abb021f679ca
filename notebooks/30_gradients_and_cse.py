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
# # Gradients, and the choice of stashed values
#
# A training step runs a program twice: the forward pass, and the backward pass for the gradients. The backward pass
# either recomputes a value of the forward pass, or reads it if the forward pass has *stashed* it. Frameworks choose
# the stashed values by hand, operator by operator. Here the choice follows from the expressions. `ee.cse` compares
# both passes, finds the **largest common subexpressions**, and chooses by a minimum cut which of them to stash within
# a given memory limit.

# %%
import re
from html import escape

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML

import einnet_explore as ee

# %% [markdown]
# ## tanh
#
# $Y = \tanh(X)$ has the gradient $dX = (1 - \tanh^2(X))\,dY$. `ee.grad` derives it; the backward pass computes
# everything from the inputs.

# %%
forward = ee.parse("tensor X[8]\nY[i:8] = tanh(X[i])")
backward = ee.grad(forward)
print(ee.text(backward))

# %% [markdown]
# `tanh` is evaluated three times: once in the forward pass and twice in the backward pass. `ee.cse` finds that all
# three are the same value, and that this value is already an output of the forward pass.

# %%
passes = ee.cse(forward, backward)
print(ee.text(passes.backward))
before, after = passes.stashes[0].evaluations
print(f"evaluations of tanh: {before} before, {after} after")

# %% [markdown]
# Both passes have a certificate. The forward pass computes the same outputs as before. The backward pass, which now
# also reads the stash, computes the same gradients.

# %%
print(*passes.certificates, sep="\n")

# %% [markdown]
# ## Batch normalisation
#
# This function prints both passes and colours each stashed value:

# %%
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")


def coloured(passes):
    """Show both passes, with each stashed value in its own colour."""
    shown = escape("# forward\n" + ee.text(passes.forward) + "\n# backward\n" + ee.text(passes.backward))
    for stash, colour in zip(passes.stashes, COLOURS * 9, strict=False):
        shown = re.sub(rf"(?<!\w){stash.name}\[", f"<b style='color:{colour}'>{stash.name}</b>[", shown)
    return HTML(f"<pre>{shown}</pre>")


def normalisation(n, c, h, w):
    x, m = f"n:{n}, c:{c}, h:{h}, w:{w}", n * h * w
    return f"""
tensor X[{n}, {c}, {h}, {w}]
tensor g[{c}]
tensor b[{c}]
E[c:{c}] = {{[c:{c}] sum[n:{n}, h:{h}, w:{w}] X[n, c, h, w]}}[c] / {m}
V[c:{c}] = {{[c:{c}] sum[n:{n}, h:{h}, w:{w}] (X[n, c, h, w] - E[c]) * (X[n, c, h, w] - E[c])}}[c] / {m}
Y[{x}] = g[c] * ((X[n, c, h, w] - E[c]) / sqrt(V[c] + 0.00001)) + b[c]
"""


norm = ee.parse(normalisation(8, 16, 28, 28))
gamma = ee.cse(norm, ee.grad(norm, wrt="g"))
coloured(gamma)

# %% [markdown]
# For the gradient of $\gamma$, the *largest* common subexpression is the normalised input $\hat x = (X - E)/\sqrt{V +
# \varepsilon}$, not just $X - E$ or the root. Sums and products are flattened before the comparison, so the
# multiplication by $\gamma$ in the forward pass does not hide it.
#
# The next cell computes all three gradients together:

# %%
every = ee.cse(norm, ee.grad(norm))
coloured(every)

# %% [markdown]
# Factors that do not depend on the index of a sum are moved out of it. This makes `d_g` and `d_b` parts of `d_X`,
# which is the textbook formula. It is found by distributivity and comparison of subexpressions.
#
# ## Memory against recomputation
#
# Each point of the curve is a Pareto-optimal plan: no other plan needs less memory and fewer operations. `ee.cse(…,
# memory=…)` chooses the best plan within a memory limit.


# %%
def curve(passes, title):
    figure, axes = plt.subplots(figsize=(5, 3))
    plans = passes.curve[::-1]
    axes.step([p.nbytes / 1e3 for p in plans], [p.operations / 1e6 for p in plans], "o-", where="post")
    axes.set(xlabel="stash, kB", ylabel="operations backward, millions", title=title)
    figure.tight_layout()


curve(every, "batch normalisation")

# %% [markdown]
# The statistics of the channels save most of the operations and need only a few hundred bytes. Frameworks stash
# exactly these. This is the right choice on a machine whose memory is slower than its arithmetic: stashing the whole
# normalised image would save only one more operation for each element.

# %%
small = ee.cse(norm, ee.grad(norm), memory=1000)
coloured(small)

# %% [markdown]
# ## Time
#
# Measure the three backward passes in turn. (The arrays are small and the machine may be shared; `python -m
# benchmarks.gradients` measures larger arrays.)

# %%
random = np.random.default_rng(0)
arrays = {t.name: random.standard_normal(t.shape).astype(np.float32) for t in ee.grad(norm).inputs}


def prepared(passes):
    ahead = ee.compile_program(passes.forward).run({t.name: arrays[t.name] for t in passes.forward.inputs})
    made = ee.compile_program(passes.backward)
    for name, place in made.inputs.items():
        place[...] = (ahead | arrays)[name]
    return made.execute


recomputing = ee.compile_program(ee.grad(norm))
for name, place in recomputing.inputs.items():
    place[...] = arrays[name]
times = ee.time_calls(
    {"recomputing": recomputing.execute, "1 kB": prepared(small), "no limit": prepared(every)},
    rounds=9,
    min_seconds=0.1,
)
for name, timing in times.items():
    print(f"{name:12} {timing.median * 1e6:6.0f} µs  {times['recomputing'].median / timing.median:.2f}x")

# %% [markdown]
# ## A residual block
#
# The block is a convolution, a normalisation, the addition of the input, and a ReLU. The gradient of a convolution is
# a convolution. The gradient of ReLU tests where the output is positive.

# %%
block = ee.parse("""
tensor X[2, 8, 8, 4] pad [0, 1, 1, 0]
tensor K[3, 3, 4, 4]
tensor g[4]
tensor b[4]
T[n:2, h:8, w:8, f:4] = sum[r:3, s:3, c:4] X[n, h+r-1, w+s-1, c] * K[r, s, c, f]
E[f:4] = {[f:4] sum[n:2, h:8, w:8] T[n, h, w, f]}[f] / 128
V[f:4] = {[f:4] sum[n:2, h:8, w:8] (T[n, h, w, f] - E[f]) * (T[n, h, w, f] - E[f])}[f] / 128
Y[n:2, h:8, w:8, f:4] = relu(g[f] * ((T[n, h, w, f] - E[f]) * rsqrt(V[f] + 0.001)) + b[f] + X[n, h, w, f])
""")
gradients = ee.grad(block)
residual = ee.cse(block, gradients)
coloured(residual)

# %%
curve(residual, "residual block")

# %% [markdown]
# The step in the curve is the convolution. If the memory limit is smaller than its result, the backward pass must
# compute the convolution again.

# %%
[(plan.nbytes, plan.operations) for plan in residual.curve]

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
cubed = ee.parse("tensor X[8]\nY[i:8] = X[i] * X[i] * X[i]")
cube = ee.Exercise(
    "`cube`: write the gradient of `cubed` by hand, as `ee.grad` does: the inputs `X` and `d_Y`, the output `d_X`.",
    ee.grad(cubed),
    hint="The power rule.",
    why="3x² times the gradient of the output",
)
cube

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
answer = """
tensor X[8]
tensor d_Y[8]
d_X[i:8] = 3 * X[i] * X[i] * d_Y[i]
output d_X
"""
cube.grade(answer)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
stashed = ee.Exercise(
    "`stashed`: for $Y = e^X$, which value of the forward pass lets the backward pass evaluate no exponential?",
    "Y",
    hint="The derivative of the exponential is itself.",
    why="the output, which is stashed at no cost",
)
stashed

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
exponential = ee.parse("tensor X[8]\nY[i:8] = exp(X[i])")
(stash,) = ee.cse(exponential, ee.grad(exponential)).stashes
stashed.grade(stash.name)
