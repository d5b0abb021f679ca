"""Work elsewhere: workers that die cost nothing, budgets by count repeat themselves, limits of memory are kept."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying import dies, dies_once, fails
from onnx_building import build, node

import einnet_explore as ee
from einnet_explore.cli import main
from einnet_explore.cost import CPU_DEFAULT, CostModel, program_seconds
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.optimisation import optimize_model
from einnet_explore.pipeline.remote_tuning import (
    PortableCost,
    SearchRequest,
    answer_request,
    search_on_executor,
    variants_of_reply,
)
from einnet_explore.pipeline.tuning_context import OriginalRun, Settings, TuningContext, TuningHistory
from einnet_explore.pipeline.tuning_task import TuningTask, working_set_bytes
from einnet_explore.pipeline.variants import find_variants
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.session.run import Run, run_search
from einnet_explore.strategies.options import Options
from einnet_explore.support import limits
from einnet_explore.support.executors import (
    MAX_ATTEMPTS,
    ProcessExecutor,
    SerialExecutor,
    connect_cluster,
    executor,
    gather_results,
    has_device,
    iterate_settled,
)
from einnet_explore.support.limits import MEMORY_LIMIT, limit_memory

CONV = ee.ops.conv2d(N=1, H=6, W=5, C=4, F=3, R=3, S=3, padding=1)


def test_a_process_that_dies_costs_its_own_item_one_attempt(tmp_path: Path) -> None:
    with ProcessExecutor(1) as processes:
        futures = [processes.submit(dies_once, str(tmp_path / "mark"), n) for n in range(4)]
        assert gather_results(futures) == [0, 1, 2, 3]
        assert len(processes.pids()) == 1
        with pytest.raises(ValueError, match="no 3"):
            processes.submit(fails, 3).result()
        with pytest.raises(RuntimeError, match=f"dies was given up: {MAX_ATTEMPTS} processes died of it"):
            processes.submit(dies).result()
        assert processes.submit(abs, -2).result() == 2
    assert processes.pids() == []


def test_leaving_in_an_error_ends_processes_that_are_at_work() -> None:
    processes = ProcessExecutor(1)
    going = processes.submit(time.sleep, 600)
    waiting = processes.submit(time.sleep, 600)
    while not processes.pids():
        time.sleep(0.01)
    processes.__exit__(KeyError)
    assert waiting.cancelled() and processes.pids() == []
    with pytest.raises((RuntimeError, CancelledError)):
        going.result()


def test_gathered_results_raise_and_settled_results_repeat_locally() -> None:
    here = SerialExecutor()
    assert gather_results(here.submit(abs, n) for n in (-1, 2)) == [1, 2]
    with pytest.raises(ValueError, match="no 1"):
        gather_results([here.submit(abs, 1), here.submit(fails, 1)])
    with pytest.warns(RuntimeWarning, match="done here again: ValueError: no 7"):
        assert dict(iterate_settled(here, {"a": here.submit(fails, 7), "b": here.submit(abs, -7)})) == {"b": 7}
    assert not has_device(here)


def test_late_results_are_not_awaited() -> None:
    """Late work does not continue during later work, and results from before an interrupt are kept."""
    with ProcessExecutor(1) as processes:
        assert processes.submit(abs, -1).result() == 1  # its process has begun
        futures = {
            "a": processes.submit(abs, -2),
            "b": processes.submit(time.sleep, 600),
            "c": processes.submit(abs, 3),
        }
        assert futures["a"].result() == 2
        came = iterate_settled(processes, futures, 0.5)
        assert next(came) == ("a", 2)
        began = time.perf_counter()
        assert list(came) == [] and time.perf_counter() - began < 60
        assert futures["c"].cancelled() and processes.pids() == []
        with pytest.raises(CancelledError):
            futures["b"].result(timeout=60)
        assert processes.submit(abs, -4).result() == 4
        futures = {"d": processes.submit(time.sleep, 600), "e": processes.submit(abs, 5)}
        left = iterate_settled(processes, futures)
        with pytest.raises(KeyboardInterrupt):
            interrupted(left)
        assert futures["e"].cancelled()


def interrupted(waiting: Any) -> None:
    """Wait for *waiting*, with a Ctrl-C after half a second, which another thread gets: that ends no wait of this.

    Another one comes after ten seconds: a finaliser that happens to run ignores the first.
    """
    timers = [
        threading.Timer(seconds, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
        for seconds in (0.5, 10)
    ]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test before may have left another one
    for timer in timers:
        timer.start()
    try:
        next(waiting)
    finally:
        for timer in timers:
            timer.cancel()
        signal.signal(signal.SIGINT, before)


def test_invalid_executor_arguments_are_refused() -> None:
    with executor() as where:
        assert isinstance(where, SerialExecutor)
    with executor(2) as where:
        assert isinstance(where, ProcessExecutor) and where.pids() == []
    with pytest.raises(ValueError, match="jobs 0: expected 1 or more"):
        ProcessExecutor(0)
    with pytest.raises(ValueError, match="jobs and a cluster: expected one of them"), executor(2, "tcp://a:1"):
        pass
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    with pytest.raises(ValueError, match="found no scheduler"), connect_cluster("tcp://127.0.0.1:9", wait=0.2):
        pass
    with pytest.raises(ValueError, match="found no scheduler"), connect_cluster("nowhere", wait=0.2):
        pass


def test_without_dask_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(ValueError, match=r"expected pip install '.\[cluster\]'"),
        connect_cluster("tcp://a:1"),
    ):
        pass


def test_a_search_bounded_by_states_is_the_same_again() -> None:
    """This includes another process with another hash seed; a limit in seconds would end it elsewhere each time."""
    code = (
        "import json, einnet_explore as ee\n"
        "from einnet_explore.session.run import run_search\n"
        "p = ee.ops.conv2d(N=1, H=6, W=5, C=4, F=3, R=3, S=3, padding=1)\n"
        "print(json.dumps(run_search('c', p, (), None, {}, 60)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": "7"}
    )
    there, report = json.loads(done.stdout), json.loads(json.dumps(run_search("c", CONV, (), None, {}, 60)))
    assert report["unique"] == 60 and not report["complete"] and len(report["candidates"]) > 5
    for each in (there, report):
        each["seconds"], each["first_found"] = None, each["first_found"]["states"]
    assert there == report


def test_a_search_elsewhere_finds_what_it_finds_here(tmp_path: Path) -> None:
    """With the times that the store holds: one of a candidate's calls is said to take nothing."""
    store = ProfileStore(tmp_path / "p.sqlite")
    settings = Settings(max_depth=3, states=40)
    plain = find_variants(CONV, program_seconds, settings).variants
    slow = plain[0].derivation().end.equations
    for equation in slow:
        store.record(ee_key(equation), 1.0, "said")
    model = CostModel(CPU_DEFAULT, store.lookup())
    found_here = find_variants(CONV, lambda p: ((c := model.program_cost(p)).seconds, c.how), settings)
    here = found_here.variants
    assert [e.seconds for e in here] != [e.seconds for e in plain]
    answer = answer_request(SearchRequest(CONV, 1.0, float("inf")), PortableCost.of(CPU_DEFAULT, store, 1), settings)
    found_there = variants_of_reply(CONV, answer)
    there = found_there.variants
    assert found_there.states == found_here.states == 40
    assert [(e.seconds, e.kind) for e in there] == [(e.seconds, e.kind) for e in here]
    chosen = [n for n, sent in enumerate(answer.variants) if sent.steps is not None]
    assert settings.finalists <= len(chosen) < len(there) and not answer.cut
    assert [e.algorithm for e in there] == [e.algorithm for e in here]
    assert [there[n].derivation() for n in chosen] == [here[n].derivation() for n in chosen]
    other = next(n for n in range(len(there)) if n not in chosen)
    with pytest.raises(LookupError, match="was not requested from its worker"):
        there[other].derivation()


