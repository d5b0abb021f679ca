"""Compare the cost of a proof for all sizes with a proof at one size: ``python -m benchmarks.all_sizes``."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import einnet_explore as ee
from einnet_explore.equivalence.certificate import certify
from einnet_explore.parametric.family import FamilyDerivation
from einnet_explore.parametric.step_proofs import check_operators, prove_step

LINE = """param H >= 3, C, F
tensor A[H, C] pad [1, 0]
tensor K[3, F, C] weight
Y[h:H, f:F] = sum[c:C, r:3] A[h+r-1, c] * K[r, f, c]"""
IMAGE = """param H, W, C, F
tensor A[H, W, C] pad [1, 1, 0]
tensor K[3, 3, F, C] weight
Y[h:H, w:W, f:F] = sum[c:C, r:3, s:3] A[h+r-1, w+s-1, c] * K[r, s, f, c]"""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "1-D convolution: offsets": (LINE, {"max_depth": 6}),
    "2-D convolution: offsets": (IMAGE, {"max_depth": 6, "sizes": {"H": 11, "W": 17, "C": 64, "F": 23}}),
    "2-D convolution: windows": (IMAGE, {"max_depth": 2}),
}


def milliseconds(work: Callable[[], object], rounds: int = 3) -> float:
    """Return the shortest processor time of *work*."""
    seen = []
    for _ in range(rounds):
        clock = time.process_time()
        work()
        seen.append(time.process_time() - clock)
    return 1e3 * min(seen)


def all_steps(derived: FamilyDerivation) -> None:
    """Prove every step and every operator call again."""
    for before, after in pairwise(derived.schemas):
        assert prove_step(derived.ground, before, after)[0].kind == "proved"
        check_operators(derived.ground, after)


def main() -> None:
    """Print one line per case."""
    print(f"{'derivation':26} steps  by         all sizes  one size  instance (ms of process time, least of 3)")
    for name, (text, options) in CASES.items():
        derived = ee.family(text).derive(target="Matmul", budget=None, **options)
        sizes = {p.name: 56 for p in derived.ground.parameters}
        instance = derived.instantiate(**sizes)
        proof = milliseconds(lambda d=derived: all_steps(d))  # type: ignore[misc]
        one = milliseconds(lambda i=instance: certify(i.start, i.program))  # type: ignore[misc]
        taken = milliseconds(lambda d=derived, s=sizes: d.instantiate(**s))  # type: ignore[misc]
        by = ", ".join(derived.proof.means)
        print(f"{name:26} {len(derived.steps):5}  {by:10} {proof:8.1f}  {one:8.1f}  {taken:8.1f}")


if __name__ == "__main__":
    main()
