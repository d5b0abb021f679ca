"""The command line: what can be said, and which function answers.

Options that several commands have, said in one way.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

from einnet_explore.cli.errors import BAD_INPUT
from einnet_explore.cli.values import parse_count, parse_memory, parse_natural, parse_seconds


def search_options(command: argparse.ArgumentParser) -> None:
    """What ``derive`` and ``sweep`` search for, how deep, and in which moves."""
    target_options(command)
    depth_options(command)
    command.add_argument(
        "--strategy",
        default="best_first",
        metavar="best_first|paper",
        help="a level is a choice with the clean-ups after it (best_first, the default), or one match (paper)",
    )


def target_options(command: argparse.ArgumentParser) -> None:
    """The library operators that a search is to arrive at."""
    command.add_argument(
        "--target", action="append", default=[], metavar="NAME", help="a library operator (default: any); repeatable"
    )


def depth_options(command: argparse.ArgumentParser) -> None:
    """How deep a search goes."""
    command.add_argument(
        "--max-depth", type=parse_natural, default=7, metavar="N", help="levels of choices (default: %(default)s)"
    )


def json_options(command: argparse.ArgumentParser) -> None:
    """Where the result goes as JSON."""
    command.add_argument("--json", metavar="-", help="one JSON document to standard output (-) or a file")


def states_options(command: argparse.ArgumentParser) -> None:
    """A bound of searches that is the same on every machine."""
    command.add_argument(
        "--limit-states",
        type=parse_count,
        metavar="N",
        help="end each search after N states: the same whenever it runs",
    )


def memory_options(command: argparse.ArgumentParser) -> None:
    """A bound of memory."""
    command.add_argument(
        "--memory",
        type=parse_memory,
        metavar="512M|2G",
        help="stop searching near this much memory, with what there is, and measure nothing that does not fit",
    )


def elsewhere_options(command: argparse.ArgumentParser) -> None:
    """Where searches run."""
    where = command.add_mutually_exclusive_group()
    where.add_argument("--jobs", type=parse_count, metavar="N", help="search in N processes (default: here, in turn)")
    where.add_argument(
        "--cluster", metavar="tcp://HOST:PORT", help="search on the workers of this dask.distributed scheduler"
    )


def model_options(command: argparse.ArgumentParser) -> None:
    """What the model's inputs are, and what it runs on."""
    command.add_argument(
        "--shape", action="append", default=[], metavar="NAME=1,3,224,224", help="a dynamic input's shape"
    )
    command.add_argument(
        "--device", default="cpu", metavar="cpu", help="only cpu: for a GPU see python -m benchmarks.gpu bundle"
    )
    command.add_argument(
        "--threads",
        type=parse_count,
        metavar="N",
        help="of all engines (default: every core that this process may use)",
    )


_EXPERIMENTS = ("e1", "e2", "e3", "e4", "e5", "e6")


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, as everywhere else."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(BAD_INPUT)


