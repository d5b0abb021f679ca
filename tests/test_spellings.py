"""Spellings of one computation are proved equal, and traps are refused with an input."""

from collections import Counter

import numpy as np
import onnx
import pytest

import einnet_explore as ee
from benchmarks.spellings.__main__ import compared, main
from benchmarks.spellings.engines import measured
from benchmarks.spellings.families import FAMILIES, NORMALISATION
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Scope
from einnet_explore.pipeline.folded_weights import find_joined_weights
from einnet_explore.pipeline.plan import open_session, run_session
from einnet_explore.pipeline.value_samples import without_optimisations


def test_there_are_enough_spellings_and_traps() -> None:
    for family in FAMILIES.values():
        assert len(family.spellings(100)) == 100 and len(list(family.trapped(50))) == 50
        for choice in (*family.spellings(5), *family.trapped(5)):
            onnx.checker.check_model(family.model(choice), full_check=True)
            onnx.checker.check_model(family.model(choice, size=4), full_check=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_spellings_are_proved_and_traps_refused(name: str) -> None:
    family = FAMILIES[name]
    equal = Counter(found.kind for _, found in compared(family, family.spellings(16)))
    assert equal.keys() <= {"proved", "rounded"} and equal.total() == 16
    traps = list(family.trapped(2 * len(family.traps)))
    for choice, found in compared(family, traps):
        assert found.kind == "different" and found.difference is not None, choice


def test_the_command_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gated layer", "--spellings", "3", "--traps", "2"]) == 0
    (row,) = {line for line in capsys.readouterr().out.splitlines() if line.startswith("gated layer")}
    assert row.split()[2:6] == ["3", "3", "0", "2"]


def test_engines_are_compared_with_the_usual_spelling() -> None:
    found = measured(NORMALISATION, NORMALISATION.spellings(2), "onnxruntime", 1.0)
    assert len(found.ratios) == 2 and all(ratio > 0 for ratio in found.ratios) and not found.refused


def test_what_an_optimiser_of_onnx_runtime_does_wrong_is_no_difference_of_the_models() -> None:
    """With its epsilon as the first operand, the fused normalisation of ONNX Runtime 1.31 takes another epsilon."""
    usual = NORMALISATION.usual()
    first, second = (
        NORMALISATION.model({**usual, "square": "power", "epsilon": way}) for way in ("in order", "swapped")
    )
    assert ee.equal(first, second).kind == "proved"
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    sessions = (open_session(model, 1, adjust=without_optimisations) for model in (first, second))
    one, other = (run_session(session, ["y"], {"x": x})[0] for session in sessions)
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_weight_of_pieces_is_read_from_them() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    pieces = {"a": whole[:, :2], "b": whole[:, 2:].reshape(16), "other": whole[:2] + 1}
    (found,) = find_joined_weights({"w": whole}, pieces)
    assert found.weight == "w" and found.error == 0
    arrays = {name: array for name, array in pieces.items() if name != "other"}
    assert np.array_equal(evaluated(found.definition, arrays), whole)
    (twice,) = find_joined_weights({"w": np.concatenate([whole, whole])}, {"whole": whole})
    assert np.array_equal(evaluated(twice.definition, {"whole": whole}), np.concatenate([whole, whole]))
    assert not list(find_joined_weights({"w": whole}, {"a": pieces["a"]}))
    assert not list(find_joined_weights({"w": whole}, {"the same": whole}))


def evaluated(scope: Scope, arrays: dict[str, np.ndarray]) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(evaluate(scope, arrays, np.float64))
