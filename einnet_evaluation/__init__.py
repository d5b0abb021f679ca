"""Evaluation of the engine: rival engines, evaluation models, tables and figures of the paper (EinNet §7, §8).

Only the commands and the lazy names of ``einnet_explore`` import this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def benchmark(model: str | Path, **options: Any) -> Mapping[str, Any]:
    """Measure a model or case against other engines, interleaved; see ``einnet_evaluation.bench`` for the options."""
    from einnet_evaluation.bench import run_benchmark as run

    return run(model, **options)


def write_model(name: str, path: str | Path, batch: int = 1, size: int | None = None) -> Path:
    """Write one of the evaluation models as ONNX."""
    from einnet_evaluation.models import write
    from einnet_explore.support.storage import write_atomically

    write_atomically(path, write(name, batch, size).SerializeToString())
    return Path(path)


__all__ = ["benchmark", "write_model"]
