"""Estimated cost of programs on a device."""

from einnet_explore.cost.model import (
    CPU_DEFAULT,
    CostModel,
    Device,
    Estimate,
    Work,
    cpu_default,
    minimum_products,
    program_least,
    program_seconds,
    work,
)

__all__ = [
    "CPU_DEFAULT",
    "CostModel",
    "Device",
    "Estimate",
    "Work",
    "cpu_default",
    "minimum_products",
    "program_least",
    "program_seconds",
    "work",
]
