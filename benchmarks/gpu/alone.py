"""The package where the compilers that its other backends need are not: a machine with a GPU and little else."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def there(name: str) -> bool:
    """Whether the package *name* can be imported."""
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


def plain_backends() -> None:
    """Let ``einnet_explore.runtime`` load those modules only that are asked for, where TVM is not there.

    The package's own ``__init__`` loads all of them.
    """
    name = "einnet_explore.runtime"
    if name in sys.modules or there("tvm"):
        return
    import einnet_explore

    plain = ModuleType(name)
    plain.__path__ = [str(Path(str(einnet_explore.__file__)).parent / "backends")]
    sys.modules[name] = plain
