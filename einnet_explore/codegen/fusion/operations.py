r"""A program as a sequence of operations, one value each, nested scopes first, over common axes of abstract sizes.

.. math::  Y = \sum_{\vec y} f(\{\ldots\}[\tau]) \;\mapsto\; t = \{\ldots\};\; Y = \sum_{\vec y} f(t[\tau])

Iterators that read all of the same dimension of the same tensor are one *axis* and get one name, so that a value is
read at the point where it was computed exactly if its indices are its own axes.

An abstract size is a set of dimensions that the program requires to be equal, or a size that it fixes.  ``X`` of sizes
(x0, x1, x2) and ``B`` of sizes (y0, y1), read as ``X[i, j, k] + B[j, k]``, record :math:`y_0 = x_1` and
:math:`y_1 = x_2`.  A kernel serves all sizes that satisfy the recorded equalities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import isclose, isfinite, prod, sqrt
from typing import Any

import numpy as np

from einnet_explore.analysis.equations import is_typed, lift_scopes
from einnet_explore.analysis.indices import compared_iterators, iterators_of, with_iterators
from einnet_explore.codegen.language.values import BOOL, F64, I32, Type, type_of
from einnet_explore.codegen.wide_values import read_in_double_only
from einnet_explore.ir import (
    ELEMENT_TYPES,
    FLOAT32,
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
    computing_type,
    element_type,
    is_arithmetic,
    map_accesses,
    scalar_type,
    walk_scalar,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.support.errors import Refused


@dataclass(frozen=True)
class ValueType:
    """The type of a value's arithmetic, and that of its elements in memory: a truth value is a 0 or 1 of any type."""

    computed: Type
    stored: Type


ValueTypes = Mapping[str, ValueType]
"""The types of inputs and equations by name; a value that is not there has the kernel's type."""


@dataclass(frozen=True)
class TypedProgram:
    """A program, the types of its values, and the *tables*: inputs whose elements are known."""

    program: Program
    types: ValueTypes
    tables: Mapping[str, np.ndarray[Any, np.dtype[Any]]]


def typed_program(program: Program) -> TypedProgram:
    """Return *program* with the element types of its tensors; without any but ``float32`` they are the kernel's.

    Values of nested scopes are stored in the type of their arithmetic, which holds them all.  Arithmetic that only
    values in ``float64`` read is in ``float64``, too.
    """
    if not any(is_typed(e.scope) for e in program.equations):
        return TypedProgram(program, {}, {})
    integers = set[Scope]()
    equations = tuple(replace(e, scope=_with_integers_apart(e.scope, integers)) for e in program.equations)
    lifted, results = lift_scopes(replace(program, equations=equations)), program.names()
    types = {t.name: ValueType(arithmetic_type(t.dtype), type_of(t.dtype)) for t in program.inputs}
    wide = read_in_double_only(
        lifted,
        lambda e: e.name not in results and computing_type(e.scope) == FLOAT32 and is_arithmetic(e.scope.body),
    )
    for equation in lifted.equations:
        # A cast may read a nested scope.
        is_nested = equation.name not in results and equation.scope not in integers
        computed = _extremum_type(equation.scope) or type_of(computing_type(equation.scope, wraps=is_nested))
        computed = F64 if equation.name in wide else computed
        stored = type_of(element_type(equation.scope)) if equation.name in results else computed
        types[equation.name] = ValueType(computed, stored)
    return TypedProgram(lifted, types, {})


def _extremum_type(scope: Scope) -> Type | None:
    """Return the type of the integers whose maximum or minimum *scope* is: more narrow ones fit into a vector."""
    parts = [part for part in walk_scalar(scope.body) if not isinstance(part, Access)]
    kinds = {scalar_type(access) for access in accesses(scope.body)} | {element_type(scope)}
    joined = all(isinstance(part, Apply) and part.op in ("maximum", "minimum") for part in parts)
    if not parts or not joined or len(kinds) > 1 or scope.summations:
        return None
    kind = type_of(kinds.pop())
    return kind if kind.integer else None


def _with_integers_apart(scope: Scope, found: set[Scope]) -> Scope:
    """Return *scope* with integer parts as scopes, which are *found*, if it computes in ``float64``.

    They are then exact in integer arithmetic, and converted once.
    """
    if scope.summations or computing_type(scope) != "float64":
        return scope

    def split(body: Scalar) -> Scalar:
        match body:
            case Apply(op, args) if accesses(body):
                if _is_integer(body) and not (op in ELEMENT_TYPES and not _is_integer(args[0])):
                    kept = tuple(x for x in scope.traversals if x in iterators_of(body))
                    found.add(part := Scope(kept, (), body))
                    return part[kept]
                return Apply(op, tuple(map(split, args)))
        return body

    return replace(scope, body=split(scope.body))


def _is_integer(body: Scalar) -> bool:
    kind = ELEMENT_TYPES.get(scalar_type(body))
    return kind is not None and kind.is_integer


