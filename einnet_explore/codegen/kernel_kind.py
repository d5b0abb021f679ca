"""The kind of a generated CPU kernel, decided once from the scope that it computes; printers and runtimes match on it.

The ``kind`` attribute of an eOperator names the law that made it.  A kernel is decided from the scope itself: views are
substituted into it after the law was applied, and an equation may be run before any law was.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from einnet_explore.analysis.fused_chain import Chain
from einnet_explore.analysis.online_softmax import OnlineSoftmax, row_work
from einnet_explore.analysis.row_nest import RowNest
from einnet_explore.codegen.fused_tiling.block_sizes import tileable_chain
from einnet_explore.codegen.machine import Machine
from einnet_explore.codegen.rows.online import is_one_pass_faster
from einnet_explore.ir import Scope


@dataclass(frozen=True, slots=True)
class OnePass:
    """A softmax-weighted sum in one pass over its columns."""

    online: OnlineSoftmax


@dataclass(frozen=True, slots=True)
class Rows:
    """Band products, reductions of rows and what is done with them, for blocks of rows."""

    nest: RowNest


@dataclass(frozen=True, slots=True)
class BlockedChain:
    """Stages with products among them, computed block by block of what they share."""

    chain: Chain


@dataclass(frozen=True, slots=True)
class LoopNests:
    """A loop nest for every reduction and one for the result, each scheduled by a template."""


KernelKind: TypeAlias = OnePass | Rows | BlockedChain | LoopNests


@lru_cache(256)
def kernel_kind(scope: Scope, machine: Machine) -> KernelKind:
    """Return the kind of the float32 kernel of *scope* on *machine*."""
    match row_work(scope):
        case OnlineSoftmax(nest=nest) as online:
            return OnePass(online) if is_one_pass_faster(online, machine) else Rows(nest)
        case RowNest() as nest:
            return Rows(nest)
    chain = tileable_chain(scope, machine)
    return LoopNests() if chain is None else BlockedChain(chain)


def outperforms_tiles(kind: KernelKind) -> bool:
    """Return whether a kernel of *kind* is tried before a tiled contraction of the same scope."""
    match kind:
        case OnePass() | BlockedChain():
            return True
        case Rows(nest):
            return nest.banded
        case LoopNests():
            return False
