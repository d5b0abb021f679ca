"""``einnet-explore lab``: open JupyterLab on the tour."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path


def run_lab(arguments: argparse.Namespace) -> int:
    """Open JupyterLab on a notebook; a percent script is paired with an ``.ipynb`` first."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise ValueError("JupyterLab is not installed; expected the extra: pip install '.[notebook]'")
    chosen = Path(arguments.notebook) if arguments.notebook else _tour()
    if not chosen.exists():
        raise ValueError(f"{chosen}: no such notebook")
    if chosen.suffix == ".py":
        paired = chosen.with_suffix(".ipynb")
        if not paired.exists():
            subprocess.run([sys.executable, "-m", "jupytext", "--to", "ipynb", str(chosen)], check=True)
        chosen = paired
    # Jupyter refuses to run as root by default, and containers often have no other user; ``make lab`` does the same.
    root = ["--allow-root"] if os.geteuid() == 0 else []
    return subprocess.run([sys.executable, "-m", "jupyter", "lab", *root, str(chosen)], check=False).returncode


def _tour() -> Path:
    folder = Path(__file__).parents[2] / "notebooks"
    if not folder.is_dir():
        raise ValueError(
            "the tour notebook is not installed with the package; name a notebook: einnet-explore lab FILE"
        )
    return folder / "00_tour.py"
