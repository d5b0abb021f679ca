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
# # The rules, one by one
#
# A rule is an equation between expressions that is read from left to right. Each has a page here: its **law** in its own words, a step that is
# **legal** with its certificate, a request that is **refused** with the numbers that failed, and an **exercise**. The answers are at the end, computed.
#
# Nothing on these pages says what a rule *should* do: the words come from the rules, the steps are done, the refusals are theirs.

# %%
import matplotlib.pyplot as plt
from IPython.display import display

import einnet_explore as ee
from einnet_explore import rules
from einnet_explore.analysis.bilinear import correlation
from einnet_explore.analysis.counts import intensity

paged = []


def page(name):
    """What the rule says of itself."""
    paged.append(rules.rule(name))
    return ee.rule_page(paged[-1])


def legal(program, name, at="0", **params):
    """One step, with its certificate and both programs."""
    session = ee.explore(program, rules=rules.ALL_RULES)
    session.apply(name, at=at, **params)
    certificate = session.check()
    assert certificate.kind == "proved"
    display(ee.show(session.derivation), certificate)
    return session.program


def refused(program, name, at="0", **params):
    """Ask for something that must not be done."""
    try:
        ee.explore(program, rules=rules.ALL_RULES).apply(name, at=at, **params)
    except ee.Refused as why:
        print("refused:", why)
    else:
        raise AssertionError(f"{name} was not refused")


# %% [markdown]
# # Rules on one expression
#
# Most pages look at this one: a convolution along one dimension, with $c$ channels, three taps $r$ and a row of padding on either side.

# %%
line = ee.parse("""
tensor A[6, 4] pad [1, 0]
tensor K[3, 5, 4] weight
Y[h:6, f:5] = sum[c:4, r:3] A[h+r-1, c] * K[r, f, c]
""")
ee.show(line)

# %% [markdown]
# ## 1. Summation splitting

# %%
page("summation_splitting")

# %% [markdown]
# The taps are summed outside, the channels inside. What is inside is a result of its own, one for each $r$, $h$ and $f$:

# %%
split = legal(line, "summation_splitting", outer=["r"])

# %% [markdown]
# Both groups must have an iterator, or nothing is split:

# %%
refused(line, "summation_splitting", outer=["r", "c"])

# %% [markdown]
# **Exercise 1.** In how many ways can a sum over three iterators be split, if nothing is pulled apart? And over six?

# %% [markdown]
# ## 2. Variable substitution

# %%
page("variable_substitution")

# %% [markdown]
# In the inner scope $h$ and $r$ only occur as $h+r-1$. Let $t$ be that. It goes from $-1$ to $6$, but not every $t$ belongs to every $r$: the pairs that are
# reached are no box, and the new scope has a domain.

# %%
phi = {"r": "r", "f": "f", "t": "h+r-1"}
substituted = legal(split, "variable_substitution", at="0.0", phi=phi)

# %%
figure, axes = plt.subplots(figsize=(4, 1.6))
inner = substituted.scope_at((0, 0, 0))
(bound,) = inner.domain
for t in range(-1, 7):
    for r in range(3):
        axes.plot(t, r, "o" if bound.lo <= t - r + 1 < bound.hi else "x", color="tab:blue")
axes.set_xlabel("t")
axes.set_ylabel("r")
axes.set_title(repr(bound), fontsize=9)
plt.show()

# %% [markdown]
# A substitution must have an inverse. With $t$ alone, $r$ is lost:

# %%
refused(split, "variable_substitution", at="0.0", phi={"f": "f", "t": "h+r-1"})

# %% [markdown]
# **Exercise 2.** $h$ and $f$ together may become one iterator $i = 5h + f$. Is $i = 4h + f$ legal as well? And $i = 6h + f$?

# %% [markdown]
# ## 3. Traversal merging

# %%
page("traversal_merging")

# %% [markdown]
# The substitution left a scope that only renames indices. It is merged away:

# %%
merged = legal(substituted, "traversal_merging", access=0)

# %% [markdown]
# What is read must lie in the inner scope's box. Here $h+1$ goes one beyond it, into the padding:

# %%
beyond = ee.parse("""
tensor A[2, 3]
Y[h:2] = {[z:2] A[z, 0]} pad [2] [h+1]
""")
refused(beyond, "traversal_merging")

