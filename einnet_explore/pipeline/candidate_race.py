"""Candidates that may be the fastest of one subprogram: what they are expected to take, and what first samples took."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial

from einnet_explore.cost import CostModel
from einnet_explore.pipeline.fusion import chain_cycles
from einnet_explore.pipeline.tuning_context import OriginalRun
from einnet_explore.pipeline.variants import bilinear_algorithm
from einnet_explore.rules import Derivation
from einnet_explore.runtime.arrays import Arrays
from einnet_explore.runtime.implementation_choice import clock_rate
from einnet_explore.runtime.measurement import LONG_CALL_SECONDS, MAX_FIRST_RUN_RATIO
from einnet_explore.runtime.program import BoundProgram, CompiledProgram


@dataclass(slots=True)
class Finalists:
    """Finalists that agree with the original, their runners, and the reasons why others were refused.

    *over_bound* are those of candidates in bfloat16 whose error exceeds the bound.
    """

    derivations: dict[str, Derivation] = field(default_factory=dict)
    runners: dict[str, RecalledRun] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    over_bound: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Form:
    """A *derivation* to be measured, and the *estimate* of its seconds, whose error depends on its *kind*.

    The estimate of a chain in blocks counts cycles, that of another program adds up its equations.
    """

    derivation: Derivation
    estimate: float
    kind: Hashable
    is_chain: bool = False


def chain_form(derivation: Derivation, threads: int, cost: CostModel, layout: str = "in blocks") -> Form:
    """Return a chain in blocks with the cycles of its stages, or the seconds in which its weights arrive by *cost*.

    Its kind is its *layout* and bilinear algorithm.
    """
    program = derivation.end
    seconds = max(chain_cycles(program, threads) / clock_rate(), cost.weight_seconds(program))
    return Form(derivation, seconds, (layout, bilinear_algorithm(program)), is_chain=True)


@dataclass(slots=True)
class RecalledRun:
    """A *run* on *feeds* that keeps its last results, to bring them back into a cache, as in a plan.

    There, a node before has just written the inputs, and memory for results was used not long ago.
    """

    run: Callable[[], Arrays]
    feeds: Arrays
    last: Arrays = field(default_factory=dict)

    def __call__(self) -> Arrays:
        """Run; what was kept is freed before, so that a session takes its memory again."""
        self.last = {}
        self.last = self.run()
        return self.last

    def recall_after(self, read_others: Callable[[], object]) -> None:
        """Call *read_others*, then read the last results, with those between in memory of its own, and the inputs."""
        read_others()
        near = (*self.last.values(), *self.feeds.values())
        if isinstance(self.run, BoundProgram):
            near = (self.run.context.memory, *self.run.context.inputs.values())
        for array in near:
            array.max(initial=0)


@dataclass(frozen=True, slots=True)
class Reference:
    """The *original* of a task and the outputs that it *wants*; *read_others* displaces weights before each run."""

    original: OriginalRun
    want: Arrays
    read_others: Callable[[], object] | None

    def run_of(self, run: Callable[[], Arrays]) -> RecalledRun:
        """Return *run* on the original's inputs."""
        return RecalledRun(run, self.original.feeds)

    def displace(self, call: RecalledRun) -> Callable[[], object] | None:
        """Return what brings the caches into the state before *call* in a plan, if anything does."""
        return None if self.read_others is None else partial(call.recall_after, self.read_others)


MAX_HOPEFUL_RATIO = 1.6
"""A form is tried if its estimate, corrected by those of the forms so far, is below this multiple of the least time:
estimates of forms of different kinds are off by such factors."""

MAX_KNOWN_KIND_RATIO = 1.1
"""The same for a form of a kind of which other tasks measured some: their least ratio to the estimates corrects its."""

MAX_SAMPLE_RATIO = 1.25
"""A form whose first sample takes more than this multiple of the least one is not measured in turns."""


@dataclass(slots=True)
class Race:
    """The samples of the forms so far, in *seconds* by name; *original_seconds*, of a sample too, are to beat.

    *ratios* are the least ratios of samples to estimates by kind, in the tasks before.
    """

    original_seconds: float
    ratios: dict[Hashable, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    samples: dict[Hashable, float] = field(default_factory=dict)
    """These ratios of the forms so far."""
    least: dict[bool, float] = field(default_factory=dict)
    """The least of them of chains in blocks, and of other programs."""

    def expected(self, form: Form) -> float:
        """Return the seconds that *form* is expected to take: its estimate, corrected.

        Cycles of chains and seconds of equations are wrong in different ways, so each corrects its own only.
        """
        return form.estimate * self.ratios.get(form.kind, self.least.get(form.is_chain, 1.0))

    def is_open_to(self, form: Form) -> bool:
        """Return whether *form* may be the fastest; the first one is tried in any case."""
        if not self.samples:
            return True
        margin = MAX_KNOWN_KIND_RATIO if form.kind in self.ratios else MAX_HOPEFUL_RATIO
        return self.expected(form) < margin * min((self.original_seconds, *self.seconds.values()))

    def enter(self, name: str, form: Form, seconds: float) -> None:
        """Note that a run of *form* took *seconds*."""
        self.seconds[name] = seconds
        if form.estimate:
            ratio = seconds / form.estimate
            self.samples[form.kind] = min(self.samples.get(form.kind, ratio), ratio)
            self.least[form.is_chain] = min(self.least.get(form.is_chain, ratio), ratio)

    def is_hopeless(self, once: float) -> bool:
        """Return whether a form whose first run took *once* seconds is too slow to be sampled: it also allocated."""
        least = min((self.original_seconds, *self.seconds.values()))
        return once > max(LONG_CALL_SECONDS, MAX_FIRST_RUN_RATIO * least)

    def losers(self) -> list[str]:
        """Return the names of forms that are clearly slower than another one."""
        least = min(self.seconds.values())
        return [name for name, seconds in self.seconds.items() if seconds > MAX_SAMPLE_RATIO * least]


def bind_feeds(run: Callable[[Arrays], Arrays], feeds: Arrays) -> Callable[[], Arrays]:
    """Return a call that runs on *feeds* as the nodes of a plan do: without copies, if a compiled program can."""
    return run.bind(feeds) if isinstance(run, CompiledProgram) else lambda: run(feeds)
