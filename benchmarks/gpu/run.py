"""Check and measure, where there is a GPU: standard library, NumPy and CuPy; torch only to compare with."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

AGREEMENT = 1e-4
"""The largest error allowed, relative to the largest output; of half precision ``HALF``."""

HALF = 1e-3
"""Half precision has eleven bits."""

SAVED = ("checks", "ceilings", "cases", "profiles")


def device_layer() -> ModuleType:
    """``einnet_explore.backends.cupy``, also where the compilers that the package's other backends need are not."""
    name = "einnet_explore.backends"
    if name not in sys.modules and find_spec("tvm") is None:
        # The package's own __init__ loads all backends: a plain one in its place loads those that are asked for.
        import einnet_explore

        plain = ModuleType(name)
        plain.__path__ = [str(Path(str(einnet_explore.__file__)).parent / "backends")]
        sys.modules[name] = plain
    from einnet_explore.backends import cupy

    return cupy


def run(data: Path, out: Path, limit: float = 420.0) -> int:
    """Do what is not yet in *out*, until *limit* seconds are over; the exit code says how it went.

    0: all is done and right; 1: something is wrong; 2: there is no GPU, said in one line; 3: some is left to do.
    """
    layer = device_layer()
    if lacking := layer.missing():
        print(f"error: no GPU to measure on: missing {', and '.join(lacking)}", file=sys.stderr)
        return 2
    told = (data / "manifest.json").read_bytes()
    session = Session(layer, data, json.loads(told), out, hashlib.sha256(told).hexdigest()[:16], limit)
    return session.run()


def resumed(out: Path, head: Mapping[str, Any]) -> dict[str, Any]:
    """The results in *out* if they are of the same bundle, device and versions as *head*, else none yet.

    Raises ValueError where *out* is something else than results: it is not overwritten.
    """
    fresh: dict[str, Any] = {**head, **{name: {} for name in SAVED}}
    if not out.exists():
        return fresh
    try:
        held = json.loads(out.read_text())
    except ValueError as error:
        raise ValueError(f"{out}: found no results of an earlier run ({error}); name another file") from None
    if not isinstance(held, dict) or not set(SAVED) <= set(held):
        raise ValueError(f"{out}: found no results of an earlier run; name another file")
    same = all(held.get(k) == head[k] for k in ("bundle", "device", "versions"))
    if not same:
        raise ValueError(f"{out}: results of another bundle, device or library version; name another file")
    return held


def ratios(times: Mapping[str, Sequence[float]], ours: str) -> dict[str, float]:
    """How many times as fast *ours* is as each other: the median over the rounds, which were interleaved."""
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


