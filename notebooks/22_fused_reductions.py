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
# # Reductions in one kernel
#
# CuPy fuses element-wise operations with at most one reduction. Its extension (D. Nishino and Z. Xu, 2019) fuses *any*
# mix of element-wise operations and reductions. For example, batch normalisation contains a mean and a variance, and
# becomes one kernel. This notebook rebuilds the extension step by step, for programs in the text form:
#
# 1. the order of the operations, and the storage of every value;
# 2. symbolic sizes, and the equalities that a program requires;
# 3. dimensions that are collapsed when the kernel is called;
# 4. the kernel itself, for this CPU and for GPUs;
# 5. cases in which fusion is slower.

# %%
import numpy as np

import einnet_explore as ee
from einnet_evaluation import gpu_emulation

kernels = ee.kernels

# %% [markdown]
# ## A variable instead of an array
#
# The first example of the document is `x + x * x`. As two operations it needs two kernels, and `m` is written to
# memory and read again. After fusion, the thread that stores `m[i]` is also the thread that loads it, so `m` need not
# be stored: `tmp[tid] = a; b = tmp[tid]` becomes `b = a`.

# %%
square = kernels.fuse_program(
    ee.parse("""
tensor x[1000]
m[i:1000] = x[i] * x[i]
y[i:1000] = x[i] + m[i]
output y
""")
)
print(kernels.stage_summary(square))

# %%
print(kernels.emit(kernels.gpu_launch(square, {"x": (1000,)})[1], "cuda"))

# %% [markdown]
# ## Batch normalisation
#
# CuPy could not fuse this example: the mean and the variance are two reductions, and the second needs the result of
# the first.


# %%
def batch_norm(n, c, h, w):
    return ee.parse(f"""
tensor X[{n}, {c}, {h}, {w}]
tensor g[{c}]
tensor b[{c}]
M[c:{c}] = {{[c:{c}] sum[n:{n}, h:{h}, w:{w}] X[n, c, h, w]}}[c] / {n * h * w}
D[n:{n}, c:{c}, h:{h}, w:{w}] = X[n, c, h, w] - M[c]
V[c:{c}] = {{[c:{c}] sum[n:{n}, h:{h}, w:{w}] D[n, c, h, w] * D[n, c, h, w]}}[c] / {n * h * w}
Y[n:{n}, c:{c}, h:{h}, w:{w}] = D[n, c, h, w] * rsqrt(V[c] + 0.00001) * g[c] + b[c]
output Y
""")


ee.show(batch_norm(32, 256, 56, 56))

# %%
norm = kernels.fuse_program(batch_norm(32, 256, 56, 56))
print(kernels.stage_summary(norm))

# %% [markdown]
# No data flows from one channel to another, so the *grid* has one point for each channel (`i0`), and each point does
# all the work of its channel. A reduction ends a *stage*: all threads wait once for its result. `D` is computed twice
# and never stored, because a subtraction is cheaper than a memory access. Only `Y` is written to memory.

# %%
kernels.draw_graph(kernels.stage_graph(norm), "batch normalisation: three stages, one kernel")

# %% [markdown]
# Softmax is different, because `exp` is expensive. It is computed once and stored in the memory of the *result*. The
# result overwrites `E` where `E` is read for the last time.

# %%
softmax = kernels.fuse_program(
    ee.parse("""
tensor X[512, 768]
M[i:512] = max[j:768] X[i, j]
E[i:512, j:768] = exp(X[i, j] - M[i])
S[i:512] = sum[j:768] E[i, j]
Y[i:512, j:768] = E[i, j] / S[i]
output Y
""")
)
kernels.draw_graph(kernels.stage_graph(softmax), "softmax")

# %% [markdown]
# If the size changes between reductions, a temporary array in memory is necessary. Temporaries with disjoint lifetimes
# share a slot. Here four temporaries need two slots:

# %%
zigzag = kernels.fuse_program(
    ee.parse("""
tensor X[40, 60]
A[i:40] = sum[j:60] X[i, j]
B[j:60] = sum[i:40] X[i, j] * A[i]
C[i:40] = sum[j:60] X[i, j] * B[j]
D[j:60] = sum[i:40] X[i, j] * C[i]
E[i:40] = sum[j:60] X[i, j] * D[j]
""")
)
print(kernels.stage_summary(zigzag))

# %% [markdown]
# ## Sizes are symbols
#
# Operands of shape `(x0, x1, x2)` and `(y0, y1)` can be added only if `y0 == x1` and `y1 == x2`. The analysis records
# such equalities, and one kernel is reused for all sizes that satisfy them.

# %%
kernels.fuse_program(
    ee.parse("tensor x[2, 3, 4]\ntensor y[3, 4]\nz[i:2, j:3, k:4] = x[i, j, k] + y[j, k]")
).sizes.equalities

# %%
norm.sizes.equalities

# %% [markdown]
# A fused program accepts other sizes, or refuses them with the reason:

