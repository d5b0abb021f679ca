"""Cases as engines run them: the kept program, and the standard forms worth running."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx_building import build, node

from einnet_evaluation import bench_cases
from einnet_evaluation.bench_cases import (
    describe_operators,
    moved_bytes,
    random_inputs_of,
    split_inputs,
    standard_forms,
)
from einnet_evaluation.engines import DIRECT, OURS, Engine, Task, prepare
from einnet_evaluation.rivals import ORT
from einnet_explore.ir import Program
from einnet_explore.onnx_import.load import load_model
from einnet_explore.operators import expressions as ops
from einnet_explore.pipeline import tuning_task
from einnet_explore.pipeline.tuning_context import program_model
from einnet_explore.runtime.arrays import Arrays
from einnet_explore.runtime.profile_store import ProfileKey
from einnet_explore.syntax import text

FEW = ops.conv2d(H=40, W=40, C=16, F=1, R=5, S=5, layout="NCHW", padding=2)
TINY = ops.conv2d(H=6, W=6, C=4, F=2, R=3, S=3, layout="NCHW", padding=1)
SMALL = ops.matmul(6, 5, 4)


def arrays(program: Program) -> tuple[Arrays, Arrays]:
    return split_inputs(program, random_inputs_of(program))


def test_moved_bytes_count_reads_and_writes() -> None:
    weight = np.ones((4, 5), np.float32)
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    model = load_model(build(nodes, {"x": [6, 4]}, ["y"], {"w": weight}))
    assert moved_bytes(model) == 4 * (6 * 4 + 4 * 5 + 2 * 6 * 5 + 2 * 6 * 5)
    # What is made of weights alone is there before the first run.
    folded = [node("Relu", ["w"], ["v"]), node("Relu", ["v"], ["u"]), node("MatMul", ["x", "u"], ["y"])]
    assert moved_bytes(load_model(build(folded, {"x": [6, 4]}, ["y"], {"w": weight}))) == 4 * (
        6 * 4 + 4 * 5 + 2 * 6 * 5
    )


def test_forms_that_write_every_window_are_excluded() -> None:
    found = standard_forms(FEW, arrays(FEW)[1], 1)
    assert describe_operators(found[0][0]).startswith("Conv2d(") and len(found) < len(
        list(bench_cases.library_forms(FEW))
    )
    windows = 4 * 40 * 40 * 16 * 25
    assert all(moved_bytes(model) < 2 * windows for _, model in found)
    assert moved_bytes(load_model(program_model(FEW, arrays(FEW)[1]))) > 2 * windows  # as it is written


def test_forms_with_similar_estimates_are_kept() -> None:
    """Standard operators have no windows of a band: whatever way it is written, they are gathered."""
    band = ops.g2bmm(1, 64, 4, 8, 1)
    assert len(standard_forms(band, arrays(band)[1], 1)) == len(list(bench_cases.library_forms(band)))


def test_case_without_a_standard_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(bench_cases, "program_model", never)
    with pytest.raises(ValueError, match="found nothing in standard operators: MemoryError"):
        standard_forms(SMALL, {}, 1)


def test_much_slower_form_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    band = ops.g2bmm(1, 64, 4, 8, 1)
    path = tmp_path / "band.ein"
    path.write_text(text(band))
    takes = (1.0, 2.0, 9.0, 0.5)  # of the second way, the first, the others
    seen: list[object] = []
    runs = [0] * len(takes)

    def sample(self: Engine, repeats: int, warm: bool = True) -> float:
        if all(call is not self.call for call in seen):
            seen.append(self.call)
        n = next(n for n, call in enumerate(seen) if call is self.call)
        runs[n] += repeats + warm
        return takes[n] * repeats

    monkeypatch.setattr(Engine, "sample", sample)
    made = prepare(Task(str(path), ORT, 1))
    assert seen[3] is made.call and len(seen) == 4
    assert runs[2] == 1 and min(runs[:2]) > 1


@pytest.mark.parametrize(
    ("before", "after", "overhead"), [(9.0, 1.0, 0.0), (1.0, 9.0, 0.0), (9.0, 8.0, 0.0), (9.0, 8.0, 2.0)]
)
def test_kept_program_is_the_fastest(
    before: float, after: float, overhead: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A contest as for a part of a model, with times that are said; the original is a session, the candidate is not."""
    path = tmp_path / "tiny.ein"
    path.write_text(text(TINY))
    ran: list[str] = []

    def times(
        _: object, keys: dict[str, ProfileKey], calls: dict[str, Callable[[], Arrays]], displace: None
    ) -> dict[str, float]:
        ran.extend(keys)
        outputs = [call() for call in calls.values()]
        assert {made["Y"].shape for made in outputs} == {(1, 2, 6, 6)}
        return {name: before if name == "original" else after for name in calls}

    monkeypatch.setattr(tuning_task, "_time", lambda *_: 9.0)
    monkeypatch.setattr(tuning_task, "_times", times)
    monkeypatch.setattr(tuning_task, "session_overhead", lambda _: overhead)
    made = prepare(Task(str(path), OURS, 1, max_depth=1, budget=0.1))
    assert ran[0] == "original" and len(ran) > 1
    is_faster = after < before - overhead
    assert (", proved); " in made.said) is is_faster
    assert made.said.endswith(" (0 steps: the original)") is not is_faster
    want = prepare(Task(str(path), DIRECT, 1), made.feeds)
    np.testing.assert_allclose(made.outputs["Y"], want.outputs["Y"], rtol=1e-4, atol=1e-4)
    assert made.feeds.keys() == {"A", "K"} and made.sample(2) > 0


def test_candidate_estimated_far_above_the_original_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.ein"
    path.write_text(text(TINY))
    monkeypatch.setattr(tuning_task, "_time", lambda *_: 1e-9)
    monkeypatch.setattr(tuning_task.TuningTask, "_compile", lambda *_: pytest.fail("it was compiled"))
    made = prepare(Task(str(path), OURS, 1, max_depth=1, budget=0.1))
    assert made.said.startswith("Conv2d(") and made.said.endswith(" (0 steps: the original)")


def test_original_is_generated_if_no_standard_form_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small.ein"
    path.write_text(text(SMALL))
    monkeypatch.setattr(bench_cases, "program_model", lambda *_: (_ for _ in ()).throw(ValueError("no such operator")))
    monkeypatch.setattr(tuning_task, "_time", lambda *_: 1e-9)
    made = prepare(Task(str(path), OURS, 1, max_depth=1, budget=0.1))
    assert made.said == "its equations as they are (0 steps: the original)"
    with pytest.raises(ValueError, match="found nothing in standard operators: no such operator"):
        prepare(Task(str(path), ORT, 1))
