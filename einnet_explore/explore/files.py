"""Files that are either whole or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write *content* beside *path*, flush it to the disk, then put it in place at once.

    Whatever interrupts this (a full disk, Ctrl-C), *path* holds what it held before or all of *content*.  Raises
    OSError, about *path*.
    """
    where = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        handle, aside = tempfile.mkstemp(dir=where.parent, prefix=f".{where.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes files that only their owner reads; the result has the rights that open() would give.
            os.umask(mask := os.umask(0))
            os.chmod(aside, (where.stat().st_mode & 0o777) if where.exists() else 0o666 & ~mask)
            os.replace(aside, where)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(where)) from None
