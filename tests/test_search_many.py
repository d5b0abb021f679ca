"""Independent searches over executors: the reports of the serial run; and expressions that travel between processes."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from dying import dies_once
from hypothesis import given, settings
from strategies import programs as any_program

import einnet_explore as ee
from einnet_explore.ir import Program
from einnet_explore.session.run import run_search, run_searches
from einnet_explore.support.executors import gather_results, has_device, submit_work

PROGRAMS = {
    "conv": ee.ops.conv2d(N=1, H=4, W=3, C=2, F=3, R=3, S=3, padding=1),
    "band": ee.ops.g2bmm(b=2, m=8, w=2, k=3, dilation=2),
    "transposed": ee.ops.conv_transpose2d(N=1, H=2, W=2, in_channels=3, out_channels=2, R=4, S=4, stride=2, padding=1),
    "matmul": ee.ops.matmul(4, 5, 3),
}
OPTIONS: dict[str, Any] = {"strategy": "paper", "max_depth": 1}


def timeless(report: dict[str, Any]) -> dict[str, Any]:
    """*report* without what a clock said."""
    first = report["first_found"]
    return report | {"seconds": None, "first_found": first and first["states"]}


@pytest.fixture(scope="module")
def serial() -> list[dict[str, Any]]:
    return [timeless(run_search(case, p, (), None, OPTIONS)) for case, p in PROGRAMS.items()]


def test_processes_report_what_a_serial_run_reports(serial: list[dict[str, Any]]) -> None:
    reports = run_searches(PROGRAMS, **OPTIONS)
    assert [timeless(r) for r in reports] == serial
    assert all(c["certificate"] == "proved" for r in reports for c in r["candidates"])
    assert sum(len(r["candidates"]) for r in reports) > 10


def test_any_executor_will_do_and_gets_one_task_a_program(serial: list[dict[str, Any]]) -> None:
    class Here(Executor):
        tasks = 0

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.tasks += 1
            future: Future[Any] = Future()
            future.set_result(fn(*args, **kwargs))
            return future

    here = Here()
    assert [timeless(r) for r in ee.search_all(PROGRAMS, here, **OPTIONS)] == serial
    assert here.tasks == len(PROGRAMS)
    with ThreadPoolExecutor(2) as threads:
        assert [timeless(r) for r in ee.search_all(PROGRAMS, threads, **OPTIONS)] == serial


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_reports_what_a_serial_run_reports(serial: list[dict[str, Any]], tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert [timeless(r) for r in run_searches(PROGRAMS, client, **OPTIONS)] == serial
        assert [timeless(r) for r in run_searches(PROGRAMS, client.get_executor(), **OPTIONS)] == serial
        # One of the two workers is killed at its first item; the other does that one as well.
        again = [client.submit(dies_once, str(tmp_path / "mark"), 7, pure=False)]
        again += [submit_work(client, run_search, case, p, (), None, OPTIONS) for case, p in PROGRAMS.items()]
        assert not has_device(client) and [timeless(r) if r != 7 else r for r in gather_results(again)] == [7, *serial]
        assert (tmp_path / "mark").exists()


def test_a_list_is_numbered_and_may_be_empty() -> None:
    with ThreadPoolExecutor(1) as threads:
        reports = run_searches(list(PROGRAMS.values())[:2], threads, target="Matmul", max_depth=0)
        assert [r["case"] for r in reports] == ["0", "1"] and reports[0]["target"] == ["Matmul"]
        assert run_searches([], threads) == []


def test_errors_come_before_any_process_starts_or_from_the_search() -> None:
    with pytest.raises(ValueError, match="strategy 'luck': expected one of"):
        run_searches(PROGRAMS, strategy="luck")
    with pytest.raises(ValueError, match="unknown target 'Frobnicate'"):
        run_searches(PROGRAMS, target="Frobnicate")

    class Broken(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(RuntimeError("lost a worker"))
            return future

    with pytest.raises(RuntimeError, match="lost a worker"):
        run_searches(PROGRAMS, Broken())


@settings(max_examples=30)
@given(any_program())
def test_expressions_survive_pickling_without_their_caches(program: Program) -> None:
    """Cached hashes and bounds are not pickled."""
    hash(program)
    repr([i.bounds for e in program.equations for x in e.scope.traversals for i in [x + 1]])
    for back in (pickle.loads(pickle.dumps(program)), copy.deepcopy(program)):
        assert back == program and hash(back) == hash(program) and back is not program
        assert ee.text(back) == ee.text(program)


def test_a_hash_is_not_carried_to_another_process() -> None:
    """There strings hash differently: a stale hash would make equal expressions different."""
    hash(PROGRAMS["conv"])
    code = (
        "import pickle, sys, einnet_explore as ee\n"
        "there = pickle.loads(sys.stdin.buffer.read())\n"
        "here = ee.ops.conv2d(N=1, H=4, W=3, C=2, F=3, R=3, S=3, padding=1)\n"
        "print(there == here, hash(there) == hash(here), {here: 1}.get(there), hash('A'))\n"
    )
    said = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], input=pickle.dumps(PROGRAMS["conv"]), capture_output=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed}, timeout=60,
        )  # fmt: skip
        *same, hashed = done.stdout.decode().split()
        assert same == ["True", "True", "1"]
        said.add(hashed)
    assert len(said) == 2
