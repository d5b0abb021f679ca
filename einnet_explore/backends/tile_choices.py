"""Which tile a contraction is cut up by, kept in the cache directory: a search of 2 to 40 ms, once a machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, fields
from pathlib import Path

from einnet_explore.backends import versions
from einnet_explore.backends.identity import identity
from einnet_explore.ir import Scope
from einnet_explore.kernels.form import Form
from einnet_explore.kernels.machine import Machine
from einnet_explore.kernels.tile import Cut, Tile
from einnet_explore.kernels.tiles import best_tile, tiles
from einnet_explore.storage import cache_directory, write_aside


def chosen_tile(scope: Scope, form: Form, machine: Machine) -> Tile | None:
    """``best_tile`` of *form*, which *scope* is, by what is kept for that expression, *machine* and version.

    What cannot be read, or is no tile of this form, is chosen anew; a disk that cannot be written costs the search.
    """
    key = "\n".join((identity(scope), repr(astuple(machine)), str(versions.TILE_CHOICE_VERSION)))
    path = cache_directory() / "tiles" / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"
    kept = _read(path)
    if kept is not None and (tile := next(iter(tiles(form, machine, kept)), None)) is not None:
        return tile
    tile = best_tile(form, machine)
    if tile is not None:
        _keep(path, json.dumps(astuple(tile.cut)))
    return tile


def _keep(path: Path, text: str) -> None:
    def write(new: Path) -> None:
        new.write_text(text)

    write_aside(path, write)


def _read(path: Path) -> Cut | None:
    try:
        numbers = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(numbers, list) and len(numbers) == len(fields(Cut)) and all(isinstance(n, int) for n in numbers)
    return Cut(*numbers) if whole else None
