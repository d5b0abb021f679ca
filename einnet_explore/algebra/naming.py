"""Iterators by the names that users write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from einnet_explore.ir import Index, Iterator
from einnet_explore.text import parse_index


def listed(iterators: Iterable[Iterator]) -> str:
    """``{r, s}``."""
    return "{" + ", ".join(x.name for x in iterators) + "}"


def by_name(iterators: Iterable[Iterator], name: str) -> Iterator:
    """The iterator called *name*; raises ValueError with the names that there are."""
    known = {x.name: x for x in iterators}
    if name not in known:
        others = listed(known.values()) if known else "none"
        raise ValueError(f"no iterator is called {name!r} here: there are {others}")
    return known[name]


def index_of(text: Any, iterators: Iterable[Iterator]) -> Index:
    """The index that *text* writes in terms of *iterators*; raises ValueError where it is none."""
    return parse_index(str(text), {x.name: x for x in iterators})


def ranges_of(written: Mapping[str, Any], iterators: Iterable[Iterator]) -> tuple[tuple[Iterator, int, int], ...]:
    """``{"r": [-1, 6]}`` as iterators with new half-open ranges; raises ValueError on anything else."""
    known = tuple(iterators)
    out: list[tuple[Iterator, int, int]] = []
    for name, span in written.items():
        match span:
            case [int(lo), int(hi)] if lo < hi:
                out.append((by_name(known, name), lo, hi))
            case _:
                raise ValueError(f"range of {name}: found {span!r}, expected [lo, hi] with lo < hi")
    return tuple(out)
