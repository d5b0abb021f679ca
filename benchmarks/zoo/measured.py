"""Compare the zoo with ONNX Runtime, each engine in its own process: ``python -m benchmarks.zoo --out DIR``.

Each model has ``--budget`` seconds of search and ``--limit`` seconds of rounds.  ``DIR/zoo.json`` stores the
measurements, so an interrupted run resumes; ``DIR/zoo.md`` and ``DIR/zoo.csv`` are written after each model.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean, quantiles
from time import perf_counter
from typing import Any

import onnx

from einnet_evaluation.bench import run_benchmark
from einnet_evaluation.engines import EXPORTED, ORT, OURS
from einnet_evaluation.results_file import ResultsFile, busy_notes
from einnet_explore.support.storage import write_atomically
from einnet_explore.viz.tables import Cell, ResultTable

SLOWER = 0.98
"""A model that is below this times ONNX Runtime's speed is said to be slower: less is within the noise."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Threads, seconds of search a model, rounds and seconds of them."""

    threads: int = 1
    budget: float = 60.0
    rounds: int = 20
    limit: float = 30.0


@dataclass(slots=True)
class Lab:
    """Measurements by model in the folder *out*; *note* hears of each model before it begins."""

    effort: Effort
    out: Path
    note: Callable[[str], object] = print
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, models: Iterable[tuple[str, str, onnx.ModelProto]], again: bool = False) -> ResultTable:
        """Measure those of *models*, (name, title, model), that are not held, or *again* all; the table of all held."""
        self.out.mkdir(parents=True, exist_ok=True)
        self.results = {one["model"]: one for one in self._kept.load()}
        for name, title, proto in models:
            held = self.results.get(name)
            digest = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
            if held is not None and held["digest"] == digest and not again:
                continue
            self.note(name)
            self.results[name] = {"model": name, "title": title, "digest": digest, **self._measured(name, proto)}
            self._kept.write(list(self.results.values()))
            self._write()
        self._write()
        return table(self.results.values())

    @property
    def _kept(self) -> ResultsFile:
        effort = self.effort
        options = {name: getattr(effort, name) for name in ("threads", "budget", "rounds", "limit")}
        return ResultsFile(self.out / "zoo.json", options)

    def _measured(self, name: str, proto: onnx.ModelProto) -> dict[str, Any]:
        effort, began = self.effort, perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            onnx.save(proto, path)
            try:
                result = run_benchmark(
                    path, threads=effort.threads, rounds=effort.rounds, budget=effort.budget, limit=effort.limit
                )
            except (ValueError, RuntimeError) as problem:
                return {"refused": str(problem).replace(f"{folder}/", "")}
        del result["case"]  # a path of this machine
        return {"result": result, "seconds": perf_counter() - began}

    def _write(self) -> None:
        sheet = table(self.results.values())
        write_atomically(str(self.out / "zoo.md"), sheet.markdown())
        write_atomically(str(self.out / "zoo.csv"), sheet.csv())


def table(results: Iterable[Mapping[str, Any]]) -> ResultTable:
    """A row a model: medians, and the ratio of the rounds as median and quartiles."""
    rows: list[tuple[Cell, ...]] = []
    said: list[str] = []
    for one in results:
        if "refused" in one:
            said.append(f"{one['model']} was not measured: {one['refused']}.")
            continue
        result = one["result"]
        engines, ratios = result["engines"], result["ratios"]
        low, high = spread(engines[ORT]["samples"], engines[OURS]["samples"])
        rows.append(
            (
                one["model"], one["title"], engines[ORT]["seconds"] * 1e3, engines[OURS]["seconds"] * 1e3,
                ratios[ORT], low, high, ratios[ORT] / ratios[EXPORTED] if EXPORTED in ratios else None,
                max(result["max_rel_error"].values()), round(result["load"], 1), round(one["seconds"]),
            )
        )  # fmt: skip
    head = (
        "model", "what_it_is", "onnxruntime_ms", "ours_ms", "times_faster", "from", "to", "file_times_faster",
        "max_rel_error", "load", "seconds",
    )  # fmt: skip
    return ResultTable(
        "zoo", "Models of the kinds that people bring", head, tuple(rows), " ".join([NOTE, *_sums(rows), *said])
    )


NOTE = (
    "Milliseconds: medians of interleaved rounds, one process an engine, ONNX Runtime with all optimisations. "
    "Times faster: the median over the rounds, and its quartiles; of the file in standard operators, by medians. "
    "Seconds: all that a model took, search and measurement."
)


def spread(other: list[float], ours: list[float]) -> tuple[float, float]:
    """The lower and the upper quartile of how many times as long as *ours* the *other* takes, round by round."""
    ratios = [a / b for a, b in zip(other, ours, strict=True)]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return low, high


def _sums(rows: list[tuple[Cell, ...]]) -> Iterable[str]:
    found = {str(row[0]): float(row[4]) for row in rows if isinstance(row[4], float)}
    if found:
        slower = sorted(name for name, ratio in found.items() if ratio < SLOWER)
        yield (
            f"Geometric mean over {len(found)} models: {geometric_mean(found.values()):.2f}; least "
            f"{min(found.values()):.2f}, most {max(found.values()):.2f}; below {SLOWER}: {', '.join(slower) or 'none'}."
        )
    yield from busy_notes([float(row[9]) for row in rows if isinstance(row[9], float)])
