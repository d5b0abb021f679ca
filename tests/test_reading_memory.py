"""Work of reading a model: what earlier runs found is not found again, and equal expressions are asked once."""

from __future__ import annotations

import atexit
import gc
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_building import build, node

import einnet_explore as ee
from einnet_explore.cli import main
from einnet_explore.ir import Path as ScopePath
from einnet_explore.ir import Program, Scope, scopes, terms
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline import joins, model_spelling
from einnet_explore.pipeline.model_spelling import with_normal_spelling
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.reading_memory import ReadingMemory, graph_digest
from einnet_explore.pipeline.subprogram import anonymize
from einnet_explore.pipeline.tuning_context import Settings, TuningHistory
from einnet_explore.rules import DISTRIBUTIVITY, common_factor
from einnet_explore.rules.distributivity import Termwise
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.strategies import factoring, vertical_fusion
from einnet_explore.strategies.factoring import LocalMove
from einnet_explore.strategies.vertical_fusion import vertical_fusions
from einnet_explore.support.limits import COLLECTION_THRESHOLDS, rare_collections


def attention_and_products() -> Model:
    """Products that factoring reorders, attention in one kernel, and two products of one input."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in ("a", "b")}
    nodes = [
        node("MatMul", ["q", "k"], ["s"]),
        node("MatMul", ["s", "v"], ["y"]),
        node("MatMul", ["x", "a"], ["t"]),
        node("MatMul", ["x", "b"], ["u"]),
        node("Transpose", ["u"], ["w"], perm=[1, 0]),
        node("MatMul", ["t", "w"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "x"], ["z"]),
    ]
    inputs = {"q": (32, 4), "k": (4, 32), "v": (32, 4), "x": (16, 8)}
    return load_model(build(nodes, inputs, ["y", "z"], weights))


QUESTIONS = ("factored_equations", "fuses_into_one", "_merges_across")
"""The functions of ``joins`` that take long."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls of each question."""
    count = Counter[str]()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            count[name] += 1
            return function(*arguments)

        return ask

    for name in QUESTIONS:
        monkeypatch.setattr(joins, name, counted(name, getattr(joins, name)))
    return count


def memory(path: Path, model: Model) -> ReadingMemory:
    return ReadingMemory(TuningHistory(ProfileStore(path / "profiles.sqlite")), graph_digest(model))


def test_second_run_asks_nothing_about_programs(asked: Counter[str], tmp_path: Path) -> None:
    model = attention_and_products()
    first = partition(model, memory(tmp_path, model))
    assert set(asked) == set(QUESTIONS) and first == partition(model)
    asked.clear()
    assert partition(model, memory(tmp_path, model)) == first
    assert not asked


def test_optimiser_remembers_what_it_reads(asked: Counter[str], tmp_path: Path) -> None:
    store = tmp_path / "profiles.sqlite"
    assert Optimiser(attention_and_products(), Settings(1), store=ProfileStore(store)).split and asked
    asked.clear()
    assert Optimiser(attention_and_products(), Settings(1), store=ProfileStore(store)).split and not asked


def test_equal_layers_are_asked_about_once(asked: Counter[str]) -> None:
    rng = np.random.default_rng(0)
    nodes, weights = [], {}
    for n in range(4):
        nodes += [node("MatMul", [f"x{n}", f"w{n}"], [f"a{n}"]), node("Relu", [f"a{n}"], [f"x{n + 1}"])]
        nodes.insert(-1, node("Add", [f"a{n}", f"b{n}"], [f"c{n}"]))
        nodes[-1] = node("Relu", [f"c{n}"], [f"x{n + 1}"])
        weights |= {f"w{n}": rng.standard_normal((8, 8)).astype(np.float32), f"b{n}": np.ones(8, np.float32)}
    partition(load_model(build(nodes, {"x0": (4, 8)}, ["x4"], weights)))
    assert asked["factored_equations"] == 1


@pytest.mark.parametrize("answer", [[99], [-1], "no list", [True], [0.5], None])
def test_wrong_document_leads_to_subprograms_that_run(answer: object, tmp_path: Path) -> None:
    """Of wrong answers some numbers are skipped; others group nodes in another way, and every group is convex."""
    model = attention_and_products()
    first = memory(tmp_path, model)
    partition(model, first)
    assert first.history is not None
    first.history.record(dict.fromkeys(first._answers, answer), "reading", first.key)
    found = partition(model, memory(tmp_path, model)).subprograms
    held = [name for each in found for name in each.nodes]
    assert len(held) == len(set(held)) and set(held) <= {n.name for n in model.nodes}


def test_document_of_another_graph_is_not_read(tmp_path: Path) -> None:
    model = attention_and_products()
    first = memory(tmp_path, model)
    assert first.holds("is true", "text", lambda: True)
    first.save()
    again = ReadingMemory(first.history, first.key)
    assert again.holds("is true", "text", lambda: False) and not again.holds("is true", "other", lambda: False)
    assert not ReadingMemory(first.history, "another").holds("is true", "text", lambda: False)


