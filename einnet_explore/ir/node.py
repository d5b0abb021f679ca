"""The one decorator every IR class wears: frozen, slotted, hash computed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


class Node:
    """Base of all IR nodes: immutable values, compared by structure."""

    __slots__ = ("_hash", "_memo", "_own")


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
