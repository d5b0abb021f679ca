"""Content of the computation-graph panel: compile-time values in a box, layers that fold, and values of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod

from einnet_explore.analysis.equations import constant_tensors
from einnet_explore.cost.model import CostModel
from einnet_explore.equivalence.verdict import weakest_kind
from einnet_explore.ir import ELEMENT_TYPES, Program, read_path
from einnet_explore.session.session import Session
from einnet_explore.support.limits import format_bytes
from einnet_explore.support.wording import count_noun, format_seconds
from einnet_explore.syntax.computation_graph import NodeGroup, computation_graph
from einnet_explore.viz.graph_figures import draw_graph
from einnet_explore.viz.graph_layers import Layer, fold_layers, layer_groups, program_layers
from einnet_widgets.look import Look, Shown, settled

DRAWN = 50
"""Maximum number of drawn nodes; larger pictures exceed the size of an update."""

OPEN = 20
"""Maximum number of nodes of a graph whose layers are not folded at first."""

LAYERED = 8
"""Number of equations from which on a graph has layers to fold."""


def graph(session: Session, look: Look) -> Shown:
    """Return the graph of the current program as SVG, the paths and the values of its nodes, and the selected node."""
    program, at = session.program, settled(session, look)
    layers = tuple(layers_of(program).inner())
    folded = folded_layers(program, look.folds)
    home, kinds, svg, says = drawn(program, folded)
    n = read_path(at)[0] if at else -1
    here = program.equations[n].name if 0 <= n < len(program.equations) else ""
    return {
        "svg": svg,
        "says": says,
        "paths": {e.name: str(n) for n, e in enumerate(program.equations) if e.name not in home},
        "at": home.get(here, here),
        "kinds": list(kinds),
        "folded": [layer.title for layer in folded],
        "layers": len(layers),
        "values": values(session, home) if svg else {},
    }


@lru_cache(64)
def layers_of(program: Program) -> Layer:
    """Return the layers of *program*, none if it has few equations."""
    return program_layers(program) if len(program.equations) >= LAYERED else Layer(())


def is_large(program: Program) -> bool:
    """Return whether *program* has so many nodes that its layers are folded at first."""
    return len(program.inputs) + len(program.equations) > OPEN


def folded_layers(program: Program, folds: tuple[str, ...]) -> tuple[Layer, ...]:
    """Return the outermost folded layers: of a large program all but those with the titles *folds*, else only those."""
    found, inside = list[Layer](), set[str]()
    for layer in layers_of(program).inner():
        if (layer.title in folds) != is_large(program) and layer.names[0] not in inside:
            found.append(layer)
            inside.update(layer.names)
    return tuple(found)


@lru_cache(64)
def drawn(program: Program, folded: tuple[Layer, ...]) -> tuple[Mapping[str, str], tuple[str, ...], str, str]:
    """Return the layers of missing nodes, the kinds of nodes, the picture and its description; Graphviz is slow."""
    constant = constant_tensors(program)
    shown, home = fold_layers(computation_graph(program), folded, constant)
    kinds = tuple(dict.fromkeys(node.kind for node in shown.nodes))
    if len(shown.nodes) > DRAWN:
        says = f"{len(shown.nodes)} nodes: too many to be drawn here; session.graph() draws them all"
        return home, kinds, "", says
    inside = tuple(node.name for node in shown.nodes if node.name in constant)
    computed = any(e.name in inside for e in program.equations)
    groups = (NodeGroup("at compile time", "constant", inside),) if computed else ()
    figure = draw_graph(shown, "", (*groups, *layer_groups(layers_of(program), folded)))
    return home, kinds, figure.svg, figure.says


def values(session: Session, home: Mapping[str, str]) -> Shown:
    """Return values of the drawn nodes by overlay: a text, and a part of the largest value or the name of a kind.

    The time is that of the cost model, the proof the weakest certificate of the steps that made an equation what it is.
    """
    program, constant = session.program, constant_tensors(session.program)
    results = {t.name: t for t in (*program.inputs, *(e.tensor for e in program.equations))}
    estimate = CostModel().estimate
    times = {e.name: estimate(e).seconds for e in program.equations if e.name not in constant}
    sizes = {name: prod(t.shape) * max(8, ELEMENT_TYPES[t.dtype].bits) // 8 for name, t in results.items()}
    whole = sum(times.values()) or 1.0
    types: dict[str, dict[str, None]] = {}
    for name, tensor in results.items():
        types.setdefault(home.get(name, name), {})[tensor.dtype] = None
    kinds = {name: ", ".join(found) for name, found in types.items()}
    return {
        "time": _scaled(times, home, lambda seconds: f"{format_seconds(seconds)}, {seconds / whole:.0%}"),
        "bytes": _scaled(sizes, home, format_bytes),
        "proof": _proofs(session, home),
        "element type": {name: [kind, kind] for name, kind in kinds.items()},
    }


def _scaled(found: Mapping[str, float], home: Mapping[str, str], write: Callable[[float], str]) -> Shown:
    """Return the sum of each drawn node, written, and as a part of the largest sum."""
    sums: dict[str, float] = {}
    for name, value in found.items():
        at = home.get(name, name)
        sums[at] = sums.get(at, 0) + value
    most = max(sums.values(), default=0) or 1
    return {name: [write(value), value / most] for name, value in sums.items()}


def _proofs(session: Session, home: Mapping[str, str]) -> Shown:
    made: dict[str, frozenset[int]] = {}
    for node in session.way()[1:]:
        step = session.nodes[node].steps[-1]
        old, new = set(step.before.equations), set(step.after.equations)
        steps = frozenset({node}).union(*(made.get(e.name, ()) for e in old - new))
        made |= {e.name: steps for e in new - old}
    found: dict[str, frozenset[int]] = {}
    for e in session.program.equations:
        name = home.get(e.name, e.name)
        found[name] = found.get(name, frozenset()) | made.get(e.name, frozenset())
    known = session.known_certificates()
    shown: Shown = {}
    for name, steps in found.items():
        if not steps:
            shown[name] = ["unchanged", "unchanged"]
        elif steps <= known.keys():
            kind = weakest_kind(known[n].kind for n in steps)
            shown[name] = [f"{kind}, {count_noun(len(steps), 'step')}", kind]
        else:
            shown[name] = ["not proved yet", "open"]
    return shown
