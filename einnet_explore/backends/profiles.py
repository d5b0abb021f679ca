"""Times of equations and programs on this device: as stored, else measured now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einnet_explore.backends import choice
from einnet_explore.backends.keys import key_of
from einnet_explore.backends.measure import after, compare
from einnet_explore.backends.program import compile_program
from einnet_explore.backends.store import Profile, Store
from einnet_explore.ir import Equation, Program, tensors
from einnet_explore.operators import OPERATORS, Operator


class ProfileStore(Store):
    """The store, which measures what it does not know."""

    def measured(
        self,
        what: Equation | Program,
        threads: int = 1,
        operators: Sequence[Operator] = OPERATORS,
        min_seconds: float = 0.02,
    ) -> Profile:
        """The time of *what* by its best engines on this device: as stored, else measured now and stored.

        Raises BackendError where it cannot be compiled.
        """
        key = key_of(what, threads)
        if (known := self.get(key)) is not None:
            return known
        seconds = _time(what, threads, operators, min_seconds, self)
        self.put(key, seconds, "measured")
        return Profile(seconds, "measured")


def _time(
    what: Equation | Program, threads: int, operators: Sequence[Operator], min_seconds: float, store: Store
) -> float:
    match what:
        case Equation(name, scope):
            inputs = {t.name: t for t in tensors(scope)}
            whole = Program(tuple(inputs.values()), (what,), (name,))
            constants = {t.name: _numbers(t.shape) for t in whole.inputs if t.weight}
        case Program():
            whole = what
            constants = {t.name: _numbers(t.shape) for t in what.inputs if t.weight}
    compiled = compile_program(
        whole, threads, constants=constants, operators=operators, choose=choice.chooser(threads, store)
    )
    for array in compiled.inputs.values():
        array[...] = _numbers(array.shape)
    if not compiled.calls:
        return 1e-9  # views and constants only: nothing is done when it runs
    times = compare({"it": compiled.execute}, rounds=9, min_seconds=min_seconds, enough=after(3, 0.1))["it"]
    return min(times.samples)  # what else runs on the machine only ever adds time


def _numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
