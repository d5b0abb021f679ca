r"""Layouts between the subprograms of a plan: derived subprograms and ONNX Runtime's chosen together.

ONNX Runtime computes convolutions and pooling in a layout with blocks of channels, and turns values into it and out of
it at the borders of other nodes.  The original of a subprogram that is timed alone pays for all of its borders, in the
model only for those where the layout changes.  So what is faster by itself may be slower in a plan, and the other way
round: a subprogram between two derived ones saves their conversions.

The conversions of an original are those in the profile of its session.  Without them, it reads and writes blocks; a
derived program reads and writes rows.  The cheapest choice is a small assignment problem (``pipeline.layouts``): the
modes of a subprogram are its original, its derived program, and selections of its parts.  The choice is an estimate; it
is a proposal, which the whole model's time confirms.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter

import onnxruntime

from einnet_explore.analysis.counts import ELEMENT_BYTES
from einnet_explore.onnx_import.model import Model, ModelNode
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.layouts import PROHIBITIVE_SECONDS, Mode, Transform, assign_modes, total_seconds
from einnet_explore.pipeline.model_sessions import subgraph_session
from einnet_explore.pipeline.subprogram import Subprogram, TunedSubprogram
from einnet_explore.support.json_values import JsonObject, as_integers, as_items, as_number, as_object

ROWS, BLOCKED, MADE_BLOCKED = 0, 1, 2
"""The layouts: row-major, ONNX Runtime's blocks of channels, and such blocks that no conversion made."""

PROFILED_RUNS = 8
"""Runs of an original; of each conversion's times the lower quartile is taken."""

MAX_PROFILING_SECONDS = 0.2
"""Seconds after which no further run is begun."""

IMAGE_DIMENSIONS = 4
"""Dimensions of the values that ONNX Runtime stores in blocks of channels."""

MAX_COMBINED_PARTS = 4
"""Parts of a joined subprogram of which all selections are modes; of more, only the one with all that are faster."""


@dataclass(frozen=True, slots=True)
class Conversions:
    """The seconds of an original's conversions: by name of values that it *reads* and *makes*, and all *inside*."""

    reads: Mapping[str, float] = field(default_factory=dict)
    makes: Mapping[str, float] = field(default_factory=dict)
    inside: float = 0.0

    @property
    def at_borders(self) -> float:
        """The seconds of those of values that it reads and makes."""
        return sum(self.reads.values()) + sum(self.makes.values())

    def renamed(self, names: Mapping[str, str]) -> Conversions:
        """Return these conversions with other *names* of the values."""
        reads, makes = ({names[n]: s for n, s in side.items()} for side in (self.reads, self.makes))
        return Conversions(reads, makes, self.inside)

    def to_json(self) -> JsonObject:
        """Return them as they are remembered."""
        return {"reads": dict(self.reads), "makes": dict(self.makes), "inside": self.inside}

    @staticmethod
    def from_json(document: object) -> Conversions:
        """Return the conversions that ``to_json`` wrote."""
        found = as_object(document)
        sides = (as_object(found[side]) for side in ("reads", "makes"))
        reads, makes = ({name: as_number(seconds) for name, seconds in side.items()} for side in sides)
        return Conversions(reads, makes, as_number(found["inside"]))


@dataclass(frozen=True, slots=True)
class Region:
    """*nodes* of a model, and the values that they read (no weights) and make."""

    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]

    @staticmethod
    def of(subprogram: Subprogram) -> Region:
        """Return the nodes of *subprogram*."""
        inputs = zip(subprogram.inputs, subprogram.program.inputs, strict=True)
        reads = tuple(name for name, tensor in inputs if not tensor.weight)
        return Region(subprogram.nodes, reads, subprogram.outputs)

    def image_extents(self, model: Model) -> set[tuple[int, ...]]:
        """Return the extents of the images that it reads and makes: all but their batches and channels."""
        values = (model.values.get(name) for name in (*self.reads, *self.makes))
        shapes = (value.shape for value in values if value is not None and value.shape)
        return {shape[2:] for shape in shapes if len(shape) == IMAGE_DIMENSIONS}

    def value_names(self) -> dict[str, str]:
        """Return the values by names that regions of equal nodes share."""
        sides = (("read", self.reads), ("made", self.makes))
        return {f"{side} {n}": name for side, names in sides for n, name in enumerate(names)}


