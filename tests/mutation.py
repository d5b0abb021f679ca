"""Steps of real searches, mutants of their results, and exact evaluation to judge them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import chain, zip_longest
from typing import Any, TypeAlias

import numpy as np
from certificate_steps import mutants, reread

import einnet_explore as ee
from einnet_explore.checker.record import instance_faults
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.interpreter.grid import IllegalRead
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Instance, Program, accesses
from einnet_explore.operators.library import OPERATORS
from einnet_explore.rules import INTER_RULES, RULES, Step
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.options import Options

CASES = {
    "convolution": ee.ops.conv2d(N=1, H=4, W=3, C=2, F=3, R=3, S=3, padding=1),
    "5 taps": ee.ops.conv2d(N=1, H=6, W=1, C=2, F=2, R=5, S=1, padding="same"),
    "strided": ee.ops.conv2d(N=1, H=6, W=1, C=2, F=2, R=3, S=1, stride=(2, 1), padding=(1, 0)),
    "dilated": ee.ops.conv2d(N=1, H=5, W=1, C=2, F=2, R=3, S=1, dilation=(2, 1), padding="same"),
    "transposed": ee.ops.conv_transpose2d(N=1, H=3, W=1, in_channels=3, out_channels=2, R=4, S=1, stride=(2, 1)),
    "grouped": ee.ops.conv2d(N=1, H=3, W=1, C=4, F=4, R=3, S=1, groups=2, padding="same"),
    "depthwise": ee.ops.depthwise_conv2d(N=1, H=4, W=3, C=3, R=3, S=1, padding="same"),
    "band": ee.ops.g2bmm(b=2, m=4, w=1, k=3, dilation=2),
    "band by columns": ee.ops.gbmm(b=1, m=5, w=1, n=2, dilation=2),
    "maximum": ee.ops.max_pool2d(N=1, H=5, W=3, C=2, R=3, S=1, stride=2, padding=(1, 0)),
    "chain": ee.parse(
        """
        tensor A[2, 3]
        tensor B[3, 4]
        tensor C[4, 3]
        Y[m:2, n:3] = sum[j:3, k:4] A[m, j] * B[j, k] * C[k, n]
        """
    ),
    "bias and relu": ee.parse(
        """
        tensor A[3, 4]
        tensor B[4, 5]
        tensor b[5] weight
        Y[m:3, n:5] = relu({[m:3, n:5] sum[k:4] A[m, k] * B[k, n]}[m, n] + b[n])
        """
    ),
    "two equations": ee.parse(
        """
        tensor A[3, 4] pad [1, 0]
        tensor K[3, 4] weight
        T[h:3, c:4] = relu(A[h, c]) pad [1, 0]
        Y[h:3] = sum[r:3, c:4] T[h+r-1, c] * K[r, c]
        """
    ),
    "siblings": ee.parse(
        """
        tensor X[5, 3] pad [1, 0]
        tensor A[3, 2, 3] weight
        tensor B[3, 4] weight
        Y[h:5, n:2] = sum[k:3, r:3] X[h+r-1, k] * A[r, n, k]
        Z[h:5, n:4] = sum[k:3] X[h, k] * B[k, n]
        output Y, Z
        """
    ),
    "a batch and two terms": ee.parse(
        """
        tensor X[4, 3]
        tensor Z[4, 3]
        tensor A[3, 2] weight
        tensor B[3, 2] weight
        P[m:4, n:2] = sum[k:3] (X[m, k] * A[k, n] + Z[m, k] * B[k, n])
        Q[m:4, n:2] = sum[k:3] X[m, k] * B[k, n]
        R[m:4, n:2] = sum[k:3] Z[m, k] * A[k, n]
        output P, Q, R
        """
    ),
    "three equations": ee.parse(
        """
        tensor A[6, 2]
        tensor B[6, 2]
        S[i:6, j:2] = A[i, j] + 2*B[i, j]
        T[p:2, h:3, j:2] = S[2*h+p, j]
        Y[h:3, j:2] = sum[p:2] T[p, h, j] * A[h+p, j]
        """
    ),
}

Truth: TypeAlias = bool

MAX_STATES = 200
"""States of a search from which steps are taken; these have steps of every rule that all states have."""


@cache
def steps(case: str) -> tuple[Step, ...]:
    """The distinct steps of the first states of both strategies on a case, in the order of the searches."""
    found: dict[tuple[str, Program, Program], Step] = {}
    for strategy, depth in (("best_first", 2), ("paper", 1)):
        options = Options(strategy, depth, patience=9, rules=(*RULES, *INTER_RULES))
        engine = Search(CASES[case], ee.program_seconds, options)
        for _ in engine.run():
            if len(engine.states) >= MAX_STATES:
                break
        for state in engine.states:
            for step in engine.derivation(state.id).steps:
                found.setdefault((step.match.rule.name, step.before, step.after), step)
    return tuple(found.values())


def picked(most: int) -> Iterable[tuple[str, Step]]:
    """At most *most* steps of each rule and case, evenly from all there are."""
    for case in CASES:
        by_rule: dict[str, list[Step]] = {}
        for step in steps(case):
            by_rule.setdefault(step.match.rule.name, []).append(step)
        for of_rule in by_rule.values():
            n = min(most, len(of_rule))
            yield from ((case, of_rule[i * len(of_rule) // n]) for i in range(n))


def kind(told: str) -> str:
    """Return the kind of change of a mutant: its description without names and numbers."""
    sorts = (
        ("padding", r"padding \d"),
        ("offset", r"index \d [+-]1"),
        ("index as 0", r"index \d as 0"),
        ("swapped index", r"swapped with"),
        ("stride", r": stride"),
        ("divisor", r": divisor"),
        ("lost residue", r"without division"),
        ("other iterator", r"index \d: \w+ for \w+"),
        ("range", r" in \["),
        ("bound", r"without -?\d|<.*as"),
        ("lost sum", r"without Σ"),
        ("reduction", r"max for sum"),
        ("attribute", r"^attribute"),
        ("body", r"twice|doubled|only argument|: [+*-] for |value 1"),
    )
    return next((name for name, pattern in sorts if re.search(pattern, told)), told)


def chosen(step: Step, most: int) -> Iterable[tuple[str, Program]]:
    """At most *most* mutants of what is new in ``step.after``, in turn one of each kind, the rarest kinds first."""
    known = set(step.before.equations)
    new = {n for n, e in enumerate(step.after.equations) if e not in known}
    by_kind: dict[str, list[tuple[str, Program]]] = {}
    for told, changed in mutants(step.after):
        if any(changed.equations[n] != step.after.equations[n] for n in new):
            by_kind.setdefault(kind(told), []).append((told, changed))
    for told, changed in attributes(step.after, new):
        by_kind.setdefault(kind(told), []).append((told, changed))
    spread = [[group[i * 7 % len(group)] for i in range(len(group))] for group in sorted(by_kind.values(), key=len)]
    once = dict.fromkeys(m for m in chain.from_iterable(zip_longest(*spread)) if m is not None)
    yield from list(once)[:most]


def attributes(program: Program, equations: Iterable[int]) -> Iterable[tuple[str, Program]]:
    """*program* with one attribute of one instance changed: each number by 1, and each pair of neighbours swapped.

    Only those that say what is computed: ``ld`` tells a library where rows start, and equations do not depend on it.
    """
    for n in equations:
        equation = program.equations[n]
        via = equation.via
        if via is None or via.operator == EOPERATOR:
            continue
        own = dict(via.attributes)
        for name, value in own.items():
            if name.startswith("ld"):
                continue
            values: list[Any] = []
            match value:
                case int():
                    values = [value + 1, value - 1, *(v for v in own.values() if isinstance(v, int) and v != value)][:3]
                case tuple():
                    values = [(*value[:d], v + 1, *value[d + 1 :]) for d, v in enumerate(value)]
                    values.append(value[::-1])
            for other in values:
                if other != value:
                    wrong = Instance(via.operator, tuple({**own, name: other}.items()))
                    changed = replace(equation, via=wrong)
                    yield (
                        f"attribute {name} of {equation.name}: {other}",
                        replace(program, equations=(*program.equations[:n], changed, *program.equations[n + 1 :])),
                    )


def right(before: Program, after: Program) -> Truth:
    """Whether *after* computes what *before* does and its instances what they say: by evaluation, not by proof."""
    if not all(map(_runs, after.equations)):
        return False
    for seed in range(4):
        random = np.random.default_rng(seed)
        inputs = {t.name: random.integers(-99, 100, t.shape) for t in before.inputs}
        try:
            left, found = (evaluate(p, inputs, outputs_only=True) for p in (before, after))
        except (IllegalRead, ValueError):
            return False
        if any(not np.array_equal(left[name], found[name]) for name in left):
            return False
    return True


def _runs(equation: Equation) -> Truth:
    """Whether an instance computes its equation on random integers."""
    via = equation.via
    if via is None or via.operator == EOPERATOR:
        return True
    random = np.random.default_rng(0)
    sources = [a.source for a in accesses(equation.scope.body)]
    inputs = {t.name: random.integers(-99, 100, t.shape) for t in sources}
    try:
        want = evaluate(equation.scope, inputs)
        if via.operator == VIEW:
            return _seen(equation, inputs, want)
        operator = next(o for o in OPERATORS if via.operator in o.names)
        if len(sources) != len(operator.pattern.operands):
            return False
        found = evaluate(operator.instantiate(dict(via.attributes), sources), inputs)
    except (IllegalRead, ValueError):
        return False
    return np.array_equal(want, found)


def _seen(equation: Equation, inputs: dict[str, Any], want: Any) -> Truth:
    """Whether the elements at the view's offset and strides are those of the equation."""
    at = dict(equation.via.attributes) if equation.via else {}
    if "strides" not in at:
        return True
    (array,) = inputs.values()
    flat = array.reshape(-1)
    grid = np.indices(want.shape).reshape(len(want.shape), -1)
    address = at["offset"] + np.asarray(at["strides"], dtype=int) @ grid
    if len(at["strides"]) != len(want.shape) or address.min(initial=0) < 0 or address.max(initial=0) >= flat.size:
        return False
    return np.array_equal(flat[address].reshape(want.shape), want)


def passes(before: Program, after: Program) -> str | None:
    """Why *after* would be believed to be *before*; None where a certificate or an instance says no."""
    if set(instance_faults(after)) - set(instance_faults(before)):
        return None
    found = certify(before, after)
    return str(found) if found.ok else None


def mutant(program: Program) -> Program:
    """*program* with its reads brought up to date."""
    return reread(program)
