"""Generated kernels for readers: kernel texts, the stages of a fused kernel, and the search for a tile size."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np

from einnet_explore.analysis.equations import is_typed
from einnet_explore.codegen.elementwise import aligned_kernel, build_functor
from einnet_explore.codegen.fusion.cpu import cpu_kernel
from einnet_explore.codegen.fusion.frame import FusedLayout, lay_out
from einnet_explore.codegen.fusion.gpu import A100_TARGET, CPU_CORE_TARGET, estimate_fusion, gpu_kernel, gpu_launch
from einnet_explore.codegen.fusion.operations import read_name
from einnet_explore.codegen.fusion.plan import FusedKernel, FusedNest, FusedStep, constant_argument, fuse_program
from einnet_explore.codegen.language.printer import emit
from einnet_explore.codegen.language.statements import Kernel
from einnet_explore.codegen.language.values import Type, type_of
from einnet_explore.codegen.tiling.cost import TileCost, TileSearch
from einnet_explore.codegen.tiling.kernel import tile_contraction
from einnet_explore.equivalence.value_bounds import scope_range
from einnet_explore.ir import (
    Access,
    Const,
    Equation,
    Iterator,
    Program,
    Scalar,
    accesses,
    map_accesses,
    scopes,
    tensors,
)
from einnet_explore.ir.printer import scalar_text
from einnet_explore.support.errors import Refused
from einnet_explore.syntax.computation_graph import Graph, GraphNode
from einnet_explore.viz.figure import Figure

KernelGenerator: TypeAlias = "Callable[[Equation, Type, str], Kernel]"
"""Function that generates the kernel of an equation for an element type and dialect; raises Refused."""


@dataclass(frozen=True)
class KernelText:
    """Kernel text of the equation *name* in one dialect, or the reason *why* there is none."""

    name: str
    text: str
    why: str = ""


def elementwise_kernel(equation: Equation, kind: Type, dialect: str) -> Kernel:
    """Generate an elementwise kernel for GPUs: vector packs in a grid-stride loop."""
    if dialect == "c":
        raise Refused(f"kernel {equation.name}: grid-stride loops are for GPUs")
    return aligned_kernel(build_functor(equation.scope, equation.name, kind), prod(equation.scope.shape))


def tiled_kernel(equation: Equation, kind: Type, dialect: str) -> Kernel:
    """Generate a tiled contraction for GPUs; the best-first search chooses the tile."""
    if dialect == "c":
        raise Refused(f"kernel {equation.name}: tiles in shared memory are for GPUs")
    try:
        return tile_contraction(equation.scope, kind=kind, name=equation.name).kernel
    except Refused:
        raise
    except ValueError as error:
        raise Refused(f"kernel {equation.name}: {error}") from None


def staged_kernel(equation: Equation, kind: Type, dialect: str) -> Kernel:
    """Generate a staged kernel for any other equation, nested reductions included; in C its sizes are arguments."""
    inputs = tuple(dict.fromkeys(tensors(equation.scope)))
    shapes = {t.name: t.shape for t in inputs}
    try:
        fused = fuse_program(Program(inputs, (equation,), (equation.name,)))
    except Refused as error:
        raise Refused(f"kernel {equation.name}: {error}") from None
    flat, kernel = gpu_launch(fused, shapes, kind.dtype)
    return replace(cpu_kernel(flat, kind) if dialect == "c" else kernel, name=equation.name)


KERNEL_GENERATORS: tuple[KernelGenerator, ...] = (elementwise_kernel, tiled_kernel, staged_kernel)


def kernel_texts(
    program: Program, dialect: str, dtype: str = "float32", makers: tuple[KernelGenerator, ...] = KERNEL_GENERATORS
) -> tuple[KernelText, ...]:
    """For each equation of *program* the kernel of the first of *makers* that makes one.

    All tensors have elements of *dtype*.  Raises Refused for an unknown dtype, an unknown dialect, values that an
    integer type of less than 32 bits does not hold, and where no equation has a kernel, with the reason of each.
    """
    kind = type_of(dtype)
    if dtype != "float32" and any(is_typed(e.scope) for e in program.equations):
        raise Refused(f"found dtype {dtype}, expected none: tensors of the program have types of their own")
    require_range(program, kind)
    found = tuple(_text(e, kind, dialect, makers) for e in program.equations)
    if not any(k.text for k in found):
        raise Refused("no kernel: " + "; ".join(k.why for k in found))
    return found


def _text(equation: Equation, kind: Type, dialect: str, makers: tuple[KernelGenerator, ...]) -> KernelText:
    why: list[str] = []
    for make in (staged_kernel,) if is_typed(equation.scope) else makers:
        try:
            return KernelText(equation.name, emit(make(equation, kind, dialect), dialect))
        except Refused as error:
            why.append(str(error))
    return KernelText(equation.name, "", "; ".join(dict.fromkeys(why)))


def require_range(program: Program, kind: Type) -> None:
    """Raise Refused if a value of *program* may lie outside *kind*, an integer type of less than 32 bits.

    Sums of wider integers wrap, as NumPy's do.
    """
    if not kind.integer or kind.bits >= 32:
        return
    limits = np.iinfo(np.dtype(f"{kind.kind}{kind.bits}"))
    for equation in program.equations:
        for _, scope in scopes(equation.scope):
            low, high = scope_range(scope, (float(limits.min), float(limits.max)))
            if low < limits.min or high > limits.max:
                raise Refused(
                    f"{equation.name}: values lie in [{low:.0f}, {high:.0f}], {kind} holds [{limits.min}, "
                    f"{limits.max}]; expected a wider dtype"
                )


def stage_graph(fused: FusedKernel) -> Graph:
    """Return the graph of *fused*: memory, the heads and nests of each stage, and an edge for every access.

    Node kinds are those of ``syntax.computation_graph``: ``input`` for memory of inputs and outputs, ``library`` for
    nests with a reduction, ``eOperator`` for other nests, ``expression`` for values of a grid point, ``view`` for
    temporaries.
    """
    nodes = [GraphNode(t.name, "input", f"{t.name}\n{'×'.join(map(str, t.shape))}") for t in fused.inputs]
    edges: dict[tuple[str, str, str], None] = {}
    home: dict[str, str] = {t.name: t.name for t in fused.inputs}
    for n, stage in enumerate(fused.stages):
        parts: list[tuple[str, str, str, tuple[FusedStep, ...]]] = []
        if stage.heads:
            parts.append((f"stage {n}", "expression", "", stage.heads))
        for k, nest in enumerate(stage.nests):
            name = f"stage {n} nest {k}" if len(stage.nests) > 1 else f"stage {n} nest"
            kind = "library" if any(s.reduce is not None for s in nest.steps) else "eOperator"
            parts.append((name, kind, _loops(nest), nest.steps))
        for name, kind, loops, steps in parts:
            lines = [name, *([loops] if loops else []), *(_step_text(fused, s) for s in steps)]
            nodes.append(GraphNode(name, kind, "\n".join(lines)))
            own = {s.name for s in steps}
            for step in steps:
                for access in accesses(step.body):
                    source = read_name(access)
                    if source in home and source not in own:
                        edges[home[source], name, source if home[source] != source else ""] = None
            for step in steps:
                home[step.name] = name
                if step.stores:
                    home[step.name] = _memory(fused, step, name, nodes, edges)
    return Graph(tuple(nodes), tuple(edges))


def _memory(
    fused: FusedKernel, step: FusedStep, name: str, nodes: list[GraphNode], edges: dict[tuple[str, str, str], None]
) -> str:
    """Add the node of the memory that *step* writes and the edge from *name*; return the node's name."""
    space = fused.spaces[step.name]
    where = {"output": "output", "temporary": "temporary"}[space.kind]
    if space.beside is not None:
        where = f"in the memory of {space.beside}"
    elif space.slot is not None:
        where = f"temporary, slot {space.slot}"
    memory = f"{step.name} in memory"
    nodes.append(GraphNode(memory, "input" if space.kind == "output" else "view", f"{step.name}\n{where}"))
    edges[name, memory, ""] = None
    return memory


