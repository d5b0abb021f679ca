r"""Common subexpressions of a forward and a backward pass, and both passes with a stash between them.

.. math::
   Y = f(v(X)),\quad dX = g(v(X), dY) \;\mapsto\; (Y, S) = (f(S), v(X)),\quad dX = g(S, dY)

Source: the CSE document: analysis (the largest common subexpressions), the forward pass with further outputs, the
backward pass with placeholders.  Which of the common values are stashed is ``plan``'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from einnet_explore.algebra.certificate import Certificate
from einnet_explore.ir import Program, Scope
from einnet_explore.stash.analysis import Analysis, analyse
from einnet_explore.stash.plan import Chosen
from einnet_explore.stash.splitting import certified, renamed, with_placeholders, with_stash


@dataclass(frozen=True)
class Stash:
    """One stashed value: the output of the forward pass called *name*, which the backward pass reads *reads* times."""

    name: str
    scope: Scope
    nbytes: int
    reads: int

    @property
    def evaluations(self) -> tuple[int, int]:
        """How often the two passes evaluate it together, without the stash and with it."""
        return 1 + self.reads, 1


@dataclass(frozen=True)
class Passes:
    """Both passes with a stash between them, and what it is worth.

    *operations*: of the backward pass; *before*: what they were.  *nbytes*: the bytes of the stash (float32), outputs
    that the forward pass has anyway left out.  *certificates*: that the forward pass computes the outputs that it did,
    and that the backward pass does if it is given what the forward pass stashes.  *forms*: what was compared, with the
    factors of sums inside and outside of these.
    """

    forward: Program
    backward: Program
    stashes: tuple[Stash, ...]
    operations: int
    before: int
    nbytes: int
    certificates: tuple[Certificate, Certificate]
    forms: tuple[Analysis, ...] = field(repr=False)

    @cached_property
    def curve(self) -> tuple[Chosen, ...]:
        """Recomputation against memory: every plan that no other beats in both, most bytes first."""
        return tuple(plan for _, plan in front(self.forms))

    def within(self, memory: int | None) -> Passes:
        """The passes under another budget; raises ValueError for a negative one."""
        return _best(self.forms, memory)

    def __repr__(self) -> str:
        names = ", ".join(s.name for s in self.stashes) or "nothing"
        return f"<stash of {names}: {self.nbytes} bytes, {self.before} operations backward become {self.operations}>"


def cse(forward: Program, backward: Program, memory: int | None = None) -> Passes:
    """Stash what both passes compute so that *backward* computes least, within *memory* bytes if that is given.

    The result's ``forward`` has the stash as further outputs, its ``backward`` reads them as inputs of these names.
    Raises ValueError for a negative *memory*, for tensors of one name and different shapes, and where a stashed value
    has the name of an output of *backward*.
    """
    return _best(tuple(analyse(forward, backward, factored) for factored in (False, True)), memory)


def front(forms: tuple[Analysis, ...]) -> tuple[tuple[Analysis, Chosen], ...]:
    """The plans of *forms* that no other beats in operations and bytes, most bytes first."""
    every = sorted(((f, p) for f in forms for p in f.curve), key=lambda e: (e[1].nbytes, e[1].operations))
    out: list[tuple[Analysis, Chosen]] = []
    for form, plan in every:
        if not out or plan.operations < out[-1][1].operations:
            out.append((form, plan))
    return tuple(reversed(out))


def _best(forms: tuple[Analysis, ...], memory: int | None) -> Passes:
    plans = [(form, form.problem.within(memory)) for form in forms]
    found, plan = min(plans, key=lambda p: (p[1].operations, p[1].nbytes))
    return split(found, plan, forms)


def split(found: Analysis, plan: Chosen, forms: tuple[Analysis, ...] = ()) -> Passes:
    """The passes of *found* with what *plan* says stashed between them; raises ValueError as ``cse`` does.

    *forms*: the analyses that it was chosen from, the first of them that of the passes as they are.
    """
    chosen = [found.common[n] for n in sorted(plan.stashed) if n in found.common]
    before, after = found.programs
    forward, tensors = with_stash(
        found.values, found.forward, found.parts[0], [(c.demand, c.name) for c in chosen], after.names()
    )
    backward, counts = with_placeholders(found.values, found.backward, found.forward, found.parts[1], tensors)
    backward = renamed(backward, _back(found, backward))
    stashes = tuple(
        Stash(one.tensor.name, common.scope, common.nbytes, counts[one.tensor.name])
        for common, one in zip(chosen, tensors, strict=True)
    )
    return Passes(
        forward,
        backward,
        stashes,
        plan.operations,
        (forms or (found,))[0].problem.outcome(()).operations,
        plan.nbytes,
        certified(before, after, forward, backward),
        forms or (found,),
    )


def optimize(src: Program, tgt: Program) -> Program:
    """*tgt* with every largest subexpression that *src* computes too replaced by a placeholder.

    It is called as in the CSE document; ``cse`` also gives the *src* whose outputs feed the placeholders.
    """
    return cse(src, tgt).backward


def _back(found: Analysis, backward: Program) -> dict[str, str]:
    """The names that equations of *backward* had, where these are free."""
    names = zip(found.backward.program.equations, found.programs[1].equations, strict=True)
    inputs = {t.name for t in backward.inputs}
    made = {e.name for e in backward.equations}
    return {n.name: o.name for n, o in names if n.name != o.name and o.name not in inputs and n.name in made}
