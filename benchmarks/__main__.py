"""Run all benchmarks in sequence: ``python -m benchmarks`` (``make bench``)."""

from __future__ import annotations

from benchmarks import contractions, costs, eoperators, search


def main() -> None:
    """Print every table."""
    search.main()
    eoperators.main()
    contractions.main()
    costs.main()


if __name__ == "__main__":
    main()