class _Version(argparse.Action):
    """Says the version and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version  # takes as long to load as all else here

        try:
            print(f"einnet-explore {version('einnet-explore')}")
        except PackageNotFoundError:
            parser.error("--version: found no installed einnet-explore, expected one (pip install -e .)")
        parser.exit()


def command_parser() -> argparse.ArgumentParser:
    """The parser of all commands; ``arguments.run`` is the function that answers."""
    top = _Parser(prog="einnet-explore", description="Explore and optimise tensor programs by derivation.")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, says: str, reads: str = "") -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=says, description=says)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        made.set_defaults(run=_lazy_runner(name, reads))
        return made

    lab = command("lab", "open JupyterLab on the tour")
    lab.add_argument("notebook", nargs="?", help="another notebook than the tour")

    show = command("show", "print or draw an expression, program or derivation")
    show.add_argument("case", metavar="CASE.ein|RECORD.json")
    form = show.add_mutually_exclusive_group()
    form.add_argument("--latex", action="store_true")
    form.add_argument("--text", action="store_true", help="the text form (the default)")
    form.add_argument("--svg", metavar="FILE", help="the computation graph as SVG")
    form.add_argument("--html", metavar="FILE", help="expressions, steps and graphs as one page")
    form.add_argument("--table", action="store_true", help="every equation flattened: ranges, coefficients, offsets")
    form.add_argument("--kernel", choices=("cuda", "opencl", "c"), help="generated kernels as text")
    show.add_argument("--dtype", default="float32", metavar="NAME", help="the type of all elements, of --kernel")

    rules = command("rules", "the legal rule matches, and why the others are refused")
    rules.add_argument("case", metavar="CASE.ein")
    rules.add_argument("--at", metavar="PATH", help="one scope, such as 0.1 or Y.1 (default: all)")
    json_options(rules)

    derive = command("derive", "search for programs of library operators and eOperators")
    derive.add_argument("case", metavar="CASE.ein")
    search_options(derive)
    derive.add_argument(
        "--no-fingerprint", action="store_true", help="the paper's ablation: programs reached twice are explored twice"
    )
    derive.add_argument(
        "--no-converging",
        action="store_true",
        help="the paper's ablation: match operators only where no mismatch is left",
    )
    derive.add_argument("--limit-seconds", type=parse_seconds, metavar="S", help="of the search (default: no limit)")
    states_options(derive)
    memory_options(derive)
    derive.add_argument("--save", metavar="RECORD.json", help="write the best derivation with its certificates")
    derive.add_argument(
        "--device",
        default="cpu",
        metavar="cpu|profile:FILE.sqlite",
        help="whose times order candidates: this machine's usual ones, or those of a profile recorded elsewhere",
    )
    derive.add_argument("--threads", type=parse_count, metavar="N", help="of the profile, where it holds several")
    json_options(derive)

    sweep = command("sweep", "derive for many cases at once, on processes or a cluster")
    sweep.add_argument("cases", nargs="+", metavar="CASE.ein")
    search_options(sweep)
    sweep.add_argument(
        "--limit-seconds", type=parse_seconds, metavar="S", help="for each of the searches (default: no limit)"
    )
    states_options(sweep)
    elsewhere_options(sweep)
    json_options(sweep)

    family = command("family", "derive a program with param lines, and prove it for all sizes")
    family.add_argument("case", metavar="CASE.ein")
    target_options(family)
    family.add_argument(
        "--assume", action="append", default=[], metavar="'W >= K'", help="what more is assumed; repeatable"
    )
    family.add_argument("--limit-seconds", type=parse_seconds, metavar="S", help="of the search (default: no limit)")
    family.add_argument("--sizes", metavar="H=11,W=17", help="where to search (default: small primes)")
    family.add_argument("--at", metavar="H=56,W=56", help="print the program at these sizes, too")
    family.add_argument("--latex", action="store_true")
    json_options(family)

    fuse = command("fuse", "a program as one kernel: its stages, sizes and text")
    fuse.add_argument("case", metavar="CASE.ein")
    fuse.add_argument("--dtype", default="float32", metavar="NAME", help="the type of all elements, of --kernel")
    fused = fuse.add_mutually_exclusive_group()
    fused.add_argument("--kernel", choices=("cuda", "opencl", "c"), help="the kernel as text")
    fused.add_argument("--svg", metavar="FILE", help="the stages as SVG")

    grad = command("grad", "the gradients of a program's inputs, as a program")
    grad.add_argument("case", metavar="CASE.ein")
    grad.add_argument("--wrt", action="append", default=[], metavar="A,K", help="of these inputs (default: all)")
    grad.add_argument("--inline", action="store_true", help="put intermediates that sum nothing into their readers")
    grad.add_argument(
        "--stash", action="store_true", help="both passes, with what the forward pass keeps for the other"
    )
    grad.add_argument(
        "--stash-budget", type=parse_natural, metavar="BYTES", help="the same, with at most so much memory"
    )
    shown = grad.add_mutually_exclusive_group()
    shown.add_argument("--latex", action="store_true")
    shown.add_argument("--text", action="store_true", help="the text form (the default)")
    json_options(grad)

    check = command("check", "replay a derivation's certificates without the optimiser")
    check.add_argument("record", metavar="RECORD.json")
    check.add_argument(
        "--modular", action="store_true", help="also evaluate start and end modulo 2^31-1 at their real sizes"
    )
    json_options(check)

    optimize = command("optimize", "optimise an ONNX model", reads="model")
    optimize.add_argument("model", metavar="MODEL.onnx")
    optimize.add_argument("-o", "--output", metavar="OUT.onnx")
    optimize.add_argument("--html", metavar="FILE", help="the report as one page")
    depth_options(optimize)
    optimize.add_argument(
        "--budget",
        type=parse_seconds,
        metavar="SECONDS",
        help="begin no part's contest after this (default: 480 s); choosing among the winners and measuring the whole "
        "come after it",
    )
    optimize.add_argument(
        "--target-runtime",
        default="plan",
        metavar="plan|onnxruntime",
        help="what OUT.onnx is made fast for: our plan (the default), or ONNX Runtime alone",
    )
    optimize.add_argument(
        "--numerics",
        default="approximate",
        metavar="exact|reassociate|approximate",
        help="the most that a derivation may do to the last digits; approximate allows 1e-4 of the largest output",
    )
    optimize.add_argument("--certificates", metavar="DIR", help="write one RECORD.json for each kept derivation there")
    states_options(optimize)
    memory_options(optimize)
    elsewhere_options(optimize)
    model_options(optimize)
    json_options(optimize)

    bench = command("bench", "measure against other engines, interleaved")
    bench.add_argument("cases", nargs="+", metavar="MODEL.onnx|CASE.ein")
    bench.add_argument(
        "--against",
        default="onnxruntime",
        metavar="NAMES",
        help="of onnxruntime,torch,torch.compile,numpy (default: %(default)s)",
    )
    bench.add_argument(
        "--budget",
        type=parse_seconds,
        metavar="SECONDS",
        help="of a model as in optimize (default: 480 s), of a case the seconds of search (default: 4 s)",
    )
    bench.add_argument(
        "--rounds",
        type=parse_count,
        default=20,
        metavar="N",
        help="in which all engines take turns (default: %(default)s)",
    )
    model_options(bench)
    json_options(bench)

    reproduce = command("reproduce", "tables and figures of the paper's evaluation, from this engine")
    reproduce.add_argument("experiments", nargs="+", choices=_EXPERIMENTS, metavar="|".join(_EXPERIMENTS))
    reproduce.add_argument("--quick", action="store_true", help="smaller depths and limits: less than a minute")
    reproduce.add_argument("--out", metavar="DIR", help="write CSV, Markdown and SVG files there")
    reproduce.add_argument(
        "--max-depth", type=parse_count, metavar="N", help="of the searches of e4 to e6 (default: 6)"
    )
    reproduce.add_argument(
        "--limit-seconds",
        type=parse_seconds,
        metavar="S",
        help="for each search (default: 20 for e2 and e3, 60 for e4 to e6); of e1 the --budget of a model (480)",
    )
    reproduce.add_argument(
        "--threads", type=parse_count, metavar="N", help="of e1 to e3 (default: 1 and then 2 for e1, 1 for e2 and e3)"
    )
    reproduce.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="of e1 only this (default: all); repeatable"
    )
    reproduce.add_argument(
        "--batch",
        action="append",
        type=parse_count,
        default=[],
        metavar="N",
        help="of e1 (default: 1 and 16); repeatable",
    )
    reproduce.add_argument("--again", action="store_true", help="measure what DIR holds of an earlier run, too")
    reproduce.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: e1 to e3 of --results")
    reproduce.add_argument("--results", metavar="FILE", help="what python -m benchmarks.gpu run wrote")

    models = command("models", "the evaluation models")
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_Parser)
    actions.add_parser("list", help="their names")
    write = actions.add_parser("write", help="write one as ONNX")
    write.add_argument("name")
    write.add_argument("--batch", type=parse_count, default=1, metavar="N")
    write.add_argument("--size", type=parse_count, metavar="S", help="another size than the published one, see list")
    write.add_argument("-o", "--output", required=True, metavar="FILE.onnx")
    return top


def _lazy_runner(command: str, path_argument: str) -> Callable[[argparse.Namespace], int]:
    """Return the function that imports the module of *command* and calls its ``run_<command>``.

    The import is lazy because some commands load compilers; ``--help`` and ``show`` must not wait for them.
    """

    def run(arguments: argparse.Namespace) -> int:
        if path_argument:
            os.stat(getattr(arguments, path_argument))  # reports a misspelt file name before compilers are loaded
        module = import_module(f"einnet_explore.cli.{command}")
        code: int = getattr(module, f"run_{command}")(arguments)
        return code

    return run
