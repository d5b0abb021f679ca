"""The equations of a program by name: what each means, and what it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from einnet_explore.algebra.beside import inlined
from einnet_explore.algebra.rereading import read_by
from einnet_explore.ir import Program, Scope


class Definitions:
    """The equations of *program*, to be put into their readers one by one."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._numbers = {e.name: n for n, e in enumerate(program.equations)}
        self._made_of: dict[str, frozenset[str]] = {}

    def scope(self, name: str, kept: Set[str]) -> Scope:
        """What *name* means, with the equations that are not *kept* put into it."""
        met = {self._numbers[name]}
        stack = [name]
        while stack:
            for read in self._reads(stack.pop()):
                if read in self._numbers and read not in kept and self._numbers[read] not in met:
                    met.add(self._numbers[read])
                    stack.append(read)
        equations = tuple(self._program.equations[n] for n in sorted(met))
        return inlined(replace(self._program, equations=equations), kept)[name] if len(met) > 1 else equations[0].scope

    def made_of(self, name: str) -> frozenset[str]:
        """The names of all tensors that *name* is computed from, through other equations, too."""
        if not self._made_of:
            for equation in self._program.equations:
                read = self._reads(equation.name)
                self._made_of[equation.name] = frozenset(read).union(*(self._made_of.get(r, ()) for r in read))
        return self._made_of.get(name, frozenset())

    def _reads(self, name: str) -> Iterable[str]:
        return read_by(self._program.equations[self._numbers[name]].scope)


def outermost(names: Set[str], *sides: tuple[Definitions, Set[str]]) -> Set[str]:
    """Those of *names* that no other of them is made of; all of them where each is.

    *sides* are the programs in which they are read, each with the names that are read there.
    """
    inner = {n for definitions, read in sides for m in names & read for n in definitions.made_of(m) if n != m}
    return names - inner or names
