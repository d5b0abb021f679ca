"""PyTorch modules as models: exported to ONNX by ``torch.export``, and the backend ``einnet`` of ``torch.compile``.

torch and onnxscript are the extra ``torch``; they are imported where they are used.
"""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx

from einnet_explore.pipeline.optimisation import optimize_model
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, largest_error
from einnet_explore.runtime.measurement import time_calls
from einnet_explore.support.errors import Refused

if TYPE_CHECKING:
    import torch

    from einnet_explore.pipeline.optimised import Optimised


def export_module(
    module: torch.nn.Module, example_inputs: Sequence[object], input_names: Sequence[str] | None = None
) -> onnx.ModelProto:
    """Export *module* with the shapes of its *example_inputs*; inputs have ``forward``'s or the given names.

    Raises Refused if onnxscript is missing, or with the first line of torch's message for what it cannot export.
    """
    import torch

    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module, tuple(example_inputs), input_names=input_names, dynamo=True, verbose=False
            )
    except ModuleNotFoundError as error:
        raise Refused(f"found no Python package {error.name}, expected the extra 'torch'") from None
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise Refused(f"{type(module).__name__}: torch cannot export it: {reason}") from None
    finally:
        logging.disable(level)
    proto: onnx.ModelProto = program.model_proto
    return proto


Source = TypeVar("Source")


def export_if_module(model: Source, example_inputs: Sequence[object]) -> Source | onnx.ModelProto:
    """Export *model* with the shapes of its *example_inputs* if it is a PyTorch module; return others as they are."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return model
    if not example_inputs:
        raise Refused(f"{type(model).__name__}: found no example_inputs, expected a tuple of tensors")
    return export_module(model, example_inputs)


def compile_graph(
    graph: torch.fx.GraphModule, example_inputs: Sequence[object], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo: the backend ``einnet`` of ``torch.compile``.

    *options* are those of ``ee.optimize``, such as ``{"budget": 60, "threads": 1}``.  Parameters and buffers are
    constants of the plan: the graph runs eagerly after one of them has changed.  Graphs that are not for inference on a
    CPU, that have dynamic sizes or that cannot be exported, and plans that are not faster or not equal to eager
    execution within 1e-4, run eagerly; a warning names the reason.
    """
    try:
        return _compiled(graph, example_inputs, options or {})
    except ValueError as error:  # Refused and ModelError, too
        warnings.warn(f"einnet: a graph runs eagerly: {error}", stacklevel=2)
        eager: Callable[..., Any] = graph.forward
        return eager


def _compiled(graph: torch.fx.GraphModule, examples: Sequence[object], options: Mapping[str, Any]) -> GraphPlan:
    _require_inference(examples)
    constant = [_is_weight(node) for node in graph.graph.nodes if node.op == "placeholder"]
    weights = [each for each, fixed in zip(examples, constant, strict=True) if fixed]
    inputs = [each for each, fixed in zip(examples, constant, strict=True) if not fixed]
    if not inputs:
        raise Refused("found no input besides weights, expected one")
    optimised = optimize_model(export_module(_with_weights(graph, weights), inputs), **options)
    plan = GraphPlan(optimised, graph, tuple(constant), _versions(weights))
    plan.require_gain(examples)
    return plan


def _with_weights(graph: torch.fx.GraphModule, weights: Iterable[Any]) -> torch.fx.GraphModule:
    """Return a copy of *graph* in which *weights* are buffers, no longer inputs."""
    import torch

    frozen = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    places = [node for node in frozen.graph.nodes if node.op == "placeholder" and _is_weight(node)]
    for n, (node, weight) in enumerate(zip(places, weights, strict=True)):
        frozen.register_buffer(f"weight_{n}", weight.detach())
        with frozen.graph.inserting_before(node):
            node.replace_all_uses_with(frozen.graph.get_attr(f"weight_{n}"))
        frozen.graph.erase_node(node)
    frozen.recompile()
    return frozen.eval()


def _require_inference(examples: Iterable[object]) -> None:
    """Raise Refused unless all *examples* are tensors on the CPU, in memory order, and no gradient is needed."""
    import torch

    for each in examples:
        if not isinstance(each, torch.Tensor):
            raise Refused(f"found an input of type {type(each).__name__}, expected tensors of static sizes")
        if each.device.type != "cpu":
            raise Refused(f"found a tensor on {each.device}, expected the CPU")
        if torch.is_grad_enabled() and each.requires_grad:
            raise Refused("found a tensor that needs a gradient, expected inference under torch.no_grad()")


def _is_weight(node: Any) -> bool:
    """Return whether a placeholder stands for a parameter or a buffer of a module."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    text = name() if callable(name) else str(name)
    return "._parameters[" in text or "._buffers[" in text


def _versions(weights: Iterable[Any]) -> list[tuple[int, int]]:
    return [(each.data_ptr(), each._version) for each in weights]


@dataclass(frozen=True)
class GraphPlan:
    """A plan in place of a *graph*; *constant* says which of its arguments are weights."""

    optimised: Optimised
    graph: torch.fx.GraphModule
    constant: tuple[bool, ...]
    versions: list[tuple[int, int]]
    """The address and version of each weight in the plan."""

    def __call__(self, *arguments: Any) -> Any:
        """Run the plan; run the graph if a weight has changed."""
        weights = (each for each, fixed in zip(arguments, self.constant, strict=True) if fixed)
        return self._run(arguments) if _versions(weights) == self.versions else self.graph(*arguments)

    def _run(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        import torch

        given = (each for each, fixed in zip(arguments, self.constant, strict=True) if not fixed)
        model = self.optimised.model
        feeds = {value.name: tensor.detach().numpy() for value, tensor in zip(model.inputs, given, strict=True)}
        outputs = self.optimised.plan.run(feeds)
        return tuple(torch.from_numpy(np.array(outputs[value.name], copy=None)) for value in model.outputs)

    def require_gain(self, arguments: Sequence[Any]) -> None:
        """Raise Refused unless the plan agrees with the graph and is not slower, measured in turns."""
        import torch

        with torch.no_grad():
            expected = self.graph(*arguments)
            found = self._run(arguments)
            if len(expected) != len(found):
                raise Refused(f"found {len(found)} tensors as results, expected {len(expected)}")
            for one, other in zip(expected, found, strict=True):
                if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
                    raise Refused(f"found a result of {other.dtype} {list(other.shape)}, expected that of the graph")
                error = largest_error({"": one.numpy()}, {"": other.numpy()})
                if not error <= MAX_RELATIVE_ERROR:
                    raise Refused(f"the plan differs by {error:.1e} of the largest output from eager execution")
            calls = {"eager": lambda: self.graph(*arguments), "plan": lambda: self._run(arguments)}
            times = time_calls(calls, rounds=5, min_seconds=0.02)
        eager, plan = times["eager"].median, times["plan"].median
        if plan > eager:
            raise Refused(f"the plan takes {plan * 1e6:.0f} µs, eager execution {eager * 1e6:.0f} µs")
