"""Contractions with epilogues as tiled kernels: tile choice (cached, 2 to 40 ms), compilation and calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import astuple, dataclass, fields
from functools import cached_property, lru_cache, partial
from math import prod
from pathlib import Path

import numpy as np
import tvm_ffi

from einnet_explore.codegen import versions
from einnet_explore.codegen.register_tiles import (
    Machine,
    RegisterTile,
    TileParameters,
    best_tile,
    register_tiles,
    this_machine,
)
from einnet_explore.codegen.sum_of_products import SumOfProducts, match_sum_of_products
from einnet_explore.codegen.tvm.contraction import contraction_function
from einnet_explore.codegen.tvm.contraction_plan import ContractionPlan, gather_positions, plan_contraction
from einnet_explore.codegen.versions import scope_identity
from einnet_explore.ir import Scope, tensors
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import Array, aligned_empty, check_argument
from einnet_explore.support.errors import BackendError
from einnet_explore.support.storage import cache_directory, write_aside


def choose_tile(scope: Scope, form: SumOfProducts, machine: Machine) -> RegisterTile | None:
    """``best_tile`` of *form*, the form of *scope*, stored by expression, *machine* and version.

    A stored tile that is damaged or does not fit is chosen anew, and so is one that the disk cannot store.
    """
    key = "\n".join((scope_identity(scope), repr(astuple(machine)), str(versions.TILE_CHOICE_VERSION)))
    path = cache_directory() / "tiles" / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"
    kept = _read_parameters(path)
    if kept is not None and (tile := next(iter(register_tiles(form, machine, kept)), None)) is not None:
        return tile
    tile = best_tile(form, machine)
    if tile is not None:
        _write(path, json.dumps(astuple(tile.parameters)))
    return tile


def _write(path: Path, text: str) -> None:
    def write(new: Path) -> None:
        new.write_text(text)

    write_aside(path, write)


def _read_parameters(path: Path) -> TileParameters | None:
    try:
        numbers = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    whole = (
        isinstance(numbers, list)
        and len(numbers) == len(fields(TileParameters))
        and all(isinstance(n, int) for n in numbers)
    )
    return TileParameters(*numbers) if whole else None


MAX_ELEMENTS = 1 << 28
"""Elements of an array: positions are 32-bit numbers, in a padded copy and while they are computed too."""

MIN_FLOPS_PER_CYCLE = 12
"""Operations a cycle (of up to 64) from which on a contraction is bound by arithmetic rather than by memory."""


@dataclass(frozen=True)
class TiledContraction:
    """A contraction as a tiled kernel: its *scope* and the plan of its tiles."""

    scope: Scope
    plan: ContractionPlan

    @property
    def cycles(self) -> float:
        """The estimate that chose the tile."""
        return self.plan.tile.cycles

    @property
    def worthwhile(self) -> bool:
        """Return whether arithmetic is expected to bound it: other kernels are slower then."""
        return self.plan.form.flops >= MIN_FLOPS_PER_CYCLE * self.cycles

    @property
    def text(self) -> str:
        """TVMScript."""
        return str(contraction_function(self.plan).script())

    @cached_property
    def key(self) -> str:
        """The key of the compiled kernel in the cache directory."""
        packed = self.plan.other is None
        tile = self.plan.tile
        cut = (tile.vector, tile.layout.copied, tile.lanes, tile.vectors, tile.rows, tile.slots, tile.slots_outside)
        code = (len(tile.groups), len(tile.unrolled), packed, self.plan.threads, versions.TILED_KERNEL_VERSION)
        parts = (scope_identity(self.scope), *cut, *code, *compiled.compilation_target())
        return "c" + hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:39]

    @cached_property
    def function(self) -> compiled.CompiledFunction:
        """The compiled function, from the cache directory where it is there; raises BackendError where TVM refuses."""
        compiled.use_threads(self.plan.threads)
        known = compiled.load_stored(self.key)
        if known is not None:
            return known
        try:
            return compiled.build_tvm(contraction_function(self.plan), self.key, self.plan.threads)
        except Exception as error:
            refusal = compiled.last_line(error)
            raise BackendError(f"TVM refuses the tiled kernel of {self.scope!r}: {refusal}") from error

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self.plan.threads

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The tensors that the function takes, in order; the second one packed if it is constant."""
        plan = self.plan
        vector, other = (plan.form.operands[n] for n in (plan.tile.vector, 1 - plan.tile.vector))
        return (vector.name, other.name, *(t.name for t in plan.sides))

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the arguments as the function sees them."""
        plan = self.plan
        vector, other = (plan.form.operands[n].shape for n in (plan.tile.vector, 1 - plan.tile.vector))
        second = (plan.packed,) if plan.other is None else (prod(other),)
        return ((prod(vector),), second, *((prod(t.shape),) for t in plan.sides), (prod(self.scope.shape),))

    def pack(self, array: Array) -> Array:
        """Return the second operand in the layout that the function takes."""
        if self.plan.other is not None:
            return array
        at = gather_positions(self.plan.form, self.plan.tile, self.plan.steps, self.plan.regions)
        found = aligned_empty((self.plan.packed,))
        found[: at.size], found[at.size :] = np.append(array.reshape(-1), np.float32(0))[at], 0
        return found

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Callable[[], object]:
        """A call that reads *arrays* (by tensor name) where they are now and writes *out*; a constant is packed here.

        Raises BackendError where an array has another shape or dtype, or is not contiguous and aligned.
        """
        shapes = {t.name: t.shape for t in tensors(self.scope)}
        for name in self.reads:
            check_argument(name, arrays[name], shapes[name])
        check_argument("the result", out, self.scope.shape)
        if out.size == 0:
            return lambda: None
        first, second, *rest = (arrays[name] for name in self.reads)
        given = (first, self.pack(second), *rest, out)
        return partial(self.function, *(tvm_ffi.from_dlpack(array.reshape(-1)) for array in given))


def tiled_contraction(scope: Scope, constant: Collection[str] = (), threads: int = 1) -> TiledContraction | None:
    """*scope* as a tiled kernel over float32; None if it is no contraction or no tile fits.

    Tensors named in *constant* never change.
    """
    chosen = _choose(scope, this_machine())
    if chosen is None:
        return None
    found, tile = chosen
    packed = found.operands[1 - tile.vector].name in constant
    made = ContractionPlan(found, tile, None, threads) if packed else plan_contraction(found, tile, threads)
    return None if made is None else TiledContraction(scope, made)


@lru_cache(1 << 12)  # every candidate and every plan asks again, and a choice takes up to 40 ms
def _choose(scope: Scope, machine: Machine) -> tuple[SumOfProducts, RegisterTile] | None:
    """*scope* as a contraction, and its tile."""
    found = match_sum_of_products(scope)
    if found is None or any(x.extent == 0 for x in (*found.traversals, *found.summations)):
        return None
    if max(map(prod, (scope.shape, *(t.shape for t in tensors(scope))))) > MAX_ELEMENTS:
        return None
    tile = choose_tile(scope, found, machine)
    return None if tile is None else (found, tile)
