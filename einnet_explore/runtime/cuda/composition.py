"""Plans of whole models, composed of plans of their parts: values, made without a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from einnet_explore.runtime.cuda.steps import Convolution, CudaLaunch, CudaPlan, CudaProduct, Shape, Step, View

NamedPlan: TypeAlias = tuple[CudaPlan, Mapping[str, str]]
"""The plan of a part, and the model's names of those of its buffers that other parts or the caller know."""


def compose_plans(
    parts: Iterable[NamedPlan], inputs: Mapping[str, Shape], outputs: Sequence[str], precision: str = "float32"
) -> CudaPlan:
    """Return the plan that runs *parts* in order, for a model with *inputs* (shapes by name) and *outputs*.

    Buffers that parts share have the model's names, others the part's number.  Raises ValueError for an output that no
    part computes.
    """
    buffers: dict[str, Shape] = dict(inputs)
    dtypes: dict[str, str] = {}
    early, late = list[Step](), list[Step]()
    weights: dict[str, None] = {}
    for n, (plan, known) in enumerate(parts):
        names = {name: known.get(name, f"{n}: {name}") for name in plan.buffers}
        buffers |= {names[name]: shape for name, shape in plan.buffers.items()}
        dtypes |= {names[name]: dtype for name, dtype in plan.dtypes.items()}
        weights |= dict.fromkeys(names[name] for name in plan.weights)
        steps = [rename_buffers(step, names) for step in plan.steps]
        early += steps[: plan.once]
        late += steps[plan.once :]
    if missing := [name for name in outputs if name not in buffers]:
        raise ValueError(f"output {missing[0]}: found no part that computes it")
    return CudaPlan(
        buffers,
        tuple(inputs),
        tuple(weights),
        tuple(outputs),
        (*early, *late),
        len(early),
        dtypes=dtypes,
        precision=precision,
    )


def rename_buffers(step: Step, names: Mapping[str, str]) -> Step:
    """Return *step* on the buffers that *names* gives for its own."""

    def view(v: View) -> View:
        return replace(v, name=names[v.name])

    match step:
        case CudaLaunch(arguments=given):
            return replace(step, arguments=tuple(names[a] if isinstance(a, str) else a for a in given))
        case CudaProduct(out, left, right, after):
            bias = after.bias and view(after.bias)
            return CudaProduct(view(out), view(left), view(right), replace(after, bias=bias))
        case Convolution(out=out, data=data, weights=weights):
            return replace(step, out=view(out), data=view(data), weights=view(weights))


MAX_CHOICE_RATIO = 0.97
"""A plan is chosen in place of the first one if it takes less than this part of its time."""


def choose_plan(seconds: Mapping[str, float], first: str) -> str:
    """Return the fastest plan; *first* unless another gains more than noise (``MAX_CHOICE_RATIO``)."""
    found = min(seconds, key=lambda name: seconds[name])
    return found if first not in seconds or seconds[found] < MAX_CHOICE_RATIO * seconds[first] else first