def measure_conversions(model: Model, region: Region, threads: int) -> Conversions:
    """Profile *region* in a session of its own; return its conversions, by value of *model*.

    Values of one shape are told apart by nothing but their side.  Raises Refused if ONNX Runtime refuses the nodes.
    """
    if not region.image_extents(model):
        return Conversions()
    events = _profile(model, region, threads)
    found = {op: _seconds_by_shape(events, op) for op in ("ReorderInput", "ReorderOutput")}
    reads, makes = (
        {name: known[shape] for name in names if (shape := model.shape(name)) in known}
        for known, names in zip(found.values(), (region.reads, region.makes), strict=True)
    )
    inner = (set(found[op]) - {model.shape(n) for n in side} for op, side in zip(found, (reads, makes), strict=True))
    return Conversions(reads, makes, sum(found[op][s] for op, shapes in zip(found, inner, strict=True) for s in shapes))


def _profile(model: Model, region: Region, threads: int) -> list[Mapping[str, object]]:
    """Return the events of some runs of *region*."""
    with tempfile.TemporaryDirectory() as folder:

        def profile(options: onnxruntime.SessionOptions) -> None:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")

        session = subgraph_session(model, region.nodes, threads, profile)
        feeds = random_model_inputs(session, 0)
        until = perf_counter() + MAX_PROFILING_SECONDS
        for _ in range(PROFILED_RUNS):
            session.run(None, feeds)
            if perf_counter() > until:
                break
        return [as_object(event) for event in json.loads(Path(session.end_profiling()).read_text())]


