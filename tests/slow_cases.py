"""Cases that ``make test`` leaves out, since they take long and others show the same; ``make test-all`` runs them."""

from collections.abc import Container, Iterable

import pytest


def with_slow(cases: Iterable[str], slow: Container[str]) -> list[object]:
    """Return *cases* for ``parametrize``; those in *slow* are marked."""
    return [pytest.param(case, marks=pytest.mark.slow if case in slow else ()) for case in cases]
