"""Ranges of sizes: independence of dimensions, chunks of plans, and what runs each size."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx_building import build, node
from onnx_building import run as infer

import einnet_explore as ee
from einnet_explore.analysis.batches import BatchAxis
from einnet_explore.cli import main
from einnet_explore.cli.optimize import _write_model
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import ModelError
from einnet_explore.onnx_import.size_ranges import are_single, read_ranges
from einnet_explore.pipeline import optimised_sizes as result_module
from einnet_explore.pipeline import size_optimiser as module
from einnet_explore.pipeline.batch_independence import prove_independence
from einnet_explore.pipeline.optimisation import OptimiserOptions
from einnet_explore.pipeline.optimised import ORIGINAL_EXPORT, ExportedFile, Optimised
from einnet_explore.pipeline.optimised_sizes import Chunks, cheapest_chunks
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.plan import build_plan
from einnet_explore.pipeline.size_dispatch import Chunking, dispatch_sizes
from einnet_explore.pipeline.size_optimiser import SizeOptimiser
from einnet_explore.runtime.measurement import Timing
from einnet_explore.support.errors import Refused
from tests.optimising_kit import SHORT, model, nothing_remembered, transposed

forgetting = pytest.fixture(autouse=True)(nothing_remembered)


def w(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def proved(proto: onnx.ModelProto, shape: tuple[int, ...], counts: tuple[int, int] = (1, 3), axis: int = 0) -> Any:
    """The independence of input x of *shape* along *axis*."""
    sized = [(*shape[:axis], n, *shape[axis:]) for n in counts]
    one, other = (load_model(proto, {"x": each}) for each in sized)
    return prove_independence((one, other), {"x": axis}, counts)


INDEPENDENT = {
    "convolution": ([node("Conv", ["x", "k"], ["y"], pads=[1, 1, 1, 1])], {"k": w(3, 4, 3, 3)}, (4, 9, 8)),
    "merged with tokens": (
        [
            node("Reshape", ["x", "flat"], ["f"]), node("MatMul", ["f", "k"], ["m"]), node("Relu", ["m"], ["r"]),
            node("Reshape", ["r", "back"], ["y"]),
        ],
        {"flat": np.array([-1, 8]), "back": np.array([-1, 4, 6, 2]), "k": w(8, 16)},
        (6, 8),
    ),
    "attention": (
        [
            node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), node("MatMul", ["x", "t"], ["s"]),
            node("Softmax", ["s"], ["p"], axis=-1), node("MatMul", ["p", "x"], ["y"]),
        ],
        {},
        (5, 4),
    ),
    "class token": (
        [
            node("Shape", ["x"], ["s"], end=1), node("Concat", ["s", "one"], ["e"], axis=0),
            node("Expand", ["token", "e"], ["c"]), node("Concat", ["c", "x"], ["y"], axis=1),
        ],
        {"token": w(1, 1, 4), "one": np.array([1, 4])},
        (5, 4),
    ),
    "logic and lookups": (
        [
            node("Cast", ["x"], ["n"], to=TensorProto.INT64), node("Abs", ["n"], ["a"]),
            node("Mod", ["a", "rows"], ["i"]),
            node("Gather", ["table", "i"], ["g"]), node("ArgMax", ["g"], ["m"], axis=2, keepdims=0),
            node("Equal", ["m", "rows"], ["q"]), node("Not", ["q"], ["o"]),
            node("Cast", ["o"], ["y"], to=TensorProto.FLOAT),
        ],
        {"table": w(4, 3), "rows": np.array(4)},
        (5,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INDEPENDENT)
def test_batches_are_proved_independent_also_where_they_are_merged(name: str) -> None:
    nodes, weights, shape = INDEPENDENT[name]
    found = proved(build(nodes, {"x": ["n", *shape]}, ["y"], weights), shape)
    assert found.inputs == {"x": 0} and found.outputs["y"].axis == 0
    proved(build(nodes, {"x": ["n", *shape]}, ["y"], weights), shape, (2, 5))


DEPENDENT = {
    "reverse": ([node("Slice", ["x", "last", "first", "axis", "back"], ["y"])], "outside the element b1 of the batch"),
    "mean": ([node("ReduceMean", ["x", "axis"], ["y"])], "one for all elements of x"),
    "softmax": ([node("Softmax", ["x"], ["y"], axis=0)], "one for all elements|outside the element"),
    "attention": (
        [node("Transpose", ["x"], ["t"]), node("MatMul", ["x", "t"], ["s"]), node("MatMul", ["s", "x"], ["y"])],
        r"s has shapes \[1, 1\] and \[3, 3\]",
    ),
    "first": ([node("Gather", ["x", "zero"], ["f"], axis=0), node("Add", ["x", "f"], ["y"])], "f is one for all"),
    "count": (
        [
            node("Shape", ["x"], ["s"], end=1), node("Cast", ["s"], ["c"], to=TensorProto.FLOAT),
            node("Div", ["x", "c"], ["y"]),
        ],
        "an element of y is .* if there are 1, .* if there are 3",
    ),
    "place": (
        [
            node("Shape", ["x"], ["s"], end=1), node("Squeeze", ["s"], ["e"]),
            node("Range", ["zero_", "e", "one"], ["r"]),
            node("Cast", ["r"], ["c"], to=TensorProto.FLOAT), node("Unsqueeze", ["c", "ones"], ["u"]),
            node("Add", ["x", "u"], ["y"]),
        ],
        "depends on the number of elements",
    ),
    "merge": (
        [node("Transpose", ["x"], ["t"]), node("Reshape", ["t", "flat"], ["f"]), node("Reshape", ["f", "back"], ["y"])],
        "outside the element|expected one dimension|depends on",
    ),
    "topmost": ([node("TopK", ["x", "ones"], ["y", "i"], axis=0)], "depend on one another"),
    "triangle": ([node("Trilu", ["x"], ["y"])], "a condition of y depends on the place in the batch"),
    "unknown": ([node("Hardmax", ["x"], ["y"])], "it has no expression"),
}  # fmt: skip
CONSTANTS = {
    "last": np.array([-1]), "first": np.array([-(2**31)]), "axis": np.array([0]), "back": np.array([-1]),
    "zero": np.array([0]), "zero_": np.array(0), "one": np.array(1), "ones": np.array([1]), "flat": np.array([-1]),
}  # fmt: skip


@pytest.mark.parametrize("name", DEPENDENT)
def test_elements_that_depend_on_others_or_on_the_batch_are_refused(name: str) -> None:
    nodes, why = DEPENDENT[name]
    constants = {**CONSTANTS, "back": np.array([-1, 4]) if name == "merge" else CONSTANTS["back"]}
    used = {i for each in nodes for i in each.input}
    proto = build(nodes, {"x": ["n", 4]}, ["y"], {k: v for k, v in constants.items() if k in used})
    with pytest.raises(Refused, match=why):
        proved(proto, (4,))


def scaled_softmax() -> onnx.ModelProto:
    """Rows of any number, each computed alone; columns are summed over."""
    nodes = [
        node("Exp", ["x"], ["e"]), node("Mul", ["e", "two"], ["b"]), node("Softmax", ["b"], ["p"], axis=-1),
        node("MatMul", ["p", "k"], ["y"]),
    ]  # fmt: skip
    return build(nodes, {"x": ["rows", "columns"]}, ["y"], {"two": np.float32([2]), "k": w(8, 3)})


SECONDS = {1: 1.0, 4: 2.5, 8: 4.5}
"""Seconds of the plan of each size; the original takes two for each row."""


class Untuned(Optimiser):
    """The plan of each size computes the first two nodes by a function, which notes the rows; nothing is tuned."""

    ran: ClassVar[list[int]] = []

    def run(self) -> Iterable[Any]:
        return iter(())

    def result(self) -> Optimised:
        def double(arrays: Mapping[str, Any]) -> dict[str, Any]:
            self.ran.append(len(arrays["x"]))
            return {"b": 2 * np.exp(arrays["x"])}

        rows = (self.model.inputs[0].shape or ())[0]
        seconds = {"before": 2.0 * rows, "after": SECONDS.get(rows, rows)}
        group = tuple(n.name for n in self.model.nodes if {"e", "b"} & {*n.results})
        return Optimised(
            self.model, build_plan(self.model, {group: double}, 1), self.original, (),
            ExportedFile(lambda: ORIGINAL_EXPORT, lambda _: ()), (),
            timings={name: Timing(s, 0, 1, (s,)) for name, s in seconds.items()}, errors=(0.0, 0.0), max_error=1e-4,
            search_seconds=0.0, folded_weights=0, fused_eoperators=0, threads=1,
        )  # fmt: skip


@pytest.fixture
def chunks_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Optimiser", Untuned)
    times = {"before": Timing(10.0, 0, 1, (10.0,)), "after": Timing(5.0, 0, 1, (5.0,))}
    monkeypatch.setattr(module, "time_calls", lambda *_, **__: times)
    Untuned.ran.clear()


def test_sizes_between_the_tuned_ones_run_in_the_cheapest_chunks_and_others_by_the_original(
    chunks_are_faster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = scaled_softmax()
    fast = ee.optimize(proto, shapes={"x": (range(1, 9), 8)}, threads=1)
    assert [fast.choices[n,].chunks for n in range(1, 9)] == [
        ((1,),), ((1,), (1,)), ((4,),), ((4,),), ((4,), (1,)), ((8,),), ((8,),), ((8,),),
    ]  # fmt: skip
    fast.save_bundle(tmp_path / "bundle")
    assert json.loads((tmp_path / "bundle" / "manifest.json").read_text())["chunks"] == [
        {
            "shapes": {"x": [2, 8]},
            "dimensions": {"x": 0},
            "sizes": {"2": [1, 1], "3": [4], "5": [4, 1], "6": [8], "7": [8]},
        }
    ]
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(tmp_path / "bundle" / "kernels.so"))
    bundle = onnxruntime.InferenceSession(str(tmp_path / "bundle" / "model.onnx"), options)
    for n in (*range(1, 10), 40):
        x, Untuned.ran[:] = w(n, 8), []
        want = infer(proto, {"x": x})["y"]
        np.testing.assert_allclose(fast(x=x)["y"], want, 1e-5, 1e-6)
        assert Untuned.ran == [size for (size,) in fast.choices[n,].chunks] if n < 9 else Untuned.ran == []
        np.testing.assert_allclose(bundle.run(None, {"x": x})[0], want, 1e-5, 1e-6)
    slower = {sizes: replace(choice, chunks=choice.chunks * (sizes != (5,))) for sizes, choice in fast.choices.items()}
    written: list[Chunking] = []
    monkeypatch.setattr(result_module, "write_bundle", lambda *_, chunkings: written.extend(chunkings))
    replace(fast, choices=slower).save_bundle(tmp_path / "other")
    assert [[*each.chunks] for each in written] == [[2, 3, 6, 7]]  # 5 was measured to be slower
    report = json.loads(json.dumps(fast.report()))
    assert report["dimensions"][0]["independent"] == [{"others": [], "proved": [*range(1, 9)]}]
    assert [len(each["plans"]) for each in report["sizes"]] == [1, 2, 1, 1, 2, 1, 1, 1]
    assert "sizes run by plans of their own: 3, in chunks: 5, by the original: 0 (3 sizes tuned)" in fast.conclusions()
    assert ["5", "10000.000 ms", "5000.000 ms", "2.00", "plans of 4 + 1"] in fast.rows()
    with pytest.raises(ValueError, match=r"input x has shape \(8,\), expected \(rows, columns\)"):
        fast(x=np.zeros(8))
    with pytest.raises(ValueError, match="input x is missing, expected x"):
        fast()


@pytest.mark.parametrize(("after", "chunks"), [(1.0, ((1,),) * 8), (5.0, ((8,),))])
def test_a_tuned_size_runs_in_chunks_of_a_smaller_one_if_these_are_measured_to_be_faster(
    chunks_are_faster: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, after: float, chunks: Chunks
) -> None:
    monkeypatch.setitem(SECONDS, 1, 0.25)  # the plan of 8 takes 4.5
    times = {"before": Timing(10.0, 0, 1, (10.0,)), "after": Timing(after, 0, 1, (after,))}
    monkeypatch.setattr(module, "time_calls", lambda *_, **__: times)
    proto = scaled_softmax()
    fast = ee.optimize(proto, shapes={"x": ([1, 8], 8)}, threads=1)
    assert fast.choices[8,].chunks == chunks
    x = w(8, 8)
    Untuned.ran.clear()
    np.testing.assert_allclose(fast(x=x)["y"], infer(proto, {"x": x})["y"], 1e-5, 1e-6)
    assert Untuned.ran == [size for (size,) in chunks]
    fast.save_bundle(tmp_path / "bundle")
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert [each["sizes"] for each in manifest.get("chunks", [])] == [{"8": [1] * 8}] * (len(chunks) > 1)


def test_chunks_that_differ_from_the_original_or_are_slower_are_not_used(
    chunks_are_faster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"x": ([1, range(4, 9)], 8)}
    with monkeypatch.context() as patch:
        patch.setattr(module, "differences", lambda *_: (1.0, 1.0))
        fast = ee.optimize(scaled_softmax(), shapes=shapes, threads=1)
    assert [n for (n,) in fast.choices if not fast.choices[n,].chunks] == [5, 6, 7]
    assert "outputs differ by 1.0e+00 of the largest at rows = " in fast.dependent["rows"]
    times = {"before": Timing(1.0, 0, 1, (1.0,)), "after": Timing(2.0, 0, 1, (2.0,))}
    monkeypatch.setattr(module, "time_calls", lambda *_, **__: times)
    assert not ee.optimize(scaled_softmax(), shapes=shapes, threads=1).choices[5,].chunks


def test_sizes_share_the_budget_and_after_an_interrupt_others_run_in_chunks(chunks_are_faster: None) -> None:
    work, stopped = (
        SizeOptimiser(scaled_softmax(), read_ranges(scaled_softmax(), {"x": (range(1, 9), 8)}), SHORT, 30.0)
        for _ in range(2)
    )
    work.prepare()
    assert not [*work.run()] and [round(each.budget or 0.0) for each in work.works] == [10, 15, 30]
    stopped.prepare()
    stopped.results.append(stopped.works[0].result())
    stopped.interrupted = True
    fast = stopped.result()
    assert set(fast.plans) == {(1,), (8,)} and fast.choices[4,].chunks == ((1,),) * 4
    assert fast.conclusions()[-1].endswith("found by then; 1 size not tuned. A second run continues")


def test_a_range_without_gain_says_what_was_not_tuned_and_shows_no_times_that_were_not_measured() -> None:
    work = SizeOptimiser(scaled_softmax(), read_ranges(scaled_softmax(), {"x": (range(1, 9), 8)}), SHORT, 30.0)
    work.prepare()
    work.results.append(work.works[0].result())
    late = replace(work.results[0], untuned=(("Exp_0",),))
    nothing = work._choose(replace(work.result(), plans={(1,): late}, dimensions=()))
    assert nothing.conclusions()[0].startswith("nothing gained")
    assert nothing.conclusions()[-1] == "1 subprogram not tuned: repeat with budget=60, which continues"
    stopped = replace(nothing, interrupted=True)
    assert stopped.conclusions()[-1].endswith("; 2 sizes not tuned. A second run continues")
    assert nothing.rows()[-1] == ["8", "", "", "", "the original (not measured)"]
    last = json.loads(json.dumps(nothing.report()))["sizes"][-1]
    assert last["seconds_before"] is last["seconds_after"] is None and last["speedup"] == 1.0


def test_subprograms_that_gained_at_another_size_come_first() -> None:
    work = Optimiser(model(transposed()), SHORT)
    first, *others = [whole.nodes for whole in work.most_valuable_first()]
    work.gained_elsewhere = [others[-1]]
    assert work.most_valuable_first()[0].nodes == others[-1] != first


def test_chunks_of_several_dimensions_and_inputs_run_in_one_model(chunks_are_faster: None) -> None:
    """Softmax sums over columns; the second output has the rows last.  Fixed sizes fold the branches."""
    nodes = [
        node("Exp", ["x"], ["e"]), node("Mul", ["e", "two"], ["b"]), node("Softmax", ["b"], ["p"], axis=-1),
        node("Add", ["p", "z"], ["y"]), node("ReduceSum", ["y", "axes"], ["s"], keepdims=0),
        node("Transpose", ["y"], ["t"]),
    ]  # fmt: skip
    constants = {"two": np.float32([2]), "axes": np.array([1])}
    proto = build(nodes, {"x": ["rows", "columns"], "z": ["rows", 1]}, ["s", "t"], constants)
    fast = ee.optimize(proto, shapes={"x": (range(1, 7), [3, range(5, 7)])}, threads=1)
    assert {each.number for each in fast.dimensions} == {0} and "Softmax" in fast.dependent["columns"]
    parts = [({v.name: v.shape or () for v in each.model.inputs}, each.model.original) for each in fast.plans.values()]
    chunkings = fast.chunkings({sizes: choice.chunks for sizes, choice in fast.choices.items()})
    assert len(chunkings) == 3 and chunkings[0].independence.outputs["t"] == BatchAxis(1)
    joined = dispatch_sizes(fast.model, parts, chunkings).SerializeToString()
    session = onnxruntime.InferenceSession(joined, providers=["CPUExecutionProvider"])
    for rows, columns in product((1, 2, 3, 5, 7), (3, 4, 5)):
        feeds = {"x": w(rows, columns), "z": w(rows, 1)}
        want, mine = infer(proto, feeds), fast(**feeds)
        options = onnxruntime.SessionOptions()
        for name, size in (("rows", rows), ("columns", columns)):
            options.add_free_dimension_override_by_name(name, size)
        fixed = onnxruntime.InferenceSession(joined, options, providers=["CPUExecutionProvider"])
        for name, got, again in zip(("s", "t"), *(s.run(["s", "t"], feeds) for s in (session, fixed)), strict=True):
            np.testing.assert_allclose(got, want[name], 1e-5, 1e-6)
            np.testing.assert_allclose(again, want[name], 1e-5, 1e-6)
            np.testing.assert_allclose(mine[name], want[name], 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("seconds", "most", "chunks"),
    [
        ({2: 1.0}, 5, [(), (2,), (2,), (2, 2), (2, 2), (2, 2, 2)]),
        ({1: 1.0, 3: 1.5}, 4, [(), (1,), (3,), (3,), (3, 1)]),
    ],
)
def test_chunks_take_the_least_time(seconds: dict[int, float], most: int, chunks: list[tuple[int, ...]]) -> None:
    assert [each for _, each in cheapest_chunks(most, seconds)] == chunks


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (range(1, 4), 8)}, "shape x, dimension 0: found sizes 1..3, expected 2, which the model fixes"),
        ({"x": (2, range(0, 4))}, "dimension 1: found size 0, expected at least 1"),
        ({"x": (2, [])}, "dimension 1: found no size, expected at least 1"),
        ({"x": (2, range(1, 10**15))}, "dimension 1: found 999999999999999 sizes, expected at most 4096"),
        ({"x": (range(1, 90), range(1, 90))}, "found 7921 combinations of sizes, expected at most 4096"),
        ({"x": (2, [*range(1, 20)])}, "found 19 combinations of sizes to tune of n .1..19., expected at most 9"),
        (
            {"x": (2, range(1, 4)), "z": (4,)},
            r"shape z, dimension 0 \(n\): found 4, expected 1..3, its sizes in another input",
        ),
        ({"x": (2, range(1, 4)), "z": ([4, 5],)}, r"shape z, dimension 0 \(n\): found 4, 5, expected 1..3"),
    ],
)
def test_bad_ranges_are_refused_with_the_sizes(shapes: Any, message: str) -> None:
    rows = "m" if "combinations of sizes, " in message else 2
    proto = build([node("Add", ["x", "z"], ["y"])], {"x": [rows, "n"], "z": ["n"]}, ["y"])
    with pytest.raises(ModelError, match=message):
        read_ranges(proto, shapes)


def test_ranges_are_tuned_at_their_ends_and_in_the_middle_and_lists_at_each_size() -> None:
    proto = build([node("Add", ["x", "z"], ["y"])], {"x": [2, "n"], "z": ["n"]}, ["y"])
    assert are_single({"x": (2, np.int64(3))})
    for sizes, tuned in ((range(1, 9), (1, 4, 8)), ([2, 3, 7], (2, 3, 7)), ([range(1, 65), 100], (1, 8, 64, 100))):
        ranges = read_ranges(proto, {"x": (2, sizes)})
        assert sorted(size for (size,) in ranges.tuned) == list(tuned) and ranges.tuned[:2] == (
            (tuned[0],),
            (tuned[-1],),
        )
        assert ranges.at({"x": (2, 1), "z": (1,)}, (5,)) == {"x": (2, 5), "z": (5,)}


def test_a_file_of_one_size_says_so(
    chunks_are_faster: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Optimised, "onnx_bytes", lambda _: b"")
    work = Untuned(load_model(scaled_softmax(), {"x": (4, 8)}), OptimiserOptions(threads=1, max_depth=1).settings)
    for rewrites, said in ((), "the original model"), (("one",), "its inputs have these sizes only: x [4, 8]; a range"):
        _write_model(
            str(tmp_path / "out.onnx"),
            replace(work.result(), file=ExportedFile(lambda: ORIGINAL_EXPORT, lambda _, made=rewrites: made)),
        )
        assert f"out.onnx: {said}" in capsys.readouterr().err


def test_the_command_takes_a_range(chunks_are_faster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "m.onnx")
    onnx.save(scaled_softmax(), file)
    written = ["-o", str(tmp_path / "out.onnx"), "--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
    assert main(["optimize", file, "--shape", "x=1..4+8,8", "--threads", "1", *written]) == 0
    assert "rows: the model is independent in each element, proved at 1, 2, 3, 4, 8" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["dimensions"][0]["tuned"] == [1, 2, 4, 8]
    assert main(["equal", file, file, "--shape", "x=1..4,8"]) == 2
    assert "found several sizes of a dimension, expected one: ranges are for optimize" in capsys.readouterr().err
    assert main(["optimize", file, "--shape", "x=4..1,8"]) == 2
    assert "--shape x=4..1,8: found the empty range 4..1, expected the smaller size first" in capsys.readouterr().err
    assert main(["optimize", file, "--shape", "x=1-4,8"]) == 2
    assert "or 1..8 or 1+4+16 for the sizes of a dimension" in capsys.readouterr().err
