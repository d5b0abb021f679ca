"""Time budgets of searches and samples on a busy machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from time import sleep

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.codegen.register_tiles import this_machine
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline import candidate_race
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.tuning_order import ExpectedGains
from einnet_explore.runtime import measurement
from einnet_explore.runtime.program import BoundProgram, ExecutionContext
from einnet_explore.support import limits
from einnet_explore.syntax import parse


def ticking(*times: float) -> Callable[[], float]:
    """A clock that says *times*, one after the other."""
    left = iter(times)
    return lambda: next(left)


@pytest.mark.parametrize(("worked", "passed", "seconds"), [(1.0, 2.0, 1.0), (1.0, 9.0, 3.0), (4.0, 4.0, 4.0)])
def test_search_counts_processor_time_and_at_least_a_third_of_wall_time(
    monkeypatch: pytest.MonkeyPatch, worked: float, passed: float, seconds: float
) -> None:
    monkeypatch.setattr(limits, "perf_counter", ticking(10.0, 10.0 + passed))
    monkeypatch.setattr(limits, "thread_time", ticking(5.0, 5.0 + worked))
    assert limits.WorkClock().seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("worked", "passed", "waits", "seconds"),
    [
        (1.0, 4.0, 0, 1.0),  # others had the core
        (1.0, 400.0, 0, 1.0),  # for long
        (1.0, 4.0, 1, 1.0),  # it also waited a little
        (8.0, 4.0, 9, 4.0),  # two threads
        (0.0, 4.0, 1, 4.0),  # it waited for a device
    ],
)
def test_sample_is_processor_time_within_wall_time(
    monkeypatch: pytest.MonkeyPatch, worked: float, passed: float, waits: int, seconds: float
) -> None:
    monkeypatch.setattr(measurement, "perf_counter", ticking(0.0, passed))
    monkeypatch.setattr(measurement, "process_time", ticking(0.0, worked))
    monkeypatch.setattr(measurement, "_count_waits", iter((7, 7 + waits)).__next__)
    monkeypatch.setattr(measurement, "WARM_CACHE_SECONDS", 0.0)
    assert measurement.sample_seconds(lambda: None, 1) == pytest.approx(seconds)


def test_a_call_that_sleeps_waits_and_one_that_computes_does_not() -> None:
    assert measurement.sample_seconds(partial(sleep, 0.03), 1) >= 0.03
    before = measurement._count_waits()
    sleep(0.001)
    assert measurement._count_waits() > before


@pytest.mark.parametrize(("caches", "repeats", "calls"), [(0.0, 1, 1), (float("inf"), 1, 2), (0.0, 3, 4)])
def test_a_sample_is_warm_unless_one_call_is_long(
    monkeypatch: pytest.MonkeyPatch, caches: float, repeats: int, calls: int
) -> None:
    monkeypatch.setattr(measurement, "WARM_CACHE_SECONDS", caches)
    number = count()
    measurement.sample_seconds(lambda: next(number), repeats)
    assert next(number) == calls


def test_a_sample_may_displace_what_a_call_left_in_the_caches() -> None:
    made: list[str] = []
    measurement.sample_seconds(partial(made.append, "call"), 3, displace=partial(made.append, "displace"))
    assert made == ["call", *["displace", "call"] * 3]


def test_a_run_is_timed_near_its_inputs_and_its_last_results() -> None:
    read: list[str] = []

    class Noted(np.ndarray):
        def max(self, *_: object, **__: object) -> int:  # type: ignore[override]
            read.append("result" if self.size == 2 else "input")
            return 0

    results = [np.zeros(2, np.float32).view(Noted) for _ in range(2)]
    left = iter(results)
    run = candidate_race.RecalledRun(lambda: {"y": next(left)}, {"x": np.zeros(3, np.float32).view(Noted)})
    run.recall_after(lambda: read.append("others"))
    assert read == ["others", "input"] and run()["y"] is results[0]
    run.recall_after(lambda: read.append("others"))
    assert read[2:] == ["others", "result", "input"] and run()["y"] is results[1]
    # A bound program also has results between, in the same memory as the last ones.
    context = ExecutionContext({"x": np.zeros(3).view(Noted)}, {"y": np.zeros(1)}, (), np.zeros(2).view(Noted))
    bound = candidate_race.RecalledRun(BoundProgram(context), {})
    bound()
    bound.recall_after(lambda: read.append("others"))
    assert read[5:] == ["others", "result", "input"]


def test_normalisations_and_attention_are_expected_to_gain_more_than_products() -> None:
    product = parse("tensor A[64, 64]\ntensor B[64, 64]\nY[m:64, n:64] = sum[k:64] A[m, k] * B[k, n]")
    mean = parse("tensor A[64, 64]\nM[m:64] = sum[n:64] A[m, n]\nY[m:64, n:64] = A[m, n] - M[m]")
    window = parse("tensor A[70, 64]\ntensor B[7, 64, 64]\nY[m:64, n:64] = sum[k:64, r:7] A[m + r, k] * B[r, k, n]")
    joined = parse(
        "tensor A[64, 64]\ntensor B[64, 64]\ntensor C[64, 64]\nY[m:64, n:64] = sum[k:64] A[m, k] * B[k, n]"
        "\nZ[m:64, n:64] = sum[k:64] A[m, k] * C[k, n]\noutput Y, Z"
    )
    gains = ExpectedGains()
    assert gains.expected(product) == gains.expected(joined) < gains.expected(window) < gains.expected(mean)
    assert gains.expected(product) == gains.expected(mean, True) == gains.expected(window, True)
    gains.note(product, 0.9)
    assert gains.expected(product) > gains.expected(window)


def test_weights_that_others_read_displace_those_of_a_subprogram() -> None:
    side = 1 << 10
    nodes = [helper.make_node("MatMul", ["x", "v"], ["y"]), helper.make_node("Gather", ["w", "i"], ["z"])]
    kinds = {"x": TensorProto.FLOAT, "i": TensorProto.INT64, "y": TensorProto.FLOAT, "z": TensorProto.FLOAT}
    values = [
        helper.make_tensor_value_info(name, kind, [4] if name == "i" else [4, side]) for name, kind in kinds.items()
    ]
    held = [numpy_helper.from_array(np.zeros((side, side), np.float32), name) for name in ("v", "w")]
    graph = helper.make_graph(nodes, "two", values[:2], values[2:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    work = Optimiser(load_model(model), Settings(1))
    (product,) = (each for each in work.subprograms if "MatMul" in each.nodes[0])
    machine = this_machine()
    assert work.tuner.history_key(product)[-1] == (min(4 << 20, machine.l3) if machine.l2 <= 4 << 20 else 0)
