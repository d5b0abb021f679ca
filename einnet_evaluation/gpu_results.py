"""The paper's tables from a results file of a GPU machine: Fig. 12, Table 3 and Fig. 16.

``python -m benchmarks.gpu run`` writes the file on a machine with a GPU.  Nothing is measured here; cells of missing
results are empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from einnet_explore.viz.tables import Cell, ResultTable

DEFAULT_RESULTS_PATH = Path("benchmarks/results/gpu.json")

HOW = (
    "expected what a GPU wrote: python -m benchmarks.gpu bundle OUT.zip here, python -m benchmarks.gpu run --out "
    "gpu.json in the unpacked bundle where the GPU is, then --results gpu.json"
)

RIVALS = ("library", "torch", "torch, channels last", "torch.compile", "torch.compile, channels last")

WAYS = ("before, library", "before, generated", "before, tvm", "after, generated", "after")


def load_gpu_results(path: Path) -> Mapping[str, Any]:
    """Load the results in *path*; raise ValueError, with the command that measures them, if there are none."""
    try:
        loaded = json.loads(path.read_text())
    except OSError:
        raise ValueError(f"found no results of a GPU at {path}, {HOW}") from None
    except ValueError as error:
        raise ValueError(f"{path} holds no results ({error}), {HOW}") from None
    if not isinstance(loaded, dict) or not {"device", "versions", "cases", "models", "compiled"} <= set(loaded):
        raise ValueError(f"{path} holds no results of a GPU, {HOW}")
    return loaded


def gpu_tables(experiment: str, data: Mapping[str, Any]) -> tuple[ResultTable, ...]:
    """Return the tables of *experiment* (``e1``, ``e2`` or ``e3``); raise ValueError for another one."""
    match experiment:
        case "e1":
            return gpu_end_to_end_table(data), *gpu_failure_table("e1", data, ("parts", "models"))
        case "e2":
            rates = gpu_rate_table(data)
            failures = gpu_failure_table("e2", data, ("checks", "ceilings", "cases"))
            return gpu_table3(data), gpu_kernel_table(data), *rates, *failures
        case "e3":
            return (gpu_implementation_table(data),)
        case _:
            raise ValueError(f"experiment {experiment!r} on a GPU: expected one of e1, e2, e3")


def measurement_note(data: Mapping[str, Any]) -> str:
    """Return a note on the device, the versions, and the omitted measurements."""
    device = data["device"]
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    skipped = data.get("skipped", {})
    left = (
        f" {len(skipped)} entries were left out, as time was over: {', '.join(list(skipped)[:6])}." if skipped else ""
    )
    out = "".join(f" {name} is not in it: {why}." for name, why in data.get("left_out", {}).items())
    return (
        f"Measured on {device['name']} (driver {device['driver']}; {versions}) on {data.get('begun', '?')}.{left}{out}"
        + (f" {data['note']}" if "note" in data else "")
    )


def gpu_end_to_end_table(data: Mapping[str, Any]) -> ResultTable:
    """Fig. 12: every model against library calls for every part and torch; speed-up over the best of them."""
    rows: list[tuple[Cell, ...]] = []
    speedups: dict[tuple[int, str], list[float]] = {}
    for name, one in data["models"].items():
        if "failure" in one or not one["ratios"]:
            continue
        model, batch, precision = _named(name)
        found = {**data["compiled"].get(name, {}).get("ratios", {}), **one["ratios"]}
        seconds = {n: t["seconds"] for n, t in one["times"].items()}
        compiled = data["compiled"].get(name, {}).get("times", {})
        seconds |= {n: t["seconds"] for n, t in compiled.items() if n != "ours"}
        best = min(found, key=lambda n: found[n])
        speedups.setdefault((batch, precision), []).append(found[best])
        rows.append(
            (
                model, batch, precision, _ms(seconds.get("ours")), *(_ms(seconds.get(r)) for r in RIVALS),
                *(found.get(r) for r in RIVALS), best, found[best], one["derived_parts"], one["parts"],
                max(one["errors"].values()), not one["wrong"],
            )
        )  # fmt: skip
    short = [r.replace(", ", "_").replace(" ", "_").replace(".", "_") for r in RIVALS]
    head = (
        "model", "batch", "precision", "ours_ms", *(f"{r}_ms" for r in short), *(f"{r}_times_ours" for r in short),
        "best_rival", "speedup", "derived_parts", "parts", "max_rel_error", "right",
    )  # fmt: skip
    means = " ".join(
        f"Geometric mean over {len(found)} models at batch {batch}, {precision}: {geometric_mean(found):.2f}; "
        f"least {min(found):.2f}, most {max(found):.2f}."
        for (batch, precision), found in speedups.items()
    )
    return ResultTable(
        "e1",
        f"Fig. 12 on {data['device']['name']}",
        head,
        tuple(rows),
        f"{E1_NOTE} {means} {measurement_note(data)}",
    )


E1_NOTE = (
    "Milliseconds: medians of interleaved rounds, everything as one CUDA graph; library: every part by cuDNN and "
    "cuBLAS as the model has it; compiled engines were measured in turn with ours, in rounds of their own. Published, "
    "A100: up to 2.72 times the best rival, 1.52 on average."
)


def gpu_table3(data: Mapping[str, Any]) -> ResultTable:
    """Table 3: the library's best algorithm before (where there is none, generated), the derived program after."""
    rows: list[tuple[Cell, ...]] = []
    for name, one in _table3_cases(data):
        case, precision = _precision(name.removeprefix("Table 3 "))
        times = {n: t["seconds"] for n, t in one["times"].items()}
        before = next((n for n in WAYS[:2] if n in times), None)
        after = min((n for n in ("after", "after, generated") if n in times), key=lambda n: times[n], default=None)
        published = one["settings"]["published_ms"]
        speedup = _ratio(one, before, after)
        rows.append(
            (
                case, one["settings"]["figure"], precision, before, _ms(times.get(before or "")), after,
                _ms(times.get(after or "")), speedup, *published, published[0] / published[1], not one["wrong"],
            )
        )  # fmt: skip
    head = (
        "case", "figure", "precision", "before_by", "before_ms", "after_by", "after_ms", "speedup",
        "published_before_ms", "published_after_ms", "published_speedup", "right",
    )  # fmt: skip
    return ResultTable(
        "e2", f"Table 3 on {data['device']['name']}", head, tuple(rows), f"{TABLE3_NOTE} {measurement_note(data)}"
    )


