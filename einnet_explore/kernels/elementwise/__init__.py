"""Element-wise kernels after OneFlow's template: packs, waves, pairs of halves, functors of any number of operands."""

from einnet_explore.kernels.elementwise.functor import Functor, compose, operand
from einnet_explore.kernels.elementwise.launch import A100, BLOCK, H100, WAVES, Gpu, Launch, blocks, pack_size, plan
from einnet_explore.kernels.elementwise.recognise import functor
from einnet_explore.kernels.elementwise.template import arguments, host_kernel, kernel, planned

__all__ = [
    "A100",
    "BLOCK",
    "H100",
    "WAVES",
    "Functor",
    "Gpu",
    "Launch",
    "arguments",
    "blocks",
    "compose",
    "functor",
    "host_kernel",
    "kernel",
    "operand",
    "pack_size",
    "plan",
    "planned",
]
