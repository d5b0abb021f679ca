"""Executors of independent work: processes of this machine, or a cluster of ``dask.distributed``.

Work is a function at the top of a module and plain values, so results do not depend on where it runs.  If a worker
dies, only its own item is repeated.
"""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from math import inf
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Literal, ParamSpec, Protocol, TypeAlias, TypeVar, runtime_checkable

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
K = TypeVar("K")


class Pending(Protocol[T_co]):
    """A result to come: a future of ``concurrent.futures`` or of ``dask.distributed``."""

    def result(self) -> T_co:
        """Wait for the result."""

    def cancel(self) -> object:
        """Cancel the work unless it has begun."""

    def done(self) -> bool:
        """Whether the work has ended or was cancelled."""

    def add_done_callback(self, fn: Callable[[object], object], /) -> object:
        """Call *fn* once the work has ended."""


@runtime_checkable
class Cluster(Protocol):
    """A client of ``dask.distributed``; its workers have memory limits of their own."""

    def submit(
        self, fn: Callable[..., T], /, *args: object, pure: Literal[False], resources: Mapping[str, int] | None
    ) -> Pending[T]:
        """Submit a call that needs *resources* of a worker."""

    def scheduler_info(self, n_workers: int) -> Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]:
        """Describe the scheduler and *n_workers* of its workers (-1: all)."""


WorkExecutor: TypeAlias = Executor | Cluster

MAX_ATTEMPTS = 3
"""Worker deaths after which an item is given up: the item is then the likely cause."""

WAKE_SECONDS = 1.0
"""Seconds after which a wait for workers looks for signals."""

CONNECT_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for a cluster's scheduler, and again for its first worker."""


class ProcessExecutor(Executor):
    """At most *jobs* processes of this machine, isolated: one that dies fails only its own item.

    Free processes take items one by one.  A process starts when there is an item for it.  An item whose process died is
    repeated, at most ``MAX_ATTEMPTS`` times in all; then its future raises RuntimeError.
    """

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise ValueError(f"jobs {jobs}: expected 1 or more")
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="einnet-worker")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._pools: list[ProcessPoolExecutor] = []
        self._killed = False
        self._kills = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit ``fn(*args, **kwargs)``."""
        return self._threads.submit(self._run, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; with *cancel_futures* also those at work."""
        self._threads.shutdown(wait and not cancel_futures, cancel_futures=cancel_futures)
        self._killed = cancel_futures
        if cancel_futures:
            for pool in self.kill():
                pool.shutdown(wait)
            return
        with self._lock:
            pools, self._pools = self._pools, []
        for pool in pools:
            pool.shutdown(wait)

    def kill(self) -> list[ProcessPoolExecutor]:
        """Kill the processes: their items are cancelled, waiting items go to new ones; return their pools."""
        with self._lock:
            self._kills += 1
            pools, self._pools = self._pools, []
        for pool in pools:
            for process in list((pool._processes or {}).values()):
                process.kill()
        return pools

    def __exit__(self, kind: object, *rest: object) -> bool | None:
        self.shutdown(cancel_futures=kind is not None)
        return None

    def pids(self) -> list[int]:
        """The ids of the running processes."""
        with self._lock:
            return [pid for pool in self._pools for pid in (pool._processes or {})]

    def _run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        kills = self._kills
        for _ in range(MAX_ATTEMPTS):
            pool = self._pool(kills)
            try:
                return pool.submit(fn, *args, **kwargs).result()
            except BrokenProcessPool:
                with self._lock:
                    if pool in self._pools:
                        self._pools.remove(pool)
                pool.shutdown(wait=False)
        raise RuntimeError(f"{getattr(fn, '__name__', fn)} was given up: {MAX_ATTEMPTS} processes died of it")

    def _pool(self, kills: int) -> ProcessPoolExecutor:
        """Return this thread's process, started if it has none, for an item that came after so many *kills*."""
        with self._lock:
            if self._killed or self._kills != kills:
                raise CancelledError
            held: ProcessPoolExecutor | None = getattr(self._own, "pool", None)
            if held is not None and held in self._pools:
                return held
            # ``spawn``: a forked child of a process with pools of threads may wait for ever.
            self._own.pool = pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            self._pools.append(pool)
        return pool


