"""What a program is expected to cost on a device."""

from einnet_explore.cost.device import CPU_DEFAULT, Device, cpu_default
from einnet_explore.cost.least import products
from einnet_explore.cost.model import CostModel, Estimate, program_least, program_seconds
from einnet_explore.cost.work import Work, work

__all__ = [
    "CPU_DEFAULT",
    "CostModel",
    "Device",
    "Estimate",
    "Work",
    "cpu_default",
    "products",
    "program_least",
    "program_seconds",
    "work",
]
