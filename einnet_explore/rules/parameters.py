"""Parameters of rules as JSON.

The parameters of a rule are a frozen dataclass, a union of dataclasses, or None.  The JSON form is an object with an
entry for each field; a field that has its default is left out.

=========================================  ==================================================
type of a field                            JSON
=========================================  ==================================================
``int``, ``bool``, ``str``                 a number, true or false, a text
``Iterator``                               the name of an iterator of the scope at the path
``Index``                                  its text, in the iterators of that scope
``Literal["out"]``                         this text
``tuple[T, ...]``, ``tuple[S, T]``         an array; of one name, the name is enough
``tuple[tuple[Iterator, T], ...]``         an object by name: ``{"h": …}``; also with ``str``
``tuple[tuple[Iterator, S, T], ...]``      an object of arrays: ``{"h": […, …]}``
=========================================  ==================================================
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from inspect import signature
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from einnet_explore.analysis.indices import iterator_by_name, parse_index_over
from einnet_explore.ir import Index, Iterator, Scope
from einnet_explore.support.errors import Refused
from einnet_explore.support.json_values import as_boolean, as_integer, as_items, as_object


def parameters_to_json(params: object) -> dict[str, object]:
    """Return the JSON form of *params*: the fields of a dataclass that differ from their defaults; ``{}`` for None."""
    if params is None:
        return {}
    if not is_dataclass(params) or isinstance(params, type):
        raise TypeError(f"found the parameters {params!r}, expected a dataclass or None, or a rule with an encode")
    hints = _fields(type(params))
    values = {f.name: (getattr(params, f.name), f.default) for f in fields(params)}
    return {
        name: _to_json(hints[name], value)
        for name, (value, default) in values.items()
        if value != default or get_origin(hints[name]) is Literal
    }


def parameters_decoder(
    name: str, rewrite: Callable[..., object], position: int
) -> Callable[[Scope, Mapping[str, object]], Any]:
    """Return the inverse of ``parameters_to_json`` for the rule *name*.

    Their type is the annotation of argument number *position* of *rewrite*; without one there are no parameters.
    Raises TypeError for a type that has no JSON form.
    """
    argument = list(signature(rewrite).parameters)[position]
    kind = get_type_hints(rewrite).get(argument)
    if strange := [each for each in _members(kind) if each not in (None, NoneType) and not is_dataclass(each)]:
        raise TypeError(f"parameters of {name}: found {strange[0]}, expected a dataclass or None, or encode and decode")
    return lambda scope, params: read_parameters(name, kind, scope, params)


def read_parameters(name: str, kind: object, scope: Scope, params: Mapping[str, object]) -> object:
    """Return the parameters of type *kind* of the rule *name* at *scope*.

    Of a union, the member is taken that has most of the given fields.  Raises Refused for a missing or unknown field,
    with the fields that there are, and for a value of another type, with the value found and the type expected.
    """
    members = _members(kind)
    member = max(members, key=lambda each: len(_known(each, params)))
    if strange := params.keys() - _known(member, params):
        found = ", ".join(f"{key}={value!r}" for key, value in params.items() if key in strange)
        raise Refused(f"{name} takes {' or '.join(map(_shown, members))}, found {found}")
    if not isinstance(member, type) or not is_dataclass(member):
        return None
    iterators, values = (*scope.traversals, *scope.summations), dict[str, object]()
    for each in fields(member):
        if each.name in params:
            with _locating(each.name):
                values[each.name] = _from_json(_fields(member)[each.name], params[each.name], iterators)
        elif each.default is MISSING or get_origin(_fields(member)[each.name]) is Literal:
            raise Refused(f"the parameter {each.name!r} is missing") from KeyError(each.name)
    return member(**values)


def _members(kind: object) -> tuple[object, ...]:
    """Return the types of which *kind* is the union."""
    return get_args(kind) or (kind,)


@lru_cache(256)
def _fields(member: object) -> Mapping[str, object]:
    """Return the types of the fields of a dataclass by name; none for None."""
    return get_type_hints(member) if isinstance(member, type) and is_dataclass(member) else {}


def _known(member: object, params: Mapping[str, object]) -> set[str]:
    """Return the names of *params* that are fields of *member*; a field of one value only with this value."""
    hints = _fields(member)
    one_value = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
    return {name for name, value in params.items() if name in hints and value in one_value.get(name, (value,))}


def _shown(member: object) -> str:
    hints = _fields(member)
    values = (f": {' or '.join(map(repr, get_args(h)))}" if get_origin(h) is Literal else "" for h in hints.values())
    shown = ", ".join(f"{name}{value}" for name, value in zip(hints, values, strict=True))
    return f"{{{shown}}}" if shown else "no parameters"


@contextmanager
def _locating(name: str) -> Generator[None, None, None]:
    """Raise a ValueError as ``Refused`` with the *name* of the part that it is about."""
    try:
        yield
    except ValueError as why:
        raise Refused(f"{name}: {why}") from why


_LEAVES: Mapping[object, Callable[[object, tuple[Iterator, ...]], object]] = {
    int: lambda value, _: as_integer(value),
    bool: lambda value, _: as_boolean(value),
    str: lambda value, _: str(value),
    Iterator: lambda value, iterators: iterator_by_name(iterators, str(value)),
    Index: parse_index_over,
}
"""Types without parts, and how a value is read."""


def _to_json(kind: object, value: object) -> object:
    match value:
        case Iterator(name=name):
            return name
        case Index():
            return repr(value)
        case tuple() if kinds := _entry(kind):
            return {str(_to_json(kinds[0], name)): _entry_to_json(kinds[1:], parts) for name, *parts in value}
        case tuple():
            return [_to_json(k, item) for k, item in zip(_item_kinds(kind, len(value)), value, strict=True)]
    return value


def _from_json(kind: object, value: object, iterators: tuple[Iterator, ...]) -> object:
    if kind in _LEAVES:
        return _LEAVES[kind](value, iterators)
    if get_origin(kind) is Literal:
        return value  # ``_known`` has compared it
    if kinds := _entry(kind):
        return tuple(_entry_from_json(kinds, name, item, iterators) for name, item in as_object(value).items())
    if get_origin(kind) is tuple:
        items = (value,) if isinstance(value, str) and get_args(kind)[0] in (Iterator, str) else as_items(value)
        return tuple(_from_json(k, i, iterators) for k, i in zip(_item_kinds(kind, len(items)), items, strict=True))
    raise TypeError(f"a parameter of type {kind} has no JSON form: give the rule encode and decode")


def _entry_to_json(kinds: tuple[object, ...], parts: list[object]) -> object:
    written = [_to_json(kind, part) for kind, part in zip(kinds, parts, strict=True)]
    return written[0] if len(written) == 1 else written


def _entry_from_json(
    kinds: tuple[object, ...], name: str, value: object, iterators: tuple[Iterator, ...]
) -> tuple[object, ...]:
    with _locating(name):
        parts = (name, value) if len(kinds) == 2 else (name, *as_items(value))
        if len(parts) != len(kinds):
            raise ValueError(f"found {len(parts) - 1} items, expected {len(kinds) - 1}")
        return tuple(_from_json(kind, part, iterators) for kind, part in zip(kinds, parts, strict=True))


def _entry(kind: object) -> tuple[object, ...]:
    """Return the types of name and values in an object that stands for a tuple of tuples; ``()`` for other types."""
    match get_args(kind):
        case (item, end) if end is ... and get_origin(item) is tuple:
            kinds = get_args(item)
            return kinds if kinds[0] in (str, Iterator) and kinds[-1] is not ... else ()
    return ()


def _item_kinds(kind: object, count: int) -> tuple[object, ...]:
    """Return the types of the *count* items of a tuple of type *kind*; raises ValueError for another number."""
    kinds = get_args(kind)
    if kinds[-1] is ...:
        return kinds[:1] * count
    if count != len(kinds):
        raise ValueError(f"found {count} items, expected {len(kinds)}")
    return kinds
