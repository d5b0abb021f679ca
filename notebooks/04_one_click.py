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
# # A model, optimised in one cell
#
# You have an ONNX model and want it faster on this machine, with the same results. One call does this. Its report
# begins with the speedup, the proofs, the error and what to deploy; then it lists the rewrites and the unchanged parts.
#
# The example is the generator of InfoGAN, which turns noise into an image by transposed convolutions. Any ONNX file
# works.

# %%
import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
from IPython.display import display

import einnet_explore as ee

ee.write_model("infogan", "model.onnx")
fast = ee.optimize("model.onnx", budget=15, threads=1)
fast

# %% [markdown]
# `budget` is the time of tuning: the subprogram that is expected to gain most per second comes first, and none is begun
# later. Fifteen seconds are short: the default is 4 for each different subprogram, 60 to 150 in all. Tuning results are
# cached, so the next run starts with them. (`einnet_widgets.OptimizeCell("model.onnx")` does the same with a progress
# bar, a cancel button and a download link.) A subprogram is replaced only if the replacement is *measured* to be faster
# than the original on this machine. On another machine, other subprograms may be replaced, or none.
#
# ## Result for each subprogram
#
# The next cell lists every subprogram that was tuned within the budget: for a replaced subprogram the new implementation,
# for the others the reason.

# %%
report = fast.report()
for part in report["subprograms"]:
    kernels = f"{part['eoperators']} eOperator{'s' if part['eoperators'] != 1 else ''}"
    calls = " + ".join([*(call["name"] for call in part["operators"]), kernels])
    print(", ".join(part["nodes"]), "->", f"{calls}, {part['certificate']}" if part["kept"] else part["why"])
print(f"{fast.speedup:.2f} times as fast; largest error {fast.errors[1]:.1e} of the largest output")

# %% [markdown]
# ## Why is it the same?
#
# Each replaced subprogram has a derivation, and each step of the derivation has a certificate:

# %%
derivations = fast.derivations()
for derivation in derivations.values():
    display(ee.show(derivation))
    print(*sorted({certificate.kind for certificate in ee.check(derivation)}), "in", len(derivation.steps), "steps")

# %% [markdown]
# ## Graphs, before and after

# %%
for title, before, after in fast.graphs():
    display(ee.graph(before, f"{title}: before"), ee.graph(after, f"{title}: after"))

# %% [markdown]
# ## Is it really faster?
#
# `benchmark` measures both models again. It alternates between them, so that changes of the machine's load affect both
# equally. Half of the measurements lie within ±, which the chart shows as error bars.

# %%
timings = fast.benchmark(repeat=10)
for name, timing in timings.items():
    print(f"{name:8}{timing.median * 1e6:8.0f} µs ± {timing.iqr / 2 * 1e6:.0f}, {timing.n} times")

# %%
figure, axes = plt.subplots(figsize=(6, 1.6))
names, found = list(timings), list(timings.values())
axes.barh(names, [t.median * 1e6 for t in found], xerr=[t.iqr / 2 * 1e6 for t in found], color=["grey", "tab:blue"])
axes.invert_yaxis()
axes.set_xlabel("µs a run")
figure.tight_layout()
plt.show()

# %% [markdown]
# How much does each replaced subprogram contribute? `attribution` leaves out one at a time:

# %%
for part in fast.attribution():
    print(f"{part.speedup:.2f} times by", "; ".join(", ".join(nodes) for nodes in part.nodes))

# %% [markdown]
# ## Export
#
# `save` writes an ONNX file of standard operators, and of functions made of them (ONNX's model-local functions), which
# any ONNX runtime executes. It keeps only the rewrites that are also faster in plain ONNX Runtime; if there are none,
# the file is your original model, and `save` warns. It measures them when it is first called. The next cell compares
# both files in ONNX Runtime; its last line reports the speedup, or why there is none.

# %%
fast.save("fast.onnx")
inputs = fast.random_inputs()
old, new = (
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)
    for path in ("model.onnx", "fast.onnx")
)
for a, b in zip(old, new, strict=True):
    error = np.abs(a - b).max() / np.abs(a).max()
    assert error < 1e-4
    print(a.shape, f"largest difference {error:.1e} of the largest output")
kept = sum(part["kept"] for part in report["subprograms"])
print("the file:", fast.exported.lacks(kept) or f"{fast.exported.speedup:.2f} times as fast in plain ONNX Runtime")

# %% [markdown]
# The result is also a Python function:

# %%
outputs = fast(**inputs)
{name: value.shape for name, value in outputs.items()}

# %% [markdown]
# **Exercises.**
#
# 1. Use `threads=2`. Are the same subprograms replaced?
# 2. `numerics="exact"` forbids every rewrite that changes rounding. Which replacements remain?
# 3. `target_runtime="onnxruntime"` selects the rewrites that are faster in the exported file instead. Compare
#    `fast.exported`.
# 4. Optimise your own model. `shapes={"x": (1, 3, 320, 320)}` fixes input sizes that the model leaves open.
