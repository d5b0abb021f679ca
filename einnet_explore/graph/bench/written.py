"""The ways to write a case in standard operators that are worth running: what they compute is one, what they move not.

Written as it stands, a convolution of a large image gathers every window, gigabytes of them, where its library operator
reads the image.  Like candidates of a contest, ways that are estimated at more than ``SLACK`` times the best are out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from einnet_explore.backends.profiles import ProfileStore
from einnet_explore.cost import work
from einnet_explore.graph.contest import Settings
from einnet_explore.graph.exporting import forms, program_model
from einnet_explore.graph.finalists import SLACK
from einnet_explore.graph.means import Means
from einnet_explore.graph.outputs import Arrays
from einnet_explore.graph.reading.load import load
from einnet_explore.graph.reading.model import Model
from einnet_explore.ir import Program


def ways(program: Program, constants: Arrays, threads: int) -> Sequence[tuple[Program, Model]]:
    """The forms of *program* that are worth running, the cheapest by estimate first, and the model of each.

    Raises ValueError where none can be written.
    """
    device = Means(Settings(threads), ProfileStore()).model.device
    computing = sum(work(e.scope).flops for e in program.equations) / device.peak_flops
    found: list[tuple[float, Program, Model]] = []
    refusal = "no way to write it"
    for written in forms(program):
        try:
            model = load(program_model(written, constants))
        except Exception as error:  # every part of ONNX has classes of its own, for want of memory too
            refusal = str(error) or type(error).__name__
            continue
        starting = len(model.nodes) * device.call_seconds
        found.append((computing + starting + moved(model) / device.memory_bandwidth, written, model))
    if not found:
        raise ValueError(f"found nothing in standard operators: {refusal}")
    found.sort(key=lambda item: item[0])
    least = found[0][0]
    return tuple((written, model) for seconds, written, model in found if seconds <= SLACK * least)


def moved(model: Model) -> int:
    """Bytes that the nodes of *model* move at least: each result is written and read, each input and constant read.

    What only depends on weights is a constant: runtimes compute it once, before the first run.
    """
    constant = set(model.weights)
    read: set[str] = set()
    written: list[str] = []
    for node in model.nodes:
        if constant.issuperset(node.reads):
            constant.update(node.results)
        else:
            read.update(node.reads)
            written += node.results
    return sum(_size(model, name) for name in read.difference(written)) + 2 * sum(_size(model, n) for n in written)


def _size(model: Model, name: str) -> int:
    if (weight := model.weights.get(name)) is not None:
        return weight.nbytes
    return prod(model.shape(name)) * model.dtype(name).itemsize if model.known(name) else 0
