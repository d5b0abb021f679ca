"""TVM's CUDA text of a scope, compiled and run like the other kernels; made without a GPU.

TVM's default GPU schedules (dlight) are applied without tuning.  TVM's preamble is removed; the order of arguments is
read from the kernel, and the extents of its threads from the schedule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import dlight

from einnet_explore.codegen.preparation import collapse_dimensions, prepare
from einnet_explore.codegen.tvm.emission import tvm_constant, tvm_expression, tvm_join
from einnet_explore.ir import REDUCTIONS, Scalar, Scope, Table, Tensor, tensors
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
        ready = collapse_dimensions(prepare(scope))
        named = {t.name: t.shape for t in tensors(ready)}
        inputs = {name: te.placeholder(shape, "float32", name=f"T{n}") for n, (name, shape) in enumerate(named.items())}
        function = te.create_prim_func([*inputs.values(), _Stages(inputs, {}, {}).tensor(ready)])
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
    places = {f"T{n}": tensor for n, tensor in enumerate(inputs)} | {"Y": name}
    arguments = tuple(places[p.split()[-1].removesuffix("_ptr")] for p in given.split(","))
    extents = _extents(scheduled["main"].script())
    sizes = [extents.get(tag, 1) for tag in _TAGS]
    return CudaLaunch(
        entry, text[start.start() :], (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5]), arguments
    )


@dataclass(frozen=True)
class _Stages:
    """The tensors of scopes in TVM's tensor expressions; equal scopes are one stage."""

    places: Mapping[str, Any]
    done: dict[Scope, Any]
    names: dict[Scope, str]

    def tensor(self, scope: Scope) -> Any:
        """Return the tensor of *scope* over its box, shifted to start at 0."""
        if scope not in self.done:
            name = self.names[scope] = f"S{len(self.names)}" if self.names else "Y"
            axes = [x.name for x in scope.traversals]
            element = lambda *at: self._element(scope, *at)  # noqa: E731 - TVM counts its arguments
            self.done[scope] = te.compute(scope.shape, element, name=name, varargs_names=axes)
        return self.done[scope]

    def _element(self, scope: Scope, *at: Any) -> Any:
        env = {x: v + x.lo if x.lo else v for x, v in zip(scope.traversals, at, strict=True)}
        if not scope.summations:
            return self._scalar(scope.body, env)
        sums = [te.reduce_axis((0, s.extent), s.name) for s in scope.summations]
        env |= {s: v + s.lo if s.lo else v.var for s, v in zip(scope.summations, sums, strict=True)}
        neutral = tvm_constant(REDUCTIONS[scope.reduce])
        reducer = te.comm_reducer(lambda a, b: tvm_join(scope.reduce, a, b), lambda _: neutral, name=scope.reduce)
        return reducer(self._scalar(scope.body, env), axis=sums)

    def _scalar(self, body: Scalar, env: Mapping[Any, Any]) -> Any:
        return tvm_expression(body, env, self._read)

    def _read(self, source: Tensor | Table | Scope) -> Callable[..., Any]:
        assert not isinstance(source, Table), "a prepared scope reads no table"
        return self.places[source.name] if isinstance(source, Tensor) else self.tensor(source)


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
