"""Shapes of the arguments of kernels in graphs, and reshapes that they make superfluous.

A kernel reads and writes packed elements, and its node declares the shapes of its arguments for ONNX only.  So it can
read a value as it was before a reshape, and write its result in the shape after one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import TypeAlias

import onnx

from einnet_explore.runtime.arrays import Arrays
from einnet_explore.runtime.onnx_weights import DOMAIN, names_read_inside

Shape: TypeAlias = tuple[int, ...]

RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators whose result has the elements of their first input in the same order."""


def flatten_shapes(shapes: Iterable[Shape]) -> list[int]:
    """Return *shapes* as one list, each as its rank and its dimensions."""
    return [n for shape in shapes for n in (len(shape), *shape)]


def list_shapes(numbers: Sequence[int]) -> list[Shape]:
    """Return the shapes of which ``flatten_shapes`` made *numbers*."""
    out, at = list[Shape](), 0
    while at < len(numbers):
        out.append(tuple(numbers[at + 1 : at + 1 + numbers[at]]))
        at += 1 + numbers[at]
    return out


def without_reshapes(
    nodes: Iterable[onnx.NodeProto], shapes: Mapping[str, Shape], sizes: Arrays, outputs: Collection[str]
) -> list[onnx.NodeProto]:
    """Return *nodes*, in their order, without reshapes whose readers are kernels, or whose input only a kernel makes.

    *shapes* are those of values that no kernel makes, as far as they are known; *sizes* are constant shapes that
    ``Reshape`` reads.  Values in *outputs* keep their names.  Nodes that change are copies.
    """
    kept: dict[int, onnx.NodeProto] = dict(enumerate(nodes))
    users: dict[str, list[int]] = {}
    for n, node in kept.items():
        for name in {*node.input, *names_read_inside(node)}:
            users.setdefault(name, []).append(n)
    makers = {name: n for n, node in kept.items() for name in node.output if name}
    known = {**shapes, **{node.output[0]: _shapes_of(node)[-1] for node in kept.values() if _is_kernel(node)}}
    for n, node in list(kept.items()):
        if node.domain or node.op_type not in RESHAPES:
            continue
        source, target = node.input[0], node.output[0]
        before, after = known.get(source), _target_shape(node, known, sizes)
        if before is None or after is None or prod(before) != prod(after):
            continue
        readers, maker = users.get(target, []), makers.get(source)
        if target not in outputs and readers and all(_is_kernel(kept[r]) for r in readers):
            for r in readers:
                kept[r] = _with_input(kept[r], target, source, before)
            users[source] = [*(u for u in users[source] if u != n), *(r for r in readers if r not in users[source])]
        elif maker is not None and _is_kernel(kept[maker]) and users[source] == [n] and source not in outputs:
            kept[maker] = _with_output(kept[maker], target, after)
            makers[target], known[target] = maker, after
        else:
            continue
        del kept[n]
    return list(kept.values())


def _is_kernel(node: onnx.NodeProto) -> bool:
    return node.domain == DOMAIN


def _shapes_of(kernel: onnx.NodeProto) -> list[Shape]:
    return list_shapes(next(a.ints for a in kernel.attribute if a.name == "shapes"))


def _target_shape(node: onnx.NodeProto, known: Mapping[str, Shape], sizes: Arrays) -> Shape | None:
    if node.output[0] in known:
        return known[node.output[0]]
    if node.op_type != "Reshape" or node.input[1] not in sizes:
        return None
    found = tuple(int(n) for n in sizes[node.input[1]])
    return found if all(n > 0 for n in found) else None


def _with_shapes(kernel: onnx.NodeProto, shapes: Iterable[Shape]) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(kernel)
    numbers = next(a for a in made.attribute if a.name == "shapes").ints
    del numbers[:]
    numbers.extend(flatten_shapes(shapes))
    return made


def _with_input(kernel: onnx.NodeProto, old: str, new: str, shape: Shape) -> onnx.NodeProto:
    """Return *kernel* that reads the value *new*, of *shape*, where it read *old*."""
    shapes = _shapes_of(kernel)
    inputs = [shape if name == old else each for name, each in zip(kernel.input, shapes, strict=False)]
    made = _with_shapes(kernel, [*inputs, shapes[-1]])
    made.input[:] = [new if name == old else name for name in kernel.input]
    return made


def _with_output(kernel: onnx.NodeProto, name: str, shape: Shape) -> onnx.NodeProto:
    """Return *kernel* that makes the value *name*, of *shape*."""
    made = _with_shapes(kernel, [*_shapes_of(kernel)[:-1], shape])
    made.output[0], made.name = name, f"kernel of {name}"
    return made
