"""All backend tests of ONNX through import, derivation, compilation and export.

Each test runs unchanged, and again with its typical parameters (lists of integers, flags, axes) as weights.  Tuning
times are drawn at random (see ``graphs``), so derived programs usually win.  The plan, and the exported file in ONNX
Runtime, must have the outputs that ONNX expects.  Tests that ONNX Runtime itself fails (operators and types that it
lacks) are counted separately; a test that we refuse and ONNX Runtime runs is a finding.
"""

from __future__ import annotations

import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.soak.graphs import QUICK, Lots, _session, where
from benchmarks.soak.outcome import Outcome
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import ModelError
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.runtime.arrays import largest_error
from einnet_explore.support.errors import Refused

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@cache
def cases() -> list[Any]:
    """The tests that ship with ONNX."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for kind in KINDS for case in load_model_tests(kind=kind)]


def total() -> int:
    """Return the number of items: each test twice."""
    return 2 * len(cases())


def item(number: int, n: int) -> Outcome:
    """Test *n* // 2; odd ones with their parameters known."""
    outcome = Outcome()
    case = cases()[n // 2]
    model, arrays, expected = _loaded(case)
    shown = f"{case.name}{' with parameters known' if n % 2 else ''}"
    if n % 2:
        model, arrays = with_parameters_known(model, arrays)
        if len(arrays) == len(model.graph.input) == len(_loaded(case)[1]):
            return outcome  # it has none: it was seen as it stands
    feeds = {v.name: a for v, a in zip(model.graph.input, arrays, strict=False)}
    outcome.counts["tests"] += 1
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            _examined(model, feeds, expected, case, Path(folder), number, outcome, shown)
        except Exception as error:
            outcome.found("traceback", error, shown, where(error))
    for warning in said:
        if "search failed" in str(warning.message):
            outcome.found("warning", warning.message, shown)
    return outcome


def with_parameters_known(model: onnx.ModelProto, arrays: list[Any]) -> tuple[onnx.ModelProto, list[Any]]:
    """Integers, flags and lists of a few numbers behind the first input become weights."""
    known = onnx.ModelProto()
    known.CopyFrom(model)
    known.ir_version = max(known.ir_version, 4)  # before, weights had to be inputs too
    inputs, kept = list(known.graph.input), []
    del known.graph.input[:]
    for n, (value, array) in enumerate(zip(inputs, arrays, strict=False)):
        few = isinstance(array, np.ndarray) and (array.dtype.kind in "iub" or (array.ndim < 2 and array.size < 9))
        if n and few and array.dtype != object:
            known.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            known.graph.input.append(value)
            kept.append(array)
    return known, kept


def _loaded(case: Any) -> tuple[onnx.ModelProto, list[Any], list[Any]]:
    if case.model is not None:
        arrays, expected = case.data_sets[0]
        return case.model, list(arrays), list(expected)
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    data = folder / "test_data_set_0"

    def read(kind: str) -> list[Any]:
        files = sorted(data.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.rsplit("_", 1)[1]))
        return [numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())) for path in files]

    weights = {w.name for w in model.graph.initializer}
    if weights and len(model.graph.input) > len(read("input")):
        kept = [v for v in model.graph.input if v.name not in weights]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        model.ir_version = max(model.ir_version, 4)
    return model, read("input"), read("output")


def _examined(
    proto: onnx.ModelProto, feeds: dict[str, Any], expected: list[Any], case: Any, folder: Path, number: int,
    outcome: Outcome, shown: str,
) -> None:  # fmt: skip
    names = [v.name for v in proto.graph.output]
    try:
        there = _session(proto).run(names, {k: v for k, v in feeds.items() if k})
    except Exception:
        outcome.counts["tests that ONNX Runtime does not run"] += 1
        return
    if not _agree(there, expected, case):
        outcome.counts["tests that ONNX Runtime answers otherwise"] += 1
        return
    try:
        shapes = {k: np.shape(v) for k, v in feeds.items() if isinstance(v, np.ndarray)}
        model = load_model(proto, {k: s for k, s in shapes.items() if _open(proto, k)})
        work = Optimiser(model, QUICK, store=Lots(folder / "none" / "profiles", number))
        work.prepare()
    except (ModelError, Refused) as error:
        why = str(error).partition(": ")[2]
        outcome.counts["tests refused: " + _kind(why)] += 1
        outcome.counts["tests refused"] += 1
        return
    list(work.run())
    pieces = work.selector().pieces(n for n, part in enumerate(work.parts) if part.kept)
    if not pieces:
        outcome.counts["tests passed through"] += 1
        held = work.original.run(feeds)
        if not _agree([held[k] for k in names], expected, case):
            outcome.found("original", "the plan of the original differs", shown)
        return
    assembled = work.assembler.together(pieces)
    outcome.counts["tests with derived programs"] += 1
    for what, make in (("plan", work.assembler.plan), ("export", work.assembler.export)):
        try:
            got = make(assembled).run(feeds)
        except Refused:
            if what == "plan":
                raise
            outcome.counts["exports refused"] += 1  # such as values of two types in one program
            continue
        if not _agree([got[k] for k in names], expected, case):
            worst = [largest_error({"it": w}, {"it": got[k]}) for k, w in zip(names, expected, strict=True)]
            outcome.found(what, f"differs by {max(worst):.1e} of the largest output", shown)


def _agree(got: list[Any], expected: list[Any], case: Any) -> bool:
    return all(_near(one, other, case) for one, other in zip(got, expected, strict=True))


def _near(got: Any, want: Any, case: Any) -> bool:
    match want:
        case None:
            return got is None
        case list() | tuple():
            return isinstance(got, list) and len(got) == len(want) and all(map(_near, got, want, [case] * len(want)))
        case _:
            want, got = np.asarray(want), np.asarray(got)
    if got.shape != want.shape:
        return False
    if want.dtype.kind != "f":
        return bool(np.array_equal(got, want))
    return bool(
        np.allclose(got.astype(float), want.astype(float), max(case.rtol, 1e-3), max(case.atol, 1e-6), equal_nan=True)
    )


def _open(proto: onnx.ModelProto, name: str) -> bool:
    for value in proto.graph.input:
        if value.name == name and value.type.HasField("tensor_type"):
            tensor = value.type.tensor_type
            return not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim)
    return False


def _kind(why: str) -> str:
    """A refusal without its names and numbers."""
    for part in (
        "dimension of size 0",
        "no dimension",
        "dynamic shapes",
        "found type",
        "static dimensions",
        "refuses",
        "NaN",
    ):
        if part in why:
            return part
    return why[:80]