def test_a_search_elsewhere_has_the_limit_of_who_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rates = PortableCost.of(CPU_DEFAULT, ProfileStore(tmp_path / "p.sqlite"), 1)
    monkeypatch.setattr(limits, "used_bytes", lambda: 0)
    asked, settings = {"it": SearchRequest(CONV, 1.0, 1.0)}, Settings(max_depth=2, states=40)
    refused = pytest.warns(RuntimeWarning, match=r"done here again: ValueError: memory 1 MiB: .* are taken before")
    with ProcessExecutor(1) as processes, limit_memory(1 << 20), refused:  # less than its libraries take
        assert dict(search_on_executor(processes, asked, rates, settings, 60.0)) == {}
    with limit_memory(1000):
        looks = itertools.count()
        monkeypatch.setattr(limits, "used_bytes", lambda: 600 * next(looks))
        settings = Settings(max_depth=3, states=400)
        answer = answer_request(SearchRequest(CONV, 1.0, 1.0), rates, settings, 1000)
        MEMORY_LIMIT.reached = False
        store = ProfileStore(tmp_path / "p.sqlite")
        context = TuningContext(settings, store, CostModel(), lambda *_: pytest.fail("run"))
        opened: Callable[[], Any] = lambda: pytest.fail("it was opened")  # noqa: E731
        contest = TuningTask(CONV, opened, {}, context, found=variants_of_reply(CONV, answer))
        store.record(contest._key("onnxruntime alone"), 1e-12, "said")
        outcome = contest.run(1.0)
        assert answer.cut and answer.states < 400 and MEMORY_LIMIT.reached and outcome.memory_short


