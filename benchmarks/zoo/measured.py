"""Compare the zoo with all rivals, each engine in its own process: ``python -m benchmarks.zoo --out DIR``.

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
from einnet_evaluation.engines import EXPORTED, OURS
from einnet_evaluation.results_file import ResultsFile, busy_notes
from einnet_evaluation.rivals import ORT, RIVALS, installed
from einnet_explore.support.storage import write_atomically
from einnet_explore.viz.tables import Cell, ResultTable

SLOWER = 0.98
"""A model that is below this times the best rival's speed is said to be slower: less is within the noise."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Threads, seconds of search a model, rounds and seconds of them, and the rivals."""

    threads: int = 1
    budget: float = 60.0
    rounds: int = 20
    limit: float = 30.0
    against: tuple[str, ...] = tuple(RIVALS)


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
        return ResultsFile(self.out / "zoo.json", options | {"rivals": installed(effort.against)})

    def _measured(self, name: str, proto: onnx.ModelProto) -> dict[str, Any]:
        effort, began = self.effort, perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            onnx.save(proto, path)
            try:
                result = run_benchmark(
                    path,
                    against=effort.against,
                    threads=effort.threads,
                    rounds=effort.rounds,
                    budget=effort.budget,
                    limit=effort.limit,
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
    """A row a model: times relative to ours, and the ratio to the best rival as median and quartiles of the rounds."""
    rows: list[tuple[Cell, ...]] = []
    said: list[str] = []
    for one in results:
        if "refused" in one:
            said.append(f"{one['model']} was not measured: {one['refused']}.")
            continue
        result = one["result"]
        engines, ratios = result["engines"], result["ratios"]
        best = result["best"]
        if best is None:
            said.append(f"{one['model']} was run by no rival.")
            continue
        low, high = spread(engines[best]["samples"], engines[OURS]["samples"])
        file = ratios[ORT] / ratios[EXPORTED] if {ORT, EXPORTED} <= ratios.keys() else None
        rows.append(
            (
                one["model"], one["title"], engines[OURS]["seconds"] * 1e3, best, result["speedup"], low, high,
                *(ratios.get(name) for name in RIVALS), file,
                max(result["max_rel_error"].values()), round(result["load"], 1), round(one["seconds"]),
                "; ".join(f"{name}: {why}" for name, why in result["refused"].items()) or None,
            )
        )  # fmt: skip
    head = (
        "model", "what_it_is", "ours_ms", "best_rival", "speedup", "from", "to",
        *(f"{name.replace('.', '_')}_times_ours" for name in RIVALS), "file_times_faster", "max_rel_error", "load",
        "seconds", "refused",
    )  # fmt: skip
    return ResultTable(
        "zoo", "Models of the kinds that people bring", head, tuple(rows), " ".join([NOTE, *_sums(rows), *said])
    )


NOTE = (
    "Milliseconds: medians of interleaved rounds, one process an engine, all in float32. Speedup: over the best of all "
    "rivals, the median over the rounds, and its quartiles (from, to). Times ours: each rival's time relative to ours. "
    "File times faster: the file in standard operators over the original, both in ONNX Runtime. "
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
            f"Geometric mean over the best of all, {len(found)} models: {geometric_mean(found.values()):.2f}; least "
            f"{min(found.values()):.2f}, most {max(found.values()):.2f}; below {SLOWER}: {', '.join(slower) or 'none'}."
        )
    yield from busy_notes([float(row[-3]) for row in rows if isinstance(row[-3], float)])
