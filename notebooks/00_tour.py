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
# # A tour of einnet_explore
#
# einnet_explore writes a tensor program as *expressions*. A traversal $\mathbf{L}$ lists the dimensions of a result, a
# summation $\sum$ reduces over an iterator, and a *scope* $\{\dots\}$ is an intermediate result that other expressions
# read. Rules rewrite an expression into an equal one. A search applies rules until parts of the program match
# operators that a library runs fast. The remaining parts become small generated kernels, called *eOperators*.
#
# This tour applies the rules by hand, then by search, then to a whole model.

# %%
import einnet_explore as ee

# %% [markdown]
# ## An expression
#
# This is a 3×3 convolution with padding 1, in the text form. `pad` says that `A` may be read one row and one column
# outside its shape; it is 0 there.

# %%
conv = ee.parse("""
tensor A[1, 14, 14, 32] pad [0, 1, 1, 0]
tensor K[3, 3, 64, 32] weight
Y[n:1, h:14, w:14, f:64] = sum[c:32, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, f, c]
""")
ee.show(conv)

# %% [markdown]
# ## The explorer
#
# The explorer applies rules with the mouse or the keyboard. Select a scope of the expression by a click or with the
# arrow keys. Point at a rule to see its result, and click to apply it. `u` and `r` undo and redo; `s` searches. (It
# needs a running kernel. Without one, a saved notebook shows it as you left it.)

# %%
import einnet_widgets

einnet_widgets.explorer(ee.explore(conv))

# %% [markdown]
# ## The legal rules
#
# The rest of this tour does the same in code. A *session* holds a program and the steps applied to it.
#
# A path names a scope. `"0"` (or `"Y"`) is the scope of the first equation; `"0.1"` is the scope that its second
# access reads. `rules` lists the legal rule applications at a path.

# %%
session = ee.explore(conv)
session.rules(at="Y")

# %% [markdown]
# Every rule has a law (an equation) and a guard (a condition). When a guard fails, the refusal names the numbers that
# failed.

# %%
session.refusals(at="Y")

# %% [markdown]
# ## By hand: from a convolution to a matrix product
#
# The table offers a match with `Matmul` already, but of a larger matrix: a kernel first copies every window of $A$, so
# most elements nine times (*im2col*). Without the copies, the expression is no matrix product: every $h$ reads three
# rows of $A$. First split the summation. The inner scope sums over the channels $c$; the outer scope sums over the
# window $r, s$. The formula marks everything that the last step changed.

# %%
session.apply("summation_splitting", at="Y", outer=["r", "s"])
session.formula()

# %% [markdown]
# **Your turn.** In the inner scope, $h$ and $r$ only occur together, as $h+r-1$. Find a substitution that turns the
# scope into a plain product over $c$. Guess before you run the next cell.

# %%
session.rules(at="Y.0")

# %% [markdown]
# Substitute $t_1 = h+r-1$ and $t_2 = w+s-1$. The pairs $(t_1, r)$ do not fill a rectangle: $t_1$ has sixteen values, but
# each $r$ reaches only fourteen of them. The new scope therefore has a *domain*: the conditions after the bar.

# %%
session.apply(
    "variable_substitution", at="Y.0", phi={"r": "r", "s": "s", "n": "n", "f": "f", "t1": "h+r-1", "t2": "w+s-1"}
)
session.formula()

# %% [markdown]
# Three simplifications are now possible. `session.clean()` (*Tidy up* in the explorer) applies them:
#
# - The middle scope only renames indices: **merge** it into its reader.
# - No expression reads outside the domain: **relax** the conditions.
# - For $t_1 = -1$ and $t_1 = 14$, every element of $A$ that is read is padding, so the result is 0. **Tighten** the
#   range; these positions become padding of the scope.

# %%
session.clean()
session.formula()

# %% [markdown]
# Now the inner scope *is* a matrix product: $(r, s, f)$ are its rows and $(t_1, t_2)$ its columns. `operator_matching`
# recognises it, solves for the operator's attributes, and adds views around the call (a view costs nothing). Several
# matches are legal; `operator="Matmul"` selects one.

# %%
session.apply("operator_matching", at="Y.0", operator="Matmul")
session.formula()

# %% [markdown]
# The remaining expression adds nine shifted slices. It does little arithmetic for each element that it reads, so a
# kernel may be *generated* for it. The paper calls this kernel OffsetReduce.

# %%
session.apply("eoperator_generation", at="Y")
session.history(certificates=True)

# %% [markdown]
# ## Is it still the same?
#
# Every step has a certificate. The checker computes the *term relation* of both sides, that is, the products that each
# element of the result sums. It compares the two relations as integer maps. `proved` means equal for every input. For
# a wrong step the certificate names one element and the terms that differ.

# %%
session.check()

