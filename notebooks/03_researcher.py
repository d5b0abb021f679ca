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
# # Searching like a researcher
#
# A search is an experiment: watch it, stop it, ask it why, send it elsewhere, take a part away and see what is lost. Here the object is a transposed
# convolution with stride 2, the layer that InfoGAN and DCGAN are made of.

# %%
import matplotlib.pyplot as plt
import numpy as np

import einnet_explore as ee
from einnet_explore.rules import RULES

upsample = ee.ops.conv_transpose2d(N=1, H=4, W=4, F=64, C=32, R=4, S=4, stride=2, padding=1)
session = ee.explore(upsample)
session.formula()

# %% [markdown]
# ## Live, with a pause
#
# A search yields events as they happen: a state reached, a move pruned, a candidate found. Leaving the loop is a pause; nothing is lost. (`run.start()` runs it in a thread
# instead, and `run.stop()` ends it; the explorer's buttons call just these.)

# %%
run = session.search("Matmul", max_depth=2)
for event in run:
    if len(run.candidates) == 3:
        print(type(event).__name__, "state", event.state.id)
        break
run

# %% [markdown]
# Taken up again, it goes on where it was:

# %%
before = len(run.search.states)
for _ in run:
    pass
print(before, "states before the pause,", len(run.search.states), "now; complete:", run.search.complete)
run

# %%
run.tree()

# %% [markdown]
# The cheapest is several times cheaper than the product that fits at once. That one multiplies with a large matrix of weights, most of which are zero:

# %%
direct = next(c for c in run.candidates if len(c.derivation.steps) == 1)
ones = {tensor.name: np.ones(tensor.shape) for tensor in upsample.inputs}
gathered = ee.evaluate(direct.program, ones)["K1"]
print(gathered.shape, f"{(gathered == 0).mean():.0%} of them are zero")
print(direct)
print(run.best)
print(f"{direct.seconds / run.best.seconds:.1f} times, by estimate")

# %% [markdown]
# ## Two of them side by side
#
# `keep` puts what was found into the session's tree without going there: a bookmark. `compare` holds any two nodes against each other.

# %%
session.compare(session.keep(direct), session.keep(run.best))

# %% [markdown]
# ## Why?
#
# Why did the search not go on at some state? Either its moves led to programs that were known (the *twin* is named), or it ended before.

# %%
asked = next(s.id for s in run.search.states if any("the same" in why for why in run.why_pruned(s.id)))
for why in run.why_pruned(asked):
    print(f"state {asked}:", why)

# %% [markdown]
# Why does an operator not match at a state? The iterator table counts what is in the way, and the rule says it in words.

# %%
print(run.why_refused("Conv2d"))
session.table("Conv2d")

# %% [markdown]
# And why did it not go *my* way? Do something by hand, then ask. Here a bound is widened for no purpose:

# %%
session.goto(0)
session.apply("boundary_relaxing", at="Y", ranges={"h": [-1, 4]})
print(run.why_not(session.derivation))

# %% [markdown]
# ## Steering
#
# A search can start anywhere. Go to a state of the first one, and send a second from there, to another operator:

# %%
from_here = next(s for s in run.search.states if s.depth == 1 and s.phase == "explorative")
session.goto(0)
session.adopt(run.search.derivation(from_here.id))
session.formula()

# %%
elsewhere = session.search(["Conv2d", "Matmul"], max_depth=1)
for _ in elsewhere:
    pass
elsewhere

# %% [markdown]
# No convolution so near, but the best product of before, from here on by itself. What was found starts from where we stood, so it fits into the same tree:

# %%
session.goto(elsewhere.best)
session.check()

# %%
session.tree()

# %% [markdown]
# ## Ablation: what is each part good for?
#
# The same search, each time without one rule, or without one part of the strategy. *Best* is the estimate of the cheapest candidate; *first best* says how many states were looked at before
# that one was found.


# %%
def experiment(**options):
    tried = ee.search(upsample, target="Matmul", **{"max_depth": 2, **options})
    for _ in tried:
        pass
    return tried