def arithmetic_type(dtype: str) -> Type:
    """Return the type in which elements of *dtype* are computed; that of truth values is int32."""
    kind = type_of(dtype)
    return I32 if kind == BOOL else kind.computed


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


class _Classes:
    """A partition of values of any kind into classes, which are joined two at a time."""

    def __init__(self) -> None:
        self._parents: dict[object, object] = {}

    def find(self, x: object) -> object:
        """Return the representative of the class of *x*."""
        while (parent := self._parents.setdefault(x, x)) != x:
            x = parent
        return x

    def join(self, x: object, y: object) -> None:
        """Join the class of *x* to that of *y*, whose representative stays."""
        self._parents[self.find(x)] = self.find(y)


def _align_axes(found: tuple[FusedOperation, ...]) -> tuple[FusedOperation, ...]:
    """Return the same operations over common axes, named ``i0``, ``i1``, … in order of appearance.

    An axis has one range, and at most one iterator of each operation.
    """
    classes, known = _Classes(), {o.name for o in found}
    members: dict[object, dict[int, Iterator]] = {(n, x): {n: x} for n, o in enumerate(found) for x in o.axes}

    def join(x: object, y: object) -> None:
        a, b = classes.find(x), classes.find(y)
        first, second = members.setdefault(a, {}), members.setdefault(b, {})
        spans = {(i.lo, i.hi) for i in (*first.values(), *second.values())}
        if a != b and len(spans) <= 1 and all(second.get(n, i) == i for n, i in first.items()):
            classes.join(a, b)
            second.update(first)

    for inside in (True, False):  # what is made here goes first: inputs only say what runs beside what
        for n, operation in enumerate(found):
            if inside:
                for d, x in enumerate(operation.scope.traversals):
                    join((operation.name, d), (n, x))
            for access in operation.reads:
                if (read_name(access) in known) == inside:
                    for d, x in whole_dimensions(access).items():
                        join((n, x), (read_name(access), d))
    names: dict[object, str] = {}
    out = []
    for n, operation in enumerate(found):
        roots = {x: classes.find((n, x)) for x in operation.axes}
        to = {x: Iterator(names.setdefault(root, f"i{len(names)}"), x.lo, x.hi) for x, root in roots.items()}
        out.append(replace(operation, scope=with_iterators(operation.scope, to)))
    return tuple(out)


def read_name(access: Access) -> str:
    """Return the tensor that *access* reads; steps and operations read tensors only."""
    assert isinstance(access.source, Tensor)
    return access.source.name


def whole_dimensions(access: Access) -> Mapping[int, Iterator]:
    """Return the dimensions that *access* reads from end to end by one iterator."""
    dims = enumerate(zip(access.index, access.source.box, strict=True))
    return {d: x for d, (i, box) in dims if (x := i.single) is not None and (x.lo, x.hi) == box}


def operation_cost(body: Scalar) -> int:
    """Return the cost of *body* at one point, in additions."""
    match body:
        case Apply(op, args):
            each = SCALAR_FUNCTIONS[op].additions if op in SCALAR_FUNCTIONS else 1
            return each * max(1, len(args) - 1) + sum(map(operation_cost, args))
        case Access() | Const() | Compare():
            return 0


def composite_iterators(operation: FusedOperation) -> set[Iterator]:
    """Return the iterators of *operation* with a use other than as the only index of a whole dimension."""
    scope = operation.scope
    out = {x for bound in scope.domain for x in bound.index.iterators}
    for access in operation.reads:
        plain = whole_dimensions(access)
        out.update(x for d, i in enumerate(access.index) if d not in plain for x in i.iterators)
    return out | {*compared_iterators(scope.body)} | {x for x in operation.axes if x.lo}


MAX_FACTORS = 4
"""Sizes in a product that a constant may stand for, at most."""

CONSTANT_TOLERANCE = 1e-6
"""Relative tolerance of such constants: decimal fractions are written with a few digits."""

Dim = tuple[str, int]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class AbstractSize:
    """One abstract size: its *dims* (tensor, dimension), and its *value* when the program was analysed.

    *fixed*: the program states the number (a window, an offset, a range that is not a whole dimension).
    """

    dims: tuple[Dim, ...]
    value: int
    fixed: bool

    @property
    def symbol(self) -> str:
        """``X.0`` for the first dimension of X; the number if it is fixed."""
        return str(self.value) if self.fixed or not self.dims else self.names[0]

    @property
    def names(self) -> tuple[str, ...]:
        """All that are equal, as text: the dimensions, and the number if it is fixed."""
        return (*(f"{t}.{d}" for t, d in self.dims), *([str(self.value)] if self.fixed else []))


