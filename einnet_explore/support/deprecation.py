"""Old spellings of public functions: they work, and warn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed_argument(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept the keyword *old* for *new*, with a DeprecationWarning."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(f"{function.__name__}: found {old} and {new}, expected only {new}")
                message = f"{function.__name__}({old}=...) is deprecated: write {new}=..."
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
