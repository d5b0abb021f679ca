"""Compare the plans of two checkouts: ``python -m benchmarks.versions OTHER [MODEL …]``.

Each checkout optimises each model in a process of its own with an empty cache; then both plans are called in turns, on
the same inputs.  The table has the ratio of the other checkout's time to this one's (above 1: this one is faster), with
quartiles, and both times.  Of both first runs it has the seconds, the largest resident memory above that after imports,
the speedup estimated after a minute and at the end of tuning, and the derivations kept.  A model is a name of the zoo
or of the evaluation, or a file; without any, all of them are compared.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from os import environ
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import numpy as np
import onnx

HERE = Path(__file__).parents[1]
WORKER = "--worker"
ROUNDS = 12
ANYTIME_SECONDS = 60.0
"""Seconds of a first run after which the speedup so far is shown."""
SECONDS = 0.3
"""Seconds of calls in each turn; the lower quartile counts."""


def main() -> None:
    """Print one line for each model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("other", type=Path, metavar="OTHER", help="the folder of another checkout")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names or files")
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="of each model (default: 60)")
    asked = parser.parse_args()
    roots = {"other": asked.other.resolve(), "this": HERE}
    with tempfile.TemporaryDirectory() as folder:
        for n, (name, path, feeds) in enumerate(_models(asked.models, Path(folder))):
            order = ("other", "this") if n % 2 else ("this", "other")
            workers = {which: _start(roots[which], path, feeds, asked.budget) for which in order}
            ready = {which: _answer(workers[which]) for which in order}
            times: dict[str, list[float]] = {"other": [], "this": []}
            for turn in range(ROUNDS if all(ready.values()) else 0):
                for which in order if turn % 2 else order[::-1]:
                    times[which].append(float(_answer(workers[which], "go")[0]))
            for worker in workers.values():
                worker.communicate()
            print(_line(name, ready, times), flush=True)


def _line(name: str, ready: dict[str, list[str]], times: dict[str, list[float]]) -> str:
    if not times["this"]:
        return f"{name}: found no plan of {' and '.join(which for which, found in ready.items() if not found)}"
    ratios = [a / b for a, b in zip(times["other"], times["this"], strict=True)]
    low, _, high = quantiles(ratios, n=4)
    (before, kept), (after, keeps) = (_describe_run(ready[which]) for which in ("other", "this"))
    micros = [f"{median(times[which]) * 1e6:.0f} µs" for which in ("other", "this")]
    told = (f"{median(ratios):.3f} ({low:.3f} to {high:.3f})", " to ".join(micros), f"first runs {before}; {after}")
    return " | ".join((name, *told, f"kept {kept}, {keeps}"))


def _describe_run(answer: list[str]) -> tuple[str, str]:
    """Return the seconds, memory and estimates of a first run, and the derivations that it keeps."""
    seconds, megabytes, early, late, kept, parts = answer
    return f"{seconds} s, {megabytes} MB, {early} after {ANYTIME_SECONDS:.0f} s, {late}", f"{kept} of {parts}"


def _models(names: Iterable[str], folder: Path) -> Iterable[tuple[str, Path, Path]]:
    """Yield the name, file and inputs of each model."""
    from benchmarks.zoo import KINDS
    from einnet_evaluation.models import MODELS
    from einnet_explore.onnx_import.load import load_model
    from einnet_explore.pipeline.baseline import random_model_inputs

    known = {kind.name: kind.write for kind in KINDS} | {
        each.name: lambda e=each: e.write(1, e.size) for each in MODELS
    }
    for name in names or known:
        path = folder / f"{name}.onnx" if name in known else Path(name)
        if name in known:
            onnx.save(known[name](), path)
        feeds = folder / "inputs.npz"
        np.savez(feeds, **random_model_inputs(load_model(path), 0))  # type: ignore[arg-type]
        yield path.stem, path, feeds


def _start(root: Path, model: Path, feeds: Path, budget: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", __file__, WORKER, str(root), str(model), str(feeds), str(budget)]
    cache = {"EINNET_EXPLORE_CACHE": tempfile.mkdtemp(dir=feeds.parent), "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, text=True, cwd=root, env={**environ, **cache}, **pipes)  # type: ignore[call-overload, no-any-return]


def _answer(worker: subprocess.Popen[str], request: str = "") -> list[str]:
    assert worker.stdin is not None and worker.stdout is not None
    if request:
        worker.stdin.write(f"{request}\n")
        worker.stdin.flush()
    return worker.stdout.readline().split()


def _megabytes(what: str) -> float:
    """Return the resident memory of this process: *what* is ``VmRSS`` (now) or ``VmHWM`` (at most)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[what].split()[0]) / 1024


def _work(root: str, model: str, feeds: str, budget: str) -> None:
    """Optimise *model* with the package in *root*, then answer each line with the seconds of a call."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what the package prints is no answer
    sys.path.insert(0, root)
    import einnet_explore as ee

    ee.optimize  # noqa: B018 - imports what it needs
    with suppress(ImportError):
        import tvm  # type: ignore[import-untyped]  # noqa: F401 - it is imported when it is first used
    imports, began = _megabytes("VmRSS"), perf_counter()
    fast = ee.optimize(model, threads=1, budget=float(budget))
    told = (f"{perf_counter() - began:.0f}", f"{_megabytes('VmHWM') - imports:.0f}")
    estimates = [1.0, *(speedup for _, speedup in fast.progress[:-1])]
    early = 1 + sum(at <= ANYTIME_SECONDS for at, _ in fast.progress[:-1])
    speedups = (f"{estimates[early - 1]:.2f}", f"{estimates[-1]:.2f}")
    print(*told, *speedups, sum(part.kept for part in fast.parts), len(fast.parts), file=answers, flush=True)
    given = dict(np.load(feeds))
    for _ in sys.stdin:
        taken, end = list[float](), perf_counter() + SECONDS
        while perf_counter() < end or len(taken) < ROUNDS:
            start = perf_counter()
            fast.plan.run(given)
            taken.append(perf_counter() - start)
        print(quantiles(taken, n=4)[0], file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        _work(*sys.argv[2:])
    else:
        main()
