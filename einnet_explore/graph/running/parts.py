"""Which nodes run together: the groups that are replaced, and what stays in as few sets between them as can be."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

from einnet_explore.graph.reading.model import Node
from einnet_explore.graph.running.regions import PlanError, Regions


def check_disjoint(groups: Iterable[Collection[Node]]) -> None:
    """Raise PlanError where a group is empty or shares a node with another."""
    seen: set[str] = set()
    for nodes in groups:
        if not nodes:
            raise PlanError("a group holds no node, expected at least one")
        if twice := seen & {node.name for node in nodes}:
            raise PlanError(f"node {', '.join(sorted(twice))}: found in two groups, expected one")
        seen |= {node.name for node in nodes}


def parts(regions: Regions, groups: Sequence[Collection[Node]]) -> list[tuple[int | None, tuple[Node, ...]]]:
    """The groups (by number) and, between them, the nodes that stay (None), fewest sets first to last.

    Raises PlanError where a group is not convex.
    """
    member = {node.name: n for n, nodes in enumerate(groups) for node in nodes}
    maker = {name: node.name for node in regions.nodes for name in node.results}
    unit: dict[str, int | str] = {node.name: member.get(node.name, node.name) for node in regions.nodes}
    before: dict[int | str, set[int | str]] = {u: set() for u in unit.values()}
    for node in regions.nodes:
        found = {unit[maker[name]] for name in node.reads if name in maker}
        before[unit[node.name]] |= found - {unit[node.name]}
    try:
        order = tuple(TopologicalSorter(before).static_order())
    except CycleError as error:
        cycle = " <- ".join(_unit(u, groups) for u in error.args[1])
        raise PlanError(f"found a cycle {cycle}, expected convex groups") from None
    rank: dict[int | str, int] = {}
    for u in order:
        stays = [rank[p] for p in before[u] if isinstance(p, str)]
        replaced = [rank[p] for p in before[u] if isinstance(p, int)]
        rank[u] = (
            max((*stays, *replaced), default=-1) if isinstance(u, int) else max((0, *stays, *(r + 1 for r in replaced)))
        )
    live = _live(regions)
    out: list[tuple[int | None, tuple[Node, ...]]] = []
    place = {node.name: n for n, node in enumerate(regions.nodes)}
    for s in range(-1, max(rank.values(), default=-1) + 1):
        # Where nothing stays before a group, it must not wait for a session.
        staying = [u for u in order if isinstance(u, str) and rank[u] == s and u in live]
        nodes = sorted(staying, key=place.__getitem__)
        if nodes:
            out.append((None, regions.named(nodes)))
        out.extend((u, tuple(groups[u])) for u in order if isinstance(u, int) and rank[u] == s)
    return out


def _live(regions: Regions) -> set[str]:
    """The nodes that some output needs."""
    needed = set(regions.outputs)
    live = set()
    for node in reversed(regions.nodes):
        if not needed.isdisjoint(node.results):
            live.add(node.name)
            needed.update(node.reads)
    return live


def _unit(unit: int | str, groups: Sequence[Collection[Node]]) -> str:
    return unit if isinstance(unit, str) else "{" + ", ".join(node.name for node in groups[unit]) + "}"
