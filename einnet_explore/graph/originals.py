"""The original of a subprogram: what is replaced, by the names of its program without names, and ready to run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from einnet_explore.graph.anonymous import Anonymous
from einnet_explore.graph.contest import Opened
from einnet_explore.graph.outputs import Arrays
from einnet_explore.graph.reading.model import Model
from einnet_explore.graph.running.regions import random_inputs, subgraph_session
from einnet_explore.graph.split import Subprogram


def values(model: Model, subprogram: Subprogram, anon: Anonymous) -> dict[str, str]:
    """The value of *model* for each tensor that *anon*, the program of *subprogram*, shares with it."""
    back = {model.identifiers[name]: name for name in (*subprogram.inputs, *subprogram.outputs)}
    return {new: back[old] for new, old in anon.names.items() if old in back}


def original(model: Model, subprogram: Subprogram, anon: Anonymous, threads: int) -> tuple[Opened, Arrays]:
    """The original of *subprogram*, opened where it has to be run, and its weights, by the names of *anon*."""
    names = values(model, subprogram, anon)
    wanted = [names[name] for name in anon.program.outputs]

    @cache
    def opened() -> tuple[Callable[[], Arrays], Arrays]:
        session = subgraph_session(model, subprogram.nodes, threads)
        feeds = random_inputs(session, 0)
        inputs = {t.name: feeds[names[t.name]] for t in anon.program.inputs if not t.weight}
        return lambda: dict(zip(anon.program.outputs, session.run(wanted, feeds), strict=True)), inputs

    return opened, {t.name: model.weights[names[t.name]] for t in anon.program.inputs if t.weight}
