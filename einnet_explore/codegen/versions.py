"""Identity of kernels in keys of the cache directory: their scope, and declared versions of their generators.

Keys never depend on source files, so code may move.  Raise a version when the emitted text, or the choice, changes for
the same input.  ``tests/test_versions.py`` compares recorded digests and names the version to raise.
"""

from __future__ import annotations

from einnet_explore.analysis.patterns import Structure
from einnet_explore.ir import Scope


def scope_identity(scope: Scope) -> str:
    """Return a text of everything that the kernel of *scope* depends on; names are numbered in order of appearance."""
    return repr(Structure().scope(scope))


C_KERNEL_VERSION = 13
"""Kernels in C: the fused ones, regions, transposed tiles, and the function around them."""

SCHEDULE_VERSION = 46
"""Kernels that TVM compiles: stages as written, rows, one-pass softmax, chains in blocks."""

TILED_KERNEL_VERSION = 17
"""Tiled contractions."""

INTEGER_PRODUCT_VERSION = 10
"""Products of bytes and of bfloat16, with epilogues."""

TILE_CHOICE_VERSION = 8
"""Which tile ``best_tile`` chooses for a contraction."""

SEARCH_VERSION = 30
"""What a search finds, and how its candidates are tuned and selected."""


def all_versions() -> str:
    """Every declared version: the key of results that depend on the whole engine."""
    return (
        f"search {SEARCH_VERSION}, tile choices {TILE_CHOICE_VERSION}, kernels in C {C_KERNEL_VERSION}, "
        f"in TVM {SCHEDULE_VERSION}, in tiles {TILED_KERNEL_VERSION}, of bytes {INTEGER_PRODUCT_VERSION}"
    )
