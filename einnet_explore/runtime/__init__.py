"""Kernels that run on this device, whole programs, measurement, and the store of measured times."""

from einnet_explore.codegen.errors import BackendError
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.device_rates import stream_bandwidth
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.measurement import Timing, compare
from einnet_explore.runtime.profile_store import Profile
from einnet_explore.runtime.program import CompiledProgram, compile_program
from einnet_explore.runtime.tvm_cpu import Kernel, Source, compile_scope, emit, load
from einnet_explore.support.storage import cache_directory

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
