"""Run random tests of one kind for a long time: ``python -m benchmarks.soak KIND``; the package describes them."""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from benchmarks.soak import conformance, expressions, graphs, kills, optimisers, verdicts  # noqa: E402
from benchmarks.soak.runner import State, soak  # noqa: E402
from einnet_explore.support.executors import connect_cluster  # noqa: E402
from einnet_explore.support.storage import cache_directory  # noqa: E402

KINDS = {
    "expressions": (expressions.item, 60.0),
    "graphs": (graphs.item, 180.0),
    "conformance": (conformance.item, 120.0),
    "kills": (kills.item, 180.0),
    "optimisers": (optimisers.item, 180.0),
    "verdicts": (verdicts.item, 120.0),
}
"""The function that runs an item, and the seconds after which it counts as hanging."""


def main() -> int:
    """Run the command; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, help="number of items (default: no limit); an item of expressions has 50")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time limit (default: none)")
    parser.add_argument("--seed", type=int, default=0, help="seed from which the items are drawn (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="number of worker processes (default: 1)")
    parser.add_argument("--cluster", help="run items on the workers of this dask scheduler, --jobs of them at a time")
    parser.add_argument("--only", type=int, help="run only this item, in this process, and show its traceback")
    parser.add_argument("--retry", action="store_true", help="run items with findings again")
    parser.add_argument("--state", type=Path, default=cache_directory() / "soak", help="folder of finished items")
    given = parser.parse_args()
    work, limit = KINDS[given.kind]
    if given.only is not None:
        outcome = work(given.seed, given.only)
        print(*(outcome.findings or ["nothing found"]), dict(outcome.counts), sep="\n")
        return int(bool(outcome.findings))
    most = conformance.total() if given.kind == "conformance" else 10**9 if given.count is None else given.count
    state = State(given.state / f"{given.kind}-{given.seed}.jsonl")
    if given.retry:
        state.forget()
    began = perf_counter()
    command = f"python -m benchmarks.soak {given.kind}"
    try:
        with connect_cluster(given.cluster) if given.cluster else nullcontext() as cluster:
            soak(
                work, given.seed, range(min(most, given.count or most)), state,
                jobs=given.jobs, seconds=given.seconds, limit=limit, command=command, executor=cluster,
            )  # fmt: skip
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
    for name, number in sorted(state.counts.items()):
        print(f"{number:>9,}  {name}")
    print(f"{len(state.outcomes):,} items, {len(state.findings)} findings, {perf_counter() - began:.0f} s this time")
    return int(bool(state.findings))


if __name__ == "__main__":
    sys.exit(main())
