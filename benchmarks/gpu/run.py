"""Check and measure on a GPU: standard library, NumPy and CuPy; torch only as a baseline."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.gpu import whole
from benchmarks.gpu.alone import there
from benchmarks.gpu.budget import Budget, TimeOver
from benchmarks.gpu.measuring import Bench, error_of, ratios, summary

__all__ = ["SAVED", "Session", "error_of", "ratios", "resumed", "run", "summary", "wanted"]

SAVED = ("checks", "ceilings", "cases", "models", "compiled", "profiles", "parts")
"""Kinds of measurements, the most valuable first; the parts of a model are measured before it."""

PRECISIONS = ("float32", "tf32")

SAVE_SECONDS = 2.0
"""Results are written so often at most: all of them are written, which takes longer than many measurements."""


def run(data: Path, out: Path, limit: float = 420.0, only: Collection[str] = ()) -> int:
    """Measure what is not yet in *out*, or failed, for at most *limit* seconds; return the exit code.

    Where *only* names kinds of ``SAVED``, no others are measured.  The exit code is 0 if all is done and right, 1 if
    something is wrong, 2 if there is no GPU (said in one line), and 3 if some is left to do.
    """
    from einnet_explore.runtime.cuda import execution as layer

    if lacking := layer.missing_for_cuda():
        print(f"error: no GPU to measure on: missing {', and '.join(lacking)}", file=sys.stderr)
        return 2
    kinds = tuple(kind for kind in SAVED if not only or kind in only)
    told = (data / "manifest.json").read_bytes()
    session = Session(layer, data, whole.read(data), out, hashlib.sha256(told).hexdigest()[:16], limit, kinds)
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


def wanted(manifest: Mapping[str, Any], with_torch: bool = True) -> dict[str, tuple[str, ...]]:
    """The names of all that is to be done, by kind; without torch nothing is compiled by it."""
    precise = [
        f"{case['name']}{mark(precision)}"
        for case in manifest["cases"]
        for precision in (PRECISIONS if by_library(case["plans"]) else PRECISIONS[:1])
    ]
    parts = {part["way"]: None for model in manifest["models"] for part in model["parts"]}
    models = [f"{m['name']}{mark(p)}" for p in PRECISIONS for m in manifest["models"]]
    # Products of a band are torch's only; our own kernels are the same in every precision.
    compiled = [
        f"{c['name']}{mark(p)}"
        for c in manifest["cases"]
        if c["kind"] in COMPILED
        for p in (PRECISIONS if c["kind"] == "band" else PRECISIONS[:1])
    ] + models
    return {
        "checks": tuple(check["name"] for check in manifest["checks"]),
        "ceilings": ("all",),
        "cases": tuple(precise),
        "parts": tuple(
            f"{key}{mark(p)}"
            for p in PRECISIONS
            for key in parts
            if p == PRECISIONS[0] or by_library(manifest["ways"][key]["plans"])
        ),
        "models": tuple(models),
        "profiles": tuple(" ".join(one["key"]) for one in manifest["profiles"]),
        "compiled": tuple(compiled) if with_torch else (),
    }


def unfinished(names: Iterable[str], done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return those of *names* that are not among *done*, or failed there."""
    return [name for name in names if "failure" in done.get(name, {"failure": ""})]


COMPILED = ("cast", "pointwise", "reduction", "band")
"""Kinds of cases that torch compiles too."""


def mark(precision: str) -> str:
    """Return the suffix of names in *precision*."""
    return "" if precision == "float32" else f" [{precision}]"


def unmarked(name: str) -> tuple[str, str]:
    """Return the name without its mark, and the precision that the mark stands for."""
    for precision in PRECISIONS[1:]:
        if name.endswith(mark(precision)):
            return name.removesuffix(mark(precision)), precision
    return name, PRECISIONS[0]


def by_library(plans: Mapping[str, Any]) -> bool:
    """Whether a library multiplies in one of *plans*, so that precisions differ."""
    return any(step["op"] != "launch" for plan in plans.values() for step in plan["steps"])


