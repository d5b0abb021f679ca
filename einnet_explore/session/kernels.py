"""Generated kernels step by step, as values: flattening, tiles, element-wise launches, fused reductions, chains, texts.

``kernel_texts`` returns the kernels of a program in one call; the other names are the steps to it.  ``emit`` prints a
kernel as CUDA, OpenCL or C.
"""

from einnet_explore.analysis.counts import intensity
from einnet_explore.analysis.flattening import flatten_scope
from einnet_explore.analysis.fused_chain import find_chain
from einnet_explore.analysis.online_softmax import softmax_homomorphism
from einnet_explore.codegen.elementwise import (
    A100,
    BLOCK_THREADS,
    H100,
    MAX_WAVES,
    ElementwiseLaunch,
    Functor,
    aligned_kernel,
    block_count,
    build_functor,
    compose_functors,
    grid_stride_kernel,
    pack_size,
    plan_launch,
)
from einnet_explore.codegen.fusion.frame import lay_out
from einnet_explore.codegen.fusion.gpu import A100_TARGET, CPU_CORE_TARGET, estimate_fusion, gpu_launch
from einnet_explore.codegen.fusion.plan import FusedKernel, fuse_program
from einnet_explore.codegen.language.printer import emit
from einnet_explore.codegen.language.statements import Kernel
from einnet_explore.codegen.language.values import BF16, F16, F32, F64, I8, I32
from einnet_explore.codegen.tiling.cost import Hardware, as_contraction, search_best_first, tile_cost
from einnet_explore.codegen.tiling.kernel import tile_contraction
from einnet_explore.codegen.tiling.shared_layout import local_layout, thread_layout
from einnet_explore.pipeline.fusion import chain_in_blocks
from einnet_explore.runtime.cuda.nvrtc import ARCHITECTURES, compile_cuda, nvrtc_available, nvrtc_version
from einnet_explore.runtime.fused import FusedProgram, compare_with_unfused
from einnet_explore.viz.graph_figures import draw_graph
from einnet_explore.viz.kernels import kernel_texts, stage_graph, stage_summary, tile_figure

__all__ = [
    "A100",
    "A100_TARGET",
    "ARCHITECTURES",
    "BF16",
    "BLOCK_THREADS",
    "CPU_CORE_TARGET",
    "F16",
    "F32",
    "F64",
    "H100",
    "I8",
    "I32",
    "MAX_WAVES",
    "ElementwiseLaunch",
    "Functor",
    "FusedKernel",
    "FusedProgram",
    "Hardware",
    "Kernel",
    "aligned_kernel",
    "as_contraction",
    "block_count",
    "build_functor",
    "chain_in_blocks",
    "compare_with_unfused",
    "compile_cuda",
    "compose_functors",
    "draw_graph",
    "emit",
    "estimate_fusion",
    "find_chain",
    "flatten_scope",
    "fuse_program",
    "gpu_launch",
    "grid_stride_kernel",
    "intensity",
    "kernel_texts",
    "lay_out",
    "local_layout",
    "nvrtc_available",
    "nvrtc_version",
    "pack_size",
    "plan_launch",
    "search_best_first",
    "softmax_homomorphism",
    "stage_graph",
    "stage_summary",
    "thread_layout",
    "tile_contraction",
    "tile_cost",
    "tile_figure",
]
