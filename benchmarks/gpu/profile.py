"""Conversion of results to a profile: times and rates of a device, for a search on another machine."""

from __future__ import annotations

import json
from pathlib import Path

from einnet_explore.runtime.profile_store import ProfileKey, TimeStore, record_rates


def convert(results: Path, out: Path) -> str:
    """Write the times in *results* to *out* and say how many; raises ValueError where there are no results in it."""
    try:
        held = json.loads(results.read_text())
        rates, device, found = held["ceilings"]["all"]["rates"], held["device"], held["profiles"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{results}: found no complete results ({error!r})") from None
    name = f"CUDA {device['name']}"
    library = f"driver {device['driver']} runtime {device['runtime']} {device['libraries']}"
    store = TimeStore(out)
    record_rates(out, name, library, rates)
    times = {key: one for key, one in found.items() if "seconds" in one}
    for one in times.values():
        operator, attributes, shapes, dtype = one["key"]
        store.record(ProfileKey(operator, attributes, shapes, dtype, 1, name, library), one["seconds"], "events")
    return f"{out}: {len(times)} times of {name} ({library})"
