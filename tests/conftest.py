"""Conditions of every test: one thread for each process, an empty cache of its own, and a hypothesis profile."""

import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

# pytest-xdist runs one process a core. Libraries read these as they are imported, so they are set before any test is.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import pytest
from hypothesis import HealthCheck, settings

from einnet_explore.codegen import register_tiles
from einnet_explore.pipeline.vector_layouts import chain_in_vectors
from einnet_explore.runtime import measurement
from einnet_explore.support.limits import COLLECTION_THRESHOLDS

measurement.SECONDS_FACTOR = 0.1

# `make test` repeats its examples, so that its result depends on the change alone; `make test-all` draws new ones.
settings.register_profile("fixed", max_examples=25, deadline=None, derandomize=True)
settings.register_profile(
    "random", max_examples=50, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")

_scratch = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Point everything that would write to the home directory at a directory of this session."""
    scratch = config.stash[_scratch] = Path(tempfile.mkdtemp(prefix="einnet-explore-tests-"))
    os.environ["EINNET_EXPLORE_CACHE"] = str(scratch / "cache")
    os.environ["IPYTHONDIR"] = str(scratch / "ipython")
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        os.environ[f"JUPYTER_{kind}_DIR"] = str(scratch / "jupyter" / kind.lower())
    if config.option.collectonly:  # runs no test, so every snapshot is unused: syrupy would exit with 1
        config.option.warn_unused_snapshots = True


def pytest_collection_finish() -> None:
    """Collect garbage less often, and never what the imports made: it took a tenth of the time."""
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)


def pytest_sessionfinish() -> None:
    """Leave what is there out of the collections with which pytest ends, which take seconds in every process."""
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_scratch], ignore_errors=True)


@pytest.fixture
def wide_vectors(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Choose as on a machine with 512-bit vectors; compilers take the real one."""
    caches = {1: 48 << 10, 2: 1 << 20, 3: 32 << 20}
    remembered = register_tiles.this_machine, chain_in_vectors
    monkeypatch.setattr(register_tiles, "cpu_flags", frozenset)
    monkeypatch.setattr(register_tiles, "_cache_bytes", caches.get)
    for each in remembered:
        each.cache_clear()
    yield
    for each in remembered:
        each.cache_clear()
