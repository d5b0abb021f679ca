"""Checks and measurements on a device: plans and baselines in interleaved rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from benchmarks.gpu import torch_side, whole
from benchmarks.gpu.baselines import COPY, baselines, compiled_baselines
from benchmarks.gpu.budget import OVER, TimeOver, interrupted_at
from einnet_explore.runtime.cuda.composition import choose_plan
from einnet_explore.runtime.cuda.rates import measure_rates
from einnet_explore.runtime.cuda.steps import agreement_in, cuda_plan_from_json

ROUNDS = 5

SLOW_PLAN_SECONDS, SLOW_PLAN_RATIO = 0.05, 20
"""A plan whose call takes longer than so many seconds, and so many times the fastest before it, is left out."""

CHUNK_ELEMENTS = 1 << 24
"""Elements that are compared at a time, since they are in double precision then."""

Call = Callable[[], object]


def ratios(times: Mapping[str, Sequence[float]], ours: str) -> dict[str, float]:
    """Return the speed-up of *ours* over each other: the median over interleaved rounds."""
    return {
        name: median(a / b for a, b in zip(samples, times[ours], strict=True))
        for name, samples in times.items()
        if name != ours
    }


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Median, distance between the quartiles, and the samples."""
    low, _, high = quantiles(samples, n=4) if len(samples) > 1 else (samples[0],) * 3
    return {"seconds": median(samples), "iqr": high - low, "samples": list(samples)}


def error_of(want: Any, got: Any, library: Any = np) -> float:
    """The largest difference relative to the largest element; infinite where shapes differ, or not all is finite.

    *library* compares, in double precision: NumPy, or CuPy on the device.
    """
    want, got = library.asarray(want), library.asarray(got)
    if want.shape != got.shape:
        return float("inf")
    want, got = want.reshape(-1), got.reshape(-1)
    largest = difference = 0.0
    for start in range(0, want.size, CHUNK_ELEMENTS):
        a, b = (x[start : start + CHUNK_ELEMENTS].astype(np.float64) for x in (want, got))
        if not library.isfinite(b).all():
            return float("inf")
        largest = max(largest, float(abs(a).max()))
        difference = max(difference, float(abs(a - b).max()))
    return difference / (largest or 1.0)


