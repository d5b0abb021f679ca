"""Where values stand while a pass is written: in stashed tensors, in inputs, and in equations written before."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace

from einnet_explore.algebra.rereading import wider
from einnet_explore.ir import Bound, Index, Padding, Scalar, Scope, Tensor, map_tensors
from einnet_explore.stash.held import Held
from einnet_explore.stash.parts import Parts
from einnet_explore.stash.uses import Term, Use, Value
from einnet_explore.stash.values import Values

ALWAYS = -1
"""The position of what may be read anywhere."""


class Shelf:
    """*stashed* tensors, and what is *made* by equations, with their positions; *parts* of sums and products."""

    def __init__(self, values: Values, parts: Parts, stashed: Sequence[Held], made: Iterable[tuple[int, Held]]) -> None:
        self.values = values
        self.parts = parts
        self.pads: dict[str, tuple[Padding, float]] = {}
        """How far beyond their boxes stashed tensors are read, and what is there."""
        self.root: Value | None = None
        """What the equation computes that is written; what it is made of may be read from any other equation."""
        self.domain: tuple[Bound, ...] = ()
        """Where the scope that is written computes: nothing is read elsewhere."""
        self._stashed: dict[int, list[Held]] = {}
        for one in stashed:
            self._stashed.setdefault(one.use.value.number, []).append(one)
        self._names = {one.tensor.name for one in stashed}
        self._touches: dict[int, bool] = {}
        self._made: dict[int, list[tuple[int, Held]]] = {}
        for position, one in made:
            self._made.setdefault(one.use.value.number, []).append((position, one))

    @contextmanager
    def within(self, domain: tuple[Bound, ...]) -> Generator[None, None, None]:
        """What is written meanwhile computes in *domain*."""
        outer, self.domain = self.domain, domain
        try:
            yield
        finally:
            self.domain = outer

    def put(self, one: Held) -> None:
        """*one* may be read anywhere from now on."""
        self._made.setdefault(one.use.value.number, []).append((ALWAYS, one))

    def stashes(self, name: str) -> bool:
        """Whether the tensor called *name* is a stashed one."""
        return name in self._names

    def touches(self, term: Term) -> bool:
        """Whether *term* is computed from a value that a stashed tensor holds."""
        if not isinstance(term, Use):
            return False
        number = term.value.number
        if number not in self._touches:
            split = (part.use for part in self.parts.get(number, ()))
            reads = (*self.values.reads(term.value), *split)
            self._touches[number] = number in self._stashed or any(map(self.touches, reads))
        return self._touches[number]

    def stored(self, use: Use) -> Iterable[tuple[Index, ...]]:
        """The indices at which tensors that hold *use* are read for it."""
        if use.value.kind == "leaf":
            yield use.at
        for _, one in self._made.get(use.value.number, ()):
            if (found := one.layout(use)) is not None:
                yield tuple(found.values())

    def look(self, use: Use, position: int) -> Scalar | None:
        """*use* read from a tensor that holds it."""
        number = use.value.number
        for one in self._stashed.get(number, ()):
            if (found := one.read(use, self.domain)) is not None:
                return found
        if use.value.kind == "guard" and any(r.value.number in self._stashed for r in self.values.reads(use.value)):
            return None
        for at, one in self._made.get(number, ()):
            if at < position or use.value is not self.root:
                found = one.read(use, self.domain)
                if found is not None:
                    return found
        return None

    def widen(self, name: str, padding: Padding, value: float) -> bool:
        """Let the tensor called *name* be read *padding* far, with *value* there; False where another value is."""
        known, there = self.pads.get(name, ((), value))
        if there != value:
            return False
        self.pads[name] = wider(known, padding), value
        return True

    def padded(self, scope: Scope) -> Scope:
        """*scope* with stashed tensors read as far beyond their boxes everywhere as somewhere."""

        def wide(tensor: Tensor) -> Tensor:
            if tensor.name not in self._names or tensor.name not in self.pads:
                return tensor
            padding, value = self.pads[tensor.name]
            return replace(tensor, padding=padding, value=value)

        return map_tensors(scope, wide)
