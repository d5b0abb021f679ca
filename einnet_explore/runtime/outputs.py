"""Outputs by name, and the differences between two implementations' outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

MAX_RELATIVE_ERROR = 1e-4
"""The largest error allowed, relative to the largest output."""


def largest_error(want: Arrays, got: Arrays) -> float:
    """The largest difference over all outputs, relative to each output's largest magnitude."""
    return max((_relative(want[name], got[name]) for name in want), default=0.0)


def _relative(want: Array, got: Array) -> float:
    if want.shape != got.shape:
        return float("inf")
    if not want.size:
        return 0.0
    if want.dtype.kind not in "fiub":  # strings are the same or they are not
        return 0.0 if np.array_equal(want, got) else float("inf")
    a, b = want.astype(np.float64), got.astype(np.float64)
    apart = (a != b) & ~(np.isnan(a) & np.isnan(b))  # infinities may be the same, as in what a mask leaves out
    with np.errstate(invalid="ignore"):
        difference = float(np.max(np.abs(a - b), where=apart, initial=0))
    largest = float(np.max(np.abs(a), where=np.isfinite(a), initial=0))
    if not np.isfinite(difference):
        return float("inf")
    return difference / largest if largest else difference


def differences(want: Arrays, got: Arrays) -> tuple[float, float]:
    """The largest absolute difference over all outputs, and ``largest_error``."""
    absolute = max((_difference(want[k], got[k]) for k in want if want[k].dtype.kind in "fiub"), default=0.0)
    return absolute, largest_error(want, got)


def _difference(want: Any, got: Any) -> float:
    """The largest difference; truth values and unsigned numbers have one too, and of infinities it is none."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(want.astype(np.float64) - got.astype(np.float64))
    return float(np.max(apart, initial=0, where=~np.isnan(apart)))
