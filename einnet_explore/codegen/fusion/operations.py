r"""A program as a sequence of operations, one value each, nested scopes first, over common axes.

.. math::  Y = \sum_{\vec y} f(\{\ldots\}[\tau]) \;\mapsto\; t = \{\ldots\};\; Y = \sum_{\vec y} f(t[\tau])

Iterators that read all of the same dimension of the same tensor are one *axis* and get one name, so that a value is
read at the point where it was computed exactly if its indices are its own axes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from einnet_explore.analysis.indices import read_indices, with_iterators
from einnet_explore.ir import (
    SCALAR_FUNCTIONS,
    Access,
    Apply,
    Compare,
    Const,
    Equation,
    Iterator,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    map_accesses,
)
from einnet_explore.support.errors import Refused


@dataclass(frozen=True)
class FusedOperation:
    """One value: element-wise, or one reduction; *scope* reads tensors only."""

    name: str
    scope: Scope
    output: bool

    @property
    def reduces(self) -> bool:
        """True for a reduction."""
        return bool(self.scope.summations) or self.scope.reduce != "sum"

    @property
    def tensor(self) -> Tensor:
        """The tensor that later operations read."""
        return Equation(self.name, self.scope).tensor

    @property
    def axes(self) -> tuple[Iterator, ...]:
        """All its iterators, the traversals first."""
        return (*self.scope.traversals, *self.scope.summations)

    @property
    def reads(self) -> tuple[Access, ...]:
        """Its reads, each once."""
        return tuple(dict.fromkeys(accesses(self.scope.body)))


def program_operations(program: Program) -> tuple[FusedOperation, ...]:
    """Return the operations of *program*; each reads inputs and earlier operations only.

    Equal nested scopes are one operation; values that no output needs are dropped. Raises Refused for a table, which
    is not in memory.
    """
    made: dict[Scope, Tensor] = {}
    found: list[FusedOperation] = []
    taken = set(program.names())

    def flat(scope: Scope) -> Scope:
        return replace(scope, body=map_accesses(scope.body, hoisted))

    def hoisted(access: Access) -> Access:
        match access.source:
            case Scope() as inner:
                if inner not in made:
                    name = next(n for k in range(1, len(taken) + 2) if (n := f"t{k}") not in taken)
                    taken.add(name)
                    found.append(FusedOperation(name, flat(inner), False))
                    made[inner] = found[-1].tensor
                return Access(made[inner], access.index)
            case Table():
                raise Refused("a table of known numbers is read: a fused kernel reads tensors only")
        return access

    for equation in program.equations:
        found.append(FusedOperation(equation.name, flat(equation.scope), equation.name in program.outputs))
    return _align_axes(tuple(_needed_operations(found)))


def _needed_operations(found: list[FusedOperation]) -> Iterable[FusedOperation]:
    needed = {o.name for o in found if o.output}
    for operation in reversed(found):
        if operation.name in needed:
            needed.update(map(read_name, operation.reads))
    return (o for o in found if o.name in needed)


@dataclass
class _AxisClasses:
    """Iterators of operations joined into axes; no axis holds two iterators of one operation."""

    parent: dict[object, object]
    members: dict[object, dict[int, Iterator]]

    def find(self, x: object) -> object:
        while (up := self.parent.setdefault(x, x)) != x:
            x = up
        return x

    def join(self, x: object, y: object) -> None:
        a, b = self.find(x), self.find(y)
        first, second = self.members.setdefault(a, {}), self.members.setdefault(b, {})
        if a == b or any(n in second and second[n] != i for n, i in first.items()):
            return
        spans = {(i.lo, i.hi) for i in (*first.values(), *second.values())}
        if len(spans) <= 1:
            self.parent[a] = b
            second.update(first)


def _align_axes(found: tuple[FusedOperation, ...]) -> tuple[FusedOperation, ...]:
    """Return the same operations over common axes, named ``i0``, ``i1``, … in order of appearance."""
    classes = _AxisClasses({}, {})
    known = {o.name for o in found}
    for n, operation in enumerate(found):
        for x in operation.axes:
            classes.members[n, x] = {n: x}
    for inside in (True, False):  # what is made here goes first: inputs only say what runs beside what
        for n, operation in enumerate(found):
            if inside:
                for d, x in enumerate(operation.scope.traversals):
                    classes.join((operation.name, d), (n, x))
            for access in operation.reads:
                if isinstance(access.source, Tensor) and (access.source.name in known) == inside:
                    for d, x in whole_dimensions(access).items():
                        classes.join((n, x), (access.source.name, d))
    names: dict[object, str] = {}
    out = []
    for n, operation in enumerate(found):
        to: dict[Iterator, Iterator] = {}
        for x in operation.axes:
            root = classes.find((n, x))
            to[x] = Iterator(names.setdefault(root, f"i{len(names)}"), x.lo, x.hi)
        out.append(replace(operation, scope=with_iterators(operation.scope, to)))
    return tuple(out)


def read_name(access: Access) -> str:
    """Return the tensor that *access* reads; steps and operations read tensors only."""
    assert isinstance(access.source, Tensor)
    return access.source.name


def whole_dimensions(access: Access) -> Mapping[int, Iterator]:
    """Return the dimensions that *access* reads from end to end by one iterator."""
    out = {}
    for d, (index, (lo, hi)) in enumerate(zip(access.index, access.source.box, strict=True)):
        x = index.single
        if x is not None and (x.lo, x.hi) == (lo, hi):
            out[d] = x
    return out


def operation_cost(body: Scalar) -> int:
    """Return the cost of *body* at one point, in additions."""
    match body:
        case Apply(op, args):
            each = SCALAR_FUNCTIONS[op].additions if op in SCALAR_FUNCTIONS else 1
            return each * max(1, len(args) - 1) + sum(map(operation_cost, args))
        case Access() | Const() | Compare():
            return 0


def composite_iterators(operation: FusedOperation) -> Collection[Iterator]:
    """Return the iterators of *operation* with a use other than as the only index of a whole dimension."""
    scope = operation.scope
    out = {x for bound in scope.domain for x in bound.index.iterators}
    for access in operation.reads:
        plain = whole_dimensions(access)
        out.update(x for d, i in enumerate(access.index) if d not in plain for x in i.iterators)
    reads = {i for a in operation.reads for i in a.index}
    out.update(x for i in read_indices(scope.body) if i not in reads for x in i.iterators)
    return out | {x for x in operation.axes if x.lo}
