"""The kernels of a program's equations, as text: what ``show --kernel`` prints.

A fused program in words: its stages, what its sizes need, what it is expected to gain; and its kernels as text.

The stages of a fused kernel as a picture: what each reads, holds, reduces and writes, and where threads wait.

The search for a tile size as a picture: scores over the tile's products, what was rejected by its reason.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from einnet_explore.codegen import elementwise
from einnet_explore.codegen.functor import build_functor
from einnet_explore.codegen.fusion import fuse_program
from einnet_explore.codegen.fusion.cpu import cpu_kernel
from einnet_explore.codegen.fusion.gpu import gpu_kernel
from einnet_explore.codegen.fusion.memory_layout import FusedLayout, lay_out
from einnet_explore.codegen.fusion.operations import read_name
from einnet_explore.codegen.fusion.plan import FusedKernel, constant_argument
from einnet_explore.codegen.fusion.profitability import A100_TARGET, CPU_CORE_TARGET, estimate_fusion
from einnet_explore.codegen.fusion.stages import FusedNest, FusedStep
from einnet_explore.codegen.language import Kernel, Type, emit, type_of
from einnet_explore.codegen.machine import this_machine
from einnet_explore.codegen.tiling import Hardware, TileCost, TileSearch, cpu_hardware, tile_contraction
from einnet_explore.ir import Access, Const, Equation, Iterator, Program, Scalar, accesses, map_accesses, tensors
from einnet_explore.runtime.emulated_blocks import gpu_launch
from einnet_explore.support.errors import Refused
from einnet_explore.syntax.computation_graph import Graph, GraphNode
from einnet_explore.syntax.printer import scalar as said
from einnet_explore.viz.figure import Figure

KernelGenerator: TypeAlias = "Callable[[Equation, Type, str], Kernel]"
"""The kernel of an equation over elements of a type in a dialect; raises Refused where it makes none."""


@dataclass(frozen=True)
class KernelText:
    """The kernel of the equation *name* in one dialect, and where there is none, *why* not."""

    name: str
    text: str
    why: str = ""


def elementwise_kernel(equation: Equation, kind: Type, dialect: str) -> Kernel:
    """An element-wise equation: packs in a grid-stride loop; neighbouring elements a block in C, for CPUs."""
    made = build_functor(equation.scope, equation.name, kind)
    return (
        elementwise.elementwise_host_kernel(made)
        if dialect == "c"
        else elementwise.aligned_kernel(made, prod(equation.scope.shape))
    )


def tiled_kernel(equation: Equation, kind: Type, dialect: str) -> Kernel:
    """A contraction in tiles of the size that the best-first search finds; for a core's caches in C."""
    hardware = cpu_hardware(this_machine()) if dialect == "c" else Hardware()
    try:
        return tile_contraction(equation.scope, hardware, kind=kind, name=equation.name).kernel
    except Refused:
        raise
    except ValueError as error:
        raise Refused(f"kernel {equation.name}: {error}") from None


def staged_kernel(equation: Equation, kind: Type, dialect: str) -> Kernel:
    """Anything else, nested reductions too: stages at every point of a grid; sizes and strides are arguments in C."""
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

    All tensors have elements of *dtype*.  Raises Refused for an unknown dtype, an unknown dialect, and where no
    equation has a kernel, with the reason of each.
    """
    kind = type_of(dtype)
    found = tuple(_text(e, kind, dialect, makers) for e in program.equations)
    if not any(k.text for k in found):
        raise Refused("no kernel: " + "; ".join(k.why for k in found))
    return found


def _text(equation: Equation, kind: Type, dialect: str, makers: tuple[KernelGenerator, ...]) -> KernelText:
    why: list[str] = []
    for make in makers:
        try:
            return KernelText(equation.name, emit(make(equation, kind, dialect), dialect))
        except Refused as error:
            why.append(str(error))
    return KernelText(equation.name, "", "; ".join(dict.fromkeys(why)))


def stage_graph(fused: FusedKernel) -> Graph:
    """The graph of *fused*: memory, per stage its heads and nests, and an edge for everything that is read.

    Kinds are those of ``syntax.computation_graph``: inputs and outputs in memory, a nest that reduces as a library
    operator, one that does not as an eOperator, values of a whole point of the grid as an expression; temporaries are
    views.
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
            lines = [name, *([loops] if loops else []), *(_said(fused, s) for s in steps)]
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
    """The node of the memory that *step* writes; its edge from *name*."""
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


