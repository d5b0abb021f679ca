"""Equality of two models: equal values are found on random inputs and proved one by one, from the inputs on.

This is the sweep by which equal circuits are recognised.  Both models run on the same random inputs; values with equal
samples are candidates.  In the order of the first model, each candidate pair is compared as two programs over the
nearest values that were proved equal before, then over values further back.  A pair that is proved is one tensor for
all that follows.  Nodes without an expression are equal if their operators, attributes and operands are.

Weights are equal by content.  A weight of one model alone may be a product of weights of the other (a normalisation's
scale in a convolution's weight): the products of weights in the terms of the other program are evaluated, and one with
the same elements becomes the weight's definition, up to the rounding that is reported.

Source: A. Kuehlmann, V. Paruthi, F. Krohm, M. K. Ganai, Robust Boolean reasoning for equivalence checking and
functional property verification, IEEE TCAD 21(12), 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from graphlib import TopologicalSorter
from itertools import pairwise, product
from math import inf, prod
from time import perf_counter
from typing import TypeAlias

import numpy as np

from einnet_explore.analysis.equations import rename_tensors
from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.equivalence.sample_inputs import within_type
from einnet_explore.equivalence.verdict import PROOF_KINDS, weakest_certificate
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import (
    ELEMENT_TYPES,
    FLOAT32,
    Const,
    Equation,
    Program,
    Scalar,
    Scope,
    Tensor,
    map_tensors,
    scopes,
    tensors,
)
from einnet_explore.onnx_import import OPERATORS_OF_PROOFS, express
from einnet_explore.onnx_import.model import Model, ModelNode, ModelValue, Shape
from einnet_explore.onnx_import.node_call import NotUnderstood, assemble, extent_iterators, ravel_index, unravel_index
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.folded_weights import (
    FoldedWeight,
    constants_of,
    find_folded_constants,
    find_folded_weights,
    find_joined_weights,
    find_masks,
    find_summed_weights,
    in_basic_functions,
    with_conditions,
    with_constants,
    with_elements,
)
from einnet_explore.pipeline.structural_twins import RANDOM_OPERATORS, call_key, structural_twins
from einnet_explore.pipeline.subprogram import content_digest
from einnet_explore.pipeline.value_samples import (
    MAX_BYTES,
    SAMPLE_TOLERANCE,
    ValueSample,
    sample_blocks,
    sample_values,
    value_bytes,
)
from einnet_explore.pipeline.weight_layouts import find_layout
from einnet_explore.pipeline.weight_sums import find_table, find_transform
from einnet_explore.rules import Step
from einnet_explore.runtime.arrays import Array
from einnet_explore.strategies.simplification import simplifications
from einnet_explore.support.errors import Refused
from einnet_explore.support.limits import interrupt_after

READ_SECOND = -1
"""The level at which a second value that has a counterpart is read, not computed."""

MAX_LOOK_BACK = 3
"""Levels of equal values that a comparison looks behind, if it cannot be proved over the nearest ones."""


@dataclass(frozen=True, slots=True)
class ProofLimits:
    """Limits of one comparison: of a program's *equations*, and of those that sum over more than one element.

    A proof is given up after *proof_seconds*; a comparison looks no further behind after *look_back_seconds*.
    """

    equations: int
    sums: int
    proof_seconds: float
    look_back_seconds: float


PROOF_LIMITS = (ProofLimits(24, 4, 2.0, 1.0), ProofLimits(96, 16, 10.0, 10.0))
"""Limits of the comparisons, and of those that are repeated while the outputs are not proved equal."""

MAX_INNER_POINTS = 1 << 22
"""Points of programs that are evaluated to find equal intermediate results."""

NO_OUTPUTS: Mapping[str, str] = {}

RESULT = "Y"
"""The output of compared programs; their other tensors are numbered."""


@dataclass(frozen=True, slots=True)
class ValuePair:
    """Value *first* of one model and *second* of the other, as programs over what was proved equal before.

    *levels* of what was proved equal are part of the programs; with ``READ_SECOND``, the second is read as the tensor
    that it was proved equal to.  The proof goes by way of the programs *between*.
    """

    first: str
    second: str
    before: Program
    after: Program
    certificate: Certificate
    levels: int = 0
    between: tuple[Program, ...] = ()


@dataclass(slots=True)
class ModelEquations:
    """The equations of *model* by tensor name, each name with *prefix*, and why nodes have none.

    Weights of one element, *elements*, are constants.  *parts* are the intermediate results of each value, by word.
    """

    model: Model
    prefix: str
    equations: dict[str, Equation] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)
    parts: dict[str, dict[str, str]] = field(default_factory=dict)
    elements: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        arrays = {self.model.identifiers[name]: array for name, array in self.model.weights.items()}
        self.elements = {name: float(array.flat[0]) for name, array in arrays.items() if array.size == 1}
        masks = find_masks(arrays)
        for node in self.model.nodes:
            match express(node, self.model, OPERATORS_OF_PROOFS):
                case NotUnderstood(reason):
                    self.opaque[node.name] = reason
                case found:
                    stem = f"{self.model.identifiers[node.results[0]]}__"
                    names = [e.name for e in found if e.name.startswith(stem)]
                    self.parts[node.results[0]] = {name.removeprefix(stem): name for name in names}
                    for e in found:
                        scope = with_elements(in_basic_functions(with_conditions(e.scope, masks)), self.elements)
                        scope = map_tensors(scope, lambda t: replace(t, name=self.prefix + t.name))
                        self.equations[self.prefix + e.name] = Equation(self.prefix + e.name, scope)

    def tensor(self, value: str) -> str:
        """Return the name of the tensor of *value*, which may be an intermediate result."""
        return self.prefix + self.model.identifiers.get(value, value)

    def why_opaque(self, tensor: str) -> str:
        """Say why *tensor* has no equation."""
        nodes = (node for node in self.model.nodes if tensor in map(self.tensor, node.results))
        return next((self.opaque[n.name] for n in nodes if n.name in self.opaque), f"{tensor} has no equation")


@dataclass(slots=True, eq=False)
class Sweep:
    """The values of two models that were proved equal: *same* has the representative of each such tensor.

    *twins* are values of equal structure; if all outputs are, both models have one graph.  *samples* are of whole
    values, or *in_blocks*.  *stop* is a time of ``perf_counter``.  *failures* has the values of
    the first model that are not proved, each with its counterpart and the reason.  *searched* are weights without a
    definition, by the way, their name, and the weights that were read.
    """

    one: ModelEquations
    other: ModelEquations
    samples: tuple[Mapping[str, ValueSample], Mapping[str, ValueSample]]
    weights: Mapping[str, Array]
    shapes: Mapping[str, Shape]
    types: Mapping[str, str]
    same: dict[str, str]
    twins: Mapping[str, Sequence[str]]
    in_blocks: bool = False
    is_one_graph: bool = False
    folded: list[FoldedWeight] = field(default_factory=list)
    stop: float = inf
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)
    limits: ProofLimits = PROOF_LIMITS[-1]
    searched: set[tuple[str, str, tuple[frozenset[str], int]]] = field(default_factory=set)

    def run(self, outputs: Mapping[str, str] = NO_OUTPUTS) -> Iterable[ValuePair]:
        """Yield each pair of values once it is proved; raises TimeoutError at ``stop``.

        While the *outputs* are not proved, what is not proved within limits is compared again within larger ones.
        """
        for self.limits in PROOF_LIMITS:
            yield from self._proved_pairs()
            if all(self.are_equal(mine, theirs) for mine, theirs in outputs.items()):
                return

    def _proved_pairs(self) -> Iterable[ValuePair]:
        for node in self.one.model.nodes:
            if node.name in self.one.opaque:
                self._merge_opaque(node)
                continue
            for first in node.results:
                self.failures.pop(first, None)
                for second in self.candidates(first):
                    yield from self._proved_parts(first, second)
                    pair = None if self.are_equal(first, second) else self._proved_pair(first, second)
                    if pair is None and not self.are_equal(first, second):
                        inner = list(self._proved_inside(first, second))
                        yield from inner
                        pair = self._proved_pair(first, second) if inner else None
                    if pair is not None or second in self.twins.get(first, ()):
                        self.merge(first, second)
                    if pair is not None:
                        yield pair

    def replay(self, pairs: Iterable[ValuePair]) -> Iterable[tuple[Program, Program, Sequence[str]]]:
        """Yield the programs of *pairs*, which were proved on these models at other sizes, as they are at these.

        The third of each are digests of the weights that both read.  Raises Refused for a pair without programs here.
        """
        proved: dict[str, list[ValuePair]] = {}
        for pair in pairs:
            proved.setdefault(pair.first, []).append(pair)
        for node in self.one.model.nodes:
            if node.name in self.one.opaque:
                self._merge_opaque(node)
            names = (
                *(part for first in node.results for part in self.one.parts.get(first, {}).values()),
                *node.results,
            )
            for pair in (pair for first in names for pair in proved.get(first, ())):
                both = self.programs(pair.first, pair.second, pair.levels)
                read = sorted({t.name for program in both for t in program.inputs if t.name in self.weights})
                yield *_comparable(*both), [content_digest({name: self.weights[name]}) for name in read]
                self.merge(pair.first, pair.second)

    def are_equal(self, first: str, second: str) -> bool:
        """Return whether *first* and *second* were proved equal."""
        a, b = (self.same.get(side.tensor(name)) for side, name in ((self.one, first), (self.other, second)))
        return a is not None and a == b

    def _merge_opaque(self, node: ModelNode) -> None:
        if node.op in RANDOM_OPERATORS:
            return
        operands = [self.same.get(self.one.tensor(name)) for name in _operands(node)]
        for twin in self.other.model.nodes:
            theirs = [self.same.get(self.other.tensor(name)) for name in _operands(twin)]
            if None not in operands and operands == theirs and call_key(node) == call_key(twin):
                for first, second in zip(node.outputs, twin.outputs, strict=True):
                    if first and second:
                        self.merge(first, second)

    def merge(self, first: str, second: str) -> None:
        """Take *first* and *second* as equal."""
        a, b = self.one.tensor(first), self.other.tensor(second)
        if b in self.same:
            self.same[a] = self.same[b]
        else:
            self.same[b] = self.same.setdefault(a, a)

    def _proved_parts(self, first: str, second: str) -> Iterable[ValuePair]:
        """Yield pairs of the intermediate results of two values of different shapes, such as the sums of a softmax.

        A proof compares reductions inside functions dimension by dimension, and equal values element by element.
        """
        a, b = self.one.tensor(first), self.other.tensor(second)
        if self.are_equal(first, second) or self.shapes.get(a) == self.shapes.get(b):
            return
        theirs = self.other.parts.get(second, {})
        for word, part in self.one.parts.get(first, {}).items():
            twin = theirs.get(word)
            if twin is None or prod(self.shapes[self.one.tensor(part)]) != prod(self.shapes[self.other.tensor(twin)]):
                continue
            pair = None if self.are_equal(part, twin) else self._proved_pair(part, twin)
            if pair is not None:
                self.merge(part, twin)
                yield pair

    def _proved_inside(self, first: str, second: str) -> Iterable[ValuePair]:
        """Yield pairs of an intermediate result of one value and any result that the other's program computes.

        Both programs are evaluated on the same random inputs, and results that agree are candidates.
        """
        parts = {*self.one.parts.get(first, {}).values()}, {*self.other.parts.get(second, {}).values()}
        if not any(parts):
            return
        try:
            programs = self.programs(first, second, 0)
        except Refused:
            return
        if sum(map(_count_points, programs)) > MAX_INNER_POINTS:
            return
        random = np.random.default_rng(0)
        inputs = {
            t.name: self.weights[t.name].reshape(t.shape)
            if t.name in self.weights
            else within_type(t, random.standard_normal(t.shape))
            for t in dict.fromkeys(t for program in programs for t in program.inputs)
        }
        try:
            before, after = (
                evaluate(each, {t.name: inputs[t.name] for t in each.inputs}, np.float64) for each in programs
            )
        except (ValueError, Refused):
            return
        for mine, theirs in product(before, after):
            one, other = mine.removeprefix(self.one.prefix), theirs.removeprefix(self.other.prefix)
            is_part = mine != RESULT != theirs and (one in parts[0] or other in parts[1])
            if is_part and not self.are_equal(one, other) and _are_close(before[mine], after[theirs]):
                pair = self._proved_pair(one, other)
                if pair is not None:
                    self.merge(one, other)
                    yield pair

    def _proved_pair(self, first: str, second: str) -> ValuePair | None:
        reasons = dict[str, None]()
        for prove in (prove_directly, _prove_by_laws):
            start = perf_counter()
            for levels in range(READ_SECOND if self.other.tensor(second) in self.same else 0, MAX_LOOK_BACK + 1):
                if levels > 0 and perf_counter() - start > self.limits.look_back_seconds:
                    break
                try:
                    found = self._compare(first, second, levels, prove)
                except Refused as why:
                    reasons.setdefault(str(why))
                    break  # further back there are more equations
                if isinstance(found, ValuePair):
                    return found
                reasons.setdefault(found)
        self.failures.setdefault(first, (second, "; ".join(reasons)))
        return None

    def candidates(self, first: str, tolerance: float = SAMPLE_TOLERANCE) -> Iterable[str]:
        """Yield the values of the second model with the structure of *first*, and those whose samples are its own."""
        twins, mine = self.twins.get(first, ()), self.samples[0].get(first)
        for second, theirs in self.samples[1].items():
            if second in twins or (mine is not None and mine.may_equal(theirs, tolerance)):
                yield second
        yield from (second for second in twins if second not in self.samples[1])

    def _compare(self, first: str, second: str, levels: int, prove: Prover) -> ValuePair | str:
        """Compare two values over the tensors *levels* behind the nearest equal ones; return why they are not proved.

        Raises Refused for more equations than ``limits`` allow, TimeoutError at ``stop``.
        """
        if perf_counter() > self.stop:
            raise TimeoutError("the budget was reached")
        before, after = _comparable(*self.programs(first, second, levels))
        try:
            with interrupt_after(self.limits.proof_seconds, "the proof"):
                found, between = prove(before, after)
        except Refused as why:
            return str(why)
        except TimeoutError as late:
            if perf_counter() > self.stop:
                raise
            return str(late)
        if found.kind in PROOF_KINDS:
            return ValuePair(first, second, before, after, found, levels, between)
        return found.detail or "not proved"

    def programs(self, first: str, second: str, levels: int) -> tuple[Program, Program]:
        """The programs of two values over representatives, *levels* of which are computed too."""
        before = self._program(self.one, self.one.tensor(first), max(levels, 0))
        after = self._program(self.other, self.other.tensor(second), levels)
        after = _with_shape(after, before.equations[-1].scope.shape)
        return self.programs(first, second, levels) if self._define_weights(before, after) else (before, after)

    def _program(self, side: ModelEquations, name: str, levels: int) -> Program:
        """The program of tensor *name* over representatives, *levels* of which are computed too."""
        root = side.equations.get(name)
        if levels == READ_SECOND:
            name, root = self.same.get(name, name), None
        if self.same.get(name) == name or (
            root is None and name in self.same
        ):  # known, and compared with one more value
            xs = extent_iterators(self.shapes[name])
            root = Equation(
                RESULT, Scope(xs, (), Tensor(name, self.shapes[name], dtype=self.types.get(name, FLOAT32))[xs])
            )
        if root is None:
            raise Refused(side.why_opaque(name))
        definitions = self.definitions(side, root, max(levels, 0))

        def represent(t: Tensor) -> Tensor | Scope:
            known = self.same.get(t.name, t.name)
            weight = t.weight and known not in definitions
            shape = self.shapes.get(known, t.shape)
            if shape == t.shape:
                return replace(t, name=known, weight=weight)
            source = Tensor(known, shape, weight=weight, dtype=t.dtype)
            return replace(_reshaped(source, t.shape), padding=t.padding, value=t.value)

        made = {each.name: map_tensors(each.scope, represent) for each in definitions.values()}
        order = TopologicalSorter({one: {t.name for t in tensors(made[one])} & made.keys() for one in made})
        inside = tuple(Equation(one, made[one]) for one in order.static_order() if one != root.name)
        return assemble((*inside, Equation(RESULT, made[root.name])), (RESULT,))

    def definitions(self, side: ModelEquations, root: Equation, levels: int) -> Mapping[str, Equation]:
        """The equations of *root* and of what it needs, up to representatives *levels* behind the nearest."""
        found: dict[str, tuple[int, Equation]] = {}

        def visit(at: ModelEquations, equation: Equation, left: int) -> None:
            if found.get(equation.name, (-1, equation))[0] >= left:
                return
            found[equation.name] = left, equation
            for t in tensors(equation.scope):
                known = self.same.get(t.name)
                where, rest = (at, left) if known is None else (self.one, left - 1)
                definition = where.equations.get(known or t.name) if rest >= 0 else None
                if definition is not None:
                    visit(where, definition, rest)

        visit(side, root, levels)
        sums = sum(_reduces(equation) for _, equation in found.values())
        if len(found) > self.limits.equations or sums > self.limits.sums:
            model = "first" if side is self.one else "second"
            values = "the nearest equal values" if not levels else f"values {levels} further back"
            raise Refused(
                f"over {values}, the {model} model has {len(found)} equations with {sums} sums, at most "
                f"{self.limits.equations} with {self.limits.sums} are compared"
            )
        return {name: equation for name, (_, equation) in found.items()}

    def _define_weights(self, before: Program, after: Program) -> bool:
        """Define weights that one program alone reads by weights of the other; return whether there are any."""
        sides = ((self.other, after, before), (self.one, before, after))
        ways = (
            self._joined_weights,
            self._moved_weights,
            self._folded_weights,
            self._constant_weights,
            self._transformed_weights,
            self._summed_weights,
            self._tabulated_weights,
        )
        for find, (side, own, reference) in product(ways, sides):
            # Programs that look further back read the same weights again.
            read = frozenset(t.name for t in reference.inputs if t.weight), len(reference.equations)
            unknown = self._unknown_weights(side, own)
            unknown = {name: a for name, a in unknown.items() if (find.__name__, name, read) not in self.searched}
            self.searched |= {(find.__name__, name, read) for name in unknown}
            found = tuple(find(unknown, reference)) if unknown else ()
            for each in found:
                side.equations[each.weight] = Equation(each.weight, each.definition)
                self.same.update({t.name: self.same.get(t.name, t.name) for t in tensors(each.definition)})
            self.folded.extend(found)
            if found:
                return True
        return False

    def _unknown_weights(self, side: ModelEquations, program: Program) -> Mapping[str, Array]:
        names = (t.name for t in program.inputs if t.weight and t.name not in self.same)
        return {name: self.weights[name] for name in names if name not in side.equations}

    def _joined_weights(self, unknown: Mapping[str, Array], reference: Program) -> Iterable[FoldedWeight]:
        read = (t.name for t in reference.inputs if t.weight)
        return find_joined_weights(unknown, {name: self.weights[name] for name in read if name in self.weights})

    def _folded_weights(self, unknown: Mapping[str, Array], reference: Program) -> Iterable[FoldedWeight]:
        return find_folded_weights(unknown, reference, self.weights.__getitem__)

    def _summed_weights(self, unknown: Mapping[str, Array], reference: Program) -> Iterable[FoldedWeight]:
        return find_summed_weights(unknown, reference, self.weights.__getitem__)

    def _transformed_weights(self, unknown: Mapping[str, Array], reference: Program) -> Iterable[FoldedWeight]:
        read = dict.fromkeys(t.name for t in reference.inputs if t.weight and t.name in self.weights)
        for name, array in unknown.items():
            sources = ((t, self.weights[t]) for t in read)
            found = next((s for t, source in sources if (s := find_transform(array, t, source)) is not None), None)
            if found is not None:
                yield FoldedWeight(name, *found)

    def _tabulated_weights(self, unknown: Mapping[str, Array], reference: Program) -> Iterable[FoldedWeight]:
        """Yield the weights of a few rational numbers; one of a shape that *reference* has would be a difference."""
        shapes = {self.weights[t.name].shape for t in reference.inputs if t.weight and t.name in self.weights}
        for name, array in unknown.items():
            if array.shape not in shapes and (found := find_table(array)) is not None:
                yield FoldedWeight(name, *found)

    def _moved_weights(self, unknown: Mapping[str, Array], reference: Program) -> Iterable[FoldedWeight]:
        read = dict.fromkeys(t.name for t in reference.inputs if t.weight and t.name in self.weights)
        for name, array in unknown.items():
            found = next((s for t in read if (s := find_layout(array, t, self.weights[t])) is not None), None)
            if found is not None:
                yield FoldedWeight(name, found, 0.0)

    def _constant_weights(self, unknown: Mapping[str, Array], reference: Program) -> Iterable[FoldedWeight]:
        """Yield the weights with equal elements; a weight that *reference* has in its place would be a difference."""
        read = (self.weights[t.name] for t in reference.inputs if t.weight and t.name in self.weights)
        shapes = {array.shape for array in read}
        known = [c for equation in reference.equations for c in constants_of(equation.scope)]
        for name, array in unknown.items():
            if array.shape not in shapes and bool((array == array.flat[0]).all()):
                value = float(array.flat[0])
                form = find_folded_constants([value], known).get(value, Const(value))
                yield FoldedWeight(name, Scope(extent_iterators(array.shape), (), form), _error_of(form, value))


def open_sweep(
    first: Model,
    second: Model,
    seeds: Iterable[int] = (0, 1),
    stop: float = inf,
    outputs: Mapping[str, str] = NO_OUTPUTS,
) -> Sweep:
    """Run both models on random inputs, one of each of *seeds*, and merge their inputs and their equal weights.

    They are not run if the *outputs* of both have one structure.

    Raises Refused if the inputs or outputs of *second* are not those of *first*, by name or by position, TimeoutError
    at *stop*, a time of ``perf_counter``.
    """
    inputs = match_interface("input", first.inputs, second.inputs)
    twins = structural_twins((first.graph_proto, first.weights), (second.graph_proto, second.weights), inputs)
    is_one_graph = bool(outputs) and all(theirs in twins.get(mine, ()) for mine, theirs in outputs.items())
    one, other = ModelEquations(first, "a_"), ModelEquations(second, "b_")
    feeds = [random_model_inputs(first, seed) for seed in (() if is_one_graph else seeds)]
    theirs = [{inputs[name]: array for name, array in feed.items()} for feed in feeds]
    weights = {side.tensor(name): array for side in (one, other) for name, array in side.model.weights.items()}
    same = {one.tensor(name): one.tensor(name) for name in inputs}
    same |= {other.tensor(theirs): one.tensor(mine) for mine, theirs in inputs.items()}
    by_content: dict[str, list[str]] = {}
    for name, array in weights.items():
        by_content.setdefault(content_digest({"": array.reshape(-1)}), []).append(name)
    own = {one.tensor(name) for name in first.weights}
    for representative, *others in by_content.values():
        if not own.isdisjoint((representative, *others)) and not own.issuperset((representative, *others)):
            same |= dict.fromkeys((representative, *others), representative)
        else:  # weights of one model alone may be defined by weights of the other
            side = one if representative in own else other
            array = weights[representative]
            source = Tensor(representative, array.shape, weight=True, dtype=str(array.dtype))
            for name in others if source.dtype in ELEMENT_TYPES else ():
                side.equations[name] = Equation(name, _reshaped(source, weights[name].shape))
    shapes = {
        side.tensor(name): value.shape
        for side in (one, other)
        for name, value in side.model.values.items()
        if value.shape is not None
    }
    shapes |= {name: e.scope.shape for side in (one, other) for name, e in side.equations.items() if name not in shapes}
    types = {
        side.tensor(name): str(value.dtype)
        for side in (one, other)
        for name, value in side.model.values.items()
        if str(value.dtype) in ELEMENT_TYPES
    }
    in_blocks = None if is_one_graph else _sample_blocks((one, other), (feeds, theirs))
    samples = in_blocks or (sample_values(first, feeds, stop), sample_values(second, theirs, stop))
    sweep = Sweep(
        one, other, samples, weights, shapes, types, same, twins, in_blocks is not None, is_one_graph, stop=stop
    )
    sweep.folded += [*_fold_constants(one, other), *_fold_constants(other, one)]
    return sweep


def are_one_graph(first: Model, second: Model) -> bool:
    """Return whether both files have one graph, up to names and order: then they are equal at all sizes."""
    inputs = match_interface("input", first.inputs, second.inputs)
    one, other = ((each.original_proto, each.original_weights) for each in (first, second))
    twins = structural_twins(one, other, inputs)
    outputs = match_interface("output", first.outputs, second.outputs)
    return all(theirs in twins.get(mine, ()) for mine, theirs in outputs.items())


def _sample_blocks(
    sides: tuple[ModelEquations, ModelEquations], feeds: tuple[Sequence[Mapping[str, Array]], ...]
) -> tuple[Mapping[str, ValueSample], Mapping[str, ValueSample]] | None:
    """Return samples of blocks of both models' values on *feeds* if whole values take too much memory, else None."""
    if max(value_bytes(side.model) for side in sides) <= MAX_BYTES or any(side.opaque for side in sides):
        return None
    first, second = (
        sample_blocks(side.model, each, side.equations, side.tensor) for side, each in zip(sides, feeds, strict=True)
    )
    return None if first is None or second is None else (first, second)


