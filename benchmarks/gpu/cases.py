"""Checked and measured cases: programs and their plans, made without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from benchmarks.longformer import Sizes
from benchmarks.longformer import expression as band_attention
from einnet_evaluation import fused_programs
from einnet_evaluation.operator_cases import derive, table3_cases
from einnet_explore.analysis.online_softmax import match_online_softmax
from einnet_explore.codegen import elementwise
from einnet_explore.codegen.elementwise import Functor, build_functor, operand_read
from einnet_explore.codegen.language.values import F16, F32, I32
from einnet_explore.codegen.rows.online_gpu import online_kernel, online_tile
from einnet_explore.cost import program_seconds
from einnet_explore.cost.model import work
from einnet_explore.ir import VIEW, Equation, Program, tensors
from einnet_explore.runtime.cuda.plan import cuda_plan, kernel_launch, one_kernel_plan, scope_launch, with_softmax_sums
from einnet_explore.runtime.cuda.steps import CudaLaunch, CudaPlan
from einnet_explore.runtime.fused import split_operations
from einnet_explore.runtime.profile_store import profile_key
from einnet_explore.session.run import Run
from einnet_explore.strategies.options import Options
from einnet_explore.support.errors import BackendError
from einnet_explore.syntax import parse

POINTWISE = {
    "relu": "Y[i:{n}] = relu(A[i])",
    "residual, relu": "Y[i:{n}] = relu(A[i] + B[i])",
    "hard swish": "Y[i:{n}] = A[i] * minimum(maximum(A[i] / 6 + 0.5, 0), 1)",
    "swish": "Y[i:{n}] = A[i] * sigmoid(A[i])",
}
HALF = ("hard swish", "residual, relu")
"""Those of ``POINTWISE`` that are measured in half precision too."""

MOVING = {
    "transpose": "tensor A[{n}, {m}]\nY[i:{m}, j:{n}] = A[j, i]",
    "NCHW to NHWC": "tensor A[16, 64, {n}, 64]\nY[b:16, h:{n}, w:64, c:64] = A[b, c, h, w]",
    "shifted sum": "tensor A[{n}, {m}] pad [1, 1]\nY[i:{n}, j:{m}] = sum[r:3] A[i+r-1, j+r-1]",
}


@dataclass(frozen=True)
class Case:
    """One thing to measure: our *plans* by name against *baselines* that the runner knows by *kind*.

    *nbytes* are what any way has to move, *flops* what the case in its first form computes; *settings* are the
    baselines' arguments.
    """

    name: str
    kind: str
    plans: Mapping[str, CudaPlan]
    nbytes: int
    flops: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """An entry of the bundle's ``cases``."""
        plans = {name: plan.to_json() for name, plan in self.plans.items()}
        return {**vars(self), "plans": plans, "settings": dict(self.settings)}


