"""Measure search: states and seconds to the target, states per second, µs per key, µs per certificate.

Every candidate of every run is certified.  The output counts the candidates that are proved, equal on random inputs,
or neither; the command fails if any is neither.
``python -m benchmarks.search [--runs N] [--record]``; ``--record`` appends the results to ``history/search.csv``.
The cases are those of the paper's search figures (``einnet_evaluation/cases.py``).
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

import einnet_explore as ee
from benchmarks.bars import BARS, Bar, median, unsure
from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.cli.output import format_table
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.session.run import Run
from einnet_explore.strategies.options import Options


@dataclass(frozen=True, slots=True)
class Case:
    """A program, its target and the search depth."""

    name: str
    program: Program
    target: str


CASES = (
    Case("Conv3x3 n1 7x7 512-512", ee.ops.conv2d(N=1, H=7, W=7, C=512, F=512, R=3, S=3, padding=1), "Matmul"),
    Case("Conv3x3 n1 28x28 128-128", ee.ops.conv2d(N=1, H=28, W=28, C=128, F=128, R=3, S=3, padding=1), "Matmul"),
    Case("Conv1x7 n1 7x7 2048-128", ee.ops.conv2d(N=1, H=7, W=7, C=2048, F=128, R=1, S=7, padding="same"), "Matmul"),
    Case(
        "ConvTranspose 4x4 s2 n16 2x2 448-256",
        ee.ops.conv_transpose2d(N=16, H=2, W=2, in_channels=448, out_channels=256, R=4, S=4, stride=2, padding=1),
        "Matmul",
    ),
    Case("G2BMM b8 m10000 w32 k512 d4", ee.ops.g2bmm(b=8, m=10000, w=32, k=512, dilation=4), "G2BMM"),
)


CERTIFICATES = "candidates proved/exact/none"
"""Of every candidate of a run: the weakest certificate between its states."""

HISTORY = Path(__file__).parent / "history" / "search.csv"


def main(argv: Sequence[str] = ()) -> None:
    """Print both tables; exit with a message if a candidate has no certificate."""
    parser = argparse.ArgumentParser(prog="benchmarks.search", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="fresh processes for each case; medians are shown")
    parser.add_argument("--record", action="store_true", help=f"append the bars to {HISTORY.name}")
    arguments = parser.parse_args(argv)
    unproved = bars(arguments.runs, arguments.record)
    print()
    unproved += whole()
    if unproved:
        sys.exit(f"{unproved} candidates have no certificate, or a false one")


def bars(runs: int, record: bool, chosen: Sequence[Bar] = BARS) -> int:
    """Print states and seconds to each target with their limits; return the number of uncertified candidates."""
    rows: list[list[object]] = [
        ["case", "target", "found", "states", "at most", "s", "at most", "loops", "proof", CERTIFICATES, "met"]
    ]
    lines, unproved = [], 0
    for bar in chosen:
        done = median(bar, runs)
        unproved += done.none
        met = (
            ""
            if bar.states is None or bar.seconds is None
            else done.states <= bar.states and done.seconds <= bar.seconds
        )
        rows.append(
            [
                bar.name,
                "every operator" if bar.every else bar.target,
                "yes" if done.found else "no",
                done.states,
                bar.states or "",
                f"{done.seconds:.4f}",
                bar.seconds or "",
                f"{done.loops:.2f}",
                done.proof,
                f"{done.proved}/{done.exact}/{done.none}",
                met if met == "" else "yes" if met and done.found else "no",
            ]
        )
        lines.append([date.today(), bar.name, int(done.found), done.states, f"{done.seconds:.4f}", f"{done.loops:.3f}"])
    print(format_table(rows))
    if record:
        HISTORY.parent.mkdir(exist_ok=True)
        new = not HISTORY.exists()
        with HISTORY.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(["date", "case", "found", "states", "seconds", "loops"])
            writer.writerows(lines)
    return unproved


def whole(chosen: Sequence[Case] = CASES) -> int:
    """Search every case once for at most 20 s, certify all candidates, and time keys and certificates.

    Return the number of candidates without a certificate.
    """
    unproved = 0
    rows: list[list[object]] = [
        [
            "case",
            "target",
            "s to target",
            "states to target",
            "states",
            "states/s",
            "µs a key",
            "µs a certificate",
            CERTIFICATES,
        ]
    ]
    for case in chosen:
        run = Run(case.program, program_seconds, target=case.target, budget=20, options=Options())
        for _ in run:
            pass
        first = run.first_found or (float("nan"), 0)
        states = len(run.search.states) + run.search.pruned
        keys = [_microseconds(partial(program_key, s.program)) for s in run.search.states[:50]]
        times = [
            _microseconds(partial(certify, st.before, st.after))
            for c in run.candidates[:5]
            for st in c.derivation.steps
        ]
        kinds = [run.verdict(c) for c in run.candidates]
        unproved += unsure(kinds)
        rows.append(
            [
                case.name,
                case.target,
                f"{first[0]:.3f}",
                first[1],
                states,
                f"{states / run.seconds:.0f}",
                f"{statistics.median(keys):.0f}",
                f"{statistics.median(times):.0f}" if times else "",
                f"{kinds.count('proved')}/{kinds.count('exact')}/{unsure(kinds)}",
            ]
        )
    print(format_table(rows))
    return unproved


def _microseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e6


if __name__ == "__main__":
    main(sys.argv[1:])
