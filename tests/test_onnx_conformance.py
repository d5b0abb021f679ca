"""Every ONNX node test: its expression gives the test's output, or the node is passed through with a reason."""

import warnings
from collections import Counter
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Apply, Equation, Program, scopes, walk_scalar
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model, ModelError
from einnet_explore.onnx_import.node_call import NotUnderstood, assemble

LARGEST = 4_000_000
"""Multiply-accumulates that are worth evaluating in a test."""

pytestmark = pytest.mark.timeout(300)


def cases() -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in load_model_tests(kind="node") if case.model is not None]


def with_parameters_known(model: onnx.ModelProto, arrays: list[Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Lists of integers, flags and single numbers behind the first input are parameters: they become weights."""
    known = onnx.ModelProto()
    known.CopyFrom(model)
    known.ir_version = max(known.ir_version, 4)  # before, weights had to be inputs too
    del known.graph.input[:]
    feed = {}
    for n, (value, array) in enumerate(zip(model.graph.input, arrays, strict=False)):
        if n and isinstance(array, np.ndarray) and (array.dtype.kind in "ib" or is_parameter(model, array)):
            known.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            known.graph.input.append(value)
            feed[value.name] = array
    return known, feed


def is_parameter(model: onnx.ModelProto, array: Any) -> bool:
    scalars = {node.op_type for node in model.graph.node} == {"Pad"}
    return bool(array.size < 9 and array.ndim == 1) or (scalars and array.ndim == 0)


def expressed(model: Model) -> tuple[Equation, ...] | NotUnderstood:
    out: list[Equation] = []
    for node in model.nodes:
        equations = express(node, model)
        if isinstance(equations, NotUnderstood):
            return equations
        out += equations
    return tuple(out)


def work(program: Program) -> int:
    return sum(prod(x.extent for x in (*e.scope.traversals, *e.scope.summations)) for e in program.equations)


def rounds(program: Program) -> bool:
    parts = (part for e in program.equations for _, scope in scopes(e.scope) for part in walk_scalar(scope.body))
    return any(isinstance(part, Apply) and part.op == "round" for part in parts)


def verdict(case: Any) -> tuple[str, str]:
    """("right" | "wrong" | "passed through" | "refused" | "large", why)."""
    arrays, expected = ([_array(each) for each in held] for held in case.data_sets[0])
    proto, feed = with_parameters_known(case.model, arrays)
    try:
        model = load_model(proto)
    except ModelError as error:
        return "refused", str(error)
    if not model.nodes:
        return "passed through", "all folded"
    equations = expressed(model)
    if isinstance(equations, NotUnderstood):
        return "passed through", equations.reason
    program = assemble(equations, tuple(model.identifiers[v.name] for v in model.outputs))
    if work(program) > LARGEST:
        return "large", f"{work(program)} steps"
    given = {model.identifiers[name]: array for name, array in {**feed, **model.weights}.items()}
    # Numbers next to a tie are rounded to integers as their computation in single precision says.
    kind = np.float32 if rounds(program) else np.float64
    found = evaluate(program, {t.name: given[t.name] for t in program.inputs}, kind)
    for value, wanted in zip(model.outputs, expected, strict=True):
        array = found[model.identifiers[value.name]]
        # Some outputs were written by hand with four digits, and halves have three: ONNX's own tolerance holds there.
        coarse = wanted.dtype != np.float64 and np.array_equal(wanted, wanted.round(4))
        rtol = case.rtol if coarse or wanted.dtype.itemsize < 4 else 1e-4
        if wanted.dtype == ml_dtypes.bfloat16:
            rtol = 2**-7
        if array.shape != wanted.shape or not np.allclose(array, wanted.astype(float), rtol, 1e-6, equal_nan=True):
            return "wrong", f"{value.name}: shape {array.shape}, differs by {worst(array, wanted)}"
    return "right", ""


def _array(held: Any) -> Any:
    """Return *held*, which is a protocol buffer for elements of bfloat16, as an array."""
    return numpy_helper.to_array(held) if isinstance(held, onnx.TensorProto) else held


def worst(array: Any, wanted: Any) -> str:
    return f"{np.abs(array - wanted.astype(float)).max()}" if array.shape == wanted.shape else f"shape {wanted.shape}"


def test_node_tests_are_correct_or_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    with np.errstate(all="ignore"):
        verdicts = {case.name: verdict(case) for case in cases()}
    counts = Counter(kind for kind, _ in verdicts.values())
    with capsys.disabled():
        print(
            f"\nONNX node tests: {counts['right']} right, {counts['passed through']} passed through, "
            f"{counts['refused']} refused, {counts['large']} too large to evaluate, {counts['wrong']} wrong"
        )
    assert {name: why for name, (kind, why) in verdicts.items() if kind == "wrong"} == {}
    assert counts["right"] >= 718
    assert all(why and "\n" not in why for kind, why in verdicts.values() if kind in ("passed through", "refused"))
