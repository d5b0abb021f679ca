r"""The order of tuning tasks: the most expected gain for each second of tuning first.

.. math::  \text{value} = \frac{\hat g \, t}{n}

`t` are the estimated seconds of all subprograms that share the task, `n` is the number of its expressions that are
searched, and ĝ the part of `t` that is expected to be gained: a prior, averaged with the gains of the tasks of that
structure that have been tuned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import chain

from einnet_explore.analysis.products import is_contraction
from einnet_explore.ir import Program, Scope, accesses

WINDOW_GAIN, PRODUCT_GAIN, OTHER_GAIN = 0.35, 0.1, 0.4
"""The part of its time that a program is expected to gain: with a window of positions, as products, or otherwise.

Bilinear algorithms need windows, libraries multiply matrices well, and normalisations and attention are one kernel
rather than several.  ``PRODUCT_GAIN`` also stands for what a program gains beyond its tuned parts."""


def window_strides(scope: Scope) -> tuple[int, ...]:
    """Return the strides of the windows of *scope*, least first.

    A window is an index in which a traversal and a summation meet, such as `2*h + r` of a convolution with stride 2.
    """
    summed = {s for s in scope.summations if s.extent > 1}
    moved = [x for x in scope.traversals if x.extent > 1]
    indices = chain.from_iterable(access.index for access in accesses(scope.body))
    windows = [index for index in indices if not summed.isdisjoint(index.iterators)]
    return tuple(sorted(abs(index.coefficient(x)) for index in windows for x in moved if x in index.iterators))


def structure(program: Program) -> tuple[tuple[int, ...], ...]:
    """Return what programs of other sizes share with *program*: the windows of its sums of products.

    Windows with other strides gain by other algorithms, or by none.  Sums of few products count, too: a depthwise
    convolution gains in one kernel with its neighbours.
    """
    return tuple(
        sorted(window_strides(e.scope) for e in program.equations if e.via is None and is_contraction(e.scope))
    )


def _has_products_only(program: Program) -> bool:
    """True if *program* has sums, and all of them are products: none is part of a normalisation or a softmax."""
    sums = [e.scope for e in program.equations if any(s.extent > 1 for s in e.scope.summations)]
    return bool(sums) and all(map(is_contraction, sums))


@dataclass
class ExpectedGains:
    """The gains of the tasks so far, as parts of their originals' time, by structure."""

    found: defaultdict[Hashable, list[float]] = field(default_factory=lambda: defaultdict(list))

    def note(self, program: Program, gain: float, has_tuned_parts: bool = False) -> None:
        """Note that *program* gained this part of its time, more than its parts if these are tuned."""
        self.found[structure(program), has_tuned_parts].append(gain)

    def expected(self, program: Program, has_tuned_parts: bool = False) -> float:
        """Return the part of its time that *program* is expected to gain, more than its parts if these are tuned."""
        windows = structure(program)
        gains = self.found[windows, has_tuned_parts]
        prior = PRODUCT_GAIN if has_tuned_parts or _has_products_only(program) else OTHER_GAIN
        if any(windows) and not has_tuned_parts:
            prior = WINDOW_GAIN
        return (prior + sum(gains)) / (1 + len(gains))
