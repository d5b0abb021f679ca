"""Measure the cost of proving a step: ``python -m benchmarks.certificates [--states N] [MODEL …]``.

The steps come from every candidate of the evaluation models' subprograms at their published sizes, including bilinear
algorithms; from the fused tiling of the cheapest candidate of each algorithm; and from the post-optimisation (joining,
fusion, layouts) of the cheapest candidates.  Searches stop after a number of states, so the steps do not depend on the
machine's load.  Times are processor times.  A step slower than ``SLOW`` is measured three times, and the minimum
counts; equal steps count once.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterable, Sequence
from functools import cache
from math import inf
from statistics import median
from time import process_time

from benchmarks.post import pieces
from einnet_evaluation.models import MODELS, write
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence import term_multiset
from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.ir import Program
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.assembly import join_adjacent
from einnet_explore.pipeline.fusion import chain_in_blocks, fuse_eoperators
from einnet_explore.pipeline.layouts import assign_layouts, estimate_equation
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.subprogram import anonymize
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.variants import Variant, best_by_algorithm, find_variants
from einnet_explore.rules import Derivation, Step

STATES = 120
"""States of the search of one subprogram."""

SLOW = 0.02
"""Seconds from which a step is certified again: what a slow one takes once is a page fault's or a neighbour's, too."""


def derivations(model: Model, states: int = STATES) -> Iterable[Derivation]:
    """Yield the derivations of every subprogram's candidates, of their fused tiling, and of the cheapest after
    post-optimisation.
    """

    @cache
    def searched(program: Program) -> tuple[Variant, ...]:
        settings = Settings(max_depth=4, seconds=inf, states=states)
        return tuple(find_variants(program, program_seconds, settings).variants)

    known: set[str] = set()
    for s in partition(model).subprograms:
        anon = anonymize(s.program)
        if anon.signature not in known:
            known.add(anon.signature)
            found = searched(anon.program)
            yield from (entry.derivation() for entry in found)
            in_blocks = (
                chain_in_blocks(fuse_eoperators(entry.derivation()))
                for entry in best_by_algorithm(found, len(found), inf)
            )
            yield from (made for made in in_blocks if made is not None)
    for piece in join_adjacent(model, list(pieces(model, searched))):
        yield fuse_eoperators(assign_layouts(fuse_eoperators(Derivation(piece.program)), estimate_equation))


def timed(steps: Iterable[Step]) -> list[tuple[float, str, Certificate]]:
    """Return the rule and the seconds of the certificate of each of *steps*."""
    out = []
    every = dict.fromkeys(steps)
    gc.collect()
    gc.freeze()  # else a proof now and then pays for a walk over all that the searches made
    for step in every:
        seconds, certificate = _certified(step)
        if seconds > SLOW:
            seconds = min(seconds, *(_certified(step)[0] for _ in range(2)))
        out.append((seconds, step.match.rule.name, certificate))
    gc.unfreeze()
    return out


def _certified(step: Step) -> tuple[float, Certificate]:
    term_multiset._cached_proof.cache_clear()  # a step is timed as if it were the first
    began = process_time()
    certificate = certify(step.before, step.after)
    return process_time() - began, certificate


def main(names: Sequence[str] = (), states: int = STATES) -> None:
    """Print the table: counts, and milliseconds of the median and the slowest step."""
    print("model        steps  proved  median ms  worst ms  the slowest")
    every = []
    for name in names or tuple(model.name for model in MODELS):
        found = timed(step for d in derivations(load_model(write(name, 1), {}), states) for step in d.steps)
        every += found
        row(name, found)
    row("all", every)


def row(name: str, found: Sequence[tuple[float, str, Certificate]]) -> None:
    """Return one line of the table."""
    proved = sum(certificate.kind == "proved" for _, _, certificate in found)
    worst, rule, _ = max(found, key=lambda each: each[0])
    middle = median(seconds for seconds, _, _ in found)
    print(f"{name:12} {len(found):5}  {proved:6}  {1e3 * middle:9.1f}  {1e3 * worst:8.0f}  {rule}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What the proof of a step costs.")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--states", type=int, default=STATES, help="states of the search of one subprogram")
    asked = parser.parse_args()
    main(asked.models, asked.states)
