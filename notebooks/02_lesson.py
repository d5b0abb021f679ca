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
# # A lesson: from a convolution to one matrix product
#
# **Goal.** Rewrite a 3×3 convolution as *one large matrix product* and a kernel that adds nine shifted slices of it.
# The paper calls this kernel OffsetReduce. The derivation has seven steps. The quiz shows each step without the name
# of its rule, and you guess the rule. The reply to a wrong guess explains why it is wrong. Hints are free.
#
# **Prerequisites.** The [tour](00_tour.py) explains the notation. [The rules, one by one](01_rules.py) is the
# reference.

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
# ## The goal, in numbers
#
# First test the goal with numbers. Multiply *every pixel* by *every weight*, ignoring the windows. This is one matrix
# product of $6 \cdot 5$ pixels by $3 \cdot 3 \cdot 8$ columns, summed over the channels. Then, for each tap $(r, s)$,
# take the slice shifted by $(r, s)$, and add the nine slices.

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
# Equality for these numbers is not a proof, and those four lines were not easy to find. The rules reach the same
# result in small steps, and each step is easy to check.
#
# ## A derivation, and its end
#
# A search does not know this trick. Its input is the set of rules and the operators of a library. One of the programs
# that it finds uses a single matrix product of exactly these sizes. The next cell shows only this final program. (The
# search finds many programs; see the number of candidates.)

# %%
run = ee.search(conv, target="Matmul", max_depth=2, budget=20)


def sizes(candidate):
    return [sorted(n for n in dict(e.via.attributes).values() if n > 1) for e in candidate.operators]


way = min((c for c in run.candidates if sizes(c) == [[4, 30, 72]]), key=lambda c: len(c.derivation.steps)).derivation
print(len(run.candidates), "candidates; this one has", len(way.steps), "steps")
ee.graph(way.end, "the final program of the derivation")

# %% [markdown]
# ## Guess the rule
#
# `question` shows the expression before and after a step, and marks the new parts. `guess` takes the name of a rule.
# Each call of `hint` reveals a little more. The quiz also has buttons: with a running kernel, answer all seven steps
# here, then read on and compare. (Without a kernel you see the first question only.)

# %%
import einnet_widgets

goal = "Rewrite a 3×3 convolution as one matrix product, 30 × 4 by 4 × 72, and a kernel that adds nine shifted slices."
einnet_widgets.QuizView(ee.Quiz(way), goal)

# %% [markdown]
# The cells below do the same in code, with some wrong guesses that a learner might make. **Write down your own guess
# before you run the cell below a question.**
#
# ### Step 1

# %%
quiz = ee.Quiz(way)
quiz.question()

# %% [markdown]
# One sum became two. Try a first guess: a variable substitution.

# %%
quiz.guess("variable_substitution")

# %% [markdown]
# The reply is the refusal of that rule at this scope. Ask for two hints:

# %%
print(quiz.hint())
print(quiz.hint())

# %% [markdown]
# The number of summations is unchanged, there is one more scope, and there are *more* elements to compute. A single
# step need not make the program faster.

# %%
quiz.guess("summation_splitting")

# %% [markdown]
# ### Step 2
# Look at the inner scope only: $h$ and $r$ occur in one place, as $h + r - 1$.

# %%
quiz.question()

# %% [markdown]
# The new scope has conditions after its bar, because not every pair $(t_1, r)$ comes from some $h$.

# %%
quiz.guess("variable_substitution")

# %% [markdown]
# ### Step 3
# Look for a part that disappeared.

# %%
quiz.question()

# %%
quiz.guess("boundary_tightening")

# %% [markdown]
# No iterator's range changed, but three scopes became two:

# %%
print(quiz.hint())
print(quiz.hint())

# %%
quiz.guess("traversal_merging")

# %% [markdown]
# ### Step 4
# The conditions after the bar are gone. Merging would be legal here, but it was not the rule of this step. The reply
# shows the result of merging: the original convolution.

# %%
quiz.question()

# %%
quiz.guess("traversal_merging")

# %%
quiz.guess("boundary_relaxing")

