r"""Batches: scopes whose elements along one dimension are independent, and equal functions of their inputs' elements.

A tensor has a batch of :math:`n` elements along a dimension of extent :math:`nk`: index :math:`i` belongs to element
:math:`\lfloor i/k \rfloor`.  A scope computes each element of the batch from the same element of its inputs, by an
expression that does not depend on the element, if with :math:`i = kb + j`

.. math::  \lfloor \tau(\vec x) / k' \rfloor = b

in the dimension of the batch of each input that it reads, and no other index, condition or bound contains :math:`b`.
What remains without :math:`b` is the scope of a single element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from einnet_explore.analysis.equations import tensor_names
from einnet_explore.analysis.indices import fresh_name, substitute, substitute_domain
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Index,
    IndexLike,
    Iterator,
    Padding,
    Scalar,
    Scope,
    Tensor,
    as_index,
)
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class BatchAxis:
    """Dimension *axis* holds the elements of a batch, *step* indices for each."""

    axis: int
    step: int = 1

    def single(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return *shape* for a batch of one element."""
        return (*shape[: self.axis], self.step, *shape[self.axis + 1 :])


def find_batch_axis(
    one: tuple[int, ...], other: tuple[int, ...], counts: tuple[int, int], what: str
) -> BatchAxis | None:
    """Return the dimension in which two shapes differ, those of *what* for batches of *counts* elements.

    None if they are equal.  Raises Refused if it is not one dimension, or no multiple of *counts*.
    """
    if len(one) != len(other):
        raise Refused(f"{what} has shapes {list(one)} and {list(other)} for {counts[0]} and {counts[1]} elements")
    differing = [n for n, sizes in enumerate(zip(one, other, strict=True)) if sizes[0] != sizes[1]]
    if not differing:
        return None
    axis = differing[0]
    step, rest = divmod(other[axis], counts[1])
    if len(differing) > 1 or rest or one[axis] != step * counts[0]:
        raise Refused(
            f"{what} has shapes {list(one)} and {list(other)} for {counts[0]} and {counts[1]} elements, expected "
            "one dimension that is a multiple of them"
        )
    return BatchAxis(axis, step)


def element_scope(
    scope: Scope, batch: BatchAxis | None, sources: Mapping[str, BatchAxis | None], count: int, name: str
) -> Scope:
    """Return the scope of a single element of a batch of *count*; *name* is that of the result.

    *batch* is the dimension of the batch in the result, *sources* that in each tensor that has one, by name; nested
    scopes must be equations of their own (``analysis.equations.lift_scopes``).  Raises Refused, with the index, if an
    element depends on another one, on its place in the batch or on the number of elements.
    """
    # Iterators of one value are constants, so that a batch of one has the indices of others.
    to: dict[Iterator, IndexLike] = {x: x.lo for x in (*scope.traversals, *scope.summations) if x.extent == 1}
    element, traversals, padding = Index(), scope.traversals, scope.padding
    if batch is not None:
        x = scope.traversals[batch.axis]
        if (x.lo, x.hi) != (0, count * batch.step):
            raise Refused(f"{name} has [{x.lo}, {x.hi}) in dimension {batch.axis}, expected [0, {count * batch.step})")
        within = Iterator(x.name, 0, batch.step)
        used = [each.name for each in (*scope.traversals, *scope.summations)]
        if count > 1:
            element = as_index(Iterator(fresh_name("b", used), 0, count))
        to[x] = element * batch.step + (within if batch.step > 1 else 0)
        traversals = (*traversals[: batch.axis], within, *traversals[batch.axis + 1 :])
        padding = _without_padding(padding, batch)
    elif whole := next((read for read in tensor_names(scope) if sources.get(read)), None):
        raise Refused(f"{name} is one for all elements of {whole}")
    part = _Element(element, sources, name)
    domain = substitute_domain(scope.domain, to)
    for bound in domain:
        part.require_free(bound.index, f"the domain of {name}")
    body = part.scalar(substitute(scope.body, to))
    return replace(scope, traversals=traversals, body=body, domain=domain, padding=padding)


@dataclass(frozen=True, slots=True)
class _Element:
    """The *number* of an element of a batch, the dimensions of the batch in *sources*, and the *name* of the result."""

    number: Index
    sources: Mapping[str, BatchAxis | None]
    name: str

    def scalar(self, body: Scalar) -> Scalar:
        """Return *body* as a batch of this element alone has it; raises Refused if it depends on the number."""
        match body:
            case Access():
                return self._access(body)
            case Apply(op, args):
                return Apply(op, tuple(map(self.scalar, args)))
            case Compare(_, left, right):
                for index in (left, right):
                    self.require_free(index, f"a condition of {self.name}")
        return body

    def _access(self, access: Access) -> Access:
        source, index = access.source, access.index
        match source:
            case Scope():
                raise Refused(f"{self.name} reads a nested scope, expected an equation of its own")
            case Tensor() if batch := self.sources.get(source.name):
                at = index[batch.axis]
                if self.number.terms and at // batch.step != self.number:
                    raise Refused(f"{self.name} reads {access} outside the element {self.number} of the batch")
                padding = _without_padding(source.padding, batch)
                source = replace(source, shape=batch.single(source.shape), padding=padding)
                index = (*index[: batch.axis], at - self.number * batch.step, *index[batch.axis + 1 :])
            case _:
                pass
        for each in index:
            self.require_free(each, f"{self.name} reads {access}, which")
        return Access(source, index)

    def require_free(self, index: Index, what: str) -> None:
        """Raise Refused if *index*, that of *what*, depends on the number of the element."""
        if set(self.number.iterators) & set(index.iterators):
            raise Refused(f"{what} depends on the place in the batch by {index}")


def _without_padding(padding: Padding, batch: BatchAxis) -> Padding:
    """Return *padding* without that of the batch, which no element reads."""
    new = tuple((0, 0) if n == batch.axis else each for n, each in enumerate(padding))
    return new if any(map(any, new)) else ()