def ee_key(equation: Any) -> Any:
    from einnet_explore.runtime.profile_store import profile_key

    return profile_key(equation)


def test_memory_sizes_are_parsed_and_printed() -> None:
    assert [limits.parse_bytes(t) for t in ("2M", "1.5GiB", "3000000", "1t", "20 mb")] == [
        2 << 20, 3 << 29, 3_000_000, 1 << 40, 20 << 20,
    ]  # fmt: skip
    for wrong in ("", "M", "-1G", "12", "1X", "inf", "nanG"):
        with pytest.raises(ValueError, match=f"memory {wrong!r}: expected a size of at least 1M"):
            limits.parse_bytes(wrong)
    assert [limits.format_bytes(n) for n in (12, 1 << 11, 300 << 20, 3 << 30)] == ["12 B", "2 KiB", "300 MiB", "3 GiB"]


def test_a_search_that_reaches_its_limit_stops_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "used_bytes", lambda: taken[0])
    taken, run = [0], Run(CONV, program_seconds, options=Options(max_depth=2))
    with limit_memory(1000):
        for _ in run:
            taken[0] += 10
    assert run.full and run.candidates and not run.search.complete and MEMORY_LIMIT.limit is None
    assert 75 < run.events <= 75 + limits.STEPS_PER_CHECK
    taken[0], events = 0, run.events
    next(iter(run))  # it goes on where there is room again
    assert run.events == events + 1
    with limit_memory(1000):
        taken[0] = 10_000
        few = find_variants(CONV, program_seconds, Settings(max_depth=3, seconds=100.0)).variants
        assert MEMORY_LIMIT.reached
    assert len(few) < len(run.candidates)


def test_a_limit_that_libraries_fill_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setattr(limits, "used_bytes", lambda: 90 << 20)
    (tmp_path / "c.ein").write_text(CASE)
    assert main(["derive", str(tmp_path / "c.ein"), "--memory", "119M"]) == 2
    said = "memory 119 MiB: 90 MiB are taken before a search begins, expected over 120 MiB"
    assert said in capsys.readouterr().err
    with limit_memory(120 << 20):
        assert MEMORY_LIMIT.limit == 120 << 20


