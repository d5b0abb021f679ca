"""Check and measure on a GPU: standard library, NumPy and CuPy; torch only as a baseline."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.gpu import whole
from benchmarks.gpu.alone import there
from benchmarks.gpu.budget import OVER, Budget
from benchmarks.gpu.measuring import Bench, error_of, ratios, summary

__all__ = ["SAVED", "Session", "error_of", "ratios", "resumed", "run", "summary", "wanted"]

SAVED = ("checks", "ceilings", "models", "compiled", "cases", "profiles", "parts")
"""Kinds of measurements; the parts of a model are measured before it."""

PRECISIONS = ("float32", "tf32")

SAVE_SECONDS = 0.5
"""Results are written so often at most: all of them are written, which takes longer than many measurements."""

MAX_QUICK_COMPILED = 1
"""Cases of each kind that torch compiles in a quick bundle: a compilation takes seconds."""


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


def wanted(manifest: Mapping[str, Any], with_torch: bool = True) -> tuple[tuple[str, str], ...]:
    """Return (kind, name) of all that is to be done, the most valuable first; without torch nothing is compiled by it.

    These are whole models at their first batch in float32, attention to a band, Table 3, reductions and products, what
    is bound by memory, then other precisions and batches.
    """
    first: dict[str, str] = {}
    for model in manifest["models"]:
        first.setdefault(model["name"].partition(",")[0], model["name"])
    models = [m["name"] for m in manifest["models"]]
    early = [name for name in models if name in first.values()]
    late = [name for name in models if name not in early]
    cases = {kind: [c for c in manifest["cases"] if c["kind"] == kind] for kind in CASE_KINDS}
    found: list[tuple[str, str]] = [("checks", check["name"]) for check in manifest["checks"]]
    found.append(("ceilings", "all"))

    def add_models(names: Iterable[str], precision: str) -> None:
        for name in names:
            found.extend((kind, f"{name}{mark(precision)}") for kind in ("models", "compiled"))

    def add_cases(kind: str, precision: str) -> None:
        for n, case in enumerate(cases[kind]):
            name = f"{case['name']}{mark(precision)}"
            if precision == PRECISIONS[0] or by_library(case["plans"]):
                found.append(("cases", name))
            # Products of a band are torch's only; our own kernels are the same in every precision.
            is_compiled = kind in COMPILED and (precision == PRECISIONS[0] or kind == "band")
            if is_compiled and not (manifest["quick"] and n >= MAX_QUICK_COMPILED):
                found.append(("compiled", name))

    exact, *others = PRECISIONS
    add_models(early, exact)
    for kind in CASE_KINDS:
        add_cases(kind, exact)
    for precision in others:
        add_models(early, precision)
        for kind in CASE_KINDS:
            add_cases(kind, precision)
    for precision in PRECISIONS:
        add_models(late, precision)
    parts = {part["way"]: None for model in manifest["models"] for part in model["parts"]}
    found += [
        ("parts", f"{key}{mark(p)}")
        for p in PRECISIONS
        for key in parts
        if p == exact or by_library(manifest["ways"][key]["plans"])
    ]
    found += [("profiles", " ".join(one["key"])) for one in manifest["profiles"]]
    return tuple((kind, name) for kind, name in found if with_torch or kind != "compiled")


def unfinished(
    entries: Iterable[tuple[str, str]], done: Mapping[str, Any], ended_in: Collection[str] = ()
) -> list[tuple[str, str]]:
    """Return those of *entries* that are not among *done*, or not whole there.

    What failed, what a compiler had no time for, and what a run *ended_in* comes last.
    """

    def is_whole(one: Mapping[str, Any]) -> bool:
        return "failure" not in one and not any(OVER in why for why in one.get("failures", {}).values())

    left = [(kind, name) for kind, name in entries if not is_whole(done[kind].get(name, {"failure": ""}))]
    return sorted(left, key=lambda entry: entry[1] in done[entry[0]] or " ".join(entry) in ended_in)


CASE_KINDS = ("band", "table 3", "reduction", "product", "bandwidth", "cast", "pointwise")
"""Kinds of cases, the most valuable first."""

COMPILED = ("band", "reduction", "product", "cast", "pointwise")
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
        self.budget = Budget(limit)
        head = {"bundle": bundle, "device": asdict(layer.cuda_device()), "versions": self._versions()}
        self.results = resumed(out, head)
        self.results.setdefault("begun", datetime.now(UTC).isoformat(timespec="seconds"))
        self.results["left_out"] = manifest["left_out"]
        self.results["skipped"] = {}
        self.saved = perf_counter()
        self.running = out.with_name(f"{out.name}.running")
        if self.running.exists():  # an earlier run was killed in it: it may happen again
            self.results.setdefault("ended_in", []).append(self.running.read_text())
        self.bench = Bench(layer, data, manifest, self.torch)

    def run(self) -> int:
        """Measure everything of ``kinds``, the most valuable first; save every ``SAVE_SECONDS`` and at the end."""
        entries = [(kind, name) for kind, name in wanted(self.manifest, self.torch is not None) if kind in self.kinds]
        for kind, name in unfinished(entries, self.results, self.results.get("ended_in", ())):
            if kind == "models":
                for part in self._unmeasured_parts(name):
                    self._once("parts", part)
            if kind != "parts" or name not in self.results["parts"]:
                self._once(kind, name)
        self.running.unlink(missing_ok=True)
        self._save()
        left = [name for kind, name in entries if name not in self.results[kind]]
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

    def _act(self, kind: str, name: str) -> dict[str, Any]:
        match kind:
            case "checks":
                return self.bench.check(self._named("checks", name))
            case "ceilings":
                return self.bench.ceilings()
            case "cases":
                return self._case(name)
            case "parts":
                return self.bench.part(*unmarked(name))
            case "models":
                return self._model(name, False)
            case "profiles":
                return self.bench.profile(self._named("profiles", name))
            case _:
                return self._compiled(name)

    def _once(self, kind: str, name: str) -> None:
        """Measure the entry *name* of *kind*, and save what is known by then, so that a kill loses little."""
        if (why := self.budget.refused()) is not None:
            self.results["skipped"][f"{kind} {name}"] = why
            return
        began = perf_counter()
        self.running.write_text(f"{kind} {name}")
        try:
            self.bench.until = self.budget.until(kind)
            found = self._act(kind, name)
        except Exception as error:  # one that fails must not cost the others: it is told as what it is
            found = {"failure": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        took = perf_counter() - began
        self.cp.get_default_memory_pool().free_all_blocks()
        if self.torch is not None:
            self.torch.cuda.empty_cache()
        self.results[kind][name] = found | {"took": took}
        if max(took, perf_counter() - self.saved) > SAVE_SECONDS:
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
        try:
            import torch

            return torch if torch.cuda.is_available() else None
        except (ImportError, OSError, RuntimeError) as error:  # its libraries do not load: nothing else needs it
            print(f"torch is left out: {' '.join(str(error).split())[:200]}", flush=True)
            return None