def _loops(nest: FusedNest) -> str:
    each = f"each {_names(nest.traversals)}" if nest.traversals else ""
    over = f"over {_names(nest.summations)}" if nest.summations else ""
    return ", ".join(filter(None, (each, over)))


def _names(axes: Iterable[Iterator]) -> str:
    return " ".join(f"{x.name}:{x.extent}" for x in axes)


def _step_text(fused: FusedKernel, step: FusedStep) -> str:
    assign = "=" if step.reduce is None else f"{step.reduce}="
    return f"{step.name} {assign} {scalar_text(_inline_constants(fused, step.body))}"


def _inline_constants(fused: FusedKernel, body: Scalar) -> Scalar:
    """Return *body* with its constant arguments replaced by numbers."""
    numbers = {constant_argument(n): value for n, value in enumerate(fused.constants)}

    def number(access: Access) -> Scalar:
        value = numbers.get(access.source)  # type: ignore[arg-type]
        return access if value is None else Const(value)

    return map_accesses(body, number)


def stage_summary(fused: FusedKernel) -> str:
    """Describe the plan: the grid, then a line for each value."""
    lines = [f"grid: {_names(fused.grid) or 'one point'}; waits: {fused.barriers}; slots: {fused.slots}"]
    for n, stage in enumerate(fused.stages):
        lines.append(f"stage {n}" + (" (memory is seen by all afterwards)" if stage.barrier else ""))
        lines += [f"  {_step_text(fused, s)}" for s in stage.heads]
        for nest in stage.nests:
            lines.append(f"  {_loops(nest) or 'once'}:")
            lines += [
                f"    {_step_text(fused, s)}{' -> ' + _memory_of(fused, s) if s.stores else ''}" for s in nest.steps
            ]
    return "\n".join(lines)


