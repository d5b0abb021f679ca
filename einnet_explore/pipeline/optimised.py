"""The optimised model: a callable program, its report, and the same program as ONNX."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import external_data_helper

from einnet_explore.ir import Program
from einnet_explore.onnx_export.export import Replacement, rewrite_model
from einnet_explore.onnx_import.input_domains import describe_random_inputs
from einnet_explore.onnx_import.load import restore_folded_nodes
from einnet_explore.onnx_import.model import Model, copy_message
from einnet_explore.pipeline.assembly import PlanForm, PlanProgram
from einnet_explore.pipeline.baseline import StoredModel, conservative_speedup, plan_speedup, random_model_inputs
from einnet_explore.pipeline.bundle import BundledPlan, write_bundle
from einnet_explore.pipeline.given_inputs import describe_inputs
from einnet_explore.pipeline.partition import Skipped
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.subprogram import TunedSubprogram, step_certificates
from einnet_explore.pipeline.tuning_context import TuningHistory
from einnet_explore.rules import Derivation
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.measurement import Timing, time_calls
from einnet_explore.strategies.candidate import to_record
from einnet_explore.strategies.rounding_levels import LEVELS
from einnet_explore.support.json_values import JsonObject, as_integers, as_items, as_number
from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import count_noun, printable

_LEFT_ALIGNED = "style='text-align:left'"


PlanMaker: TypeAlias = "Callable[[Sequence[int]], ExecutionPlan]"
"""Makes the plan with the derivations of some subprograms, by number; raises ValueError if that is impossible."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """The *speedup* that the derivation of *nodes* (an entry for each of the equal subprograms) brings to the model.

    It is the time of the plan without the derivation over that of the plan, measured in turns.
    """

    nodes: tuple[tuple[str, ...], ...]
    speedup: float

    def to_json(self) -> JsonObject:
        """Return one entry of ``attribution`` in the JSON of ``optimize``."""
        return {"nodes": [list(names) for names in self.nodes], "speedup": self.speedup}


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """The plan with one of its *groups* of equal subprograms left out.

    Measured speedups are remembered in *history*, by the *key* of the plan.
    """

    groups: tuple[tuple[int, ...], ...]
    plan_of: PlanMaker
    history: TuningHistory
    key: tuple[object, ...]

    def known(self, group: tuple[int, ...]) -> float | None:
        """Return the speedup of *group* that this run or an earlier one measured."""
        found = self.history.get("attribution", *self.key, group)
        return None if found is None else as_number(found)

    def measure(self, group: tuple[int, ...], plan: ExecutionPlan, feeds: Arrays, once: float) -> float:
        """Measure the speedup of *plan*, a run of which takes *once* seconds, over the plan without *group*.

        Raises ValueError if that plan cannot be made.
        """
        rest = [n for other in self.groups if other != group for n in other]
        speedup = plan_speedup(self.plan_of(rest), plan, feeds, once, {"after": once})
        self.history.record(speedup, "attribution", *self.key, group)
        return speedup


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """The file: its *speedup* in ONNX Runtime (None: not measured), and *why*.

    *parts* are the numbers of the derived subprograms in it, assembled in *form*.
    """

    speedup: float | None
    why: str
    parts: tuple[int, ...] = ()
    form: PlanForm = PlanForm.EXPORTED

    def describe(self) -> str:
        """Say how fast the file is, or that it is the original."""
        if self.speedup is None:
            return self.why
        return f"{self.speedup:.2f} times as fast in ONNX Runtime" if self.parts else f"your original: {ORIGINAL_FILE}"

    def lacks(self, kept: int) -> str:
        """Say that a file that is not the original is slower or lacks some of the *kept* derivations."""
        if self.speedup is None:
            return f"its speed in ONNX Runtime is not known ({self.why})"
        if 0 < len(self.parts) < kept:
            return (
                f"it has {len(self.parts)} of {count_noun(kept, 'derivation')} and runs at {self.speedup:.2f} of the "
                "original's speed in ONNX Runtime: the other derivations are faster in the plan only"
            )
        return (
            "" if self.speedup >= 1 else f"in plain ONNX Runtime it runs at {self.speedup:.2f} of the original's speed"
        )

    def to_json(self) -> list[object]:
        """Return the selection as it is remembered."""
        return [self.speedup, self.why, self.parts, self.form]

    @staticmethod
    def from_json(document: object) -> ExportSelection:
        """Return the selection that ``to_json`` wrote."""
        speedup, why, parts, form = as_items(document)
        measured = None if speedup is None else as_number(speedup)
        return ExportSelection(measured, str(why), as_integers(parts), PlanForm(str(form)))


ORIGINAL_EXPORT = ExportSelection(1.0, "no rewrite is kept: the file is the original")
"""The file if no derivation is kept."""

ORIGINAL_FILE = "no rewrite is faster in plain ONNX Runtime"
"""Why the file is the original model."""

UNSELECTED_EXPORT = ExportSelection(None, "its rewrites are selected when the file is written")
"""The selection of a file whose rewrites have not been selected."""


@dataclass
class ExportedFile:
    """The file of standard operators: its rewrites are selected, by measurement, when they are first asked for.

    *select* selects them and *rewrite* returns them; the selection may be *known* already.
    """

    select: Callable[[], ExportSelection]
    rewrite: Callable[[ExportSelection], tuple[Replacement, ...]]
    known: ExportSelection | None = None

    @property
    def selection(self) -> ExportSelection:
        """The selection, which is made now if it is not known."""
        if self.known is None:
            self.known = self.select()
        return self.known

    @cached_property
    def replacements(self) -> tuple[Replacement, ...]:
        """The rewrites of the selection."""
        return self.rewrite(self.selection)


@dataclass(frozen=True)
class Optimised:
    """An optimised model: call it with inputs by name, ``report`` it, ``benchmark`` it, ``save`` it."""

    model: Model
    plan: ExecutionPlan
    original: ExecutionPlan
    parts: tuple[TunedSubprogram, ...]
    file: ExportedFile = field(repr=False)
    skipped: tuple[Skipped, ...]
    timings: Mapping[str, Timing]
    errors: tuple[float, float]
    max_error: float
    search_seconds: float
    folded_weights: int
    fused_eoperators: int
    threads: int
    interrupted: bool = False
    form: str = "joined"
    programs: tuple[PlanProgram, ...] = ()
    feeds: Mapping[str, Array] = field(default_factory=dict, repr=False)
    without: LeaveOneOut | None = field(default=None, repr=False)
    stored: StoredModel | None = None
    untuned: tuple[tuple[str, ...], ...] = ()
    """The nodes of each subprogram that was not tuned in time; ``skipped`` has them too."""
    in_onnxruntime: Optimised | None = None
    """The fastest result of ONNX Runtime alone, if another host runs nodes of the plan; bundles are of its plan."""
    inputs: str = ""
    """The source of given inputs on which the model was compared and timed, empty for random ones."""
    region_ends: tuple[Skipped, ...] = ()
    """Nodes before which a region of sums of products ends, and why."""
    budget: float = inf
    """The seconds within which tuning tasks could begin, earlier runs counted."""
    progress: tuple[tuple[float, float], ...] = ()
    """The speedup by the seconds since the start: estimates while subprograms are tuned, and last the measured one."""

    def __call__(self, **inputs: npt.ArrayLike) -> dict[str, Array]:
        """The outputs by name; raises ValueError on a missing or misshapen input."""
        expected = {v.name: v for v in self.model.inputs}
        for name, value in expected.items():
            if name not in inputs:
                raise ValueError(f"input {name} is missing, expected {', '.join(expected)}")
            if np.shape(inputs[name]) != value.shape:
                raise ValueError(f"input {name} has shape {np.shape(inputs[name])}, expected {value.shape}")
        return self.plan.run({n: np.asarray(inputs[n], dtype=v.dtype) for n, v in expected.items()})

    def random_inputs(self, seed: int = 0) -> dict[str, Array]:
        """Return random inputs of the right names, shapes and types, equal for equal *seed*."""
        return random_model_inputs(self.model, seed)

    @property
    def speedup(self) -> float:
        """The speedup of the plan over the original, measured in turns; exactly 1 if nothing was kept.

        It is the smaller of two: the median ratio of rounds, and the ratio of lower quartiles.
        """
        return conservative_speedup(self.timings)

    @property
    def exported(self) -> ExportSelection:
        """The selection of rewrites for the file: the first call measures them in ONNX Runtime."""
        return self.file.selection

    @property
    def replacements(self) -> tuple[Replacement, ...]:
        """The rewrites of the file: the first call selects them, as ``exported`` does."""
        return self.file.replacements

    @property
    def is_file_selected(self) -> bool:
        """Whether the rewrites of the file have been selected: if not, ``save`` selects them, which takes longer."""
        return self.file.known is not None

    @property
    def is_correct(self) -> bool:
        """Whether the outputs agree with the original's within the bound."""
        return self.errors[1] <= self.max_error

    @property
    def bundled(self) -> Optimised:
        """The result of which bundles have the plan: one for ONNX Runtime alone."""
        return self.in_onnxruntime or self

    def report(self) -> JsonObject:
        """The JSON of ``optimize``; the speedup of the file is known after ``save``."""
        export = self.file.known or UNSELECTED_EXPORT
        return {
            "model": self.model.path,
            "device": "cpu",
            "threads": self.threads,
            "seconds_before": self.timings["before"].median,
            "seconds_after": self.timings["after"].median,
            "iqr_before": self.timings["before"].iqr,
            "iqr_after": self.timings["after"].iqr,
            "speedup": self.speedup,
            "max_abs_error": self.errors[0],
            "max_rel_error": self.errors[1],
            "search_seconds": self.search_seconds,
            "progress": [{"seconds": seconds, "speedup": speedup} for seconds, speedup in self.progress],
            "subprograms": [part.to_json() for part in self.parts],
            "folded_weights": self.folded_weights,
            "fused_eoperators": self.fused_eoperators,
            "skipped": [{"node": s.node, "why": s.why} for s in self.skipped],
            "region_ends": [{"node": s.node, "why": s.why} for s in self.region_ends],
            "interrupted": self.interrupted,
            "form": self.form,
            "programs": [part.to_json() for part in self.programs],
            "export": {
                "speedup": export.speedup,
                "why": export.why,
                "nodes": [list(self.parts[n].nodes) for n in export.parts],
            },
            "host": self.plan.host or "ONNX Runtime",
            "hosted": list(self.plan.hosted),
            "bundle": {
                "speedup": self.bundled.speedup,
                "nodes": [list(part.nodes) for part in self.bundled.parts if part.kept],
            },
            "inputs": self.inputs or "random",
            "stored": self.stored and {**asdict(self.stored), "types": list(self.stored.types)},
        }

    def attribution(self) -> tuple[Attribution, ...]:
        """Measure the plan without each kept derivation in turn (equal subprograms together) against the plan.

        Measurements of an earlier run of the same plan are reused.
        """
        return tuple(self.attributions())

    def attributions(self, seconds: float = inf) -> Iterable[Attribution]:
        """Yield ``attribution`` one by one, most gain first; derivations that no plan can do without are left out.

        No new measurement begins after *seconds*.
        """
        if self.without is None:
            return
        until = perf_counter() + seconds
        for group in sorted(self.without.groups, key=lambda group: -sum(self.parts[n].gain for n in group)):
            speedup = self.without.known(group)
            if speedup is None:
                if perf_counter() > until:
                    continue
                try:
                    speedup = self.without.measure(group, self.plan, self.feeds, self.timings["after"].median)
                except ValueError:
                    continue
            yield Attribution(tuple(self.parts[n].nodes for n in group), speedup)

    def derivations(self) -> dict[str, Derivation]:
        """Return the derivations of kept subprograms, and of the post-optimisation of joined ones, by name."""
        found = {f"{n:03d}-{file_word(p.nodes[0])}": p.derivation for n, p in enumerate(self.parts) if p.kept}
        found |= {f"joined-{n:03d}": p.derivation for n, p in enumerate(self.programs) if p.derivation.steps}
        return {name: derivation for name, derivation in found.items() if derivation is not None}

    def records(self) -> dict[str, JsonObject]:
        """Return the records of ``derivations``, with a certificate for each step, by name.

        If another host runs nodes of the plan, those of the bundle that differ are there too, as ``onnxruntime-NAME``.
        """
        model = Path(self.model.path).name
        found = {
            name: to_record(derivation, step_certificates(derivation), model=model)
            for name, derivation in self.derivations().items()
        }
        others = self.in_onnxruntime.records() if self.in_onnxruntime else {}
        return found | {f"onnxruntime-{name}": each for name, each in others.items() if found.get(name) != each}

    def benchmark(self, repeat: int = 30) -> dict[str, Timing]:
        """Time the plan and the original again, in *repeat* interleaved rounds, on the same inputs."""
        feeds = self.feeds or self.random_inputs()
        calls: dict[str, Callable[[], object]] = {
            "before": lambda: self.original.run(feeds),
            "after": lambda: self.plan.run(feeds),
        }
        return time_calls(calls, rounds=repeat)

    def onnx(self) -> onnx.ModelProto:
        """Return the optimised model in standard operators; eOperators are local functions made of them.

        It has only the rewrites that are faster in ONNX Runtime (``exported``), which the first call measures: if none
        are, it is the original model.  Raises Refused.
        """
        if not self.replacements:
            return copy_message(self.model.stored) if self.model.stored else self.model.original
        return rewrite_model(restore_folded_nodes(self.model), self.replacements, self.model.weights)

    def onnx_bytes(self) -> bytes:
        """Return ``onnx()`` as the content of a file: without rewrites, that of the original file if it is whole."""
        content = None if self.replacements else whole_file(self.model.path)
        return self.onnx().SerializeToString() if content is None else content

    def save(self, path: str | Path) -> None:
        """Write ``onnx()`` to *path*, whole or not at all; warns if that is the original model."""
        write_atomically(path, self.onnx_bytes())
        if not self.replacements:
            warn_of_original(path, is_bundle_faster=any(part.kept for part in self.bundled.parts))

    def save_bundle(self, path: str | Path, *others: Optimised) -> None:
        """Write the plan to the folder *path*, as a model, a library of kernels, certificates and a page on their use.

        ONNX Runtime runs it without this package (docs/deploying.md).  If the model has dynamic sizes, so has the
        bundle: the plan runs its own, *others* (the same model, optimised for other shapes) theirs, and the original
        operators all others.  If another host runs nodes of the plan, the bundle has the fastest plan of ONNX Runtime
        alone (``bundled``).  Raises BackendError without a C compiler, Refused for a folder with other files, for
        *others* of another model and for a model beyond 2 GiB, OSError if it cannot be written.
        """
        write_bundle(path, *(each.bundled.bundled_plan() for each in (self, *others)))

    def bundled_plan(self) -> BundledPlan:
        """Return the plan as bundles have it."""
        levels = [part.numerics.level for part in self.parts if part.numerics]
        level = max(levels, key=LEVELS.index, default=LEVELS[0])
        return BundledPlan(
            model=self.model, plan=self.plan, numerics=level, error=self.errors[1], records=self.records()
        )

    def rows(self) -> list[list[str]]:
        """Return the before/after table: one row for every subprogram, slowest first."""
        rows = [["nodes", "before", "after", "ratio", "now", "certificate", "numerics"]]
        for part in sorted(self.parts, key=lambda p: -p.trial.seconds_before):
            before = part.trial.seconds_before
            after = part.trial.seconds_after if part.kept else before
            rest = [count_noun(part.eoperators, "eOperator")] if part.eoperators else []
            now = " + ".join([*(via.operator for via in part.library_calls), *rest]) or "views"
            names = name_nodes(part.nodes)
            now = now if part.kept else f"original ({part.why})"
            cells = [names, f"{before * 1e6:.0f} µs", f"{after * 1e6:.0f} µs", f"{before / after:.2f}" if after else ""]
            certificate = part.certificate if part.kept else ""
            rows.append([*cells, now, certificate, str(part.numerics or "")])
        return rows

    def summary(self) -> str:
        """Return one sentence with the gain and the error."""
        return (
            f"{self._count_replaced()}{self._describe_host('; ')}; "
            f"{self.timings['before'].median * 1e3:.3f} ms before, "
            f"{self.timings['after'].median * 1e3:.3f} ms after ({self.speedup:.2f}x); "
            f"largest error {self.errors[1]:.1e} of the largest output{self._describe_rounding()}"
            + (f"; {self.stored}" if self.stored else "")
        )

    def conclusions(
        self, bundle: str = 'save_bundle("DIR")', file: str = 'save("OUT.onnx")', budget: str = "budget="
    ) -> list[str]:
        """Return lines for the head of the report: gain, proofs, error, what to deploy, what was not tuned in time.

        *bundle* and *file* say how each is written, *budget* what is written before the seconds of a larger budget.
        """
        kept = [part for part in self.parts if part.kept]
        before, after = (f"{self.timings[name].median * 1e3:.3f} ms" for name in ("before", "after"))
        rival = f"your model in ONNX Runtime ({count_noun(self.threads, 'thread')})"
        proofs = count_certificates([part.certificate for part in kept])
        lines = [f"nothing gained: keep your file. Nothing was faster than {rival}: {before}"]
        if self.untuned and not self.parts:
            lines = [f"nothing gained: keep your file. No subprogram was tuned; {rival}: {before}"]
        if kept or self.plan.host:
            lines = [
                f"{self.speedup:.2f} times as fast as {rival}: {before} before, {after} after",
                f"{self._count_replaced()}{f': {proofs}' if kept else ''}{self._describe_host('; ')}",
                f"largest error {self.errors[1]:.1e} of the largest output{self._describe_rounding()}",
                *([str(self.stored)] if self.stored else []),
                *self._advice(bundle, file),
            ]
        if self.inputs:
            lines.append(f"compared and timed on {describe_inputs(self.inputs)}")
        elif self.model.domains:
            lines.append(f"compared and timed on {describe_random_inputs(self.model.domains)}")
        late = f"{count_noun(len(self.untuned), 'subprogram')} not tuned ({self._name_untuned()})"
        if self.interrupted:
            untuned = f"; {late}" if self.untuned else ""
            lines.append(f"interrupted: this is the best of what was found by then{untuned}. A second run continues")
        elif self.untuned:
            lines.append(f"{late}: repeat with {budget}{2 * self.budget:g}, which continues")
        return lines

    def _count_replaced(self) -> str:
        """Say how many of all subprograms are replaced, those that were not tuned counted."""
        kept, every = sum(part.kept for part in self.parts), len(self.parts) + len(self.untuned)
        exact = sum(part.rounds_exactly for part in self.parts)
        rounding = f", {exact} of them to round to integers as defined" if exact else ""
        return f"{kept} of {count_noun(every, 'subprogram')} replaced{rounding}"

    def _describe_host(self, joint: str) -> str:
        """Say after *joint* what another host runs; empty if ONNX Runtime runs all that is not replaced."""
        if not self.plan.host:
            return ""
        return f"{joint}{self.plan.host} runs {len(self.plan.hosted)} of {count_noun(len(self.model.nodes), 'node')}"

    def _name_untuned(self) -> str:
        """Name the subprograms that were not tuned by their first nodes, the first three of them."""
        first = [_shorten(nodes[0]) for nodes in self.untuned]
        return ", ".join(first[:3]) + (f" and {len(first) - 3} more" if len(first) > 3 else "")

    def _advice(self, bundle: str, file: str) -> list[str]:
        """Say what to deploy, if something was gained."""
        if self.in_onnxruntime is not None:
            needs = f"this plan is for Python with {self.plan.host}; in ONNX Runtime alone"
            if not any(part.kept for part in self.in_onnxruntime.parts):
                return [f"{needs} nothing was faster than your original, so a bundle or file is that"]
            return [
                f"{needs} {self.in_onnxruntime.speedup:.2f} times as fast:",
                *self.in_onnxruntime._advice(bundle, file),
            ]
        export = self.file.known or UNSELECTED_EXPORT
        content = export.describe()
        if export.parts and (export.speedup or 0.0) >= self.speedup:
            return [f"deploy this: {file}: one ONNX file, {content}"]
        speed = f"{self.speedup:.2f} times as fast"
        if outside := sum(len(segment.nodes) for segment in self.plan.segments if segment.replaced):
            speed = f"slower than this plan: no session runs the kernels of {count_noun(outside, 'node')}, which stay"
        return [
            f"deploy this: {bundle}: a folder that ONNX Runtime runs from any language, {speed}",
            f"as one ONNX file ({file}): {content}",
        ]

    def untouched(self) -> list[str]:
        """Return why nodes are not optimised, a line for each operator and reason, most nodes first.

        Nodes that were not tuned in time are left out: ``conclusions`` names them.
        """
        late = {node for nodes in self.untuned for node in nodes}
        return self._count_reasons(each for each in self.skipped if each.node not in late)

    def beyond_bound(self) -> list[str]:
        """Return by how much errors in bfloat16 exceed their bound, a line for each subprogram."""
        return [f"{_shorten(part.nodes[0])} {part.trial.excess}" for part in self.parts if part.trial.excess]

    def ends_of_regions(self) -> list[str]:
        """Return before which nodes sums of products end, a line for each operator and reason, most nodes first."""
        return self._count_reasons(self.region_ends)

    def _count_reasons(self, found: Iterable[Skipped]) -> list[str]:
        operators = {node.name: node.op for node in self.model.nodes}
        counts = Counter((operators.get(s.node, s.node), s.why) for s in found)
        return [f"{n} {operator}: {why}" for (operator, why), n in counts.most_common()]

    def _describe_rounding(self) -> str:
        """Describe the kept derivation with the largest rounding error; empty if nothing is kept."""
        badges = [part.numerics for part in self.parts if part.numerics]
        if not badges:
            return ""
        worst = max(badges, key=lambda b: (LEVELS.index(b.level), b.after.error if b.after else 0.0))
        return f"; numerics: {worst}"

    def graphs(self) -> list[tuple[str, Program, Program]]:
        """Return, for every kept subprogram, its first node's name, and its program before and after."""
        return [
            (part.nodes[0], part.derivation.start, part.derivation.end)
            for part in self.parts
            if part.kept and part.derivation
        ]

    def __repr__(self) -> str:
        return f"<Optimised: {self.summary()}>"

    def _repr_html_(self) -> str:
        stays = _html_reasons("not optimised", self.untouched())
        ends = _html_reasons("sums of products across operators end before", self.ends_of_regions())
        return html_report(self.conclusions(), self.rows()) + stays + ends


