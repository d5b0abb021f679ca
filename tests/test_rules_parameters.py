"""JSON forms of the parameters of rules, derived from their types, and what is said about bad ones."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest

from einnet_explore.ir import Index, Iterator, Scope, as_index
from einnet_explore.rules import Refused, Rule, scope_rule
from einnet_explore.rules.parameters import parameters_to_json, read_parameters
from einnet_explore.syntax import parse

PROGRAM = parse("tensor A[4, 6]\nY[h:4] = sum[r:6] A[h, r]")
H, R = Iterator("h", 0, 4), Iterator("r", 0, 6)


@dataclass(frozen=True, slots=True)
class Every:
    """A field of every form."""

    count: int
    name: str
    here: Iterator
    at: Index
    numbers: tuple[int, ...]
    pair: tuple[Iterator, int]
    phi: tuple[tuple[str, Index], ...]
    ranges: tuple[tuple[Iterator, int, int], ...] = ()
    lists: tuple[tuple[str, ...], ...] = ()
    deep: bool = False


@dataclass(frozen=True, slots=True)
class Outwards:
    """No parameter but the direction."""

    direction: Literal["out"] = "out"


@dataclass(frozen=True, slots=True)
class Inwards:
    """A direction and a number."""

    direction: Literal["in"] = field(default="in", kw_only=True)
    part: int


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A field of a type that has no JSON form."""

    number: complex


VALUE = Every(2, "T", R, H * 2 + R, (1, 2), (H, 3), (("a", as_index(H)), ("b", R + 1)))
WRITTEN: dict[str, object] = {
    "count": 2, "name": "T", "here": "r", "at": "2*h+r", "numbers": [1, 2], "pair": ["h", 3],
    "phi": {"a": "h", "b": "r+1"},
}  # fmt: skip
FULL = Every(2, "T", R, H * 2 + R, (), (H, 3), (), ((R, -1, 7), (H, 0, 2)), (("a", "b"), ()), True)


def read(kind: object, params: dict[str, Any]) -> object:
    return read_parameters("law", kind, PROGRAM.scope_at((0,)), params)


def test_every_form_is_written_and_read() -> None:
    assert parameters_to_json(VALUE) == WRITTEN and read(Every, WRITTEN) == VALUE
    full = parameters_to_json(FULL)
    assert (full["ranges"], full["lists"], full["deep"]) == ({"r": [-1, 7], "h": [0, 2]}, [["a", "b"], []], True)
    assert read(Every, full) == FULL
    assert read(Every, {**full, "lists": ["a", []]}) == replace(FULL, lists=(("a",), ()))  # one name needs no array


def test_member_of_a_union_is_taken_by_its_fields() -> None:
    for value, written in ((Outwards(), {"direction": "out"}), (Inwards(1), {"direction": "in", "part": 1})):
        assert parameters_to_json(value) == written and list(parameters_to_json(value)) == list(written)
        assert read(Outwards | Inwards, written) == value
    assert read(None, {}) is None and parameters_to_json(None) == {}


@pytest.mark.parametrize(
    ("kind", "params", "why"),
    [
        (Every, {"count": 2}, "the parameter 'name' is missing"),
        (Every, {**WRITTEN, "counts": 3}, "pair, phi, ranges, lists, deep}, found counts=3"),
        (Every, {**WRITTEN, "count": "many"}, "count: found 'many', expected an integer"),
        (Every, {**WRITTEN, "here": "q"}, "here: no iterator is called 'q' here: there are {h, r}"),
        (Every, {**WRITTEN, "at": "2*q"}, "at: "),
        (Every, {**WRITTEN, "numbers": 3}, "numbers: found 3, expected an array"),
        (Every, {**WRITTEN, "numbers": "12"}, "numbers: found '12', expected an array"),
        (Every, {**WRITTEN, "pair": ["h"]}, "pair: found 1 items, expected 2"),
        (Every, {**WRITTEN, "phi": []}, "phi: found [], expected an object"),
        (Every, {**WRITTEN, "ranges": {"r": [0]}}, "ranges: r: found 1 items, expected 2"),
        (Every, {**WRITTEN, "ranges": {"r": [0, None]}}, "ranges: r: found None, expected an integer"),
        (Every, {**WRITTEN, "deep": "no"}, "deep: found 'no', expected true or false"),
        (Outwards | Inwards, {}, "the parameter 'direction' is missing"),
        (Outwards | Inwards, {"direction": "in"}, "the parameter 'part' is missing"),
        (
            Outwards | Inwards,
            {"direction": "up"},
            "{direction: 'out'} or {direction: 'in', part}, found direction='up'",
        ),
        (None, {"a": 1}, "law takes no parameters, found a=1"),
    ],
)
def test_bad_parameters_are_refused_with_what_was_found_and_expected(
    kind: object, params: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refused) as refusal:
        read(kind, params)
    assert why in str(refusal.value)


def test_type_without_a_json_form_needs_encode_and_decode() -> None:
    def rewrite(scope: Scope, params: float) -> Scope:
        return scope

    with pytest.raises(TypeError, match=r"parameters of bare: found <class 'float'>, expected a dataclass or None"):
        scope_rule("bare", "", lambda _: (1.5,), rewrite)
    bare: Rule[float] = scope_rule("bare", "", lambda _: (1.5,), rewrite, decode=lambda *_: 1.5)
    with pytest.raises(TypeError, match=r"parameters 1.5, expected a dataclass or None"):
        bare.encode(1.5)
    with pytest.raises(TypeError, match="type <class 'complex'> has no JSON form"):
        read(Unwritten, {"number": 1})