class Session:
    """One run on one device."""

    def __init__(
        self,
        layer: ModuleType,
        data: Path,
        manifest: Mapping[str, Any],
        out: Path,
        bundle: str,
        limit: float,
        kinds: Sequence[str] = SAVED,
    ) -> None:
        self.layer, self.manifest, self.out, self.kinds = layer, manifest, out, kinds
        self.cp = layer.cupy_package()
        self.torch = self._torch()
        self.budget = Budget(limit, kinds)
        head = {"bundle": bundle, "device": asdict(layer.cuda_device()), "versions": self._versions()}
        self.results = resumed(out, head)
        self.results.setdefault("begun", datetime.now(UTC).isoformat(timespec="seconds"))
        self.results["left_out"] = manifest["left_out"]
        self.results["skipped"] = {}
        self.saved = perf_counter()
        self.bench = Bench(layer, data, manifest, self.torch)

    def run(self) -> int:
        """Measure everything of ``kinds``, the most valuable first; save every ``SAVE_SECONDS`` and at the end."""
        names = wanted(self.manifest, self.torch is not None)
        acts: Mapping[str, Callable[[str], dict[str, Any]]] = {
            "checks": lambda name: self.bench.check(self._named("checks", name)),
            "ceilings": lambda _: self.bench.ceilings(),
            "cases": self._case,
            "parts": lambda name: self.bench.part(*unmarked(name)),
            "models": lambda name: self._model(name, False),
            "profiles": lambda name: self.bench.profile(self._named("profiles", name)),
            "compiled": self._compiled,
        }
        for kind in self.kinds:
            todo = unfinished(names[kind], self.results[kind])
            before = {name: self._unmeasured_parts(name) if kind == "models" else [] for name in todo}
            self.budget.begin(kind, len(todo) + sum(map(len, before.values())))
            for name in todo:
                for part in before[name]:
                    if part not in self.results["parts"]:
                        self._once("parts", part, acts["parts"], kind)
                self._once(kind, name, acts[kind])
        self._save()
        left = [f"{kind} {name}" for kind in self.kinds for name in names[kind] if name not in self.results[kind]]
        wrong = [n for kind in self.kinds for n, r in self.results[kind].items() if r.get("wrong")]
        failed = [n for kind in self.kinds for n, r in self.results[kind].items() if "failure" in r]
        print(f"{self.out}: {len(left)} left, {len(wrong)} wrong ({', '.join(wrong)}), {len(failed)} failed")
        return 1 if wrong or failed else 3 if left else 0

    def _unmeasured_parts(self, model: str) -> list[str]:
        """The parts of *model* that are not measured yet, by the names of their entries."""
        plain, precision = unmarked(model)
        keys = dict.fromkeys(part["way"] for part in self._named("models", plain)["parts"])
        exact = (f"{k}{mark(precision)}" if by_library(self.manifest["ways"][k]["plans"]) else k for k in keys)
        return [name for name in exact if name not in self.results["parts"]]

    def _once(self, kind: str, name: str, act: Callable[[str], dict[str, Any]], share: str = "") -> None:
        """Measure the entry *name* of *kind* in the time of the kind *share* (default: its own)."""
        if (why := self.budget.refused(share or kind)) is not None:
            self.results["skipped"][f"{kind} {name}"] = why
            return
        began = perf_counter()
        try:
            # Only compilers are interrupted: a capture that is cut off leaves its stream unusable.
            with self.budget.entry(interrupting=kind == "compiled") as until:
                self.bench.until = until
                found = act(name)
        except TimeOver as over:
            self.results["skipped"][f"{kind} {name}"] = str(over)
            print(f"{kind} {name}: skipped: {over}", flush=True)
            return
        except Exception as error:  # one that fails must not cost the others: it is told as what it is
            found = {"failure": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        took = perf_counter() - began
        self.cp.get_default_memory_pool().free_all_blocks()
        if self.torch is not None:
            self.torch.cuda.empty_cache()
        self.results[kind][name] = found | {"took": took}
        if perf_counter() - self.saved > SAVE_SECONDS:
            self._save()
        said = found.get("failure") or found.get("error") or found.get("ratios") or "done"
        lost = "".join(f"; {way}: {why[:100]}" for way, why in found.get("failures", {}).items())
        print(f"{kind} {name} ({took:.1f} s): {said}{lost}", flush=True)

    def _save(self) -> None:
        self.saved = perf_counter()
        aside = self.out.with_name(f"{self.out.name}.new")
        aside.write_text(json.dumps(self.results, indent=1))
        os.replace(aside, self.out)

    def _named(self, kind: str, name: str) -> Mapping[str, Any]:
        entries: Iterable[Mapping[str, Any]] = self.manifest[kind]
        return next(e for e in entries if name == (" ".join(e["key"]) if kind == "profiles" else e["name"]))

    def _case(self, name: str) -> dict[str, Any]:
        plain, precision = unmarked(name)
        return self.bench.case(self._named("cases", plain), precision)

    def _model(self, name: str, compiled: bool) -> dict[str, Any]:
        plain, precision = unmarked(name)
        return self.bench.model(self._named("models", plain), self.chosen(precision), precision, compiled)

    def _compiled(self, name: str) -> dict[str, Any]:
        plain, precision = unmarked(name)
        for case in self.manifest["cases"]:
            if case["name"] == plain:
                return self.bench.case(case, precision, compiled=True)
        return self._model(name, True)

    def chosen(self, precision: str) -> dict[str, str]:
        """The way of every part that was measured to be the fastest; the library's where it was not measured."""
        found = {}
        for key in self.manifest["ways"]:
            told = self.results["parts"].get(f"{key}{mark(precision)}", self.results["parts"].get(key, {}))
            found[key] = told.get("chosen", "library")
        return found

    def _versions(self) -> dict[str, str]:
        held = {"python": sys.version.split()[0], "numpy": np.__version__, "cupy": self.cp.__version__}
        if self.torch is not None:
            held |= {"torch": self.torch.__version__, "cudnn": str(self.torch.backends.cudnn.version())}
        return held

    def _torch(self) -> ModuleType | None:
        if not there("torch"):
            return None
        import torch

        return torch if torch.cuda.is_available() else None
