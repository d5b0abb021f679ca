"""A stage that reads along another traversal than it writes: tiles transposed in registers on the way."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from einnet_explore.backends.blocks.local import Local
from einnet_explore.backends.blocks.writer import Expr, Writer, along
from einnet_explore.backends.rows.tiles import store, vector
from einnet_explore.ir import Access, Iterator
from einnet_explore.kernels.source.shuffles import SIDES, transposed


@dataclass(frozen=True, slots=True)
class Turn:
    """*reads* run along *across* where the stage runs along its last traversal; tiles have *side* rows and lanes."""

    reads: tuple[Access, ...]
    across: Iterator
    side: int


def turn_of(stage: Local, lanes: int) -> Turn | None:
    """How *stage* turns what it reads; None where it does not, or where no tile fits."""
    last = stage.last
    if stage.sums or along(stage.place, last) != {1} or last in stage.guards:
        return None
    turned = tuple(a for a in stage.reads if not along(a, last) <= {0, 1})
    across = [x for x in stage.traversals[:-1] if turned and all(along(a, x) == {1} for a in turned)]
    if len(across) != 1 or across[0] in stage.guards:
        return None
    (x,) = across
    side = next((s for s in SIDES if s <= lanes and s <= x.extent and s <= last.extent), None)
    return None if side is None else Turn(turned, x, side)


def write(writer: Writer, stage: Local, turn: Turn) -> None:
    """Tile by tile; the last ones end with what is there, and overlap those before where they must."""
    last, across, side = stage.last, turn.across, turn.side
    tiles = Iterator("@tiles", 0, -(-last.extent // side))
    vectors = Iterator("@vectors", 0, -(-across.extent // side))
    outer = tuple(x for x in stage.traversals if x not in (last, across))
    with ExitStack() as inside:
        env = writer.loops((*outer, vectors, tiles), stage.guards, inside)
        for x, number in ((last, tiles), (across, vectors)):
            start: Expr = env[number] * side
            env[x] = T.bind((start if x.extent % side == 0 else tirx.min(start, x.extent - side)) + x.lo)
        columns = {read: _transposed(writer, read, turn, last, env) for read in turn.reads}
        for j in range(side):
            here = {**env, across: env[across] + j}
            at = writer.at(stage.place, here)
            if len(turn.reads) == 1 and stage.body == turn.reads[0]:
                store(writer.memory[stage.memory], columns[turn.reads[0]][j], at, side)
                continue
            held = {}
            for read, column in columns.items():
                held[read] = T.alloc_buffer((side,))
                store(held[read], column[j], 0, side)
            with T.vectorized(side) as lane:
                given = {read: buffer[lane] for read, buffer in held.items()}
                value = writer.value(stage.body, {**here, last: env[last] + lane}, given)
                T.buffer_store(writer.memory[stage.memory], value, [at + lane])


def _transposed(writer: Writer, read: Access, turn: Turn, last: Iterator, env: dict[Iterator, Expr]) -> list[Expr]:
    memory = writer.memory[read.source.name]  # type: ignore[union-attr]
    rows = [
        T.bind(vector(memory, writer.at(read.index[0], {**env, last: env[last] + i}), turn.side))
        for i in range(turn.side)
    ]
    return transposed(rows, lambda a, b, lanes: T.bind(tirx.Shuffle([a, b], [tirx.const(n, "int32") for n in lanes])))