# %% [markdown]
# **Exercise 3.** Merge the scope that the split of page 1 made. What comes out?

# %% [markdown]
# ## 4. Boundary relaxing

# %%
page("boundary_relaxing")

# %% [markdown]
# Nobody reads the result outside its domain, so the bound may go. More is computed, nothing else changes:

# %%
relaxed = legal(merged, "boundary_relaxing", access=0, bounds=[0])

# %% [markdown]
# A window may be wider than it is, where the weights are zero. Three taps become four:

# %%
wide = legal(line, "boundary_relaxing", ranges={"r": [0, 4]})

# %% [markdown]
# But not the result itself: somebody outside knows its shape.

# %%
refused(line, "boundary_relaxing", ranges={"h": [0, 7]})

# %% [markdown]
# **Exercise 4.** With four taps the window has two halves of two. Which substitution of $r$ shows them?

# %% [markdown]
# ## 5. Boundary tightening

# %%
page("boundary_tightening")

# %% [markdown]
# At $t = -1$ and $t = 6$ all of $A$ is padding, so the inner result is zero there. The range shrinks, and these places become padding of the scope:

# %%
tight = legal(relaxed, "boundary_tightening", at="0.0")

# %% [markdown]
# One step more, and something would be lost:

# %%
refused(relaxed, "boundary_tightening", at="0.0", ranges={"t": [0, 5]})

# %% [markdown]
# **Exercise 5.** Tightening takes back the four taps of page 4. What does it do to a sum over $r \in [-2, 5)$ of a filter with three taps?

# %% [markdown]
# ## 6. eOperator generation

# %%
page("eoperator_generation")

# %% [markdown]
# Adding three shifted slices is little work for each element that is read: one kernel, generated.

# %%
slices = ee.parse("""
tensor T[3, 6, 5] pad [0, 1, 0]
Y[h:6, f:5] = sum[r:3] T[r, h+r-1, f]
""")
kernel = legal(slices, "eoperator_generation")

# %% [markdown]
# A convolution is not: it would be slow as a loop of ours, and a library does it well.

# %%
refused(line, "eoperator_generation")

# %% [markdown]
# **Exercise 6.** From how many channels on is the convolution refused?

# %% [markdown]
# # Rules between expressions
#
# Here a program has several equations; the graphs show who reads whom.
#
# ## 7. Expression splitting

# %%
page("expression_splitting")

# %%
one = ee.parse("""
tensor X[6, 4]
tensor Z[6, 4]
tensor A[4, 5] weight
tensor B[4, 5] weight
Q[m:6, n:5] = sum[k:4] (X[m, k] * A[k, n] + Z[m, k] * B[k, n])
""")
parts = legal(one, "expression_splitting", terms=[0])

# %%
ee.graph(parts, "two independent products, and their sum")

# %% [markdown]
# A cut must lie inside the range:

# %%
refused(one, "expression_splitting", iterator="m", cuts=[6])

# %% [markdown]
# **Exercise 7.** Cut the summation $k$ in the middle. What puts the halves together, and what if the reduction is a maximum?

# %% [markdown]
# ## 8. Sibling merging

# %%
page("sibling_merging")

# %% [markdown]
# Three products read the same $X$, as in every attention layer. One product with the weights side by side does it:

# %%
qkv = ee.parse("""
tensor X[6, 4]
tensor A[4, 5] weight
tensor B[4, 2] weight
tensor C[4, 3] weight
Q[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
K[m:6, n:2] = sum[k:4] X[m, k] * B[k, n]
V[m:6, n:3] = sum[k:4] X[m, k] * C[k, n]
output Q, K, V
""")
fused = legal(qkv, "sibling_merging", others=["K", "V"], tensor="X")

# %%
ee.graph(fused, "one product for three")

# %% [markdown]
# They must read it *alike*. Every second row is something else:

# %%
strided = ee.parse("""
tensor X[6, 4]
tensor A[4, 5] weight
tensor B[4, 5] weight
Q[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
S[m:3, n:5] = sum[k:4] X[2*m, k] * B[k, n]
output Q, S
""")
refused(strided, "sibling_merging", others=["S"], tensor="X")

