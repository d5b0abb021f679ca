"""Compare the cost model with measurements: does it rank operators correctly?

``python -m benchmarks.costs [--threads N] [--store FILE]``.  Each operator is measured with its fastest implementation
(or read from the profile store).  The last line is Spearman's rank correlation of estimates and times over all
operators, over contractions, and over eOperators.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import contractions, eoperators
from einnet_explore.cost import CostModel, Device, cpu_default
from einnet_explore.ir import EOPERATOR, Equation, Instance
from einnet_explore.runtime.implementation_choice import ProfileStore, peak_flops, stream_bandwidth
from einnet_explore.syntax import parse


def here(threads: int) -> Device:
    """Return the cost model's description of this machine."""
    return replace(
        cpu_default(threads),
        peak_flops=peak_flops(threads),
        memory_bandwidth=stream_bandwidth(threads),
        cache_bandwidth=stream_bandwidth(threads, 1 << 20),
    )


def cases() -> dict[str, Equation]:
    """Return library operators and eOperators."""
    found = dict(contractions.CASES)
    for name, text in eoperators.CASES.items():
        found[name] = replace(parse(text).equations[-1], via=Instance(EOPERATOR))
    return found


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation of *a* and *b*; 1 if they agree on the order."""
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def main(argv: Sequence[str] = ()) -> None:
    """Print one line per case, then the correlations."""
    parser = argparse.ArgumentParser(prog="benchmarks.costs", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--store", type=Path, help="profiles to use instead of the user's")
    arguments = parser.parse_args(argv)
    store, model = ProfileStore(arguments.store), CostModel(here(arguments.threads))
    print(f"{'operator':34} {'estimate µs':>12} {'time µs':>10} {'ratio':>6}   threads: {arguments.threads}")
    rows: dict[str, tuple[float, float]] = {}
    for name, equation in cases().items():
        estimate = model.estimate(equation)
        rows[name] = estimate.seconds, store.measured(equation, arguments.threads).seconds
        expected, seconds = (value * 1e6 for value in rows[name])
        print(f"{name:34} {expected:12.1f} {seconds:10.1f} {expected / seconds:6.2f}   {estimate.how}", flush=True)
    for kind, names in (("all", rows), ("contractions", contractions.CASES), ("eOperators", eoperators.CASES)):
        print(f"rank correlation, {kind}: {correlation(*zip(*(rows[n] for n in names), strict=True)):.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