ablations = {"everything": {}}
ablations |= {f"no {rule.name}": {"rules": tuple(r for r in RULES if r != rule)} for rule in RULES[:5]}
ablations |= {
    "no looking ahead": {"ahead": 0},
    "no fingerprints": {"fingerprint": False},
    "no converging derivation": {"converging": False},
    "paper's strategy": {"strategy": "paper"},
}
results = {name: experiment(**options) for name, options in ablations.items()}
print(f"{'':28}{'states':>8}{'pruned':>8}{'candidates':>12}{'best':>10}{'first best':>12}")
for name, tried in results.items():
    best = tried.best
    cost, first = (f"{best.seconds * 1e6:.1f} µs", best.state) if best else ("none", "")
    states, pruned = len(tried.search.states), tried.search.pruned
    print(f"{name:28}{states:8}{pruned:8}{len(tried.candidates):12}{cost:>10}{first:>12}")

# %%
figure, axes = plt.subplots(figsize=(7, 3))
found = {name: tried.best.seconds * 1e6 for name, tried in results.items() if tried.best}
axes.barh(list(found), list(found.values()), color="tab:blue")
axes.invert_yaxis()
axes.set_xlabel("estimated µs of the best candidate")
figure.tight_layout()
plt.show()

# %% [markdown]
# What this says, and it may be checked in the table:
#
# - *Substitution carries everything.* Without it only the product with the zeros is left: it alone makes a scope that is dense.
# - *Splitting and dropping bounds find something better than what else there is.* Without either the search still finds the phases of the result beside one another, as a batch of products, since a
#   substitution by residues comes with the windows that it needs; with both it finds the one large product.
# - *Tightening is worth a factor, merging a little.* The same derivation ends in a product that also computes what is always zero, or in one scope more. Our strategy applies the three
#   as clean-ups after each choice; a rule that is forbidden is not applied there either.
# - *Converging derivation finds the candidates*: with none, no state at this depth is an operator by itself.
# - *Looking ahead finds no other candidate, but finds the best one sooner.* *Fingerprints* save states.

# %%
whole = results["everything"]
assert results["no variable_substitution"].best.seconds == direct.seconds
for rule in ("summation_splitting", "boundary_relaxing"):
    phases = results[f"no {rule}"].best
    assert whole.best.seconds < phases.seconds < direct.seconds
    assert any(e.via and e.via.operator == "BatchMatmul" for e in phases.program.equations)
costs = [results[name].best.seconds for name in ("everything", "no traversal_merging", "no boundary_tightening")]
assert costs == sorted(costs) and costs[2] > 4 * costs[0] and costs[2] < direct.seconds
for rule in ("traversal_merging", "boundary_tightening"):
    used = {m.rule.name for s in results[f"no {rule}"].search.states for m in s.matches}
    assert rule not in used
assert not results["no converging derivation"].candidates
assert results["no looking ahead"].best.seconds == whole.best.seconds
assert results["no looking ahead"].best.state > whole.best.state
assert len(results["no fingerprints"].search.states) > len(whole.search.states)

# %% [markdown]
# How deep does the paper's strategy have to go for it? The steps of the best candidate, counted one by one:

# %%
print([step.match.rule.name for step in whole.best.derivation.steps])
print(results["paper's strategy"].why_not(whole.best.derivation))

# %% [markdown]
# ## Kept for the paper
#
# A run is a value: saved with all of its states, it is loaded, shown, asked and gone on with elsewhere.

# %%
run.save("upsample.einx")
again = ee.load("upsample.einx")
assert again.best.seconds == run.best.seconds
ee.show(again.best)

# %% [markdown]
# And where the session stands is code, whoever took the steps:

# %%
session.goto(again.best)
print(session.script())

# %% [markdown]
# The same desk with buttons: search, stop, the tree that grows, click a state to go there. (It needs a running kernel; without one there is the picture.)

# %%
import einnet_widgets

einnet_widgets.explorer(ee.explore(upsample))

# %% [markdown]
# **Exercises.**
#
# 1. Is looking ahead still worth it at `max_depth=3`? Use `experiment`.
# 2. Leave out `boundary_relaxing` at `max_depth=3` for a 5×5 convolution towards `Conv2d`. Which candidates are lost? (`run.candidates`, their sizes.)
# 3. Forbid the best candidate's first split, by making your own rule from `SUMMATION_SPLITTING` with another `propose` ([06](06_your_own.py) shows how). What is second best?
