"""The decorator of every IR class: frozen, slotted, hash computed once; and classes whose equal nodes are shared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

SHARED_NODES = 1 << 16
"""The indices, iterators and bounds made last that are remembered."""


class Node:
    """Base of all IR nodes: immutable values, compared by structure."""

    __slots__ = ("_hash", "_memo", "_own")


class Shared(type):
    """The metaclass of small nodes: equal ones are one object, as far as the nodes made last are remembered.

    A search makes the same few thousand indices hundreds of thousands of times; each is hashed and analysed once.
    """

    def __call__(cls, *fields: Any, **named: Any) -> Any:
        """Return the node with these fields."""
        return _shared_node(cls, *fields, **named)


_shared_node = lru_cache(SHARED_NODES, typed=True)(type.__call__)


@dataclass_transform(frozen_default=True)
def node(cls: type[T]) -> type[T]:
    """Make *cls* a frozen, slotted dataclass whose hash is cached on first use."""
    made = dataclass(frozen=True, slots=True, repr=False)(cls)
    structural_hash = made.__hash__
    structural_eq = made.__eq__

    def cached_hash(self: object) -> int:
        try:
            return self._hash  # type: ignore[attr-defined, no-any-return]
        except AttributeError:
            value = structural_hash(self)
            object.__setattr__(self, "_hash", value)
            return value

    def quick_eq(self: object, other: object) -> bool:
        if self is other:
            return True
        if self.__class__ is not other.__class__:
            return False
        try:
            if self._hash != other._hash:  # type: ignore[attr-defined]
                return False
        except AttributeError:
            if hash(self) != hash(other):
                return False
        return structural_eq(self, other)

    made.__hash__ = cached_hash  # type: ignore[method-assign]
    made.__eq__ = quick_eq  # type: ignore[method-assign]
    return made