def whole_file(path: str) -> bytes | None:
    """Return the content of the file of a model; None if there is no file, or it needs others for its weights."""
    source = Path(path)
    if not source.is_file():
        return None
    proto = onnx.load(source, load_external_data=False)
    is_whole = not any(external_data_helper.uses_external_data(tensor) for tensor in proto.graph.initializer)
    return source.read_bytes() if is_whole else None


def warn_of_original(path: str | Path, is_bundle_faster: bool) -> None:
    """Warn that the file at *path* is the original model, two calls above."""
    plan = "; save_bundle writes the plan, which is faster" if is_bundle_faster else ""
    warnings.warn(f"{path} is your original model: {ORIGINAL_FILE}{plan}", UserWarning, stacklevel=3)


def _html_reasons(title: str, lines: Sequence[str]) -> str:
    """Return *lines* as a list under *title* that can be folded; nothing without lines."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<details><summary>{title}</summary><ul {_LEFT_ALIGNED}>{items}</ul></details>" if lines else ""


def html_report(conclusions: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return *conclusions*, the first of them bold, and *rows*, whose first one is the head, as HTML."""
    head, *rest = rows
    cells = "".join(f"<th {_LEFT_ALIGNED}>{escape(c)}</th>" for c in head)
    body = "".join("<tr>" + "".join(_html_cell(n, c) for n, c in enumerate(row)) + "</tr>" for row in rest)
    first, *others = map(escape, conclusions)
    lines = "".join(f"<div>{line}</div>" for line in (f"<b>{first}</b>", *others))
    table = f"<table><tr>{cells}</tr>{body}</table>" if rest else ""
    return f"<div {_LEFT_ALIGNED}>{lines}</div>{table}"


