"""Kernels that run on this device, whole programs, measurement, and the store of measured times."""

from einnet_explore.backends.arrays import aligned, aligned_empty
from einnet_explore.backends.bandwidth import stream_bandwidth
from einnet_explore.backends.errors import BackendError
from einnet_explore.backends.measure import Timing, compare
from einnet_explore.backends.profiles import ProfileStore
from einnet_explore.backends.program import CompiledProgram, compile_program
from einnet_explore.backends.store import Profile
from einnet_explore.backends.tvm_cpu import Kernel, Source, compile_scope, emit, load
from einnet_explore.storage import cache_directory

__all__ = [
    "BackendError",
    "CompiledProgram",
    "Kernel",
    "Profile",
    "ProfileStore",
    "Source",
    "Timing",
    "aligned",
    "aligned_empty",
    "cache_directory",
    "compare",
    "compile_program",
    "compile_scope",
    "emit",
    "load",
    "stream_bandwidth",
]
