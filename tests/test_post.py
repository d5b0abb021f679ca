"""Post-optimisation: fused to the end, inverse transforms cancelled, layouts chosen together, each step proved."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_building import build, node

import einnet_explore as ee
from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.analysis.counts import is_compute_bound
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Program, accesses
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.node_call import NotUnderstood, assemble
from einnet_explore.pipeline.fusion import fuse_eoperators, fuse_with_refusals
from einnet_explore.pipeline.layouts import (
    LayoutAssignment,
    Mode,
    Transform,
    assign_layouts,
    assign_modes,
    candidate_layouts,
    estimate_equation,
    needed_transforms,
    total_seconds,
)
from einnet_explore.rules import EOPERATOR_GENERATION, Derivation
from einnet_explore.strategies.instantiation import matching_rule
from tests.rules_kit import assert_equal
from tests.strategies import programs


def instantiated(program: Program) -> Derivation:
    """Every compute-bound equation run by a library operator, the others as eOperators, nothing derived."""
    derivation = Derivation(program)
    while (n := next((n for n, e in enumerate(derivation.end.equations) if e.via is None), None)) is not None:
        heavy = is_compute_bound(derivation.end.equations[n].scope)
        rule = matching_rule(ee.OPERATORS) if heavy else EOPERATOR_GENERATION
        derivation = derivation.then(next(iter(rule.matches(derivation.end, (n,)))))
    return derivation


def sound(derivation: Derivation) -> Derivation:
    """*derivation*, after every step of it was proved and its end evaluated."""
    assert {certify(step.before, step.after).kind for step in derivation.steps} <= {"proved"}
    assert_equal(derivation.start, derivation.end)
    assert all(e.via is not None for e in derivation.end.equations)
    return derivation


def of_nodes(nodes: Sequence[object], shape: list[int], weights: dict[str, np.ndarray] | None = None) -> Program:
    """The program of ONNX nodes that make y from x."""
    model = load_model(build(list(nodes), {"x": shape}, ["y"], weights or {}), {})  # type: ignore[arg-type]
    equations: list[Equation] = []
    for each in model.nodes:
        found = express(each, model)
        assert not isinstance(found, NotUnderstood)
        equations.extend(found)
    return assemble(tuple(equations), ("y",))


def kinds(program: Program) -> list[str]:
    return [e.via.operator for e in program.equations if e.via]


def test_layout_chain_around_a_softmax_is_softmax_alone() -> None:
    chain = of_nodes(
        [
            node("Reshape", ["x", "s"], ["a"]),
            node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3]),
            node("Softmax", ["b"], ["c"], axis=3),
            node("Transpose", ["c"], ["d"], perm=[0, 2, 1, 3]),
            node("Reshape", ["d", "t"], ["y"]),
        ],
        [8, 20, 30],
        {"s": np.array([8, 4, 5, 30]), "t": np.array([8, 20, 30])},
    )
    plain = of_nodes([node("Softmax", ["x"], ["y"], axis=2)], [8, 20, 30])
    done, want = (
        fuse_eoperators(assign_layouts(fuse_eoperators(instantiated(p)), estimate_equation)) for p in (chain, plain)
    )
    assert {certify(step.before, step.after).kind for step in done.steps} == {"proved"}
    assert program_key(done.end) == program_key(want.end)
    assert len(done.end.equations) == 4


def test_inverse_transforms_between_two_products_cancel() -> None:
    # Fig. 14: what writes NCHW is followed by what reads NHWC.
    start = ee.parse(
        """tensor x[12, 8]