def test_only_failed_proofs_are_remembered(tmp_path: Path) -> None:
    model = attention_and_products()
    first, proved = memory(tmp_path, model), list[str]()

    def prove(outcome: bool) -> Callable[[], bool]:
        return lambda: proved.append("tried") or outcome

    assert first.is_proved("is equal", "one", prove(True)) and not first.is_proved("is equal", "two", prove(False))
    first.save()
    second = ReadingMemory(first.history, first.key)
    assert not second.is_proved("is equal", "two", prove(True)) and len(proved) == 2
    assert not second.is_proved("is equal", "one", prove(False)) and len(proved) == 3


def test_spelling_that_was_not_proved_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried = list[bool]()
    monkeypatch.setattr(model_spelling, "_are_equal", lambda *_: bool(tried.append(False)))
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((8, 3)).astype(np.float32) for name in ("a", "b")}
    nodes = [
        node("MatMul", ["x", "a"], ["s"]), node("MatMul", ["x", "b"], ["t"]), node("Concat", ["s", "t"], ["y"], axis=1)
    ]  # fmt: skip
    model = load_model(build(nodes, {"x": (4, 8)}, ["y"], weights))
    first = memory(tmp_path, model)
    with_normal_spelling(model, memory=first)
    count = len(tried)
    assert count
    first.save()
    with_normal_spelling(model, memory=memory(tmp_path, model))
    assert len(tried) == count


def test_equal_equations_are_asked_once_after_a_step() -> None:
    """Of sixteen products of sums, a step changes one: only its scopes are new."""
    lines = [f"Y{n}[i:4] = sum[k:{n + 2}] A[i, k] * (B[k] + C[k])" for n in range(16)]
    text = "\n".join(["tensor A[4, 32]", "tensor B[32]", "tensor C[32]", *lines, lines[0].replace("Y0", "Z")])
    start, seen = ee.parse(text), Counter[Scope]()

    def moves(_: Program, __: ScopePath, scope: Scope) -> Iterable[LocalMove]:
        seen[scope] += 1
        return iter(())

    assert not list(factoring._remembered(start, moves)) and len(seen) == 16  # Z is Y0
    after = DISTRIBUTIVITY.rewrite(start, (3,), Termwise())
    assert not list(factoring._remembered(after, moves)) and set(seen.values()) == {1}
    assert len(seen) == 16 + sum(1 for _ in scopes(after.scope_at((3,))))


@pytest.mark.parametrize(
    ("left", "right", "differ"),
    [
        ("X[i, 3] * A[i]", "X[i, 4] * B[i]", True),  # two steps of a recurrence
        ("X[i, i+1] * A[i]", "X[i, i+2] * B[i]", True),
        ("X[i, 3] * A[i]", "X[i, 3] * B[i]", False),
        ("{[i:4] sum[k:4] X[i, k] * V[k]}[i]", "{[i:4] sum[k:4] X[i, k+1] * W[k]}[i]", False),  # k has other values
    ],
)
def test_elements_that_always_differ_are_no_common_factor(
    left: str, right: str, differ: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(f"tensor {name}" for name in ("X[4, 6]", "A[4]", "B[4]", "V[4]", "W[4]"))
    scope = ee.parse(f"{text}\nY[i:4] = {left} + {right}").equations[0].scope
    tried, rewrite = list[object](), common_factor.rewrite
    monkeypatch.setattr(common_factor, "rewrite", lambda *a: tried.append(a) or rewrite(*a))
    common_factor._best_of_pair.cache_clear()
    common_factor._best_of_pair(*terms(scope.body), scope.traversals, scope.reduce)
    assert (not tried) == differ


def test_kernels_are_looked_for_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    program = attention_and_products()
    joined = next(s.program for s in partition(program).subprograms if any("softmax" in n for n in s.nodes))
    made, generate = list[object](), vertical_fusion.generate_fused
    monkeypatch.setattr(vertical_fusion, "generate_fused", lambda *a: made.append(a) or generate(*a))
    assert list(vertical_fusions(joined)) and made
    made.clear()
    assert not list(vertical_fusions(joined, is_wanted=lambda _: False)) and not made


def test_signature_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = anonymize(ee.parse("tensor A[4]\nY[i:4] = A[i] * 2"))
    first = found.signature
    monkeypatch.setattr("einnet_explore.pipeline.subprogram.text", None)
    assert found.signature is first


def test_cycles_are_looked_for_rarely_inside_and_as_before_behind() -> None:
    before, inside = gc.get_threshold(), list[tuple[int, int, int]]()

    def fail() -> None:
        with rare_collections():
            inside.append(gc.get_threshold())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert inside == [COLLECTION_THRESHOLDS] and gc.get_threshold() == before


def test_commands_end_without_looking_for_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = list[object]()
    monkeypatch.setattr(atexit, "register", registered.append)
    assert main(["models", "list"]) == 0
    assert gc.freeze in registered
