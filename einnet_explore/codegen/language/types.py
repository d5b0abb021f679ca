"""The scalar types that kernels compute with, and their NumPy dtypes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from einnet_explore.ir.node import Node, node
from einnet_explore.support.errors import Refused


@node
class Type(Node):
    """A scalar type: *kind* is ``bool``, ``int``, ``uint`` or ``float``."""

    kind: str
    bits: int

    @property
    def size(self) -> int:
        """Bytes of an element in memory."""
        return max(1, self.bits // 8)

    @property
    def integer(self) -> bool:
        """True for signed and unsigned integers; truth values are not integers."""
        return self.kind in ("int", "uint")

    @property
    def computed(self) -> Type:
        """The type of a loaded value: float32 for half precision, which is a storage format only."""
        return F32 if self == F16 else self

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The NumPy dtype."""
        return np.dtype(np.bool_ if self == BOOL else f"{self.kind}{self.bits}")

    def __repr__(self) -> str:
        return str(self.dtype)


BOOL = Type("bool", 1)
I8, I16, I32, I64 = (Type("int", n) for n in (8, 16, 32, 64))
U8, U16, U32, U64 = (Type("uint", n) for n in (8, 16, 32, 64))
F16, F32, F64 = (Type("float", n) for n in (16, 32, 64))
TYPES = (BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, F32, F64)

_NAMED = {t.dtype: t for t in TYPES}


def type_of(dtype: npt.DTypeLike) -> Type:
    """Return the type of a NumPy dtype; raises Refused for a dtype that no kernel computes with."""
    try:
        return _NAMED[np.dtype(dtype).newbyteorder("=")] if np.dtype(dtype).isnative else _NAMED[np.dtype("void")]
    except (KeyError, TypeError):
        raise Refused(f"dtype {dtype}: expected one of {', '.join(map(repr, TYPES))}, in native order") from None
