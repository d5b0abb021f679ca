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
# # Element-wise kernels
#
# Expressions that match no library operator are often *element-wise*: each result is a function of the elements at one
# position. Memory bandwidth alone limits such a kernel, so its design optimises the transfers: the number of elements
# that one instruction moves, and the number of blocks that share the work. OneFlow's developers published a template
# that does this well. This notebook rebuilds it from its numbers, as *values*: the launch plan is a pure function, the
# kernel is an immutable tree, and the tree is printed as CUDA C, OpenCL C or C.

# %%
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Code

import einnet_explore as ee
from einnet_evaluation import gpu_emulation

kernels = ee.kernels
F16, F32, F64, I8 = kernels.F16, kernels.F32, kernels.F64, kernels.I8

# %% [markdown]
# ## How many threads, how many blocks
#
# A multiprocessor has 64 K registers, and a thread uses at most 255. Even if every thread uses 255, $\lfloor 65536 /
# 255 \rfloor = 257$ threads fit. Rounded down to a power of two, this is the block size.

# %%
64 * 1024 // 255, kernels.BLOCK_THREADS

# %% [markdown]
# The number of blocks is at least one and at most the number of blocks that have work. It is also at most 32 *waves*;
# a wave is the number of blocks that the device runs at the same time:
#
# $$blocks = \max\left(1, \min\left(\left\lceil \frac{packs}{256} \right\rceil, \frac{SMs \cdot threads}{256} \cdot 32\right)\right)$$


# %%
def table(caption, head, rows):
    return ee.TextTable(
        head, tuple(tuple(f"{x:,}" if isinstance(x, int) else str(x) for x in row) for row in rows), caption
    )


rows = tuple(
    (packs, kernels.block_count(packs, kernels.A100), kernels.block_count(packs, kernels.H100))
    for packs in (0, 1, 256, 257, 10**5, 10**6, 10**7, 10**8)
)
table(f"blocks, at most {kernels.MAX_WAVES} waves", ("packs", "A100", "H100"), rows)

# %%
figure, axes = plt.subplots(figsize=(6, 3))
counts = np.unique(np.logspace(0, 8.5, 200).astype(int))
for name, gpu in (("A100", kernels.A100), ("H100", kernels.H100)):
    axes.loglog(
        counts, [kernels.block_count(int(n), gpu) for n in counts], label=f"{name}: at most {gpu.most_blocks:,}"
    )
axes.set(xlabel="packs", ylabel="blocks")
axes.legend()
plt.show()


# %% [markdown]
# ## How many elements at a time
#
# One instruction moves at most 128 bits. All arrays are traversed in the same steps, so the widest type determines the
# pack size, and a pack has at most 8 elements. A cast from float32 to half moves 4 elements at a time, although 8
# halves would fit.

# %%
mixes = ((F32,), (F16,), (F64,), (I8,), (F16, F32), (F16, F16), (F32, F64), (F32, I8, F16))
rows = tuple(
    (
        f"{mix[0]} ← {', '.join(map(repr, mix[1:])) or mix[0]}",
        kernels.pack_size(mix),
        ", ".join(str(8 * k.size * kernels.pack_size(mix)) for k in mix),
    )
    for mix in mixes
)
table("packs", ("result ← operands", "elements", "bits a transfer"), rows)

# %% [markdown]
# A *plan* combines both numbers. Elements that do not fill a pack (the tail) are processed one by one. If an array
# does not start at a multiple of its pack size, every pack is a single element. Beyond $2^{31}$ elements, positions
# are 64-bit integers.

# %%
kinds = (F16, F32)
rows = tuple(
    (label, p.pack, p.packs, p.tail, p.blocks, repr(p.index))
    for label, p in (
        ("4,096 elements", kernels.plan_launch(4096, kinds, (0, 0))),
        ("4,099 elements", kernels.plan_launch(4099, kinds, (0, 0))),
        ("…, the operand 4 bytes further", kernels.plan_launch(4099, kinds, (0, 4))),
        ("no elements", kernels.plan_launch(0, kinds, (0, 0))),
        ("2³¹ + 1 elements", kernels.plan_launch((1 << 31) + 1, kinds, (0, 0))),
    )
)
table("half ← float32 on an A100", ("what", "pack", "packs", "tail", "blocks", "positions"), rows)

# %% [markdown]
# ## The kernel
#
# A *functor* is a scalar expression over operands, here of an equation: its length does not matter. The example of OneFlow's document is a cast: the identity, from
# float32 to half. If the result has half precision and the pack size is even, the kernel converts two elements at a
# time (`__float22half2_rn`).


# %%
def functor(text, **kinds):
    """The functor of the one equation of *text*; *kinds* are the types of its tensors, float32 where none is given."""
    (equation,) = ee.parse(text).equations
    return kernels.build_functor(equation.scope, equation.name, kinds=kinds)


cast = functor("tensor x[9]\ncast[i:9] = x[i]", cast=F16)
Code(kernels.emit(kernels.aligned_kernel(cast, 4099), "cuda"), language="cuda")

# %% [markdown]
# The sum of two halves is *one* instruction for two elements. Adding in single precision and rounding afterwards gives
# the same bits: a half has 11 bits of precision, and single precision has $24 \ge 2 \cdot 11 + 2$. The OpenCL and C
# versions use single precision, so all three agree exactly.

# %%
halves = dict.fromkeys(("add", "a", "b"), F16)
add = functor("tensor a[9]\ntensor b[9]\nadd[i:9] = a[i] + b[i]", **halves)
Code(kernels.emit(kernels.aligned_kernel(add, 4096), "cuda"), language="cuda")