def test_program_larger_than_memory_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nbytes = working_set_bytes(CONV)
    assert nbytes == 2 * 4 * (1 * 6 * 5 * 4 + 3 * 3 * 3 * 4 + 6 * 5 * 3)
    monkeypatch.setattr(limits, "used_bytes", lambda: 0)
    opened: Callable[[], Any] = lambda: pytest.fail("it was opened")  # noqa: E731
    store = ProfileStore(tmp_path / "p.sqlite")
    context = TuningContext(Settings(states=20), store, CostModel(), lambda *_: pytest.fail("run"))
    contest = TuningTask(CONV, opened, {}, context)
    store.record(contest._key("onnxruntime alone"), 1.0, "said")
    with limit_memory(nbytes - 1):
        outcome = contest.run(1.0)
    assert outcome.winner is None and outcome.states == 20 and outcome.memory_short
    assert re.fullmatch(r"the original needs .* KiB, 0 B of .* KiB of memory are taken", outcome.why)
    feeds: dict[str, Any] = {}
    ran = replace(contest, opener=lambda: OriginalRun(lambda: feeds, feeds))
    with limit_memory(nbytes):
        outcome = ran.run(1.0)
    assert outcome.winner is None and "a candidate needs" in outcome.why


CASE = "tensor A[1, 7, 7, 8] pad [0, 1, 1, 0]\ntensor K[3, 3, 4, 8] weight\n"
CASE += "Y[n:1, h:7, w:7, f:4] = sum[c:8, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, f, c]\n"


def test_sweep_in_processes_reports_the_same(tmp_path: Path, capsys: Any) -> None:
    cases = [tmp_path / "a.ein", tmp_path / "b.ein"]
    for n, case in enumerate(cases):
        case.write_text(CASE.replace("f:4", f"f:{4 - n}").replace("3, 3, 4", f"3, 3, {4 - n}"))
    asked = ["sweep", *map(str, cases), "--limit-states", "20", "--json"]
    out = []
    for jobs in ("1", "2"):
        assert main([*asked, str(tmp_path / "r.json"), "--jobs", jobs]) == 0
        reports = json.loads((tmp_path / "r.json").read_text())["reports"]
        out.append([{**r, "seconds": 0, "first_found": r["first_found"]["states"]} for r in reports])
    assert out[0] == out[1] and [r["case"] for r in out[0]] == list(map(str, cases))
    assert "proved" in capsys.readouterr().out
    assert main([*asked, "-", "--target", "G2BMM"]) == 1
    assert main(["sweep", str(cases[0]), "--strategy", "luck"]) == 2
    with pytest.raises(SystemExit):
        main([*asked, "-", "--jobs", "2", "--cluster", "tcp://a:1"])


BIG = "tensor A[1, 28, 28, 64] pad [0, 3, 3, 0]\ntensor K[7, 7, 64, 64] weight\n"
BIG += "Y[n:1, h:28, w:28, f:64] = sum[c:64, r:7, s:7] A[n, h+r-3, w+s-3, c] * K[r, s, f, c]\n"
MEASURED = (
    "import sys\nfrom pathlib import Path\nfrom einnet_explore.cli import main\n"
    "from einnet_explore.support.limits import used_bytes\n"
    "asked = sys.argv[1:]\n"
    "if asked[0] == 'optimize':\n"  # compilers and engines, which load when they are used, take most: that and a third
    "    main([asked[0], asked.pop(), '-o', asked[-1], '--threads', '1'])\n"
    "    asked += ['--memory', f'{int(used_bytes() / 0.73) >> 20}M']\n"
    "code = main(asked)\n"
    # ru_maxrss would begin with the peak of who forked it.
    "peak = Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]\n"
    "print('PEAK', peak, asked[-1], file=sys.stderr)\nsys.exit(code)\n"
)


