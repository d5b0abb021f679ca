"""The commands ``einnet-explore …`` (also ``python -m einnet_explore``)."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper

from einnet_explore.cli.arguments import command_parser
from einnet_explore.cli.output import BAD_INPUT, INTERRUPTED, OK, one_line


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 negative answer, 2 bad input, 130 interrupted.

    An error is one line on standard error; with ``--debug`` it is a traceback.
    """
    arguments = command_parser().parse_args(argv)
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


__all__ = ["main"]
