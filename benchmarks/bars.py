"""Measure the states and seconds until a search reaches a given operator, in fresh processes with cold caches.

``python -m benchmarks.bars NAME`` runs one case once and prints a line of JSON; ``benchmarks.search`` runs all cases.
The time starts when the search is created and ends with the event that the target is found; it excludes imports and
parsing.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

import einnet_explore as ee
from einnet_explore.analysis.equations import weight_only
from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.ir import EOPERATOR, VIEW, Program
from einnet_explore.operators.library import find_operators
from einnet_explore.rules import Derivation
from einnet_explore.strategies.candidate import combined_verdict
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Options


@dataclass(frozen=True, slots=True)
class Bar:
    """A start program, a target call, and the limits on states and seconds (None: report only).

    *eoperators* is the number of kernels other than the target call (None: any), *calls* the number of library calls.
    With *every*, the search is for all operators, not only for the target.
    """

    name: str
    start: Callable[[], Program]
    target: str
    wanted: Mapping[str, int]
    states: int | None = None
    seconds: float | None = None
    eoperators: int | None = None
    calls: int = 1
    every: bool = False

    def reached(self, program: Program) -> bool:
        """Return whether *program* has the target call with the required attributes and numbers of calls."""
        calls = [e.via for e in program.equations if e.via and e.via.operator not in (EOPERATOR, VIEW)]
        if len(calls) != self.calls or not any(self.wanted.items() <= dict(c.attributes).items() for c in calls):
            return False
        constant = weight_only(program)
        kernels = [e for e in program.equations if e.via and e.via.operator == EOPERATOR and e.name not in constant]
        return self.eoperators is None or len(kernels) == self.eoperators


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of one run: whether it found the target, the states until then (including pruned ones), and the seconds.

    *loops* is the time divided by the time of a fixed loop in the same process, which corrects for a slow machine.
    *proof* is the weakest certificate of the steps to the target.  *proved*, *exact* and *none* count the certificates
    of all candidates found until then.
    """

    found: bool
    states: int
    seconds: float
    loops: float
    proof: str
    proved: int = 0
    exact: int = 0
    none: int = 0


def conv(size: int, kernel: int, **more: int) -> Callable[[], Program]:
    """Return a convolution of a *size* by *size* image with a square *kernel*."""
    sizes = {"N": 1, "H": size, "W": size, "C": 16, "F": 8, "R": kernel, "S": kernel, "padding": "same", **more}
    return lambda: ee.ops.conv2d(**sizes)  # type: ignore[arg-type]


def _bands(dilation: int) -> Callable[[], Program]:
    return lambda: ee.ops.g2bmm(b=8, m=10000, w=32, k=512, dilation=dilation)


def _wide_bands() -> Program:
    return ee.ops.gbmm(b=8, m=10000, w=32, n=64, dilation=4)


def _transposed() -> Program:
    return ee.ops.conv_transpose2d(N=16, H=2, W=2, in_channels=448, out_channels=256, R=4, S=4, stride=2, padding=1)


def _five() -> Program:
    return ee.ops.conv2d(N=16, H=224, W=224, C=32, F=1, R=5, S=5, layout="NCHW", padding=2)


def _depthwise() -> Program:
    return ee.ops.depthwise_conv2d(N=1, H=14, W=14, C=16, R=3, S=3, padding=1)


def _chain() -> Program:
    return ee.parse(
        """
        tensor A[4, 64]
        tensor B[64, 64]
        tensor C[64, 64]
        Y[m:4, n:64] = sum[k:64, j:64] A[m, j] * B[j, k] * C[k, n]
        """
    )


_CONV = Bar("Conv3x3 7x7 512-512", conv(7, 3, C=512, F=512), "Matmul", {"m": 49, "n": 4608, "k": 512}, 150, 0.04, 1)
_BANDS = tuple(
    Bar(f"G2BMM dilation {d}", _bands(d), "G2BMM", {"b": 8 * d, "d": 1, "W": 32}, 150, 0.03) for d in (2, 3, 4, 8)
)

