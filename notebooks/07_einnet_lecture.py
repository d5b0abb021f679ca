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

# %% [markdown] slideshow={"slide_type": "slide"}
# # EinNet without the paper
#
# A lecture of 60 minutes on *derivation*: how a compiler finds tensor programs that no list of operators contains.
#
# | minutes | part |
# |---|---|
# | 0–12 | Why substituting operators is not enough |
# | 12–20 | Expressions |
# | 20–32 | Rules, and a derivation by hand |
# | 32–45 | Search: matching, distance, fingerprints |
# | 45–58 | Beyond the paper: proofs, fewer multiplications, across operators |
# | 58–60 | Summary, exercises |

# %% [markdown] slideshow={"slide_type": "notes"}
# The lecture needs no knowledge of the paper (EinNet, OSDI'23). Listeners know matrix products and convolutions. The
# site has the slides of this notebook; `S` opens these notes. [The lesson](02_lesson.py) is the exercise class.
# [The map](../docs/reading-einnet.md) leads from the paper's sections to this project.

# %% [markdown] slideshow={"slide_type": "slide"}
# ## 1. Why substituting operators is not enough
#
# A model is a graph of *predefined* operators: `Conv`, `MatMul`, `Add`, … A library has a fast kernel for each.
#
# An optimiser of graphs replaces a small graph by an equal one:
#
# - **by hand** (TensorRT, XLA): experts write each replacement.
# - **TASO** generates all small graphs of operators and keeps the pairs that are equal.
# - **PET** also accepts pairs that are equal *almost* everywhere, and corrects the other elements.
#
# Both sides of each replacement consist of predefined operators.

# %% [markdown] slideshow={"slide_type": "notes"}
# 4 minutes. Ask: which replacements do you know? Typical answers: a Conv followed by BatchNorm, two MatMuls with a common
# input, im2col. All of them are graphs of operators on both sides; the paper calls these transformations *predefined
# operator representable* (POR).

# %% slideshow={"slide_type": "slide"}
import math

import einnet_explore as ee

conv = ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1)
run = ee.search(conv, max_depth=3, budget=60)
print(len(run.candidates), "programs are equal to this 3×3 convolution")


# %%
def generated(candidate):
    """The kinds of kernels that *candidate* needs besides operators of the library."""
    calls = [equation.via for equation in candidate.program.equations]
    return {dict(call.attributes)["kind"] for call in calls if call.operator == "eOperator"}


predefined = [c for c in run.candidates if generated(c) <= {"layout"}]
[equation.via for candidate in predefined for equation in candidate.operators]

# %% [markdown] slideshow={"slide_type": "fragment"}
# Two programs consist of predefined operators and changes of layout: the convolution itself, and im2col with a matrix
# product. No list of substitutions contains the others: each needs a small kernel *that has no name*.

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### One of the others

# %%
offset_reduce = run.find("Matmul", m=196, n=288, k=32)
ee.graph(offset_reduce.program, "one Matmul, and a kernel without a name")

# %% [markdown]
# One product of all pixels with all nine taps, then a kernel that adds nine shifted slices. On an A100 the paper
# measures 2.7 times the speed of cuDNN for a layer of ResNet-18.

# %% [markdown] slideshow={"slide_type": "notes"}
# 5 minutes. im2col copies the *input* nine times, this program writes the *output* nine times. So the better one depends
# on the sizes. Schedulers (TVM, Ansor) do not find it either: a schedule orders the operations of one expression, and
# never makes other operations.

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### The idea
#
# | | substitution | derivation |
# |---|---|---|
# | a program is | a graph of operators | **expressions** |
# | a step is | a pair of small graphs | **a rule** with a guard |
# | operators are | all that there is | **found** at the end, where an expression is one |
# | the rest is | impossible | a generated kernel, an **eOperator** |
#
# Substitution asks: *which operators can follow?* Derivation asks: *what is computed?*

# %% [markdown] slideshow={"slide_type": "slide"}
# ## 2. Expressions
#
# An expression says how each element of the result is computed.

# %%
line = ee.parse("""
tensor A[6, 4] pad [1, 0]
tensor K[3, 5, 4] weight
Y[h:6, f:5] = sum[c:4, r:3] A[h+r-1, c] * K[r, f, c]
""")
ee.show(line)

# %% [markdown]
# - The **traversal** $\mathbf{L}$ lists the dimensions of the result. Its order is the layout.
# - The **summation** $\sum$ has no order.
# - `pad [1, 0]`: one row outside of $A$ may be read, and is zero.

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### Scopes
#
# $A \times B \times C$: the braces enclose a **scope**, an intermediate result that is computed once.

# %%
ee.show(
    ee.parse("""
tensor A[5, 4]
tensor B[4, 3]
tensor C[3, 6]
Y[r:5, c:6] = sum[q:3] {[r:5, q:3] sum[p:4] A[r, p] * B[p, q]}[r, q] * C[q, c]
""")
)

