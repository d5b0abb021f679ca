"""Optimise typical models one by one: ``python -m benchmarks.zoo [NAME|FILE.onnx …]``.

``--budget SECONDS`` is the search time of each model (default 60), ``--threads`` the number of threads (default 1).
``--write DIR`` only writes the files; ``--read`` only imports them.  The table has for each model the nodes in
subprograms and the reasons for the others; the kept, tuned and all subprograms; the speedup of the plan and of the
written file over ONNX Runtime, interleaved; the largest error; and the wall time.

``--exported`` takes real architectures with random weights instead of the small models (``exported.py``; most need the
extra ``zoo``), ``--across`` programs whose operators linear algebra reorders (``across.py``).  ``--out DIR`` measures
the models and all rivals with one process for each engine, writes tables there, and resumes after an interrupt
(``measured.py``).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter

import onnx

from benchmarks.zoo import KINDS
from benchmarks.zoo.across import ACROSS
from benchmarks.zoo.exported import EXPORTED
from benchmarks.zoo.measured import Effort, Lab
from einnet_evaluation.engines import check_engines
from einnet_evaluation.rivals import RIVALS
from einnet_explore.cli.output import format_table, say
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.optimisation import optimize_model
from einnet_explore.pipeline.optimised import Optimised
from einnet_explore.pipeline.partition import Split, partition

READ = ["model", "what it is", "in subprograms", "in none"]
MEASURED = ["kept", "plan", "file", "largest error", "s"]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, a row as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo")
    parser.add_argument(
        "models", nargs="*", metavar="NAME|FILE.onnx", help="models to optimise (default: all small ones)"
    )
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="of each model (default: 60)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of every engine (default: 1)")
    family = parser.add_mutually_exclusive_group()
    family.add_argument(
        "--exported", dest="kinds", action="store_const", const=EXPORTED, default=KINDS, help="real architectures"
    )
    family.add_argument(
        "--across", dest="kinds", action="store_const", const=ACROSS, help="programs that linear algebra reorders"
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="only write the models to files in this folder")
    parser.add_argument("--read", action="store_true", help="only import the models and count the nodes in subprograms")
    parser.add_argument("--out", type=Path, metavar="DIR", help="measure, and write zoo.md, zoo.csv and zoo.json there")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="with --out: rounds of measurement")
    parser.add_argument(
        "--limit", type=float, default=30.0, metavar="SECONDS", help="with --out: time for a model's rounds"
    )
    parser.add_argument(
        "--against", default=",".join(RIVALS), metavar="NAMES", help="with --out: rivals (default: %(default)s)"
    )
    parser.add_argument("--again", action="store_true", help="with --out: repeat the measurements of an earlier run")
    asked = parser.parse_args(argv)
    names = asked.models or [kind.name for kind in asked.kinds]
    if asked.out:
        against = check_engines("", asked.against.split(","))
        lab = Lab(Effort(asked.threads, asked.budget, asked.rounds, asked.limit, against), asked.out)
        print(lab.run(_asked(names), asked.again).markdown())
        return
    if asked.write:
        asked.write.mkdir(parents=True, exist_ok=True)
    rows = [READ if asked.read else READ + MEASURED]
    for name, title, proto in _asked(names):
        if asked.write:
            onnx.save(proto, asked.write / f"{name}.onnx")
            continue
        began = perf_counter()
        model = load_model(proto)
        split = partition(model)
        row = [name, title, *understood(model, split)]
        if not asked.read:
            fast = optimize_model(model, threads=asked.threads, budget=asked.budget)
            row += [*_told(fast, len(split.subprograms)), f"{perf_counter() - began:.0f}"]
        rows.append(row)
        print(*row, sep=" | ", flush=True)
    if not asked.write:
        print(format_table(rows))


def _asked(names: Sequence[str]) -> Iterable[tuple[str, str, onnx.ModelProto]]:
    """Name, title and model of each of *names*; a name may be a file's."""
    known = {kind.name: kind for kind in (*KINDS, *EXPORTED, *ACROSS)}
    for name in names:
        if name in known:
            try:
                proto = known[name].write()
            except ValueError as missing:
                say(f"{name}: left out: {missing}")
                continue
            yield name, known[name].title, proto
        else:
            yield Path(name).stem, "", onnx.load(name)


def understood(model: Model, split: Split) -> list[str]:
    """Return the number of nodes in subprograms, of all nodes, and the reasons for the others."""
    operators = {node.name: node.op for node in model.nodes}
    why = dict.fromkeys(f"{operators[s.node]}: {s.why}" for s in split.skipped)
    return [f"{len(model.nodes) - len(split.skipped)} of {len(model.nodes)}", "; ".join(why)]


def _told(fast: Optimised, subprograms: int) -> list[str]:
    """*subprograms*: how many there are, those that others are joined into counted once."""
    exported = fast.exported.speedup
    return [
        f"{sum(part.kept for part in fast.parts)} of {len(fast.parts)} of {max(subprograms, len(fast.parts))}",
        f"{fast.speedup:.2f}",
        "" if exported is None else f"{exported:.2f}",
        f"{fast.errors[1]:.0e}" if fast.errors[1] else "0",
    ]


if __name__ == "__main__":
    main()