def _seconds_by_shape(events: Iterable[Mapping[str, object]], op: str) -> dict[tuple[int, ...], float]:
    """Return the seconds of a node of the operator *op*, a lower quartile, by the shape outside of blocks."""
    side = "input_type_shape" if op == "ReorderInput" else "output_type_shape"
    taken: dict[tuple[int, ...], list[float]] = {}
    for event in events:
        details = as_object(event.get("args") or {})
        if details.get("op_name") == op and str(event.get("name", "")).endswith("_kernel_time"):
            for shape in as_object(as_items(details[side])[0]).values():
                taken.setdefault(as_integers(shape), []).append(as_number(event["dur"]) * 1e-6)
    return {shape: sorted(seconds)[len(seconds) // 4] for shape, seconds in taken.items()}


@dataclass(frozen=True, slots=True)
class Unit:
    """A *subprogram* of the model that is no part of another one, and what is *tuned* of it, by number.

    These are the trials of itself and of its parts; nothing is known of the original's time if it was not tuned.
    """

    subprogram: Subprogram
    tuned: Mapping[int, tuple[Subprogram, TunedSubprogram]]


@dataclass(frozen=True, slots=True)
class _Choice:
    """A mode of a unit and the *numbers* of the derived subprograms in it."""

    numbers: tuple[int, ...]
    mode: Mode


def propose_selection(
    model: Model, units: Sequence[Unit], conversions_of: Callable[[Region], Conversions]
) -> tuple[int, ...] | None:
    """Return the numbers of the derived subprograms that are estimated to be fastest together.

    None if no original converts a value: what is fastest by itself is then fastest together.
    """
    every = [s for unit in units for s in (unit.subprogram, *(unit.subprogram.parts if unit.tuned else ()))]
    known = {s.nodes: conversions_of(Region.of(s)) for s in every}
    inside = {name for s in every for name in s.nodes}
    outside = [_region(model, node) for node in model.nodes if node.name not in inside]
    for region in outside:  # those that keep the extents of images, such as activations, convert nothing
        several = len(region.image_extents(model)) > 1
        known[region.nodes] = conversions_of(region) if several else Conversions()
    prices = _Prices(model, known.values())
    if not prices.measured:
        return None
    choices = [_choices(unit, known, prices) for unit in units]
    others = [_modes(model, 0.0, region, known[region.nodes]) for region in outside]
    results = Mode(0.0, {value.name: ROWS for value in model.outputs})
    operators = [*([choice.mode for choice in found] for found in choices), *others, [results]]
    chosen = assign_modes(operators, prices.transform)
    return tuple(sorted(n for found, m in zip(choices, chosen.modes, strict=False) for n in found[m].numbers))


def _region(model: Model, node: ModelNode) -> Region:
    return Region((node.name,), tuple(name for name in node.reads if name not in model.weights), node.results)


class _Prices:
    """The seconds of conversions of values of *model*: as measured, others in proportion to their bytes."""

    def __init__(self, model: Model, known: Iterable[Conversions]) -> None:
        self.model = model
        self.measured: dict[tuple[str, int], float] = {}
        for each in known:
            self.measured |= {(name, BLOCKED): seconds for name, seconds in each.reads.items()}
            self.measured |= {(name, ROWS): seconds for name, seconds in each.makes.items()}
        rates = [seconds / self._bytes(name) for (name, _), seconds in self.measured.items()]
        self.rate = median(rates) if rates else 0.0

    def transform(self, what: Transform) -> float:
        """Return the seconds of a conversion."""
        name, before, after = what
        if after == MADE_BLOCKED:
            return 0.0 if before == BLOCKED else PROHIBITIVE_SECONDS
        return self.measured.get((name, after), self.rate * self._bytes(name))

    def _bytes(self, name: str) -> int:
        return prod(self.model.shape(name)) * ELEMENT_BYTES


def _choices(unit: Unit, known: Mapping[tuple[str, ...], Conversions], prices: _Prices) -> list[_Choice]:
    """Return the choices of *unit*: its original, its derived program, and selections of its parts."""
    whole = unit.subprogram
    own = next(((n, t) for n, (s, t) in unit.tuned.items() if s.nodes == whole.nodes), None)
    originals = _originals(whole, own[1] if own else None, known[whole.nodes], prices.model)
    out = [_Choice((), mode) for mode in originals]
    if own and _is_usable(own[1]):
        out.append(_Choice((own[0],), _derived(whole, own[1])))
    parts = {s.nodes: (n, t) for n, (s, t) in unit.tuned.items() if s.nodes != whole.nodes}
    if own and parts:
        inside = sum(t.trial.seconds_before - known[nodes].at_borders for nodes, (_, t) in parts.items())
        rest = max(0.0, own[1].trial.seconds_before - known[whole.nodes].at_borders - inside)
        for choice in _selections_of_parts(whole, parts, known, prices):
            out.append(replace(choice, mode=replace(choice.mode, seconds=choice.mode.seconds + rest)))
    return out


def _is_usable(part: TunedSubprogram) -> bool:
    return part.derivation is not None and part.is_sound


def _originals(subprogram: Subprogram, tuned: TunedSubprogram | None, known: Conversions, model: Model) -> list[Mode]:
    """Return the modes of the original."""
    seconds = max(0.0, tuned.trial.seconds_before - known.at_borders) if tuned else 0.0
    return _modes(model, seconds, Region.of(subprogram), known)


def _modes(model: Model, seconds: float, region: Region, known: Conversions) -> list[Mode]:
    """Return the modes of nodes that ONNX Runtime runs; those that read rows, as a concatenation, may read blocks.

    They do so if all that they read is made in blocks.  They convert values inside, or none and keep the extents of
    images.  Others read what they do not convert in rows.
    """
    layouts = [
        {name: BLOCKED if name in converted else ROWS for name in names}
        for names, converted in ((region.reads, known.reads), (region.makes, known.makes))
    ]
    modes = [Mode(seconds, *layouts)]
    if not known.reads and (known.inside or len(region.image_extents(model)) == 1):
        read, made = (dict.fromkeys(n, b) for n, b in zip(layouts, (MADE_BLOCKED, BLOCKED), strict=True))
        modes.append(Mode(seconds - known.inside, read, made))
    return modes


def _derived(subprogram: Subprogram, tuned: TunedSubprogram) -> Mode:
    region = Region.of(subprogram)
    rows = (dict.fromkeys(names, ROWS) for names in (region.reads, region.makes))
    return Mode(tuned.trial.seconds_after, *rows)


def _selections_of_parts(
    whole: Subprogram,
    parts: Mapping[tuple[str, ...], tuple[int, TunedSubprogram]],
    known: Mapping[tuple[str, ...], Conversions],
    prices: _Prices,
) -> Iterable[_Choice]:
    """Yield the choices that derive some of the tuned *parts* of *whole*, with the conversions between all parts."""
    options: list[list[_Choice]] = []
    for part in whole.parts:
        number, tuned = parts.get(part.nodes, (-1, None))
        original = _Choice((), _originals(part, tuned, known[part.nodes], prices.model)[0])
        derived = [_Choice((number,), _derived(part, tuned))] if tuned and _is_usable(tuned) else []
        options.append([*derived, original])
    if len(options) > MAX_COMBINED_PARTS:
        options = [[min(found, key=lambda choice: choice.mode.seconds)] for found in options]
    for taken in product(*options):
        numbers = tuple(n for choice in taken for n in choice.numbers)
        if numbers:
            yield _Choice(numbers, _joined_mode(whole, [choice.mode for choice in taken], prices))


def _joined_mode(whole: Subprogram, modes: Sequence[Mode], prices: _Prices) -> Mode:
    """Return *modes* of the parts of *whole* as one; it reads a value in rows if one of them does."""
    outside = set(Region.of(whole).reads)
    wanted = {name: [mode.reads[name] for mode in modes if name in mode.reads] for name in outside}
    reads = {name: min(layouts, default=ROWS) for name, layouts in wanted.items()}
    made = {name: layout for mode in modes for name, layout in mode.makes.items()}
    seconds = total_seconds([*modes, Mode(0.0, {}, reads)], prices.transform)
    return Mode(seconds, reads, {name: made.get(name, ROWS) for name in whole.outputs})
