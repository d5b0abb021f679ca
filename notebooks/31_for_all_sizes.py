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
# # One derivation for all sizes
#
# A search finds a derivation for one size, for example 7 rows and 16 channels. Does the derivation hold only for 7 and
# 16, or for all convolutions? In this notebook, sizes are **parameters**, such as `param H >= 3`. Each step is proved
# for all values that satisfy the assumptions. The derivation is searched once and proved once; it can then be used at
# every allowed size, and is refused at all others.

# %%
import time

import matplotlib.pyplot as plt

import einnet_explore as ee

# %% [markdown]
# ## A convolution is a product and a sum of offsets, for all H, C and F
#
# A *family* is a program in the text form whose sizes may be polynomials of parameters.

# %%
convolution = ee.family("""
param H >= 3, C, F
tensor A[H, C] pad [1, 0]
tensor K[3, F, C] weight
Y[h:H, f:F] = sum[c:C, r:3] A[h+r-1, c] * K[r, f, c]
""")
convolution

# %% [markdown]
# `derive` searches at one size. (It uses prime numbers, so that no number has two meanings.) It repeats the same steps
# at about thirty other sizes, and interpolates every integer of every program by a polynomial of the sizes. The result
# is a conjecture. It is then **proved**: the term multisets of both programs are integer sets, parametrised by the
# sizes, and [isl](https://libisl.sourceforge.io) decides whether two such sets are equal *for all sizes at once*.

# %%
derived = convolution.derive(target="Matmul", max_depth=6)
derived.prove()

# %% [markdown]
# The next cell prints the final program with symbolic sizes: one matrix product of `H` by `3*F`, then a sum of three
# shifted reads. The attributes of the call and the strides of the views are polynomials; the proof includes their
# consistency.

# %%
print(derived.text())

# %%
derived

# %% [markdown]
# ## An instance, and a refused instance
#
# For allowed sizes, the family returns an ordinary program. It needs no search and no new proof. The ordinary
# certificate at that size agrees:

# %%
instance = derived.instantiate(H=224, C=64, F=32)
print(ee.text(instance.program))
print(instance.certificate.detail)
assert ee.equal(instance.start, instance.program).kind == "proved"

# %%
try:
    derived.instantiate(H=2, C=64, F=32)
except ValueError as refused:
    print(refused)

# %% [markdown]
# ## Two dimensions, and every size free
#
# This is the derivation of the paper's running example (§2) for all $H$, $W$, $C$ and $F$. The product has the extents
# `H*W` and `9*F`. A read of `T1[W*t1+t2, …]` belongs to row `t1` and column `t2`, because $0 \le t_2 < W$ for every
# `W`.

# %%
image = ee.family("""
param H, W, C, F
tensor A[H, W, C] pad [1, 1, 0]
tensor K[3, 3, F, C] weight
Y[h:H, w:W, f:F] = sum[c:C, r:3, s:3] A[h+r-1, w+s-1, c] * K[r, s, f, c]
""")
offsets = image.derive(target="Matmul", max_depth=6, sizes={"H": 11, "W": 17, "C": 64, "F": 23})
print(offsets.text())
offsets.prove()

# %% [markdown]
# ## Products of sizes and iterators
#
# Merging two sums over `h` and `w` into one over `m` reads `A[m // W, m % W]`. Here a parameter multiplies an iterator
# ($m = W h + w$), which an integer set cannot express. The proof therefore solves for the correspondence of the points
# as a mixed-radix split ($h = \lfloor m / W \rfloor$, $w = m - W h$), and checks every condition. In this example the
# ranges are sufficient, and the proof uses *digits* only. The derivation is made by hand in a session at one size,
# then lifted to all sizes.

# %%
dot = ee.family("""
param H, W
tensor A[H, W]
tensor B[H, W]
Y[] = sum[h:H, w:W] A[h, w] * B[h, w]
""")
sizes = {"H": 11, "W": 17}
session = ee.explore(dot.at(**sizes))
session.apply("variable_substitution", "0", phi={"m": "17*h+w"})
merged = dot.lift(session.derivation, sizes)
print(merged.text())
merged.prove()

# %% [markdown]
# The 17 of the session has become `W`, and 187 has become `H*W`. If the ranges are not sufficient,
# [z3](https://github.com/Z3Prover/z3) is used. An example is the two-dimensional convolution as one product over
# gathered windows (im2col), where `k` is split into three digits, one of them with base `C`:

