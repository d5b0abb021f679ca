"""A model optimised for a GPU: one plan with its weights, callable, saved to and loaded from a file."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.pipeline.given_inputs import describe_inputs
from einnet_explore.pipeline.gpu_parts import LIBRARY
from einnet_explore.pipeline.optimised import count_certificates, html_report, name_nodes
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.cuda import execution
from einnet_explore.runtime.cuda.device import Call
from einnet_explore.runtime.cuda.steps import CudaPlan, cuda_plan_from_json
from einnet_explore.support.json_values import JsonObject, as_items, as_number, as_object, as_texts
from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import count_noun, format_seconds

FORMAT, VERSION = "einnet-gpu-plan", 1


@dataclass(frozen=True, slots=True)
class GpuPart:
    """One part of a model: its *nodes*, the *chosen* plan, and the *seconds* of each plan that was measured.

    *certificate* is the weakest of the steps of the chosen plan's derivation.  *failures* say why other plans were left
    out, *why* why the library's plan stays.
    """

    nodes: tuple[str, ...]
    chosen: str
    seconds: Mapping[str, float]
    certificate: str
    why: str = ""
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_derived(self) -> bool:
        """Whether another plan than the library's is chosen."""
        return self.chosen != LIBRARY


@dataclass(frozen=True)
class GpuPlan:
    """A model optimised for one GPU: call it with inputs by name, ``report`` it, ``save`` it and ``load`` it.

    *seconds* are those of one run on the *device*: ``library`` by library operators alone, and ``plan``.  *error* is
    the largest difference from ONNX Runtime's outputs, relative to the largest; *allowed* is the plan's bound.
    *inputs* is the source of given inputs on which it was compared, empty for random ones.
    *outputs* are the element types of the outputs by name, *records* the derivations with a certificate for each step.
    """

    model: str
    device: str
    libraries: str
    plan: CudaPlan
    weights: Arrays = field(repr=False)
    outputs: Mapping[str, str]
    parts: tuple[GpuPart, ...]
    seconds: Mapping[str, float]
    error: float
    allowed: float
    why: str = ""
    interrupted: bool = False
    inputs: str = ""
    records: Mapping[str, JsonObject] = field(default_factory=dict, repr=False)

    @cached_property
    def program(self) -> execution.CudaProgram:
        """The plan on the device; raises ValueError, with the reason, if it cannot run there."""
        try:
            return execution.compile_plan(self.plan, self.weights)
        except Exception as error:  # CuPy's and the libraries' share no base
            raise ValueError(f"{self.model}: {execution.describe_device_error(error, plan_bytes(self.plan))}") from None

    @cached_property
    def _launch(self) -> Call:
        return self.program.capture()

    def run(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """Return the outputs by name, as host arrays, for *inputs* on the host or on the device.

        The plan is one launch of a CUDA graph.  Raises ValueError for a missing or misshapen input, and if the device
        fails.
        """
        for name in self.plan.inputs:
            shape = self.plan.buffers[name]
            if name not in inputs:
                raise ValueError(f"input {name} is missing, expected {', '.join(self.plan.inputs)}")
            if np.shape(inputs[name]) != shape:
                raise ValueError(f"input {name} has shape {np.shape(inputs[name])}, expected {shape}")
        # An array of another library has a shape, and may be on the device: it is not copied to the host.
        given: dict[str, Any] = {
            n: inputs[n] if hasattr(inputs[n], "shape") else np.asarray(inputs[n]) for n in self.plan.inputs
        }
        program = self.program
        try:
            found = program.run(given, self._launch)
        except Exception as error:
            raise ValueError(f"{self.model}: {execution.describe_device_error(error, plan_bytes(self.plan))}") from None
        return {name: found[name].astype(dtype, copy=False) for name, dtype in self.outputs.items()}

    def __call__(self, **inputs: npt.ArrayLike) -> dict[str, Array]:
        """Return ``run`` of *inputs*."""
        return self.run(inputs)

    def random_inputs(self, seed: int = 0) -> dict[str, Array]:
        """Return inputs of the right names and shapes from N(0, 1), equal for equal *seed*."""
        random = np.random.default_rng(seed)
        return {n: random.standard_normal(self.plan.buffers[n], dtype="float32") for n in self.plan.inputs}

    @property
    def speedup(self) -> float:
        """The seconds of the library's plan over those of this one; 1 if nothing was gained, or measured."""
        return self.seconds["library"] / self.seconds["plan"] if self.seconds else 1.0

    @property
    def is_correct(self) -> bool:
        """Whether the outputs agree with ONNX Runtime's within the bound."""
        return self.error <= self.allowed

    def report(self) -> JsonObject:
        """Return the JSON of ``optimize --device cuda``."""
        return {
            "model": self.model,
            "device": self.device,
            "libraries": self.libraries,
            "seconds_library": self.seconds.get("library"),
            "seconds_plan": self.seconds.get("plan"),
            "speedup": self.speedup,
            "max_rel_error": self.error,
            "allowed_error": self.allowed,
            "numerics": self.plan.numerics,
            "why": self.why,
            "interrupted": self.interrupted,
            "inputs": self.inputs or "random",
            "parts": [
                {**asdict(part), "nodes": list(part.nodes), "seconds": dict(part.seconds)} for part in self.parts
            ],
        }

    def rows(self) -> list[list[str]]:
        """Return the table of parts, slowest first: library's time, chosen time, ratio, plan, certificate."""
        rows = [["nodes", "library", "chosen", "ratio", "plan", "certificate"]]
        for part in sorted(self.parts, key=lambda p: -p.seconds.get(LIBRARY, 0.0)):
            before, after = part.seconds.get(LIBRARY), part.seconds.get(part.chosen)
            times = ["" if t is None else format_seconds(t) for t in (before, after)]
            ratio = f"{before / after:.2f}" if before and after else ""
            plan = f"{part.chosen} ({part.why})" if part.why else part.chosen
            rows.append([name_nodes(part.nodes), *times, ratio, plan, part.certificate])
        return rows

    def conclusions(self) -> list[str]:
        """Return lines for the head of the report: gain, proofs, error, and whether it was interrupted."""
        derived = [part for part in self.parts if part.is_derived]
        parts = f"{len(derived)} of {count_noun(len(self.parts), 'part')}"
        rival = f"library operators on {self.device}"
        lines = [f"nothing gained over {rival}{f': {self.why}' if self.why else ''}"]
        if derived:
            lines = [f"{parts} derived: {count_certificates([part.certificate for part in derived])}"]
            if self.seconds:
                times = [f"{format_seconds(self.seconds[name])} {label}" for name, label in _TIMES]
                lines = [f"{self.speedup:.2f} times as fast as {rival}: {', '.join(times)}", *lines]
        agrees = "" if self.is_correct else f": that is wrong, {self.allowed:.1e} is allowed"
        lines.append(f"largest error {self.error:.1e} of the largest output{agrees}")
        if self.inputs:
            lines.append(f"compared on {describe_inputs(self.inputs)}")
        if self.interrupted:
            lines.append("interrupted: this is the best of what was found by then. A second run continues")
        return lines

    def save(self, path: str | Path) -> None:
        """Write plan, weights, report and records to one file at *path*, which ``load`` reads; raises OSError."""
        names = list(self.weights)
        head = {
            "format": FORMAT,
            "version": VERSION,
            **{k: getattr(self, k) for k in _PLAIN},
            "plan": self.plan.to_json(),
            "weights": names,
            "parts": [asdict(part) for part in self.parts],
        }
        content = io.BytesIO()
        text = np.frombuffer(json.dumps(head).encode(), np.uint8)
        arrays = {f"weight{n}": self.weights[name] for n, name in enumerate(names)}
        np.savez(content, **{"head": text, **arrays})  # type: ignore[arg-type]
        write_atomically(path, content.getvalue())

    @staticmethod
    def load(path: str | Path) -> GpuPlan:
        """Read the plan that ``save`` wrote to *path*; it is compiled when it is first run, without a search.

        Raises OSError if the file cannot be read, ValueError if it is no such plan.
        """
        try:
            with np.load(path) as held:
                head = as_object(json.loads(held["head"].tobytes()))
                if (head.get("format"), head.get("version")) != (FORMAT, VERSION):
                    raise ValueError(f"found format {head.get('format')} {head.get('version')}")
                weights = {name: held[f"weight{n}"] for n, name in enumerate(as_texts(head["weights"]))}
            plain = {name: head[name] for name in _PLAIN if name in head}
            plan, parts = cuda_plan_from_json(as_object(head["plan"])), map(_part_from_json, as_items(head["parts"]))
            return GpuPlan(plan=plan, weights=weights, parts=tuple(parts), **plain)  # type: ignore[arg-type]
        except OSError:
            raise
        except Exception as error:  # NumPy and zipfile say in many ways that a file is none of theirs
            raise ValueError(
                f"{path}: found no plan for a GPU, expected a file of {FORMAT} {VERSION} ({error})"
            ) from None

    def __repr__(self) -> str:
        return f"<GpuPlan: {'; '.join(self.conclusions())}>"

    def _repr_html_(self) -> str:
        return html_report(self.conclusions(), self.rows())


_PLAIN = (
    *("model", "device", "libraries", "outputs", "seconds"),
    *("error", "allowed", "why", "interrupted", "inputs", "records"),
)
"""The fields that JSON holds as they are."""

_TIMES = (("library", "before"), ("plan", "after"))


def _part_from_json(document: object) -> GpuPart:
    found = as_object(document)
    return GpuPart(
        as_texts(found["nodes"]),
        str(found["chosen"]),
        {name: as_number(value) for name, value in as_object(found["seconds"]).items()},
        str(found["certificate"]),
        str(found["why"]),
        {name: str(value) for name, value in as_object(found["failures"]).items()},
    )


def plan_bytes(plan: CudaPlan) -> int:
    """Return the bytes of the buffers of *plan*."""
    return sum(
        prod(shape) * np.dtype(plan.dtypes.get(name, plan.dtype)).itemsize for name, shape in plan.buffers.items()
    )
