"""``python -m benchmarks.gpu bundle OUT.zip | run | session``; see ``docs/decisions/0026``.

``bundle`` needs this package, but no GPU.  ``run``, in the unpacked bundle, needs a GPU, CuPy and NumPy only (torch for
comparisons with torch); it resumes after an interrupt, and repeats failed measurements.  ``session`` is a call of it on
a machine that is lent for minutes: results, logs and plans in one folder; with ``--live`` it runs ``optimize --device
cuda`` there.  Results are a profile for searches elsewhere: ``einnet-explore derive --device profile:RESULTS.json``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 something is wrong, 2 no GPU or bad input, 3 not all was done in the time given."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    bundle = commands.add_parser("bundle", help="pack everything for a machine with a GPU")
    bundle.add_argument("out", type=Path, metavar="OUT.zip")
    bundle.add_argument("--quick", action="store_true", help="small cases: a test of the bundle, not a measurement")
    bundle.add_argument("--seconds", type=float, default=4.0, help="search time of each part of a model (default: 4)")
    bundle.add_argument("--model", action="append", type=Path, default=[], metavar="FILE.onnx", help="another model")
    bundle.add_argument("--device", default="", metavar="profile:FILE", help="times that order the search's candidates")
    run = commands.add_parser("run", help="check and measure, in an unpacked bundle")
    run.add_argument("--out", type=Path, default=Path("gpu.json"), metavar="RESULTS.json")
    run.add_argument("--seconds", type=float, default=420.0, help="time limit of the whole run (default: 420)")
    run.add_argument("--only", type=_kinds, default=(), metavar="KIND[,KIND]", help="measure these kinds only")
    run.add_argument("--data", type=Path, default=Path("data"), help="data folder of the bundle (default: data)")
    session = commands.add_parser("session", help="one call of several, which go on from one another")
    session.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="results, logs and plans go here")
    session.add_argument("--seconds", type=float, default=240.0, help="time limit of this call (default: 240)")
    session.add_argument("--earlier", type=Path, nargs="*", default=[], metavar="RESULTS.json",
                         help="the first that is there is gone on from; all are updated")  # fmt: skip
    session.add_argument("--live", action="store_true", help="optimise the bundle's model on this machine instead")
    session.add_argument("--data", type=Path, default=Path("data"), help="data folder of the bundle (default: data)")
    given = parser.parse_args(argv)
    try:
        match given.command:
            case "bundle":
                from benchmarks.gpu.bundle import write

                cost = None
                if given.device:
                    from einnet_explore.runtime.profile_store import device_cost

                    cost = device_cost(given.device)
                print(write(given.out, given.quick, cost, given.seconds, _note, given.model))
                return 0
            case "run":
                from benchmarks.gpu.run import run as measure

                return measure(given.data, given.out, given.seconds, given.only)
            case _:
                from benchmarks.gpu.session import measure as measure_on
                from benchmarks.gpu.session import optimise

                if given.live:
                    return optimise(given.data, given.out, given.seconds)
                return measure_on(given.data, given.out, given.seconds, given.earlier)
    except ModuleNotFoundError as error:
        print(f"error: missing {error.name}, which {given.command} needs: pip install {error.name}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _kinds(text: str) -> tuple[str, ...]:
    from benchmarks.gpu.budget import ENTRY_SECONDS

    found = tuple(text.split(","))
    if unknown := [kind for kind in found if kind not in ENTRY_SECONDS]:
        raise argparse.ArgumentTypeError(f"found kind {unknown[0]!r}, expected some of {', '.join(ENTRY_SECONDS)}")
    return found


def _note(said: str) -> None:
    print(said, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
