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
# # A lesson: from a convolution to one matrix product
#
# **Goal.** A 3×3 convolution becomes *one large matrix product* and a kernel that adds nine shifted slices of it, which the paper calls OffsetReduce. You will
# find the seven steps yourself: each is shown without its name, and you guess which rule it was. A wrong guess is answered with the reason; hints cost nothing.
#
# **What you need.** The [tour](00_tour.py) for the notation. [The rules, one by one](01_rules.py), to look them up.

# %%
import numpy as np

import einnet_explore as ee

conv = ee.parse("""
tensor A[1, 6, 5, 4] pad [0, 1, 1, 0]
tensor K[3, 3, 8, 4] weight
Y[n:1, h:6, w:5, f:8] = sum[c:4, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, f, c]
""")
ee.show(conv)

# %% [markdown]
# ## Where it shall lead, in numbers
#
# Before any rule: is the goal true at all? Multiply *every pixel* with *every weight*, without looking at windows. That is one matrix product, of
# $6 \cdot 5$ pixels by $3 \cdot 3 \cdot 8$ columns, over the channels. Then add up what belongs together: for the tap $(r, s)$ the slice that is shifted by it.

# %%
rng = np.random.default_rng(0)
A, K = rng.integers(-9, 9, (1, 6, 5, 4)), rng.integers(-9, 9, (3, 3, 8, 4))
wanted = ee.evaluate(conv, {"A": A, "K": K})["Y"]

T = A.reshape(30, 4) @ K.reshape(72, 4).T
T = np.pad(T.reshape(6, 5, 3, 3, 8), ((1, 1), (1, 1), (0, 0), (0, 0), (0, 0)))
found = sum(T[r : r + 6, s : s + 5, r, s] for r in range(3) for s in range(3))
assert (found == wanted[0]).all()
print("the same in all", found.size, "elements, for these numbers")

# %% [markdown]
# "For these numbers" is no proof, and nobody should have to be as clever as those four lines. The rules do it in steps that are each plainly right.
#
# ## A way, and its end
#
# A search knows none of this. It gets the rules and the operators of a library, and among what it finds is a way to a single product of just these sizes. Only its end is
# shown here. (That it is *one* way out of many: look at the number of candidates.)

# %%
run = ee.search(conv, target="Matmul", max_depth=2, limit=20).start().wait()


def sizes(candidate):
    return [sorted(n for n in dict(e.via.attributes).values() if n > 1) for e in candidate.operators]


way = min((c for c in run.candidates if sizes(c) == [[4, 30, 72]]), key=lambda c: len(c.derivation.steps)).derivation
print(len(run.candidates), "candidates; this one has", len(way.steps), "steps")
ee.graph(way.end, "the end of the way")

# %% [markdown]
# ## Guess the rule
#
# `question` shows what was there and what became of it, with what is new in colour. `guess` takes the name of a rule. `hint` says a little more each time.
# It has buttons, too: with a running kernel, take all seven steps here, and read on to compare. (Without one there is the picture of the first question.)

# %%
import einnet_widgets

goal = (
    "A 3×3 convolution shall become one matrix product, 30 × 4 by 4 × 72, and a kernel that adds nine shifted slices."
)
einnet_widgets.QuizView(ee.Quiz(way), goal)

# %% [markdown]
# Below, the same in code, with the guesses of somebody who learns. **Write your own guess down before you run the cell below a question.**
#
# ### Step 1

# %%
quiz = ee.Quiz(way)
quiz.question()

# %% [markdown]
# One sum became two. A first guess: something was substituted?

# %%
quiz.guess("variable_substitution")

# %% [markdown]
# The answer is what the rule itself says of this scope. Two hints:

# %%
print(quiz.hint())
print(quiz.hint())

# %% [markdown]
# As many summations as before, one scope more, and *more* points to compute: a step need not be a gain by itself.

# %%
quiz.guess("summation_splitting")

# %% [markdown]
# ### Step 2
# Now look at the inner scope only: $h$ and $r$ occur in one place, as $h + r - 1$.

# %%
quiz.question()