def _fold_constants(one: ModelEquations, other: ModelEquations) -> Iterable[FoldedWeight]:
    """Write the constants that *other* alone has as products and quotients of those of *one*."""
    known, unknown = ([c for e in side.equations.values() for c in constants_of(e.scope)] for side in (one, other))
    new = find_folded_constants(unknown, known)
    for name, equation in other.equations.items() if new else ():
        other.equations[name] = replace(equation, scope=with_constants(equation.scope, new))
    for value, form in new.items():
        yield FoldedWeight(f"constant {value:g}", Scope((), (), form), _error_of(form, value))


def _error_of(form: Scalar, value: float) -> float:
    """Return the relative error of *value*, a rounded *form* of constants."""
    return abs(float(evaluate(Scope((), (), form), {}, np.float64)) / value - 1) if value else 0.0


def match_interface(kind: str, first: Sequence[ModelValue], second: Sequence[ModelValue]) -> Mapping[str, str]:
    """Return the name in *second* of each value of *first*: its own, or by position if no name is common.

    Raises Refused if their numbers, names, shapes or element types differ.
    """
    names = {value.name: value for value in second}
    if len(first) != len(second):
        raise Refused(f"{kind}s: found {len(second)} in the second model, expected {len(first)} as in the first")
    if not names.keys() & {value.name for value in first}:
        names = {mine.name: theirs for mine, theirs in zip(first, second, strict=True)}
    for value in first:
        found = names.get(value.name)
        if found is None:
            raise Refused(f"{kind} {value.name}: found none in the second model, which has {', '.join(names)}")
        if (found.shape, found.dtype) != (value.shape, value.dtype):
            raise Refused(
                f"{kind} {found.name}: found {found.dtype}{list(found.shape or ())} in the second model, expected "
                f"{value.dtype}{list(value.shape or ())}"
            )
    return {value.name: names[value.name].name for value in first}