# %% [markdown] slideshow={"slide_type": "notes"}
# 8 minutes for expressions. Question: what does the program compute without the braces? The same numbers, with 5·6·3·4
# multiplications of three factors. A scope is the place where rules act: they make scopes, change them and merge them.

# %% [markdown] slideshow={"slide_type": "slide"}
# ## 3. Rules
#
# | rule | what it does | legal if |
# |---|---|---|
# | summation splitting | an inner sum becomes a scope | both groups have an iterator |
# | variable substitution | other iterators for the same elements | the map is a bijection |
# | traversal merging | a scope disappears into its reader | the reader stays in its range |
# | boundary relaxing | more elements are computed | nobody sees them |
# | boundary tightening | fewer elements are computed | the others are constant |
# | splitting, merging, fusion | between expressions | the computations are the same |
#
# [A page for each rule](01_rules.py): its law, its guard, a refusal with the numbers that failed.

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### A derivation by hand: split
#
# $h$ and $r$ occur as $h+r-1$ only: a convolution is almost a matrix product. First, the sum over the channels becomes a
# scope of its own.

# %%
session = ee.explore(line)
session.apply("summation_splitting", at="Y", outer=["r"])
session.formula()

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### Substitute
#
# Now $t = h+r-1$ takes the place of $h$ in the inner scope.

# %%
session.apply("variable_substitution", at="Y.0", phi={"r": "r", "f": "f", "t": "h+r-1"})
session.formula()

# %% [markdown]
# The map has to be a bijection. Without $r$ it is none, and the rule refuses:

# %%
try:
    session.apply("variable_substitution", at="Y.0.0", phi={"f": "f", "t": "t-r"})
except ee.Refused as refusal:
    print(refusal)

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### Simplify
#
# Three steps clean up: merge the scope that only renames, relax the condition, tighten the range.

# %%
session.clean()
session.formula()

# %% [markdown] slideshow={"slide_type": "fragment"}
# The inner scope is a matrix product: $(r, f)$ are its columns, $t$ its rows, $c$ is summed.

# %% [markdown] slideshow={"slide_type": "notes"}
# 12 minutes for rules. Let the listeners guess each step ([the lesson](02_lesson.py) has this as a quiz in two
# dimensions). The step that surprises: after the substitution *more* elements are computed than before.

# %% [markdown] slideshow={"slide_type": "slide"}
# ## 4. Search
#
# ### Is it an operator? The mapping table
#
# An operator is characterised by the tensors that each iterator indexes. Equal tables: the expression is the operator.

# %%
session.table("Matmul", at="Y.0")

# %% [markdown]
# $(r, f)$ are two iterators where Matmul has one: **distance** 1. Joining them, $n = 5r + f$, removes the mismatch.
# Strides and paddings are then solved from the coefficients of the flattened tensors.

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### What remains is a kernel

# %%
session.apply("operator_matching", at="Y.0", operator="Matmul")
session.apply("eoperator_generation", at="Y")
session.graph()

# %% [markdown]
# The rest does less than 4 operations for each element that it reads: its kernel is bound by memory, so it can be
# generated, and its time is estimated from the bytes that it moves. A *dense* rest is refused: libraries are better at it.

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### The space is large
#
# Apply all rules everywhere (*explorative derivation*). The table counts the states of our small convolution.


# %%
def states(depth, **options):
    found = ee.search(line, strategy="paper", converging=False, max_depth=depth, **options)
    return len(found.search.states)


rows = [f"{depth:5} {states(depth, fingerprint=False):21} {states(depth):5}" for depth in range(1, 6)]
print("depth  without fingerprints  with", *rows, sep="\n")

# %% [markdown]
# Most states have been there before, with other names. The paper prunes 98 % of the states by **fingerprints**.

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### Fingerprints
#
# Equal keys: other names and other orders of sums and operands. Another order of traversals is another layout.

# %%
written = "tensor A[6, 4]\ntensor B[4, 5]\n"
one = ee.parse(written + "Y[m:6, n:5] = sum[k:4] A[m, k] * B[k, n]")
renamed = ee.parse(written + "Y[i:6, j:5] = sum[x:4] B[x, j] * A[i, x]")
transposed = ee.parse(written + "Y[n:5, m:6] = sum[k:4] A[m, k] * B[k, n]")
print("renamed:   ", ee.program_key(one) == ee.program_key(renamed))
print("transposed:", ee.program_key(one) == ee.program_key(transposed))

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### The distance leads to an operator
#
# *Converging derivation*: choose an operator, then take only steps that lower the distance. They need no search.

# %%
taps = "tensor A[196, 32]\ntensor K[32, 3, 3, 32]\nT[t:196, r:3, s:3, f:32] = sum[c:32] A[t, c] * K[c, r, s, f]"
near = ee.explore(ee.parse(taps))
print(near.table("Matmul").distance.total, "mismatches")
near.converge("Matmul")
near.history()

