"""TVM's CUDA text of a scope, compiled and run like the other kernels; made without a GPU.

TVM's default GPU schedules (dlight) are applied without tuning.  TVM's preamble is removed; the order of arguments is
read from the kernel, and the extents of its threads from the schedule.
"""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import dlight

from einnet_explore.codegen.preparation import collapse_dimensions, prepare
from einnet_explore.codegen.tvm.emission import lower_stages
from einnet_explore.ir import Scope
from einnet_explore.runtime.cuda.steps import CudaLaunch
from einnet_explore.support.errors import BackendError

TARGET = {
    "kind": "cuda",
    "arch": "sm_80",
    "max_num_threads": 1024,
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 48 << 10,
    "thread_warp_size": 32,
}

RULES = ("GEMV", "Reduction", "Transpose", "Fallback")
"""Of dlight, in this order; those that raise for a scope are left out."""

_TAGS = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
_BOUND = re.compile(r'thread_binding\((\d+), thread="([\w.]+)"')
_HEAD = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) \{')


def tvm_launch(scope: Scope, name: str) -> CudaLaunch:
    """*scope* in float32 as one kernel of TVM's, which writes the buffer *name*.

    Raises BackendError where TVM does not lower, schedule or generate it, or makes several kernels of it.
    """
    try:
        lowered = lower_stages(collapse_dimensions(prepare(scope)))
        function = te.create_prim_func([*lowered.placeholders, lowered.output])
        target = tvm.target.Target(TARGET)
        scheduled = _scheduled(tvm.IRModule({"main": function}), target)
        text = tvm.compile(scheduled, target=target).mod.imports[0].inspect_source()
    except Exception as error:  # TVM fails in many ways, internal errors among them
        raise BackendError(f"TVM makes no CUDA text of {name}: {' '.join(str(error).split())[-200:]}") from None
    heads = _HEAD.findall(text)
    if len(heads) != 1:
        raise BackendError(f"TVM makes {len(heads)} kernels of {name}, expected one")
    entry, given = heads[0]
    start = _HEAD.search(text)
    assert start is not None
    places = {f"T{n}": tensor for n, tensor in enumerate(lowered.inputs)} | {"Y": name}
    arguments = tuple(places[p.split()[-1].removesuffix("_ptr")] for p in given.split(","))
    extents = _extents(scheduled["main"].script())
    sizes = [extents.get(tag, 1) for tag in _TAGS]
    return CudaLaunch(
        entry, text[start.start() :], (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5]), arguments
    )


def _scheduled(module: Any, target: Any) -> Any:
    """*module* by the first of ``RULES`` that take it."""
    with target:
        for skipped in range(len(RULES)):
            rules = [getattr(dlight.gpu, rule)() for rule in RULES[skipped:]]
            try:
                return dlight.ApplyDefaultSchedule(*rules)(module)
            except Exception:
                if skipped + 1 == len(RULES):
                    raise
    raise AssertionError("there are rules")


def _extents(script: str) -> dict[str, int]:
    """Return the extent of every block and thread axis, from TVM's print of the schedule."""
    found: dict[str, int] = {}
    for extent, tag in _BOUND.findall(script):
        found[tag] = max(int(extent), found.get(tag, 1))
    return found
