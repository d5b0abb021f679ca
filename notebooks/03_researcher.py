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
# # Searching like a researcher
#
# A search is an experiment. This notebook watches a search, pauses it, asks it for its reasons, starts it from another
# state, and measures the effect of each of its parts by ablation. The example is a transposed convolution with stride
# 2, the main layer of InfoGAN and DCGAN.

# %%
import matplotlib.pyplot as plt
import numpy as np

import einnet_explore as ee

upsample = ee.ops.conv_transpose2d(N=1, H=4, W=4, in_channels=64, out_channels=32, R=4, S=4, stride=2, padding=1)
session = ee.explore(upsample)
session.formula()

# %% [markdown]
# ## Live, with a pause
#
# `session.search` returns when the search is finished. `session.live_search` returns a search that has not begun: it
# yields events as they happen: a state was reached, a move was pruned, a candidate was found. Leaving the loop pauses
# the search without losing anything. (`run.start()` runs the search in a thread, and `run.stop()` stops it. The buttons
# of the explorer call these methods.)

# %%
run = session.live_search("Matmul", max_depth=2)
for event in run:
    if len(run.candidates) == 3:
        print(type(event).__name__, "state", event.state.id)
        break
run

# %% [markdown]
# A second loop, or `finish`, resumes the search at the same point:

# %%
before = len(run.search.states)
run.finish()
print(before, "states before the pause,", len(run.search.states), "now; complete:", run.search.complete)
run

# %%
run.tree()

# %% [markdown]
# The best candidate is several times cheaper than the candidate that matches in a single step. That one multiplies by
# a large weight matrix, and most of its elements are zero:

# %%
direct = next(c for c in run.candidates if len(c.derivation.steps) == 1)
ones = {tensor.name: np.ones(tensor.shape) for tensor in upsample.inputs}
gathered = ee.evaluate(direct.program, ones)["K1"]
print(gathered.shape, f"{(gathered == 0).mean():.0%} of them are zero")
print(direct)
print(run.best)
print(f"{direct.seconds / run.best.seconds:.1f} times, by estimate")

# %% [markdown]
# ## Two candidates, compared
#
# `keep` adds a candidate to the session's tree as a bookmark, without moving there. `compare` shows the differences of
# any two nodes.

# %%
session.compare(session.keep(direct), session.keep(run.best))

# %% [markdown]
# ## Why?
#
# Why did the search stop at some state? Either all its moves led to known programs (`why_pruned` names the *twin*), or
# the search ended earlier.

# %%
asked = next(s.id for s in run.search.states if any("the same" in why for why in run.why_pruned(s.id)))
for why in run.why_pruned(asked):
    print(f"state {asked}:", why)

# %% [markdown]
# Why does an operator not match at a state? The iterator mapping table counts the mismatches, and the refusal of the
# rule explains them.

# %%
print(run.why_refused("Conv2d"))
session.table("Conv2d")

# %% [markdown]
# Why did the search not find *my* derivation? Apply some steps by hand, then ask. This step widens a bound for no
# purpose:

# %%
session.goto(0)
session.apply("boundary_relaxing", at="Y", ranges={"h": [-1, 4]})
print(run.why_not(session.derivation))

# %% [markdown]
# ## Steering
#
# A search can start at any state. Go to a state of the first search, and start a second search there, towards other
# operators:

# %%
from_here = next(s for s in run.search.states if s.depth == 1 and s.phase == "explorative")
session.goto(0)
session.adopt(run.search.derivation(from_here.id))
session.formula()

# %%
elsewhere = session.search(["Conv2d", "Matmul"], max_depth=1)
elsewhere

# %% [markdown]
# There is no convolution within one choice of this state, but the second search finds the same best product as the
# first. The new candidates start at the current node, so they belong to the same tree:

# %%
session.goto(elsewhere.best)
session.check()

# %%
session.tree()

# %% [markdown]
# ## Ablation: the effect of each part
#
# Repeat the same search without one rule, or without one part of the strategy. *Best* is the estimated time of the
# cheapest candidate. *First best* is the number of states that the search visited before it found that candidate.


# %%
def experiment(**options):
    return ee.search(upsample, target="Matmul", **{"max_depth": 2, **options})


ablations = {"everything": {}}
ablations |= {f"no {rule.name}": {"rules": tuple(r for r in ee.RULES if r != rule)} for rule in ee.RULES[:5]}
ablations |= {
    "no look-ahead": {"ahead": 0},
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
# Conclusions, which you can check in the table:
#
# - *Variable substitution is essential.* Without it, only the product with the zeros is found. No other rule makes a
#   scope dense.
# - *Splitting and boundary relaxing improve the best candidate.* Without one of them, the search still finds a
#   polyphase form: the phases of the result as a batch of products, because a substitution by residues brings the
#   windows that it needs. With both, it finds one large product.
# - *Tightening saves a large factor, merging a small one.* Without them, the same derivation ends in a product that
#   also computes elements that are always zero, or in one scope more. The default strategy applies merging, relaxing
#   and tightening as simplifications after each choice. A rule that is left out is left out there too.
# - *Converging derivation finds the candidates.* Without it, no state at this depth matches an operator.
# - *Look-ahead finds no other candidates, but it finds the best one earlier.* *Fingerprints* save states.

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
assert results["no look-ahead"].best.seconds == whole.best.seconds
assert results["no look-ahead"].best.state > whole.best.state
assert len(results["no fingerprints"].search.states) > len(whole.search.states)

# %% [markdown]
# How deep must the paper's strategy search for this candidate? Count the steps of the best candidate one by one:

# %%
print([step.match.rule.name for step in whole.best.derivation.steps])
print(results["paper's strategy"].why_not(whole.best.derivation))

# %% [markdown]
# ## Saved for the paper
#
# A run can be saved with all its states. After loading it, possibly on another machine, you can show it, query it and
# continue it.

# %%
run.save("upsample.einx")
again = ee.load("upsample.einx")
assert again.best.seconds == run.best.seconds
ee.show(again.best)

# %% [markdown]
# `script` prints the derivation of the current program as code. It makes no difference whether you or a search chose
# the steps:

# %%
session.goto(again.best)
print(session.script())

# %% [markdown]
# The explorer offers the same with buttons: search, stop, a tree that grows, and a click on a state goes there. (It
# needs a running kernel. Without a kernel, a saved notebook shows it as you left it.)

# %%
import einnet_widgets

einnet_widgets.explorer(ee.explore(upsample))

# %% [markdown]
# **Exercises.**
#
# 1. Is look-ahead still worth its time at `max_depth=3`? Use `experiment`.
# 2. Leave out `boundary_relaxing` at `max_depth=3` for a 5×5 convolution towards `Conv2d`. Which candidates are lost?
#    (Compare the sizes in `run.candidates`.)
# 3. Forbid the best candidate's first split: make your own rule from `SUMMATION_SPLITTING` with another `propose`
#    ([06](06_your_own.py) shows how). Which candidate is now the best?
