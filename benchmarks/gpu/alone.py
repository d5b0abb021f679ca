"""The package without the compilers of its other backends, for a machine with a GPU and little else."""

from __future__ import annotations

from importlib.util import find_spec


def there(name: str) -> bool:
    """Whether the package *name* can be imported."""
    try:
        return find_spec(name) is not None
    except ImportError:
        return False
