"""Checks and measurements on a device: plans and baselines in interleaved rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from benchmarks.gpu import torch_side, whole
from benchmarks.gpu.baselines import baselines, compiled_baselines

ROUNDS, FEWEST = 5, 3

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


def error_of(want: Any, got: Any) -> float:
    """The largest difference relative to the largest element; infinite where shapes or NaNs differ."""
    want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    if want.shape != got.shape or not np.isfinite(got).all():
        return float("inf")
    largest = float(np.abs(want).max(initial=0.0))
    return float(np.abs(want - got).max(initial=0.0)) / (largest or 1.0)


def told(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


class Bench:
    """The device *layer*, the bundle's *data*, and torch where it is; ``until`` is when an entry should be done."""

    def __init__(self, layer: ModuleType, data: Path, manifest: Mapping[str, Any], torch: ModuleType | None) -> None:
        self.layer, self.data, self.manifest, self.torch = layer, data, manifest, torch
        self.cp: Any = layer.cupy_package()
        self.until = float("inf")
        if torch is not None:
            torch_side.precise(torch, "float32")

    def check(self, check: Mapping[str, Any]) -> dict[str, Any]:
        """A plan on stored inputs against what the CPU's oracle said: as it is, as a graph, and in TF32."""
        n = check["arrays"]
        with np.load(self.data / "arrays.npz") as arrays:
            given = {k: arrays[f"{n} in {k}"] for k in check["inputs"]}
            want = {k: arrays[f"{n} out {k}"] for k in check["outputs"]}
        plan = self._plan(check["plan"])
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
        """Measure the limits of the device: copies, a large product, an empty launch."""
        cp, layer = self.cp, self.layer
        found: dict[str, Any] = {}
        cache = int(layer.cuda_device().l2_bytes)
        for label, nbytes in (("memory_bandwidth", 1 << 30), ("cache_bandwidth", cache // 4)):
            pairs = [
                (cp.zeros(nbytes, cp.uint8), cp.empty(nbytes, cp.uint8)) for _ in range(1 if "cache" in label else 2)
            ]
            turn = [lambda a=a, b=b: cp.copyto(b, a) for a, b in pairs]
            found[label] = 2 * nbytes / median(layer.event_seconds(turn))
        side = 4096
        square = {"name": "a", "offset": 0, "shape": [side, side], "strides": [side, 1]}
        step = {"op": "product", "out": {**square, "name": "c"}, "left": square, "right": {**square, "name": "b"}}
        plan = {"buffers": {n: [side, side] for n in "abc"}, "inputs": ["a", "b"], "weights": [], "outputs": ["c"]}
        made = self._plan(
            {**plan, "steps": [step], "once": 0, "dtype": "float32", "dtypes": {}, "precision": "float32"}
        )
        for label, precision in (("peak_flops", "float32"), ("peak_flops_tf32", "tf32")):
            program = layer.compile_plan(replace(made, precision=precision), {}, self.cubin)
            for name in "ab":
                program.buffers[name][...] = cp.random.standard_normal((side, side), dtype=cp.float32)
            found[label] = 2 * side**3 / median(layer.event_seconds([program.execute]))
        tiny = cp.zeros(1, cp.float32)
        found["call_seconds"] = median(layer.event_seconds([lambda: cp.add(tiny, tiny, out=tiny)]))
        found["cache_bytes"] = cache
        return {"rates": found}

    def case(self, case: Mapping[str, Any], precision: str, compiled: bool = False) -> dict[str, Any]:
        """Every plan and every baseline of a case, on inputs in rotation past the L2.

        *compiled*: the first plan beside what torch compiles instead.
        """
        plans = {name: replace(self._plan(p), precision=precision) for name, p in case["plans"].items()}
        if compiled:
            plans = dict(list(plans.items())[:1])
        first = next(iter(plans.values()))
        copies = self.layer.rotation_copies(case["nbytes"])
        feeds = [self._random(first, seed) for seed in range(copies)]
        held = _Held(self)
        runs = case["settings"].get("runs", {})
        for name, plan in plans.items():
            held.plan(name, plan, self._weights(plan, runs), feeds)
        weights = self._weights(first, runs)
        if compiled:
            assert self.torch is not None
            others = compiled_baselines(case["kind"], case["settings"], self.torch)
        else:
            others = baselines(case["kind"], case["settings"], self.cp, self.torch)
        for name, make in others.items():
            held.baseline(name, lambda make=make: [make(feed, weights) for feed in feeds])  # type: ignore[misc]
        found = held.measured(next((name for name in ("after", *plans) if name in held.calls), None), first.agreement)
        times = {name: one["seconds"] for name, one in found["times"].items()}
        flops = case["flops"]
        return found | {
            "bytes_per_second": {name: case["nbytes"] / t for name, t in times.items()},
            "flops_per_second": {name: flops / t for name, t in times.items()} if flops else {},
            "in_rotation": copies,
            "settings": case["settings"],
            "precision": precision,
        }

    def part(self, key: str, precision: str) -> dict[str, Any]:
        """The ways of a part; *chosen* is the fastest of those that agree."""
        model, part = next((m, p) for m in self.manifest["models"] for p in m["parts"] if p["way"] == key)
        weights = whole.weights_of(model, self.stored)
        plans = {n: replace(self._plan(p), precision=precision) for n, p in self.manifest["ways"][key]["plans"].items()}
        first = next(iter(plans.values()))
        copies = self.layer.rotation_copies(sum(4 * int(np.prod(shape)) for shape in first.buffers.values()))
        feeds = [self._random(first, seed) for seed in range(min(copies, 8))]
        held = _Held(self)
        for name, plan in plans.items():
            held.plan(name, plan, {k: weights[part["names"][k]] for k in plan.weights}, feeds)
        found = held.measured("library" if "library" in held.calls else None, first.agreement)
        good = {n: t["seconds"] for n, t in found["times"].items() if found["errors"][n] <= first.agreement}
        return found | {"chosen": whole.best(good, "library") if good else "library", "precision": precision}

    def model(
        self, model: Mapping[str, Any], chosen: Mapping[str, str], precision: str, compiled: bool
    ) -> dict[str, Any]:
        """A whole model: ours, the library's way of every part, torch eager; or *compiled*, ours and torch's."""
        weights, feeds = whole.weights_of(model, self.stored), whole.inputs_of(model, 0)
        ways = self.manifest["ways"]
        plans = {"ours": whole.composed(model, ways, chosen, precision)}
        if not compiled:
            plans["library"] = whole.composed(model, ways, dict.fromkeys(ways, "library"), precision)
        exact = whole.composed(model, ways, dict.fromkeys(ways, "library"))
        held = _Held(self)
        if precision != "float32":
            # The reference of the others; it is not timed.
            held.plan("float32", exact, weights, [feeds], timed=False)
        for name, plan in plans.items():
            held.plan(name, plan, weights, [feeds])
        text = model["torch"]
        if self.torch is not None and text and "text" in text:
            torch_side.precise(self.torch, precision)
            try:
                made = torch_side.module(self.torch, text, weights)
                given = [self.torch.from_numpy(x).cuda() for x in feeds.values()]
                calls = (torch_side.compiled if compiled else torch_side.calls)(self.torch, made, given)
                for name, call in calls.items():
                    held.baseline(name, lambda call=call: [call])  # type: ignore[misc]
            finally:
                torch_side.precise(self.torch, "float32")
        depth = max(1, sum(step.op != "launch" for step in exact.steps))
        found = held.measured("ours", plans["ours"].agreement * depth**0.5)
        others: Mapping[str, float] = found["ratios"]
        return found | {
            "ratio_to_best": min(others.values()) if others else None,
            "flops_per_second": {n: model["flops"] / t["seconds"] for n, t in found["times"].items()},
            "derived_parts": sum(chosen[part["way"]] != "library" for part in model["parts"]),
            "parts": len(model["parts"]),
            "precision": precision,
            "numerics": plans["ours"].numerics,
        }

    def profile(self, one: Mapping[str, Any]) -> dict[str, Any]:
        """The time of one equation, for searches elsewhere."""
        plan = self._plan(one["plan"])
        sizes = sum(int(np.prod(s)) * 4 for s in plan.buffers.values())
        turn = []
        for seed in range(self.layer.rotation_copies(sizes)):
            program = self.layer.compile_plan(plan, self._weights(plan), self.cubin)
            for key, array in self._random(plan, seed).items():
                program.buffers[key][...] = array
            turn.append(program.capture())
        return {"key": one["key"], **summary(self.layer.event_seconds(turn))}

    @property
    def stored(self) -> Mapping[str, Any]:
        """The bundle's arrays."""
        with np.load(self.data / "arrays.npz") as arrays:
            return {name: arrays[name] for name in arrays.files if name.startswith("weight ")}

    def rounds(self, calls: Mapping[str, Sequence[Call]]) -> dict[str, list[float]]:
        """Seconds of each in interleaved rounds: fewer, where time is short."""
        found: dict[str, list[float]] = {name: [] for name in calls}
        for n in range(ROUNDS):
            if n >= FEWEST and perf_counter() > self.until:
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

    def _plan(self, plan: Mapping[str, Any]) -> Any:
        from einnet_explore.runtime.cuda.steps import cuda_plan_from_json

        return cuda_plan_from_json(plan)

    def _random(self, plan: Any, seed: int) -> dict[str, Any]:
        random = self.cp.random.RandomState(seed)
        return {k: random.standard_normal(plan.buffers[k]).astype(self.cp.float32) for k in plan.inputs}

    def _weights(
        self, plan: Any, runs: Mapping[str, Sequence[tuple[int, float]]] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Random weights of *plan*, except those that *runs* tell: so many times each number."""
        random = np.random.default_rng(0)
        drawn = {k: random.standard_normal(plan.buffers[k]).astype(np.float32) for k in sorted(plan.weights)}
        told = {k: np.repeat([v for _, v in run], [n for n, _ in run]).astype(np.float32) for k, run in runs.items()}
        return drawn | told


class _Held:
    """Calls by name, each in as many copies as there are inputs in rotation; what fails is told, and left out."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.calls: dict[str, list[Call]] = {}
        self.outputs: dict[str, Any] = {}
        self.failures: dict[str, str] = {}
        self.plans: list[str] = []
        self.graphs: list[str] = []

    def plan(
        self, name: str, plan: Any, weights: Mapping[str, Any], feeds: Sequence[Mapping[str, Any]], timed: bool = True
    ) -> None:
        """*plan* on every one of *feeds*."""
        layer, cp = self.bench.layer, self.bench.cp
        try:
            made = []
            for n, feed in enumerate(feeds):
                program = layer.compile_plan(plan, {k: weights[k] for k in plan.weights}, self.bench.cubin)
                for key in plan.inputs:
                    program.buffers[key][...] = cp.asarray(feed[key])
                call = program.capture()
                call()
                made.append(call)
                if n == 0:
                    self.outputs[name] = cp.asnumpy(program.buffers[plan.outputs[0]])
        except Exception as error:  # a library may lack what another has: the others are measured
            self.failures[name] = told(error)
            return
        if timed:
            self.calls[name] = made
            self.plans.append(name)
            self.graphs.append(name)

    def baseline(self, name: str, make: Callable[[], Sequence[Callable[[], Any]]]) -> None:
        """Calls that somebody else makes; as graphs where that can be."""
        cp = self.bench.cp
        try:
            made = list(make())
            self.outputs[name] = cp.asnumpy(cp.asarray(made[0]()))
        except Exception as error:
            self.failures[name] = told(error)
            return
        try:
            self.calls[name] = [self.bench.graph(name, call) for call in made]
            self.graphs.append(name)
        except Exception as error:  # it is measured as it is, and said to be no graph
            self.failures[f"{name} as a graph"] = told(error)
            self.calls[name] = list(made)

    def measured(self, ours: str | None, allowed: float) -> dict[str, Any]:
        """Times, ratios and errors; raises RuntimeError, with every reason, where nothing runs."""
        if not self.calls:
            raise RuntimeError("; ".join(f"{k}: {v}" for k, v in self.failures.items()))
        times = self.bench.rounds(self.calls)
        want = next(iter(self.outputs.values()))
        errors = {name: error_of(want, np.asarray(got).reshape(want.shape)) for name, got in self.outputs.items()}
        return {
            "times": {name: summary(samples) for name, samples in times.items()},
            "ratios": ratios(times, ours) if ours in times else {},
            "ours": ours,
            "errors": errors,
            "allowed": allowed,
            "wrong": any(error > allowed for error in errors.values()),
            "failures": self.failures,
            "as_graph": self.graphs,
        }
