"""An optimised model for a range of sizes: plans of a few sizes, which also run others in chunks, and the original."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from math import inf, isnan
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from einnet_explore.onnx_import.model import Declared, Model
from einnet_explore.onnx_import.size_ranges import SizeRanges, SizeTuple, describe_sizes
from einnet_explore.pipeline.baseline import MIN_SPEEDUP, random_model_inputs
from einnet_explore.pipeline.batch_independence import Independence
from einnet_explore.pipeline.bundle import write_bundle
from einnet_explore.pipeline.optimised import (
    ORIGINAL_FILE,
    UNSELECTED_EXPORT,
    Optimised,
    html_report,
    warn_of_original,
    whole_file,
)
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.size_dispatch import Chunking, chunk_starts, dispatch_sizes
from einnet_explore.runtime.arrays import Array
from einnet_explore.support.json_values import JsonObject
from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import count_noun

Chunks = tuple[SizeTuple, ...]
"""The sizes of the plans that run a size one after the other; empty for the original."""


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """What runs inputs of *sizes*, and the seconds of the original *before* and of that *after*.

    They are measured, or interpolated between measured sizes; NaN beyond these, as after an interrupt.
    """

    sizes: SizeTuple
    chunks: Chunks
    before: float
    after: float
    is_measured: bool

    @property
    def speedup(self) -> float:
        """The speedup over the original."""
        return self.before / self.after if self.chunks else 1.0


@dataclass(frozen=True, slots=True)
class IndependentDimension:
    """A dimension, by number, in which the model is independent at the sizes *others* of the other dimensions.

    It was proved at the sizes *proved*.
    """

    number: int
    others: SizeTuple
    independence: Independence
    proved: tuple[int, ...]


def without(sizes: SizeTuple, number: int) -> SizeTuple:
    """Return *sizes* without dimension *number*."""
    return (*sizes[:number], *sizes[number + 1 :])


def with_size(sizes: SizeTuple, number: int, size: int) -> SizeTuple:
    """Return *sizes* with *size* in dimension *number*."""
    return (*sizes[:number], size, *sizes[number + 1 :])


def cheapest_chunks(most: int, seconds: Mapping[int, float]) -> list[tuple[float, tuple[int, ...]]]:
    r"""Return the least seconds and the chunks for each size up to *most*, from the *seconds* of plans by size.

    .. math::  t(n) = \min_c \big( t_c + t(\max(0, n - c)) \big)

    Chunks are in falling order: the last one may exceed the size.
    """
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for n in range(1, most + 1):
        ways = ((seconds[c] + best[max(0, n - c)][0], (*best[max(0, n - c)][1], c)) for c in seconds)
        best.append(min(ways, key=lambda way: (way[0], len(way[1]))))
    return [(total, tuple(sorted(chunks, reverse=True))) for total, chunks in best]


def find_chunks(
    ranges: SizeRanges, dimensions: Iterable[IndependentDimension], seconds: Mapping[SizeTuple, float]
) -> dict[SizeTuple, tuple[float, Chunks]]:
    """Return the least *seconds* of plans, by size, that run each of the sizes that they can run, and these plans."""
    found: dict[SizeTuple, tuple[float, Chunks]] = {sizes: (once, (sizes,)) for sizes, once in seconds.items()}
    for each in dimensions:
        d = each.number
        plans = {sizes[d]: once for sizes, once in seconds.items() if without(sizes, d) == each.others}
        if not plans:
            continue
        sizes = ranges.dimensions[d].sizes
        best = cheapest_chunks(sizes[-1], plans)
        for n in sizes:
            whole = (*each.others[:d], n, *each.others[d:])
            total, chunks = best[n]
            if whole not in found or total * MIN_SPEEDUP < found[whole][0]:
                found[whole] = total, tuple(with_size(whole, d, c) for c in chunks)
    return found


@dataclass(frozen=True)
class OptimisedSizes:
    """A model optimised for a range of sizes: call it with inputs by name, ``report`` it, ``save`` it.

    *plans* are those of the tuned sizes, *choices* what runs each size of the range; *dimensions* are the independent
    ones, along which sizes can run in chunks, and *dependent* says why others are not.  Sizes outside the range run by
    the *original* operators.
    """

    ranges: SizeRanges
    plans: Mapping[SizeTuple, Optimised]
    original: ExecutionPlan = field(repr=False)
    choices: Mapping[SizeTuple, SizeChoice]
    dimensions: tuple[IndependentDimension, ...] = ()
    dependent: Mapping[str, str] = field(default_factory=dict)
    max_difference: float = 0.0
    """The largest difference from the original at the sizes that were not tuned, relative to the largest output."""
    interrupted: bool = False
    budget: float = inf
    """The seconds within which tuning tasks could begin, of all sizes and of earlier runs."""

    @property
    def model(self) -> Model:
        """The model at the first of the tuned sizes."""
        return self._first.model

    @property
    def _first(self) -> Optimised:
        return next(iter(self.plans.values()))

    @cached_property
    def _declared(self) -> Mapping[str, Declared]:
        return {value.name: self.model.dynamic.get(value.name, value.shape or ()) for value in self.model.inputs}

    def __call__(self, **inputs: npt.ArrayLike) -> dict[str, Array]:
        """The outputs by name, at any sizes; raises ValueError on an input that is missing or that the model excludes.

        Sizes outside the range take the time of the original.
        """
        arrays = {}
        for value in self.model.inputs:
            if value.name not in inputs:
                raise ValueError(f"input {value.name} is missing, expected {', '.join(self._declared)}")
            arrays[value.name] = array = np.asarray(inputs[value.name], dtype=value.dtype)
            dims = self._declared[value.name]
            if array.ndim != len(dims) or any(
                isinstance(d, int) and d != n for d, n in zip(dims, array.shape, strict=True)
            ):
                wanted = ", ".join(str("any" if d is None else d) for d in dims)
                raise ValueError(f"input {value.name} has shape {array.shape}, expected ({wanted})")
        return self.run(arrays, self.chunks_of(arrays))

    def chunks_of(self, arrays: Mapping[str, Array]) -> Chunks:
        """Return the plans that run *arrays*; none if the original does."""
        shapes = {name: array.shape for name, array in arrays.items()}
        sizes = self.ranges.sizes_of(shapes)
        choice = self.choices.get(sizes)
        return choice.chunks if choice and shapes == self.ranges.at(self._first_shapes, sizes) else ()

    @cached_property
    def _first_shapes(self) -> dict[str, tuple[int, ...]]:
        return {value.name: value.shape or () for value in self.model.inputs}

    def run(self, arrays: Mapping[str, Array], chunks: Chunks) -> dict[str, Array]:
        """Return the outputs for *arrays*, computed by plans in *chunks* or by the original."""
        if not chunks:
            return self.original.run(arrays)
        sizes = self.ranges.sizes_of({name: array.shape for name, array in arrays.items()})
        if chunks == (sizes,):
            return self.plans[sizes].plan.run(arrays)
        along = next(
            each
            for each in self.dimensions
            if {without(chunk, each.number) for chunk in chunks} == {without(sizes, each.number)} == {each.others}
        )
        n, rows = sizes[along.number], [chunk[along.number] for chunk in chunks]
        made = [
            self.plans[chunk].plan.run(_rows(arrays, along.independence.inputs, start, start + size, n))
            for chunk, start, size in zip(chunks, chunk_starts(rows), rows, strict=True)
        ]
        return {name: _join([part[name] for part in made], along.independence, name, n) for name in made[0]}

    def random_inputs(self, sizes: SizeTuple, seed: int = 0) -> dict[str, Array]:
        """Return random inputs of these *sizes*, equal for equal *seed*."""
        shapes = self.ranges.at(self._first_shapes, sizes)
        inputs = tuple(replace(value, shape=shapes[value.name]) for value in self.model.inputs)
        return random_model_inputs(replace(self.model, inputs=inputs), seed)

    def save_bundle(self, path: str | Path) -> None:
        """Write the plans to the folder *path* as one bundle (docs/deploying.md), with the chunks of other sizes.

        Raises as ``Optimised.save_bundle`` does.
        """
        bundled = {sizes: each.bundled for sizes, each in self.plans.items()}
        chosen = {sizes: choice.chunks for sizes, choice in self.choices.items()}
        if any(each.in_onnxruntime for each in self.plans.values()):  # the choices are those of other plans
            chosen = self._faster_chunks(
                {s: each.timings["after"].median for s, each in bundled.items() if each.plan is not each.original}
            )
        plans, chunkings = self._used(chosen)
        used = plans or [next(iter(bundled))]
        write_bundle(path, *(bundled[sizes].bundled_plan() for sizes in used), chunkings=chunkings)

    def onnx(self) -> onnx.ModelProto:
        """Return one model in standard operators, with the rewrites that are faster in ONNX Runtime at each size.

        If there are none, it is the original.  Raises Refused.
        """
        exported = {sizes: each for sizes, each in self.plans.items() if each.replacements}
        plans, chunkings = self._used(
            self._faster_chunks(
                {
                    size: each.timings["before"].median / (each.exported.speedup or 1.0)
                    for size, each in exported.items()
                }
            )
        )
        shapes = [self.ranges.at(self._first_shapes, sizes) for sizes in plans]
        made = [self.plans[sizes].onnx() for sizes in plans]
        return dispatch_sizes(self.model, list(zip(shapes, made, strict=True)), chunkings)

    def _faster_chunks(self, seconds: Mapping[SizeTuple, float]) -> dict[SizeTuple, Chunks]:
        """Return the chunks of each size that are faster than the original if plans take these *seconds*."""
        found = find_chunks(self.ranges, self.dimensions, seconds)
        return {
            sizes: found[sizes][1] if sizes in found and found[sizes][0] * MIN_SPEEDUP < choice.before else ()
            for sizes, choice in self.choices.items()
        }

    def _used(self, chunks: Mapping[SizeTuple, Chunks]) -> tuple[list[SizeTuple], list[Chunking]]:
        """Return the plans of *chunks*, and the chunks of sizes without a plan of their own."""
        used = {plan for those in chunks.values() for plan in those}
        return [sizes for sizes in self.plans if sizes in used], self.chunkings(chunks)

    def chunkings(self, chunks: Mapping[SizeTuple, Chunks]) -> list[Chunking]:
        """Return the *chunks* of sizes without a plan of their own, along each independent dimension."""
        out = []
        for each in self.dimensions:
            d = each.number
            mine = {
                sizes[d]: tuple(chunk[d] for chunk in those)
                for sizes, those in chunks.items()
                if without(sizes, d) == each.others and {without(chunk, d) for chunk in those} == {each.others}
                if those != (sizes,)
            }
            if mine:
                some = (*each.others[:d], next(iter(mine)), *each.others[d:])
                out.append(Chunking(self.ranges.at(self._first_shapes, some), each.independence, mine))
        return out

    def onnx_bytes(self) -> bytes:
        """Return ``onnx()`` as the content of a file: without rewrites, that of the original file if it is whole."""
        content = None if self.replacements else whole_file(self.model.path)
        return self.onnx().SerializeToString() if content is None else content

    @property
    def is_file_selected(self) -> bool:
        """Whether the rewrites of all plans have been selected: if not, ``save`` selects them, which takes longer."""
        return all(each.is_file_selected for each in self.plans.values())

    @property
    def replacements(self) -> int:
        """The number of rewrites in the file, of all plans; the first call selects them."""
        return sum(len(each.replacements) for each in self.plans.values())

    def save(self, path: str | Path) -> None:
        """Write ``onnx()`` to *path*, whole or not at all; warns if that is the original model."""
        write_atomically(path, self.onnx_bytes())
        if not self.replacements:
            warn_of_original(path, any(part.kept for each in self.plans.values() for part in each.bundled.parts))

    def records(self) -> dict[str, JsonObject]:
        """Return the records of the derivations of all plans, by name; folders are the plans' sizes."""
        return {
            f"{describe_tuple(sizes)}/{name}": record
            for sizes, each in self.plans.items()
            for name, record in each.records().items()
        }

    def report(self) -> JsonObject:
        """The JSON of ``optimize`` for a range of sizes."""
        names = [each.name for each in self.ranges.dimensions]
        return {
            "model": self.model.path,
            "device": "cpu",
            "dimensions": [
                {
                    "name": each.name,
                    "sizes": list(each.sizes),
                    "tuned": list(each.tuned),
                    "independent": [
                        {"others": list(d.others), "proved": list(d.proved)} for d in self.dimensions if d.number == n
                    ],
                    "why_dependent": self.dependent.get(each.name, ""),
                }
                for n, each in enumerate(self.ranges.dimensions)
            ],
            "sizes": [
                {
                    "sizes": dict(zip(names, each.sizes, strict=True)),
                    "plans": [list(chunk) for chunk in each.chunks],
                    "seconds_before": (before := None if isnan(each.before) else each.before),
                    "seconds_after": each.after if each.chunks else before,
                    "speedup": each.speedup,
                    "measured": each.is_measured,
                }
                for each in self.choices.values()
            ],
            "plans": [{"sizes": list(sizes), **each.report()} for sizes, each in self.plans.items()],
            "max_rel_error": self._largest_difference,
            "interrupted": self.interrupted,
        }

    def rows(self) -> list[list[str]]:
        """Return a table: a row for each run of sizes that have one kind of plans, with the first and last of them."""
        names = ", ".join(each.name for each in self.ranges.dimensions)
        rows = [[names, "before", "after", "ratio", "run by"]]
        for _, group in groupby(self.choices.values(), key=lambda each: (self._describe(each), each.is_measured)):
            for each in _ends(list(group)):
                cells = [f"{each.before * 1e3:.3f} ms", f"{each.after * 1e3:.3f} ms", f"{each.speedup:.2f}"]
                if not each.chunks:
                    cells[1] = cells[0]
                how = "" if each.is_measured else " (interpolated)"
                if isnan(each.before):
                    cells, how = ["", "", ""], " (not measured)"
                rows.append([", ".join(map(str, each.sizes)), *cells, self._describe(each) + how])
        return rows

    def _describe(self, choice: SizeChoice) -> str:
        """Say what runs the sizes of *choice*."""
        if not choice.chunks:
            return "the original"
        if choice.chunks == (choice.sizes,):
            return "its plan"
        return "plans of " + " + ".join(describe_tuple(chunk) for chunk in choice.chunks)

    @property
    def speedups(self) -> tuple[float, float]:
        """The least and the largest speedup over the original at the sizes of the range."""
        found = [each.speedup for each in self.choices.values()]
        return min(found), max(found)

    def summary(self) -> str:
        """Return one sentence with the gain and the error."""
        low, high = self.speedups
        return (
            f"{' and '.join(map(str, self.ranges.dimensions))}: {low:.2f} to {high:.2f} times as fast; largest "
            f"difference {self._largest_difference:.1e} of the largest output"
        )

    @property
    def is_correct(self) -> bool:
        """Whether the outputs of all plans agree with the original's."""
        return all(each.is_correct for each in self.plans.values())

    @property
    def _largest_difference(self) -> float:
        return max(self.max_difference, *(each.errors[1] for each in self.plans.values()))

    def conclusions(
        self, bundle: str = 'save_bundle("DIR")', file: str = 'save("OUT.onnx")', budget: str = "budget="
    ) -> list[str]:
        """Return lines for the head of the report, as ``Optimised.conclusions`` does."""
        low, high = self.speedups
        count, threads = len(self.choices), count_noun(self._first.threads, "thread")
        rival = f"your model in ONNX Runtime ({threads})"
        if high == 1.0:
            lines = [f"nothing gained: keep your file. Nothing was faster than {rival} at any size", *self._proofs()]
            return [*lines, *self._later(budget)]
        original = sum(not each.chunks for each in self.choices.values())
        own, tuned = sum(each.chunks == (each.sizes,) for each in self.choices.values()), len(self.plans)
        return [
            f"{low:.2f} to {high:.2f} times as fast as {rival} at {count_noun(count, 'size')}",
            f"sizes run by plans of their own: {own}, in chunks: {count - own - original}, by the original: {original} "
            f"({count_noun(tuned, 'size')} tuned)",
            *self._proofs(),
            f"largest difference {self._largest_difference:.1e} of the largest output",
            f"deploy this: {bundle}: a folder that ONNX Runtime runs from any language",
            f"as one ONNX file ({file}): {self._describe_file()}",
            *self._later(budget),
        ]

    def _later(self, budget: str) -> list[str]:
        """Say what was not tuned, and how to continue; *budget* is what is written before the seconds of a budget."""
        late = sum(len(each.untuned) for each in self.plans.values())
        missing = len(self.ranges.tuned) - len(self.plans)
        if self.interrupted:
            untuned = f"; {count_noun(missing, 'size')} not tuned" if missing else ""
            return [f"interrupted: this is the best of what was found by then{untuned}. A second run continues"]
        if late:
            what = f"{count_noun(late, 'subprogram')} not tuned"
            return [f"{what}: repeat with {budget}{2 * self.budget:g}, which continues"]
        return []

    def _describe_file(self) -> str:
        """Say what the file has, if its rewrites are selected."""
        if not self.is_file_selected:
            return UNSELECTED_EXPORT.why
        return count_noun(self.replacements, "rewrite") if self.replacements else f"your original: {ORIGINAL_FILE}"

    def _proofs(self) -> list[str]:
        """Say along which dimensions the model is independent, and why not along others."""
        lines = []
        for n, dimension in enumerate(self.ranges.dimensions):
            proved = sorted({size for each in self.dimensions if each.number == n for size in each.proved})
            if proved:
                lines.append(
                    f"{dimension.name}: the model is independent in each element, proved at {describe_sizes(proved)}: "
                    "sizes without a plan run in chunks where that is faster"
                )
            elif (why := self.dependent.get(dimension.name)) and set(dimension.sizes) - {s[n] for s in self.plans}:
                lines.append(f"{dimension.name}: sizes that were not tuned run by the original: {why}")
        return lines

    def __repr__(self) -> str:
        return f"<OptimisedSizes: {self.summary()}>"

    def _repr_html_(self) -> str:
        return html_report(self.conclusions(), self.rows())


def describe_tuple(sizes: SizeTuple) -> str:
    """``4``, or ``4x128`` for two dimensions"""
    return "x".join(map(str, sizes))


def _ends(choices: Sequence[SizeChoice]) -> Sequence[SizeChoice]:
    """Return the first and the last of *choices*."""
    return choices if len(choices) < 3 else (choices[0], choices[-1])


def _rows(arrays: Mapping[str, Array], axes: Mapping[str, int], start: int, stop: int, count: int) -> dict[str, Array]:
    """Return *arrays* with the rows from *start* to *stop* along *axes*; beyond the *count* rows is the last one."""
    rows = slice(start, stop) if stop <= count else np.minimum(np.arange(start, stop), count - 1)
    return {
        name: array[(*[slice(None)] * axes[name], rows)] if name in axes else array for name, array in arrays.items()
    }


def _join(parts: Sequence[Array], independence: Independence, name: str, count: int) -> Array:
    """Return output *name* for *count* rows from those of the chunks."""
    batch = independence.outputs[name]
    if batch is None:
        return parts[0]
    whole = np.concatenate(parts, axis=batch.axis)
    return whole[(*[slice(None)] * batch.axis, slice(0, count * batch.step))]
