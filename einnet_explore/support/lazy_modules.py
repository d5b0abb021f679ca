"""Modules that are imported when they are first used: large ones, which many tasks do without, and may be missing."""

from __future__ import annotations

import warnings
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from einnet_explore.support.errors import BackendError


class LazyModule:
    """The module *name*, imported at the first access to an attribute; raises BackendError then if it cannot be."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(_imported(self._name), attribute)


@lru_cache(maxsize=32)
def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except (ImportError, OSError, RuntimeError) as error:  # it is missing, or its libraries do not load
        why = f"{name.partition('.')[0]} cannot be imported: {str(error).strip()}"
        _warn_once(why)
        raise BackendError(why) from None


@lru_cache(maxsize=8)
def _warn_once(why: str) -> None:
    warnings.warn(f"{why}; kernels are compiled from C, by one thread", RuntimeWarning, stacklevel=2)
