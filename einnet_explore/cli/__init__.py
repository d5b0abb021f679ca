"""The commands ``einnet-explore …`` (also ``python -m einnet_explore``), their parser, and their common options."""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NoReturn

from einnet_explore.cli.output import BAD_INPUT, INTERRUPTED, OK, one_line
from einnet_explore.cli.values import parse_call, parse_count, parse_memory, parse_natural, parse_seconds
from einnet_explore.support.version import PACKAGE_VERSION
from einnet_explore.support.wording import suggest

__all__ = ["command_parser", "main"]

_EXPERIMENTS = ("e1", "e2", "e3", "e4", "e5", "e6")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 negative answer, 2 bad input, 130 interrupted.

    An error is one line on standard error; with ``--debug`` it is a traceback.
    """
    arguments = command_parser().parse_args(argv)
    atexit.register(gc.freeze)  # the interpreter ends without looking for cycles among millions of expressions
    code: int = OK
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a character that the terminal lacks must not end the command
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            code = arguments.run(arguments)
            sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            print("interrupted: nothing more was written", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:
            # The reader of standard output has closed it, as ``head`` does.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return code
        except Exception as error:  # every failure of a command becomes one line on standard error
            if arguments.debug:
                raise
            print(f"error: {one_line(error)}", file=sys.stderr)
            return BAD_INPUT


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports an error on one line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments; a command refuses those that it does not know, and names its most similar option."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and self._subparsers is None:
            given = next((each.partition("=")[0] for each in unknown if each.startswith("-")), "")
            self.error(f"unrecognized arguments: {' '.join(unknown)}{suggest(given, self._option_string_actions)}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += suggest(str(value), map(str, action.choices or ()))
            raise

    def error(self, message: str) -> NoReturn:
        print(f"error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(BAD_INPUT)


class _Version(argparse.Action):
    """Print the version and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"einnet-explore {PACKAGE_VERSION}")
        parser.exit()


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; ``arguments.run(arguments)`` runs the command and returns its exit code."""
    top = _Parser(prog="einnet-explore", description="Explore and optimise tensor programs by derivation.")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (summary, add_arguments) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        command.set_defaults(run=_lazy_runner(name))
        add_arguments(command)
    return top


def _lazy_runner(command: str) -> Callable[[argparse.Namespace], int]:
    """Return the function that imports the module of *command* and calls its ``run_<command>``.

    The import is lazy because some commands load compilers; ``--help`` and ``show`` must not wait for them.
    """

    def run(arguments: argparse.Namespace) -> int:
        if command == "optimize":
            os.stat(arguments.model)  # reports a misspelt file name before compilers are loaded
        module = import_module(f"einnet_explore.cli.{command}")
        code: int = getattr(module, f"run_{command}")(arguments)
        return code

    return run


# Options that several commands share.


def _search_options(command: argparse.ArgumentParser) -> None:
    _target_option(command)
    _depth_option(command)
    command.add_argument(
        "--strategy",
        default="best_first",
        metavar="best_first|paper",
        help="one level of the search: a choice and the clean-ups after it (best_first, the default), or one "
        "match (paper)",
    )


def _target_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME",
        help="library operator that the search must reach (default: any); repeatable",
    )


def _depth_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--max-depth", type=parse_natural, default=7, metavar="N", help="levels of the search (default: %(default)s)"
    )


def _json_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json", metavar="-", help="write the result as one JSON document to standard output (-) or a file"
    )


def _states_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--limit-states", type=parse_count, metavar="N", help="stop each search after N states (deterministic)"
    )


def _memory_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--memory",
        type=parse_memory,
        metavar="512M|2G",
        help="memory limit: searches stop near it and report what they found; kernels that need more are not measured",
    )


def _executor_options(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--jobs", type=parse_count, metavar="N", help="search in N processes (default: one after another, in this one)"
    )
    where.add_argument(
        "--cluster", metavar="tcp://HOST:PORT", help="search on the workers of this dask.distributed scheduler"
    )


def _domain_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--domain",
        action="append",
        default=[],
        metavar="NAME=0,1|0..1",
        help="the numbers that random elements of an input are drawn from, such as 0 and 1 of a mask, or a range "
        "(default: normal numbers; integers 0 and 1); repeatable",
    )


def _shape_option(command: argparse.ArgumentParser, more: str = "") -> None:
    command.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,224,224",
        help=f"shape of a dynamic input{more}; repeatable",
    )


def _model_options(command: argparse.ArgumentParser, devices: str, device_help: str, sizes: str = "") -> None:
    _shape_option(command, sizes)
    command.add_argument("--device", default="cpu", metavar=devices, help=device_help)
    command.add_argument(
        "--threads",
        type=parse_count,
        metavar="N",
        help="threads of every engine (default: every core that this process may use)",
    )


def _width_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--width", metavar="LENGTH", help="with --latex: break its lines to this width, such as 3.3in, at 10 points"
    )


def _element_type_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--dtype", default="float32", metavar="NAME", help="element type of the kernel of --kernel (default: float32)"
    )


# One function a command.


def _lab_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("notebook", nargs="?", help="notebook to open instead of the tour")


def _show_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("case", metavar="CASE.ein|RECORD.json")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--latex", action="store_true", help="print LaTeX")
    form.add_argument("--text", action="store_true", help="print the text form (the default)")
    form.add_argument("--svg", metavar="FILE", help="draw the computation graph as SVG; of a derivation, start and end")
    form.add_argument("--html", metavar="FILE", help="write one page with expressions, steps and graphs")
    form.add_argument(
        "--table",
        action="store_true",
        help="print every equation flattened to loops: ranges, coefficients and offsets",
    )
    form.add_argument("--kernel", choices=("cuda", "opencl", "c"), help="print the generated kernels")
    command.add_argument(
        "--rule",
        metavar="NAME",
        action="append",
        default=[],
        help="show the steps of this rule of your own as the record has them; repeatable",
    )
    _width_option(command)
    _element_type_option(command)


def _rules_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("case", metavar="CASE.ein")
    command.add_argument("--at", metavar="PATH", help="path of one scope, such as 0.1 or Y.1 (default: all scopes)")
    command.add_argument(
        "--further", action="store_true", help="also the rules that a search of one expression does not try"
    )
    _json_option(command)


def _derive_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("case", metavar="CASE.ein")
    _search_options(command)
    command.add_argument(
        "--no-fingerprint",
        action="store_true",
        help="the paper's ablation: explore a program again whenever it is reached again",
    )
    command.add_argument(
        "--no-converging",
        action="store_true",
        help="the paper's ablation: match operators only at expression distance 0",
    )
    command.add_argument(
        "--budget", "--limit-seconds", type=parse_seconds, metavar="S", help="time limit of the search (default: none)"
    )
    _states_option(command)
    _memory_option(command)
    command.add_argument(
        "--pick",
        type=parse_call,
        metavar="m=196,n=288",
        help="print and save the best candidate that calls an operator with these attributes, instead of the best one; "
        "the operator is that of --target, or the first word: Matmul,m=196",
    )
    command.add_argument("--save", metavar="RECORD.json", help="write the best derivation with its certificates")
    command.add_argument(
        "--device",
        default="cpu",
        metavar="cpu|profile:FILE",
        help="cost model that orders candidates: this machine's, or the times of a profile recorded on another machine",
    )
    command.add_argument(
        "--threads", type=parse_count, metavar="N", help="number of threads of the times in the profile"
    )
    _json_option(command)


def _sweep_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("cases", nargs="+", metavar="CASE.ein")
    _search_options(command)
    command.add_argument(
        "--budget", "--limit-seconds", type=parse_seconds, metavar="S", help="time limit of each search (default: none)"
    )
    _states_option(command)
    _executor_options(command)
    _json_option(command)


def _family_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("case", metavar="CASE.ein")
    _target_option(command)
    command.add_argument(
        "--assume", action="append", default=[], metavar="'W >= K'", help="additional assumption; repeatable"
    )
    command.add_argument(
        "--budget", "--limit-seconds", type=parse_seconds, metavar="S", help="time limit of the search (default: none)"
    )
    command.add_argument(
        "--sizes", metavar="H=11,W=17", help="sizes at which the derivation is the cheapest (default: small primes)"
    )
    command.add_argument("--at", metavar="H=56,W=56", help="also print the program at these sizes")
    command.add_argument("--latex", action="store_true", help="print every program in LaTeX, and the verdicts apart")
    _json_option(command)


def _fuse_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("case", metavar="CASE.ein")
    _element_type_option(command)
    form = command.add_mutually_exclusive_group()
    form.add_argument("--kernel", choices=("cuda", "opencl", "c"), help="print the kernel")
    form.add_argument("--svg", metavar="FILE", help="draw the stages as SVG")


def _grad_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("case", metavar="CASE.ein")
    command.add_argument(
        "--wrt",
        action="append",
        default=[],
        metavar="A,K",
        help="inputs to differentiate with respect to (default: all)",
    )
    command.add_argument("--inline", action="store_true", help="inline intermediates that have no summation")
    command.add_argument(
        "--stash",
        action="store_true",
        help="print the forward pass and the backward pass, and the values that the forward pass stashes for it",
    )
    command.add_argument(
        "--stash-budget", type=parse_natural, metavar="BYTES", help="like --stash, with a limit for the stashed values"
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--latex", action="store_true", help="print LaTeX")
    form.add_argument("--text", action="store_true", help="print the text form (the default)")
    _json_option(command)


def _check_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("records", nargs="+", metavar="RECORD.json|BUNDLE", help="records, or folders of bundles")
    command.add_argument("--rule", metavar="NAME", action="append", default=[], help="also allow steps of this rule")
    command.add_argument(
        "--operator",
        metavar="NAME:EXPRESSION",
        action="append",
        default=[],
        help="allow calls of this operator, too: 'Outer: Y[m, n] = A[m] * B[n]'",
    )
    command.add_argument(
        "--modular", action="store_true", help="also evaluate start and end modulo 2^31-1 at their real sizes"
    )
    command.add_argument(
        "--require",
        choices=("proved", "rounded", "exact"),
        default="proved",
        help="the weakest verdict with exit code 0 (rounded: proved up to rounding of constants)",
    )
    command.add_argument(
        "--numerics", choices=("bf16",), help="bf16: allow steps that round operands of products to bfloat16"
    )
    _json_option(command)


def _equal_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("first", metavar="FIRST", help="an ONNX model, or a program or family (.ein)")
    command.add_argument("second", metavar="SECOND", help="another one of the same kind")
    _shape_option(command)
    _domain_option(command)
    command.add_argument(
        "--all-sizes", action="store_true", help="prove equality at all sizes of the dynamic dimensions of the inputs"
    )
    command.add_argument(
        "--budget",
        "--limit-seconds",
        type=parse_seconds,
        default=60.0,
        metavar="S",
        help="seconds of comparison at most (default: 60)",
    )
    command.add_argument(
        "--require",
        choices=("proved", "rounded"),
        default="proved",
        help="the weakest verdict with exit code 0 (rounded: weights or constants may be equal up to rounding)",
    )
    command.add_argument("--certificates", metavar="DIR", help="write one RECORD.json for each proved pair of values")
    command.add_argument("--inputs", metavar="FILE.npz", help="write the inputs on which the models differ")
    command.add_argument(
        "--html", metavar="FILE", help="write the verdict and both graphs, with equal values in one colour, as one page"
    )
    command.add_argument("--junit", metavar="FILE.xml", help="write the verdict as one test case in JUnit's form")
    _json_option(command)


def _path_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("first", metavar="FIRST", help="a program whose sizes are numbers (.ein), or an ONNX model")
    command.add_argument("second", metavar="SECOND", help="another one of the same kind")
    command.add_argument(
        "--budget", type=parse_seconds, default=20.0, metavar="S", help="seconds of search at most (default: 20)"
    )
    _json_option(command)
    command.add_argument("--save", metavar="RECORD.json", help="write the derivation, which check and show read")
    command.add_argument("--latex", action="store_true", help="print every program in LaTeX")
    _width_option(command)
    command.add_argument("--html", metavar="FILE", help="write the steps as one page")


def _optimize_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL.onnx")
    command.add_argument("-o", "--output", metavar="OUT.onnx", help="write the optimised model, or the plan for a GPU")
    command.add_argument(
        "--bundle",
        metavar="DIR",
        help="write a folder that ONNX Runtime runs without this package: the model, a library of its kernels, "
        "certificates, and a page on their use; it needs a C compiler",
    )
    command.add_argument("--html", metavar="FILE", help="write the report as one page")
    command.add_argument(
        "--inputs",
        metavar="FILE.npz",
        help="arrays by input name, on which the original and the plan are compared and timed (default: random ones)",
    )
    _domain_option(command)
    _depth_option(command)
    command.add_argument(
        "--budget",
        type=parse_seconds,
        metavar="SECONDS",
        help="time of tuning, after which no task is begun (default: 4 s for each different subprogram, at least 60 "
        "and at most 150 s; on a GPU 20 s and at most 480 s); the whole command takes at most about twice as long",
    )
    command.add_argument(
        "--target-runtime",
        default="plan",
        metavar="plan|onnxruntime",
        help="what to make fast: the plan, which --bundle writes (the default; OUT.onnx has those of its rewrites that "
        "are also faster in plain ONNX Runtime), or OUT.onnx in plain ONNX Runtime",
    )
    command.add_argument(
        "--numerics",
        default="approximate",
        metavar="exact|reassociate|approximate|bf16",
        help="the largest change of rounding that a derivation may make; approximate (the default) allows an error of "
        "1e-4 of the largest output; bf16 also allows products with operands in bfloat16 and sums in float32, as far "
        "as --error-bound admits",
    )
    command.add_argument(
        "--error-bound",
        type=float,
        metavar="ERROR",
        help="with --numerics bf16: the largest running error of a derivation, and the largest error of the whole "
        "model, relative to the largest output, such as 0.05",
    )
    command.add_argument(
        "--certificates", metavar="DIR", help="write one RECORD.json for each selected derivation to this folder"
    )
    _states_option(command)
    _memory_option(command)
    _executor_options(command)
    sizes = "; on a CPU, a dimension may have several sizes: 1..8 (a few are tuned), or 1+4+16 (each is)"
    _model_options(command, "cpu|cuda", "cpu (the default), or cuda: the GPU of this machine", sizes)
    _json_option(command)


def _bench_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("cases", nargs="+", metavar="MODEL.onnx|CASE.ein")
    command.add_argument(
        "--against",
        default="onnxruntime",
        metavar="NAMES",
        help="engines to compare with, of onnxruntime,torch,torch.compile,openvino,ncnn,mnn,numpy, or all "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--budget",
        type=parse_seconds,
        metavar="SECONDS",
        help="for a model, the --budget of optimize; for a case, the time limit of the search (default: 4 s)",
    )
    command.add_argument(
        "--rounds",
        type=parse_count,
        default=20,
        metavar="N",
        help="rounds of measurement; every engine runs once a round (default: %(default)s)",
    )
    _model_options(command, "cpu", "only cpu: engines are compared there")
    _json_option(command)


def _reproduce_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("experiments", nargs="+", choices=_EXPERIMENTS, metavar="|".join(_EXPERIMENTS))
    command.add_argument("--quick", action="store_true", help="smaller depths and limits: less than a minute")
    command.add_argument("--out", metavar="DIR", help="write CSV, Markdown and SVG files to this folder")
    _limit_options(command)
    command.add_argument(
        "--threads",
        type=parse_count,
        metavar="N",
        help="e1 to e3: threads of every engine (default: 1 and then 2 for e1, 1 for e2 and e3)",
    )
    command.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="e1: measure this model (default: all); repeatable"
    )
    command.add_argument(
        "--batch",
        action="append",
        type=parse_count,
        default=[],
        metavar="N",
        help="e1: batch size (default: 1 and 16); repeatable",
    )
    command.add_argument(
        "--again", action="store_true", help="e1 to e3: repeat the measurements in DIR from an earlier run"
    )
    command.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: print e1 to e3 from the file of --results"
    )
    command.add_argument("--results", metavar="FILE", help="results file written by python -m benchmarks.gpu run")


def _limit_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--max-depth", type=parse_count, metavar="N", help="e4 to e6: levels of the searches (default: 7)"
    )
    command.add_argument(
        "--count-seconds",
        type=parse_seconds,
        metavar="S",
        help="e4 to e6: time limit of counting the states of a case (default: 3600)",
    )
    command.add_argument(
        "--budget",
        "--limit-seconds",
        type=parse_seconds,
        metavar="S",
        help="e2 to e6: time limit of each search (default: 20 for e2 and e3, 60 for e4 to e6); e1: the --budget of "
        "each model (default: that of optimize)",
    )


def _models_arguments(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_Parser)
    actions.add_parser("list", help="print the names of the models")
    write = actions.add_parser("write", help="write one model as ONNX")
    write.add_argument("name")
    write.add_argument("--batch", type=parse_count, default=1, metavar="N", help="batch size (default: %(default)s)")
    write.add_argument(
        "--size", type=parse_count, metavar="S", help="input size (default: the published one, see models list)"
    )
    write.add_argument("-o", "--output", required=True, metavar="FILE.onnx")


_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "lab": ("open JupyterLab on the tour", _lab_arguments),
    "show": ("print or draw an expression, program or derivation", _show_arguments),
    "rules": ("list the legal rule matches, and the reasons why other matches are refused", _rules_arguments),
    "derive": ("search for programs of library operators and eOperators", _derive_arguments),
    "sweep": ("search from many cases, on processes or a cluster", _sweep_arguments),
    "family": ("derive a program with param lines, and prove it for all sizes", _family_arguments),
    "fuse": ("fuse a program into one kernel: print its stages, sizes and text", _fuse_arguments),
    "grad": ("differentiate a program: print the gradients of its inputs as a program", _grad_arguments),
    "check": ("replay the certificates of a derivation without the optimiser", _check_arguments),
    "equal": ("prove that two models or programs are equal, or find an input on which they differ", _equal_arguments),
    "path": ("find a derivation from one program to another", _path_arguments),
    "optimize": ("optimise an ONNX model", _optimize_arguments),
    "bench": ("measure against other engines, interleaved", _bench_arguments),
    "reproduce": ("print the tables and figures of the paper's evaluation, measured here", _reproduce_arguments),
    "models": ("list or write the evaluation models", _models_arguments),
}
