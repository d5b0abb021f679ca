"""Tiles are chosen once for each machine: shared by processes, and chosen again if the stored tile is unusable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from einnet_explore.codegen import versions
from einnet_explore.codegen.register_tiles import Machine, RegisterTile, best_tile, register_tiles
from einnet_explore.codegen.sum_of_products import SumOfProducts, match_sum_of_products
from einnet_explore.ir import Scope
from einnet_explore.runtime import implementations
from einnet_explore.runtime.implementations import choose_tile
from einnet_explore.syntax import parse

MACHINE = Machine()
SCOPE = (
    parse(
        """
    tensor X[1, 6, 12, 40] pad [0, 0, 1, 1]
    tensor K[5, 6, 3, 3]
    Y[n:1, f:5, h:12, w:40] = sum[c:6, r:3, s:3] X[n, c, h+r-1, w+s-1] * K[f, c, r, s]
    """
    )
    .equations[0]
    .scope
)
FORM = match_sum_of_products(SCOPE)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path))
    return tmp_path


def choose(scope: Scope = SCOPE, machine: Machine = MACHINE) -> RegisterTile | None:
    found = match_sum_of_products(scope)
    assert found is not None
    return choose_tile(scope, found, machine)


def test_parameters_identify_register_tiles() -> None:
    assert FORM is not None
    every = list(register_tiles(FORM, MACHINE))
    assert len({tile.parameters for tile in every}) == len(every) > 50
    for tile in every[::17]:
        assert list(register_tiles(FORM, MACHINE, tile.parameters)) == [tile]


def test_a_choice_is_searched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = choose()
    assert FORM is not None and first == best_tile(FORM, MACHINE)

    def again(form: SumOfProducts, machine: Machine) -> RegisterTile | None:
        raise AssertionError("searched again")

    monkeypatch.setattr(implementations, "best_tile", again)
    assert choose() == first
    with pytest.raises(AssertionError, match="again"):
        choose(machine=replace(MACHINE, lanes=8))
    monkeypatch.setattr(versions, "TILE_CHOICE_VERSION", "another")
    with pytest.raises(AssertionError, match="again"):
        choose()


@pytest.mark.parametrize(
    "kept",
    ["", "[1, 2", "3", "[]", '["a", 0, 0, 0, 0, 0, 0, 0]', json.dumps([9] * 8), json.dumps([0, 1, 0, 1, 1, 16, 9, 32])],
)
def test_unusable_stored_tile_is_chosen_again(kept: str, cache: Path) -> None:
    first = choose()
    (path,) = (cache / "tiles").glob("*.json")
    good = path.read_text()
    path.write_text(kept)
    assert choose() == first and path.read_text() == good


def test_tile_is_chosen_without_a_writable_cache(cache: Path) -> None:
    (cache / "tiles").write_text("no folder")
    assert choose() == choose() is not None
