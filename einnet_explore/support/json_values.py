"""Types of JSON values; conversions of untrusted JSON to the types that a reader needs, which raise ValueError."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import SupportsFloat, SupportsInt, TypeAlias, TypeVar

JsonObject: TypeAlias = "dict[str, object]"

T = TypeVar("T")


def json_field(entry: object, name: str, *kinds: type[T]) -> T:
    """Return the field *name* of the object *entry*, a value of one of *kinds*; raises KeyError if it is missing."""
    value = as_object(entry)[name]
    if not isinstance(value, kinds):
        raise ValueError(f"{name}: found {value!r}, expected {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def as_integer(value: object) -> int:
    """Return the integer that *value* is or writes."""
    match value:
        case str() | SupportsInt():
            with suppress(ValueError):
                return int(value)
    raise ValueError(f"found {value!r}, expected an integer")


def as_number(value: object) -> float:
    """Return the number that *value* is or writes."""
    match value:
        case str() | SupportsFloat():
            return float(value)
    raise ValueError(f"found {value!r}, expected a number")


def as_boolean(value: object) -> bool:
    """Return a boolean."""
    if isinstance(value, bool):
        return value
    raise ValueError(f"found {value!r}, expected true or false")


def as_items(value: object) -> tuple[object, ...]:
    """Return the items of an array."""
    match value:
        case Iterable() if not isinstance(value, str):
            return tuple(value)
    raise ValueError(f"found {value!r}, expected an array")


def as_integers(value: object) -> tuple[int, ...]:
    """Return the integers of an array."""
    return tuple(map(as_integer, as_items(value)))


def as_texts(value: object) -> tuple[str, ...]:
    """Return the items of an array as text."""
    return tuple(map(str, as_items(value)))


def as_object(value: object) -> Mapping[str, object]:
    """Return an object, its keys as text."""
    match value:
        case Mapping():
            return {str(key): item for key, item in value.items()}
    raise ValueError(f"found {value!r}, expected an object")
