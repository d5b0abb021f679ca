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
# # The rules, one by one
#
# A rule is an equation between two expressions, applied from left to right. Each rule has a page with four parts: its
# **law**, a **legal** step with its certificate, a **refused** request with the numbers that failed, and an
# **exercise**: `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The answers at the end are
# computed.
#
# The text of each law comes from the rule itself. Every step is executed, and every refusal is the rule's own message.

# %%
import matplotlib.pyplot as plt
from IPython.display import display

import einnet_explore as ee

paged = []


def page(name):
    """The rule's own documentation: its law, its guard and its words."""
    paged.append(ee.rules.rule(name))
    return ee.rule_page(paged[-1])


def legal(program, name, at="0", **params):
    """Apply one step; show both programs and the certificate."""
    session = ee.explore(program, rules=ee.rules.ALL_RULES)
    session.apply(name, at=at, **params)
    certificate = session.check()
    assert certificate.kind == "proved"
    display(ee.show(session.derivation), certificate)
    return session.program


def refused(program, name, at="0", **params):
    """Request an illegal step and print the refusal."""
    try:
        ee.explore(program, rules=ee.rules.ALL_RULES).apply(name, at=at, **params)
    except ee.Refused as why:
        print("refused:", why)
    else:
        raise AssertionError(f"{name} was not refused")


# %% [markdown]
# # Rules on one expression
#
# Most pages use this example: a convolution along one dimension, with $c$ channels, three taps $r$ and one row of
# padding on either side.

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
# The outer scope sums over the taps, the inner scope over the channels. The inner scope is an intermediate result with
# one element for each $r$, $h$ and $f$:

# %%
split = legal(line, "summation_splitting", outer=["r"])

# %% [markdown]
# Each of the two groups needs at least one iterator. Otherwise the split is refused:

# %%
refused(line, "summation_splitting", outer=["r", "c"])

# %% jupyter={"source_hidden": true} tags=["hide-input"]
ways = ee.Exercise(
    "**1.** `ways`: In how many ways can a sum over three iterators be split if every subset is allowed? "
    "And a sum over six iterators? Answer with a pair.",
    (6, 62),
    "Every group but the empty one and the whole may be the outer one.",
    "2ⁿ - 2",
)
ways

# %% [markdown]
# ## 2. Variable substitution

# %%
page("variable_substitution")

# %% [markdown]
# In the inner scope, $h$ and $r$ only occur as $h+r-1$. Call this sum $t$. It ranges from $-1$ to $6$, but not every
# $t$ is reached from every $r$. The reached pairs $(t, r)$ do not fill a rectangle, so the new scope has a domain.

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
# A substitution must have an inverse. $t$ alone does not determine $r$, so this substitution is refused:

# %%
refused(split, "variable_substitution", at="0.0", phi={"f": "f", "t": "h+r-1"})

# %% jupyter={"source_hidden": true} tags=["hide-input"]
legal_joins = ee.Exercise(
    "**2.** `legal_joins`: $h$ and $f$ can be joined into one iterator $i = 5h + f$. Is $i = 4h + f$ legal "
    "as well? And $i = 6h + f$? Answer with a pair of True or False.",
    (False, True),
    "Which values of i are reached, and how often?",
    "4h + f has no inverse; 6h + f leaves values out, which a domain excludes",
)
legal_joins

# %% [markdown]
# ## 3. Traversal merging

# %%
page("traversal_merging")

# %% [markdown]
# The substitution left a scope that only renames indices. Merging removes it:

# %%
merged = legal(substituted, "traversal_merging", access=0)

# %% [markdown]
# Every index that is read must lie in the range of the inner scope. Here $h+1$ reads one element beyond it, in the
# padding:

# %%
beyond = ee.parse("""
tensor A[2, 3]
Y[h:2] = {[z:2] A[z, 0]} pad [2] [h+1]
""")
refused(beyond, "traversal_merging")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
unsplit = ee.Exercise(
    "**3.** `unsplit`: Merge the scope that the split of page 1 created. Predict the result, and answer with its text.",
    line,
    "Merging is the inverse of splitting.",
    "the original convolution",
    objection=lambda program: "" if "{" not in ee.text(program) else "there is still an inner scope",
)
unsplit

