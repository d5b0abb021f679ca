"""What runs independent work elsewhere: processes of this machine, or a cluster of ``dask.distributed``.

Work is a function at the top of a module and plain values, so where it ran cannot be seen in what it gives.  A worker
that dies costs its own item one attempt and no other item anything.
"""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from math import inf
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")
K = TypeVar("K")

MAX_ATTEMPTS = 3
"""Workers that one item may take down before it is given up: it is the item then, and no accident."""

WAKE_SECONDS = 1.0
"""Seconds after which a wait for workers looks for signals."""

CONNECT_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for a cluster's scheduler, and again for its first worker."""


class ProcessExecutor(Executor):
    """At most *jobs* processes of this machine, each by itself: one that dies takes only its own item with it.

    Items are handed out one by one as processes come free.  A process is started when there is something for it.  An
    item whose process died is done again, ``ATTEMPTS`` times at most; then its future raises RuntimeError.
    """

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise ValueError(f"jobs {jobs}: expected 1 or more")
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="einnet-worker")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._pools: list[ProcessPoolExecutor] = []
        self._killed = False
        self._drops = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """A future of ``fn(*args, **kwargs)``."""
        return self._threads.submit(self._done, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes, those that are at work too where *cancel_futures* says so."""
        self._threads.shutdown(wait and not cancel_futures, cancel_futures=cancel_futures)
        self._killed = cancel_futures
        if cancel_futures:
            self.drop(wait)
            return
        with self._lock:
            pools, self._pools = self._pools, []
        for pool in pools:
            pool.shutdown(wait)

    def drop(self, wait: bool = False) -> None:
        """End the processes that there are: what they are at is cancelled, what waits is done by others."""
        with self._lock:
            self._drops += 1
            pools, self._pools = self._pools, []
        for pool in pools:
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown(wait)

    def __exit__(self, kind: object, *rest: object) -> bool | None:
        self.shutdown(cancel_futures=kind is not None)
        return None

    def pids(self) -> list[int]:
        """The ids of the processes that there are."""
        with self._lock:
            return [pid for pool in self._pools for pid in (pool._processes or {})]

    def _done(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        drops = self._drops
        for _ in range(MAX_ATTEMPTS):
            pool = self._pool(drops)
            try:
                return pool.submit(fn, *args, **kwargs).result()
            except BrokenProcessPool:
                with self._lock:
                    if pool in self._pools:
                        self._pools.remove(pool)
                pool.shutdown(wait=False)
        raise RuntimeError(f"{getattr(fn, '__name__', fn)} was given up: {MAX_ATTEMPTS} processes died of it")

    def _pool(self, drops: int) -> ProcessPoolExecutor:
        """This thread's process, begun where it has none, for an item that came after so many *drops*."""
        with self._lock:
            if self._killed or self._drops != drops:
                raise CancelledError
            held: ProcessPoolExecutor | None = getattr(self._own, "pool", None)
            if held is not None and held in self._pools:
                return held
            # ``spawn``: a forked child of a process with pools of threads may wait for ever.
            self._own.pool = pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            self._pools.append(pool)
        return pool


class SerialExecutor(Executor):
    """No other process: what is submitted is done at once."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """A future of ``fn(*args, **kwargs)`` that is done, or raises what it raised."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def executor(jobs: int | None = None, cluster: str | None = None) -> Generator[Any, None, None]:
    """What *jobs* and *cluster* ask for: a cluster's client, ``Processes``, else ``Serial``.

    Raises ValueError where both are named, and what ``connected`` raises.
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
def connect_cluster(address: str, wait: float = CONNECT_TIMEOUT_SECONDS) -> Generator[Any, None, None]:
    """A client of the ``dask.distributed`` scheduler at *address* (``tcp://HOST:PORT``), closed at the end.

    The scheduler gives the work of workers that die to others (``distributed.scheduler.allowed-failures`` times).
    Raises ValueError in one line where the extra is not installed, no scheduler answers or it has no worker.
    """
    try:
        import distributed
    except ImportError:
        raise ValueError(
            "a cluster: found no dask.distributed, expected pip install 'einnet-explore[cluster]'"
        ) from None
    try:
        client: Any = distributed.Client(address, timeout=wait, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, TimeoutError, ValueError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"cluster {address}: found no scheduler ({said}), expected tcp://HOST:PORT") from None
    try:
        try:
            client.wait_for_workers(1, timeout=wait)
        except TimeoutError:
            raise ValueError(f"cluster {address}: found no worker, expected one: dask worker {address}") from None
        yield client
    finally:
        client.close()


def submit_work(executor: Any, work: Callable[..., T], /, *args: Any, device: bool = False) -> Any:
    """A future of ``work(*args)`` on *executor*; with *device* on a worker that has the resource of that name.

    On a cluster an item is one task of its own, however alike two are.
    """
    if not is_cluster(executor):
        return executor.submit(work, *args)
    return executor.submit(work, *args, pure=False, resources={"device": 1} if device else None)


def is_cluster(executor: Any) -> bool:
    """Whether *executor* is a cluster, whose workers have limits of memory of their own."""
    return hasattr(executor, "scheduler_info")


def has_device(executor: Any) -> bool:
    """Whether *executor* is a cluster with a worker that offers the resource ``device``."""
    if not is_cluster(executor):
        return False
    workers = executor.scheduler_info(n_workers=-1)["workers"].values()
    return any("device" in worker["resources"] for worker in workers)


def gather_results(futures: Iterable[Any]) -> list[Any]:
    """The results of *futures*, in their order; where one raises or is interrupted, the others are cancelled."""
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
    executor: Any, futures: Mapping[str, Any], seconds: float | None = None
) -> Generator[tuple[str, Any], None, None]:
    """The names and results of those *futures* of *executor* that do not fail, as they come.

    After so many *seconds*, and where there is an interrupt, the others are cancelled; processes that are at one end.
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
            executor.drop()


def _arrivals(futures: Mapping[K, Any], seconds: float | None = None) -> Iterable[K]:
    """The names of *futures* as they come, for so many *seconds*.

    Wakes every second: a signal that came just before the wait began, or to another thread, does not end a wait.
    """
    came = SimpleQueue[K]()
    for name, future in futures.items():
        future.add_done_callback(lambda _, name=name: came.put(name))
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
