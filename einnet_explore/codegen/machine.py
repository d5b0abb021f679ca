"""A processor core as the few numbers that determine register tiles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """Vector registers of *lanes* float32 elements, operations a cycle, cache sizes in bytes."""

    registers: int = 32
    lanes: int = 16
    fma_per_cycle: float = 2
    loads_per_cycle: float = 2
    issue: float = 6
    latency: int = 4
    """Cycles from a multiply-add to one that uses its sum."""
    l1: int = 32 << 10
    l2: int = 1 << 20
    l2_bytes: float = 32
    """Bytes a cycle from the second-level cache."""
    l3: int = 32 << 20
    """Bytes of the last cache, which cores share."""


@lru_cache(1)
def this_machine() -> Machine:
    """Return this processor: vector width by its flags, cache sizes by the system; defaults where it reports none."""
    flags = cpu_flags()
    wide = not flags or "avx512f" in flags
    lanes, registers = (16, 32) if wide else (8, 16)
    l1, l2, l3 = (_cache_bytes(n) for n in (1, 2, 3))
    return Machine(registers, lanes, l1=l1 or 32 << 10, l2=l2 or 1 << 20, l3=l3 or 32 << 20)


def cpu_flags() -> frozenset[str]:
    """Return the feature flags of this processor; empty if the system reports none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in text.splitlines() if line.startswith("flags")), "").split())


def _cache_bytes(level: int) -> int | None:
    """Return the size of the first core's data cache of *level*, or None."""
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, at, size = ((entry / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction" and at == str(level) and size.endswith("K"):
            return int(size[:-1]) << 10
    return None
