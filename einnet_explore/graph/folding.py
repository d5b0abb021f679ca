"""Work on weights alone, done once for the whole model: equal derivations of one array share their result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from einnet_explore.algebra.equations import weight_only
from einnet_explore.backends.program import compile_program
from einnet_explore.graph.anonymous import anonymous
from einnet_explore.graph.outputs import Array, Arrays
from einnet_explore.ir import VIEW, Equation, Program, Tensor, tensors


@dataclass
class Folder:
    """The folded weights of one model, by how they were made of which arrays."""

    threads: int = 1
    held: dict[tuple[str, tuple[int, ...]], Array] = field(default_factory=dict)
    shared: int = 0
    """How many results were used again."""
    _sources: list[Arrays] = field(default_factory=list)

    def fold(self, program: Program, constants: Arrays) -> tuple[Program, Arrays]:
        """*program* without its equations of weights only, and *constants* with what the others read of them.

        Views stay, since they take no memory; outputs stay, since somebody has to write them.  Raises BackendError
        where one cannot be evaluated.
        """
        known = weight_only(program)
        folded = {e.name: e for e in program.equations if e.name in known and e.name not in program.outputs}
        plain = {name for name, e in folded.items() if e.via is not None and e.via.operator == VIEW}
        rest = tuple(e for e in program.equations if e.name not in folded or e.name in plain)
        read = {t.name for e in rest for t in tensors(e.scope)}
        arrays = dict(constants)
        weights: dict[str, Tensor] = {}
        for name in (n for n in folded if n in read and n not in plain):
            arrays[name] = self._folded(_closure(program, name), constants)
            weights[name] = replace(folded[name].tensor, weight=True)
        inputs = (*program.inputs, *weights.values())
        needed = tuple(t for t in inputs if t.name in read or not t.weight)
        return (
            replace(program, inputs=needed, equations=rest),
            {t.name: arrays[t.name] for t in needed if t.name in arrays},
        )

    def _folded(self, program: Program, constants: Arrays) -> Array:
        """The one output of *program*, a function of *constants*."""
        given = {t.name: constants[t.name] for t in program.inputs}
        key = anonymous(program).signature, tuple(map(id, given.values()))
        if key in self.held:
            self.shared += 1
            return self.held[key]
        made = compile_program(program, self.threads, constants=given).run({})
        self._sources.append(given)  # an array that is let go might give its identity to another
        found = made[program.outputs[0]]
        self.held[key] = np.ascontiguousarray(found).reshape(found.shape)  # rank 0 would become rank 1
        return self.held[key]


def _closure(program: Program, name: str) -> Program:
    """What of *program* the equation called *name* needs, with it as the only output."""
    needed = {name}
    kept: list[Equation] = []
    for e in reversed(program.equations):
        if e.name in needed:
            kept.insert(0, e)
            needed |= {t.name for t in tensors(e.scope)}
    return Program(_in_order(program.inputs, kept), tuple(kept), (name,))


def _in_order(inputs: Iterable[Tensor], equations: Iterable[Equation]) -> tuple[Tensor, ...]:
    """The *inputs* that *equations* read, in the order in which they do: equal work has equal text."""
    held = {t.name: t for t in inputs}
    return tuple(
        held[name] for name in dict.fromkeys(t.name for e in equations for t in tensors(e.scope)) if name in held
    )