def _memory_of(fused: FusedKernel, step: FusedStep) -> str:
    space = fused.spaces[step.name]
    if space.beside is not None:
        return f"memory of {space.beside}"
    return "memory" if space.slot is None else f"slot {space.slot}"


def contiguous_plan(fused: FusedKernel) -> FusedLayout:
    """Return *fused* for contiguous arrays of the sizes it was analysed with."""
    shapes = {t.name: t.shape for t in fused.program.inputs}
    outputs = {o.name: o.scope.shape for o in fused.operations if o.output}
    whole = {t.name: t.shape for t in fused.inputs} | outputs
    strides = {name: tuple(prod(shape[d + 1 :]) for d in range(len(shape))) for name, shape in whole.items()}
    return lay_out(fused, shapes, strides)


def stages_text(fused: FusedKernel) -> str:
    """Describe the plan, its size equalities, the axes for contiguous arrays, and the estimates for CPU and GPU."""
    flat = contiguous_plan(fused)
    axes = " ".join(f"{x.name}:{flat.extents[x]}" for x in flat.order)
    lines = [stage_summary(fused), f"equalities: {', '.join(fused.sizes.equalities) or 'none'}"]
    lines.append(f"axes of contiguous arrays: {axes or 'none'}")
    lines += [str(estimate_fusion(flat, target)) for target in (A100_TARGET, CPU_CORE_TARGET)]
    return "\n".join(lines)


def fused_text(fused: FusedKernel, dialect: str, dtype: str = "float32") -> str:
    """Return the kernel for contiguous arrays in *dialect*: by blocks for ``cuda`` and ``opencl``, by points for ``c``.

    Raises Refused for an unknown dialect or dtype, and for values that an integer type of less than 32 bits does not
    hold.
    """
    flat, kind = contiguous_plan(fused), type_of(dtype)
    require_range(fused.program, kind)
    return emit(cpu_kernel(flat, kind) if dialect == "c" else gpu_kernel(flat, kind), dialect)


_REJECTION_MARKERS = {"over memory": ("v", "#c0392b"), "over regs": ("x", "#8e5ea2")}
"""Marker and colour of each reason."""

_REJECTED_SCORE = -0.06
"""Vertical position of rejected sizes, which have no score."""


def tile_figure(search: TileSearch, title: str = "") -> Figure:
    """Plot the score of every visited tile size over its products (how much a group computes from one load).

    Raises ValueError without Matplotlib.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Page
    except ImportError:
        raise ValueError("matplotlib is not installed; expected it for figures: pip install matplotlib") from None
    good = [c for c in search.visited if not c.rejected]
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "einnet", "font.size": 9}):
        page = Page(figsize=(7.2, 4.2), layout="constrained")
        axes = page.subplots()
        drawn = axes.scatter(
            [_products(c) for c in good],
            [c.score for c in good],
            c=range(len(good)),
            cmap="viridis",
            s=12,
            label="possible, early (dark) to late",
        )
        page.colorbar(drawn, ax=axes, label="order of visit")
        for n, (reason, (marker, colour)) in enumerate(_REJECTION_MARKERS.items()):
            bad = [c for c in search.visited if c.rejected == reason]
            height = _REJECTED_SCORE * (n + 1)
            across, label = [_products(c) for c in bad], f"{reason}: {len(bad)}"
            axes.scatter(across, [height] * len(bad), label=label, marker=marker, color=colour, s=12, linewidths=0.8)
        best = search.chosen
        axes.scatter([_products(best)], [best.score], s=90, facecolors="none", edgecolors="#c0392b", linewidths=1.6)
        tile = ", ".join(map(str, best.tile))
        axes.annotate(f"[{tile}]", (_products(best), best.score), xytext=(0, 9), textcoords="offset points", ha="right")
        axes.set_xscale("log", base=2)
        axes.set_ylim(_REJECTED_SCORE * (len(_REJECTION_MARKERS) + 1), 1.14)
        axes.set_xlabel("products in a tile")
        axes.set_ylabel("score")
        axes.set_title(title or f"{len(search.visited)} tile sizes, {search.ties} of them the best", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False, loc="upper left")
        written = io.StringIO()
        page.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    counts = ", ".join(f"{sum(c.rejected == r for c in search.visited)} {r}" for r in _REJECTION_MARKERS)
    return Figure(text[text.index("<svg") :], f"{len(search.visited)} tile sizes ({counts}); chosen: [{tile}]")


def _products(cost: TileCost) -> int:
    return prod(cost.tile)
