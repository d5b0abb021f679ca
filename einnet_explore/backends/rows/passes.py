"""One row of a block, pass by pass: a pass for every reduction that the next values wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from einnet_explore.algebra.nest import Nest, Reduced, Row, name, reads
from einnet_explore.backends.emit import constant
from einnet_explore.backends.rows.frame import Expr, Frame, Reader
from einnet_explore.backends.rows.tiles import store
from einnet_explore.ir import REDUCTIONS, Const, Iterator, Scalar


@dataclass
class OneRow:
    """One row: *skewed* says where its bands' values and its columns' start, *buffers* hold its other nodes."""

    kernel: Frame
    env: Mapping[Iterator, Expr]
    skewed: Mapping[int, tuple[Any, Expr]]
    buffers: Mapping[int, Any]
    readers: dict[str, Reader] = field(default_factory=dict)

    def write(self, held: Any, at: Expr, scales: Any, r: Expr) -> None:
        """Compute the row into *held* from *at* on and its scale into *scales*, or both into the result."""
        nest = self.kernel.nest
        for n, (buffer, start) in self.skewed.items():
            self.readers[name(n)] = _offset(buffer, T.bind(start))
        passes = _passes(nest)
        last = _turn(nest, nest.result, passes)
        for turn in range(max((*passes.values(), last)) + 1):
            self._pass([n for n, p in passes.items() if p == turn], turn == last, held, at)
        T.buffer_store(scales, self.kernel.scalar(nest.scale, self.env, self.readers), [r])
        if held is None and not self._unscaled:
            # Not in place: vectors overlap where rows end.
            self._along(lambda w, _: self._put(self.buffers[-1][w] * scales[r], w))

    def _last(self, held: Any, at: Expr) -> Callable[[Expr, Expr, Any], None]:
        """What is done with the row's values, which are not scaled yet."""
        if held is not None:
            return _writes(held, at)
        return (lambda value, w, _: self._put(value, w)) if self._unscaled else _writes(self.buffers[-1], 0)

    @property
    def _unscaled(self) -> bool:
        return self.kernel.nest.scale == Const(1)

    def _put(self, value: Expr, w: Expr) -> None:
        T.buffer_store(self.kernel.result, value, self._where(w))

    def _where(self, w: Expr) -> list[Expr]:
        nest = self.kernel.nest
        return [w if x == nest.along else self.env[x] for x in nest.scope.traversals]

    def _pass(self, numbers: Iterable[int], last: bool, held: Any, at: Expr) -> None:
        nest = self.kernel.nest
        steps: list[tuple[Callable[[Expr], Expr], Callable[[Expr, Expr, Expr], None]]] = []
        sums: list[tuple[int, Any]] = []
        for n in numbers:
            match nest.nodes[n]:
                case Row(body):
                    steps.append((self._value(body), _writes(self.buffers[n], 0)))
                    self.readers[name(n)] = _offset(self.buffers[n], 0)
                case Reduced(reduce, body):
                    total = T.alloc_buffer((self._lanes,))
                    neutral = constant(REDUCTIONS[reduce], "float32")
                    store(total, tirx.Broadcast(neutral, self._lanes), 0, self._lanes)
                    steps.append((self._value(body), _adds(total, reduce, neutral)))
                    sums.append((n, total))
        if last:
            steps.append((self._value(nest.result), self._last(held, at)))

        def step(w: Expr, fresh: Any) -> None:
            for value, use in steps:
                use(value(w), w, fresh)

        self._along(step)
        for n, total in sums:
            self._total(n, total)

    @property
    def _lanes(self) -> int:
        extent = self.kernel.nest.along.extent
        lanes = self.kernel.lanes
        while lanes > extent:
            lanes //= 2
        return lanes

    def _value(self, body: Scalar) -> Callable[[Expr], Expr]:
        return lambda w: self.kernel.scalar(body, {**self.env, self.kernel.nest.along: w}, self.readers)

    def _along(self, step: Callable[[Expr, Any], None]) -> None:
        """Vectors of the row; the last one ends with the row, and starts inside the one before where it must."""
        extent, lanes = self.kernel.nest.along.extent, self._lanes
        with T.serial(extent // lanes) as c, T.vectorized(lanes) as x:
            step(c * lanes + x, (x, None))
        if rest := extent % lanes:
            with T.vectorized(lanes) as x:
                step(extent - lanes + x, (x, x >= lanes - rest))

    def _total(self, n: int, lanes: Any) -> None:
        node = self.kernel.nest.nodes[n]
        assert isinstance(node, Reduced)
        total = T.alloc_buffer((1,))
        T.buffer_store(total, lanes[0], [0])
        for x in range(1, self._lanes):
            T.buffer_store(total, _COMBINE[node.reduce](total[0], lanes[x]), [0])
        self.readers[name(n)] = lambda: total[0]


_COMBINE: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": lambda a, b: tirx.max(a, b),  # noqa: PLW0108 - TVM's are overloaded
    "min": lambda a, b: tirx.min(a, b),  # noqa: PLW0108
}


def _offset(buffer: Any, start: Expr) -> Reader:
    return lambda w: buffer[start + w]


def _writes(buffer: Any, start: Expr) -> Callable[[Expr, Expr, Expr], None]:
    return lambda value, w, _: T.buffer_store(buffer, value, [start + w])


def _adds(total: Any, reduce: str, neutral: Expr) -> Callable[[Expr, Expr, Any], None]:
    def add(value: Expr, w: Expr, lane: Any) -> None:
        del w
        x, fresh = lane
        counted = value if fresh is None else tirx.Select(fresh, value, neutral)
        T.buffer_store(total, _COMBINE[reduce](total[x], counted), [x])

    return add


def _passes(nest: Nest) -> dict[int, int]:
    """The pass of every node that is no band: after those of the reductions that it reads."""
    out: dict[int, int] = {}
    for n, node in enumerate(nest.nodes):
        match node:
            case Row(body) | Reduced(_, body):
                out[n] = _turn(nest, body, out)
    return out


def _turn(nest: Nest, body: Scalar, passes: Mapping[int, int]) -> int:
    """The first pass in which *body* can be computed."""
    waits = ((passes[n], isinstance(nest.nodes[n], Reduced)) for n in reads(body) if n in passes)
    return max((turn + wait for turn, wait in waits), default=0)