@dataclass(frozen=True)
class AbstractSizes:
    """The abstract sizes of a program's inputs, and those of the axes of its operations."""

    sizes: tuple[AbstractSize, ...]
    axes: Mapping[Iterator, AbstractSize]

    @property
    def equalities(self) -> tuple[str, ...]:
        """The conditions for reusing a kernel, as text."""
        return tuple(" == ".join(size.names) for size in self.sizes if len(size.names) > 1)

    def extent(self, x: Iterator, shapes: Shapes) -> int:
        """Return the extent of *x* for inputs of *shapes*."""
        size = self.axes[x]
        if size.fixed or not size.dims:
            return size.value
        name, d = size.dims[0]
        return shapes[name][d]

    def broken(self, shapes: Shapes) -> tuple[str, ...]:
        """Return the equalities that *shapes* violate, with the numbers."""
        out = []
        for size in self.sizes:
            found = [shapes[t][d] for t, d in size.dims]
            if len({*found, *([size.value] if size.fixed else [])}) > 1:
                numbers = (f"{name} is {n}" for name, n in zip(size.names, found, strict=False))
                out.append(f"{' == '.join(size.names)}: {', '.join(numbers)}")
        return tuple(out)


def abstract_sizes(inputs: Iterable[Tensor], found: tuple[FusedOperation, ...]) -> AbstractSizes:
    """Return the abstract sizes of the operations *found* over *inputs*."""
    classes, fixed = _Classes(), set[object]()
    inputs = tuple(inputs)
    values: dict[object, int] = {(t.name, d): n for t in inputs for d, n in enumerate(t.shape)}
    for operation in found:
        values |= {(operation.name, d): n for d, n in enumerate(operation.scope.shape)}
        values |= {x: x.extent for x in operation.axes}
        for d, x in enumerate(operation.scope.traversals):
            classes.join(x, (operation.name, d))
        for access in operation.reads:
            plain = whole_dimensions(access)
            for d, x in plain.items():
                classes.join(x, (read_name(access), d))
            fixed |= {(read_name(access), d) for d in range(len(access.index)) if d not in plain}
        fixed |= composite_iterators(operation)
    root = classes.find
    bound = {root(x) for x in values if isinstance(x, tuple)}
    # Where nothing is, indices are simplified to nothing: other sizes need an analysis of their own.
    pinned = {root(x) for x in fixed} | {root(x) for x, n in values.items() if root(x) not in bound or n == 0}
    known = {t.name for t in inputs}
    groups: dict[object, list[Dim]] = {}
    for what in values:
        groups.setdefault(root(what), [])
        if isinstance(what, tuple) and what[0] in known:
            groups[root(what)].append(what)
    extents = {root(x): n for x, n in values.items()}
    made = {r: AbstractSize(tuple(dims), extents[r], r in pinned or not dims) for r, dims in groups.items()}
    axes = {x: made[root(x)] for x in values if isinstance(x, Iterator)}
    return AbstractSizes(tuple(s for s in made.values() if s.dims), axes)


def check_abstract_sizes(
    inputs: Iterable[Tensor], found: tuple[FusedOperation, ...], sizes: AbstractSizes, shapes: Shapes
) -> None:
    """Raise Refused, with the numbers, if the analysis does not hold for *shapes*.

    That is the case if a rank changes, if a recorded equality is violated, and if a constant may follow from sizes that
    change (the 784 of a mean over 28×28, or its inverse), since that is undecided.
    """
    for tensor in inputs:
        if len(shapes.get(tensor.name, ())) != len(tensor.shape):
            raise Refused(f"{tensor.name} was analysed as {list(tensor.shape)}, given {shapes.get(tensor.name)}")
    if broken := sizes.broken(shapes):
        raise Refused(f"sizes violate recorded equalities: {'; '.join(broken)}")
    for operation in found:
        for number in dict.fromkeys(body_constants(operation.scope.body)):
            for count in _possible_counts(number, sizes):
                was, now = prod(s.value for s in count), prod(shapes[s.dims[0][0]][s.dims[0][1]] for s in count)
                if was != now:
                    symbols = " * ".join(s.symbol for s in count)
                    raise Refused(
                        f"{operation.name} has the constant {number:g}, which may follow from {was} elements "
                        f"({symbols}), now {now}: give the program as a function of the shapes"
                    )


def _possible_counts(number: float, sizes: AbstractSizes) -> Iterable[tuple[AbstractSize, ...]]:
    """Yield the sizes whose product may be *number*, one more than it, its square, or an inverse of these."""
    if number in (0, 1, -1) or not isfinite(number):
        return
    free = [s for s in sizes.sizes if not s.fixed]
    for length in range(1, MAX_FACTORS + 1):
        for factors in combinations_with_replacement(free, length):
            count = prod(s.value for s in factors)
            related = (n for n in (count, count - 1, sqrt(count)) if n > 0)
            if any(isclose(abs(number), m, rel_tol=CONSTANT_TOLERANCE) for n in related for m in (n, 1 / n)):
                yield factors


def size_constants(found: tuple[FusedOperation, ...], sizes: AbstractSizes) -> tuple[float, ...]:
    """Return the constants that may follow from sizes that are not fixed, each once."""
    used = dict.fromkeys(n for o in found for n in body_constants(o.scope.body))
    return tuple(n for n in used if any(True for _ in _possible_counts(n, sizes)))


def body_constants(body: Scalar) -> Iterable[float]:
    """Yield the numbers in *body*, left to right."""
    return (part.value for part in walk_scalar(body) if isinstance(part, Const))