def cast(n: int) -> Case:
    """Float32 to half: the template against a plain kernel of one element a thread."""
    functor = Functor(operand_read("x"), F16, (("x", F32),), name="cast")
    whole = elementwise.plan_launch(n, functor.kinds, [0, 0])
    # As anyone writes it first: a thread an element, no loop that goes round twice.
    plain = elementwise.ElementwiseLaunch(1, n, 0, -(-n // elementwise.BLOCK_THREADS), I32)
    plans = {
        "template": _pointwise(functor, whole, {"x": (n,)}, {"y": "float16"}),
        "one element a thread": _pointwise(functor, plain, {"x": (n,)}, {"y": "float16"}),
    }
    return Case(f"cast float32 to half, {n}", "cast", plans, 6 * n, settings={"n": n})


def pointwise(name: str, n: int) -> Case:
    """An element-wise program."""
    program = _pointwise_program(name, n)
    nbytes = 4 * n * (1 + len(program.inputs))
    return Case(f"{name}, {n}", "pointwise", {"ours": cuda_plan(program)}, nbytes, settings={"what": name})


def pointwise_half(name: str, n: int) -> Case:
    """An element-wise program of half-precision operands and result, which computes two elements at a time."""
    program = _pointwise_program(name, n)
    nbytes = 2 * n * (1 + len(program.inputs))
    return Case(f"{name} half, {n}", "pointwise", {"ours": _in_half(program)}, nbytes, settings={"what": name})


def _in_half(program: Program) -> CudaPlan:
    (equation,) = program.equations
    functor = build_functor(equation.scope, equation.name, F16)
    (n,) = equation.scope.shape
    inputs = {t.name: t.shape for t in program.inputs}
    dtypes = dict.fromkeys((*inputs, equation.name), "float16")
    launch = elementwise.plan_launch(n, functor.kinds, [0] * len(functor.kinds))
    return _pointwise(functor, launch, inputs, dtypes, equation.name)


def _pointwise_program(name: str, n: int) -> Program:
    text = POINTWISE[name].format(n=n)
    return parse("\n".join([*(f"tensor {t}[{n}]" for t in "AB" if f"{t}[" in text), text]))


REDUCTIONS: Mapping[str, Callable[..., Program]] = {
    "softmax": fused_programs.softmax,
    "layer norm": fused_programs.layer_norm,
    "group norm": fused_programs.group_norm,
    "batch norm": fused_programs.batch_norm,
}


HOPPER_SHARED_BYTES = 227 << 10
"""Shared memory that a block may have from sm_90 on."""


def reduction(name: str, *shape: int) -> Case:
    """Softmax or a normalisation: one kernel, a kernel an operation; at least, elements are read and written once."""
    program = REDUCTIONS[name](*shape)
    plans = {"fused": one_kernel_plan(program), "unfused": unfused(program)}
    larger = one_kernel_plan(program, HOPPER_SHARED_BYTES)
    if larger.steps != plans["fused"].steps:
        plans[f"fused, {HOPPER_SHARED_BYTES >> 10} KiB shared"] = larger
    label = f"{name} {'x'.join(map(str, shape))}"
    return Case(label, "reduction", plans, 8 * prod(shape), settings={"what": name, "shape": list(shape)})


def product(rows: int, depth: int, columns: int, dtype: str) -> Case:
    """A linear layer with its bias and ReLU, which are the epilogue of one library call; tensors of *dtype*."""
    program = parse(f"""
        tensor A[{rows}, {depth}] {dtype}
        tensor W[{depth}, {columns}] {dtype}
        tensor b[{columns}] {dtype}
        P[i:{rows}, j:{columns}] = sum[k:{depth}] A[i, k] * W[k, j]
        Y[i:{rows}, j:{columns}] = {dtype}(relu(P[i, j] + b[j]))""")
    apart = replace(cuda_plan(replace(program, outputs=("P", "Y"))), outputs=("Y",))
    label = f"linear layer with ReLU, {dtype} {rows}x{depth}x{columns}"
    return _product(label, "linear layer", program, 2 * rows * depth * columns, {"without epilogue": apart})


def half_convolution(n: int, c: int, side: int, f: int) -> Case:
    """A 3x3 convolution of halves, its bias and swish, on tensor cores as one kernel."""
    program = parse(f"""
        tensor A[{n}, {c}, {side}, {side}] pad [0, 0, 1, 1] float16
        tensor W[{f}, {c}, 3, 3] float16
        tensor b[{f}] float16
        P[n:{n}, f:{f}, h:{side}, w:{side}] = sum[c:{c}, r:3, s:3] A[n, c, h+r-1, w+s-1] * W[f, c, r, s]
        Z[n:{n}, f:{f}, h:{side}, w:{side}] = P[n, f, h, w] + b[f]
        Y[n:{n}, f:{f}, h:{side}, w:{side}] = float16(Z[n, f, h, w] * sigmoid(Z[n, f, h, w]))""")
    label = f"convolution with swish, float16 {n}x{c}x{side}x{side} to {f}"
    return _product(label, "convolution", program, 18 * n * f * c * side * side)


def half_band(heads: int, rows: int, depth: int, half: int, dilation: int) -> Case:
    """G2BMM of halves: products of rows with the rows of a dilated band, on tensor cores."""
    width, reach = 2 * half + 1, half * dilation
    program = parse(f"""
        tensor A[{heads}, {rows}, {depth}] float16
        tensor B[{heads}, {rows}, {depth}] pad [0, {reach}, 0] float16
        Y[b:{heads}, i:{rows}, w:{width}] = sum[k:{depth}] A[b, i, k] * B[b, i+{dilation}*w-{reach}, k]""")
    label = f"G2BMM, float16 {heads}x{rows}x{depth}, {width}"
    return _product(label, "band", program, 2 * heads * rows * width * depth)


def _product(label: str, what: str, program: Program, flops: int, more: Mapping[str, CudaPlan] | None = None) -> Case:
    ours = cuda_plan(program)
    tensors_ = (*program.inputs, *(e.tensor for e in program.equations if e.name in program.outputs))
    nbytes = sum(prod(t.shape) * (2 if t.dtype == "float16" else 4) for t in tensors_)
    return Case(label, "product", {"ours": ours, **(more or {})}, nbytes, flops, {"what": what})


def band(rows: int, half: int) -> Case:
    """LongFormer's attention of eight heads: every row sees *half* rows to either side, every fourth one."""
    sizes = Sizes(rows=rows, half=half)
    program = band_attention(sizes)
    flops = 4 * sizes.heads * rows * sizes.window * sizes.features
    settings: dict[str, Any] = {n: getattr(sizes, n) for n in ("rows", "features", "heads", "half", "dilation")}
    far, reach = float(sizes.outside.min()), sizes.reach
    settings["runs"] = {"outside": [[reach, far], [rows, 0.0], [reach, far]]}
    ours = cuda_plan(program)
    plans = {"ours": ours, **tall_tile(program, ours)}
    nbytes = 16 * sizes.heads * rows * sizes.features
    return Case(f"band attention {rows}, {sizes.window}", "band", plans, nbytes, flops, settings)


def tall_tile(program: Program, ours: CudaPlan) -> dict[str, CudaPlan]:
    """*ours* with a tile of eight rows a thread: fewer threads, and fewer reads of shared memory for each product."""
    equation = with_softmax_sums(program).equations[0]
    online = match_online_softmax(equation.scope)
    tile = online_tile(online, 1)
    kernel = online_kernel(online, equation.name, tile=replace(tile, threads=8, steps=tile.rows // 8))
    launch = scope_launch(kernel, equation.name)
    return {"ours, eight rows a thread": replace(ours, steps=(launch, *ours.steps[1:]))}


def moving(name: str, n: int, m: int) -> Case:
    """An eOperator that is bound by memory."""
    program = parse(MOVING[name].format(n=n, m=m))
    nbytes = work(program.equations[0].scope).nbytes
    plans = {"ours": cuda_plan(program), **by_tvm(program, "tvm")}
    return Case(f"eOperator {name} {n}x{m}", "bandwidth", plans, nbytes)


def by_tvm(program: Program, label: str) -> dict[str, CudaPlan]:
    """*program*, of one equation, by TVM's CUDA text, as the plan *label*; none without TVM, or where it fails."""
    try:
        from benchmarks.gpu.tvm_text import tvm_launch
    except ModuleNotFoundError:
        return {}
    if len(program.equations) != 1:
        return {}
    (equation,) = program.equations
    try:
        step = tvm_launch(equation.scope, equation.name)
    except BackendError:
        return {}
    buffers = {t.name: t.shape for t in program.inputs} | {equation.name: equation.scope.shape}
    inputs, weights = (tuple(t.name for t in program.inputs if t.weight is one) for one in (False, True))
    return {label: CudaPlan(buffers, inputs, weights, program.outputs, (step,))}


def table3(quick: bool, seconds: float) -> Iterable[tuple[Case, tuple[Program, Program]]]:
    """Table 3's operators, generated as they are and as derived, with both programs."""
    for case in table3_cases(quick):
        derivation = derive(case, seconds)
        start, end = derivation.start, derivation.end
        plans = {"before, generated": cuda_plan(start, ()), "after": cuda_plan(end), **by_tvm(start, "before, tvm")}
        if any(s.op == "convolution" for s in plans["after"].steps):
            plans["after, generated"] = cuda_plan(end, ())
        if (library := _library(start)) is not None:
            plans["before, library"] = library
        done = work(start.equations[0].scope)
        settings = {"published_ms": list(case.published), "figure": case.figure}
        yield Case(f"Table 3 {case.name}", "table 3", plans, done.nbytes, done.flops, settings), (start, end)


def _library(program: Program) -> CudaPlan | None:
    """*program* as it is, by a library's convolution; None where it is none."""
    found = Run(program, program_seconds, options=Options(max_depth=0))
    for _ in found:
        pass
    plans = (cuda_plan(c.program) for c in sorted(found.candidates, key=lambda c: c.seconds))
    return next((p for p in plans if any(s.op == "convolution" for s in p.steps)), None)


def unfused(program: Program) -> CudaPlan:
    """A kernel an operation, each the best one for it alone."""
    buffers: dict[str, tuple[int, ...]] = {t.name: t.shape for t in program.inputs}
    steps = []
    for one in split_operations(program):
        made = cuda_plan(one)
        buffers |= made.buffers
        steps += made.steps
    return CudaPlan(buffers, tuple(t.name for t in program.inputs), (), program.outputs, tuple(steps))


SMALL_REDUCTIONS = {
    "batch norm": (4, 5, 6, 7),
    "layer norm": (9, 70),
    "softmax": (5, 300),
    "group norm": (3, 2, 4, 5, 7),
}


def checked(derived: Sequence[Program]) -> Mapping[str, tuple[Program, CudaPlan]]:
    """Small programs whose outputs are stored: one for every kind of kernel, and *derived* ones."""
    found: dict[str, tuple[Program, CudaPlan]] = {}
    for name in POINTWISE:
        program = _pointwise_program(name, 1003)  # packs, and some left over
        found[name] = program, cuda_plan(program)
    for name in HALF:
        program = _pointwise_program(name, 1003)
        found[f"{name} half"] = program, _in_half(program)
    for name, text in MOVING.items():
        program = parse(text.format(n=33, m=47))
        found[name] = program, cuda_plan(program)
    for name, shape in SMALL_REDUCTIONS.items():
        program = REDUCTIONS[name](*shape)
        found[name] = program, one_kernel_plan(program)
        found[f"{name}, unfused"] = program, unfused(program)
    program = band_attention(Sizes(rows=64, features=8, heads=2, half=5))
    found["band attention"] = program, cuda_plan(program)
    for n, program in enumerate(derived):
        found[f"derived {n}"] = program, cuda_plan(program)
        found[f"derived {n}, generated"] = program, cuda_plan(program, ())
    return found


def profiled(programs: Iterable[Program]) -> Mapping[str, dict[str, Any]]:
    """Every equation of *programs* that takes time, with the key that its time is kept under."""
    found: dict[str, dict[str, Any]] = {}
    for program in programs:
        for equation in program.equations:
            if equation.via is None or equation.via.operator == VIEW:
                continue
            key = profile_key(equation)
            inputs = tuple(dict.fromkeys(tensors(equation.scope)))
            plan = cuda_plan(
                Program(inputs, (Equation(equation.name, equation.scope, equation.via),), (equation.name,))
            )
            if plan.once:
                continue  # weights only
            place = [key.operator, key.attributes, key.shapes, key.dtype]
            found[" ".join(place)] = {"key": place, "plan": plan.to_json()}
    return found


def _pointwise(
    functor: Functor,
    launch: elementwise.ElementwiseLaunch,
    inputs: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    out: str = "y",
) -> CudaPlan:
    (shape,) = set(inputs.values())
    step: CudaLaunch = kernel_launch(
        elementwise.grid_stride_kernel(functor, launch),
        [out, *inputs, launch.packs, launch.tail],
        (launch.blocks, 1, 1),
    )
    assert launch.packs * launch.pack + launch.tail == prod(shape)
    return CudaPlan({**inputs, out: shape}, tuple(inputs), (), (out,), (step,), dtypes=dtypes)
