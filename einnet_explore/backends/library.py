"""How one equation is run: as a view, a matrix product, an ONNX Runtime node, or a generated kernel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy.typing as npt

from einnet_explore.algebra.flatten import view_strides
from einnet_explore.algebra.nest import nest
from einnet_explore.algebra.online import Online, online
from einnet_explore.backends import contraction, generated, hosted, ort
from einnet_explore.backends.arrays import ALIGNMENT
from einnet_explore.backends.blocks.choice import blocked
from einnet_explore.backends.native import NativeSource
from einnet_explore.backends.ways import KernelCall, NativeCall, ProductCall, TiledCall, ViewCall, Way, load
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Scope, Tensor, accesses, map_tensors
from einnet_explore.kernels.machine import this_machine
from einnet_explore.operators import Operator

Array = npt.NDArray[Any]
Choose: TypeAlias = "Callable[[Equation, Iterable[Way], Mapping[str, Array], Array, Collection[str]], Way]"
"""What takes one of the ways to run an equation: given arrays like those that it reads, like its result, and the names
of those that never change."""


def first(
    equation: Equation, ways: Iterable[Way], arrays: Mapping[str, Array], out: Array, constants: Collection[str]
) -> Way:
    """The way to take where nothing is measured; raises BackendError where its engine refuses."""
    return load(next(iter(ways)))


def view(equation: Equation, views: Mapping[str, Scope], threads: int) -> ViewCall | None:
    """*equation* as a view; None where it is none."""
    if equation.via is None or equation.via.operator != VIEW or view_strides(equation.scope) is None:
        return None
    return ViewCall(equation.scope, through_views(equation.scope, views), threads)


def engines(
    equation: Equation,
    arrays: Mapping[str, Array],
    out: Array,
    views: Mapping[str, Scope],
    operators: Sequence[Operator] = (),
    threads: int = 1,
    tune: bool = False,
    constants: Mapping[str, Array] | None = None,
) -> Iterable[Way]:
    """The ways to run *equation*, the one to take where nothing is measured first; each is made when it is asked for.

    None is compiled here: what an engine refuses it refuses when the way is loaded, and the others are still to be had.

    *arrays* are like those that it will read, *out* like the one it will write; *views* are the scopes of those that
    are views, *constants* the arrays that never change.
    """
    if equation.via is None or equation.via.operator not in (VIEW, EOPERATOR):
        node = _node(equation, arrays, operators, threads, constants or {})
        if node is not None:
            yield node
        product = contraction.contraction(equation.scope)
        # BLAS would keep the program from being one session.
        if product is not None and out.size and (node is None or not hosted.available()):
            call = ProductCall(product)
            left, right = (arrays[name] for name in call.reads)
            if contraction.bind(product, left, right, out) is not None:
                yield call
    seen = through_views(equation.scope, views)
    rows = nest(seen)
    own = (rows is not None and rows.banded) or isinstance(online(seen), Online)
    own = own or blocked(seen, this_machine()) is not None
    if own:
        yield KernelCall(seen, threads, tune)
    made = generated.contraction(equation.scope, constants or {}, threads)
    tiled = (
        None if made is None or not all(map(_packed, map(arrays.get, made.reads))) else TiledCall(made, constants or {})
    )
    if tiled is not None and tiled.made.worthwhile:
        yield tiled
    if not own:
        yield KernelCall(seen, threads, tune)
    if tiled is not None and not tiled.made.worthwhile:
        yield tiled
    if equation.via is None or equation.via.operator == EOPERATOR:
        yield NativeCall(NativeSource(seen, threads))


def through_views(scope: Scope, views: Mapping[str, Scope]) -> Scope:
    """*scope* with reads of views replaced by reads of what they show: a kernel follows strides by itself."""

    return map_tensors(scope, lambda tensor: views.get(tensor.name, tensor))


def _packed(array: Array | None) -> bool:
    """Whether a kernel takes *array* as it is, which a view need not allow."""
    return array is not None and array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0


def _node(
    equation: Equation,
    arrays: Mapping[str, Array],
    operators: Sequence[Operator],
    threads: int,
    constants: Mapping[str, Array],
) -> ort.NodeCall | None:
    via, shape = equation.via, equation.scope.shape
    operator = next((o for o in operators if via is not None and via.operator in o.names), None)
    if via is None or operator is None or operator.onnx is None or not prod(shape):
        return None
    # Optional iterators that are absent may be left out of the attributes.
    node = operator.onnx({**dict.fromkeys(operator.pattern.optional, 1), **dict(via.attributes)})
    reads = tuple(a.source.name for a in accesses(equation.scope.body) if isinstance(a.source, Tensor))
    if node is None or len(reads) != len(node.shapes):
        return None
    fixed = {name: constants[name] for name in reads if name in constants}
    if len(fixed) == len(set(reads)):
        fixed = {}  # it is run once
    return ort.NodeCall(node, reads, tuple(arrays[name].shape for name in reads), shape, threads, fixed)
