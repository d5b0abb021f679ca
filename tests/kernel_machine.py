"""Reference interpreter of kernels, thread by thread in plain Python: slow, obvious, and independent of every emitter.

A thread is a generator that stops at barriers; a block goes on when all its threads have stopped.  Whole numbers are
exact.  What one thread reads between two barriers while another writes it is a race, and is reported.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einnet_explore.codegen.language.statements import (
    Assign,
    Barrier,
    Comment,
    Copy,
    Declare,
    For,
    FragmentProduct,
    If,
    Kernel,
    LoadPair,
    LocalArray,
    PairOperation,
    Part,
    Prefetch,
    Statement,
    Store,
    StorePair,
    StoreTransposed,
)
from einnet_explore.codegen.language.values import (
    F16,
    Array,
    Binary,
    Call,
    Cast,
    Expr,
    LaunchIndex,
    Literal,
    Load,
    Select,
    Unary,
    Var,
)

BINARY = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<<": operator.lshift, ">>": operator.rshift,
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
}  # fmt: skip


class Race(Exception):
    """Two threads touch one element between the same barriers, and one of them writes."""


@dataclass
class Memory:
    """Elements by array, and who has touched them since the last barrier."""

    held: dict[str, Any] = field(default_factory=dict)
    touched: dict[tuple[str, int], tuple[int, bool]] = field(default_factory=dict)

    def touch(self, array: Array, at: int, thread: int, write: bool) -> None:
        if array.space == "private":
            return
        who, wrote = self.touched.get((array.name, at), (thread, False))
        if who != thread and (wrote or write):
            raise Race(f"{array.name}[{at}] by {who} and {thread}")
        self.touched[array.name, at] = (thread, wrote or write)


def run(kernel: Kernel, arguments: dict[str, Any], grid: tuple[int, int, int] = (1, 1, 1)) -> None:
    """Run *kernel* on *arguments* by name; arrays are written in place."""
    for place in itertools.product(*map(range, reversed(grid))):
        block_of(kernel.body, arguments, tuple(reversed(place)), grid, kernel.block)


def block_of(
    body: tuple[Statement, ...],
    arguments: dict[str, Any],
    block: tuple[int, ...],
    grid: tuple[int, int, int],
    size: tuple[int, int, int],
) -> None:
    """One block: *body* by every thread of it, from barrier to barrier."""
    memory = Memory(dict(arguments))
    threads = []
    for number, place in enumerate(itertools.product(*map(range, reversed(size)))):
        ids = {"thread": tuple(reversed(place)), "block": block, "grid": grid}
        threads.append(Thread(memory, ids, number, {}).many(body))
    stopped = [next(t, "end") for t in threads]
    while any(s != "end" for s in stopped):
        assert all(s != "end" for s in stopped), "some threads are at a barrier, others at the end"
        memory.touched.clear()
        stopped = [next(t, "end") for t in threads]


@dataclass
class Thread:
    memory: Memory
    ids: dict[str, tuple[int, ...]]
    number: int
    own: dict[str, Any]

    def many(self, body: tuple[Statement, ...]) -> Generator[str]:
        for s in body:
            yield from self.one(s)

    def one(self, s: Statement) -> Generator[str]:
        match s:
            case Declare(var, value):
                self.own[var.name] = None if value is None else self.value(value)
            case Assign(var, value):
                self.own[var.name] = self.value(value)
            case LocalArray(array):
                where = self.own if array.space == "private" else self.memory.held
                if array.space == "private" or array.name not in where:
                    where[array.name] = np.zeros(array.size, array.kind.dtype)
            case Part(array, whole, first):
                self.own[array.name] = self.own[whole.name][self.value(first) :]
            case Store(array, index, value):
                self.put(array, self.value(index), self.value(value))
            case Copy(target, write, source, read, n):
                to, origin = self.value(write), self.value(read)
                for k in range(n):
                    self.put(target, to + k, self.get(source, origin + k))
            case LoadPair(left, right, array, index):
                at = self.value(index)
                self.own[left.name], self.own[right.name] = self.get(array, at), self.get(array, at + 1)
            case StorePair(array, index, left, right):
                both = self.value(left), self.value(right)
                for k in range(2):
                    self.put(array, self.value(index) + k, both[k])
            case PairOperation(op, target, index, left, right):
                at = self.value(index)
                for k in range(2):
                    self.put(target, at + k, BINARY[op](self.get(left, at + k), self.get(right, at + k)))
            case FragmentProduct(sums, at, left, left_at, left_stride, right, right_at, right_stride):
                # As the documentation of PTX lays out the results of mma.m16n8k16.
                group, thread_in_group = divmod(self.ids["thread"][0] % 32, 4)
                a, b, c = self.value(left_at), self.value(right_at), self.value(at)
                assert a % 2 == b % 2 == 0
                for n in range(4):
                    row, column = group + (0 if n < 2 else 8), thread_in_group * 2 + (n & 1)
                    total = self.get(sums, c + n)
                    for k in range(16):
                        x = self.get(left, a + row * left_stride + k)
                        total += x * self.get(right, b + column * right_stride + k)
                    self.put(sums, c + n, total)
            case StoreTransposed(target, write, stride, tile, side):
                to = self.value(write)
                for i, j in itertools.product(range(side), range(s.rows or side)):
                    self.put(target, to + j * stride + i, self.get(tile, i * side + j))
            case Prefetch(_, index):
                self.value(index)
            case For(var, start, stop, step, body):
                at = self.value(start)
                while at < self.value(stop):
                    self.own[var.name] = at
                    yield from self.many(body)
                    at += self.value(step)
            case If(condition, then, orelse):
                yield from self.many(then if self.value(condition) else orelse)
            case Barrier():
                yield "barrier"
            case Comment():
                pass

    def array(self, array: Array) -> Any:
        return (self.own if array.space == "private" else self.memory.held)[array.name]

    def get(self, array: Array, at: int) -> Any:
        assert 0 <= at < len(self.array(array)), f"{array.name}[{at}]"
        self.memory.touch(array, at, self.number, write=False)
        value = self.array(array)[at]
        return np.float32(value) if array.kind == F16 else value.item()

    def put(self, array: Array, at: int, value: Any) -> None:
        assert 0 <= at < len(self.array(array)), f"{array.name}[{at}]"
        self.memory.touch(array, at, self.number, write=True)
        self.array(array)[at] = value

    def value(self, e: Expr) -> Any:
        match e:
            case Literal(value):
                return value
            case Var(name):
                return self.own[name] if name in self.own else self.memory.held[name]
            case LaunchIndex(of, dim):
                return self.ids[of][dim]
            case Unary(op, arg):
                return not self.value(arg) if op == "!" else -self.value(arg)
            case Binary("&&", left, right):
                return bool(self.value(left)) and bool(self.value(right))
            case Binary("||", left, right):
                return bool(self.value(left)) or bool(self.value(right))
            case Binary("/" | "%" as op, left, right) if e.type.integer:
                a, b = self.value(left), self.value(right)
                quotient = abs(a) // abs(b) * (1 if a * b >= 0 else -1)  # C truncates
                return quotient if op == "/" else a - quotient * b
            case Binary("/", left, right):
                return self.value(left) / self.value(right)
            case Binary(op, left, right):
                return BINARY[op](self.value(left), self.value(right))
            case Call("maximum", (a, b)):
                return max(self.value(a), self.value(b))
            case Call("minimum", (a, b)):
                return min(self.value(a), self.value(b))
            case Call("abs", (a,)):
                return abs(self.value(a))
            case Cast(kind, arg):
                value = self.value(arg)
                if not kind.integer:
                    return float(value)
                low = -(1 << kind.bits - 1) if kind.kind == "int" else 0
                return (int(value) - low) % (1 << kind.bits) + low
            case Select(condition, yes, no):
                return self.value(yes if self.value(condition) else no)
            case Load(array, index):
                return self.get(array, self.value(index))
        raise TypeError(e)


def elements(array: Array, values: Any) -> Any:
    """*values* as the argument for *array*."""
    return np.asarray(values, array.kind.dtype)