def _said(fused: FusedKernel, step: FusedStep) -> str:
    return f"{step.name} {'=' if step.reduce is None else step.reduce + '='} {said(_plain(fused, step.body))}"


def _plain(fused: FusedKernel, body: Scalar) -> Scalar:
    """*body* with its constants as numbers."""
    numbers = {constant_argument(n): value for n, value in enumerate(fused.constants)}

    def number(access: Access) -> Scalar:
        value = numbers.get(access.source)  # type: ignore[arg-type]
        return access if value is None else Const(value)

    return map_accesses(body, number)


def stage_summary(fused: FusedKernel) -> str:
    """The plan in words: the grid, then a line a value."""
    lines = [f"grid: {_names(fused.grid) or 'one point'}; waits: {fused.barriers}; slots: {fused.slots}"]
    for n, stage in enumerate(fused.stages):
        lines.append(f"stage {n}" + (" (memory is seen by all afterwards)" if stage.barrier else ""))
        lines += [f"  {_said(fused, s)}" for s in stage.heads]
        for nest in stage.nests:
            lines.append(f"  {_loops(nest) or 'once'}:")
            lines += [f"    {_said(fused, s)}{' -> ' + _kept(fused, s) if s.stores else ''}" for s in nest.steps]
    return "\n".join(lines)


def _kept(fused: FusedKernel, step: FusedStep) -> str:
    space = fused.spaces[step.name]
    if space.beside is not None:
        return f"memory of {space.beside}"
    return "memory" if space.slot is None else f"slot {space.slot}"


def contiguous_plan(fused: FusedKernel) -> FusedLayout:
    """*fused* for contiguous arrays of the sizes that it was analysed with."""
    shapes = {t.name: t.shape for t in fused.program.inputs}
    outputs = {o.name: o.scope.shape for o in fused.operations if o.output}
    whole = {t.name: t.shape for t in fused.inputs} | outputs
    strides = {name: tuple(prod(shape[d + 1 :]) for d in range(len(shape))) for name, shape in whole.items()}
    return lay_out(fused, shapes, strides)


def stages_text(fused: FusedKernel) -> str:
    """The plan, the recorded equalities, the axes that are left for contiguous arrays, and both estimates."""
    flat = contiguous_plan(fused)
    axes = " ".join(f"{x.name}:{flat.extents[x]}" for x in flat.order)
    lines = [stage_summary(fused), f"equalities: {', '.join(fused.sizes.equalities) or 'none'}"]
    lines.append(f"axes of contiguous arrays: {axes or 'none'}")
    lines += [str(estimate_fusion(flat, target)) for target in (A100_TARGET, CPU_CORE_TARGET)]
    return "\n".join(lines)


def fused_text(fused: FusedKernel, dialect: str, dtype: str = "float32") -> str:
    """The kernel for contiguous arrays in *dialect*: of blocks for ``cuda`` and ``opencl``, of points for ``c``.

    Raises Refused for an unknown dialect or dtype.
    """
    flat, kind = contiguous_plan(fused), type_of(dtype)
    return emit(cpu_kernel(flat, kind) if dialect == "c" else gpu_kernel(flat, kind), dialect)


_REJECTION_MARKERS = {"over memory": ("v", "#c0392b"), "over regs": ("x", "#8e5ea2")}
"""The marker and the colour of each."""

_REJECTED_SCORE = -0.06
"""Where rejected sizes are drawn: they have no score."""


def tile_figure(search: TileSearch, title: str = "") -> Figure:
    """Every visited size: its products across (how much a group computes from one load), its score up.

    Raises ValueError where Matplotlib is missing.
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
        said = ", ".join(map(str, best.tile))
        axes.annotate(f"[{said}]", (_products(best), best.score), xytext=(0, 9), textcoords="offset points", ha="right")
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
    return Figure(text[text.index("<svg") :], f"{len(search.visited)} tile sizes ({counts}); chosen: [{said}]")


def _products(cost: TileCost) -> int:
    return prod(cost.tile)
