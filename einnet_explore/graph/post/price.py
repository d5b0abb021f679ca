"""What an equation costs in a given layout: measured on this device, or estimated by how it walks through memory."""

from __future__ import annotations

from collections.abc import Callable

from einnet_explore.backends.errors import BackendError
from einnet_explore.backends.prepare import step
from einnet_explore.backends.profiles import ProfileStore
from einnet_explore.cost import CostModel
from einnet_explore.ir import Access, Equation, Scope, accesses, scopes

STRIDED = 2.0
"""How many times as long bytes take that do not lie one after the other, where nothing was measured."""

DIVIDED = 1.1
"""The same for an index with a quotient or a remainder."""


def estimated(equation: Equation, model: CostModel | None = None) -> float:
    """Seconds by roofline, more for reads that jump from one element to the next."""
    return (model or CostModel()).estimate(equation).seconds * max(
        (_slower(scope, a) for _, scope in scopes(equation.scope) for a in accesses(scope.body)), default=1.0
    )


def _slower(scope: Scope, access: Access) -> float:
    moving = [x for x in scope.traversals if x.extent > 1]
    jumps = moving and abs(step(access, moving[-1])) > 1
    return (STRIDED if jumps else 1.0) * (1.0 if all(i.affine for i in access.index) else DIVIDED)


def measured(store: ProfileStore, threads: int, otherwise: Callable[[Equation], float]) -> Callable[[Equation], float]:
    """Seconds as stored, else measured now; *otherwise* where an equation cannot be compiled."""

    def price(equation: Equation) -> float:
        try:
            return store.measured(equation, threads).seconds
        except BackendError:
            return otherwise(equation)

    return price
