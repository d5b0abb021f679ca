"""Outlines: rules propose and rewrite on an outline exactly as on the scope itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules_kit import walks

import einnet_explore as ee
from einnet_explore.ir import Access, Iterator, Program, Scope, Tensor, mul, tensors
from einnet_explore.rules import RULES
from einnet_explore.rules.base import places
from einnet_explore.strategies.moves import LEVELS_READ, STEM, Position, host_program, local_moves, outline

LOCAL = tuple(rule for rule in RULES if rule.local)


@given(walks(LOCAL, steps=6), st.sampled_from(["equation", "nested"]))
def test_moves_of_a_scope_are_those_of_its_outline(walk: tuple[Program, Program], position: Position) -> None:
    for _, scope in places(walk[1]):
        program, at = host_program(scope, position)
        for rule in LOCAL:
            direct = [(p, rule.rewrite(program, at, p).scope_at(at)) for p in rule.propose(program, at)]
            assert list(local_moves(rule, scope, position)) == direct


@given(walks(LOCAL, steps=6), st.integers(0, 2))
def test_a_filled_outline_is_the_scope(walk: tuple[Program, Program], levels: int) -> None:
    for _, scope in places(walk[1]):
        found = outline(scope, levels)
        assert found.fill(found.scope) == scope
        assert bool(found.hidden) == any(t.name.startswith(STEM) for t in tensors(found.scope))


def nested(tensor: Tensor, name: str) -> Scope:
    x, y = Iterator(name, 0, 4), Iterator("y", 0, 3)
    return Scope((x,), (y,), tensor[x, y])


def test_scopes_that_differ_in_a_hidden_body_have_one_outline() -> None:
    x = Iterator("x", 0, 4)
    first, second = (Scope((x,), (), nested(Tensor(name, (4, 3)), name.lower())[(x,)]) for name in "AB")
    assert first != second
    assert outline(first, 0).scope == outline(second, 0).scope
    assert outline(first, 1).scope == first


def test_scopes_that_are_equal_but_for_names_are_not_hidden() -> None:
    x, tensor = Iterator("x", 0, 4), Tensor("A", (4, 3))
    scope = Scope((x,), (), mul(nested(tensor, "a")[(x,)], nested(tensor, "b")[(x,)]))
    assert outline(scope, 0).scope is scope


def test_hidden_bodies_keep_the_canonical_order_of_the_bodies() -> None:
    x, r = Iterator("x", 0, 4), Iterator("r", 0, 4)
    for names in ("AB", "BA"):
        one, other = (nested(Tensor(name, (4, 3)), "z") for name in names)
        scope = Scope((x,), (r,), mul(one[(x,)], other[(r,)]))
        assert [t.name for hidden in outline(scope, 0).hidden for t in tensors(hidden)] == ["A", "B"]


@pytest.mark.parametrize("rule", LEVELS_READ, ids=lambda rule: rule.name)
def test_levels_are_stated_for_local_rules(rule: ee.Rule[object]) -> None:
    assert rule.local


def test_padding_that_a_rule_changes_is_filled_in() -> None:
    x = Iterator("x", 0, 4)
    inner = nested(Tensor("A", (4, 3)), "a")
    found = outline(Scope((x,), (), inner[(x,)]), 0)
    stub = found.scope.body
    assert isinstance(stub, Access) and isinstance(stub.source, Scope)
    wider = Scope(stub.source.traversals, (), stub.source.body, padding=((1, 2),), value=7)
    filled = found.fill(Scope((x,), (), wider[(x,)]))
    assert filled.body == Scope(inner.traversals, inner.summations, inner.body, padding=((1, 2),), value=7)[(x,)]
