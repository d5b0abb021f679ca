"""The graph of the distinct scopes of a derivation: equal scopes are one node, and each is rewritten once.

A scope is an *outline*, in which numbered stubs replace the nested scopes, and the nodes of these.  A local rule reads
an outline, or an outline and those one level below (``strategies/moves.py:LEVELS_READ``); its result is a *template*
with holes for what it did not read.  So a rewrite of a nested scope costs a look-up at each scope around it, where the
search makes, hashes and compares new scopes.

Two scopes have the same node exactly if they are alpha-equal: nested scopes are numbered by their nodes, and outlines
are compared by their canonical keys.  Successors of alpha-equal scopes correspond one to one, so the graph has the same
states and moves as the search by strategy ``paper``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from einnet_explore.analysis.canonical_keys import canonical_key
from einnet_explore.ir import Access, Padding, Scope, Table, Tensor, accesses, map_accesses
from einnet_explore.ir.program import with_body
from einnet_explore.rules import RULES, Rule
from einnet_explore.strategies.moves import (
    CLEAN_UPS,
    LEVELS_READ,
    Position,
    Sources,
    computed_moves,
    find_joint_clean_up,
    find_tightening,
    stub,
    stub_number,
)
from einnet_explore.support.errors import Refused

Around: TypeAlias = "tuple[Padding, float]"
"""The padding of a scope, and its value there."""

FINAL: Sources = (Scope, Tensor, Table)
"""Scopes that re-index one of these are merged when no choice follows."""


@dataclass(frozen=True, slots=True)
class Hole:
    """The place of nested scope *number* in a template; *around* is its new padding, None if that stays."""

    number: int
    around: Around | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A rewritten scope: the number of an outline whose stubs stand for *parts*, in order of access."""

    outline: int
    parts: tuple[Template | Hole, ...]


@dataclass(slots=True)
class Outline:
    """An outline: *order* has the number of the stub at each access of a nested scope."""

    scope: Scope
    order: tuple[int, ...]
    interface: int
    """Outlines with equal interfaces have equal boxes, domains and paddings."""
    around: tuple[Around, ...]
    """The paddings of what the stubs stand for."""
    moves: dict[Position, tuple[Template, ...]] = field(default_factory=dict)
    """The moves of rules that read the outline alone."""
    tightening: dict[Position, Template | None] = field(default_factory=dict)

    @property
    def may_merge(self) -> bool:
        """True if a clean-up may change this scope and its reader."""
        return bool(self.scope.domain) or (not self.scope.summations and isinstance(self.scope.body, Access))


@dataclass(slots=True, eq=False)
class Neighbourhood:
    """An outline with those one level below, whose stubs have numbers of their own: all that local rules read."""

    scope: Scope
    around: tuple[Around, ...]
    moves: dict[Position, tuple[Template, ...]] = field(default_factory=dict)
    clean_ups: dict[Position, Template | None] = field(default_factory=dict)


OUTLINE_RULES = tuple(rule for rule in RULES if LEVELS_READ.get(rule) == 0)
NEIGHBOURHOOD_RULES = tuple(rule for rule in RULES if LEVELS_READ.get(rule) == 1)