def _count_points(program: Program) -> int:
    """Return the number of points of all iterators of *program*."""
    every = (s for equation in program.equations for _, s in scopes(equation.scope))
    return sum(prod(x.extent for x in (*scope.traversals, *scope.summations)) for scope in every)


def _are_close(one: Array, other: Array) -> bool:
    """Return whether both have the same elements in the same order, up to rounding."""
    if one.size != other.size:
        return False
    a, b = one.reshape(-1), other.reshape(-1)
    return bool((np.abs(a - b) <= SAMPLE_TOLERANCE * (1 + np.abs(b))).all())


def _operands(node: ModelNode) -> Sequence[str]:
    return [name for name in (*node.inputs, *node.captured) if name]


def _reshaped(source: Tensor | Scope, shape: Shape) -> Scope:
    """*source* with the same elements in the same order, in another *shape*."""
    xs = extent_iterators(shape)
    if [n for n in source.shape if n > 1] == [n for n in shape if n > 1]:
        long = iter([x for x in xs if x.extent > 1])
        return Scope(xs, (), source[tuple(next(long) if n > 1 else 0 for n in source.shape)])
    return Scope(xs, (), source[unravel_index(ravel_index(xs, shape), source.shape)])


def _with_shape(program: Program, shape: Shape) -> Program:
    """*program* with its result in another *shape*."""
    *rest, last = program.equations
    if last.scope.shape == shape:
        return program
    return replace(program, equations=(*rest, replace(last, scope=_reshaped(last.scope, shape))))


