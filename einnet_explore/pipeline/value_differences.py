"""The first difference of two models, after a sweep that could not prove them equal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod

import numpy as np

from einnet_explore.analysis.equations import rename_tensors
from einnet_explore.equivalence.verdict import of_two_programs
from einnet_explore.ir import Program, tensors
from einnet_explore.onnx_import.model import ModelNode
from einnet_explore.pipeline.value_proofs import ModelEquations, Sweep, prove_directly, with_inputs_of
from einnet_explore.pipeline.value_samples import SAMPLE_TOLERANCE
from einnet_explore.support.errors import Refused
from einnet_explore.support.limits import interrupt_after

DIFFERENCE_TOLERANCES = (SAMPLE_TOLERANCE, 1e-4, 1e-5, 1e-6)
"""Differences of samples, in turn, up to which values of different models are taken as equal, until outputs differ."""

MAX_FOLDED = 6
"""Nodes, at most, that may be folded into one whose result differs."""


def first_undecided(sweep: Sweep) -> tuple[tuple[str, str], str]:
    """Return the nodes of the first values that were not proved equal, and the reason."""
    for node in sweep.one.model.nodes:
        for first in node.results:
            if sweep.one.tensor(first) in sweep.same:
                continue
            if node.name in sweep.one.opaque:
                return (node.name, ""), f"{node}: {sweep.one.opaque[node.name]}"
            second = next(iter(sweep.candidates(first)), None)
            if second is None:
                continue
            second, why = sweep.failures.get(first, (second, "not compared"))
            twin = next((other for other in sweep.other.model.nodes if second in other.results), None)
            names = (node.name, twin.name if twin else "")
            return names, f"{first} of {node} and {second} of {twin or 'the inputs'}: {why}"
    return ("", ""), "no value before the outputs has a counterpart in the other model"


def first_difference(sweep: Sweep) -> tuple[tuple[str, str], str]:
    """Return the first node whose result no value of the second model may equal, its twin, and how they differ.

    Values that may be equal are taken as equal here, so this comes last: those with the same samples, compared the
    more closely the smaller the difference is.  A difference reaches an output by values that differ; a node that
    the second model has folded into another one need not.
    """
    proved = dict(sweep.same)
    for tolerance in DIFFERENCE_TOLERANCES:
        sweep.same = dict(proved)
        changed = _changed_values(sweep, tolerance)
        if changed and (found := _described(sweep, changed)):
            return found
    return ("", ""), ""


def _described(sweep: Sweep, changed: Sequence[tuple[ModelNode, str]]) -> tuple[tuple[str, str], str] | None:
    """Return the first of the *changed* nodes, its twin and how they differ; None if they are proved equal."""
    pair = _closest(sweep, changed[:MAX_FOLDED])
    if pair is None:
        node, _ = changed[0]
        return (node.name, ""), f"no value of the second model may equal the result of {node}"
    node, first, twin, second = pair
    node, first = next((each for each in changed[:MAX_FOLDED] if _folds(sweep, each[1], second)), (node, first))
    term = _term(sweep, first, second)
    return ((node.name, twin.name), f"{first} of {node} and {second} of {twin}: {term}") if term else None


def _changed_values(sweep: Sweep, tolerance: float) -> list[tuple[ModelNode, str]]:
    """Return the nodes and their values by which a difference reaches an output, in order; merge equal samples."""
    different = dict[str, ModelNode]()
    for node in sweep.one.model.nodes:
        for first in (name for name in node.results if name in sweep.samples[0]):
            seconds = list(sweep.candidates(first, tolerance))
            for second in seconds:
                sweep.merge(first, second)
            if not seconds:
                different[first] = node
    reached = {value.name for value in sweep.one.model.outputs} & different.keys()
    for first, node in reversed(different.items()):
        if first in reached:
            reached |= different.keys() & set(node.reads)
    return [(node, first) for first, node in different.items() if first in reached]


def _folds(sweep: Sweep, first: str, second: str) -> bool:
    """Whether weights of *second* are products of weights of *first*."""
    if _size(sweep, sweep.one, first) != _size(sweep, sweep.other, second):
        return False
    known = len(sweep.folded)
    with suppress(Refused):
        sweep.programs(first, second, 0)
    return len(sweep.folded) > known


def _term(sweep: Sweep, first: str, second: str) -> str:
    """Say in which term *first* and *second* differ, nothing if they are proved equal.

    ``second_`` begins names of the second model.
    """
    try:
        before, after = sweep.programs(first, second, 0)
        if weight := _changed_weight(sweep, before, after):
            return weight
        names = {t.name: f"second_{t.name.removeprefix('b_')}" for t in after.inputs}
        names |= {t.name: t.name.removeprefix("a_") for t in before.inputs}
        names |= {e.name: e.name for program in (before, after) for e in program.equations}
        with interrupt_after(sweep.limits.proof_seconds, "the proof"):
            found, _ = prove_directly(
                rename_tensors(with_inputs_of(before, after), names), rename_tensors(after, names)
            )
    except (Refused, TimeoutError) as why:
        return str(why)
    if found:
        return ""
    return of_two_programs(found.counterexample) if found.counterexample else "they differ"


def _changed_weight(sweep: Sweep, before: Program, after: Program) -> str:
    """Say at which element the one weight that only *before* reads differs from that of *after*; else nothing.

    One of them may be transposed.  Weights that share no element are compared if they have one name.
    """
    read = [[t.name for t in program.inputs if t.weight and t.name in sweep.weights] for program in (before, after)]
    ours, theirs = (sorted(set(a) - set(b)) for a, b in (read, read[::-1]))
    if len(ours) != 1 or len(theirs) != 1:
        return ""
    one, other = sweep.weights[ours[0]], sweep.weights[theirs[0]]
    turned = [(np.argwhere(one != each), each) for each in (other, other.T) if each.shape == one.shape]
    changed, other = min(turned, key=lambda found: len(found[0]), default=(np.empty(0), other))
    names = {side.tensor(name): name for side in (sweep.one, sweep.other) for name in side.model.weights}
    name, twin = names[ours[0]], names[theirs[0]]
    if not len(changed) or (len(changed) == one.size and name != twin):
        return ""
    places: list[tuple[int, ...]] = [tuple(place.tolist()) for place in np.atleast_2d(changed)]
    at = max(places, key=lambda place: abs(float(one[place]) - float(other[place])))
    count = f"{len(changed)} of {one.size} elements"
    return f"weight {name} differs in {count}, at {list(at)}: {one[at]} and {other[at]}"


def _closest(sweep: Sweep, changed: Sequence[tuple[ModelNode, str]]) -> tuple[ModelNode, str, ModelNode, str] | None:
    """Return the first of the *changed* values and the value of the second model with most operands in common.

    Operands are what both models have equal before them.  Few that only one has come first, then equal operators.
    """
    second = [
        (twin, name, operands)
        for twin in sweep.other.model.nodes
        for name in twin.results
        if sweep.other.tensor(name) not in sweep.same and (operands := _operands(sweep, sweep.other, name))
    ]
    found = [
        (len(mine ^ theirs), n, node.op != twin.op, m)
        for n, (node, first) in enumerate(changed)
        if (mine := _operands(sweep, sweep.one, first))
        for m, (twin, name, theirs) in enumerate(second)
        if mine & theirs and _size(sweep, sweep.one, first) == _size(sweep, sweep.other, name)
    ]
    if not found:
        return None
    _, n, _, m = min(found)
    return *changed[n], second[m][0], second[m][1]


def _operands(sweep: Sweep, side: ModelEquations, value: str) -> frozenset[str]:
    """Return the nearest tensors with a counterpart, and the weights, of which a *value* is computed."""
    name = side.tensor(value)
    try:
        definitions = sweep.definitions(side, side.equations[name], 0)
    except (KeyError, Refused):
        return frozenset()
    read = {sweep.same.get(t.name, t.name) for each in definitions.values() for t in tensors(each.scope)}
    return frozenset(read - definitions.keys())


def _size(sweep: Sweep, side: ModelEquations, value: str) -> int:
    return prod(sweep.shapes.get(side.tensor(value), ()))
