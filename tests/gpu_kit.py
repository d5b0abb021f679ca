"""Plans for GPUs, run step by step on the CPU, and a device that is none: what the optimiser calls runs there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from einnet_explore.codegen.language import printer
from einnet_explore.codegen.language.statements import Kernel
from einnet_explore.runtime import c_kernels
from einnet_explore.runtime.cuda import execution
from einnet_explore.runtime.cuda import plan as cuda_plan
from einnet_explore.runtime.cuda.steps import Convolution, CudaLaunch, CudaPlan, CudaProduct, Step, View

Kernels = dict[Any, Kernel]
Convolve = Callable[[Convolution, Callable[[View], Any]], None]


def record_kernels(patch: pytest.MonkeyPatch) -> Kernels:
    """The kernels behind the texts of the plans that are made from now on."""
    found: Kernels = {}

    def emit(kernel: Kernel, dialect: str) -> str:
        text = printer.emit(kernel, dialect)
        found[printer.entry_name(kernel), text] = kernel
        return text

    patch.setattr(cuda_plan, "emit", emit)
    return found


def shown(buffers: Mapping[str, Any], view: View) -> Any:
    flat = buffers[view.name].reshape(-1)[view.offset :]
    return np.lib.stride_tricks.as_strided(flat, view.shape, tuple(s * flat.itemsize for s in view.strides))


@lru_cache(maxsize=64)
def convolution_session(step: Convolution) -> onnxruntime.InferenceSession:
    attributes: dict[str, Any] = {n: getattr(step, n) for n in ("strides", "dilations", "pads", "group")}
    if step.kind == "ConvTranspose":
        attributes["output_padding"] = step.output_padding
    graph = helper.make_graph(
        [helper.make_node(step.kind, ["x", "w"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info(n, 1, v.shape) for n, v in (("x", step.data), ("w", step.weights))],
        [helper.make_tensor_value_info("y", 1, step.out.shape)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def by_onnxruntime(step: Convolution, seen: Callable[[View], Any]) -> None:
    """A convolution or its transpose as ONNX defines it."""
    x, w = (np.ascontiguousarray(seen(v)) for v in (step.data, step.weights))
    seen(step.out)[...] = convolution_session(step).run(None, {"x": x, "w": w})[0]


def run_steps(
    steps: Iterable[Step], buffers: Mapping[str, Any], kernels: Kernels, convolve: Convolve = by_onnxruntime
) -> None:
    """Run *steps* with NumPy's products, *convolve*, and kernels as loops in C."""
    for step in steps:
        match step:
            case CudaLaunch():
                given = [buffers[a] if isinstance(a, str) else np.dtype(a[1]).type(a[0]) for a in step.arguments]
                c_kernels.load_c_kernel(kernels[step.entry, step.text])(*given, grid=step.grid)
            case CudaProduct(out, left, right, after):
                made = np.matmul(shown(buffers, left), shown(buffers, right), dtype=np.float32)
                made = made + shown(buffers, after.bias) if after.bias else made
                shown(buffers, out)[...] = np.maximum(made, 0) if after.relu else made
            case Convolution():
                convolve(step, lambda view: shown(buffers, view))


def fresh_buffers(plan: CudaPlan) -> dict[str, Any]:
    """Buffers of numbers that nothing may count on."""
    return {name: np.full(shape, 77, plan.dtypes.get(name, plan.dtype)) for name, shape in plan.buffers.items()}


def on_cpu(
    plan: CudaPlan, feeds: Mapping[str, Any], kernels: Kernels, convolve: Convolve = by_onnxruntime
) -> dict[str, Any]:
    """The outputs of *plan* for inputs and weights *feeds*."""
    buffers = fresh_buffers(plan)
    for name in (*plan.inputs, *plan.weights):
        buffers[name][...] = feeds[name]
    run_steps(plan.steps, buffers, kernels, convolve)
    return {name: buffers[name] for name in plan.outputs}


class CpuProgram:
    """A compiled plan, as ``execution.CudaProgram`` is."""

    def __init__(self, plan: CudaPlan, weights: Mapping[str, Any], kernels: Kernels) -> None:
        self.plan, self.kernels, self.buffers = plan, kernels, fresh_buffers(plan)
        for name in plan.weights:
            self.buffers[name][...] = weights[name]
        run_steps(plan.steps[: plan.once], self.buffers, kernels)

    def execute(self) -> None:
        run_steps(self.plan.steps[self.plan.once :], self.buffers, self.kernels)

    def run(self, inputs: Mapping[str, Any], launch: Callable[[], object] | None = None) -> dict[str, Any]:
        for name in self.plan.inputs:
            self.buffers[name][...] = inputs[name]
        (launch or self.execute)()
        return {name: self.buffers[name].copy() for name in self.plan.outputs}

    def capture(self) -> Callable[[], object]:
        return self.execute


class Device:
    """What stands for the GPU: plans run on the CPU, and take as many seconds as ``seconds`` says of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.kernels = record_kernels(patch)
        self.compiled: list[CudaPlan] = []
        self.seconds: Callable[[CudaPlan], float] = lambda plan: 1e-3 * len(plan.steps)
        self.fail: Callable[[CudaPlan], object] = lambda plan: None
        for name, instead in {
            "require_cuda": lambda: None,
            "cuda_device": lambda: execution.CudaDevice("Synthetic", "90", 132, 1, 1, "13000", "13000", "none"),
            "compile_plan": self.compile,
            "single_call_seconds": lambda call: self.seconds(call.__self__.plan),
            "time_in_rounds": self.time,
            "rotation_copies": lambda nbytes: 2,
        }.items():
            patch.setattr(execution, name, instead)

    def compile(self, plan: CudaPlan, weights: Mapping[str, Any]) -> CpuProgram:
        self.compiled.append(plan)
        self.fail(plan)
        return CpuProgram(plan, weights, self.kernels)

    def time(self, calls: Mapping[str, Any], rounds: int) -> dict[str, list[float]]:
        return {name: [self.seconds(turn[0].__self__.plan)] * rounds for name, turn in calls.items()}
