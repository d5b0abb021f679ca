"""Options that several commands have, said in one way."""

from __future__ import annotations

import argparse

from einnet_explore.cli.values import count, memory, natural


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
        "--max-depth", type=natural, default=7, metavar="N", help="levels of choices (default: %(default)s)"
    )


def json_options(command: argparse.ArgumentParser) -> None:
    """Where the result goes as JSON."""
    command.add_argument("--json", metavar="-", help="one JSON document to standard output (-) or a file")


def states_options(command: argparse.ArgumentParser) -> None:
    """A bound of searches that is the same on every machine."""
    command.add_argument(
        "--limit-states", type=count, metavar="N", help="end each search after N states: the same whenever it runs"
    )


def memory_options(command: argparse.ArgumentParser) -> None:
    """A bound of memory."""
    command.add_argument(
        "--memory",
        type=memory,
        metavar="512M|2G",
        help="stop searching near this much memory, with what there is, and measure nothing that does not fit",
    )


def elsewhere_options(command: argparse.ArgumentParser) -> None:
    """Where searches run."""
    where = command.add_mutually_exclusive_group()
    where.add_argument("--jobs", type=count, metavar="N", help="search in N processes (default: here, in turn)")
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
        "--threads", type=count, metavar="N", help="of all engines (default: every core that this process may use)"
    )
