"""Run the items of one soak over worker processes; a file stores the finished ones."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.soak.outcome import Outcome
from benchmarks.soak.workers import Elsewhere, Work, Worker


class State:
    """The items done, in a file of one JSON line each; a line that was cut off by a kill is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[int, Outcome] = {}
        whole = b""
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            try:
                said = json.loads(line)
            except ValueError:
                continue
            whole += line if line.endswith(b"\n") else line + b"\n"
            self.outcomes[said["item"]] = Outcome(Counter(said["counts"]), said["findings"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(whole)

    def forget(self) -> None:
        """Let items with findings be done again."""
        self.outcomes = {n: outcome for n, outcome in self.outcomes.items() if not outcome.findings}
        lines = (json.dumps({"item": n, **outcome.to_json()}) + "\n" for n, outcome in self.outcomes.items())
        self.path.write_text("".join(lines))

    def add(self, item: int, outcome: Outcome) -> None:
        """Keep what *item* came to."""
        self.outcomes[item] = outcome
        with self.path.open("a") as file:
            file.write(json.dumps({"item": item, **outcome.to_json()}) + "\n")

    @property
    def counts(self) -> Counter[str]:
        """All counts."""
        return sum((outcome.counts for outcome in self.outcomes.values()), Counter[str]())

    @property
    def findings(self) -> list[tuple[int, str]]:
        """All findings, by item."""
        return [(n, said) for n, outcome in sorted(self.outcomes.items()) for said in outcome.findings]


def soak(
    work: Work,
    seed: int,
    items: Iterable[int],
    state: State,
    *,
    jobs: int,
    seconds: float,
    limit: float,
    command: str,
    executor: Any = None,
) -> None:
    """Do those of *items* that *state* does not have, *jobs* at a time, beginning none after *seconds*.

    Each is done in a process of this machine, or on *executor* where there is one.
    """
    known = set(state.outcomes)
    waiting = iter(n for n in items if n not in known)
    lock, ends = threading.Lock(), perf_counter() + seconds

    def serve() -> None:
        worker = Worker(work, seed, limit) if executor is None else Elsewhere(executor, work, seed, limit)
        try:
            while perf_counter() < ends:
                with lock:
                    item = next(waiting, None)
                if item is None:
                    return
                outcome = worker.run(item)
                with lock:
                    state.add(item, outcome)
                    for said in outcome.findings:
                        print(f"FINDING {said}\n  again: {command} --seed {seed} --only {item}", flush=True)
        finally:
            worker.close()

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