# %% [markdown]
# Exploration then only has to come *near*: for a transposed convolution of the paper, 6 choices instead of 12 steps.

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### The whole search
#
# Dots are states, squares are programs that run. The thick line leads to the program of part 1.

# %%
run.tree(to=offset_reduce)

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### Whole models
#
# 1. Split the model into subprograms, at non-linear functions.
# 2. Close each subprogram under the rules *between* expressions; search each expression of the results.
# 3. Keep the best; fuse eOperators; compute what depends on weights only beforehand.
#
# [Merging](11_merging.py) and [post-optimisation](12_post_optimisation.py) find the paper's figures this way.

# %% [markdown] slideshow={"slide_type": "notes"}
# 13 minutes for search. The default strategy here orders choices by estimated time and cleans up after each of them;
# `strategy="paper"` is the paper's.

# %% [markdown] slideshow={"slide_type": "slide"}
# ## 5. Beyond the paper
#
# ### Proofs
#
# The paper trusts its rules. Here every step has a **certificate** by a checker that knows no rules: it compares the terms
# that each element of the result sums.

# %%
session.check()

# %%
wrong = ee.parse(ee.text(line).replace("h+r-1", "h-r+1"))
ee.equal(line, wrong)

# %% [markdown] slideshow={"slide_type": "fragment"}
# With symmetric filters, a test by numbers does not find this mistake. The same is possible
# [for all sizes at once](31_for_all_sizes.py).

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### Fewer multiplications
#
# Rules of the paper reorder the same multiplications. **Bilinear** algorithms have fewer: F(2, 3) computes two outputs of a
# filter with three taps by 4 products instead of 6. One rule, checked exactly ([notebook](40_fewer_multiplications.py)).

# %%
fewer = ee.explore(line, rules=("bilinear_substitution",))
fewer.apply("bilinear_substitution", at="Y", traversal="h", summation="r", outputs=2)
print(*(equation.name + " " + str(equation.scope.shape) for equation in fewer.program.equations))
fewer.check()

# %% [markdown] slideshow={"slide_type": "subslide"}
# ### Across operators
#
# Linear algebra does not care where an operator ends: $(Q K^T) V = Q (K^T V)$.

# %%
attention = ee.parse("""
tensor Q[1024, 64]
tensor K[1024, 64]
tensor V[1024, 64]
S[i:1024, j:1024] = sum[d:64] Q[i, d] * K[j, d]
Y[i:1024, v:64] = sum[j:1024] S[i, j] * V[j, v]
output Y
""")
ee.show(attention)

# %% slideshow={"slide_type": "subslide"}
linear = ee.search(attention, max_depth=1).best
products = sum(math.prod(dict(equation.via.attributes).values()) for equation in linear.operators)
print(f"{2 * 1024 * 1024 * 64:,} multiplications before, {products:,} after")
ee.graph(linear.program)

# %% [markdown]
# The same normal form gives causal attention in chunks ([notebook](13_across_operators.py)).

# %% [markdown] slideshow={"slide_type": "slide"}
# ## Summary
#
# - Substitution needs a name for everything. **Derivation** needs names only at the end.
# - Expressions with scopes; a few rules with guards; operators are recognised by their **mapping table**.
# - The search explores, converges by **distance**, and forgets what it has seen by **fingerprints**.
# - Steps are **proved**; laws beyond the paper fit into the same frame.
#
# Next: [a quiz on the derivation in two dimensions](02_lesson.py), [a model in one cell](04_one_click.py), [your own
# rule](06_your_own.py).

# %% [markdown] slideshow={"slide_type": "slide"}
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
distance = ee.Exercise(
    "`distance`: how many mismatches has the 3×3 convolution `conv` against Matmul?",
    3,
    hint="h and w are where Matmul has m; c, r and s are where it has k.",
    why="one in the group of m, two in the group of k",
)
distance

# %% jupyter={"outputs_hidden": true, "source_hidden": true} slideshow={"slide_type": "skip"} tags=["hide-cell"]
distance.grade(ee.explore(conv).table("Matmul").distance.total)


# %% jupyter={"source_hidden": true} tags=["hide-input"]
def sums_over_12(program):
    sizes = [dict(e.via.attributes)["k"] for e in program.equations if e.via and e.via.operator == "Matmul"]
    return "" if sizes == [12] else f"its matrix products sum over {sizes} values, expected [12]"


gathered = ee.Exercise(
    "`gathered`: derive from `line` a program with one matrix product that sums over channels *and* taps. Answer with a "
    "session or a candidate.",
    line,
    hint="No split is needed: match the whole expression.",
    why="im2col: a kernel gathers the windows, then one product with k = 4·3",
    objection=sums_over_12,
)
gathered

# %% jupyter={"outputs_hidden": true, "source_hidden": true} slideshow={"slide_type": "skip"} tags=["hide-cell"]
gathered.grade(ee.search(line, max_depth=1).find("Matmul", k=12))
