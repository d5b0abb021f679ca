"""Layouts between derived subprograms and those that ONNX Runtime runs."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import einnet_explore as ee
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.plan_layouts import Conversions, Region, Unit, measure_conversions, propose_selection
from einnet_explore.pipeline.selection import Selector
from einnet_explore.pipeline.subprogram import Subprogram, TunedSubprogram, choose_joined_or_parts
from einnet_explore.pipeline.tuning_task import Trial
from einnet_explore.rules import Derivation
from einnet_explore.support.errors import Refused
from tests.onnx_building import build, node
from tests.optimising_kit import SHORT, model

MS = 1e-3
"""A millisecond; times below are in these."""

SHAPES = {"small": (1, 16, 1, 1)}
"""Shapes of values; others are images."""


def fake_model(outputs: Sequence[str] = (), nodes: Sequence[Any] = ()) -> Any:
    """A model whose values are images."""
    shape = lambda name: SHAPES.get(name, (1, 16, 8, 8))  # noqa: E731
    values = SimpleNamespace(get=lambda name: SimpleNamespace(shape=shape(name)))
    results = [SimpleNamespace(name=name) for name in outputs]
    return SimpleNamespace(shape=shape, values=values, outputs=results, nodes=nodes, weights={})


END = Derivation(ee.parse("tensor A[3]\nY[x:3] = A[x] + 1"))


def subprogram(name: str, reads: Sequence[str], makes: str, parts: tuple[Subprogram, ...] = ()) -> Subprogram:
    program = ee.parse(
        "\n".join([*(f"tensor {n}[3]" for n in reads), f"{makes}[i:3] = {' + '.join(f'{n}[i]' for n in reads)}"])
    )
    nodes = tuple(n for part in parts for n in part.nodes) or (name,)
    return Subprogram(nodes, program, tuple(reads), (makes,), parts)


def tuned(of: Subprogram, before: float, after: float, certificate: str = "proved") -> TunedSubprogram:
    trial = Trial(seconds_before=before * MS, seconds_after=after * MS, winner=END, why="")
    return TunedSubprogram(of.nodes, trial, True, certificate, "")


def proposal(units: Sequence[Unit], conversions: Mapping[tuple[str, ...], Conversions]) -> tuple[int, ...] | None:
    return propose_selection(fake_model(), units, lambda s: conversions.get(s.nodes, Conversions()))


def chain(*gains: tuple[float, float]) -> tuple[list[Unit], dict[tuple[str, ...], Conversions]]:
    """A chain of convolutions that convert what they read and make in a millisecond each."""
    each = [subprogram(f"n{n}", [f"v{n}"], f"v{n + 1}") for n in range(len(gains))]
    units = [Unit(s, {n: (s, tuned(s, *gain))}) for n, (s, gain) in enumerate(zip(each, gains, strict=True))]
    return units, {s.nodes: Conversions({s.inputs[0]: MS}, {s.outputs[0]: MS}) for s in each}


def test_a_gain_below_the_conversions_around_it_is_not_proposed() -> None:
    units, conversions = chain((10.0, 20.0), (10.0, 9.0), (10.0, 20.0))
    assert proposal(units, conversions) == ()  # alone 9 of 10, but 9 and two conversions in place of 8
    units, conversions = chain((10.0, 20.0), (10.0, 5.0), (10.0, 20.0))
    assert proposal(units, conversions) == (1,)


def test_a_slower_subprogram_between_derived_ones_saves_their_conversions() -> None:
    units, conversions = chain((10.0, 5.0), (10.0, 9.5), (10.0, 5.0))
    assert proposal(units, conversions) == (0, 1, 2)
    units, conversions = chain((10.0, 5.0), (10.0, 10.5), (10.0, 5.0))
    assert proposal(units, conversions) == (0, 2)


def test_nothing_is_proposed_without_conversions() -> None:
    units, _ = chain((10.0, 5.0), (10.0, 9.5))
    assert proposal(units, {}) is None


@pytest.mark.parametrize("certificate", ["false", "unknown"])
def test_a_derivation_that_is_not_known_to_hold_is_not_proposed(certificate: str) -> None:
    units, conversions = chain((10.0, 5.0))
    s = units[0].subprogram
    wrong = tuned(s, 10.0, 5.0, certificate)
    assert proposal(units, conversions) == (0,)
    assert proposal([Unit(s, {0: (s, wrong)})], conversions) == ()


@pytest.mark.parametrize(
    ("joined", "second", "expected"),
    [
        (11.5, 6.0, (2,)),
        (12.5, 6.0, (0, 1)),
        (13.0, 9.5, (2,)),  # the first part and the second's original take 6 + 8, and a conversion between
        (15.5, 12.0, (0,)),
    ],
)
def test_a_joined_subprogram_or_its_parts_are_proposed(joined: float, second: float, expected: tuple[int, ...]) -> None:
    parts = subprogram("a", ["v0"], "v1"), subprogram("b", ["v1"], "v2")
    whole = subprogram("", ["v0"], "v2", parts)
    conversions = {s.nodes: Conversions({s.inputs[0]: MS}, {s.outputs[0]: MS}) for s in (*parts, whole)}
    found = {0: (parts[0], tuned(parts[0], 12.0, 6.0))}
    found |= {1: (parts[1], tuned(parts[1], 10.0, second)), 2: (whole, tuned(whole, 20.0, joined))}
    assert proposal([Unit(whole, found)], conversions) == expected


def test_parts_are_proposed_though_others_were_not_tuned() -> None:
    parts = subprogram("a", ["v0"], "v1"), subprogram("b", ["v1"], "v2")
    whole = subprogram("", ["v0"], "v2", parts)
    conversions = {s.nodes: Conversions({s.inputs[0]: MS}, {s.outputs[0]: MS}) for s in (*parts, whole)}
    found = {0: (parts[0], tuned(parts[0], 12.0, 4.0)), 1: (whole, tuned(whole, 20.0, 19.0))}
    assert proposal([Unit(whole, found)], conversions) == (0,)


def test_a_concatenation_reads_blocks_where_convolutions_make_them() -> None:
    """After a derived part, it reads rows: the other operand is converted, and its result inside."""
    joining, other = subprogram("c", ["v1", "w"], "v9"), subprogram("o", ["u"], "w")
    for seconds, expected in ((7.5, ()), (5.5, (0,))):
        units, conversions = chain((10.0, seconds))
        conversions |= {("o",): Conversions({"u": MS}, {"w": MS}), ("c",): Conversions({}, {"v9": MS}, inside=2 * MS)}
        assert proposal([*units, Unit(other, {}), Unit(joining, {})], conversions) == expected


def test_a_result_of_the_model_is_read_in_rows() -> None:
    units, conversions = chain((10.0, 9.5))
    assert proposal(units, conversions) == ()  # the original takes 8, and 1 to convert its input
    assert propose_selection(fake_model(["v1"]), units, lambda s: conversions[s.nodes]) == (0,)


@pytest.mark.parametrize(("made", "expected"), [("v2", ()), ("small", (0,))])
def test_a_node_outside_reads_blocks_only_if_it_keeps_extents(made: str, expected: tuple[int, ...]) -> None:
    """An element-wise node may; before a reduction, blocks are converted to rows."""
    units, conversions = chain((10.0, 9.5))
    other = SimpleNamespace(name="other", reads=("v1",), results=(made,))
    conversions[("other",)] = Conversions()
    assert propose_selection(fake_model(nodes=[other]), units, lambda s: conversions[s.nodes]) == expected
    conversions[("other",)] = Conversions({"v1": MS})  # pooling in blocks
    found = propose_selection(fake_model(nodes=[other]), units, lambda s: conversions[s.nodes])
    assert found == ()


def test_conversions_of_an_original_are_those_of_values_at_its_borders() -> None:
    weights = {"k": np.ones((32, 32, 3, 3), np.float32), "l": np.ones((32, 32, 3, 3), np.float32)}
    nodes = [node("Conv", ["x", "k"], ["a"], pads=[1] * 4), node("Conv", ["a", "l"], ["y"], pads=[1] * 4)]
    work = Optimiser(model(build(nodes, {"x": (1, 32, 16, 16)}, ["y"], weights)), SHORT)
    first, second = (s for whole in work.split.subprograms for s in (whole.parts or (whole,)))
    found = measure_conversions(work.model, Region.of(first), 1)
    assert {*found.reads} <= {"x"} and {*found.makes} <= {*first.outputs} and found.inside == 0
    assert found.reads.keys() == {"x"} or not found.at_borders  # ONNX Runtime has no blocks on some processors
    assert Conversions.from_json(found.to_json()) == found
    assert {*found.renamed({"x": "z", first.outputs[0]: "w"}).reads} <= {"z"}
    assert {*measure_conversions(work.model, Region.of(second), 1).makes} <= {"y"}


def test_values_that_are_no_images_are_not_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Optimiser(
        model(build([node("MatMul", ["x", "k"], ["y"])], {"x": (64, 64)}, ["y"], {"k": np.ones((64, 64), np.float32)})),
        SHORT,
    )
    (only,) = work.split.subprograms
    monkeypatch.setattr("einnet_explore.pipeline.plan_layouts._profile", lambda *_: pytest.fail("it was profiled"))
    assert measure_conversions(work.model, Region.of(only), 1) == Conversions()
    assert isinstance(work.model, Model)


def test_near_choices_replace_one_another_and_layouts_propose_one() -> None:
    parts = subprogram("a", ["v0"], "v1"), subprogram("b", ["v1"], "v2")
    whole = subprogram("", ["v0"], "v2", parts)
    separate = [tuned(parts[0], 10.0, 6.0), tuned(parts[1], 10.0, 6.0)]
    for joined, near in ((12.5, ((2,),)), (14.0, ())):
        best, within = choose_joined_or_parts(tuned(whole, 18.0, joined), separate)
        chosen = selector([*within, best], [*parts, whole])
        choices = chosen._alternatives()
        assert choices.near == near and choices.rivals == {0: (2,), 1: (2,), 2: (0, 1)}
        assert choices.proposed == ((0, 1) if joined > 12 else (2,))
    best, within = choose_joined_or_parts(tuned(whole, 18.0, 11.5), separate)
    assert selector([*within, best], [*parts, whole])._alternatives().near == ((0, 1),)


def test_no_plan_is_proposed_where_profiles_fail_or_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    only = subprogram("a", ["v0"], "v1")
    for problem in (Refused("no session"), ValueError("no such field")):
        chosen = selector([tuned(only, 10.0, 6.0)], [only])
        monkeypatch.setattr(chosen, "_conversions", lambda _, problem=problem: (_ for _ in ()).throw(problem))
        assert chosen._alternatives().proposed == () and not chosen.interrupted
    stopped = selector([tuned(only, 10.0, 6.0)], [only])
    monkeypatch.setattr(stopped, "_conversions", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert stopped._alternatives().proposed == () and stopped.interrupted
    assert selector([tuned(only, 10.0, 6.0)], [only], interrupted=True)._alternatives().proposed == ()


def selector(
    parts: Sequence[TunedSubprogram], subprograms: Sequence[Subprogram], interrupted: bool = False
) -> Selector:
    """A selector in which every original converts what it reads and makes in a millisecond each."""
    wholes = [s for s in subprograms if not any(s in other.parts for other in subprograms)]
    arguments: Any = (
        SimpleNamespace(model=fake_model()), SimpleNamespace(settings=SimpleNamespace(runtime="plan", threads=1)),
        None, "", parts, subprograms, wholes,
    )  # fmt: skip
    made = Selector(*arguments)
    made.interrupted = interrupted
    made.__dict__["_earlier"] = ()
    made.__dict__["_task_names"] = tuple("/".join(s.nodes) for s in subprograms)
    made._conversions = lambda s: Conversions(dict.fromkeys(s.reads, MS), dict.fromkeys(s.makes, MS))  # type: ignore[method-assign]
    return made