# %% [markdown]
# ### Step 5
# Relaxing added elements to compute. Some of them are always zero:

# %%
quiz.question()

# %%
quiz.guess("boundary_tightening")

# %% [markdown]
# ### Step 6
# This is the step that all others prepared. A scope is a matrix product if its iterators fall into the right groups.
# Before you look, sort $r, s, f, t_1, t_2, c$: which of them occur in the first operand, in the second operand, in the
# result?

# %%
session = ee.explore(way.start)
session.adopt(way)
session.goto(5)
session.table("Matmul", at="Y.0")

# %% [markdown]
# Every group of the operator has its iterators, and no iterator is left over. Where a group has two or three iterators
# instead of one, the table counts a mismatch for each extra one. Matching joins them into one longer dimension. This
# is a view and costs nothing.

# %%
quiz.question()

# %%
quiz.guess("operator_matching")

# %% [markdown]
# ### Step 7
# One equation has no operator after $\triangleright$ yet, so it has no implementation: the one that adds the nine
# slices.

# %%
quiz.question()

# %%
quiz.guess("eoperator_generation")

# %%
assert quiz.over
quiz.score()

# %% [markdown]
# ## The whole derivation
#
# The next cells show the seven steps, then each step with its certificate:

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
# Suppose the last kernel mirrored the slices: $h - r + 1$ instead of $h + r - 1$. All sizes still fit. With symmetric
# weights, even the numbers agree:

# %%
right = ee.text(way.end)
wrong = ee.parse(right.replace("[n, h+r-1, s+w-1, r, s, f]", "[n, h-r+1, s+w-1, r, s, f]"))
assert ee.text(wrong) != right
symmetric = K + K[::-1]
same = ee.evaluate(wrong, {"A": A, "K": symmetric})["Y"] == ee.evaluate(conv, {"A": A, "K": symmetric})["Y"]
print(f"{same.mean():.0%} of the elements agree, with symmetric weights")

# %% [markdown]
# A test with such weights does not find the mistake. A certificate does not depend on the weights: it names an element
# of the result and a product that is missing there.

# %%
ee.equal(conv, wrong)

# %% [markdown]
# ## Now you
#
# Repeat the derivation with the explorer: start at the convolution and derive the product. Select a scope, point at a
# rule, and see its result. (The explorer needs a running kernel. Without a kernel, a saved notebook shows it as you
# left it.)

# %%
einnet_widgets.explorer(ee.explore(conv))

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
channels = ee.Exercise(
    '`channels`: start differently and split off the channels instead of the window (`outer=["c"]`). How far is the inner '
    "scope from Matmul?",
    2,
    hint='`session.table("Matmul", at="Y.0")` counts the mismatches.',
    why="c indexes all three tensors (a batch); h, w and r, s are pairs where Matmul has one iterator",
)
channels

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
session = ee.explore(conv)
session.apply("summation_splitting", at="Y", outer=["c"])
channels.grade(session.table("Matmul", at="Y.0").distance.total)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
strided = ee.ops.conv2d(N=1, H=6, W=6, C=4, F=8, R=3, S=3, stride=2, padding=1)
strides = ee.Exercise(
    "`strides`: the convolution `strided` has a stride of 2. A search towards Matmul with one choice finds several single "
    "products (`b` is 1). Over how many values do they sum? Answer with a set.",
    {36, 48, 64},
    hint='`ee.search(strided, target="Matmul", max_depth=1)`; the attributes of a call are `dict(equation.via.attributes)`.',
    why="4·3·3 by im2col; the others widen one or both dimensions of the window to 4",
)
strides

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
calls = [dict(c.operators[0].via.attributes) for c in ee.search(strided, target="Matmul", max_depth=1).candidates]
strides.grade({call["k"] for call in calls if call["b"] == 1})

# %% [markdown]
# A quiz on a derivation that you have not seen:

# %%
other = ee.Quiz(max(run.candidates, key=lambda c: len(c.derivation.steps)).derivation)
print(len(other.steps), "steps; the first:")
other.question()
