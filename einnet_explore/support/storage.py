"""The cache directory, and files that are written completely or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import platformdirs

_NEW = ".new-"

STALE_SECONDS = 24 * 3600.0
"""Seconds after which a temporary file is taken to be left by a killed process."""


def cache_directory() -> Path:
    """Return ``EINNET_EXPLORE_CACHE`` or the user's cache directory, which may not exist yet."""
    chosen = os.environ.get("EINNET_EXPLORE_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("einnet-explore"))


def write_aside(path: Path, write: Callable[[Path], None]) -> bool:
    """Let *write* fill a temporary file, then rename it to *path*; False if the disk does not allow it."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _tidy(path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=_NEW) as aside:
            new = Path(aside) / path.name
            write(new)
            os.replace(new, path)
    except OSError:
        return False
    return True


def temporary_folder() -> Path:
    """Make a folder in the cache directory, which the caller removes, and return it; raises OSError."""
    parent = cache_directory() / "temporary"
    parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _tidy(parent)
    return Path(tempfile.mkdtemp(dir=parent, prefix=_NEW))


def _tidy(folder: Path) -> None:
    """Remove files that killed processes left in *folder*."""
    for left in folder.glob(f"{_NEW}*"):
        with suppress(FileNotFoundError):  # two may tidy at once
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write *content* to a temporary file, flush it to the disk, then rename it to *path*.

    If this is interrupted (a full disk, Ctrl-C), *path* holds the old content or all of *content*. Links are followed;
    devices and pipes are written to directly. Raises OSError, about *path*.
    """
    where = Path(os.path.realpath(path))
    data = content.encode() if isinstance(content, str) else content
    try:
        if where.exists() and not where.is_file():
            where.write_bytes(data)
            return
        # A name may be as long as file names can be: of it, 40 characters are 160 bytes at most.
        handle, aside = tempfile.mkstemp(dir=where.parent, prefix=f".{where.name[:40]}-")
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
        raise type(error)(error.errno, error.strerror, str(path)) from None
