"""Output of commands: exit codes, JSON, tables and files; remarks, errors and progress on standard error."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import printable

OK, NO, BAD_INPUT, NOT_PROVED, INTERRUPTED = 0, 1, 2, 3, 130

_MAX_MESSAGE_CHARACTERS = 600
"""Longer messages are cut: some libraries put whole programs into theirs."""


def one_line(error: BaseException) -> str:
    """Return the message of *error* as one printable line.

    A system error names its file.  An error that no input explains, such as a bug or a failing compiler, names its type
    and the option ``--debug``.
    """
    match error:
        case OSError(strerror=str(reason)) if reason:
            return printable(f"{error.filename}: {reason}" if error.filename else reason).replace("\n", " ")
        case MemoryError():
            return f"not enough memory: {' '.join(str(error).split()) or 'an allocation failed'}"
        case KeyError() if error.args:
            message = str(error.args[0])
        case _:
            message = str(error)
    line = printable(" ".join(message.split()))
    shown = line if len(line) <= _MAX_MESSAGE_CHARACTERS else f"{line[:_MAX_MESSAGE_CHARACTERS]} …"
    if isinstance(error, ValueError | LookupError | OSError) and " " in shown:
        return shown
    # A bare key or number, or an exception of another type: its message was not written for users.
    kind = type(error).__name__
    return (
        f"{kind}: {shown} (unexpected; --debug shows where)" if shown else f"{kind} (unexpected; --debug shows where)"
    )


if TYPE_CHECKING:
    from tqdm import tqdm

STDOUT = "-"


def check_width(width: str | None, latex: bool) -> None:
    """Raise ValueError for a width without LaTeX, whose lines it would break."""
    if width and not latex:
        raise ValueError("--width: expected --latex, whose lines it breaks")


def check_writable(*paths: str | None, json: str | None = None, reads: Iterable[str | None] = ()) -> None:
    """Raise OSError for the first of *paths* and *json* that cannot be written; commands call this before they work.

    Raises ValueError for two equal paths, for a path that the command *reads*, and for standard output as any path
    other than *json*.
    """
    if STDOUT in paths:
        raise ValueError(f"found {STDOUT} as a file to write, expected a name: standard output takes only --json")
    taken = {os.path.realpath(path): "is read here" for path in reads if path is not None}
    for path in (*paths, json if json != STDOUT else None):
        if path is None:
            continue
        where, real = Path(path), os.path.realpath(path)
        if real in taken and (where.is_file() or not where.exists()):  # a device may be read and written
            raise ValueError(f"{path}: {taken[real]}, expected another file to write")
        taken[real] = "is written here already"
        if where.is_dir():
            raise _os_error(errno.EISDIR, path)
        if not where.parent.is_dir():
            raise _os_error(errno.ENOENT if not where.parent.exists() else errno.ENOTDIR, str(where.parent))
        if not os.access(where if where.exists() else where.parent, os.W_OK):
            raise _os_error(errno.EACCES, path)


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def write_outputs(
    outputs: Iterable[tuple[str | None, Callable[[str], None]]], *refusals: type[Exception]
) -> list[BaseException]:
    """Write every requested one of *outputs*; return the errors, of *refusals* too, of those that were not written.

    Ctrl-C is such an error: it ends the output that is being made, and no other.
    """
    caught: tuple[type[BaseException], ...] = (*refusals, KeyboardInterrupt, MemoryError, OSError, ValueError)
    failures: list[BaseException] = []
    for path, write in outputs:
        if path is None:
            continue
        try:
            write(path)
        except caught as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else one_line(error)
            say(f"{path} was not written: {why}")
            failures.append(error)
    return failures


def save_file(path: str, content: str | bytes) -> None:
    """Write *content* to the file at *path* atomically, and report it."""
    write_atomically(path, content)
    say(f"saved {path}")


def say(message: str) -> None:
    """Print a remark on standard error."""
    print(printable(message), file=sys.stderr)


def write_json(where: str, document: Mapping[str, object] | Sequence[object]) -> None:
    """Write one JSON document to standard output (``-``) or atomically to a file; infinities and NaN become null."""
    text = json.dumps(_finite(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    data = text.encode(errors="backslashreplace")  # file names that are not UTF-8 become JSON's \udcff
    if where == STDOUT:
        sys.stdout.write(data.decode())
    else:
        save_file(where, data)


def _finite(value: object) -> object:
    """Return *value* with null for infinities and NaN, which JSON does not have."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {k: _finite(v) for k, v in value.items()}
        case list() | tuple():
            return [_finite(v) for v in value]
        case _:
            return value


def progress_bar(total: int | None = None, unit: str = "states") -> tqdm[NoReturn]:
    """Return a progress bar on standard error; it prints nothing unless that is a terminal."""
    from tqdm import tqdm

    return tqdm(total=total, unit=f" {unit}", file=sys.stderr, disable=not sys.stderr.isatty(), leave=False)


def format_table(rows: Sequence[Sequence[object]]) -> str:
    """Format *rows* as aligned columns; the first row is the heading, and numbers are aligned right."""
    cells = [[str(c) for c in row] for row in rows]
    widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]))]
    right = [len(cells) > 1 and all(_numeric(row[n]) for row in cells[1:]) for n in range(len(widths))]
    return "\n".join(
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in cells
    )


def _numeric(cell: str) -> bool:
    return not cell or cell[0].isdigit() or (cell[0] in "-+." and cell[1:2].isdigit())
