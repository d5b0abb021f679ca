"""Count the effects of post-optimisation on each evaluation model: ``python -m benchmarks.post [--batch N] [MODEL …]``.

Every subprogram uses its cheapest candidate by estimate, even if it is slower than the original, so that the counts do
not depend on the machine: executed equations before and after joining, fusion and layouts; steps and their
certificates; seconds of processor time.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from time import process_time
from typing import TypeAlias

from einnet_evaluation.models import MODELS, write
from einnet_explore.analysis.equations import weight_only
from einnet_explore.cost import program_seconds
from einnet_explore.ir import VIEW, Program
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.assembly import Piece, join_adjacent
from einnet_explore.pipeline.fusion import fuse_eoperators
from einnet_explore.pipeline.layouts import assign_layouts, estimate_equation
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.subprogram import anonymize, step_certificates
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.variants import Variant, find_variants
from einnet_explore.rules import Derivation

SECONDS = 0.5
"""Seconds of search for one subprogram."""


Searched: TypeAlias = "Callable[[Program], Sequence[Variant]]"
"""What is found for a subprogram, cheapest first."""


def by_time(program: Program) -> Sequence[Variant]:
    """Search *program* for ``SECONDS``."""
    return find_variants(program, program_seconds, Settings(max_depth=4, seconds=SECONDS)).variants


def pieces(model: Model, searched: Searched = by_time) -> Iterable[Piece]:
    """Return every subprogram's cheapest candidate by estimate; equal subprograms are searched once."""
    known: dict[str, Derivation | None] = {}
    for s in partition(model).subprograms:
        anon = anonymize(s.program)
        if anon.signature not in known:
            found = searched(anon.program)
            known[anon.signature] = fuse_eoperators(found[0].derivation()) if found else None
        if (derivation := known[anon.signature]) is not None:
            back = {model.identifiers[name]: name for name in (*s.inputs, *s.outputs)}
            names = {new: back[old] for new, old in anon.names.items() if old in back}
            yield Piece(s.nodes, derivation.end, names)


def running(program: Program) -> int:
    """Return the executed equations: neither views nor work on weights."""
    folded = weight_only(program)
    return sum(e.name not in folded and e.via is not None and e.via.operator != VIEW for e in program.equations)


def main(names: Sequence[str] = (), batch: int = 1) -> None:
    """Print the table."""
    print("model        parts programs  run before  after  steps  relaid  proved  seconds")
    for name in names or tuple(model.name for model in MODELS):
        model = load_model(write(name, batch), {})
        found = list(pieces(model))
        began = process_time()
        whole = join_adjacent(model, found)
        done = [
            fuse_eoperators(assign_layouts(fuse_eoperators(Derivation(piece.program)), estimate_equation))
            for piece in whole
        ]
        steps = [step.match.rule.name for d in done for step in d.steps]
        kinds = Counter(c.kind for d in done for c in step_certificates(d))
        spent = process_time() - began
        before, after = (sum(map(running, ps)) for ps in ([p.program for p in found], [d.end for d in done]))
        print(
            f"{name:12} {len(found):5} {len(whole):8}  {before:10}  {after:5}  {len(steps):5}  "
            f"{steps.count('storage_layout'):6}  {kinds['proved']:3}/{kinds.total():3}  {spent:7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What post-optimisation does to each evaluation model.")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--batch", type=int, default=1)
    asked = parser.parse_args()
    main(asked.models, asked.batch)
