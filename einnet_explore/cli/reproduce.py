"""``einnet-explore reproduce``: tables and figures of the paper's evaluation, measured with this engine."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from einnet_evaluation.plots import plot
from einnet_evaluation.search_tables import search_tables
from einnet_evaluation.searches import QUICK, SearchEffort, SearchLab, needed
from einnet_explore.cli.output import INTERRUPTED, NO, OK, save_file, say
from einnet_explore.support.storage import write_atomically
from einnet_explore.support.wording import count_noun
from einnet_explore.viz.figure import Figure
from einnet_explore.viz.tables import ResultTable

_OPTION_READERS = {
    "quick": "e1 e2 e3 e4 e5 e6", "budget": "e1 e2 e3 e4 e5 e6", "max_depth": "e4 e5 e6",
    "count_seconds": "e4 e5 e6", "threads": "e1 e2 e3",
    "model": "e1", "batch": "e1", "again": "e1 e2 e3", "results": "--device cuda",
}  # fmt: skip
"""The experiments that read each option."""

Experiment: TypeAlias = "Callable[[bool], tuple[ResultTable, ...]]"
"""Make the tables of an experiment from its results so far; the argument says whether it is complete."""


@dataclass(frozen=True, slots=True)
class _Experiments:
    """Measurements of one or more experiments: a function that runs them, and one that words the progress."""

    run: Callable[[], None]
    done: Callable[[], str]


def run_reproduce(arguments: argparse.Namespace) -> int:
    """Run the experiments, print the tables, and with ``--out`` write CSV, Markdown and SVG files.

    After an interrupt the results so far are printed and written.
    """
    _check_options(arguments)
    if arguments.device == "cuda":
        return _run_on_gpu_results(arguments)
    if arguments.out:
        Path(arguments.out).mkdir(parents=True, exist_ok=True)
    wanted = tuple(dict.fromkeys(arguments.experiments))
    tables: dict[str, Experiment] = {}
    works = [make(arguments, wanted, tables) for make in (_end_to_end, _operators, _searches)]
    interrupted = False
    try:
        for work in works:
            if work:
                work.run()
    except KeyboardInterrupt:
        interrupted = True
    for experiment in wanted:
        made = tables[experiment](not interrupted)
        if any(sheet.rows for sheet in made):
            print(_markdown(made))
            if arguments.out:
                _write(Path(arguments.out), experiment, made, save_file)
                _draw(Path(arguments.out), experiment, made)
    if interrupted:
        done = " and ".join(work.done() for work in works if work)
        say(f"interrupted: the tables hold {done}, completed before the interrupt")
        return INTERRUPTED
    return OK


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise ValueError for an option that no requested experiment reads."""
    asked = "--device cuda" if arguments.device == "cuda" else " ".join(arguments.experiments)
    for name, readers in _OPTION_READERS.items():
        if getattr(arguments, name) and not {*asked.split()} & {*readers.split()}:
            raise ValueError(f"--{name.replace('_', '-')}: found with {asked}, expected with {readers}")


def _searches(
    arguments: argparse.Namespace, wanted: tuple[str, ...], tables: dict[str, Experiment]
) -> _Experiments | None:
    """``e4`` to ``e6``, which share their searches."""
    mine = [name for name in wanted if name in ("e4", "e5", "e6")]
    base = QUICK if arguments.quick else SearchEffort()
    effort = SearchEffort(
        arguments.max_depth or base.max_depth,
        arguments.budget or base.limit,
        arguments.count_seconds or base.count_limit,
        base.measure,
    )
    lab = SearchLab(effort, say)
    for name in mine:
        tables[name] = lambda all_, name=name: search_tables(name, lab.results, measure=effort.measure and all_)  # type: ignore[misc]
    if not mine:
        return None
    return _Experiments(
        lambda: lab.run(variant for name in mine for variant in needed(name)),
        lambda: count_noun(len(lab.results), "search", "searches"),
    )


def _end_to_end(
    arguments: argparse.Namespace, wanted: tuple[str, ...], tables: dict[str, Experiment]
) -> _Experiments | None:
    """``e1``: end-to-end times of the models."""
    if "e1" not in wanted:
        return None
    from einnet_evaluation import end_to_end

    effort = end_to_end.QUICK if arguments.quick else end_to_end.EndToEndEffort()
    if arguments.threads:
        effort = replace(effort, threads=(arguments.threads,))
    if arguments.model:
        effort = replace(effort, models=end_to_end.known(arguments.model))
    if arguments.batch:
        effort = replace(effort, batches=tuple(dict.fromkeys(arguments.batch)))
    if arguments.budget:
        effort = replace(effort, budget=arguments.budget)
    lab = end_to_end.EndToEndLab(effort, say, out=_samples(arguments, "e1"))
    if resumed := lab.resume(arguments.again):
        say(f"found {count_noun(resumed, 'model')} measured before: {lab.out}")
    tables["e1"] = lambda _: end_to_end.end_to_end_tables(lab.shown, lab.failures)
    lab.done = lambda: _so_far(arguments, "e1", tables)
    return _Experiments(lab.run, lambda: count_noun(len(lab.results), "model"))


