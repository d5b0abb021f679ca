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
# # Figures for papers and slides
#
# This notebook reproduces those figures of the EinNet paper that show programs, derivations or searches. Nothing is
# copied: every figure is found by search or computed here. Each figure has its own function. Copy the function, change
# the sizes, and save the result:
#
# | result | how to save it |
# |---|---|
# | a figure in the width of a column | `ee.figures.derivation(it).save("fig.pdf")`, `.svg`, `.png`, `.tikz` |
# | any other figure | `figure.save("fig.svg")`, `.pdf`, `.png`; `width="3.3in"` scales it |
# | expressions, derivations | `ee.show(it).latex()`: `amsmath` |
# | tables | `table.to_latex()`: `booktabs` |
#
# Searches are deterministic, so every run draws the same figures.

# %%
from pathlib import Path

import einnet_explore as ee

CONV = ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1)
MATMULS = ee.search(CONV, max_depth=3, budget=60)
OFFSET_REDUCE = MATMULS.find("Matmul", m=196, n=288, k=32)

# %% [markdown]
# ## Fig. 3: Conv3×3 and Conv1×1, merged into one product


# %%
def merged():
    """Return graphs of the original, and of the program with one Matmul and OffsetReduce fused with ReLU."""
    start = ee.parse("""
    tensor A[1, 24, 9, 8] pad [0, 0, 1, 1]
    tensor K[16, 24, 3, 3] weight
    tensor L[32, 24, 1, 1] weight
    Y[n:1, f:16, h:9, w:8] = sum[c:24, r:3, s:3] A[n, c, h+r-1, w+s-1] * K[f, c, r, s]
    Z[n:1, f:32, h:9, w:8] = sum[c:24, r:1, s:1] A[n, c, h+r, w+s] * L[f, c, r, s]
    R[n:1, f:16, h:9, w:8] = relu(Y[n, f, h, w])
    output R, Z
    """)
    both = ee.search(start, budget=12, max_depth=2).find("Matmul", m=9 * 16 + 32)
    return ee.graph(start, "Fig. 3, before"), ee.graph(ee.post_optimize(both).end, "Fig. 3, after")


fig3_before, fig3 = merged()
fig3_before

# %%
fig3

# %% [markdown]
# ## Fig. 4: an expression with a scope
#
# $A \times B \times C$. The braces enclose a scope: the intermediate product, which is computed once.


# %%
def three_matrices():
    return ee.show(
        ee.parse("""
        tensor A[5, 4]
        tensor B[4, 3]
        tensor C[3, 6]
        Y[r:5, c:6] = sum[q:3] {[r:5, q:3] sum[p:4] A[r, p] * B[p, q]}[r, q] * C[q, c]
        """)
    )


fig4 = three_matrices()
fig4

# %% [markdown]
# ## Fig. 5: from a convolution to Matmul and OffsetReduce, step by step

# %%
fig5 = ee.show(OFFSET_REDUCE.derivation)
fig5

# %% [markdown]
# ## Fig. 6: a 5×5 convolution as a 3×3 one


# %%
def smaller_window():
    five = ee.ops.conv2d(N=16, H=224, W=224, C=32, F=1, R=5, S=5, layout="NCHW", padding=2)
    run = ee.search(five, target="Conv2d", max_depth=4, budget=4)
    return ee.graph(run.find("Conv2d", r=3, s=3, f=4).program, "Fig. 6: Conv5×5 as Conv3×3")


fig6 = smaller_window()
fig6

# %% [markdown]
# ## Fig. 7: the space of programs around one convolution
#
# This is the search tree; the thick line is the derivation of Fig. 5. The squares are executable programs, including
# im2col, grouped convolutions and smaller windows (notebook 10 shows each of them).

# %%
fig7 = MATMULS.tree(to=OFFSET_REDUCE)
fig7

# %% [markdown]
# ## Fig. 8: matching an operator
#
# An expression may read its tensors with any strides for which the library has an attribute. Here the second operand
# of $Y$ has its batch in the middle. Matching solves for the attributes of the library call from the coefficients of
# the flattened tensors.


