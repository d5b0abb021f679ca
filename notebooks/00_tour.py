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
# # A tour of einnet_explore
#
# A tensor program is read as *expressions*: traversals $\mathbf{L}$ give the dimensions of a result, summations $\sum$ reduce, and
# a *scope* $\{\dots\}$ is a result that others read. Rules rewrite expressions into equal ones. A search steers them towards
# operators that a library runs fast; what is left becomes small generated kernels, *eOperators*.
#
# Here it is done by hand, then by search, then for a whole model.

# %%
import einnet_explore as ee

# %% [markdown]
# ## An expression
#
# A 3×3 convolution with padding 1, in the text form. `A` may be read one row and one column outside, where it is 0.

# %%
conv = ee.parse("""
tensor A[1, 6, 5, 4] pad [0, 1, 1, 0]
tensor K[3, 3, 8, 4] weight
Y[n:1, h:6, w:5, f:8] = sum[c:4, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, f, c]
""")
session = ee.explore(conv)
session.formula()

# %% [markdown]
# ## What may be done here?
#
# A place is a path: `"0"` is the first equation's scope (`"Y"` is the same), `"0.1"` the scope that its second access reads.
# `rules` lists the legal matches at a place.

# %%
session.rules(at="Y")

# %% [markdown]
# A rule is a law with a guard. Where a guard fails, it says which numbers failed.

# %%
session.refusals(at="Y")

# %% [markdown]
# ## By hand: from a convolution to a matrix product
#
# No matrix product is in sight: every $h$ reads three rows of $A$. First split the summation. The inner scope sums over the channels only,
# the outer one over the window $r, s$. What a step put in is coloured.

# %%
session.apply("summation_splitting", at="Y", outer=["r", "s"])
session.formula()

# %% [markdown]
# **Your turn.** In the inner scope, $h$ and $r$ only occur together. Which substitution makes it a plain product over $c$? Guess before
# you run the next cell.

# %%
session.rules(at="Y.0")

# %% [markdown]
# Substitute $t_1 = h+r-1$ and $t_2 = w+s-1$. The image of that map is no box: $t_1$ has eight values, but for each $r$ only six of them are
# reached. So the new scope has a *domain*, the conditions behind the bar.

# %%
session.apply(
    "variable_substitution", at="Y.0", phi={"r": "r", "s": "s", "n": "n", "f": "f", "t1": "h+r-1", "t2": "w+s-1"}
)
session.formula()

# %% [markdown]
# Three clean-ups are due, and `clean` finds them:
#
# - the scope in between only renames indices: it is **merged** away;
# - nobody reads outside the domain: its conditions are **relaxed**;
# - for $t_1 = -1$ and $t_1 = 6$ all of $A$ is padding, so the result is 0 there: the range is **tightened**, and those places become
#   padding of the scope.

# %%
matches, _ = ee.clean(session.program)
for match in matches:
    session.apply(match)
session.formula()

# %% [markdown]
# Now the inner scope *is* a matrix product: $(r, s, f)$ are its rows, $(t_1, t_2)$ its columns. `operator_matching` recognises it, solves the
# attributes, and puts views (they cost nothing) around the call. Of several legal matches, `operator="Matmul"` picks one.

# %%
session.apply("operator_matching", at="Y.0", operator="Matmul")
session.formula()

# %% [markdown]
# What is left adds nine shifted slices: little work for each element that it reads, so it may be *generated*. This is the OffsetReduce of the paper.

# %%
session.apply("eoperator_generation", at="Y")
session.history(certificates=True)

# %% [markdown]
# ## Is it still the same?
#
# Every step has a certificate. The *term relations* of both sides (which products does each element of the result sum?) are compared as integer
# maps: `proved` means equal for every input. A false step would name an element and the terms that differ.

# %%
session.check()

# %% [markdown]
# ## Undo, and other ways
#
# What was undone stays as a branch. Go back to the split, and take another way from there: a batched product needs no substitution.

# %%
by_hand = session.here
session.goto(1)
session.apply("operator_matching", at="Y.0", operator="Matmul")
session.undo()
session.redo()
session.tree()

# %% [markdown]
# `script` is the way to where you stand, as code.

# %%
session.goto(by_hand)
print(session.script())

# %% [markdown]
# The same by clicking: choose a scope in the expression or walk there with the arrow keys, point at a rule to see what it would give, and
# click to apply it. `u` and `r` undo and redo, `s` searches. (It needs a running kernel; without one there is the picture.)

# %%
import einnet_widgets

einnet_widgets.explorer(ee.explore(conv))

# %% [markdown]
# ## By search
#
# A search tries the rules by itself and takes what it finds to library operators. Each row is a whole program; the estimate comes from a model of
# this machine's bandwidth and arithmetic.

# %%
run = ee.search(conv, target="Matmul", max_depth=4, limit=10).start().wait()
run

# %% [markdown]
# Did it find what we did by hand? A product of the same sizes, the operands perhaps in the other order:


# %%
def products(candidate):
    return [sorted(n for n in dict(e.via.attributes).values() if n > 1) for e in candidate.operators]


found = next(c for c in run.candidates if products(c) == [[4, 30, 72]])
ee.show(found)

# %% [markdown]
# And this is where it found it. A dot is a state, a square a candidate, a row one more choice.

# %%
run.tree(to=found)

# %% [markdown]
# `session.adopt(found.derivation)` would take its steps into the session, next to ours.

# %% [markdown]
# ## Graphs, before and after
#
# eOperators are red with a thick border, library operators blue, and views, which cost nothing, have a dog-ear.

# %%
ee.graph(conv, "before")

# %%
ee.graph(session.program, "after: by hand")

# %%
ee.graph(run.best.program, "after: the cheapest by estimate")

# %% [markdown]
# ## A whole model, in one cell
#
# The generator of InfoGAN upsamples noise to an image by transposed convolutions. `optimize` splits the model, derives candidates for each part, *measures* them
# on this machine against the original, keeps only what is faster, and compares the result with ONNX Runtime's. Which parts win depends on the machine.

# %%
ee.write_model("infogan", "infogan.onnx")
fast = ee.optimize("infogan.onnx", budget="15s", threads=1)
fast

# %% [markdown]
# The result is a function, and an ONNX file of standard operators that any runtime executes.

# %%
fast.save("infogan_fast.onnx")
outputs = fast(**fast.random_inputs())
{name: value.shape for name, value in outputs.items()}

# %% [markdown]
# ## From here
#
# - [The rules, one by one](01_rules.py), with exercises; [a lesson](02_lesson.py) in which you guess them.
# - [Searching like a researcher](03_researcher.py); [a model in one cell](04_one_click.py); [your own rule and operator](06_your_own.py).
# - The paper's figures: [drawn](05_figures.py), and found: [one convolution](10_one_convolution.py), [several expressions](11_merging.py), [after the search](12_post_optimisation.py).
# - Further: [tiles](20_flattening_and_tiles.py), [element-wise kernels](21_elementwise.py), [reductions](22_fused_reductions.py), [gradients](30_gradients_and_cse.py),
#   [all sizes at once](31_for_all_sizes.py), [fewer multiplications](40_fewer_multiplications.py).
#
# They are scripts beside this notebook. To run one, right-click it in the file browser: *Open With*, *Notebook*.
