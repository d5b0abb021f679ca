"""``einnet-explore reproduce --device cuda``: tables and figures from measurements of a GPU machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from einnet_evaluation.bars import draw_gpu_chart
from einnet_evaluation.gpu_results import DEFAULT_RESULTS_PATH, gpu_tables, load_gpu_results
from einnet_explore.cli.errors import NO, OK
from einnet_explore.cli.output import save_file, say


def run_reproduce_gpu(arguments: argparse.Namespace) -> int:
    """Print the tables, and with ``--out`` write CSV, Markdown and SVG files.

    Returns exit code 1 if a measured kernel computed wrong values.  Raises ValueError if there are no results, with the
    command that measures them, and for experiments without GPU results.
    """
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
