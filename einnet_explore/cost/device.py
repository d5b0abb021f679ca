"""A device as the few numbers that a roofline needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """Rates in FLOP/s and bytes/s of *threads* threads together; ``call_seconds`` is what starting anything costs.

    ``library``, ``tiled`` and ``generated`` are the parts of the peak that library operators, register-tiled kernels
    and other generated ones reach where nothing but arithmetic limits them; ``lanes`` is the width of a vector register
    in elements.
    """

    name: str
    threads: int
    peak_flops: float
    memory_bandwidth: float
    cache_bandwidth: float
    cache_bytes: int
    call_seconds: float
    lanes: int = 16
    library: float = 0.8
    tiled: float = 0.7
    generated: float = 0.15

    def bandwidth(self, nbytes: int) -> float:
        """Bytes a second for a working set of *nbytes*."""
        return self.cache_bandwidth if nbytes <= self.cache_bytes else self.memory_bandwidth


def cpu_default(threads: int = 1) -> Device:
    """A present-day server core with 512-bit vectors, times *threads*; memory is shared, so it grows more slowly."""
    return Device(
        name="cpu",
        threads=threads,
        peak_flops=1.2e11 * threads,
        memory_bandwidth=2.0e10 * threads**0.5,
        cache_bandwidth=8.0e10 * threads,
        cache_bytes=1 << 24,
        call_seconds=3e-6,
    )


CPU_DEFAULT = cpu_default()
