"""A tree of derivations with a current node.  Undo keeps the undone steps as a branch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.ir import Program
from einnet_explore.rules import Derivation, Match
from einnet_explore.strategies.candidate import Candidate

Observer: TypeAlias = "Callable[[Any], None]"


class DerivationTree:
    """Derivations from one program as a tree: node *n* is ``nodes[n]``, one step more than node ``parents[n]``.

    ``here`` is a node.  A lock guards the tree, since callbacks may run on other threads.
    """

    def __init__(self, start: Program) -> None:
        self.nodes: list[Derivation] = [Derivation(start)]
        self.parents: list[int] = [-1]
        self.here = 0
        self._redo: list[int] = []
        self._proofs: dict[int, Certificate] = {}
        self._observers: list[Observer] = []
        self._lock = threading.RLock()

    @property
    def derivation(self) -> Derivation:
        """The derivation that leads to where the reader stands."""
        return self.nodes[self.here]

    @property
    def program(self) -> Program:
        """The program where the reader stands."""
        return self.derivation.end

    def _step(self, match: Match[Any]) -> Program:
        """Stand at the child that *match* leads to, the one there is already or a new one.

        Raises ``Refused`` and changes nothing.
        """
        with self._lock:
            child = self._child(self.here, self.derivation.then(match))
            self._redo.clear()
            self._go(child)
            return self.program

    def _child(self, node: int, derivation: Derivation) -> int:
        """The child of *node* at the end of *derivation*; a step that was undone and is done again makes no twin."""
        for child, parent in enumerate(self.parents):
            if parent == node and self.nodes[child] == derivation:
                return child
        self.nodes.append(derivation)
        self.parents.append(node)
        return len(self.nodes) - 1

    def undo(self) -> Program:
        """Step back to the parent; at the start this does nothing."""
        with self._lock:
            if self.parents[self.here] >= 0:
                self._redo.append(self.here)
                self._go(self.parents[self.here])
            return self.program

    def redo(self) -> Program:
        """Take back the last ``undo``; without one this does nothing."""
        with self._lock:
            if self._redo:
                self._go(self._redo.pop())
            return self.program

    @property
    def can_undo(self) -> bool:
        """Whether ``undo`` would change anything."""
        return self.parents[self.here] >= 0

    @property
    def can_redo(self) -> bool:
        """Whether ``redo`` would change anything."""
        return bool(self._redo)

    def goto(self, where: int | Candidate | Derivation) -> Program:
        """Stand at another node of the tree, or at the end of what a search found; raises IndexError or ValueError."""
        with self._lock:
            node = where if isinstance(where, int) else self.keep(where)
            if not 0 <= node < len(self.nodes):
                raise IndexError(f"node {node}: expected 0 to {len(self.nodes) - 1}")
            self._redo.clear()
            self._go(node)
            return self.program

    def keep(self, found: Candidate | Derivation) -> int:
        """Add the steps of *found* (from a search or a record) as nodes, without going there; the number of the last.

        They go below where the reader stands if that is the program it starts from, else below the first node that is.
        Steps that the tree has already are not added.  Raises ValueError where no node is what it starts from.
        """
        with self._lock:
            derivation = found.derivation if isinstance(found, Candidate) else found
            ends = (n for n in (self.here, *range(len(self.nodes))) if self.nodes[n].end == derivation.start)
            node = next(ends, None)
            if node is None:
                raise ValueError("the derivation starts from another program than any node of this session")
            so_far = self.nodes[node]
            for step in derivation.steps:
                so_far = Derivation(so_far.start, (*so_far.steps, step))
                node = self._child(node, so_far)
            self._notify()
            return node

    def certificate(self, node: int) -> Certificate:
        """The certificate of the step that leads to *node* (not the start), computed once; raises IndexError."""
        if not 0 < node < len(self.nodes):
            raise IndexError(f"node {node}: expected 1 to {len(self.nodes) - 1}")
        if node not in self._proofs:
            step = self.nodes[node].steps[-1]
            self._proofs[node] = certify(step.before, step.after)
        return self._proofs[node]

    def known_certificates(self) -> dict[int, Certificate]:
        """The certificates computed so far, by node."""
        return dict(self._proofs)

    def way(self, node: int | None = None) -> tuple[int, ...]:
        """The nodes from the start to *node* (to here where None)."""
        found = [self.here if node is None else node]
        while self.parents[found[-1]] >= 0:
            found.append(self.parents[found[-1]])
        return tuple(reversed(found))

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call *observer* after every change; returns the function that unsubscribes."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def _go(self, node: int) -> None:
        self.here = node
        self._notify()

    def _notify(self) -> None:
        for observer in tuple(self._observers):
            observer(self)