# %%
windows = image.derive(target="Matmul", max_depth=2)
print(windows.text())
windows.prove()

# %% [markdown]
# ## Requirements of a step are inferred
#
# Splitting a sum into groups of four requires a multiple of 4. Nobody stated this requirement. It is inferred: the
# step fails at 25, 26 and 27, but succeeds at 28, 32 and 36.

# %%
line = ee.family("param C\ntensor A[C]\ntensor B[C]\nY[] = sum[c:C] A[c] * B[c]")
session = ee.explore(line.at(C=24))
session.apply("variable_substitution", "0", phi={"a": "c//4", "b": "c%4"})
fours = line.lift(session.derivation, {"C": 24})
print(fours.text())
print("inferred:", *fours.inferred)
try:
    fours.instantiate(C=26)
except ValueError as refused:
    print(refused)

# %% [markdown]
# ## A wrong step
#
# This "step" is correct at size 11 and at every smaller size, so a test at one such size finds no error. There is no
# proof for all sizes. Instead there is a counterexample, the smallest one, and the ordinary certificate at that size
# describes the error.

# %%
right = ee.family("param H >= 3\ntensor A[H]\nY[] = sum[h:H] A[h]")
wrong = ee.family("param H >= 3\ntensor A[H]\nY[] = sum[h:11] where(h < H, A[h], 0)")
print(ee.equal(right.at(H=11), wrong.at(H=11)))
print(right.equals(wrong))

# %% [markdown]
# ## Once, or every time
#
# The proof for all sizes takes tens of milliseconds; a proof at one size takes a few. The gain is in everything else:
# a further size needs no search and no proof.

# %%
heights = range(8, 57, 8)
clock = time.perf_counter()
again = convolution.derive(target="Matmul", max_depth=6)
once = time.perf_counter() - clock
each = []
for h in heights:
    clock = time.perf_counter()
    run = ee.search(convolution.at(H=h, C=64, F=32), target="Matmul", max_depth=6)
    assert run.best is not None
    assert run.verdict(run.best) == "proved"
    each.append(time.perf_counter() - clock)
instances = []
for h in heights:
    clock = time.perf_counter()
    again.instantiate(H=h, C=64, F=32)
    instances.append(time.perf_counter() - clock)

figure, axes = plt.subplots(figsize=(6, 3))
count = range(1, len(each) + 1)
axes.plot(count, [sum(each[:n]) for n in count], label="derived and proved at each size")
axes.plot(count, [once + sum(instances[:n]) for n in count], label="once for all, then instances")
axes.set_xlabel("sizes")
axes.set_ylabel("seconds")
axes.legend()
plt.show()

# %% [markdown]
# ## Guarantees and limits
#
# - The *statement* is the text of the family, taken literally. Every step of the conjecture, and its start, is checked
#   against this text.
# - For all sizes, the proof includes the shapes, non-empty ranges, the padding, and the absence of out-of-range reads.
# - A step without a proof is reported as *unproved*, with the reason. Only a concrete false certificate *refutes* a
#   step.
# - Nonlinear integer arithmetic is undecidable, so some true steps remain unproved. They can still be proved at a
#   single size, and `instantiate` then does so.

# %%
ee.TextTable(
    ("derivation", "steps", "for all sizes", "methods"),
    tuple(
        (name, str(len(d.steps)), str(d.proof), ", ".join(d.proof.means))
        for name, d in (
            ("convolution", derived),
            ("in two dimensions", offsets),
            ("dot product", merged),
            ("windows", windows),
            ("fours", fours),
        )
    ),
)

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
first_wrong = ee.Exercise(
    "`first_wrong`: the wrong step of this notebook sums 11 elements where `H` are meant. At which `H` is it first wrong?",
    12,
    hint="`where(h < H, …)` hides the mistake at smaller sizes.",
    why="at H = 12 the last element is missing; a test at 11 or less does not show it",
)
first_wrong

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
first_wrong.grade(12)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
odd = ee.Exercise(
    "`odd`: for which of the sizes 8, 10, 12, 14, 16 does the family `fours` have an instance? Answer with a set.",
    {8, 12, 16},
    hint="Try `fours.instantiate(C=8)`.",
    why="the inferred requirement is a multiple of 4",
)
odd


# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
def has_instance(size):
    try:
        return bool(fours.instantiate(C=size))
    except ValueError:
        return False


odd.grade({size for size in (8, 10, 12, 14, 16) if has_instance(size)})
