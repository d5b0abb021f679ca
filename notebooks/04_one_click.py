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
# # A model, optimised in one cell
#
# You have an ONNX file and want it faster, on this machine, with the same results. That is one call. What comes back says what was done, why it is the same, what it brought, and what it
# did not touch.
#
# The model here is the generator of InfoGAN, which makes an image of noise by transposed convolutions. Any ONNX file will do.

# %%
import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
from IPython.display import display

import einnet_explore as ee

ee.write_model("infogan", "model.onnx")
fast = ee.optimize("model.onnx", budget="15s", threads=1)
fast

# %% [markdown]
# The budget is how long contests of parts begin, the largest part first; choosing what pays in the whole takes its own time after that. Fifteen seconds are little: without
# `budget` it is eight minutes, and what a run finds the next one begins with. (`einnet_widgets.OptimizeCell("model.onnx")` is the same with a progress bar, a cancel button and
# a download.) A part is replaced only if it is *measured* to be faster than the original here; on another machine other parts may win, or none.
#
# ## What was done
#
# Every part that was looked at before the budget was spent: the replaced ones with what runs now, the others with the reason.

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
# Each replaced part comes with its derivation, and each step with a certificate:

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
# `benchmark` measures both again, in turns, so that a change of the machine's mood hits both. Half of the measurements lie within ±, which is the bar.

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
# Which part brought how much? Each is left out in turn:

# %%
for part in fast.attribution():
    print(f"{part.speedup:.2f} times by", "; ".join(", ".join(nodes) for nodes in part.nodes))

# %% [markdown]
# ## Take it away
#
# `save` writes an ONNX file of standard operators, which any runtime executes. In it is what also pays without our kernels; where nothing does, it is the model as it was, and the last line says
# so. ONNX Runtime on its own, on the new file and on the old one:

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
print("the file:", fast.exported.lacks(kept) or f"{fast.exported.speedup:.2f} times as fast in ONNX Runtime alone")

# %% [markdown]
# The result is a function, too:

# %%
outputs = fast(**inputs)
{name: value.shape for name, value in outputs.items()}

# %% [markdown]
# **Exercises.**
#
# 1. `threads=2`: do the same parts win?
# 2. `numerics="exact"` forbids everything that rounds otherwise. What is left?
# 3. `target_runtime="onnxruntime"` keeps what pays in the exported file instead. Compare `fast.exported`.
# 4. Take a model of your own; `shapes={"x": (1, 3, 320, 320)}` fixes the inputs that it leaves open.
