"""Parts of a chain, one after the other, each cut on its own: threads meet between them.

A cut of the whole chain by what it gives last (the channels of a convolution) would do what comes before a product
again for every block; a cut by its other traversals has every block read all weights of the product.  In two parts each
is cut by what it shares: threads share what is transformed, then the columns of the product and what follows them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from einnet_explore.algebra.chain import Chain, Cut, Stage
from einnet_explore.backends.blocks.local import RESULT
from einnet_explore.ir import Access, Scalar, Tensor, accesses, map_accesses


@dataclass(frozen=True, slots=True)
class Part:
    """A *chain* by blocks of *cuts*, whose result is kept as *memory*."""

    chain: Chain
    cuts: tuple[Cut, ...] = ()
    memory: str = RESULT

    @property
    def blocks(self) -> int:
        """How many there are."""
        return prod(cut.blocks for cut in self.cuts)

    @property
    def size(self) -> int:
        """Elements of the result."""
        return prod(self.chain.result.scope.shape)


def divided(chain: Chain) -> Iterable[tuple[Part, Part]]:
    """*chain* in two parts: what leads to the data of a product, and the product with all that follows it.

    The second one reads of the first its last stage alone, and only where that computes something.
    """
    for n, stage in enumerate(chain.stages[:-1]):
        before, after = chain.stages[: n + 1], chain.stages[n + 1 :]
        earlier = {s.name for s in before} - {stage.name}
        readers = [s for s in after if stage.name in _names(s)]
        alone = not any(earlier & _names(s) for s in after)
        if stage.scope.padding or not alone or not any(s.product for s in readers):
            continue
        kept = replace(stage.tensor, name=f"@{stage.name}")
        yield Part(Chain(before), (), kept.name), Part(Chain(tuple(_reading(s, stage.name, kept) for s in after)))


def _names(stage: Stage) -> set[str]:
    return {a.source.name for a in accesses(stage.scope.body) if isinstance(a.source, Tensor)}


def _reading(stage: Stage, name: str, kept: Tensor) -> Stage:
    def read(access: Access) -> Scalar:
        match access.source:
            case Tensor(own) if own == name:
                return Access(kept, access.index)
        return access

    return replace(stage, scope=replace(stage.scope, body=map_accesses(stage.scope.body, read)))