# %% [markdown]
# ## 4. Boundary relaxing

# %%
page("boundary_relaxing")

# %% [markdown]
# No expression reads the result outside its domain, so the condition may be dropped. The program then computes more
# elements; its result is unchanged:

# %%
relaxed = legal(merged, "boundary_relaxing", access=0, bounds=[0])

# %% [markdown]
# A window may be widened where the weights are zero. Three taps become four:

# %%
wide = legal(line, "boundary_relaxing", ranges={"r": [0, 4]})

# %% [markdown]
# The range of the result itself cannot be widened, since its shape is visible outside:

# %%
refused(line, "boundary_relaxing", ranges={"h": [0, 7]})

# %% jupyter={"source_hidden": true} tags=["hide-input"]
separation = ee.Exercise(
    "**4.** `separation`: A window of four taps has two halves of two taps. Which substitution of $r$ by "
    "$a$ and $b$ separates them? Answer with `phi`, as for page 2.",
    {"a": "r//2", "b": "r%2"},
    "One iterator is the number of the half.",
    "a is the half, b the tap in it",
)
separation

# %% [markdown]
# ## 5. Boundary tightening

# %%
page("boundary_tightening")

# %% [markdown]
# At $t = -1$ and $t = 6$ every element of $A$ that is read is padding, so the inner result is zero. The range shrinks,
# and these positions become padding of the scope:

# %%
tight = legal(relaxed, "boundary_tightening", at="0.0")

# %% [markdown]
# Shrinking the range by one more would remove an element that is not zero:

# %%
refused(relaxed, "boundary_tightening", at="0.0", ranges={"t": [0, 5]})

# %% jupyter={"source_hidden": true} tags=["hide-input"]
taps_left = ee.Exercise(
    "**5.** `taps_left`: Tightening undoes the widening to four taps on page 4. To which range does it "
    "shrink a sum over $r \\in [-2, 5)$ of a filter with three taps? Answer with a pair.",
    (0, 3),
    "Where are the weights not padding?",
    "the three taps that exist",
)
taps_left

# %% [markdown]
# ## 6. eOperator generation

# %%
page("eoperator_generation")

# %% [markdown]
# Adding three shifted slices does little arithmetic for each element that is read. One generated kernel does it:

# %%
slices = ee.parse("""
tensor T[3, 6, 5] pad [0, 1, 0]
Y[h:6, f:5] = sum[r:3] T[r, h+r-1, f]
""")
kernel = legal(slices, "eoperator_generation")

# %% [markdown]
# A convolution does too much arithmetic for a generated kernel; a library is faster. The rule refuses it:

# %%
refused(line, "eoperator_generation")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
least_channels = ee.Exercise(
    "**6.** `least_channels`: From how many channels on does eOperator generation refuse the convolution?",
    2,
    "Apply the rule to the convolution with 1, 2, 3, … channels.",
    "from here on there are 4 operations or more for each element",
)
least_channels

# %% [markdown]
# # Rules between expressions
#
# In this part, a program has several equations. The graphs show the data flow between them.
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

# %% jupyter={"source_hidden": true} tags=["hide-input"]
combinations = ee.Exercise(
    "**7.** `combinations`: Cut the summation over $k$ in the middle. Which operation combines the two "
    "halves? And which one if the reduction is a maximum? Answer with a pair of texts.",
    ("+", "max"),
    "The operation of the reduction.",
    "a reduction of parts is reduced by the same operation",
)
combinations

# %% [markdown]
# ## 8. Sibling merging

# %%
page("sibling_merging")

# %% [markdown]
# Three products read the same $X$, as in every attention layer. Concatenate the weights, and one product replaces all
# three:

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
# All expressions must read the shared tensor with the *same* indices. An expression that reads every second row is
# refused:

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