BARS = (
    _CONV,
    Bar("ConvTranspose 4x4 s2 448-256", _transposed, "Matmul", {"m": 64, "n": 4096, "k": 448}, 600, 0.15, 1),
    Bar("Conv5x5 to Conv3x3, 4x channels", _five, "Conv2d", {"r": 3, "s": 3, "f": 4}, 2000, 1.0),
    *_BANDS,
    *(replace(bar, name=f"{bar.name}, for every operator", every=True) for bar in (_CONV, *_BANDS)),
    Bar("GBMM dilation 4", _wide_bands, "GBMM", {"b": 32, "d": 1}),
    *(
        Bar(f"Conv3x3 dilation {d} to dense", conv(14, 3, dilation=d), "Conv2d", {"n": d * d, "dh": 1, "dw": 1})
        for d in (2, 3, 4)
    ),
    Bar("Conv3x3 stride 2 to dense", conv(14, 3, stride=2, padding=1), "Conv2d", {"sh": 1, "sw": 1, "c": 64}),
    Bar("Conv3x3 stride 2 to Matmul", conv(14, 3, stride=2, padding=1), "Matmul", {"k": 16}),
    Bar("Conv3x3 im2col", conv(14, 3), "Matmul", {"k": 144}),
    Bar("Conv7x7 to Conv4x4, 4x channels", conv(28, 7), "Conv2d", {"r": 4, "s": 4, "f": 32}),
    Bar("Conv9x9 to Conv5x5, 4x channels", conv(28, 9), "Conv2d", {"r": 5, "s": 5, "f": 32}),
    Bar("grouped Conv3x3 to Matmul", conv(14, 3, groups=4), "Matmul", {"b": 4}),
    Bar("depthwise Conv3x3 to Conv2d", _depthwise, "Conv2d", {"g": 16, "r": 3, "s": 3}),
    Bar("A x B x C as A x (B x C)", _chain, "Matmul", {"m": 64, "n": 64, "k": 64}, calls=2),
)


def measure(bar: Bar, limit: float = 10) -> Measured:
    """Search until *bar* is reached, the search ends or *limit* seconds have passed."""
    program, targets = bar.start(), find_operators([] if bar.every else [bar.target])
    gc.collect()
    began, found, proof = time.perf_counter(), False, ""
    search = Search(program, ee.program_seconds, Options(targets=targets))
    ends: list[int] = []
    for event in search.run():
        if isinstance(event, Found):
            ends.append(event.state.id)
        found = isinstance(event, Found) and bar.reached(event.state.program)
        if found or time.perf_counter() - began > limit:
            break
    seconds = time.perf_counter() - began
    states, loops = len(search.states) + search.pruned, seconds / _loop()
    kinds = [proofs(search.derivation(end)) for end in ends]
    proof = kinds[-1] if found else ""
    return Measured(found, states, seconds, loops, proof, *(kinds.count(k) for k in ("proved", "exact")), unsure(kinds))


def proofs(derivation: Derivation) -> str:
    """Return the weakest certificate of the steps of *derivation*."""
    return combined_verdict(tuple(_certified(step.before, step.after) for step in derivation.steps))


@cache
def _certified(before: Program, after: Program) -> Certificate:
    return certify(before, after)


def unsure(kinds: Sequence[str]) -> int:
    """Return the number of candidates whose certificate is missing or false."""
    return sum(kind not in ("proved", "exact") for kind in kinds)


def _loop() -> float:
    """Return the seconds of a fixed loop of hashing and dictionary lookups."""
    began = time.perf_counter()
    seen: dict[tuple[str, int], int] = {}
    for n in range(1 << 16):
        pair = ("x", n & 0xFF)
        seen[pair] = seen.get(pair, 0) + n
    return time.perf_counter() - began


def median(bar: Bar, runs: int) -> Measured:
    """Return the medians of *runs* fresh processes."""
    command = [sys.executable, "-m", "benchmarks.bars", bar.name]
    done = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(runs)]
    found = [Measured(**json.loads(text)) for text in done]
    seconds, loops = (statistics.median(values) for values in zip(*((f.seconds, f.loops) for f in found), strict=True))
    same = found[0]
    return Measured(
        all(f.found for f in found),
        max(f.states for f in found),
        seconds,
        loops,
        *(same.proof, same.proved, same.exact, same.none),
    )


def main(argv: Sequence[str]) -> None:
    """Measure the case *argv[0]* once in this process."""
    print(json.dumps(asdict(measure(next(b for b in BARS if b.name == argv[0])))))


if __name__ == "__main__":
    main(sys.argv[1:])
