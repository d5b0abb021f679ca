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
# # One derivation for all sizes
#
# A derivation is found for one size: 7 rows, 16 channels. Is it a fact about 7 and 16, or about convolutions? Here sizes are **parameters**, `param H >= 3`,
# and each step is proved for every value that the assumptions allow: derived once, proved once, used at any size, refused outside.

# %%
import time

import matplotlib.pyplot as plt

import einnet_explore as ee
from einnet_explore.viz.tables import TextTable

# %% [markdown]
# ## A convolution is a product and a sum of offsets, for all H, C and F
#
# A *family* is a program in the text form in which wherever a size stands a polynomial of parameters may stand.

# %%
convolution = ee.family("""
param H >= 3, C, F
tensor A[H, C] pad [1, 0]
tensor K[3, F, C] weight
Y[h:H, f:F] = sum[c:C, r:3] A[h+r-1, c] * K[r, f, c]
""")
convolution

# %% [markdown]
# `derive` searches at one size (primes, so that no number is two things at once), follows the same steps at some thirty others, and puts polynomials through every
# integer of every program on the way. That is a conjecture. Then it is **proved**: the multisets of terms of both programs are integer sets over the sizes, the
# element and what is read, and [isl](https://libisl.sourceforge.io) says whether two such sets are equal, *for all sizes at once*.

# %%
derived = convolution.derive(target="Matmul", max_depth=6)
derived.prove()

# %% [markdown]
# The last program, with the sizes as names. One matrix product of `H` by `3*F`, then a sum of three shifted reads. The attributes of the call and the strides of the views are
# polynomials, and that they fit is part of the proof.

# %%
print(derived.text())

# %%
derived

# %% [markdown]
# ## An instance, and one that is refused
#
# At sizes that the guards allow, the family gives an ordinary program. Nothing is searched and nothing proved again; the ordinary certificate at that size agrees.

# %%
instance = derived.instantiate(H=224, C=64, F=32)
print(ee.text(instance.program))
print(instance.certificate.detail)
assert ee.certify(instance.start, instance.program).kind == "proved"

# %%
try:
    derived.instantiate(H=2, C=64, F=32)
except ValueError as refused:
    print(refused)

# %% [markdown]
# ## Two dimensions, and every size free
#
# The derivation of the paper's running example (§2) for all $H$, $W$, $C$ and $F$. The product has the extents `H*W` and `9*F`; that reads of `T1[W*t1+t2, …]` are those of rows and columns follows
# since $0 \le t_2 < W$, which holds for every `W`.

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
# ## Where sizes are multiplied
#
# Merging two sums over `h` and `w` into one over `m` reads `A[m // W, m % W]`: here a parameter multiplies an iterator ($m = W h + w$), which no integer set can say.
# The correspondence of points is then solved for, digit by digit ($h = \lfloor m / W \rfloor$, $w = m - W h$), and it has to satisfy every condition. Here ranges say that at once: the proof is by *digits*
# alone. By hand this time: a session at one size, lifted to all.

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
# The 17 of the session has become `W`, and 187 became `H*W`. Where ranges are not enough, [z3](https://github.com/Z3Prover/z3) is asked: the two-dimensional convolution as one product over gathered
# windows (im2col), where `k` is three digits, one of base `C`:

# %%
windows = image.derive(target="Matmul", max_depth=2)
print(windows.text())
windows.prove()

# %% [markdown]
# ## What a step needs is found, named and guarded
#
# Splitting a sum into fours needs a multiple of 4. Nobody said so; that the step does not carry over to 25, 26 and 27, but to 28, 32 and 36, says it.

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
# This "step" is right at 11 and at everything below: whoever tries one size sees nothing. For all sizes there is no proof, but a counterexample, the smallest there is, and
# the ordinary certificate at that size says what is wrong.

# %%
right = ee.family("param H >= 3\ntensor A[H]\nY[] = sum[h:H] A[h]")
wrong = ee.family("param H >= 3\ntensor A[H]\nY[] = sum[h:11] where(h < H, A[h], 0)")
print(ee.certify(right.at(H=11), wrong.at(H=11)))
print(right.equals(wrong))

# %% [markdown]
# ## Once, or every time
#
# The proof for all sizes costs tens of milliseconds where one at one size costs a few. What is saved is everything else: at a further size nothing is searched, and nothing is left to prove.

# %%
heights = range(8, 57, 8)
clock = time.perf_counter()
again = convolution.derive(target="Matmul", max_depth=6)
once = time.perf_counter() - clock
each = []
for h in heights:
    clock = time.perf_counter()
    run = ee.search(convolution.at(H=h, C=64, F=32), target="Matmul", max_depth=6)
    for _ in run:
        pass
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
# ## What is claimed, and what is not
#
# - The *statement* is the text with its parameters, taken literally; the conjecture is held against it, like every step.
# - Shapes, ranges that must not be empty, padding, and that nothing is read out of reach are proved for all sizes, too.
# - What is not proved is said to be *unproved*, with the reason, and never more than that: only a concrete false certificate *refutes*.
# - Nonlinear integer arithmetic is undecidable, so some true steps stay unproved. At any one size they can still be proved as ever, and `instantiate` then does so.

# %%
TextTable(
    ("derivation", "steps", "for all sizes", "by"),
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
