"""What comes out of optimising a model: a callable program, its report, and the same program as ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from einnet_explore.backends.measure import Timing, compare
from einnet_explore.graph.contest import Outcome
from einnet_explore.graph.reading.model import Model
from einnet_explore.graph.running.plan import Plan
from einnet_explore.graph.running.regions import random_inputs
from einnet_explore.graph.split import Skipped
from einnet_explore.graph.writing.export import Replacement, rewrite_model
from einnet_explore.ir import EOPERATOR, VIEW, Program
from einnet_explore.storage import write_atomically

Array = npt.NDArray[Any]

LEFT = "style='text-align:left'"


@dataclass(frozen=True, slots=True)
class Part:
    """One subprogram: its nodes, how its contest ended, and whether the derived program is in the plan."""

    nodes: tuple[str, ...]
    outcome: Outcome
    kept: bool
    certificate: str
    why: str

    @property
    def gain(self) -> float:
        """Seconds that the derived program saves by itself."""
        return self.outcome.seconds_before - self.outcome.seconds_after

    @property
    def program(self) -> Program | None:
        """The derived program, where one won."""
        return self.outcome.winner.end if self.outcome.winner else None

    def to_json(self) -> dict[str, Any]:
        """One entry of ``subprograms`` in the JSON of ``optimize``."""
        equations = self.program.equations if self.program and self.kept else ()
        calls = [e.via for e in equations if e.via and e.via.operator not in (EOPERATOR, VIEW)]
        steps = self.outcome.winner.steps if self.outcome.winner and self.kept else ()
        return {
            "nodes": list(self.nodes),
            "kept": self.kept,
            "seconds_before": self.outcome.seconds_before,
            "seconds_after": self.outcome.seconds_after if self.kept else self.outcome.seconds_before,
            "operators": [{"name": via.operator, "attributes": dict(via.attributes)} for via in calls],
            "eoperators": sum(bool(e.via and e.via.operator == EOPERATOR) for e in equations),
            "certificate": self.certificate,
            "why": self.why,
            "states": self.outcome.states,
            "steps": [step.match.to_json() for step in steps],
        }


@dataclass(frozen=True)
class Optimised:
    """An optimised model: call it with inputs by name, ``report`` it, ``benchmark`` it, ``save`` it."""

    model: Model
    plan: Plan
    original: Plan
    parts: tuple[Part, ...]
    replacements: tuple[Replacement, ...]
    skipped: tuple[Skipped, ...]
    timings: Mapping[str, Timing]
    errors: tuple[float, float]
    search_seconds: float
    folded_weights: int
    fused_eoperators: int
    threads: int
    interrupted: bool = False

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
        """Inputs of the right names, shapes and types."""
        return random_inputs(self.model, seed)

    @property
    def speedup(self) -> float:
        """How many times faster the plan is than the original, measured in turns; exactly 1 where nothing was kept."""
        return self.timings["before"].median / self.timings["after"].median

    def report(self) -> dict[str, Any]:
        """The JSON of ``optimize``."""
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
            "subprograms": [part.to_json() for part in self.parts],
            "folded_weights": self.folded_weights,
            "fused_eoperators": self.fused_eoperators,
            "skipped": [{"node": s.node, "why": s.why} for s in self.skipped],
            "interrupted": self.interrupted,
        }

    def benchmark(self, repeat: int = 30) -> dict[str, Timing]:
        """Time the plan and the original again, in *repeat* interleaved rounds."""
        feeds = self.random_inputs()
        calls: dict[str, Callable[[], object]] = {
            "before": lambda: self.original.run(feeds),
            "after": lambda: self.plan.run(feeds),
        }
        return compare(calls, rounds=repeat)

    def onnx(self) -> onnx.ModelProto:
        """The optimised model in standard operators; eOperators are local functions made of them."""
        return rewrite_model(self.model.proto, self.replacements)

    def save(self, path: str | Path) -> None:
        """Write ``onnx()`` to *path*, whole or not at all."""
        write_atomically(path, self.onnx().SerializeToString())

    def rows(self) -> list[list[str]]:
        """The before/after table: one row for every subprogram, slowest first."""
        rows = [["nodes", "before", "after", "ratio", "now", "certificate"]]
        for part in sorted(self.parts, key=lambda p: -p.outcome.seconds_before):
            before = part.outcome.seconds_before
            after = part.outcome.seconds_after if part.kept else before
            said = part.to_json()
            now = " + ".join(
                [*(o["name"] for o in said["operators"]), *([f"{said['eoperators']} eOperators"] if part.kept else [])]
            )
            names = ", ".join(part.nodes[:2]) + (f", … ({len(part.nodes)})" if len(part.nodes) > 2 else "")
            cells = [names, f"{before * 1e6:.0f} µs", f"{after * 1e6:.0f} µs", f"{before / after:.2f}" if after else ""]
            rows.append([*cells, now or f"original ({part.why})", part.certificate])
        return rows

    def summary(self) -> str:
        """One sentence: what was gained and how well it agrees."""
        kept = sum(part.kept for part in self.parts)
        return (
            f"{kept} of {len(self.parts)} subprograms replaced; {self.timings['before'].median * 1e3:.3f} ms before, "
            f"{self.timings['after'].median * 1e3:.3f} ms after ({self.speedup:.2f}x); "
            f"largest error {self.errors[1]:.1e} of the largest output"
        )

    def graphs(self) -> list[tuple[str, Program, Program]]:
        """For every kept subprogram: its first node's name, and its program before and after."""
        return [
            (part.nodes[0], part.outcome.winner.start, part.outcome.winner.end)
            for part in self.parts
            if part.kept and part.outcome.winner
        ]

    def __repr__(self) -> str:
        return f"<Optimised: {self.summary()}>"

    def _repr_html_(self) -> str:
        head, *rest = self.rows()
        cells = "".join(f"<th {LEFT}>{escape(c)}</th>" for c in head)
        body = "".join("<tr>" + "".join(_cell(n, c) for n, c in enumerate(row)) + "</tr>" for row in rest)
        return f"<p><b>{escape(self.summary())}</b></p><table><tr>{cells}</tr>{body}</table>"


def _cell(column: int, text: str) -> str:
    number = " class='number'" if 1 <= column <= 3 else ""
    return f"<td{number}>{escape(text)}</td>"