# %%
def matched():
    batched = ee.parse("""
    tensor X[6, 8, 5]
    tensor Z[5, 6, 7]
    Y[u:6, v:8, w:7] = sum[x:5] X[u, v, x] * Z[x, u, w]
    """)
    run = ee.search(batched, target="Matmul", max_depth=1, budget=4)
    return ee.show(run.best.program)


fig8 = matched()
fig8

# %% [markdown]
# The iterator mapping table (Table 2):

# %%
table2 = ee.explore(CONV).table("Matmul")
table2

# %% [markdown]
# ## Fig. 10: distance guides the search
#
# The table shows the expression distance after each step of Fig. 5: the number of iterators in the nearest scope that
# do not fit the mapping table of Matmul. The first two steps are choices, and the distance may grow or shrink.
# Simplifications follow; while a scope has conditions, it has no distance to the operator. If several iterators
# correspond to one dimension of the operator, each extra one counts as a mismatch. A search joins them all at once when
# it matches.


# %%
def distances(derivation):
    rows = [("0", "start", distance_to_matmul(derivation.start))]
    rows += [(str(n), s.match.rule.name, distance_to_matmul(s.after)) for n, s in enumerate(derivation.steps, 1)]
    return ee.TextTable(("E", "rule", "distance to Matmul"), tuple(rows))


def distance_to_matmul(program):
    if any(e.via and e.via.operator == "Matmul" for e in program.equations):
        return "matched"
    session = ee.explore(program)
    tables = [session.table("Matmul", at) for at in {match.at for match in session.rules()}]
    known = [table.distance.total for table in tables if table.distance]
    return str(min(known)) if known else "no such scope"


fig10 = distances(OFFSET_REDUCE.derivation)
fig10

# %% [markdown]
# `session.converge` joins iterators one by one, as in the paper: each variable substitution lowers the distance by one.

# %%
session = ee.explore(
    ee.parse("""
tensor A[14, 14, 32]
tensor K[32, 3, 3, 32]
T[t1:14, t2:14, r:3, s:3, f:32] = sum[c:32] A[t1, t2, c] * K[c, r, s, f]
""")
)
session.converge("Matmul")
joined = distances(session.derivation)
joined

# %% [markdown]
# ## Fig. 11: post-optimisation of a generator's layer
#
# Consecutive eOperators are fused; the transform of the weights runs at compile time.


# %%
def generator():
    start = ee.parse("""
    tensor X[1, 48, 4, 4]
    tensor L[8, 48, 4, 4] weight pad [0, 0, 7, 7]
    Z[n:1, c:8, y:8, x:8] = sum[f:48, h:4, w:4] X[n, f, h, w] * L[c, f, y-2*h+1, x-2*w+1]
    T[n:1, c:8, y:8, x:8] = tanh(Z[n, c, y, x])
    output T
    """)
    best = ee.search(start, budget=6, max_depth=2).find("Matmul")
    return ee.graph(best.program, "Fig. 11 b: as searched"), ee.graph(ee.post_optimize(best).end, "Fig. 11 c: fused")


fig11_searched, fig11 = generator()
fig11

# %% [markdown]
# ## Fig. 14: dilated attention as dense bands


# %%
def dense_bands():
    start = ee.parse("""
    tensor Q[2, 64, 16]
    tensor K[2, 64, 16] pad [0, 8, 0]
    tensor V[2, 64, 16] pad [0, 8, 0]
    S[b:2, m:64, w:9] = sum[k:16] Q[b, m, k] * K[b, m+2*w-8, k]
    E[b:2, m:64, w:9] = exp(S[b, m, w])
    Y[b:2, m:64, n:16] = sum[w:9] E[b, m, w] * V[b, m+2*w-8, n]
    output Y
    """)
    found = ee.search(start, budget=15, max_depth=3).candidates
    both = [c for c in found if sum(dict(e.via.attributes).get("d") == 1 for e in c.operators) == 2]
    best = min(both, key=lambda c: (len(c.operators), c.seconds))
    return ee.graph(start, "Fig. 14, before"), ee.graph(best.program, "Fig. 14 d")


