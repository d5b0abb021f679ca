"""Programs in PyTorch, differentiated by its autograd: an engine that shares nothing with ours but the expressions."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import torch

from einnet_explore.ir import Access, Apply, Compare, Const, Index, Iterator, Program, Scalar, Scope, Table, Tensor

Arrays = Mapping[str, np.ndarray]
Grid = dict[Iterator, np.ndarray]


def torch_gradients(program: Program, inputs: Arrays, seeds: Arrays) -> dict[str, np.ndarray]:
    """The gradients of Σ seed·output by autograd, for every input of *program* (zeros where nothing depends on it)."""
    leaves = {t.name: torch.tensor(inputs[t.name], dtype=torch.float64, requires_grad=True) for t in program.inputs}
    values: dict[str, Any] = dict(leaves)
    for equation in program.equations:
        values[equation.name] = _scope(equation.scope, values)
    total = sum((values[n] * torch.tensor(seeds[n], dtype=torch.float64)).sum() for n in program.outputs)
    if not isinstance(total, torch.Tensor) or not total.requires_grad:
        return {name: np.zeros(tuple(leaf.shape)) for name, leaf in leaves.items()}
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {
        name: np.zeros(tuple(leaf.shape)) if g is None else g.numpy()
        for (name, leaf), g in zip(leaves.items(), found, strict=True)
    }


def _scope(scope: Scope, values: Mapping[str, Any]) -> Any:
    own = (*scope.traversals, *scope.summations)
    grid = dict(zip(own, np.meshgrid(*(np.arange(x.lo, x.hi) for x in own), indexing="ij"), strict=True))
    shape = tuple(x.extent for x in own)
    inside = np.ones(shape, bool)
    for bound in scope.domain:
        at = _index(bound.index, grid)
        inside &= (bound.lo <= at) & (at < bound.hi)
    body = torch.broadcast_to(_value(scope.body, grid, values), shape)
    if scope.summations:
        body = body.reshape(*scope.shape, prod(y.extent for y in scope.summations))
        body = {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin}[scope.reduce](body, -1)
    if scope.domain:
        kept = inside.reshape(*scope.shape, -1)[..., 0]
        body = torch.where(torch.tensor(kept), body, torch.tensor(float(scope.value), dtype=torch.float64))
    return body.reshape(scope.shape)


def _value(body: Scalar, grid: Grid, values: Mapping[str, Any]) -> Any:
    match body:
        case Const(value):
            return torch.tensor(float(value), dtype=torch.float64)
        case Access(source, index):
            return _read(_source(source, values), source, index, grid)
        case Apply("where", (Compare() as condition, yes, no)):
            left, right = _index(condition.left, grid), _index(condition.right, grid)
            taken = torch.tensor(_HOLDS[condition.op](left, right))
            return torch.where(taken, _value(yes, grid, values), _value(no, grid, values))
        case Apply(op, args):
            found = [_value(a, grid, values) for a in args]
            return _FUNCTIONS[op](*found)
    raise AssertionError(body)


def _source(source: Tensor | Table | Scope, values: Mapping[str, Any]) -> Any:
    match source:
        case Tensor(name):
            return values[name]
        case Table(shape, entries):
            return torch.tensor([float(e) for e in entries], dtype=torch.float64).reshape(shape)
        case Scope():
            return _scope(source, values)


def _read(held: Any, source: Tensor | Table | Scope, index: tuple[Index, ...], grid: Grid) -> Any:
    if not index:
        return held
    at = [_index(i, grid) for i in index]
    inside = np.ones(np.broadcast_shapes(*(a.shape for a in at)), bool)
    local = []
    for a, (lo, hi) in zip(at, source.box, strict=True):
        inside = inside & (a >= lo) & (a < hi)
        local.append(torch.tensor(np.clip(a, lo, hi - 1) - lo))
    found = held[tuple(local)]
    return torch.where(torch.tensor(inside), found, torch.tensor(float(source.value), dtype=torch.float64))


def _index(index: Index, grid: Grid) -> np.ndarray:
    return np.asarray(index.evaluate(lambda x: grid[x]), np.int64)  # type: ignore[arg-type, return-value]


_HOLDS = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
_FUNCTIONS = {
    "+": lambda *a: sum(a[1:], a[0]),
    "*": lambda *a: torch.stack(torch.broadcast_tensors(*a)).prod(0) if len(a) > 2 else a[0] * a[1],
    "-": lambda a, b: a - b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "abs": torch.abs,
    "erf": torch.erf,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
