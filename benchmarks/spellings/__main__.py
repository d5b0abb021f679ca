"""Compare spellings and traps with the usual spelling: ``python -m benchmarks.spellings [FAMILY …]``.

``equal`` has to prove each spelling, and to refuse each trap with an input on which ONNX Runtime confirms it.
``--engines NAMES`` runs spellings in these engines instead, at larger sizes: are the outputs right, and is each as fast
as the usual spelling?
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from time import perf_counter

from benchmarks.spellings.engines import OURS, measured
from benchmarks.spellings.families import FAMILIES, Family, Options
from einnet_evaluation.rivals import RIVALS
from einnet_explore.cli.output import format_table
from einnet_explore.onnx_import.load import load_model
from einnet_explore.session.model_equality import Verdict, compare_models

SPELLINGS, TRAPS = 100, 50
ENGINE_HEAD: list[object] = ["family", "engine", "run", "wrong", "refused", "slower", "median", "most"]
HEAD: list[object] = ["family", "spellings", "proved", "rounded", "others", "traps", "refused", "others", "s"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; return 1 if a spelling is not proved or a trap is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spellings", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)} (default: all)")
    parser.add_argument("--spellings", type=int, default=SPELLINGS, help="of each family (default: %(default)s)")
    parser.add_argument("--traps", type=int, default=TRAPS, help="of each family (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of a comparison (default: %(default)s)")
    parser.add_argument("--engines", metavar="NAMES", help=f"of {', '.join((*RIVALS, OURS))}, with commas")
    parser.add_argument("--effort", type=float, default=10.0, help="seconds to optimise a model (default: %(default)s)")
    asked = parser.parse_args(argv)
    if asked.engines:
        return compare_engines(
            asked.families or list(FAMILIES), asked.engines.split(","), asked.spellings, asked.effort
        )
    rows: list[list[object]] = [HEAD]
    wrong = False
    for name in asked.families or FAMILIES:
        family, began = FAMILIES[name], perf_counter()
        equal = Counter(found.kind for _, found in compared(family, family.spellings(asked.spellings), asked.budget))
        traps = Counter(found.kind for _, found in compared(family, family.trapped(asked.traps), asked.budget))
        others = [f"{n} {kind}" for kind, n in equal.items() if kind not in ("proved", "rounded")]
        passed = [f"{n} {kind}" for kind, n in traps.items() if kind != "different"]
        rows.append(
            [
                name, equal.total(), equal["proved"], equal["rounded"], ", ".join(others), traps.total(),
                traps["different"], ", ".join(passed), f"{perf_counter() - began:.0f}",
            ]
        )  # fmt: skip
        print(format_table([rows[0], rows[-1]]), flush=True)
        wrong |= bool(others or passed)
    print(format_table(rows))
    return int(wrong)


def compare_engines(families: Sequence[str], engines: Sequence[str], number: int, effort: float) -> int:
    """Print a table of all *engines*; return 1 if one has wrong outputs."""
    rows, wrong = [ENGINE_HEAD], False
    for name in families:
        for engine in engines:
            found = measured(FAMILIES[name], FAMILIES[name].spellings(number), engine, effort)
            rows.append([name, engine, *found.row()])
            print(*rows[-1], sep=" | ", flush=True)
            print(
                *(f"  wrong: {each}" for each in found.wrong),
                *(f"  refused: {each}" for each in found.refused[:3]),
                sep="\n",
            )
            wrong |= bool(found.wrong)
    print(format_table(rows))
    return int(wrong)


def compared(family: Family, choices: Iterable[Options], budget: float = 20.0) -> Iterable[tuple[Options, Verdict]]:
    """Compare the model of each of *choices* with the usual spelling."""
    usual = load_model(family.model(family.usual()))
    for choice in choices:
        yield choice, compare_models(usual, load_model(family.model(choice)), budget)


if __name__ == "__main__":
    raise SystemExit(main())
