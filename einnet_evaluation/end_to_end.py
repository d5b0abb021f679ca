"""The paper's end-to-end comparison (Fig. 12, ``e1``): the evaluation models against common runtimes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import onnx

from einnet_evaluation.bench import run_benchmark
from einnet_evaluation.engines import EXPORTED, OURS
from einnet_evaluation.models import MODELS, PARTS, with_dynamic_batch, write
from einnet_evaluation.results_file import ResumableExperiment, busy_notes
from einnet_evaluation.rivals import COMPILED, OPENVINO, ORT, RIVALS, TORCH, installed
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import ModelError
from einnet_explore.support.wording import count_noun
from einnet_explore.viz.tables import Cell, ResultTable

ENGINES = (OURS, EXPORTED, *RIVALS)
"""Engines in the order of the tables and the figure."""


SMALLER: Mapping[tuple[str, int], int] = {("longformer", 1): 4000, ("longformer", 16): 1000}
"""Positions of LongFormer by batch size: at the published 10000, each engine needs about 3 GB of windows for every
batch entry and copy, and all engines are in memory at once."""


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """One model at a batch size and number of threads; *size* None is the published size."""

    batch: int
    threads: int
    model: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class EndToEndEffort:
    """Models, batch sizes, threads and rivals to measure; rounds, their time limit, and the tuning budget of a model.

    *sizes*: sizes by model and batch size, other than the published ones.
    """

    models: tuple[str, ...] = tuple(model.name for model in MODELS)
    batches: tuple[int, ...] = (1, 16)
    threads: tuple[int, ...] = (1, 2)
    against: tuple[str, ...] = tuple(RIVALS)
    rounds: int = 20
    limit: float = 60.0
    budget: float | None = None
    attribute: bool = True
    sizes: Mapping[tuple[str, int], int] = field(default_factory=lambda: SMALLER)

    def units(self) -> Iterable[Unit]:
        """Yield every combination, small batches and few threads first."""
        for batch in self.batches:
            for threads in self.threads:
                yield from (Unit(batch, threads, name, self.sizes.get((name, batch))) for name in self.models)

    @property
    def rivals(self) -> tuple[str, ...]:
        """The installed engines of *against*."""
        return installed(self.against)


def known(names: Iterable[str]) -> tuple[str, ...]:
    """Return *names* without repetition; raise ValueError for an unknown model."""
    all_of = [model.name for model in (*MODELS, *PARTS)]
    for name in names:
        if name not in all_of:
            raise ValueError(f"model {name!r}: expected one of {', '.join(all_of)}")
    return tuple(dict.fromkeys(names))


QUICK = EndToEndEffort(("infogan", "fsrcnn"), (1,), (1,), (ORT, TORCH, OPENVINO), 7, 3.0, 4.0, False)


class EndToEndLab(ResumableExperiment[EndToEndEffort, Unit, Mapping[str, Any]]):
    """Measurements by unit, including those of earlier runs of other models."""

    __slots__ = ()

    def wanted(self) -> Iterable[Unit]:
        return self.effort.units()

    def measure(self, key: Unit) -> Mapping[str, Any]:
        effort = self.effort
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{key.model}.onnx"
            proto, shapes = _with_any_batch(write(key.model, key.batch, key.size), key.batch)
            path.write_bytes(proto.SerializeToString())
            return run_benchmark(
                path,
                shapes=shapes,
                against=effort.against,
                threads=key.threads,
                rounds=effort.rounds,
                limit=effort.limit,
                budget=effort.budget,
                attribute=effort.attribute,
            )

    def called(self, key: Unit) -> str:
        return f"{key.model}, batch {key.batch}, {count_noun(key.threads, 'thread')}"

    def place(self, key: Unit) -> tuple[int, int, int, float]:
        """Order units by batch, threads, model, and size, with the published size last."""
        names = [model.name for model in (*MODELS, *PARTS)]
        place = names.index(key.model) if key.model in names else len(names)
        return key.batch, key.threads, place, inf if key.size is None else key.size

    @property
    def options(self) -> Mapping[str, Any]:
        return {n: getattr(self.effort, n) for n in ("rivals", "rounds", "limit", "budget", "attribute")}

    def to_json(self, key: Unit, result: Mapping[str, Any]) -> Any:
        return {"unit": asdict(key), "result": result}

    def from_json(self, value: Any) -> tuple[Unit, Mapping[str, Any]]:
        return Unit(**value["unit"]), value["result"]


def _with_any_batch(proto: onnx.ModelProto, batch: int) -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
    """Return *proto* with a dynamic batch, and its shapes by input; as it is if it cannot have another than *batch*."""
    made, shapes = with_dynamic_batch(proto)
    if batch > 1:
        with suppress(ModelError):
            load_model(made, {name: (1, *shape[1:]) for name, shape in shapes.items()})
            return made, shapes
    return proto, {}


def end_to_end_tables(
    results: Mapping[Unit, Mapping[str, Any]], failures: Mapping[Unit, str] | None = None
) -> tuple[ResultTable, ...]:
    """Return the table of Fig. 12, and the speedup of each selected derivation if measured."""
    found = (_ratios(results, failures or {}), _attribution(results))
    return tuple(sheet for n, sheet in enumerate(found) if sheet.rows or not n)


def _ratios(results: Mapping[Unit, Mapping[str, Any]], failures: Mapping[Unit, str]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for unit, result in results.items():
        engines = result["engines"]
        there = [engines.get(name) for name in ENGINES]
        rows.append(
            (
                unit.model, unit.size, unit.batch, unit.threads,
                *(e["seconds"] * 1e3 if e else None for e in there),
                *(result["ratios"].get(name) for name in ENGINES[1:]),
                engines[OURS]["iqr"] * 1e3,
                result["best"],
                result["speedup"],
                max(result["max_rel_error"].values()),
                round(result["load"], 1) if "load" in result else None,
                engines[OURS]["says"],
                "; ".join(f"{name}: {why}" for name, why in result["refused"].items()) or None,
            )
        )  # fmt: skip
    head = (
        "model", "size", "batch", "threads", *(f"{_short(name)}_ms" for name in ENGINES),
        *(f"{_short(name)}_times_ours" for name in ENGINES[1:]), "ours_iqr_ms", "best_rival", "speedup",
        "max_rel_error", "load", "ours_is", "refused",
    )  # fmt: skip
    return ResultTable("e1", "Fig. 12: end to end", head, tuple(rows), _note(results, failures))


NOTE = (
    "Milliseconds: medians of interleaved rounds, one process for each engine. Times ours: the median over the rounds "
    "of each engine's time relative to ours. Speed-up: over the best of all rivals (best_rival) in the same rounds. "
    "out_onnx: ONNX Runtime on the exported file, which has only the rewrites that are faster in standard operators. "
    "torch and torch.compile: the fastest of channels first or last, and of frozen weights or not. All compute in "
    "float32. Refused: rivals that are missing, do not convert the model or return other outputs. "
    "Published, A100: up to 2.72 times the best rival, 1.52 on average. Size: empty for the published size. "
    "ours_is: the summary of the optimisation, from its own samples: medians, and a lower bound of their ratio. Nodes "
    "that are not derived run in ONNX Runtime, or in OpenVINO where ours_is names it. Batches: ours is tuned at 1 and "
    "at the batch, and runs the plan of one sample for each where that is faster; ncnn runs them one by one."
)


def _note(results: Mapping[Unit, Mapping[str, Any]], failures: Mapping[Unit, str]) -> str:
    notes = [NOTE]
    for batch, threads in dict.fromkeys((unit.batch, unit.threads) for unit in results):
        here = {u.model: r["speedup"] for u, r in results.items() if (u.batch, u.threads) == (batch, threads)}
        notes += _means({name: speedup for name, speedup in here.items() if speedup}, batch, threads)
    notes += busy_notes([result.get("load", 0.0) for result in results.values()])
    notes += [
        f"{unit.model} at batch {unit.batch}, {count_noun(unit.threads, 'thread')} was not measured: {why}."
        for unit, why in failures.items()
    ]
    return " ".join(notes)


def _means(speedups: Mapping[str, float], batch: int, threads: int) -> Iterable[str]:
    """Yield the geometric mean over whole models, and the speedup of each part of a model."""
    whole = [speedups[model.name] for model in MODELS if model.name in speedups]
    missing = [model.name for model in MODELS if model.name not in speedups]
    where = f"at batch {batch}, {count_noun(threads, 'thread')}"
    if whole:
        of = f"{len(whole)} of the {len(MODELS)} models" if missing else f"the {len(MODELS)} models"
        without = f" (without {', '.join(missing)})" if missing else ""
        yield (
            f"Geometric mean over {of} {where}{without}: {geometric_mean(whole):.2f}; least {min(whole):.2f}, most "
            f"{max(whole):.2f}."
        )
    for part in PARTS:
        if part.name in speedups:
            yield f"{part.name} {where}, a part of a model, in no mean: {speedups[part.name]:.2f}."


def _short(name: str) -> str:
    return {OURS: "ours", EXPORTED: "out_onnx", COMPILED: "torch_compile"}.get(name, name)


def _attribution(results: Mapping[Unit, Mapping[str, Any]]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = [
        (unit.model, unit.batch, unit.threads, len(one["nodes"]), ", ".join(one["nodes"][0]), one["speedup"])
        for unit, result in results.items()
        for one in result.get("attribution", ())
    ]
    head = ("model", "batch", "threads", "equal_parts", "nodes_of_the_first", "speedup")
    note = "Speed-up: the time of the model without this derivation over its time with all derivations, interleaved."
    return ResultTable("e1_attribution", "Speed-up of each selected derivation", head, tuple(rows), note)
