r"""How an element-wise kernel is launched: a pure function of length, types, addresses and device.

.. math::  pack = \min_T \min(8, 16 / |T|), \qquad
           blocks = \max(1, \min(\lceil packs / 256 \rceil,\ SMs \cdot threads / 256 \cdot 32))

Source: the OneFlow document, sections 1 and 2 (``kBlockSize``, ``kNumWaves``, ``kMaxPackBytes``, ``kMaxPackSize``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from einnet_explore.kernels.source import I32, I64, KernelError, Type

REGISTERS, REGISTERS_A_THREAD = 64 * 1024, 255
"""What a block may have at most, and a thread."""

BLOCK = 1 << (REGISTERS // REGISTERS_A_THREAD).bit_length() - 1
"""Threads a block: as many as have registers even if each takes the most, rounded down to a power of two (256)."""

WAVES = 32
MAX_PACK_BYTES = 128 // 8
MAX_PACK_SIZE = 8


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device: its multiprocessors, and how many threads are resident on each at most."""

    multiprocessors: int
    threads: int = 2048

    @property
    def most_blocks(self) -> int:
        """Blocks in 32 full waves."""
        return self.multiprocessors * self.threads // BLOCK * WAVES


A100, H100 = Gpu(108), Gpu(132)


@dataclass(frozen=True, slots=True)
class Launch:
    """*packs* packs of *pack* elements and *tail* single ones, by *blocks* blocks; positions are of type *index*."""

    pack: int
    packs: int
    tail: int
    blocks: int
    index: Type


def pack_size(kinds: Iterable[Type]) -> int:
    """Elements a pack: at most 8, and at most 128 bits of the widest of *kinds*."""
    return min((min(MAX_PACK_SIZE, MAX_PACK_BYTES // k.size) for k in kinds), default=1)


def blocks(packs: int, gpu: Gpu) -> int:
    """Blocks for *packs* packs: at least one, no more than have work, no more than 32 waves."""
    return max(1, min(-(-packs // BLOCK), gpu.most_blocks))


def index_type(length: int, pack: int, count: int) -> Type:
    """int32 where no position, nor the one a thread goes on to after its last, is beyond 2³¹-1; else int64."""
    return I32 if length + count * BLOCK * pack < 1 << 31 else I64


def plan(length: int, kinds: Sequence[Type], addresses: Sequence[int], gpu: Gpu = A100) -> Launch:
    """The launch for *length* elements of each of *kinds*, one array each, at *addresses* (in bytes).

    Where one of them is not a multiple of its pack's bytes all elements go one by one.  Raises KernelError for a
    negative length, for a device without a full block, and where there is not one address a type.
    """
    if length < 0 or len(kinds) != len(addresses) or gpu.most_blocks < 1:
        raise KernelError(
            f"{length} elements of {len(kinds)} arrays at {len(addresses)} addresses, {gpu.most_blocks} blocks a launch"
        )
    pack = pack_size(kinds)
    if any(at % (pack * kind.size) for kind, at in zip(kinds, addresses, strict=True)):
        pack = 1
    packs, tail = divmod(length, pack)
    count = blocks(packs, gpu)
    return Launch(pack, packs, tail, count, index_type(length, pack, count))