@dataclass(slots=True, eq=False)
class ScopeGraph:
    """Nodes of scopes: ``nodes[n]`` is the outline of node *n*, and the distinct nodes nested in it in rising order."""

    nodes: list[tuple[int, ...]] = field(default_factory=list)
    outlines: list[Outline] = field(default_factory=list)
    _node_of: dict[tuple[int, ...], int] = field(default_factory=dict)
    _outline_of: dict[Hashable, int] = field(default_factory=dict)
    _interface_of: dict[Hashable, int] = field(default_factory=dict)
    _patterns: list[Scope] = field(default_factory=list)
    _pattern_of: dict[Scope, int] = field(default_factory=dict)
    _ranked: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)
    _swaps: dict[tuple[int, int, int], Template] = field(default_factory=dict)
    _variants: dict[tuple[int, Around], Template] = field(default_factory=dict)
    _near: dict[Hashable, Neighbourhood] = field(default_factory=dict)
    _nested_moves: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _clean_ups: dict[tuple[int, Position], int | None] = field(default_factory=dict)
    _scopes: dict[int, Scope] = field(default_factory=dict)

    def add(self, scope: Scope) -> int:
        """Return the node of *scope*; raises Refused for tables, which rules treat apart."""
        return self._fill(self._template(scope, ()), ())

    def scope(self, node: int) -> Scope:
        """Return a scope of *node*."""
        known = self._scopes.get(node)
        if known is None:
            known = self._scopes[node] = self.fresh_scope(node)
        return known

    def fresh_scope(self, node: int) -> Scope:
        """Return ``scope(node)`` without remembering it."""
        outline, *nested = self.nodes[node]
        return _filled(self.outlines[outline].scope, [self.scope(n) for n in nested])

    def nested(self, node: int) -> Iterable[tuple[int, int]]:
        """Yield the number of each access of a nested scope, counted among these, and the node of that scope."""
        outline, *nested = self.nodes[node]
        for place, number in enumerate(self.outlines[outline].order):
            yield place, nested[number]

    def moves(self, node: int, position: Position) -> Iterable[int]:
        """Yield the node after each legal match of a local rule at *node* or nested in it."""
        near, inside = self._neighbourhood(node)
        number, *nested = self.nodes[node]
        for template in self._own_moves(self.outlines[number], OUTLINE_RULES, position):
            yield self._fill(template, nested)
        for template in self._own_moves(near, NEIGHBOURHOOD_RULES, position):
            yield self._fill(template, inside)
        for place, below in self.nested(node):
            for changed in self.nested_moves(below):
                yield self.swap(node, place, changed)

    def _own_moves(
        self, read: Outline | Neighbourhood, rules: tuple[Rule[object], ...], position: Position
    ) -> tuple[Template, ...]:
        if position not in read.moves:
            found = (new for rule in rules for _, new in computed_moves(rule, read.scope, position))
            read.moves[position] = tuple(self._template(new, read.around) for new in found)
        return read.moves[position]

    def nested_moves(self, node: int) -> tuple[int, ...]:
        """Return ``moves`` of a nested *node*, computed once."""
        if (known := self._nested_moves.get(node)) is None:
            known = self._nested_moves[node] = tuple(self.moves(node, "nested"))
        return known

    def swap(self, node: int, place: int, new: int) -> int:
        """Return *node* with the nested scope at access number *place* replaced by node *new*."""
        number, *nested = self.nodes[node]
        outline = self.outlines[number]
        interface = self.outlines[self.nodes[new][0]].interface
        if len(outline.order) == 1 and self.outlines[self.nodes[nested[0]][0]].interface == interface:
            return self._node((number, new))
        key = number, place, interface
        if key not in self._swaps:
            places = iter(range(len(outline.order)))
            stand_in = stub(self.outlines[self.nodes[new][0]].scope, len(nested))

            def change(access: Access) -> Access:
                if isinstance(access.source, Scope) and next(places) == place:
                    return Access(stand_in, access.index)
                return access

            changed = with_body(outline.scope, map_accesses(outline.scope.body, change))
            self._swaps[key] = self._template(changed, ())
        return self._fill(self._swaps[key], (*nested, new))

    def cleaned(self, node: int) -> int:
        """Return *node*, a whole equation, after the clean-ups that come before it is instantiated."""
        while (found := self._clean_up(node, "equation")) is not None:
            node = found
        return node

    def _clean_up(self, node: int, position: Position) -> int | None:
        """The node after the first clean-up of *node* or of a scope nested in it."""
        key = node, position
        if key in self._clean_ups:
            return self._clean_ups[key]
        result = self._own_clean_up(node, position)
        if result is None:
            for place, below in self.nested(node):
                if (changed := self._clean_up(below, "nested")) is not None:
                    result = self.swap(node, place, changed)
                    break
        self._clean_ups[key] = result
        return result

    def _own_clean_up(self, node: int, position: Position) -> int | None:
        number, *nested = self.nodes[node]
        outline = self.outlines[number]
        if any(self.outlines[self.nodes[n][0]].may_merge for n in nested):
            near, inside = self._neighbourhood(node)
            if position not in near.clean_ups:
                joint = find_joint_clean_up(near.scope, position, FINAL, CLEAN_UPS)
                near.clean_ups[position] = None if joint is None else self._template(joint[2], near.around)
            if (template := near.clean_ups[position]) is not None:
                return self._fill(template, inside)
        if position not in outline.tightening:
            tight = find_tightening(outline.scope, position, CLEAN_UPS)
            outline.tightening[position] = None if tight is None else self._template(tight[2], outline.around)
        template = outline.tightening[position]
        return None if template is None else self._fill(template, nested)

    def _neighbourhood(self, node: int) -> tuple[Neighbourhood, tuple[int, ...]]:
        """The neighbourhood of *node*, and the nodes of its stubs."""
        outline, *nested = self.nodes[node]
        below = [self.nodes[n] for n in nested]
        inside = tuple(sorted({n for one in below for n in one[1:]}))
        key = outline, tuple((one[0], tuple(map(inside.index, one[1:]))) for one in below)
        if (near := self._near.get(key)) is None:
            stubs = [stub(self.outlines[self.nodes[n][0]].scope, k) for k, n in enumerate(inside)]
            shown = [_filled(self.outlines[one].scope, [stubs[k] for k in numbers]) for one, numbers in key[1]]
            scope = _filled(self.outlines[outline].scope, shown)
            near = self._near[key] = Neighbourhood(scope, tuple((s.padding, s.value) for s in stubs))
        return near, inside

    def _template(self, scope: Scope, around: Sequence[Around]) -> Template:
        """*scope* as a template; *around* has the paddings of what its stubs stand for, if they may change."""
        parts = list[Template | Hole]()

        def hide(access: Access) -> Access:
            match access.source:
                case Table():
                    raise Refused("a scope reads a table: such scopes are only instantiated")
                case Scope() as source:
                    number = stub_number(source)
                    if number is None:
                        parts.append(self._template(source, around))
                    else:
                        changed = number < len(around) and around[number] != (source.padding, source.value)
                        parts.append(Hole(number, (source.padding, source.value) if changed else None))
                    return Access(stub(source, len(parts) - 1), access.index)
            return access

        outline = with_body(scope, map_accesses(scope.body, hide))
        if outline not in self._pattern_of:
            self._pattern_of[outline] = len(self._patterns)
            self._patterns.append(outline)
        return Template(self._pattern_of[outline], tuple(parts))

    def _fill(self, template: Template, inside: Sequence[int]) -> int:
        """The node of *template* with the nodes *inside* in its holes."""
        parts = []
        for part in template.parts:
            if isinstance(part, Template):
                parts.append(self._fill(part, inside))
            else:
                node = inside[part.number]
                parts.append(node if part.around is None else self._variant(node, part.around))
        distinct = parts if len(parts) < 2 else sorted(set(parts))
        ranks = tuple([distinct.index(n) for n in parts])
        key = template.outline, ranks
        if (outline := self._ranked.get(key)) is None:
            outline = self._ranked[key] = self._outline(self._patterns[template.outline], ranks)
        return self._node((outline, *distinct))

    def _variant(self, node: int, around: Around) -> int:
        """The node of the same scope with another padding."""
        number, *nested = self.nodes[node]
        key = number, around
        if key not in self._variants:
            full, (padding, value) = self.outlines[number].scope, around
            self._variants[key] = self._template(
                Scope(full.traversals, full.summations, full.body, full.reduce, full.domain, padding, value), ()
            )
        return self._fill(self._variants[key], nested)

    def _outline(self, pattern: Scope, ranks: tuple[int, ...]) -> int:
        """The number of *pattern* with its stubs numbered by *ranks*."""
        stubs = [stub(source, k) for source, k in zip(_nested_scopes(pattern), ranks, strict=True)]
        places = iter(stubs)

        def rename(access: Access) -> Access:
            return Access(next(places), access.index) if isinstance(access.source, Scope) else access

        scope = with_body(pattern, map_accesses(pattern.body, rename))
        key = canonical_key(scope)
        if key not in self._outline_of:
            self._outline_of[key] = len(self.outlines)
            interface = canonical_key(stub(scope, 0))
            number = self._interface_of.setdefault(interface, len(self._interface_of))
            around = {k: (s.padding, s.value) for k, s in zip(ranks, stubs, strict=True)}
            self.outlines.append(Outline(scope, ranks, number, tuple(around[k] for k in range(len(around)))))
        return self._outline_of[key]

    def _node(self, key: tuple[int, ...]) -> int:
        number = self._node_of.setdefault(key, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(key)
        return number


def _nested_scopes(scope: Scope) -> Iterable[Scope]:
    return (access.source for access in accesses(scope.body) if isinstance(access.source, Scope))


def _filled(scope: Scope, parts: Sequence[Scope]) -> Scope:
    """*scope* with *parts* in place of its stubs, by number."""

    def fill(access: Access) -> Access:
        if isinstance(access.source, Scope) and (number := stub_number(access.source)) is not None:
            return Access(parts[number], access.index)
        return access

    return with_body(scope, map_accesses(scope.body, fill))
