"""The devices that candidates may be measured on, or whose recorded profile says how long they take there."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "profile:"
"""As in ``backends.recorded``, which is imported only when a device is looked at: with it come the compilers."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A device by *name*, in words, and what is *missing* where it cannot be used."""

    name: str
    says: str
    missing: str = ""


ALWAYS = (Choice("cpu", "this CPU"), Choice(PREFIX, f"a recorded profile ({PREFIX}FILE)"))
"""What there is, whatever the machine."""


def devices() -> tuple[Choice, ...]:
    """What there is to measure on: this CPU, a GPU (or why there is none), and profiles recorded elsewhere."""
    from einnet_explore.backends import cupy
    from einnet_explore.backends.keys import device

    lacking = ", ".join(cupy.missing())
    gpu = "a CUDA GPU" if lacking else f"this GPU: {cupy.device().name}"
    return (
        Choice("cpu", f"this CPU: {device()}"),
        Choice("cuda", gpu, lacking),
        ALWAYS[-1],
    )


def note(choices: tuple[Choice, ...]) -> str:
    """One sentence where a GPU is missing: why, and what can be done instead; empty where there is one."""
    gpu = next((choice for choice in choices if choice.name == "cuda"), None)
    if gpu is None or not gpu.missing:
        return ""
    return f"There is no CUDA GPU to measure on (missing: {gpu.missing}): take this CPU, or a profile recorded on one."


def check(device: str) -> None:
    """Raise ValueError, with what is missing, unless candidates can be measured on *device* or priced for it."""
    known = {choice.name: choice for choice in devices()}
    name = PREFIX if device.startswith(PREFIX) else device
    if name not in known:
        raise ValueError(f"device {device!r}: found no such device, expected cpu, cuda or {PREFIX}FILE")
    if known[name].missing:
        raise ValueError(f"device {device!r}: missing {known[name].missing}; expected cpu or {PREFIX}FILE")
    if device == PREFIX:
        raise ValueError(f"device {device!r}: no file is named, expected {PREFIX}FILE.sqlite")