# %% [markdown]
# The new scope has conditions behind its bar. Not every pair $(t_1, r)$ comes from some $h$.

# %%
quiz.guess("variable_substitution")

# %% [markdown]
# ### Step 3
# What went away?

# %%
quiz.question()

# %%
quiz.guess("boundary_tightening")

# %% [markdown]
# No iterator's range changed. But there were three scopes, and now there are two:

# %%
print(quiz.hint())
print(quiz.hint())

# %%
quiz.guess("traversal_merging")

# %% [markdown]
# ### Step 4
# The conditions behind the bar are gone. Merging does *apply* here, yet it is not what was done, and the answer says what it would have made: the convolution that we
# came from.

# %%
quiz.question()

# %%
quiz.guess("traversal_merging")

# %%
quiz.guess("boundary_relaxing")

# %% [markdown]
# ### Step 5
# Relaxing made more to compute. Some of it is always zero:

# %%
quiz.question()

# %%
quiz.guess("boundary_tightening")

# %% [markdown]
# ### Step 6
# This is what all of it was for. Before you look: a scope is a matrix product if its iterators fall in the right groups. Which of $r, s, f, t_1, t_2, c$ occur in the first operand,
# which in the second, which in the result?

# %%
session = ee.explore(way.start)
session.adopt(way)
session.goto(5)
session.table("Matmul", at="Y.0")

# %% [markdown]
# Every group of the operator has its iterators, and none is left over. Where there are two or three for one, the table counts a mismatch for each that is too many; matching joins
# them to one longer dimension, which is a view and costs nothing.

# %%
quiz.question()

# %%
quiz.guess("operator_matching")

# %% [markdown]
# ### Step 7
# One equation has nothing behind $\triangleright$ yet, so nobody runs it: the one that adds the nine slices.

# %%
quiz.question()

# %%
quiz.guess("eoperator_generation")

# %%
assert quiz.over
quiz.score()

# %% [markdown]
# ## What you have found
#
# The seven steps below one another, then each with its proof:

# %%
ee.show(way)

# %%
session.goto(way)
session.history(certificates=True)

# %%
session.check()

# %% [markdown]
# ## A mistake, on purpose
#
# What if the last kernel took the slices mirrored, $h - r + 1$ instead of $h + r - 1$? All sizes fit, and for weights that are symmetric even the numbers do:

# %%
right = ee.text(way.end)
wrong = ee.parse(right.replace("[n, h+r-1, s+w-1, r, s, f]", "[n, h-r+1, s+w-1, r, s, f]"))
assert ee.text(wrong) != right
symmetric = K + K[::-1]
same = ee.evaluate(wrong, {"A": A, "K": symmetric})["Y"] == ee.evaluate(conv, {"A": A, "K": symmetric})["Y"]
print(f"{same.mean():.0%} of the elements agree, with symmetric weights")

# %% [markdown]
# A test with such weights finds nothing. A certificate is not about weights: it names an element and a product that it lacks.

# %%
ee.certify(conv, wrong)

# %% [markdown]
# ## Now you
#
# The same by clicking: start at the convolution, and walk to the product. Choose a scope, point at a rule, see what it would make. (It needs a running kernel; without one there is the
# picture.)

# %%
einnet_widgets.explorer(ee.explore(conv))

# %% [markdown]
# **Exercises.**
#
# 1. Another way: split off the channels instead of the window. Is what is left inside a matrix product as well? (`session.table`)
# 2. A quiz on a way that you have never seen: take any candidate of `run`, and `ee.Quiz(candidate.derivation)`.
# 3. With a stride of 2, which products are found after one choice?
#
# The second and the third, begun:

# %%
other = ee.Quiz(max(run.candidates, key=lambda c: len(c.derivation.steps)).derivation)
print(len(other.steps), "steps; the first:")
other.question()

# %%
strided = ee.ops.conv2d(N=1, H=6, W=6, C=4, F=8, R=3, S=3, stride=2, padding=1)
ee.search(strided, target="Matmul", max_depth=1, limit=10).start().wait()
