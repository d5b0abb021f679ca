"""The cache directory, and files that are either whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs


def cache_directory() -> Path:
    """``EINNET_EXPLORE_CACHE``, or the user's cache directory.  It need not exist."""
    chosen = os.environ.get("EINNET_EXPLORE_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("einnet-explore"))


def write_aside(path: Path, write: Callable[[Path], None]) -> bool:
    """Let *write* fill a file beside *path*, then put it in place at once; False where the disk does not allow it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as aside:
            new = Path(aside) / path.name
            write(new)
            os.replace(new, path)
    except OSError:
        return False
    return True
