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
# # Reductions in one kernel
#
# CuPy fuses element-wise operations, and one reduction at most. Its extension (D. Nishino and Z. Xu, 2019) fuses *any* mix of element-wise operations and reductions: batch
# normalisation, with a mean and a variance inside, becomes one kernel. This notebook rebuilds it piece by piece, from programs in our own text form:
#
# 1. operations in order, and where every value lies;
# 2. sizes as symbols, and the equalities that a program needs;
# 3. dimensions squashed when the kernel is called;
# 4. the kernel itself, for this CPU and for GPUs;
# 5. when fusing does not pay.

# %%
import numpy as np

import einnet_explore as ee
from einnet_evaluation.fused_programs import batch_norm, softmax
from einnet_explore.codegen.fusion import fuse_program
from einnet_explore.codegen.fusion.memory_layout import lay_out
from einnet_explore.codegen.fusion.profitability import A100_TARGET, CPU_CORE_TARGET, estimate_fusion
from einnet_explore.codegen.language import emit
from einnet_explore.runtime import opencl
from einnet_explore.runtime.cuda import nvrtc
from einnet_explore.runtime.emulated_blocks import gpu_launch, run_blocks
from einnet_explore.runtime.fused import FusedProgram
from einnet_explore.runtime.unfused import compare_with_unfused
from einnet_explore.viz.graph_figures import draw_graph
from einnet_explore.viz.kernels import stage_graph, stage_summary

# %% [markdown]
# ## A variable instead of an array
#
# The document's first example is `x + x * x`. Written as two operations, it takes two kernels, and `m` goes to memory and comes back. Fused, the thread that stores `m[i]` is the one
# that loads it, so it need not be stored: `tmp[tid] = a; b = tmp[tid]` becomes `b = a`.

# %%
square = fuse_program(
    ee.parse("""
tensor x[1000]
m[i:1000] = x[i] * x[i]
y[i:1000] = x[i] + m[i]
output y
""")
)
print(stage_summary(square))

# %%
print(emit(gpu_launch(square, {"x": (1000,)})[1], "cuda"))

# %% [markdown]
# ## Batch normalisation
#
# Now what could not be fused before. The mean and the variance are two reductions, and the second one needs the first.

# %%
print(ee.text(batch_norm(32, 256, 56, 56)))

# %%
norm = fuse_program(batch_norm(32, 256, 56, 56))
print(stage_summary(norm))

# %% [markdown]
# How to read it. Nothing crosses from one channel to another, so the *grid* has a point for each channel (`i0`), and a point does all that belongs to it. A reduction ends a *stage*:
# everybody waits for its result once. `D` is computed twice and never stored, as a subtraction is cheaper than memory. Only `Y` goes to memory.

# %%
draw_graph(stage_graph(norm), "batch normalisation: three stages, one kernel")

# %% [markdown]
# Softmax is different: `exp` is not cheap. It is computed once, and kept in the memory of the *result*, which is written only when and where `E` is read for the last time.

# %%
draw_graph(stage_graph(fuse_program(softmax(512, 768))), "softmax")

# %% [markdown]
# Where sizes change between reductions, a temporary in memory is needed; and temporaries whose lifetimes are disjoint share a slot. Four of them, two slots:

# %%
zigzag = fuse_program(
    ee.parse("""
tensor X[40, 60]
A[i:40] = sum[j:60] X[i, j]
B[j:60] = sum[i:40] X[i, j] * A[i]
C[i:40] = sum[j:60] X[i, j] * B[j]
D[j:60] = sum[i:40] X[i, j] * C[i]
E[i:40] = sum[j:60] X[i, j] * D[j]
""")
)
print(stage_summary(zigzag))

# %% [markdown]
# ## Sizes are symbols
#
# The document: `(x0, x1, x2)` beside `(y0, y1)` makes sense only if `y0 == x1` and `y1 == x2`. Such equalities are recorded, and a kernel is used again for all sizes that meet them.

# %%
fuse_program(ee.parse("tensor x[2, 3, 4]\ntensor y[3, 4]\nz[i:2, j:3, k:4] = x[i, j, k] + y[j, k]")).sizes.equalities

# %%
norm.sizes.equalities

# %% [markdown]
# A program serves other sizes by itself, or says why not:

# %%
rows = FusedProgram(ee.parse("tensor x[2, 3]\ntensor y[3]\nz[i:2] = sum[j:3] x[i, j] * y[j]"))
x, y = np.ones((100, 50), np.float32), np.ones(50, np.float32)
print(rows({"x": x, "y": y})["z"][:5], "after", rows.analyses, "analysis")

# %%
try:
    rows({"x": x, "y": y[:49]})
