"""The decorator of every IR class: frozen, slotted, hashed once; and classes whose equal nodes are shared."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

SHARED_NODES = 1 << 16
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

METHODS = """
def __init__(self, {parameters}):
    {assignments}
    set__hash(self, hash(({values},)))
    {post_init}
def __eq__(self, other):
    if self is other:
        return True
    return self.__class__ is other.__class__ and self._hash == other._hash and {same}
"""
"""Those of a frozen dataclass are slower: they set fields by name, and compare tuples of fields."""


@dataclass_transform(frozen_default=True)
def node(cls: type[T]) -> type[T]:
    """Make *cls* a frozen, slotted dataclass whose hash is computed when it is made."""
    made: Any = dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)(cls)
    own = fields(made)
    scope = {f"set_{f.name}": getattr(made, f.name).__set__ for f in own} | {"set__hash": Node._hash.__set__}  # type: ignore[attr-defined]
    scope |= {f"default_{f.name}": f.default for f in own if f.default is not MISSING}
    text = METHODS.format(
        parameters=", ".join(f.name if f.default is MISSING else f"{f.name}=default_{f.name}" for f in own),
        assignments="; ".join(f"set_{f.name}(self, {f.name})" for f in own),
        values=", ".join(f.name for f in own),
        post_init="self.__post_init__()" if hasattr(made, "__post_init__") else "",
        same=" and ".join(f"self.{f.name} == other.{f.name}" for f in own),
    )
    exec(text, scope)
    made.__init__, made.__eq__, made.__hash__ = scope["__init__"], scope["__eq__"], Node.__hash__
    return made  # type: ignore[no-any-return]