# %% [markdown]
# ## Undo, and other derivations
#
# Undone steps remain as a branch of the tree. Return to the split and continue differently: a batched product needs no
# substitution.

# %%
by_hand = session.here
session.goto(1)
session.apply("operator_matching", at="Y.0", operator="Matmul")
session.undo()
session.redo()
session.tree()

# %% [markdown]
# `script` prints the derivation of the current program as Python code.

# %%
session.goto(by_hand)
print(session.script())

# %% [markdown]
# ## By search
#
# A search applies the rules automatically and matches the results with library operators. Each row of the table is a
# whole program. The estimated time comes from a model of this machine's memory bandwidth and arithmetic speed.

# %%
run = ee.search(conv, target="Matmul", max_depth=4, budget=10)
run

# %% [markdown]
# Did the search find our derivation? Look for a matrix product of the same sizes; its operands may be swapped.


# %%
def products(candidate):
    return [sorted(n for n in dict(e.via.attributes).values() if n > 1) for e in candidate.operators]


found = next(c for c in run.candidates if products(c) == [[32, 196, 576]])
ee.show(found)

# %% [markdown]
# The search tree shows the path to this candidate. A dot is a state, a square is a candidate, and each row is one more
# choice.

# %%
run.tree(to=found)

# %% [markdown]
# `session.adopt(found.derivation)` would add its steps to the session's tree as another branch.

# %% [markdown]
# ## Graphs, before and after
#
# eOperators are red with a thick border. Library operators are blue. Views have a folded corner; they cost nothing.

# %%
ee.graph(conv, "before")

# %%
ee.graph(session.program, "after: by hand")

# %%
ee.graph(run.best.program, "after: the cheapest by estimate")

# %% [markdown]
# ## A whole model, in one cell
#
# The generator of InfoGAN turns noise into an image by transposed convolutions. `optimize` partitions the model into
# subprograms and derives candidates for each. It *measures* the candidates and the original on this machine, and keeps
# only the faster candidates. Then it compares the outputs with those of ONNX Runtime. The replaced subprograms differ
# from machine to machine.

# %%
ee.write_model("infogan", "infogan.onnx")
fast = ee.optimize("infogan.onnx", budget=15, threads=1)
fast

# %% [markdown]
# The result is a Python function. `save` writes an ONNX file of standard operators, and of functions made of them
# (ONNX's model-local functions), which any ONNX runtime executes.

# %%
fast.save("infogan_fast.onnx")
outputs = fast(**fast.random_inputs())
{name: value.shape for name, value in outputs.items()}

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
products_each = ee.Exercise(
    "`products_each`: how many multiplications does the convolution `conv` make for each element of its result?",
    288,
    hint="Count the values of the iterators below the sum.",
    why="the sum runs over 32 channels and 3·3 taps",
)
products_each

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
products_each.grade(32 * 3 * 3)


# %% jupyter={"source_hidden": true} tags=["hide-input"]
def sums_over_288(program):
    sizes = [dict(e.via.attributes)["k"] for e in program.equations if e.via and e.via.operator == "Matmul"]
    return "" if sizes == [288] else f"its matrix products sum over {sizes} values, expected [288]"


im2col = ee.Exercise(
    "`im2col`: derive from `conv` a program with one matrix product that sums over channels *and* window, by hand or "
    "by search. Answer with the session or the candidate.",
    conv,
    hint="Match the convolution with Matmul as it is, without a split.",
    why="one product with k = 32·3·3, after a kernel that gathers the windows",
    objection=sums_over_288,
)
im2col

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
by_matching = ee.explore(conv)
by_matching.apply("operator_matching", at="Y", operator="Matmul")
im2col.grade(by_matching)

# %% [markdown]
# ## From here
#
# - [EinNet without the paper](07_einnet_lecture.py), a lecture; [a lesson](02_lesson.py) in which you guess the rules;
#   [the rules, one by one](01_rules.py).
# - [Searching like a researcher](03_researcher.py); [a model in one cell](04_one_click.py); [your own rule and
#   operator](06_your_own.py).
# - The paper's figures, [drawn](05_figures.py). The paper's derivations: [one convolution](10_one_convolution.py),
#   [several expressions](11_merging.py), [post-optimisation](12_post_optimisation.py), and beyond it [linear algebra across
#   operators](13_across_operators.py).
# - More: [tiles](20_flattening_and_tiles.py), [element-wise kernels](21_elementwise.py),
#   [reductions](22_fused_reductions.py), [gradients](30_gradients_and_cse.py), [all sizes at
#   once](31_for_all_sizes.py), [fewer multiplications](40_fewer_multiplications.py).
#
# These notebooks are Python scripts in the same folder. To run one, right-click it in the file browser and choose
# *Open With*, *Notebook*.