except ValueError as error:
    print(error)

# %% [markdown]
# The `100352` of a mean over 32×56×56 follows the sizes, but how, the number does not say. A program as a *function of the shapes* does. It is analysed for each new shape, a matter of
# a millisecond; the code stays the same, as that number is an argument.

# %%
batch = FusedProgram(lambda shapes: batch_norm(*shapes["X"]))
rng = np.random.default_rng(0)


def inputs(n, c, h, w):
    return {
        "X": rng.standard_normal((n, c, h, w), np.float32),
        "g": rng.standard_normal(c, np.float32),
        "b": rng.standard_normal(c, np.float32),
    }


for shape in ((4, 8, 14, 14), (2, 30, 7, 9), (16, 64, 28, 28)):
    batch(inputs(*shape))
print(batch.analyses, "analyses,", batch.kernels, "kernel")

# %% [markdown]
# ## Dimensions are squashed when it is called
#
# Only a call knows strides. `h` and `w` are neighbours in memory, so they are one axis of 3136; in the order NHWC, channels run along memory, and points of the grid go side by side.

# %%
packed = {"X": (256 * 3136, 3136, 56, 1), "Y": (256 * 3136, 3136, 56, 1), "g": (1,), "b": (1,)}
last = {"X": (256 * 3136, 1, 56 * 256, 256), "Y": (256 * 3136, 1, 56 * 256, 256), "g": (1,), "b": (1,)}
shapes = {"X": (32, 256, 56, 56), "g": (256,), "b": (256,)}
for name, strides in (("NCHW", packed), ("NHWC", last)):
    flat = lay_out(norm, shapes, strides)
    print(name, [(axis.name, flat.extents[axis]) for axis in flat.order], "side by side:", flat.lanes)

# %% [markdown]
# ## On this CPU
#
# The kernel is C, compiled once and kept. A point of the grid (100 KB here, 400 KB with 32 images) stays in the second-level cache, so what the second and third stage read does not come from memory.

# %%
arrays = inputs(8, 64, 56, 56)
print(batch.launch(arrays).text)

# %%
found = batch(arrays)["Y"]
d = arrays["X"] - arrays["X"].mean((0, 2, 3), keepdims=True)
wanted = d / np.sqrt((d * d).mean((0, 2, 3), keepdims=True) + 1e-5)
wanted = wanted * arrays["g"].reshape(1, -1, 1, 1) + arrays["b"].reshape(1, -1, 1, 1)
print(f"largest error: {np.abs(found - wanted).max():.1e}")

# %% [markdown]
# ## On a GPU
#
# A block is a point of the grid. Its threads share a stage's elements one by one; parts are joined in a tree in shared memory, all reductions of a stage at once. Here the same kernel is
# compiled for CUDA, and run by OpenCL on the CPU with real blocks and barriers.

# %%
small = inputs(4, 3, 5, 6)
_, kernel = gpu_launch(fuse_program(batch_norm(4, 3, 5, 6)), {name: a.shape for name, a in small.items()})
text = emit(kernel, "cuda")
print(text[: text.index("// stage 1")])

# %%
if nvrtc.nvrtc_version():
    print(f"NVRTC {nvrtc.nvrtc_version()}: {len(nvrtc.compile_cuda(kernel, 'sm_80').code)} bytes for sm_80")

# %%
if opencl.opencl_device_name():
    by_blocks = run_blocks(fuse_program(batch_norm(4, 3, 5, 6)), small)["Y"]
    print(f"OpenCL against C: {np.abs(by_blocks - batch(small)['Y']).max():.1e}")

# %% [markdown]
# ## When it does not pay
#
# One block a channel: with two channels, 106 of an A100's 108 multiprocessors have nothing to do. The estimate says so; on one CPU core there is nothing to lose.

# %%
for shape in ((32, 256, 56, 56), (32, 2, 512, 512)):
    program = batch_norm(*shape)
    flat, _ = gpu_launch(fuse_program(program), {t.name: t.shape for t in program.inputs})
    for target in (A100_TARGET, CPU_CORE_TARGET):
        print(shape, estimate_fusion(flat, target))

# %% [markdown]
# What decides in the end is a measurement: the fused kernel against a kernel an operation, run in turn.

# %%
times = compare_with_unfused(batch_norm(8, 64, 56, 56), arrays, rounds=5, seconds=0.05)
for name, timing in times.items():
    print(f"{name}: {timing.median * 1e6:.0f} µs")

# %% [markdown]
# **Exercise.** Write RMS normalisation, $y = x / \sqrt{\mathrm{mean}(x^2)}$, as a program. How many stages has it, and how often do its threads wait? What changes if the result of
# `x * x` is an output too?
