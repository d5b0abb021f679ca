"""A small kernel language of frozen values, and one printer of it for CUDA C, OpenCL C and C.

A ``Kernel`` says what one thread of a block of a grid does.  ``emit(kernel, dialect)`` is text and needs no device;
``backends.opencl``, ``backends.nvrtc`` and ``backends.c_kernels`` compile and run it.
"""

from einnet_explore.kernels.source.arrays import Array, Load
from einnet_explore.kernels.source.calls import call, select
from einnet_explore.kernels.source.check import check
from einnet_explore.kernels.source.emit import emit, entry
from einnet_explore.kernels.source.fission import fissioned
from einnet_explore.kernels.source.kernel import Kernel
from einnet_explore.kernels.source.statements import (
    Assign,
    Barrier,
    Copy,
    Declare,
    Fetch,
    For,
    If,
    LoadPair,
    Local,
    Note,
    PairOperation,
    Statement,
    Store,
    StorePair,
    Turn,
    counted,
)
from einnet_explore.kernels.source.types import (
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    KernelError,
    Type,
    type_of,
)
from einnet_explore.kernels.source.values import Expr, Id, Literal, Var, binary, cast, conjunction, literal

__all__ = [
    "BOOL",
    "F16",
    "F32",
    "F64",
    "I8",
    "I16",
    "I32",
    "I64",
    "U8",
    "U16",
    "U32",
    "U64",
    "Array",
    "Assign",
    "Barrier",
    "Copy",
    "Declare",
    "Expr",
    "Fetch",
    "For",
    "Id",
    "If",
    "Kernel",
    "KernelError",
    "Literal",
    "Load",
    "LoadPair",
    "Local",
    "Note",
    "PairOperation",
    "Statement",
    "Store",
    "StorePair",
    "Turn",
    "Type",
    "Var",
    "binary",
    "call",
    "cast",
    "check",
    "conjunction",
    "counted",
    "emit",
    "entry",
    "fissioned",
    "literal",
    "select",
    "type_of",
]