def told(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


class Bench:
    """The device *layer*, the bundle's *data*, and torch where it is; ``until`` is when an entry should be done."""

    def __init__(self, layer: ModuleType, data: Path, manifest: Mapping[str, Any], torch: ModuleType | None) -> None:
        self.layer, self.data, self.manifest, self.torch = layer, data, manifest, torch
        self.cp: Any = layer.cupy_package()
        self.until = float("inf")
        self.arrays: Mapping[str, Any] = np.load(data / "arrays.npz")  # read by name, as they are needed
        self._weights_of: tuple[str, dict[str, Any]] | None = None
        if torch is not None:
            torch_side.precise(torch, "float32")

    def check(self, check: Mapping[str, Any]) -> dict[str, Any]:
        """A plan on stored inputs against what the CPU's oracle said: as it is, as a graph, and in TF32."""
        n = check["arrays"]
        given = {k: self.arrays[f"{n} in {k}"] for k in check["inputs"]}
        want = {k: self.arrays[f"{n} out {k}"] for k in check["outputs"]}
        plan = cuda_plan_from_json(check["plan"])
        errors: dict[str, float] = {}
        wrong = False
        for precision in ("float32", "tf32") if plan.by_library else ("float32",):
            plan = replace(plan, precision=precision)
            program = self.layer.compile_plan(plan, {k: given[k] for k in plan.weights}, self.cubin)
            # Nothing may count on what an earlier run left: every output is cleared first.
            for way, go in (("", program.execute), ("as a graph", program.capture())):
                for name in plan.inputs:
                    program.buffers[name][...] = self.cp.asarray(given[name])
                for name in want:
                    program.buffers[name][...] = float("nan")
                go()
                label = f"{precision} {way}".strip()
                errors[label] = max(error_of(want[k], self.cp.asnumpy(program.buffers[k])) for k in want)
                wrong |= not errors[label] <= plan.agreement
        return {"error": max(errors.values()), "errors": errors, "wrong": wrong, "numerics": plan.numerics}

    def ceilings(self) -> dict[str, Any]:
        """Measure the limits of the device."""
        return {"rates": measure_rates()}

    def case(self, case: Mapping[str, Any], precision: str, compiled: bool = False) -> dict[str, Any]:
        """Every plan and every baseline of a case, on inputs in rotation past the L2.

        *compiled*: the first plan and what torch compiles instead.
        """
        kind, settings = case["kind"], case["settings"]
        plans = {name: replace(cuda_plan_from_json(p), precision=precision) for name, p in case["plans"].items()}
        if compiled:
            plans = dict(list(plans.items())[:1])
        first = next(iter(plans.values()))
        copies = self.layer.rotation_copies(case["nbytes"])
        feeds = self._inputs(first, copies)
        weights = self._weights(plans.values(), settings.get("runs", {}))
        held = _Held(self, agreement_in(precision))
        for name, plan in plans.items():
            held.plan(name, plan, weights, feeds)
        with torch_side.products_in(self.torch, precision):
            if compiled:
                assert self.torch is not None
                others = compiled_baselines(kind, settings, self.torch)
            else:
                others = baselines(kind, settings, self.cp, self.torch)
            for name, make in others.items():
                held.baseline(name, lambda make=make: [make(feed, weights) for feed in feeds], compiled)  # type: ignore[misc]
        found = held.measured(next((name for name in ("after", *plans) if name in held.calls), None))
        times = {name: one["seconds"] for name, one in found["times"].items()}
        flops = case["flops"]
        return found | {
            "bytes_per_second": {name: case["nbytes"] / t for name, t in times.items()},
            "flops_per_second": {name: flops / t for name, t in times.items()} if flops else {},
            "in_rotation": copies,
            "settings": settings,
            "precision": precision,
            **({"compile_mode": torch_side.COMPILE_MODE} if compiled else {}),
        }

    def part(self, key: str, precision: str) -> dict[str, Any]:
        """The ways of a part; *chosen* is the fastest of those that agree."""
        model, part = next((m, p) for m in self.manifest["models"] for p in m["parts"] if p["way"] == key)
        weights = self._model_weights(model)
        ways = self.manifest["ways"][key]["plans"]
        plans = {n: replace(cuda_plan_from_json(p), precision=precision) for n, p in ways.items()}
        first = next(iter(plans.values()))
        copies = self.layer.rotation_copies(sum(4 * int(np.prod(shape)) for shape in first.buffers.values()))
        feeds = self._inputs(first, min(copies, 8))
        held = _Held(self)
        for name, plan in plans.items():
            held.plan(name, plan, {k: weights[part["names"][k]] for k in plan.weights}, feeds)
        found = held.measured("library" if "library" in held.calls else None)
        good = {n: t["seconds"] for n, t in found["times"].items() if found["errors"][n] <= found["allowed"]}
        return found | {"chosen": choose_plan(good, "library") if good else "library", "precision": precision}

    def model(
        self, model: Mapping[str, Any], chosen: Mapping[str, str], precision: str, compiled: bool
    ) -> dict[str, Any]:
        """A whole model: ours, the library's way of every part, torch eager; or *compiled*, ours and torch's."""
        weights, feeds = self._model_weights(model), whole.inputs_of(model, 0)
        ways = self.manifest["ways"]
        plans = {"ours": whole.composed(model, ways, chosen, precision)}
        if not compiled:
            plans["library"] = whole.composed(model, ways, dict.fromkeys(ways, "library"), precision)
        exact = whole.composed(model, ways, dict.fromkeys(ways, "library"))
        depth = max(1, sum(step.op != "launch" for step in exact.steps))
        held = _Held(self, factor=depth**0.5)
        if precision != "float32":
            # The reference of the others; it is not timed.
            held.plan("float32", exact, weights, [feeds], timed=False)
        for name, plan in plans.items():
            held.plan(name, plan, weights, [feeds])
        text = model["torch"]
        if self.torch is not None and text and "text" in text:
            with torch_side.products_in(self.torch, precision):
                made = torch_side.module(self.torch, text, weights)
                given = [self.torch.from_numpy(x).cuda() for x in feeds.values()]
                calls = (torch_side.compiled if compiled else torch_side.calls)(self.torch, made, given)
                for name, call in calls.items():
                    held.baseline(name, lambda call=call: [call], compiled)  # type: ignore[misc]
        found = held.measured("ours")
        others: Mapping[str, float] = found["ratios"]
        return found | {
            "ratio_to_best": min(others.values()) if others else None,
            "flops_per_second": {n: model["flops"] / t["seconds"] for n, t in found["times"].items()},
            "derived_parts": sum(chosen[part["way"]] != "library" for part in model["parts"]),
            "parts": len(model["parts"]),
            "precision": precision,
            "numerics": plans["ours"].numerics,
            **({"compile_mode": torch_side.COMPILE_MODE} if compiled else {}),
        }

    def profile(self, one: Mapping[str, Any]) -> dict[str, Any]:
        """The time of one equation, for searches elsewhere."""
        plan = cuda_plan_from_json(one["plan"])
        sizes = sum(int(np.prod(s)) * 4 for s in plan.buffers.values())
        weights, turn = self._weights([plan]), []
        for feed in self._inputs(plan, self.layer.rotation_copies(sizes)):
            program = self.layer.compile_plan(plan, weights, self.cubin)
            for key, array in feed.items():
                program.buffers[key][...] = array
            if not turn and (seconds := self.layer.single_call_seconds(program.execute)) > SLOW_PLAN_SECONDS:
                return {"key": one["key"], **summary([seconds])}
            turn.append(program.capture())
        return {"key": one["key"], **summary(self.layer.event_seconds(turn))}

    def rounds(self, calls: Mapping[str, Sequence[Call]]) -> dict[str, list[float]]:
        """Seconds of each in interleaved rounds: fewer, but at least one, where time is short."""
        found: dict[str, list[float]] = {name: [] for name in calls}
        for n in range(ROUNDS):
            if n and perf_counter() > self.until:
                break
            for name, samples in self.layer.time_in_rounds(calls, 1).items():
                found[name] += samples
        return found

    def graph(self, name: str, call: Callable[[], Any]) -> Call:
        """A baseline as one CUDA graph too: else what is compared for small sizes is Python."""
        made: Call = (self.layer.capture_graph_by_torch if name.startswith("torch") else self.layer.capture_graph)(call)
        return made

    def cubin(self, step: Any) -> str | None:
        """The file with machine code of a kernel for this device, where the bundle has it."""
        name = hashlib.sha256(f"{step.entry}\n{step.text}".encode()).hexdigest()[:16]
        # Machine code runs on later devices of the same major version.
        path = self.data / "kernels" / f"{name}.sm_{self.layer.cuda_device().capability[:-1]}0.cubin"
        return str(path) if path.exists() else None

    def _inputs(self, plan: Any, copies: int) -> list[dict[str, Any]]:
        """Random inputs of *plan* on the device, so many different ones."""
        random = self.cp.random.RandomState(0)

        def drawn(name: str) -> Any:
            array = random.standard_normal(plan.buffers[name], dtype=self.cp.float32)
            return array.astype(plan.dtypes.get(name, plan.dtype), copy=False)

        return [{name: drawn(name) for name in plan.inputs} for _ in range(copies)]

    def _weights(
        self, plans: Iterable[Any], runs: Mapping[str, Sequence[tuple[int, float]]] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Random weights of *plans*, except those that *runs* tell: so many times each number."""
        random = self.cp.random.RandomState(1)
        shapes = {name: plan.buffers[name] for plan in plans for name in plan.weights}
        drawn = {name: random.standard_normal(shape, dtype=self.cp.float32) for name, shape in sorted(shapes.items())}
        told = {k: np.repeat([v for _, v in run], [n for n, _ in run]).astype(np.float32) for k, run in runs.items()}
        return drawn | told

    def _model_weights(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """The weights of *model* on the device; those of the last model are kept, as its parts come in turn."""
        if self._weights_of is None or self._weights_of[0] != model["name"]:
            self._weights_of = None  # frees the memory of the model before
            self._weights_of = model["name"], whole.weights_of(model, self.arrays, self.cp)
        return self._weights_of[1]


class _Held:
    """Calls by name, each in as many copies as there are inputs in rotation; what fails is told, and left out.

    The first output is compared with those of the others, on the device; *allowed* is the least error allowed, before
    it is multiplied by *factor*.
    """

    def __init__(self, bench: Bench, allowed: float = 0.0, factor: float = 1.0) -> None:
        self.bench, self.allowed, self.factor = bench, allowed, factor
        self.calls: dict[str, list[Call]] = {}
        self.errors: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        self.graphs: list[str] = []
        self.fastest = float("inf")
        self.want: Any = None

    def plan(
        self, name: str, plan: Any, weights: Mapping[str, Any], feeds: Sequence[Mapping[str, Any]], timed: bool = True
    ) -> None:
        """*plan* on every one of *feeds*; on the first one only, if a call is slow or time is over."""
        layer, cp = self.bench.layer, self.bench.cp
        if self._is_late(name):
            return
        made: list[Call] = []
        try:
            for feed in feeds:
                program = layer.compile_plan(plan, {k: weights[k] for k in plan.weights}, self.bench.cubin)
                for key in plan.inputs:
                    program.buffers[key][...] = cp.asarray(feed[key])
                if not made:
                    seconds = layer.single_call_seconds(program.execute)
                    if seconds > max(SLOW_PLAN_SECONDS, SLOW_PLAN_RATIO * self.fastest):
                        slower = f"more than {SLOW_PLAN_RATIO} times the fastest of the others"
                        self.failures[name] = f"{seconds * 1e3:.0f} ms, {slower}: left out"
                        return
                    self.fastest = min(self.fastest, seconds)
                    call = program.capture()
                    out = program.buffers[plan.outputs[0]]
                    out[...] = float("nan")  # what counts is what the graph writes
                    call()
                    self._compare(name, out)
                    made.append(call)
                    if seconds > SLOW_PLAN_SECONDS:
                        break
                elif perf_counter() > self.bench.until:
                    break
                else:
                    made.append(program.capture())
        except Exception as error:  # a library may lack what another has: the others are measured
            self.errors.pop(name, None)
            self.failures[name] = told(error)
            return
        self.allowed = max(self.allowed, plan.agreement)
        if timed:
            self.calls[name] = made
            self.graphs.append(name)

    def baseline(self, name: str, make: Callable[[], Sequence[Callable[[], Any]]], compiled: bool = False) -> None:
        """Calls that somebody else makes; as graphs where that can be.

        *compiled*: the first call compiles, which is interrupted when the entry's time is over.  Nothing else is: a
        capture that is cut off leaves its stream unusable.
        """
        if self._is_late(name):
            return
        try:
            with interrupted_at(self.bench.until if compiled else float("inf")):
                made = list(make())
                output = self.bench.cp.asarray(made[0]())
            if name != COPY:
                self._compare(name, output)
        except (Exception, TimeOver) as error:
            self.failures[name] = told(error)
            return
        try:
            self.calls[name] = [self.bench.graph(name, call) for call in made]
            self.graphs.append(name)
        except Exception as error:  # it is measured as it is, and said to be no graph
            self.failures[f"{name} as a graph"] = told(error)
            self.calls[name] = list(made)

    def _is_late(self, name: str) -> bool:
        """Whether the entry's time is over while something is there to be measured; then *name* is left out."""
        late = bool(self.calls) and perf_counter() > self.bench.until
        if late:
            self.failures[name] = f"{OVER}: left out"
        return late

    def _compare(self, name: str, output: Any) -> None:
        if self.want is None:
            self.want = output.copy()
        got = output.reshape(self.want.shape) if output.size == self.want.size else output
        self.errors[name] = error_of(self.want, got, self.bench.cp)

    def measured(self, ours: str | None) -> dict[str, Any]:
        """Times, ratios and errors; raises RuntimeError, with every reason, where nothing runs."""
        if not self.calls:
            raise RuntimeError("; ".join(f"{k}: {v}" for k, v in self.failures.items()))
        times = self.bench.rounds(self.calls)
        allowed = self.allowed * self.factor
        return {
            "times": {name: summary(samples) for name, samples in times.items()},
            "ratios": ratios(times, ours) if ours in times else {},
            "ours": ours,
            "errors": self.errors,
            "allowed": allowed,
            "wrong": any(error > allowed for error in self.errors.values()),
            "failures": self.failures,
            "as_graph": self.graphs,
        }