def count_certificates(kinds: Sequence[str]) -> str:
    """Say how many there are of each of *kinds*: ``all proved``, ``2 proved, 1 exact (equal on samples)``."""
    words = {"exact": "exact (equal on samples, not proved)"}
    counts = Counter(kinds)
    if len(counts) == 1:
        (kind,) = counts
        return f"all {words.get(kind, kind)}" if len(kinds) > 1 else words.get(kind, kind)
    return ", ".join(f"{n} {words.get(kind, kind)}" for kind, n in counts.most_common())


def file_word(name: str) -> str:
    """Return *name* as part of a file name, shortened."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name[:80]).strip("_") or "part"


def name_nodes(nodes: Sequence[str]) -> str:
    """Return the names of *nodes* for a table: the first two, and how many there are."""
    return ", ".join(map(_shorten, nodes[:2])) + (f", … ({len(nodes)})" if len(nodes) > 2 else "")


def _shorten(name: str) -> str:
    """Return the beginning of *name* on one line, for a table."""
    return printable(name[:80]).replace("\n", " ") + ("…" if len(name) > 80 else "")


def _html_cell(column: int, text: str) -> str:
    kind = "class='number'" if 1 <= column <= 3 else _LEFT_ALIGNED
    return f"<td {kind}>{escape(text)}</td>"