def _operators(
    arguments: argparse.Namespace, wanted: tuple[str, ...], tables: dict[str, Experiment]
) -> _Experiments | None:
    """``e2`` and ``e3``, which share their measurements."""
    mine = [name for name in wanted if name in ("e2", "e3")]
    if not mine:
        return None
    from einnet_evaluation import operator_cases
    from einnet_evaluation import operator_cases as operator_tables

    effort = operator_cases.operator_effort(arguments.quick)
    if arguments.threads:
        effort = replace(effort, threads=arguments.threads)
    if arguments.budget:
        effort = replace(effort, search=arguments.budget)
    lab = operator_cases.OperatorLab(effort, say, out=_samples(arguments, "e2-e3"))
    if resumed := lab.resume(arguments.again):
        say(f"found {count_noun(resumed, 'operator')} measured before: {lab.out}")
    made: dict[str, Experiment] = {
        "e2": lambda _: (operator_tables.table3(lab.shown.values(), lab.failures),),
        "e3": lambda _: (operator_tables.fig16(lab.shown.values(), lab.failures, effort.present),),
    }
    tables |= {name: made[name] for name in mine}
    lab.done = lambda: _so_far(arguments, mine[0], tables)
    return _Experiments(lab.run, lambda: count_noun(len(lab.results), "operator"))


def _samples(arguments: argparse.Namespace, name: str) -> Path | None:
    """Return the path of the measurements' file, None without ``--out``."""
    return Path(arguments.out) / f"{name}.json" if arguments.out else None


def _markdown(made: tuple[ResultTable, ...]) -> str:
    return "\n".join(sheet.markdown() for sheet in made)


def _so_far(arguments: argparse.Namespace, experiment: str, tables: dict[str, Experiment]) -> None:
    """Write the tables of the measurements so far, so that a crash loses no hours of work."""
    if arguments.out:
        _write(Path(arguments.out), experiment, tables[experiment](False), write_atomically)


def _write(folder: Path, name: str, made: tuple[ResultTable, ...], write: Callable[[str, str], object]) -> None:
    write(str(folder / f"{name}.md"), _markdown(made))
    for sheet in made:
        write(str(folder / f"{sheet.name}.csv"), sheet.csv())


def _draw(folder: Path, name: str, made: tuple[ResultTable, ...]) -> None:
    try:
        save_file(str(folder / f"{name}.svg"), _figure(name, made).svg + "\n")
    except ValueError as missing:
        say(f"{name}.svg: not written: {missing}")


def _figure(name: str, made: tuple[ResultTable, ...]) -> Figure:
    if name in ("e1", "e2", "e3"):
        from einnet_evaluation.bars import draw_chart

        return draw_chart(made[0])
    return plot(made)


def _run_on_gpu_results(arguments: argparse.Namespace) -> int:
    """Print the tables, and with ``--out`` write CSV, Markdown and SVG files.

    Returns exit code 1 if a measured kernel computed wrong values.  Raises ValueError if there are no results, with the
    command that measures them, and for experiments without GPU results.
    """
    from einnet_evaluation.bars import draw_gpu_chart
    from einnet_evaluation.gpu_results import DEFAULT_RESULTS_PATH, gpu_tables, load_gpu_results

    times = load_gpu_results(Path(arguments.results) if arguments.results else DEFAULT_RESULTS_PATH)
    made = {name: gpu_tables(name, times) for name in dict.fromkeys(arguments.experiments)}
    if arguments.out:
        Path(arguments.out).mkdir(parents=True, exist_ok=True)
    for name, found in made.items():
        text = "\n".join(sheet.markdown() for sheet in found)
        print(text)
        if not arguments.out:
            continue
        place = Path(arguments.out) / f"{name}_cuda"
        save_file(f"{place}.md", text)
        for sheet in found:
            save_file(str(Path(arguments.out) / f"{sheet.name}_cuda.csv"), sheet.csv())
        try:
            save_file(f"{place}.svg", draw_gpu_chart(found[0]).svg + "\n")
        except ValueError as missing:
            say(f"{place.name}.svg: not written: {missing}")
    wrong = [
        n for kind in ("checks", "cases", "parts", "models") for n, r in times.get(kind, {}).items() if r.get("wrong")
    ]
    if wrong:
        say(f"wrong results: {', '.join(wrong[:8])}")
    return NO if wrong else OK
