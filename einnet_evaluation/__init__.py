"""Evaluation of the engine: rival engines, evaluation models, tables and figures of the paper (EinNet §7, §8).

Only the commands and the lazy names of ``einnet_explore`` import this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def benchmark(model: str | Path, **options: Any) -> Mapping[str, Any]:
    """Optimise a model (``.onnx``) or case (``.ein``) and measure it and other engines in turns, in seconds.

    *options*: *against* (names of engines, such as ``"torch"``), *device*, *threads*, *rounds*, *shapes*, *max_depth*,
    *budget* (seconds of tuning), *limit* (seconds of rounds) and *attribute*.  They are those of
    ``einnet_evaluation.bench.run_benchmark``, which also documents the keys of the result.  Raises ValueError for an
    unknown engine or device and for a file that cannot be read.
    """
    from einnet_evaluation.bench import run_benchmark as run

    return run(model, **options)


def write_model(name: str, path: str | Path, batch: int = 1, size: int | None = None) -> Path:
    """Write an evaluation model as ONNX, such as ``"infogan"``, and return its path.

    *batch* and *size* (of the image, or positions; None: the published one) set its shapes.  Raises ValueError for an
    unknown *name*, with the names that there are, and for shapes that the model cannot have.
    """
    from einnet_evaluation.models import write
    from einnet_explore.support.storage import write_atomically

    write_atomically(path, write(name, batch, size).SerializeToString())
    return Path(path)


__all__ = ["benchmark", "write_model"]