class SerialExecutor(Executor):
    """Runs submitted work at once, in this process."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Return a completed future of ``fn(*args, **kwargs)``."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def executor(jobs: int | None = None, cluster: str | None = None) -> Generator[WorkExecutor, None, None]:
    """Open the client of *cluster*, or *jobs* processes, or else a serial executor.

    Raises ValueError if both are given, and what ``connect_cluster`` raises.
    """
    if jobs is not None and cluster is not None:
        raise ValueError("jobs and a cluster: expected one of them")
    if cluster is not None:
        with connect_cluster(cluster) as client:
            yield client
    elif jobs is not None and jobs > 1:
        with ProcessExecutor(jobs) as processes:
            yield processes
    else:
        yield SerialExecutor()


@contextmanager
def connect_cluster(address: str, wait: float = CONNECT_TIMEOUT_SECONDS) -> Generator[Cluster, None, None]:
    """Connect to the ``dask.distributed`` scheduler at *address* (``tcp://HOST:PORT``); closed at the end.

    The scheduler repeats the work of workers that die (``distributed.scheduler.allowed-failures`` times). Raises
    ValueError if the extra is not installed, no scheduler answers, or it has no worker.
    """
    try:
        import distributed
    except ImportError:
        raise ValueError("a cluster: found no dask.distributed, expected pip install '.[cluster]'") from None
    try:
        client = distributed.Client(address, timeout=wait, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, TimeoutError, ValueError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"cluster {address}: found no scheduler ({said}), expected tcp://HOST:PORT") from None
    with closing(client):
        try:
            client.wait_for_workers(1, timeout=wait)
        except TimeoutError:
            raise ValueError(f"cluster {address}: found no worker, expected one: dask worker {address}") from None
        yield client


def submit_work(executor: WorkExecutor, work: Callable[..., T], /, *args: object) -> Pending[T]:
    """Submit ``work(*args)``; on a cluster every item is a task of its own, even if two are equal."""
    return _submit(executor, work, args, None)


def submit_device_work(executor: WorkExecutor, work: Callable[..., T], /, *args: object) -> Pending[T]:
    """Submit ``work(*args)``; on a cluster to a worker with the resource ``device``."""
    return _submit(executor, work, args, {"device": 1})


def _submit(
    executor: WorkExecutor, work: Callable[..., T], args: tuple[object, ...], resources: Mapping[str, int] | None
) -> Pending[T]:
    if isinstance(executor, Cluster):
        return executor.submit(work, *args, pure=False, resources=resources)
    return executor.submit(work, *args)


def has_device(executor: WorkExecutor) -> bool:
    """Whether *executor* is a cluster with a worker that offers the resource ``device``."""
    if not isinstance(executor, Cluster):
        return False
    workers = executor.scheduler_info(n_workers=-1)["workers"].values()
    return any("device" in worker["resources"] for worker in workers)


def gather_results(futures: Iterable[Pending[T]]) -> list[T]:
    """Return the results of *futures* in order; if one raises or is interrupted, the others are cancelled."""
    held = list(futures)
    try:
        for index in _arrivals(dict(enumerate(held))):
            held[index].result()
    except BaseException:
        for future in held:
            future.cancel()
        raise
    return [future.result() for future in held]


def iterate_settled(
    executor: WorkExecutor, futures: Mapping[str, Pending[T]], seconds: float | None = None
) -> Generator[tuple[str, T], None, None]:
    """Yield names and results of those *futures* of *executor* that succeed, as they arrive.

    After *seconds*, or on an interrupt, the others are cancelled and processes at work are killed.
    """
    try:
        for name in _arrivals(futures, seconds):
            try:
                answer = futures[name].result()
            except Exception as error:
                warnings.warn(f"done here again: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)
                continue
            yield name, answer
    finally:
        going = [future for future in futures.values() if not future.cancel() and not future.done()]
        if going and isinstance(executor, ProcessExecutor):
            for pool in executor.kill():
                pool.shutdown(wait=False)


def _arrivals(futures: Mapping[K, Pending[object]], seconds: float | None = None) -> Iterable[K]:
    """Yield the names of *futures* as they arrive, for at most *seconds*.

    Wakes every second, since a signal to another thread, or just before the wait, does not end it.
    """
    came = SimpleQueue[K]()

    def note(name: K) -> Callable[[object], None]:
        return lambda _: came.put(name)

    for name, future in futures.items():
        future.add_done_callback(note(name))
    until = inf if seconds is None else perf_counter() + seconds
    left = len(futures)
    while left:
        try:
            name = came.get(timeout=max(0.0, min(WAKE_SECONDS, until - perf_counter())))
        except Empty:
            if perf_counter() >= until:
                return
            continue
        left -= 1
        yield name