class Session:
    """One run on one device."""

    def __init__(
        self, layer: ModuleType, data: Path, manifest: Mapping[str, Any], out: Path, bundle: str, limit: float
    ) -> None:
        self.layer, self.data, self.manifest, self.out = layer, data, manifest, out
        self.cp = layer.package()
        self.until = perf_counter() + limit
        held = layer.device()
        head = {"bundle": bundle, "device": asdict(held), "versions": self._versions()}
        self.results = resumed(out, head)
        self.results.setdefault("begun", datetime.now(UTC).isoformat(timespec="seconds"))
        self.torch = self._torch()

    def run(self) -> int:
        """Everything, in the order of what it is worth; saved after each."""
        for check in self.manifest["checks"]:
            self._once("checks", check["name"], lambda check=check: self.check(check))
        self._once("ceilings", "all", self.ceilings)
        for case in self.manifest["cases"]:
            self._once("cases", case["name"], lambda case=case: self.case(case))
        for one in self.manifest["profiles"]:
            self._once("profiles", " ".join(one["key"]), lambda one=one: self.profile(one))
        wanted = {
            "checks": len(self.manifest["checks"]), "ceilings": 1, "cases": len(self.manifest["cases"]),
            "profiles": len(self.manifest["profiles"]),
        }  # fmt: skip
        left = sum(wanted.values()) - sum(len(self.results[k]) for k in SAVED)
        wrong = [n for kind in ("checks", "cases") for n, r in self.results[kind].items() if r.get("wrong")]
        failed = [n for kind in SAVED for n, r in self.results[kind].items() if "failure" in r]
        print(f"{self.out}: {left} left, {len(wrong)} wrong ({', '.join(wrong)}), {len(failed)} failed")
        return 1 if wrong or failed else 3 if left else 0

    def _once(self, kind: str, name: str, act: Callable[[], dict[str, Any]]) -> None:
        if name in self.results[kind] or perf_counter() > self.until:
            return
        began = perf_counter()
        try:
            found = act()
        except Exception as error:  # one that fails must not cost the others: it is told as what it is
            found = {"failure": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        self.cp.get_default_memory_pool().free_all_blocks()
        self.results[kind][name] = found | {"took": perf_counter() - began}
        aside = self.out.with_name(f"{self.out.name}.new")
        aside.write_text(json.dumps(self.results, indent=1))
        os.replace(aside, self.out)
        print(
            f"{kind} {name}: {found.get('failure') or found.get('error') or found.get('ratios') or 'done'}", flush=True
        )

    def check(self, check: Mapping[str, Any]) -> dict[str, Any]:
        """A plan on stored inputs against what the CPU's oracle said."""
        n = check["arrays"]
        with np.load(self.data / "checks.npz") as arrays:
            given = {k: arrays[f"{n} in {k}"] for k in check["inputs"]}
            wanted = {k: arrays[f"{n} out {k}"] for k in check["outputs"]}
        plan = self._plan(check["plan"])
        program = self.layer.compile_plan(plan, {k: given[k] for k in plan.weights}, self._cubin)
        got = program.run({k: given[k] for k in plan.inputs})
        error = max(error_of(wanted[k], got[k]) for k in wanted)
        if not self._capturable(plan):
            return {"error": error, "wrong": not error <= AGREEMENT}
        # The same once more as a graph, from cleared outputs.
        for name in wanted:
            program.buffers[name][...] = 0
        program.capture()()
        again = max(error_of(wanted[k], self.cp.asnumpy(program.buffers[k])) for k in wanted)
        return {"error": error, "error_as_graph": again, "wrong": not max(error, again) <= AGREEMENT}

    def ceilings(self) -> dict[str, Any]:
        """What the device can do at most, by the plainest means: copies, a large product, an empty launch."""
        cp, layer = self.cp, self.layer
        found: dict[str, Any] = {}
        for label, nbytes in (("memory_bandwidth", 1 << 28), ("cache_bandwidth", self._l2() // 4)):
            pairs = [
                (cp.zeros(nbytes, cp.uint8), cp.empty(nbytes, cp.uint8)) for _ in range(1 if "cache" in label else 2)
            ]
            turn = [lambda a=a, b=b: cp.copyto(b, a) for a, b in pairs]
            found[label] = 2 * nbytes / median(layer.seconds(turn))
        a = cp.random.standard_normal((4096, 4096), dtype=cp.float32)
        b, c = a.copy(), cp.empty_like(a)
        found["peak_flops"] = 2 * 4096**3 / median(layer.seconds([lambda: cp.matmul(a, b, out=c)]))
        tiny = cp.zeros(1, cp.float32)
        found["call_seconds"] = median(layer.seconds([lambda: cp.add(tiny, tiny, out=tiny)]))
        found["cache_bytes"] = self._l2()
        return {"rates": found}

    def case(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """Every plan and every baseline of a case, in interleaved rounds, on inputs in rotation past the L2."""
        from benchmarks.gpu.baselines import baselines

        plans = {name: self._plan(plan) for name, plan in case["plans"].items()}
        first = next(iter(plans.values()))
        copies = self.layer.rotations(case["nbytes"])
        feeds = [self._random(first, seed) for seed in range(copies)]
        calls: dict[str, list[Callable[[], object]]] = {}
        outputs: dict[str, Any] = {}
        failures: dict[str, str] = {}
        for name, plan in plans.items():
            try:
                programs = [self.layer.compile_plan(plan, self._weights(plan), self._cubin) for _ in range(copies)]
                for program, feed in zip(programs, feeds, strict=True):
                    for key in plan.inputs:
                        program.buffers[key][...] = feed[key]
                made = [p.capture() if self._capturable(plan) else p.execute for p in programs]
                made[0]()
                outputs[name] = self.cp.asnumpy(programs[0].buffers[plan.outputs[0]])
                calls[name] = made
            except Exception as error:  # a library may lack what another has: the others are measured
                failures[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        weights = self._weights(first)
        graphs = [name for name, plan in plans.items() if name in calls and self._capturable(plan)]
        for name, make in baselines(case["kind"], case["settings"], self.cp, self.torch).items():
            try:
                made = [make(feed, weights) for feed in feeds]
                outputs[name] = self.cp.asnumpy(self.cp.asarray(made[0]()))
                calls[name] = made
                calls[name] = [self._graph(name, call) for call in made]
                graphs.append(name)
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if not calls:
            raise RuntimeError("; ".join(f"{k}: {v}" for k, v in failures.items()))
        ours = next(iter(name for name in ("after", *plans) if name in calls), None)
        times = self.layer.timed(calls)
        base = next(iter(outputs))
        errors = {name: error_of(outputs[base], got.reshape(outputs[base].shape)) for name, got in outputs.items()}
        allowed = HALF if "float16" in first.dtypes.values() else AGREEMENT
        return {
            "times": {name: summary(samples) for name, samples in times.items()},
            "ratios": ratios(times, ours) if ours else {},
            "ours": ours,
            "bytes_per_second": {name: case["nbytes"] / median(t) for name, t in times.items()},
            "flops_per_second": {name: case["flops"] / median(t) for name, t in times.items()} if case["flops"] else {},
            "in_rotation": copies,
            "as_graph": graphs,
            "errors": errors,
            "wrong": any(e > allowed for name, e in errors.items() if name in plans),
            "failures": failures,
            "settings": case["settings"],
        }

    def profile(self, one: Mapping[str, Any]) -> dict[str, Any]:
        """The time of one equation, for searches elsewhere."""
        plan = self._plan(one["plan"])
        sizes = sum(int(np.prod(s)) * 4 for s in plan.buffers.values())
        turn = []
        for seed in range(self.layer.rotations(sizes)):
            program = self.layer.compile_plan(plan, self._weights(plan), self._cubin)
            for key, array in self._random(plan, seed).items():
                program.buffers[key][...] = array
            turn.append(program.execute)
        return {"key": one["key"], **summary(self.layer.seconds(turn))}

    def _graph(self, name: str, call: Callable[[], Any]) -> Callable[[], object]:
        """A baseline as one CUDA graph too: else what is compared for small sizes is Python."""
        if not name.startswith("torch"):
            return self.layer.captured(call)  # type: ignore[no-any-return]
        torch = self.torch
        assert torch is not None
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = call()

        def replay(_held: object = held) -> None:
            graph.replay()

        return replay

    def _capturable(self, plan: Any) -> bool:
        """Whether *plan* can be one CUDA graph: torch's memory may be given to others while a graph still uses it."""
        return all(step.op != "convolution" for step in plan.steps[plan.once :])

    def _plan(self, told: Mapping[str, Any]) -> Any:
        from einnet_explore.backends.cuda_steps import from_json

        return from_json(told)

    def _random(self, plan: Any, seed: int) -> dict[str, Any]:
        random = self.cp.random.RandomState(seed)
        return {k: random.standard_normal(plan.buffers[k]).astype(self.cp.float32) for k in plan.inputs}

    def _weights(self, plan: Any) -> dict[str, Any]:
        random = np.random.default_rng(0)
        return {k: random.standard_normal(plan.buffers[k]).astype(np.float32) for k in sorted(plan.weights)}

    def _cubin(self, step: Any) -> str | None:
        name = hashlib.sha256(f"{step.entry}\n{step.text}".encode()).hexdigest()[:16]
        # Machine code runs on later devices of the same major version.
        path = self.data / "kernels" / f"{name}.sm_{self.layer.device().capability[:-1]}0.cubin"
        return str(path) if path.exists() else None

    def _l2(self) -> int:
        return int(self.layer.device().l2_bytes)

    def _versions(self) -> dict[str, str]:
        held = {"python": sys.version.split()[0], "numpy": np.__version__, "cupy": self.cp.__version__}
        if find_spec("torch") is not None:
            import torch

            held |= {"torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}
        return held

    def _torch(self) -> ModuleType | None:
        if find_spec("torch") is None:
            return None
        import torch

        if not torch.cuda.is_available():
            return None
        torch.backends.cudnn.benchmark = True  # the library's best algorithm is what is to be beaten
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        return torch
