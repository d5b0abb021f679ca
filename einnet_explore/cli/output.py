"""Writing results: JSON to standard output or a file, progress to a terminal's standard error only."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import printable

if TYPE_CHECKING:
    from tqdm import tqdm

STDOUT = "-"


def check_writable(*paths: str | None, json: str | None = None, reads: Iterable[str] = ()) -> None:
    """Raise OSError, about the first of *paths* and *json* that cannot be written, before any work is done for it.

    Raises ValueError for one that would be written over another, or over what the command *reads*, and where another
    path than *json* is standard output.
    """
    if STDOUT in paths:
        raise ValueError(f"found {STDOUT} as a file to write, expected a name: standard output takes only --json")
    taken = {os.path.realpath(path): "is read here" for path in reads}
    for path in (*paths, json if json != STDOUT else None):
        if path is None:
            continue
        where, real = Path(path), os.path.realpath(path)
        if real in taken and (where.is_file() or not where.exists()):  # a device takes whatever comes
            raise ValueError(f"{path}: {taken[real]}, expected another file to write")
        taken[real] = "is written here already"
        if where.is_dir():
            raise _said(errno.EISDIR, path)
        if not where.parent.is_dir():
            raise _said(errno.ENOENT if not where.parent.exists() else errno.ENOTDIR, str(where.parent))
        if not os.access(where if where.exists() else where.parent, os.W_OK):
            raise _said(errno.EACCES, path)


def _said(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def save_file(path: str, content: str | bytes) -> None:
    """Write *content* to the file at *path*, whole or not at all, and say so."""
    write_atomically(path, content)
    say(f"saved {path}")


def say(message: str) -> None:
    """A remark beside the results: on standard error."""
    print(printable(message), file=sys.stderr)


def write_json(where: str, document: Mapping[str, Any]) -> None:
    """One JSON document to standard output (``-``) or to a file, whole or not at all; what is not finite is null."""
    text = json.dumps(_finite(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    held = text.encode(errors="backslashreplace")  # names of files may be no UTF-8, but JSON's \udcff
    if where == STDOUT:
        sys.stdout.write(held.decode())
    else:
        save_file(where, held)


def _finite(value: Any) -> Any:
    # JSON has no infinity and no NaN.
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {k: _finite(v) for k, v in value.items()}
        case list() | tuple():
            return [_finite(v) for v in value]
        case _:
            return value


def progress_bar(total: int | None = None, unit: str = "states") -> tqdm[Any]:
    """A progress bar on standard error; silent unless that is a terminal."""
    from tqdm import tqdm

    return tqdm(total=total, unit=f" {unit}", file=sys.stderr, disable=not sys.stderr.isatty(), leave=False)


def format_table(rows: Sequence[Sequence[object]]) -> str:
    """Rows as columns of text; the first row is the heading, numbers are flush right."""
    cells = [[str(c) for c in row] for row in rows]
    widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]))]
    right = [len(cells) > 1 and all(_numeric(row[n]) for row in cells[1:]) for n in range(len(widths))]
    return "\n".join(
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in cells
    )


def _numeric(cell: str) -> bool:
    return not cell or cell[0].isdigit() or (cell[0] in "-+." and cell[1:2].isdigit())