# %% jupyter={"source_hidden": true} tags=["hide-input"]
windows_merge = ee.Exercise(
    "**8.** `windows_merge`: A filter with three taps and one with a single tap read the same signal. Can "
    "they be merged? Answer with True or False.",
    True,
    "May a window be widened?",
    "the single tap is extended by two zeros",
)
windows_merge

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
# The expressions must be identical except for the tensors that they read. This includes their sizes:

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

# %% jupyter={"source_hidden": true} tags=["hide-input"]
merging_rule = ee.Exercise(
    "**9.** `merging_rule`: $P$ and $Q$ share $A$. If $Z$ also had six rows, which rule would merge them "
    "into one product of twelve rows?",
    "sibling_merging",
    "What do they share?",
    "it concatenates the rows; batch merging stacks X and Z only",
)
merging_rule

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
# An intermediate result with other readers is kept, so fusing it is refused:

# %%
needed = ee.parse(ee.text(activated) + "output R, Y\n")
refused(needed, "expression_fusion", at="R", tensor="Y")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
one_kernel = ee.Exercise(
    "**10.** `one_kernel`: Is the fused expression one kernel? Is it still one kernel if $Y$ is the "
    "convolution `line`? Answer with a pair.",
    (True, False),
    "Count the operations for each element.",
    "a sum of slices with its ReLU is one kernel; a convolution is too dense",
)
one_kernel

# %% [markdown]
# # A rule that changes the products
#
# All rules so far preserve the multiplications of an expression. Bilinear substitution replaces them by other, fewer
# multiplications. Its steps are equal in exact arithmetic, but their floating-point results are rounded differently.
#
# ## 11. Bilinear substitution

# %%
page("bilinear_substitution")

# %%
fewer = legal(line, "bilinear_substitution", traversal="h", summation="r", outputs=2)

# %%
ee.graph(fewer, "transformed data, transformed taps, one product between them")

# %% [markdown]
# With a stride of 2, the outputs of one tile do not share data in the way that the algorithm needs:

# %%
skipping = ee.parse("""
tensor A[14, 4]
tensor K[3, 5, 4] weight
Y[h:6, f:5] = sum[c:4, r:3] A[2*h+r, c] * K[r, f, c]
""")
refused(skipping, "bilinear_substitution", traversal="h", summation="r", outputs=2)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
products_each = ee.Exercise(
    "**11.** `products_each`: How many products does each output need with tiles of 2, 4 and 6 outputs? "
    "Answer with three numbers.",
    (2, 1.5, 4 / 3),
    "A tile of m outputs takes m + 2 products.",
    "3 without tiles",
)
products_each

# %% [markdown]
# # The other rules
#
# The pages above cover every rule that search uses by default. The other rules are applied to whole programs after a
# search, or only on request. `ee.rule_page` shows each of them; here are their first lines.

# %%
assert set(paged) == {*ee.rules.RULES, *ee.rules.INTER_RULES, *ee.rules.FEWER_PRODUCTS}
for rule in (*ee.rules.IDENTITIES, *ee.rules.POST_RULES):
    print(ee.rule_page(rule).words.split("\n")[0])

# %% [markdown]
# # Answers
#
# **1.** Every proper, non-empty subset may be the outer group: $2^3 - 2 = 6$ ways. Six iterators would give 62. To
# limit this number, iterators that occur in the same reads then stay together; here they form three groups, so there
# are 6 ways again.

# %%
for read, sums in (
    ("A[h, a] * A[b, c]", "a:2, b:2, c:2"),
    ("C[a, b, c, d] * B[d, e, f]", "a:2, b:2, c:2, d:2, e:2, f:2"),
):
    tensors = "tensor A[4, 4]\ntensor B[2, 2, 2]\ntensor C[2, 2, 2, 2]"
    program = ee.parse(f"{tensors}\nY[h:4] = sum[{sums}] {read}")
    plain = [m for m in ee.rules.SUMMATION_SPLITTING.matches(program, (0,)) if not m.params.apart]
    print(len(plain), "ways:", [m.to_json()["params"]["outer"] for m in plain])
ways.grade((2**3 - 2, 2**6 - 2))