TABLE3_NOTE = (
    "Before: cuDNN's fastest algorithm in that precision; after: the derived program, libraries' products and our "
    "eOperators. Published: A100. The published G2BMM after is an approximation, ours is exact."
)


def gpu_kernel_table(data: Mapping[str, Any]) -> ResultTable:
    """Kernels against CuPy, torch, and the device's own copy: element-wise, reductions, attention in a band.

    Cases of which only torch's precision differs are in ``compiled`` alone, with our kernel next to torch's.
    """
    copy = _rates(data).get("memory_bandwidth")
    rows: list[tuple[Cell, ...]] = []
    compiled = data["compiled"]
    alone = {n: one for n, one in compiled.items() if n not in data["cases"] and n not in data["models"]}
    entries = {
        n: one
        for n, one in (data["cases"] | alone).items()
        if not n.startswith("Table 3") and "failure" not in one and one["ours"] is not None
    }
    ratios = {n: {**compiled.get(n, {}).get("ratios", {}), **one["ratios"]} for n, one in entries.items()}
    rivals = [rival for rival in KERNEL_RIVALS if any(rival in found for found in ratios.values())]
    for name, one in entries.items():
        found, ours = ratios[name], one["ours"]
        rate, flops = one["bytes_per_second"][ours], one.get("flops_per_second", {}).get(ours)
        best = min((n for n in rivals if n in found), key=lambda n: found[n], default=None)
        rows.append(
            (
                name, _ms(one["times"][ours]["seconds"]), rate / 1e9, rate / copy if copy and not flops else None,
                flops / 1e12 if flops else None, *(found.get(n) for n in rivals), best, not one["wrong"],
            )
        )  # fmt: skip
    short = [n.replace(" ", "_").replace(".", "_").replace(",", "") for n in rivals]
    head = (
        "case", "ours_ms", "gigabytes_per_second", "of_copy_bandwidth", "teraflops_per_second",
        *(f"{n}_times_ours" for n in short), "nearest_rival", "right",
    )  # fmt: skip
    return ResultTable("e2_kernels", f"Kernels on {data['device']['name']}", head, tuple(rows), measurement_note(data))