fig14_before, fig14 = dense_bands()
fig14

# %% [markdown]
# ## Fig. 15: separable convolutions: one Matmul and one BatchMatmul


# %%
def separable():
    start = ee.parse("""
    tensor X[1, 24, 8, 7] pad [0, 0, 2, 2]
    tensor A[9, 24, 5, 1] weight
    tensor B[9, 9, 1, 5] weight
    tensor C[9, 24, 1, 5] weight
    tensor D[9, 9, 5, 1] weight
    P[n:1, f:9, h:8, w:7] = sum[c:24, r:5, s:1] X[n, c, h+r-2, w+s] * A[f, c, r, s] pad [0, 0, 0, 2]
    Q[n:1, f:9, h:8, w:7] = sum[c:9, r:1, s:5] P[n, c, h+r, w+s-2] * B[f, c, r, s]
    R[n:1, f:9, h:8, w:7] = sum[c:24, r:1, s:5] X[n, c, h+r, w+s-2] * C[f, c, r, s] pad [0, 0, 2, 0]
    S[n:1, f:9, h:8, w:7] = sum[c:9, r:5, s:1] R[n, c, h+r-2, w+s] * D[f, c, r, s]
    Y[n:1, f:9, h:8, w:7] = Q[n, f, h, w] + S[n, f, h, w]
    """)
    wanted = ["batch_merging", "sibling_merging"]

    def between(candidate):
        return sorted(s.match.rule.name for s in candidate.derivation.steps if s.match.rule.name in wanted)

    run = ee.live_search(start, budget=15, max_depth=2)
    merged = (c for _ in run for c in run.candidates[-1:] if between(c) == wanted)
    return ee.graph(start, "Fig. 15 a"), ee.graph(ee.post_optimize(next(merged)).end, "Fig. 15 c")


fig15_before, fig15 = separable()
fig15

# %% [markdown]
# ## Figures for a paper
#
# `ee.figures` draws a figure in the width of a column: `style` is `"acm"`, `"ieee"`, `"slides"` or `"poster"`, `width`
# any length. No letter is too small to read: long formulas are broken over lines, a tree shows the ways that its caption
# names and counts the other states, and a graph that does not fit is refused with the width that it needs.

# %%
ee.figures.derivation(OFFSET_REDUCE)

# %%
ee.figures.search_tree(MATMULS, to=OFFSET_REDUCE)

# %%
ee.figures.graph(OFFSET_REDUCE)

# %%
ee.figures.roofline({"convolution": CONV, "Matmul and OffsetReduce": OFFSET_REDUCE})

# %%
ee.figures.comparison({c.operators[0].via.operator + f" (E{c.state})": c.seconds for c in MATMULS.candidates[:5]})

# %% [markdown]
# Save everything in one folder, as PDF and as TikZ; a document includes both without scaling them.

# %%
out = Path("figures")
out.mkdir(exist_ok=True)
pictures = {
    "fig4": ee.figures.expression(fig4.program),
    "fig5": ee.figures.derivation(OFFSET_REDUCE),
    "fig7": ee.figures.search_tree(MATMULS, to=OFFSET_REDUCE),
    "graph": ee.figures.graph(OFFSET_REDUCE),
}
for name, picture in pictures.items():
    picture.save(out / f"{name}.pdf")
    picture.save(out / f"{name}.tikz")
for name, picture in {"fig3": fig3, "fig6": fig6, "fig11": fig11, "fig14": fig14, "fig15": fig15}.items():
    picture.save(out / f"{name}.pdf", width="3.3in")
(out / "fig10.tex").write_text(fig10.to_latex(), encoding="utf-8")
sorted(path.name for path in out.iterdir())

# %% [markdown]
# **Exercise.** Draw Fig. 5 for a transposed convolution (`ee.ops.conv_transpose2d`). Which step is new?