# %% [markdown]
# **Exercise 8.** A filter with three taps and one with a single tap read the same signal. Can they be merged?

# %% [markdown]
# ## 9. Batch merging

# %%
page("batch_merging")

# %%
pair = ee.parse("""
tensor X[6, 4]
tensor Z[6, 4]
tensor A[4, 5] weight
tensor B[4, 5] weight
P[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
Q[m:6, n:5] = sum[k:4] Z[m, k] * B[k, n]
output P, Q
""")
batch = legal(pair, "batch_merging", others=["Q"])

# %%
ee.graph(batch, "stacked: a batched product")

# %% [markdown]
# The expressions must be the same but for the tensors, sizes included:

# %%
unlike = ee.parse("""
tensor X[6, 4]
tensor Z[5, 4]
tensor A[4, 5] weight
P[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
Q[m:5, n:5] = sum[k:4] Z[m, k] * A[k, n]
output P, Q
""")
refused(unlike, "batch_merging", others=["Q"])

# %% [markdown]
# **Exercise 9.** Those two share $A$. Which rule does merge them, if $Z$ has six rows, too?

# %% [markdown]
# ## 10. Expression fusion

# %%
page("expression_fusion")

# %%
activated = ee.parse("""
tensor T[3, 6, 5] pad [0, 1, 0]
Y[h:6, f:5] = sum[r:3] T[r, h+r-1, f]
R[h:6, f:5] = relu(Y[h, f])
""")
together = legal(activated, "expression_fusion", at="R", tensor="Y")

# %% [markdown]
# An intermediate that others need stays:

# %%
needed = ee.parse(ee.text(activated) + "output R, Y\n")
refused(needed, "expression_fusion", at="R", tensor="Y")

# %% [markdown]
# **Exercise 10.** Is the fused expression one kernel? Is it still, if $Y$ is the convolution `line`?

# %% [markdown]
# # A rule that changes the products
#
# All rules so far do the multiplications that the expression has. This one does others, and fewer; its steps are equal in exact arithmetic, and rounded otherwise.
#
# ## 11. Bilinear substitution

# %%
page("bilinear_substitution")

# %%
fewer = legal(line, "bilinear_substitution", traversal="h", summation="r", outputs=2)

# %%
ee.graph(fewer, "transformed data, transformed taps, one product between them")

# %% [markdown]
# With a stride, a tile's outputs share no data in the way that the algorithm needs:

# %%
skipping = ee.parse("""
tensor A[14, 4]
tensor K[3, 5, 4] weight
Y[h:6, f:5] = sum[c:4, r:3] A[2*h+r, c] * K[r, f, c]
""")
refused(skipping, "bilinear_substitution", traversal="h", summation="r", outputs=2)

# %% [markdown]
# **Exercise 11.** How many products does an output take with tiles of 2, 4 and 6, and how many without?

# %% [markdown]
# # The others
#
# Every rule that search knows has had its page. The rest are applied to whole programs after a search, or where somebody asks for them; `ee.rule_page` shows any of them.

# %%
assert set(paged) == {*rules.RULES, *rules.INTER_RULES, *rules.FEWER_PRODUCTS}
for rule in (*rules.IDENTITIES, *rules.POST_RULES):
    print(ee.rule_page(rule).words.split("\n")[0])

# %% [markdown]
# # Answers
#
# **1.** Every proper, non-empty subset may stand outside: $2^3 - 2 = 6$. Six iterators would give 62: those that occur in the same reads are kept together
# then, and it is three roles again.

# %%
for read, sums in (
    ("A[h, a] * A[b, c]", "a:2, b:2, c:2"),
    ("C[a, b, c, d] * B[d, e, f]", "a:2, b:2, c:2, d:2, e:2, f:2"),
):
    tensors = "tensor A[4, 4]\ntensor B[2, 2, 2]\ntensor C[2, 2, 2, 2]"
    program = ee.parse(f"{tensors}\nY[h:4] = sum[{sums}] {read}")
    plain = [m for m in rules.SUMMATION_SPLITTING.matches(program, (0,)) if not m.params.apart]
    print(len(plain), "ways:", [m.to_json()["params"]["outer"] for m in plain])