# %% [markdown]
# **2.** With $4h + f$, two different pairs give the same $i$, so the substitution has no inverse. With $6h + f$, some
# values of $i$ are never reached. This is legal for traversals: a domain excludes these values.

# %%
refused(split, "variable_substitution", at="0.0", phi={"r": "r", "i": "4*h+f"})
gaps = legal(split, "variable_substitution", at="0.0", phi={"r": "r", "i": "6*h+f"})
legal_joins.grade((False, True))

# %% [markdown]
# **3.** The result is the original convolution: merging is the inverse of splitting.

# %%
back = legal(split, "traversal_merging")
assert ee.program_key(back) == ee.program_key(line)
unsplit.grade(back)

# %% [markdown]
# **4.** $r = 2a + b$ with $a = \lfloor r/2 \rfloor$ and $b = r \bmod 2$. With three taps this substitution is refused,
# since the pairs $(a, b)$ do not fill a rectangle.

# %%
halves = legal(wide, "variable_substitution", phi={"a": "r//2", "b": "r%2"})
refused(line, "variable_substitution", phi={"a": "r//2", "b": "r%2"})
separation.grade({"a": "r//2", "b": "r%2"})

# %% [markdown]
# **5.** The range shrinks to the three existing taps. Formulas omit the ranges, so the text form is printed:

# %%
long = ee.parse("""
tensor A[6] pad [4]
tensor K[3] weight pad [2]
Y[h:6] = sum[r:-2..5] A[h+r-1] * K[r]
""")
short = legal(long, "boundary_tightening")
print(ee.text(short))
taps_left.grade((0, 3))

# %% [markdown]
# **6.** The arithmetic for each element that is read or written grows with the number of channels:

# %%
for channels in range(1, 6):
    program = ee.parse(f"""
    tensor A[6, {channels}] pad [1, 0]
    tensor K[3, 5, {channels}] weight
    Y[h:6, f:5] = sum[c:{channels}, r:3] A[h+r-1, c] * K[r, f, c]
    """)
    matches = list(ee.rules.EOPERATOR_GENERATION.matches(program, (0,)))
    flops = ee.kernels.intensity(program.scope_at((0,)))
    print(channels, f"{flops:.2f} FLOP/element", "legal" if matches else "refused")
least_channels.grade(2)

# %% [markdown]
# **7.** The operation of the reduction combines them: $+$ for a sum, $\max$ for a maximum.

# %%
for reduce in ("sum", "max"):
    program = ee.parse(f"tensor X[6, 4]\nQ[m:6] = {reduce}[k:4] X[m, k]")
    cut = ee.rules.EXPRESSION_SPLITTING.match(program, (0,), iterator="k", cuts=[2]).apply(program).after
    print(ee.text(cut))
    print(ee.equal(program, cut), end="\n\n")
combinations.grade(("+", "max"))

# %% [markdown]
# **8.** Yes. The single tap is extended to three taps, two of which are zero.

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
windows_merge.grade(True)

# %% [markdown]
# **9.** Sibling merging, with $A$ as the shared tensor: it concatenates the rows. (Batch merging is possible as well;
# it stacks $X$ and $Z$ only.)

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
merging_rule.grade("sibling_merging")

# %% [markdown]
# **10.** The sum of slices and its ReLU are one kernel (the paper's Figure 3). With the convolution inside, the fused
# expression is refused.

# %%
program = legal(together, "eoperator_generation", at="R")
dense = ee.parse(ee.text(line) + "R[h:6, f:5] = relu(Y[h, f])\n")
inlined = legal(dense, "expression_fusion", at="R", tensor="Y")
refused(inlined, "eoperator_generation", at="R")
one_kernel.grade((True, False))

# %% [markdown]
# **11.** A tile of $m$ outputs takes $m + 2$ products:

# %%
for outputs in (2, 4, 6):
    print(f"F({outputs}, 3): {ee.bilinear.correlation(outputs, 3).rank / outputs:.2f} products an output, 3 without")
products_each.grade([ee.bilinear.correlation(m, 3).rank / m for m in (2, 4, 6)])
