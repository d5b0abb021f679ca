"""Programs that fused kernels are made for, as text of any size, and random ones of the kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from einnet_evaluation.fused_programs import batch_norm, instance_norm, layer_norm, softmax, variance
from einnet_explore.analysis.indices import with_iterators
from einnet_explore.codegen.fusion.operations import (
    Shapes,
    abstract_sizes,
    check_abstract_sizes,
    program_operations,
    read_name,
)
from einnet_explore.ir import Access, Equation, Iterator, Program, Scalar, Tensor, map_accesses
from einnet_explore.syntax import parse


def two_ways(r: int, c: int) -> Program:
    """Reductions over different axes, what is made of both, and a reduction of that."""
    return parse(f"""
        tensor X[{r}, {c}]
        A[i:{r}] = sum[j:{c}] X[i, j]
        B[j:{c}] = max[i:{r}] X[i, j]
        Y[i:{r}, j:{c}] = X[i, j] * A[i] + B[j]
        Z[] = min[i:{r}, j:{c}] Y[i, j]
        output Y, Z""")


__all__ = [
    "NORMS",
    "batch_norm",
    "chains",
    "instance_norm",
    "layer_norm",
    "resize_program",
    "softmax",
    "strided",
    "two_ways",
    "variance",
]

NORMS: dict[str, tuple[Callable[..., Program], tuple[int, ...]]] = {
    "batch norm": (batch_norm, (4, 3, 5, 6)),
    "layer norm": (layer_norm, (5, 7)),
    "instance norm": (instance_norm, (3, 2, 5, 7)),
    "softmax": (softmax, (4, 9)),
    "variance": (variance, (6, 11)),
    "two ways": (two_ways, (4, 6)),
}


def resize_program(program: Program, shapes: Shapes) -> Program:
    """Return *program* for inputs of other *shapes*: the same operations, with every size that follows from them.

    Raises Refused as ``check_abstract_sizes`` does.
    """
    found = program_operations(program)
    sizes = abstract_sizes(program.inputs, found)
    check_abstract_sizes(program.inputs, found, sizes, shapes)
    to = {x: Iterator(x.name, x.lo, x.lo + sizes.extent(x, shapes)) for x in sizes.axes}
    tensors = {t.name: replace(t, shape=tuple(shapes[t.name])) for t in program.inputs}
    inputs = tuple(tensors.values())
    equations = []
    for operation in found:
        scope = with_iterators(operation.scope, to)
        equations.append(Equation(operation.name, replace(scope, body=map_accesses(scope.body, _with_shapes(tensors)))))
        tensors[operation.name] = equations[-1].tensor
    return Program(inputs, tuple(equations), program.outputs)


def _with_shapes(tensors: Mapping[str, Tensor]) -> Callable[[Access], Scalar]:
    now = dict(tensors)
    return lambda access: Access(now[read_name(access)], access.index)


@st.composite
def chains(draw: DrawFn) -> Program:
    """Element-wise values and reductions of one another over random axes, some with an axis of one element left."""
    rank = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 7]), min_size=rank, max_size=rank))
    axes = tuple("ijk"[:rank])
    extent = {a: n or 23 for a, n in zip(axes, sizes, strict=True)}  # text has no empty tensors: see the end
    subsets = [s for n in range(rank + 1) for s in combinations(axes, n)]
    values: list[tuple[str, tuple[str | None, ...]]] = []  # name, and the axis of each dimension (None: one element)
    lines = []
    for name in ("X", "W"):
        own = tuple(draw(st.permutations(draw(st.sampled_from(subsets)) if name == "W" else axes)))
        lines.append(f"tensor {name}[{', '.join(str(extent[a]) for a in own)}]")
        values.append((name, own))

    def read(value: tuple[str, tuple[str | None, ...]]) -> str:
        return f"{value[0]}[{', '.join(a or '0' for a in value[1])}]"

    outputs = []
    for n in range(draw(st.integers(2, 5))):
        first = draw(st.sampled_from(values))
        own = [a for a in first[1] if a]
        if own and draw(st.booleans()):
            gone = draw(st.lists(st.sampled_from(own), min_size=1, unique=True))
            kept = tuple(None if a in gone else a for a in first[1])
            if not draw(st.booleans()):
                kept = tuple(a for a in kept if a)
            over = ", ".join(f"{a}:{extent[a]}" for a in gone)
            right = f"{draw(st.sampled_from(['sum', 'max', 'min']))}[{over}] {read(first)}"
            factor = draw(st.sampled_from(["", f" * {read(first)}", " + 2"]))
            right += factor
        else:
            second = draw(st.sampled_from(values))
            both = tuple(dict.fromkeys([*own, *(a for a in second[1] if a)]))
            kept = tuple(draw(st.permutations(both)))
            right = draw(st.sampled_from(["{} + {}", "{} - {}", "maximum({}, {})", "relu({}) + 2 * {}"]))
            right = right.format(read(first), read(second))
        heads = ", ".join(f"{a}:{extent[a]}" if a else f"o{d}:1" for d, a in enumerate(kept))
        lines.append(f"V{n}[{heads}] = {right}")
        values.append((f"V{n}", kept))
        if draw(st.integers(0, 3)) == 0:
            outputs.append(f"V{n}")
    outputs.append(values[-1][0])
    made = parse("\n".join([*lines, f"output {', '.join(dict.fromkeys(outputs))}"]))
    now = dict(zip(axes, sizes, strict=True))
    return resize_program(made, {name: tuple(now[a] for a in own if a) for name, own in values[:2]})


def strided(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return equal arrays with other strides: steps above one, reversed, dimensions in another order."""
    if array.ndim == 0:
        return array.copy()
    order = rng.permutation(array.ndim)
    steps = rng.choice([1, 1, 2, -1, -2], size=array.ndim)
    base = np.zeros([array.shape[d] * abs(k) for d, k in zip(order, steps[order], strict=True)], array.dtype)
    view = base[tuple(slice(None, None, k) for k in steps[order])].transpose(np.argsort(order))
    view[...] = array
    return view
