"""Declared versions of everything that writes kernels or makes choices which the cache directory keeps.

Keys never depend on source files, so code may move.  Raise a version when the emitted text, or the choice, changes for
the same input.  ``tests/test_versions.py`` compares recorded digests and names the version to raise.
"""

from __future__ import annotations

C_KERNEL_VERSION = 1
"""Kernels in C: the fused ones, regions, transposed tiles, and the function around them."""

SCHEDULE_VERSION = 29
"""Kernels that TVM compiles: schedule templates, rows, one-pass softmax, chains in blocks."""

TILED_KERNEL_VERSION = 4
"""Tiled contractions."""

TILE_CHOICE_VERSION = 1
"""Which tile ``best_tile`` chooses for a contraction."""

SEARCH_VERSION = 2
"""What a search finds, and how its candidates are tuned and selected."""


def all_versions() -> str:
    """Every declared version: the key of results that depend on the whole engine."""
    return (
        f"search {SEARCH_VERSION}, tile choices {TILE_CHOICE_VERSION}, kernels in C {C_KERNEL_VERSION}, "
        f"in TVM {SCHEDULE_VERSION}, in tiles {TILED_KERNEL_VERSION}"
    )