# %% [markdown]
# **2.** With 4 two pairs become the same $i$; with 6 some $i$ are reached by none, which is legal over traversals: a domain leaves them out.

# %%
refused(split, "variable_substitution", at="0.0", phi={"r": "r", "i": "4*h+f"})
gaps = legal(split, "variable_substitution", at="0.0", phi={"r": "r", "i": "6*h+f"})

# %% [markdown]
# **3.** The convolution: merging is splitting, read from right to left.

# %%
back = legal(split, "traversal_merging")
assert ee.program_key(back) == ee.program_key(line)

# %% [markdown]
# **4.** $r = 2a + b$ with $a = \lfloor r/2 \rfloor$ and $b = r \bmod 2$. Over three taps it is refused, since the image is no box.

# %%
halves = legal(wide, "variable_substitution", phi={"a": "r//2", "b": "r%2"})
refused(line, "variable_substitution", phi={"a": "r//2", "b": "r%2"})

# %% [markdown]
# **5.** It shrinks to the three taps that are there. Formulas leave ranges out, the text form says them:

# %%
long = ee.parse("""
tensor A[6] pad [4]
tensor K[3] weight pad [2]
Y[h:6] = sum[r:-2..5] A[h+r-1] * K[r]
""")
short = legal(long, "boundary_tightening")
print(ee.text(short))

# %% [markdown]
# **6.** The work for each element read and written grows with the channels:

# %%
for channels in range(1, 6):
    program = ee.parse(f"""
    tensor A[6, {channels}] pad [1, 0]
    tensor K[3, 5, {channels}] weight
    Y[h:6, f:5] = sum[c:{channels}, r:3] A[h+r-1, c] * K[r, f, c]
    """)
    matches = list(rules.EOPERATOR_GENERATION.matches(program, (0,)))
    print(channels, f"{intensity(program.scope_at((0,))):.2f} FLOP/element", "legal" if matches else "refused")

# %% [markdown]
# **7.** The monoid of the reduction: $+$ for a sum, the larger one for a maximum.

# %%
for reduce in ("sum", "max"):
    program = ee.parse(f"tensor X[6, 4]\nQ[m:6] = {reduce}[k:4] X[m, k]")
    cut = rules.EXPRESSION_SPLITTING.match(program, (0,), iterator="k", cuts=[2]).apply(program).after
    print(ee.text(cut))
    print(ee.certify(program, cut), end="\n\n")

# %% [markdown]
# **8.** Yes: the single tap becomes three, two of which are zero.

# %%
windows = ee.parse("""
tensor A[6, 4] pad [1, 0]
tensor K[3, 5, 4] weight
tensor J[1, 2, 4] weight
Y[h:6, f:5] = sum[c:4, r:3] A[h+r-1, c] * K[r, f, c]
Z[h:6, f:2] = sum[c:4, r:1] A[h+r, c] * J[r, f, c]
output Y, Z
""")
both = legal(windows, "sibling_merging", others=["Z"], tensor="A")

# %% [markdown]
# **9.** Sibling merging, with $A$ as what is shared: the rows stand below each other. (Batch merging does it as well, and stacks only $X$ and $Z$.)

# %%
same = ee.parse("""
tensor X[6, 4]
tensor Z[6, 4]
tensor A[4, 5] weight
P[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
Q[m:6, n:5] = sum[k:4] Z[m, k] * A[k, n]
output P, Q
""")
rows = legal(same, "sibling_merging", others=["Q"], tensor="A")
stacked = legal(same, "batch_merging", others=["Q"])

# %% [markdown]
# **10.** The sum of slices and its ReLU are one kernel (the paper's Figure 3). With the convolution inside they are not.

# %%
program = legal(together, "eoperator_generation", at="R")
dense = ee.parse(ee.text(line) + "R[h:6, f:5] = relu(Y[h, f])\n")
inlined = legal(dense, "expression_fusion", at="R", tensor="Y")
refused(inlined, "eoperator_generation", at="R")

# %% [markdown]
# **11.** A tile of $m$ outputs takes $m + 2$ products:

# %%
for outputs in (2, 4, 6):
    print(f"F({outputs}, 3): {correlation(outputs, 3).rank / outputs:.2f} products an output, 3 without")
