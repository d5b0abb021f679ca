"""Disjoint groups of the nodes of a model, which stay acyclic as they are joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from math import prod

from einnet_explore.ir import Equation, Program
from einnet_explore.onnx_import import OPERATORS_ONNX
from einnet_explore.onnx_import.model import Model, ModelNode
from einnet_explore.onnx_import.node_call import assemble
from einnet_explore.pipeline.reading_memory import ReadingMemory
from einnet_explore.pipeline.subprogram import anonymize

CHEAP_KINDS = ("elementwise", "activation", "layout")
"""Kinds of work that join a neighbour's group."""


def work_kind(node: ModelNode) -> str:
    """Return the kind of work of an understood node; an interpolation is neither cheap nor worth a subprogram."""
    kind = OPERATORS_ONNX[node.op].kind
    return "interpolation" if any(node.constants) and kind == "layout" else kind


@dataclass(slots=True)
class NodeGroups:
    """The nodes of a model in disjoint groups; a group is named by one of its members.

    *memory* has the answers of earlier runs about programs of nodes.
    """

    model: Model
    understood: Mapping[int, tuple[Equation, ...]]
    memory: ReadingMemory = field(default_factory=ReadingMemory)
    of: list[int] = field(init=False)
    members: dict[int, set[int]] = field(init=False)
    before: list[set[int]] = field(init=False)
    after: list[set[int]] = field(init=False)
    readers: dict[int, set[int]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.model.nodes
        maker = {name: n for n, node in enumerate(nodes) for name in node.results}
        self.of = list(range(len(nodes)))
        self.members = {n: {n} for n in self.of}
        self.before = [{maker[name] for name in node.reads if name in maker} for node in nodes]
        self.after = [set() for _ in nodes]
        for n, sources in enumerate(self.before):
            for source in sources:
                self.after[source].add(n)
        self.readers = {n: set(found) for n, found in enumerate(self.after)}

    def kind(self, n: int) -> str:
        """Return the kind of work of node *n*; empty if it is not understood."""
        return work_kind(self.model.nodes[n]) if n in self.understood else ""

    def free(self, n: int) -> bool:
        """Whether node *n* is cheap and in no group yet."""
        return self.kind(n) in CHEAP_KINDS and len(self.members[self.of[n]]) == 1

    def size(self, n: int) -> int:
        """Return the number of elements that node *n* computes."""
        return sum(prod(self.model.shape(name)) for name in self.model.nodes[n].results)

    def join(self, source: int, reader: int) -> bool:
        """Join the groups of *source* and of its *reader*, unless a path between them visits a third.

        With every group as one node the graph stays acyclic, so a path back from the reader need not be looked for.
        """
        a, b = self.of[source], self.of[reader]
        if a == b:
            return True
        if self._leads_around(a, b):
            return False
        for n in self.members[b]:
            self.of[n] = a
        self.members[a] |= self.members.pop(b)
        self.readers[a] = {self.of[g] for g in self.readers[a] | self.readers.pop(b)} - {a}
        return True

    def join_all(self, nodes: set[int]) -> None:
        """Join each of *nodes* with those of them that it reads."""
        for n in sorted(nodes):
            for source in sorted(self.before[n] & nodes):
                self.join(source, n)

    def program_of(self, nodes: set[int]) -> Program:
        """Return the program of *nodes*, whose output is the last one's, with names by position."""
        equations = tuple(e for n in sorted(nodes) for e in self.understood[n])
        return anonymize(assemble(equations, (equations[-1].name,))).program

    def join_horizontally(self, one: int, other: int) -> bool:
        """Join two groups that need not read one another, unless a path between them visits a third."""
        a, b = self.of[one], self.of[other]
        return a == b or (not self._leads_around(b, a) and self.join(one, other))

    def contractions(self, group: int) -> tuple[int, ...]:
        """Return the contractions in *group*."""
        return tuple(n for n in sorted(self.members[group]) if self.kind(n) == "contraction")

    def dependent(self, one: int, other: int) -> bool:
        """Whether one of two nodes needs the other, directly or through others."""
        return any(self._needs(a, b) for a, b in ((one, other), (other, one)))

    def _needs(self, reader: int, source: int) -> bool:
        waiting, seen = [reader], set[int]()
        while waiting:
            fresh = self.before[waiting.pop()] - seen
            if source in fresh:
                return True
            seen |= fresh
            waiting.extend(fresh)
        return False

    def _leads_around(self, a: int, b: int) -> bool:
        """Whether a path from group *a* to group *b* visits another group."""
        waiting = self.group_readers(a) - {b}
        seen = set(waiting)
        while waiting:
            here = self.group_readers(waiting.pop())
            if b in here:
                return True
            waiting |= here - seen
            seen |= here
        return False

    def group_readers(self, group: int) -> set[int]:
        """Return the groups that read *group*."""
        # Groups joined since are still called by their old names here.
        return {self.of[g] for g in self.readers[group]} - {group}

    def group_sources(self, group: int) -> set[int]:
        """Return the groups that *group* reads."""
        return {self.of[m] for n in self.members[group] for m in self.before[n]} - {group}

    def groups(self) -> Iterable[tuple[int, ...]]:
        """Return the groups in an executable order."""
        left = {g: self.group_sources(g) for g in self.members}
        order = TopologicalSorter({g: left[g] for g in sorted(left, key=lambda g: min(self.members[g]))})
        return tuple(tuple(sorted(self.members[g])) for g in order.static_order())
