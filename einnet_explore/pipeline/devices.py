"""Cost models of target devices: this CPU, or a device with a recorded profile."""

from __future__ import annotations

from einnet_explore.cost import CostModel, Device, cpu_default
from einnet_explore.ir import Program
from einnet_explore.runtime.device_profile import PROFILE_PREFIX, RATES, RecordedProfile, load_recorded_profile
from einnet_explore.strategies.options import Cost
from einnet_explore.support.errors import BackendError


def device_cost(device: str, threads: int | None = None) -> Cost:
    """Return the cost function of a search for *device*: seconds, and how they were found.

    Raises ValueError for an unknown device or an unusable profile.
    """
    model = device_cost_model(device, threads)

    def seconds(program: Program) -> tuple[float, str]:
        found = model.program_cost(program)
        return found.seconds, found.how

    return seconds


def device_cost_model(device: str, threads: int | None = None) -> CostModel:
    """Return the cost model of *device*; raises as ``device_cost`` does."""
    if not device.startswith(PROFILE_PREFIX):
        if device != "cpu":
            raise ValueError(f"device {device!r}: found no such cost, expected cpu or {PROFILE_PREFIX}FILE.sqlite")
        return CostModel()
    try:
        held = load_recorded_profile(device.removeprefix(PROFILE_PREFIX), threads)
    except BackendError as error:
        raise ValueError(str(error)) from None
    return CostModel(_rates(held), held.lookup())


def _rates(held: RecordedProfile) -> Device:
    """Return the roofline of a recording; one without rates is of a CPU with the usual figures."""
    usual = cpu_default(max(1, held.threads))
    if not held.rates:
        if held.device.startswith("CUDA"):
            raise ValueError(f"profile {held.path}: no rates of {held.device}, expected {', '.join(RATES)}")
        return usual
    own = {
        name: held.rates.get(name, getattr(usual, name))
        for name in (
            "peak_flops",
            "memory_bandwidth",
            "cache_bandwidth",
            "call_seconds",
            "library",
            "tiled",
            "generated",
        )
    }
    whole = {name: int(held.rates.get(name, getattr(usual, name))) for name in ("cache_bytes", "lanes")}
    return Device(name=held.device, threads=held.threads, **own, **whole)