tensor w1[8, 10] weight
tensor w2[10, 9] weight
t[m:12, n:10] = sum[k:8] x[m, k] * w1[k, n]
nchw[c:10, h:3, w:4] = t[4*h + w, c]
nhwc[m:12, c:10] = nchw[c, m // 4, m % 4]
y[m:12, n:9] = sum[k:10] nhwc[m, k] * w2[k, n]
output y"""
    )
    done = sound(fuse_eoperators(instantiated(start)))
    assert [(e.name, e.via.operator) for e in done.end.equations if e.via] == [("t", "Matmul"), ("y", "Matmul")]


def test_chain_of_elementwise_equations_is_fused() -> None:
    start = ee.parse(
        """tensor x[6, 5]
tensor b[5]
a[i:6, j:5] = x[i, j] + b[j]
c[i:6, j:5] = relu(a[i, j])
d[j:5, i:6] = c[i, j] * 2
y[j:5, i:6] = d[j, i] - x[i, j]
output y"""
    )
    assert kinds(sound(fuse_eoperators(instantiated(start))).end) == [EOPERATOR]


def test_diamonds_with_one_consumer_become_one() -> None:
    start = ee.parse(
        """tensor x[6, 5]
s[i:6, j:5] = x[i, j] * x[i, j]
a[i:6, j:5] = relu(s[i, j])
b[i:6, j:5] = s[i, j] + 1
y[i:6, j:5] = a[i, j] * b[i, j] + s[i, j]
output y"""
    )
    assert kinds(sound(fuse_eoperators(instantiated(start))).end) == [EOPERATOR]


def test_work_before_a_reduction_joins_it() -> None:
    start = ee.parse("tensor x[6, 5]\na[i:6, j:5] = x[i, j] * x[i, j]\ny[i:6] = sum[j:5] a[i, j]\noutput y")
    assert kinds(sound(fuse_eoperators(instantiated(start))).end) == [EOPERATOR]


def test_fusion_of_a_value_with_several_reads_is_refused() -> None:
    start = ee.parse(
        """tensor x[6, 5]
s[i:6] = sum[j:5] x[i, j]
p[i:6, j:5] = x[i, j] - s[i]
q[i:6, j:5] = x[i, j] * x[i, j]
r[i:5, j:5] = q[i, j] + q[i + 1, j]
o[i:6, j:5] = x[i, j] + 3
t[i:6, j:5] = o[i, j] * 2
y[i:5, j:5] = p[i, j] + r[i, j]
output y, t, o"""
    )
    done = fuse_with_refusals(instantiated(start))
    sound(done.derivation)
    assert done.refused["s", "y"] == "y reads elements of s again at s[i]"
    assert "reads q at 2 places" in done.refused["q", "y"]
    assert "o is an output" in done.refused["o", "t"]


def test_a_window_is_not_computed_again() -> None:
    start = ee.parse("tensor x[8]\na[i:8] = x[i] * x[i] pad [1]\ny[i:8] = sum[r:3] a[i + r - 1]\noutput y")
    done = fuse_with_refusals(instantiated(start))
    assert len(done.derivation.end.equations) == 2 and "again" in done.refused["a", "y"]


def test_dead_and_duplicate_equations_are_removed() -> None:
    start = ee.parse(
        """tensor x[16, 16]
tensor w[16, 17] weight
a[i:16, j:16] = x[i, j] * 2
b[i:16, j:16] = 2 * x[i, j]
dead[i:16] = sum[j:16] x[i, j]
p[i:16, n:17] = sum[j:16] a[i, j] * w[j, n]
q[i:16, n:17] = sum[j:16] b[i, j] * w[j, n]
y[i:16, n:17] = p[i, n] + q[i, n]
output y"""
    )
    done = sound(fuse_eoperators(Derivation(instantiated(start).end)))
    assert len(done.end.equations) == 3 and kinds(done.end).count("Matmul") == 1


@given(programs())
@settings(max_examples=30)
def test_any_program_keeps_its_values(program: Program) -> None:
    derivation = Derivation(program)
    for n in range(len(program.equations)):
        for match in EOPERATOR_GENERATION.matches(derivation.end, (n,)):
            derivation = derivation.then(match)
    done = fuse_eoperators(assign_layouts(fuse_eoperators(derivation), estimate_equation))
    assert_equal(program, done.end)
    assert len(done.end.equations) <= len(program.equations)


TRANSPOSED = """tensor x[2, 7, 5, 4]
t[n:2, c:7, h:5, w:4] = relu(x[n, c, h, w])
a[n:2, h:5, w:4, c:7] = sum[r:2] t[n, c, h - r, w]
b[n:2, h:5, w:4, c:7] = sum[r:2] t[n, c, h - r, w] + 1
output a, b"""


def strided(costs: dict[str, float]) -> Callable[[Equation], float]:
    """A price: 1, and more where the innermost traversal does not walk along memory, for reads by tensor name."""

    def price(e: Equation) -> float:
        last = e.scope.traversals[-1]
        jumps = [a for a in accesses(e.scope.body) if last not in a.index[-1].iterators]
        return 1 + sum(costs[a.source.name[0]] for a in jumps)  # type: ignore[union-attr]

    return price


def padded(text: str) -> str:
    return text.replace("relu(x[n, c, h, w])", "relu(x[n, c, h, w]) pad [0, 0, 1, 0]")


def test_two_readers_in_another_order_change_the_layout() -> None:
    start = instantiated(ee.parse(padded(TRANSPOSED)))
    done = assign_layouts(Derivation(start.end), strided({"x": 1.5, "t": 1.0}))
    sound(done)
    assert [x.name for x in done.end.equations[0].scope.traversals] == ["n", "h", "w", "c"]
    assert len(done.end.equations) == 3


def test_a_transform_is_paid_once_for_all_its_readers() -> None:
    start = instantiated(ee.parse(padded(TRANSPOSED)))
    price = strided({"x": 100.0, "t": 10.0})

    def cheap_copy(e: Equation) -> float:
        return 3.0 if e.name.startswith("t__") else price(e)

    done = sound(assign_layouts(Derivation(start.end), cheap_copy))
    assert [e.name for e in done.end.equations] == ["t", "T1", "a", "b"]
    assert [x.name for x in done.end.equations[0].scope.traversals] == ["n", "c", "h", "w"]


def test_nothing_changes_where_nothing_is_gained() -> None:
    start = instantiated(ee.parse(padded(TRANSPOSED)))
    assert assign_layouts(start, lambda _: 1.0) is start
    assert assign_layouts(start, strided({"x": 100.0, "t": 0.1}), None) is start


def test_an_estimated_gain_of_layouts_is_measured() -> None:
    start, price = Derivation(instantiated(ee.parse(padded(TRANSPOSED))).end), strided({"x": 1.5, "t": 1.0})
    measured: list[str] = []

    def rough(e: Equation) -> float:
        return 1e-3 * price(e)

    def equal(e: Equation) -> float:
        measured.append(e.name)
        return 1e-3

    changed = assign_layouts(start, rough)
    assert assign_layouts(start, rough, rough).end == changed.end != start.end
    assert assign_layouts(start, rough, equal) is start
    assert sorted(measured) == sorted(2 * [e.name for e in start.end.equations])  # in both layouts, and no others


def test_a_product_is_made_transposed_where_its_reader_wants_that() -> None:
    start = instantiated(
        ee.parse(
            """tensor x[12, 8]
tensor w[8, 10] weight
t[m:12, n:10] = sum[k:8] x[m, k] * w[k, n]
a[n:10, m:12] = relu(t[m, n])
b[n:10, m:12] = t[m, n] * 2
output a, b"""
        )
    )
    done = sound(assign_layouts(Derivation(start.end), lambda e: 1.0 + 5.0 * ("t[m, n]" in repr(e.scope.body))))
    first = done.end.equations[0]
    assert first.via is not None and first.via.operator == "Matmul" and first.scope.shape == (10, 12)


def test_outputs_keep_their_layout_and_sizes_say_which_are_tried() -> None:
    program = instantiated(ee.parse(padded(TRANSPOSED))).end
    found = {e.name: candidate_layouts(program, e) for e in program.equations}
    assert len(found["a"]) == len(found["b"]) == 1
    assert [[name for name, _ in phi] for phi in found["t"]] == [["n", "c", "h", "w"], ["n", "h", "w", "c"]]


def brute_force(operators: Sequence[Sequence[Mode]], seconds: Callable[[Transform], float]) -> float:
    return min(total_seconds(modes, seconds) for modes in product(*operators))


def chain(costs: Sequence[tuple[float, float]]) -> list[list[Mode]]:
    """Convolutions in a row, each in NCHW (0) or NHWC (1); the chain's input and output are NCHW."""
    out = []
    for n, seconds in enumerate(costs):
        makes = {"t" + str(n + 1): 0} if n + 1 < len(costs) else {}
        last = n + 1 == len(costs)
        modes = []
        for layout in (0, 1):
            made = dict.fromkeys(makes, layout)
            reads = {f"t{n}": layout}
            if last:
                # The result is an output: a mode that makes NHWC has to turn it, which is part of its cost.
                made = {}
            modes.append(Mode(seconds[layout], reads, made))
        out.append(modes)
    return out


def test_a_chain_of_three_convolutions_turns_twice() -> None:
    # The second is much faster in NHWC: one transform before it and one behind.
    operators = chain([(1.0, 3.0), (9.0, 2.0), (1.0, 4.0)])
    found = assign_modes(operators, lambda _: 1.5)
    assert found.modes == (0, 1, 0) and found.transforms == {("t1", 0, 1), ("t2", 1, 0)}
    assert found.seconds == pytest.approx(brute_force(operators, lambda _: 1.5)) == 1 + 2 + 1 + 3
    assert assign_modes(operators, lambda _: 4.0).modes == (0, 0, 0)
    assert assign_modes(operators, lambda _: 0.1).transforms == {("t1", 0, 1), ("t2", 1, 0)}


@given(st.data())
@settings(max_examples=40)
def test_assignments_are_optimal(data: st.DataObject) -> None:
    numbers = st.integers(0, 9)
    count = data.draw(st.integers(1, 4))
    prices = {(f"t{n}", a, b): data.draw(numbers) for n in range(count) for a in range(3) for b in range(3) if a != b}
    operators: list[list[Mode]] = []
    for n in range(count):
        read = data.draw(st.sets(st.integers(0, n - 1), max_size=2)) if n else set()
        modes = [
            Mode(
                data.draw(numbers) * 1e-6,
                {f"t{r}": data.draw(st.integers(0, 2)) for r in read},
                {f"t{n}": data.draw(st.integers(0, 2))},
            )
            for _ in range(data.draw(st.integers(1, 3)))
        ]
        operators.append(modes)

    def seconds(what: Transform) -> float:
        return prices[what] * 1e-6

    found = assign_modes(operators, seconds)
    assert found.seconds == pytest.approx(brute_force(operators, seconds))
    assert found.transforms == needed_transforms(modes[m] for modes, m in zip(operators, found.modes, strict=True))


def test_empty_and_infeasible_layout_problems_are_handled() -> None:
    assert assign_modes([], lambda _: 1.0) == LayoutAssignment((), frozenset(), 0.0)
    with pytest.raises(ValueError, match="operator 1 has no mode"):
        assign_modes([[Mode(1.0)], []], lambda _: 1.0)


def test_views_are_fused_into_their_readers() -> None:
    start = ee.parse("tensor x[6, 4]\nv[i:3, j:8] = x[2*i + j // 4, j % 4]\ny[i:3] = sum[j:8] v[i, j]\noutput y")
    assert kinds(instantiated(start).end) in ([EOPERATOR, EOPERATOR], [VIEW, EOPERATOR])
    assert kinds(sound(fuse_eoperators(instantiated(start))).end) == [EOPERATOR]
