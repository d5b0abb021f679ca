"""An ONNX model run by PyTorch, eagerly or compiled by Inductor, for benchmarks only.

PyTorch is an optional extra.  The model becomes a graph module whose weights are parameters; both memory formats (and,
compiled, weights frozen or not) are tried, and the fastest is the engine.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from einnet_evaluation.library_runtimes import OpenModel
from einnet_evaluation.torch_operators import step
from einnet_explore.onnx_import.model import Model
from einnet_explore.runtime.arrays import Arrays
from einnet_explore.runtime.measurement import time_calls

TRIAL_SECONDS = 0.3
"""Seconds of measurement of each variant."""

Call: TypeAlias = "Callable[[], Arrays]"


def torch_engine(model: Model, feeds: Arrays, threads: int, compiled: bool = False) -> OpenModel:
    """Return *model* on *feeds* in PyTorch: the fastest of its variants.

    Where Inductor fails (it needs a C++ compiler) for all of them the model is run eagerly, and ``said`` tells why.
    Raises ValueError, with the node, for an operator that is not known here.
    """
    import torch

    torch.set_num_threads(threads)
    module = graph_module(torch, model).eval()
    tried: dict[str, Call] = {}
    failed: list[str] = []
    for name, form, frozen in _variants(torch, model, compiled):
        # Every variant has weights of its own: freezing drops the originals.
        mine = copy.deepcopy(module).to(memory_format=form)
        try:
            tried[name] = (
                _compiled(torch, mine, model, feeds, form, frozen)
                if compiled
                else _ready(torch, mine, model, feeds, form)
            )
        except Exception as problem:
            if not compiled:
                raise
            failed.append(f"{name}: {type(problem).__name__}: {' '.join(str(problem).split())[:200]}")
    if not tried:
        eager = torch_engine(model, feeds, threads)
        return OpenModel(eager.call, f"run eagerly, {eager.said}: Inductor failed: {failed[0]}")
    best = next(iter(tried))
    if len(tried) > 1:
        times = time_calls(tried, rounds=5, min_seconds=TRIAL_SECONDS)
        best = min(tried, key=lambda name: times[name].low)
    how = f"torch {torch.__version__}, {'Inductor' if compiled else 'eager'}, {best}"
    return OpenModel(tried[best], "; ".join([how, *failed]))


def _variants(torch: Any, model: Model, compiled: bool) -> Iterable[tuple[str, Any, bool]]:
    """(name, memory format, whether weights are frozen)."""
    forms = [("channels first", torch.contiguous_format)]
    if any(node.op in ("Conv", "ConvTranspose") and len(model.shape(node.inputs[1])) == 4 for node in model.nodes):
        forms.append(("channels last", torch.channels_last))
    for name, form in forms:
        yield from ((f"{name}, frozen", form, True), (name, form, False)) if compiled else ((name, form, False),)


def _compiled(torch: Any, module: Any, model: Model, feeds: Arrays, form: Any, frozen: bool) -> Call:
    import torch._inductor.config as inductor

    # Dynamo reads this setting too, so the option of ``torch.compile`` alone has no effect.
    with inductor.patch(freezing=frozen), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compilers warn about settings that the user cannot change
        return _ready(torch, torch.compile(module, dynamic=False), model, feeds, form)


def _ready(torch: Any, run: Callable[..., Any], model: Model, feeds: Arrays, form: Any) -> Call:
    """Return a call of *run* after one warm-up call."""
    given = [torch.from_numpy(np.array(feeds[v.name])) for v in model.inputs]
    names = [v.name for v in model.outputs]

    def call() -> Arrays:
        with torch.inference_mode():
            inputs = [x.contiguous(memory_format=form) if x.dim() == 4 else x for x in given]
            return {name: made.numpy() for name, made in zip(names, run(*inputs), strict=True)}

    call()
    return call


def graph_module(torch: Any, model: Model) -> Any:
    """*model* as a ``torch.fx`` graph module: weights are parameters (buffers where not real), a call a node."""
    root = torch.nn.Module()
    graph = torch.fx.Graph()
    values: dict[str, Any] = {v.name: graph.placeholder(f"input_{n}") for n, v in enumerate(model.inputs)}
    used = {name for node in model.nodes for name in node.reads} | {v.name for v in model.outputs}
    for n, (name, array) in enumerate((k, a) for k, a in model.weights.items() if k in used):
        tensor = torch.from_numpy(np.array(array))
        if tensor.is_floating_point():
            root.register_parameter(f"weight_{n}", torch.nn.Parameter(tensor, requires_grad=False))
        else:
            root.register_buffer(f"weight_{n}", tensor)
        values[name] = graph.get_attr(f"weight_{n}")
    for node in model.nodes:
        call = step(torch, model, node)
        if call.__name__ == "<lambda>":  # generated code calls it by its name
            call.__name__ = node.op.lower()
        made = graph.call_function(call, tuple(values[name] if name else None for name in node.inputs))
        if node.op == "Split":
            values |= {name: graph.call_function(operator.getitem, (made, n)) for n, name in enumerate(node.outputs)}
        else:
            values[node.outputs[0]] = made
    graph.output(tuple(values[v.name] for v in model.outputs))
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(root, graph)