KERNEL_RIVALS = (
    "cupy", "cupy.fuse", "torch", "torch.compile", "flex attention", "flex attention, tuned",
    "flex attention by residue", "flex attention by residue, tuned", "tvm", "unfused", "one element a thread",
)  # fmt: skip

RATE_UNITS = {
    "memory_bandwidth": ("GB/s", 1e9),
    "cache_bandwidth": ("GB/s", 1e9),
    "cache_bytes": ("MB", 1e6),
    "peak_flops": ("TFLOP/s", 1e12),
    "peak_flops_tf32": ("TFLOP/s", 1e12),
    "call_seconds": ("µs", 1e-6),
    "host_call_seconds": ("µs", 1e-6),
}
"""Unit of each rate of a device, and its size."""


def gpu_rate_table(data: Mapping[str, Any]) -> Iterable[ResultTable]:
    """Rates of the device as measured; none where they were not."""
    rates = _rates(data)
    rows = tuple((n.replace("_", " "), rates[n] / size, unit) for n, (unit, size) in RATE_UNITS.items() if n in rates)
    if rows:
        yield ResultTable("e2_rates", f"Rates of {data['device']['name']}", ("rate", "value", "unit"), rows, RATE_NOTE)


RATE_NOTE = "Products of 4096 rows and columns by cuBLAS; calls: a kernel of one element in a graph, and by CuPy alone."


def gpu_failure_table(experiment: str, data: Mapping[str, Any], kinds: Iterable[str]) -> Iterable[ResultTable]:
    """Entries of *kinds* that failed, and failed or omitted ways of others, with their reasons; none without any.

    What torch compiled is in the table of models or of the other cases.
    """
    entries = [(kind, name, one) for kind in kinds for name, one in data.get(kind, {}).items()]
    compiled = data["compiled"].items()
    entries += [("compiled", n, one) for n, one in compiled if (n in data["models"]) == (experiment == "e1")]
    rows = []
    for kind, name, one in entries:
        found = {"all": one["failure"]} if "failure" in one else one.get("failures", {})
        rows += [(kind, name, way, why[:_MAX_REASON]) for way, why in found.items()]
    if rows:
        head = ("kind", "entry", "way", "reason")
        yield ResultTable(f"{experiment}_failures", "Failures", head, tuple(rows), measurement_note(data))


_MAX_REASON = 120
"""Characters of a reason in a table; the results file has all."""


def _rates(data: Mapping[str, Any]) -> Mapping[str, float]:
    rates: Mapping[str, float] = data.get("ceilings", {}).get("all", {}).get("rates", {})
    return rates


def gpu_implementation_table(data: Mapping[str, Any]) -> ResultTable:
    """Fig. 16: each operator of Table 3 before and after, by library and by generators."""
    rows: list[tuple[Cell, ...]] = []
    for name, one in _table3_cases(data):
        case, precision = _precision(name.removeprefix("Table 3 "))
        for way in WAYS:
            if way in one["times"] or way in one["failures"]:
                seconds = one["times"].get(way, {}).get("seconds")
                rows.append((case, precision, way, _ms(seconds), _ratio(one, way, "after"), one["failures"].get(way)))
    head = ("case", "precision", "way", "ms", "times_after", "failure")
    return ResultTable("e3", f"Fig. 16 on {data['device']['name']}", head, tuple(rows), measurement_note(data))


def _table3_cases(data: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for name, one in data["cases"].items():
        if name.startswith("Table 3 ") and "failure" not in one:
            yield name, one


def _ratio(one: Mapping[str, Any], base: str | None, way: str | None) -> float | None:
    """Return the speed-up of *way* over *base* in the same rounds."""
    if base is None or way is None or not {base, way} <= set(one["times"]):
        return None
    if way == one["ours"] and base in one["ratios"]:
        return float(one["ratios"][base])
    return float(one["times"][base]["seconds"]) / float(one["times"][way]["seconds"])


def _precision(name: str) -> tuple[str, str]:
    plain, _, mark = name.partition(" [")
    return plain, mark.rstrip("]") or "float32"


def _named(name: str) -> tuple[str, int, str]:
    """(model, batch, precision) of an entry of ``models``; a model of the user's own has batch 0."""
    plain, precision = _precision(name)
    model, _, batch = plain.partition(", batch ")
    return model, int(batch) if batch.isdecimal() else 0, precision


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
