"""A processor core as the few numbers that choose a register tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """Vector registers of *lanes* float32 elements, what a cycle can do, and the caches in bytes."""

    registers: int = 32
    lanes: int = 16
    fma_per_cycle: float = 2
    loads_per_cycle: float = 2
    issue: float = 6
    latency: int = 4
    """Cycles until the sum of a multiply-add can be added to."""
    l1: int = 32 << 10
    l2: int = 1 << 20
    l2_bytes: float = 32
    """Bytes a cycle from the second-level cache."""
    l3: int = 32 << 20
    """Bytes of the last cache, which others use too."""


@lru_cache(1)
def this_machine() -> Machine:
    """This processor: vector width by its flags, cache sizes as the system tells them; defaults where it does not."""
    flags = cpu_flags()
    wide = not flags or "avx512f" in flags
    lanes, registers = (16, 32) if wide else (8, 16)
    l1, l2, l3 = (_cache_bytes(n) for n in (1, 2, 3))
    return Machine(registers, lanes, l1=l1 or 32 << 10, l2=l2 or 1 << 20, l3=l3 or 32 << 20)


def cpu_flags() -> frozenset[str]:
    """What the system says that this processor can do; nothing where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in text.splitlines() if line.startswith("flags")), "").split())


def _cache_bytes(level: int) -> int | None:
    """The data cache of *level* that the first core uses."""
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, at, size = ((entry / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction" and at == str(level) and size.endswith("K"):
            return int(size[:-1]) << 10
    return None