# %%
rows = kernels.FusedProgram(ee.parse("tensor x[2, 3]\ntensor y[3]\nz[i:2] = sum[j:3] x[i, j] * y[j]"))
x, y = np.ones((100, 50), np.float32), np.ones(50, np.float32)
print(rows({"x": x, "y": y})["z"][:5], "after", rows.analyses, "analysis")

# %%
try:
    rows({"x": x, "y": y[:49]})
except ValueError as error:
    print(error)

# %% [markdown]
# In a mean over 32×56×56 elements, the constant `100352` depends on the sizes, but the number alone does not show how.
# A program written as a *function of the shapes* does. It is analysed again for each new shape, which takes about a
# millisecond. The compiled code is reused, because the constant is an argument of the kernel.

# %%
batch = kernels.FusedProgram(lambda shapes: batch_norm(*shapes["X"]))
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
# ## Dimensions are collapsed at each call
#
# The strides are known only when the kernel is called. `h` and `w` are contiguous in memory, so they become one axis
# of 3136 elements. In the layout NHWC, the channels are contiguous in memory, so neighbouring points of the grid run
# in the lanes of a vector.

# %%
packed = {"X": (256 * 3136, 3136, 56, 1), "Y": (256 * 3136, 3136, 56, 1), "g": (1,), "b": (1,)}
last = {"X": (256 * 3136, 1, 56 * 256, 256), "Y": (256 * 3136, 1, 56 * 256, 256), "g": (1,), "b": (1,)}
shapes = {"X": (32, 256, 56, 56), "g": (256,), "b": (256,)}
for name, strides in (("NCHW", packed), ("NHWC", last)):
    flat = kernels.lay_out(norm, shapes, strides)
    print(name, [(axis.name, flat.extents[axis]) for axis in flat.order], "lanes:", flat.lanes)

# %% [markdown]
# ## On this CPU
#
# The kernel is C code, compiled once and cached. The data of one grid point (100 KB here, 400 KB with 32 images) fits
# in the second-level cache, so the second and third stage do not read from memory.

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
# Each block computes one point of the grid. Its threads share the elements of a stage; partial results are combined as
# a tree in shared memory, for all reductions of a stage at once. The next cells compile the same kernel for CUDA, and
# run it by OpenCL on the CPU with real blocks and barriers.

# %%
small = inputs(4, 3, 5, 6)
_, kernel = kernels.gpu_launch(
    kernels.fuse_program(batch_norm(4, 3, 5, 6)), {name: a.shape for name, a in small.items()}
)
text = kernels.emit(kernel, "cuda")
print(text[: text.index("// stage 1")])

# %%
if kernels.nvrtc_available():
    print(f"NVRTC {kernels.nvrtc_version()}: {len(kernels.compile_cuda(kernel, 'sm_80').code)} bytes for sm_80")

# %%
if gpu_emulation.opencl_available():
    by_blocks = gpu_emulation.run_blocks(kernels.fuse_program(batch_norm(4, 3, 5, 6)), small)["Y"]
    print(f"OpenCL against C: {np.abs(by_blocks - batch(small)['Y']).max():.1e}")

# %% [markdown]
# ## When fusion is slower
#
# There is one block for each channel. With two channels, 106 of the 108 multiprocessors of an A100 are idle, and the
# estimate shows this. On one CPU core, nothing is lost.

# %%
for shape in ((32, 256, 56, 56), (32, 2, 512, 512)):
    program = batch_norm(*shape)
    flat, _ = kernels.gpu_launch(kernels.fuse_program(program), {t.name: t.shape for t in program.inputs})
    for target in (kernels.A100_TARGET, kernels.CPU_CORE_TARGET):
        print(shape, kernels.estimate_fusion(flat, target))

# %% [markdown]
# The final decision is a measurement. It compares the fused kernel with one kernel for each operation, and alternates
# between the two.

# %%
times = kernels.compare_with_unfused(batch_norm(8, 64, 56, 56), arrays, rounds=5, seconds=0.05)
for name, timing in times.items():
    print(f"{name}: {timing.median * 1e6:.0f} µs")

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
mean_square = ee.parse("""
tensor x[8, 16]
Y[i:8, j:16] = x[i, j] / sqrt({[i:8] sum[j:16] x[i, j] * x[i, j]}[i] / 16 + 0.00001)
""")
rms = ee.Exercise(
    "`rms`: write RMS normalisation of the rows of `x[8, 16]`, $y = x / \\sqrt{\\mathrm{mean}(x^2) + 10^{-5}}$, as a "
    "program with the output `Y`. Answer with its text.",
    mean_square,
    hint="A scope or an equation computes the sum of squares of a row.",
    why="one reduction, read by every element of its row",
)
rms

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
text = """
tensor x[8, 16]
S[i:8] = sum[j:16] x[i, j] * x[i, j]
Y[i:8, j:16] = x[i, j] * rsqrt(S[i] / 16 + 0.00001)
output Y
"""
rms.grade(text)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
stages = ee.Exercise(
    "`stages`: how many stages has the kernel of this normalisation?",
    2,
    hint="A reduction ends a stage.",
    why="the sum of squares, then the quotient; the threads wait once",
)
stages

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
stages.grade(len(kernels.fuse_program(ee.parse(text)).stages))