def _comparable(before: Program, after: Program) -> tuple[Program, Program]:
    """Name the tensors of both by position, those of one name alike; *before* has the inputs of both."""
    before = with_inputs_of(before, after)
    names: dict[str, str] = {RESULT: RESULT}
    for n, t in enumerate(before.inputs):
        names[t.name] = f"{'w' if t.weight else 'x'}{n}"
    for n, e in enumerate((*before.equations, *after.equations)):
        names.setdefault(e.name, f"t{n}")
    return rename_tensors(before, names), rename_tensors(after, names)


def with_inputs_of(before: Program, after: Program) -> Program:
    """Return *before* with those inputs of *after* that it does not read, too."""
    known = {t.name for t in before.inputs}
    return replace(before, inputs=(*before.inputs, *(t for t in after.inputs if t.name not in known)))


Proof: TypeAlias = tuple[Certificate, tuple[Program, ...]]
"""A certificate, and the programs by way of which it was found."""

Prover: TypeAlias = Callable[[Program, Program], Proof]


@lru_cache(1024)  # layers of one model are often equal
def prove_directly(before: Program, after: Program) -> Proof:
    """Certify that both programs are equal, with nothing between them."""
    return certify(before, after, exact_elements=None), ()


@lru_cache(1024)
def _prove_by_laws(before: Program, after: Program) -> Proof:
    """Prove that both are equal after laws of functions have simplified them (``simplifications``)."""
    one, other = map(_steps_by_laws, (before, after))
    if not one and not other:
        return Certificate("unknown", "none", detail="no law of functions applies"), ()
    path = (before, *(step.after for step in one), *(step.before for step in reversed(other)), after)
    # A simplification that ends at the other program needs no step to it.
    path = tuple(program for n, program in enumerate(path) if n == 0 or program != path[n - 1])
    steps = [certify(*pair, exact_elements=None) for pair in pairwise(path)]
    return weakest_certificate(steps), path[1:-1]


def _steps_by_laws(program: Program) -> Sequence[Step]:
    """Return the steps of the simplification of *program* that leaves the least work."""
    found = list(simplifications(program))
    return found[-1].steps if found else ()


def _reduces(equation: Equation) -> bool:
    return any(y.extent > 1 for _, scope in scopes(equation.scope) for y in scope.summations)
