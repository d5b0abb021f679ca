"""Optimisation for a range of sizes: plans of a few sizes, which sizes run by which of them, and proofs of that.

A few sizes are tuned one after the other, the smallest first, by ``Optimiser``; they share one budget.  Subprograms
that gained at one size are tuned first at the next; those that do not depend on the size are one task, tuned once.

A dimension is *independent* if the model computes each element along it alone (``pipeline.batch_independence``).  Then
any size can run in chunks of tuned sizes, and one that was tuned in chunks of smaller ones, whose intermediate results
may stay in a cache.  Some sizes are measured in this way, in turns with the original; between them times are
interpolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import nan, prod
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx

from einnet_explore.onnx_import.contrib_operators import expand_contrib_operators
from einnet_explore.onnx_import.input_domains import Domains
from einnet_explore.onnx_import.load import integers_of, load_model, read_proto
from einnet_explore.onnx_import.model import Model, ModelError, with_domains
from einnet_explore.onnx_import.size_ranges import SizeRanges, SizeTuple
from einnet_explore.pipeline.baseline import MIN_SPEEDUP, conservative_speedup, measurement_rounds
from einnet_explore.pipeline.batch_independence import prove_independence
from einnet_explore.pipeline.optimised import Optimised
from einnet_explore.pipeline.optimised_sizes import (
    Chunks,
    IndependentDimension,
    OptimisedSizes,
    SizeChoice,
    find_chunks,
    with_size,
    without,
)
from einnet_explore.pipeline.optimiser import Optimiser, TuningProgress, default_budget
from einnet_explore.pipeline.plan import build_plan
from einnet_explore.pipeline.size_dispatch import with_declared_sizes
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, differences
from einnet_explore.runtime.measurement import settle_seconds, time_calls
from einnet_explore.runtime.onnx_weights import without_elements
from einnet_explore.support.errors import Refused
from einnet_explore.support.executors import WorkExecutor
from einnet_explore.support.wording import count_noun

MAX_MEASURED = 6
"""Sizes that were not tuned at which chunks are measured; times of others are interpolated."""

MAX_PROVED = 16
"""Sizes at which independence is proved, if the range has more: those, and those next to integers of the model."""

MIN_BUDGET_SECONDS = 1e-3
"""The budget of a size for which no time is left: what earlier runs found is used."""


@dataclass
class SizeOptimiser:
    """Optimisation of a *model*, a file or a protocol buffer, for the sizes of *ranges*, within *budget* seconds.

    ``run`` may be left at any time; ``result`` has the plans so far.
    """

    model: str | Path | onnx.ModelProto
    ranges: SizeRanges
    settings: Settings
    budget: float | None = None
    executor: WorkExecutor | None = None
    domains: Domains = field(default_factory=dict)
    interrupted: bool = False
    works: list[Optimiser] = field(default_factory=list, init=False)
    results: list[Optimised] = field(default_factory=list, init=False)
    _stage: str = field(default="reading the model", init=False)
    _began: float = field(default_factory=perf_counter, init=False)

    def status(self, interrupt: str = "Ctrl-C") -> str:
        """Say on one line which size is tuned and how far that is, as ``Optimiser.status`` does."""
        done = len(self.results)
        if done < len(self.works) and not self._stage:
            return f"{self.ranges.describe(self.ranges.tuned[done])} · {self.works[done].status(interrupt)}"
        return f"{self._stage} · {perf_counter() - self._began:.0f} s"

    def prepare(self) -> None:
        """Read and partition the model at each size that is tuned; share the budget."""
        for sizes in self.ranges.tuned:
            self.works.append(Optimiser(self._read(sizes), self.settings, executor=self.executor))
        if self.budget is None:
            self.budget = default_budget(len({s.task_name(w.model) for w in self.works for s in w.subprograms}))
        self._stage = ""

    def _read(self, sizes: SizeTuple) -> Model:
        """Return the model at *sizes*; raises ModelError, which names them."""
        try:
            model = load_model(self.model, self.ranges.shapes_at(sizes), rewrite=expand_contrib_operators)
            return with_domains(model, self.domains)
        except ModelError as why:
            raise ModelError(f"{why} (at {self.ranges.describe(sizes)})") from None

    @property
    def progress(self) -> str:
        """How many sizes have been tuned."""
        return f"{len(self.results)} of {count_noun(len(self.ranges.tuned), 'size')}"

    def run(self) -> Iterable[TuningProgress]:
        """Tune the sizes one after the other; each may take an equal part of the budget that is left.

        What earlier runs took is counted, as for a single size.
        """
        assert self.budget is not None
        spent, gains = 0.0, frozenset[tuple[str, ...]]()
        for n, work in enumerate(self.works):
            work.budget = max(MIN_BUDGET_SECONDS, (self.budget - spent) / (len(self.works) - n))
            work.gained_elsewhere = gains
            yield from work.run()
            spent += work.tuner.spent
            gains |= {part.nodes for part in work.parts if part.kept}
            self._finish(work)
            if self.interrupted:
                break

    def _finish(self, work: Optimiser) -> None:
        self.results.append(work.result())
        self.interrupted = self.interrupted or self.results[-1].interrupted

    def result(self) -> OptimisedSizes:
        """Return the plans so far, with what runs each size, measured and compared with the original."""
        if len(self.results) < len(self.works) and (self.interrupted or not self.results):
            work = self.works[len(self.results)]
            work.interrupted = self.interrupted
            self._finish(work)
        self._stage = "proving which sizes run in chunks"
        plans = dict(zip(self.ranges.tuned, self.results, strict=False))
        model = self.results[0].model
        any_size = without_elements(with_declared_sizes(model), model.original_weights)
        original = build_plan(replace(model, original_proto=any_size), {}, self.settings.threads)
        found = OptimisedSizes(self.ranges, plans, original, {}, budget=self.budget or 0.0)
        if len(self.ranges.every) > 1:  # those that were tuned, too, may be faster in chunks of smaller ones
            try:
                dimensions, dependent = self._independent(tuple(plans))
                found = replace(found, dimensions=dimensions, dependent=dependent)
            except KeyboardInterrupt:
                self.interrupted = True
        self._stage = "measuring sizes between the tuned ones"
        return self._choose(found)

    def _independent(self, tuned: tuple[SizeTuple, ...]) -> tuple[tuple[IndependentDimension, ...], dict[str, str]]:
        """Return the dimensions in which the model is independent, and why it is not in others."""
        found, dependent = list[IndependentDimension](), dict[str, str]()
        for n, dimension in enumerate(self.ranges.dimensions):
            axes = dict(dimension.places)
            if len(dimension.sizes) < 2:
                continue
            if len(axes) < len(dimension.places):
                dependent[dimension.name] = "it is twice in one input"
                continue
            for others in dict.fromkeys(without(sizes, n) for sizes in tuned):
                sizes = self._sizes_to_prove(n)
                first = with_size((*others[:n], 0, *others[n:]), n, sizes[0])
                try:
                    reference = self._read(first)
                    for size in sizes[1:]:
                        models = reference, self._read(with_size(first, n, size))
                        independence = prove_independence(models, axes, (sizes[0], size))
                except (Refused, ModelError) as why:
                    dependent[dimension.name] = str(why)
                    break
                found.append(IndependentDimension(n, others, independence, tuple(sizes)))
        return tuple(each for each in found if self.ranges.dimensions[each.number].name not in dependent), dependent

    def _sizes_to_prove(self, number: int) -> list[int]:
        """Return the sizes of a dimension at which independence is proved: all, or those where the form may change."""
        dimension = self.ranges.dimensions[number]
        sizes = dimension.sizes
        if len(sizes) > MAX_PROVED:
            spread = {sizes[round(n)] for n in np.linspace(0, len(sizes) - 1, MAX_PROVED)}
            near = {k + d for k in integers_of(read_proto(self.model)[1]) for d in (0, 1)}
            sizes = tuple(n for n in sizes if n in spread or n in near or n in dimension.tuned or n in sizes[:3])
        return [*sizes]

    def _choose(self, found: OptimisedSizes) -> OptimisedSizes:
        """Return *found* with what runs each size: measured at some, interpolated at others."""
        plans = found.plans
        seconds = {
            sizes: each.timings["after"].median for sizes, each in plans.items() if each.plan is not each.original
        }
        before = {sizes: each.timings["before"].median for sizes, each in plans.items()}
        ways = find_chunks(self.ranges, found.dimensions, seconds)
        between = [sizes for sizes in ways if sizes not in plans]
        wanted = [between[round(n)] for n in np.linspace(0, len(between) - 1, min(len(between), MAX_MEASURED))]
        wanted += [sizes for sizes in plans if sizes in ways and ways[sizes][1] != (sizes,)]
        measured: dict[SizeTuple, SizeChoice] = {}
        max_error, difference = max(MAX_RELATIVE_ERROR, *(each.max_error for each in plans.values())), 0.0
        try:
            for sizes in wanted:
                choice, error = self._measure(found, sizes, ways[sizes][1])
                if error > max_error:
                    why = f"outputs differ by {error:.1e} of the largest at {self.ranges.describe(sizes)}"
                    dependent = {self.ranges.dimensions[each.number].name: why for each in found.dimensions}
                    return self._choose(replace(found, dimensions=(), dependent=dependent))
                measured[sizes], difference = choice, max(difference, error)
                before.setdefault(sizes, choice.before)
        except KeyboardInterrupt:
            self.interrupted = True
        times = _Interpolation(before, beyond=nan)
        slower = _Interpolation({sizes: choice.after / ways[sizes][0] for sizes, choice in measured.items()})
        choices = {}
        for sizes in self.ranges.every:
            once, chunks = ways.get(sizes, (0.0, ()))
            choice = measured.get(sizes) or SizeChoice(sizes, chunks, times(sizes), once * slower(sizes), False)
            if sizes in plans:
                own = SizeChoice(sizes, (sizes,) * (sizes in seconds), before[sizes], seconds.get(sizes, 0.0), True)
                choice = max(own, measured.get(sizes, own), key=lambda each: each.speedup)
            choices[sizes] = choice if choice.speedup >= MIN_SPEEDUP else replace(choice, chunks=())
        return replace(found, choices=choices, max_difference=difference, interrupted=self.interrupted)

    def _measure(self, found: OptimisedSizes, sizes: SizeTuple, chunks: Chunks) -> tuple[SizeChoice, float]:
        """Measure *chunks* in turns with the original at *sizes*; also return the largest difference of outputs."""
        feeds = found.random_inputs(sizes)
        began = perf_counter()
        want = found.original.run(feeds)
        once = perf_counter() - began
        error = differences(want, found.run(feeds, chunks))[1]
        calls = {"before": lambda: found.original.run(feeds), "after": lambda: found.run(feeds, chunks)}
        times = time_calls(calls, measurement_rounds(once, 11), settle=settle_seconds(self.settings.threads))
        before = times["before"].median
        return SizeChoice(sizes, chunks, before, before / conservative_speedup(times), True), error


@dataclass(frozen=True, slots=True)
class _Interpolation:
    """Values between those of some sizes, linear in the product of the sizes; 1 if there are none.

    Outside they are *beyond*, or that of the nearest size.
    """

    values: Mapping[SizeTuple, float]
    beyond: float | None = None

    def __call__(self, sizes: SizeTuple) -> float:
        known = sorted((prod(each), value) for each, value in self.values.items())
        xs, ys = zip(*known, strict=True) if known else ((1,), (1.0,))
        return float(np.interp(prod(sizes), xs, ys, self.beyond, self.beyond))