# %% [markdown]
# ## Does the compiler use wide transfers?
#
# This test needs no GPU, because NVIDIA's compiler is available as a Python package. The table counts the PTX
# instructions of one thread for four elements of the cast, once in the template and once in a plain kernel that
# processes one element at a time. The template has fewer and wider transfers. OneFlow's document reports 80–90 % of
# the memory bandwidth for it on a GPU; this notebook does not measure that figure.


# %%
def counted(launch, times):
    text = kernels.compile_cuda(kernels.grid_stride_kernel(cast, launch), "compute_80").code.decode()
    lines = [line.strip() for line in text.splitlines()]
    return tuple(times * sum(part in line for line in lines) for part in ("ld.global", "st.global", "cvt.rn"))


if kernels.nvrtc_available():
    rows = (
        (
            "plain, four elements",
            *counted(kernels.ElementwiseLaunch(1, 4096, 0, 16, kernels.plan_launch(1, kinds, (0, 0)).index), 4),
        ),
        ("template, four elements", *counted(kernels.plan_launch(4096, kinds, (0, 0)), 1)),
    )
else:
    rows = (("NVRTC is not installed", None, None, None),)
table("PTX instructions", ("kernel", "loads", "stores", "conversions"), rows)

# %% [markdown]
# The kernel compiles to machine code for the A100 (sm_80), the H100 (sm_90) and the B200 (sm_100):

# %%
[
    (a, f"{len(kernels.compile_cuda(kernels.aligned_kernel(add, 4099), a).code):,} bytes")
    for a in kernels.ARCHITECTURES
    if kernels.nvrtc_available()
]

# %% [markdown]
# ## Is the result correct?
#
# The same kernel, printed as OpenCL, also runs on a CPU with blocks, packs and tail. The test uses lengths that no
# pack size divides, and arrays at aligned and unaligned addresses:


# %%
def errors(made, engine, reference):
    out = []
    for n in (0, 1, 255, 1003, 4099):
        raw = np.zeros(4 * n + 64, np.uint8)
        for offset in (0, 4):
            x = raw[offset : offset + 4 * n].view(np.float32)
            x[:] = np.random.default_rng(n).normal(size=n)
            y = np.zeros(n, np.float16)
            gpu_emulation.Elementwise(made, engine)(y, x)
            out.append(int((y != reference(x)).sum()))
    return sum(out)


engine = "opencl" if gpu_emulation.opencl_available() else "c blocks"
print(engine, errors(cast, engine, lambda x: x.astype(np.float16)), sep=": ", end=" results differ\n")

# %% [markdown]
# ## Any number of operands, composed
#
# OneFlow has `Unary`, `Binary` and `Ternary` kernels, and needs a factory for more operands. Functors compose, so a
# composition of any size is one kernel. An operand that is the same for all elements is a *scalar*; each thread reads
# it once. A composition writes no intermediate results:

# %%
relu = functor("tensor x[9]\nrelu[i:9] = maximum(x[i], 0)")
scaled = functor("tensor v[9]\ntensor s[1]\nscaled[i:9] = v[i] * s[0]")
total = functor("tensor a[9]\ntensor b[9]\ntensor c[9]\ntotal[i:9] = a[i] + b[i] + c[i]")
fused = kernels.compose_functors(scaled, {"v": kernels.compose_functors(relu, {"x": total})})
Code(kernels.emit(kernels.aligned_kernel(fused, 4096), "opencl"), language="c")

# %%
a, b, c = (np.random.default_rng(k).integers(-9, 9, 1003).astype(np.float32) for k in range(3))
s, y = np.array([3], np.float32), np.zeros(1003, np.float32)
gpu_emulation.Elementwise(fused, engine)(y, a, b, c, s)
float(abs(y - np.maximum(a + b + c, 0) * 3).max())

# %% [markdown]
# ## From expressions
#
# An expression is element-wise if it reads every element at the same flat position as it writes. The shapes may
# differ, because only the flat positions are compared. The command is `einnet-explore show CASE.ein --kernel cuda`.
# For a CPU, each block processes neighbouring elements, and the C compiler vectorises the loop.

# %%
case = ee.parse("""
tensor A[64, 31]
tensor B[1984]
Y[i:64, j:31] = maximum(A[i, j], 0) + B[31*i + j]
""")
Code(kernels.kernel_texts(case, "c")[0].text, language="c")

# %% [markdown]
# If an expression is not element-wise, the refusal gives the reason:

# %%
try:
    kernels.build_functor(ee.parse("tensor A[3, 5]\nY[j:5, i:3] = A[i, j]").equations[0].scope, "Y")
except ValueError as refused:
    print(refused)

# %% [markdown]
# ## Exercises
#
# `NAME.grade(answer)` checks an answer to the exercise `NAME`, `NAME.hint()` helps. The solutions are in the folded cells.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
pack = ee.Exercise(
    "`pack`: how many elements has a pack of a kernel that reads bytes and writes float64?",
    2,
    hint="The widest type decides.",
    why="128 bits hold two of 64",
)
pack

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
pack.grade(kernels.pack_size((F64, I8)))

# %% jupyter={"source_hidden": true} tags=["hide-input"]
blocks = ee.Exercise(
    "`blocks`: how many blocks does the template launch for 1,000 packs on an A100?",
    4,
    hint="A block has 256 threads, and each takes a pack.",
    why="⌈1000 / 256⌉, far below 32 waves",
)
blocks

# %% jupyter={"outputs_hidden": true, "source_hidden": true} tags=["hide-cell"]
blocks.grade(kernels.block_count(1000, kernels.A100))
