"""The decorator of every IR class: frozen, slotted, hashed once; and classes whose equal nodes are shared."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

SHARED_NODES = 1 << 13
"""The indices, iterators and bounds made last that are remembered."""


class Node:
    """Base of all IR nodes: immutable values, compared by structure."""

    __slots__ = ("_hash", "_memo", "_own")

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]


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
    """Make *cls* a frozen, slotted dataclass whose hash is computed when it is made."""
    values, set_hash = attrgetter(*cls.__annotations__), Node._hash.__set__  # type: ignore[attr-defined]
    prepare = getattr(cls, "__post_init__", None)

    def finish(self: Any) -> None:
        set_hash(self, hash(values(self)))
        if prepare is not None:
            prepare(self)

    def is_equal(self: Any, other: Any) -> bool:
        if self is other:
            return True
        return self.__class__ is other.__class__ and self._hash == other._hash and values(self) == values(other)

    cls.__post_init__ = finish  # type: ignore[attr-defined]
    made: Any = dataclass(frozen=True, slots=True, repr=False, eq=False)(cls)
    made.__eq__, made.__hash__ = is_equal, Node.__hash__
    return made  # type: ignore[no-any-return]
