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
# A tensor program is read as *expressions*: traversals $\mathbf{L}$ give the result's dimensions, summations $\sum$ reduce, and
# a *scope* $\{\dots\}$ is a result that is instantiated. Rules rewrite expressions into equal ones. A search steers them
# to operators that a library runs fast; what is left becomes small generated kernels, *eOperators*.
#
# This notebook does it by hand, then by search, then for a whole model.

# %%
import einnet_explore as ee

# %% [markdown]
# ## An expression
#
# A 3×3 convolution with padding 1, in the text form. Sizes are small here, so that everything is checked in an instant.

# %%
conv = ee.parse("""
tensor A[1, 6, 5, 4] pad [0, 1, 1, 0]
tensor K[3, 3, 8, 4] weight
Y[n:1, h:6, w:5, f:8] = sum[c:4, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, f, c]
""")
session = ee.explore(conv)
session

# %% [markdown]
# ## What may be done here?
#
# Each rule is a law with a guard. `rules` lists the legal matches at a scope; `refusals` says why the other rules do not apply.

# %%
for match in session.rules(at="0"):
    print(match.to_json())

# %%
for refusal in session.refusals(at="0"):
    print(f"{refusal.rule}: {refusal.why}")

# %% [markdown]
# ## By hand: E1 to E6
#
# Split the summation: the inner scope sums over the channels only, the outer one over the kernel window.

# %%
session.apply("summation_splitting", at="0", outer=["r", "s"])
session

# %% [markdown]
# Inside, `h` and `r` only ever occur as `h+r`. Substituting $t_1 = h+r$, $t_2 = w+s$ makes the inner scope a plain product.
# The image of that substitution is no box ($t_1 - r$ must lie in $[0, H)$): the new scope carries a domain.

# %%
session.apply("variable_substitution", at="0.0", phi={"r": "r", "s": "s", "n": "n", "f": "f", "t1": "h+r-1", "t2": "w+s-1"})
session

# %% [markdown]
# No reader leaves the domain, so it may be relaxed; the scope in between only re-indexes and is merged away; the rows
# $t_1 = -1$ and $t_1 = H$ lie in the padding of `A`, so their result is constant and is tightened away.

# %%
tidy = ee.clean(session.program)
for match in tidy:
    print(match.to_json())
    session.apply(match)
session

# %% [markdown]
# Every step can be undone, and nothing is lost: what was undone stays as a branch.

# %%
before = session.here
session.undo()
session.redo()
assert session.here == before

# %% [markdown]
# ## Is it still the same?
#
# Each step carries a certificate: the *term relations* of both sides (which products does each output element sum?) are compared
# as integer maps. `proved` holds for every input; a false step would show the element and the term that differ.

# %%
for step, certificate in zip(session.derivation.steps, session.certificates(), strict=True):
    print(f"{step.match.rule.name:24} {certificate.kind}")
session.check()

# %% [markdown]
# ## By search
#
# The search finds this and more by itself. Every candidate is a program of library operators, views and eOperators.

# %%
run = ee.search(conv, target="Matmul", max_depth=4, limit=20)
for _ in run:
    pass
run

# %%
run.tree()

# %% [markdown]
# The graphs before and after. eOperators are red with a thick border, library operators blue, free views have a dog-ear.

# %%
ee.graph(conv, "before")

# %%
ee.graph(run.best.program, "after")

# %% [markdown]
# ## A whole model, in one cell
#
# The generator of InfoGAN is five transposed convolutions. `optimize` splits the model, derives candidates for each part, *measures* them on this
# machine against the original, keeps what is faster, and checks the result against ONNX Runtime.

# %%
ee.write_model("infogan", "infogan.onnx")
fast = ee.optimize("infogan.onnx", budget="60s")
fast

# %% [markdown]
# The result can be saved as ONNX (standard operators only) and called like a function.

# %%
fast.save("infogan_fast.onnx")
outputs = fast(**fast.random_inputs())
{name: value.shape for name, value in outputs.items()}