def below(cache: Path, *asked: str) -> bool:
    """Whether the peak of a command that stops at its limit is below it (the last argument, or what it chooses)."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *asked], capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "EINNET_EXPLORE_CACHE": str(cache)},
    )  # fmt: skip
    assert done.returncode == 0 and "stopped near" in done.stderr, done.stderr
    peak, limit = re.findall(r"PEAK (\d+) (\d+)M", done.stderr)[0]
    return int(peak) <= int(limit) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("megabytes", [120, pytest.param(200, marks=pytest.mark.slow)])
def test_the_peak_of_a_child_stays_below_its_limit(megabytes: int, tmp_path: Path) -> None:
    (tmp_path / "c.ein").write_text(BIG)
    searched = [str(tmp_path / "c.ein"), "--strategy", "paper", "--max-depth", "5", "--save", str(tmp_path / "r.json")]
    assert below(tmp_path, "derive", *searched, "--memory", f"{megabytes}M")
    assert json.loads((tmp_path / "r.json").read_text())["steps"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_the_peak_of_a_model_stays_below_its_limit(tmp_path: Path) -> None:
    weights = {"v": np.full((64, 64, 7, 7), 0.01, np.float32)}
    proto = build([node("Conv", ["x", "v"], ["y"], pads=[3] * 4)], {"x": (1, 64, 28, 28)}, ["y"], weights)
    (tmp_path / "c.onnx").write_bytes(proto.SerializeToString())
    small = build([node("Relu", ["x"], ["y"])], {"x": (1, 64)}, ["y"], {})
    (tmp_path / "small.onnx").write_bytes(small.SerializeToString())
    asked = [str(tmp_path / "c.onnx"), "--threads", "1", "--budget", "500", "-o", str(tmp_path / "o.onnx")]
    assert (
        below(tmp_path, "optimize", *asked, str(tmp_path / "small.onnx"))
        and (tmp_path / "o.onnx").stat().st_size > 64 * 64 * 49 * 4
    )


class Devices(SerialExecutor):
    """Does at once what it is given, as a cluster whose worker has the device."""

    def __init__(self, resources: dict[str, int]) -> None:
        self.resources, self.asked = resources, list[Any]()

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": {"tcp://a:1": {"resources": self.resources}}}

    def submit(self, fn: Any, /, *args: Any, pure: bool = True, resources: Any = None, **kwargs: Any) -> Any:
        self.asked.append((getattr(fn, "func", fn).__name__, pure, repr(resources)))
        return super().submit(fn, *args, **kwargs)


@pytest.mark.slow
def test_model_is_optimised_with_remote_searches_and_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {name: np.full((8, 8, 3, 3), 0.01, np.float32) for name in ("v", "w")}
    nodes = [node("Conv", ["x", "v"], ["a"], pads=[1] * 4), node("Relu", ["a"], ["b"])]
    proto = build([*nodes, node("Conv", ["b", "w"], ["y"], pads=[1] * 4)], {"x": (1, 8, 9, 9)}, ["y"], weights)
    model = load_model(proto.SerializeToString())
    here = optimize_model(model, threads=1, states=30)
    assert any(part.trial.states == 30 for part in here.parts)
    for resources, name in (({}, "answer_request"), ({"device": 1.0}, "tune_named_task")):
        monkeypatch.setattr(
            TuningHistory, "get", lambda self, what, *key: None
        )  # what was remembered would not be asked for
        there = Devices(resources)
        work = optimize_model(model, threads=1, states=30, executor=there)
        assert has_device(there) == bool(resources)
        assert set(there.asked) == {(name, False, repr({"device": 1} if resources else None))}
        assert [p.trial.states for p in work.parts] == [p.trial.states for p in here.parts]
        assert [p.nodes for p in work.parts] == [p.nodes for p in here.parts]
