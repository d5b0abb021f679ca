"""Kernels as TVM programs: tensor expressions and their schedules, register-tiled contractions."""

from typing import Any, TypeAlias

TvmObject: TypeAlias = Any
"""An expression, a statement, a buffer or a function of TVM, which has no type stubs."""
