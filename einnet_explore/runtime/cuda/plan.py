"""GPU plans, made without a device: cuBLAS for matrix products, cuDNN for convolutions, generated kernels.

A view costs nothing: its readers read its source.  A bias and ReLU after a product are its epilogue.  Softmax-weighted
sums (attention to all keys or to a window) become one equation each, where no library runs a part of them.  Every other
equation that no library runs is one kernel: packed element-wise, a copy along the result or through transpose tiles, a
softmax-weighted sum in one pass, a tiled contraction, a product of halves on tensor cores, else a fused reduction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from einnet_explore.analysis.equations import weight_only
from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.analysis.indices import is_inside_box, substitute
from einnet_explore.analysis.online_softmax import match_online_softmax
from einnet_explore.analysis.products import TensorContraction, match_matrix_product
from einnet_explore.codegen import elementwise
from einnet_explore.codegen.copies import copy_kernel
from einnet_explore.codegen.elementwise import build_functor
from einnet_explore.codegen.fusion.frame import slot_name, slot_sizes
from einnet_explore.codegen.fusion.gpu import A100_TARGET, estimate_fusion, gpu_layout
from einnet_explore.codegen.fusion.operations import ValueType, typed_program
from einnet_explore.codegen.fusion.plan import FusedKernel, fuse_program
from einnet_explore.codegen.fusion.registers import MAX_SHARED_BYTES, held_launch
from einnet_explore.codegen.language.printer import emit, entry_name
from einnet_explore.codegen.language.statements import Kernel, rewrite_statement
from einnet_explore.codegen.language.values import F16, F32, Array, Expr, Literal, Var, type_of
from einnet_explore.codegen.rows.online_gpu import online_kernel
from einnet_explore.codegen.tiling.cost import Hardware
from einnet_explore.codegen.tiling.fragments import fragment_contraction
from einnet_explore.codegen.tiling.kernel import tile_contraction
from einnet_explore.ir import (
    EOPERATOR,
    VIEW,
    Access,
    Apply,
    Equation,
    Program,
    Scalar,
    Scope,
    Tensor,
    accesses,
    map_accesses,
    map_tensors,
    tensors,
)
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator, onnx_node
from einnet_explore.rules import ONE_PASS_GENERATION, ROW_GENERATION, VARIABLE_SUBSTITUTION, Derivation
from einnet_explore.runtime.cuda.epilogues import EpilogueChain, epilogue_chains
from einnet_explore.runtime.cuda.steps import Convolution, CudaLaunch, CudaPlan, CudaProduct, Shape, Step, View
from einnet_explore.runtime.fused import split_operations
from einnet_explore.runtime.matrix_products import matrices
from einnet_explore.strategies.vertical_fusion import vertical_fusions
from einnet_explore.support.errors import BackendError, Refused

DTYPE = "float32"

GPU = Hardware(memory=22 << 10, registers=32 << 10, groups=132, square=True, stages=2)
"""The hardware for which tiles are chosen: each multiprocessor runs four blocks of 256 threads and 32 sums each; 48 KiB
of shared memory, the default of a block, hold two tiles of every input."""

ONE_PASS_RULES = (ROW_GENERATION, ONE_PASS_GENERATION, VARIABLE_SUBSTITUTION)
"""The rules that make softmax-weighted sums one equation: of a band, of all columns, and of a dilated band."""

CONVOLUTIONS = ("Conv", "ConvTranspose")


def cuda_plan(program: Program, operators: Sequence[Operator] = OPERATORS) -> CudaPlan:
    """The steps of *program*: text only, made without a device.

    Tensors are stored in their types; arithmetic, and sums of products in half precision, are in float32.  Raises
    BackendError, which names the equation or tensor, where no kernel can be made of it, and for bfloat16.
    """
    every = (*program.inputs, *(e.tensor for e in program.equations))
    if (unknown := next((t for t in every if t.dtype == "bfloat16"), None)) is not None:
        raise BackendError(f"{unknown.name} is bfloat16, which CuPy does not have: expected float16 or float32")
    program = with_softmax_sums(program)
    maker = _Planner(program, operators)
    early, late = list[Step](), list[Step]()
    for equation in program.equations:
        if equation.name in maker.once:
            early += maker.steps(equation)
        elif equation.name not in maker.stored_by_products:
            late += maker.steps_in_groups(equation)
    late += maker.close_group()
    return CudaPlan(
        maker.buffers,
        tuple(t.name for t in program.inputs if not t.weight),
        tuple(t.name for t in program.inputs if t.weight),
        program.outputs,
        (*early, *late),
        len(early),
        dtypes=maker.dtypes,
    )


def with_softmax_sums(program: Program) -> Program:
    """Return the end of ``derive_softmax_sums``."""
    return derive_softmax_sums(program).end


def derive_softmax_sums(program: Program) -> Derivation:
    """Derive each softmax-weighted sum of open equations of *program* as one equation, if there are any."""
    start = Derivation(program)
    if not any(e.via is None and e.scope.reduce == "max" for e in program.equations):
        return start

    def one_pass(p: Program) -> int:
        return sum(_online_launch(e) is not None for e in p.equations)

    found = vertical_fusions(program, ONE_PASS_RULES)
    best = max(found, key=lambda d: (one_pass(d.end), -len(d.end.equations)), default=start)
    return best if one_pass(best.end) > one_pass(program) else start


def _online_launch(equation: Equation) -> CudaLaunch | None:
    """Return the launch of *equation* as a softmax-weighted sum in one pass; None for others, and if no tile fits."""
    scope, name = equation.scope, equation.name
    if any(t.dtype != DTYPE for t in tensors(scope)):
        return None
    if not scope.summations or not any(isinstance(a.source, Scope) for a in accesses(scope.body)):
        return None
    try:
        return scope_launch(online_kernel(match_online_softmax(scope), name, GPU.groups), name)
    except Refused:
        return None


class _Planner:
    """Writer of steps, equation by equation; ``views`` are the equations without a buffer."""

    def __init__(self, program: Program, operators: Sequence[Operator]) -> None:
        self.operators, self.outputs = operators, program.outputs
        self.buffers: dict[str, Shape] = {t.name: t.shape for t in program.inputs}
        self.views: dict[str, Scope] = {}
        self.dtypes = {t.name: t.dtype for t in program.inputs if t.dtype != DTYPE}
        self.places: dict[str, View] = {name: _whole_view(name, shape) for name, shape in self.buffers.items()}
        self.readers: dict[str, set[str]] = {}
        for equation in program.equations:
            for tensor in tensors(equation.scope):
                self.readers.setdefault(tensor.name, set()).add(equation.name)
        self.group: tuple[Equation, ...] = ()
        self.equations = {e.name: e for e in program.equations}
        self.once = weight_only(program)
        self.stored_by_products: set[str] = set()

    def steps_in_groups(self, equation: Equation) -> tuple[Step, ...]:
        """The steps that *equation* completes: one that no library runs waits for readers that join its kernel."""
        reads = {t.name for t in tensors(equation.scope)}
        waits = any(e.name in reads for e in self.group)
        seen = self._seen(equation)
        if (equation.via is not None and equation.via.operator != EOPERATOR) or _is_contraction(seen.scope):
            waits |= any(e.name in self._read_by_epilogues(equation) for e in self.group)
            done = self.close_group() if waits else ()
            return done if equation.name in self.stored_by_products else (*done, *self.steps(equation))
        rounded = any(e.name in reads and _unrounded(e) != e.scope for e in self.group)
        if waits and not rounded and self._is_one_kernel((*self.group, seen)):
            self.group = (*self.group, seen)
            return ()
        done = self.close_group()
        if equation.name not in self.stored_by_products:
            self.group = (seen,)
        return done

    def close_group(self) -> tuple[Step, ...]:
        """The steps of the equations that wait: one kernel, or those of a single equation."""
        group, self.group = self.group, ()
        if len(group) < 2:
            return self.steps(group[0]) if group else ()
        program = self._program(group)
        for equation in group:
            if equation.name in program.outputs:
                self._allocate(equation)
        return (fused_launch(program, self.buffers, self.dtypes),)

    def _allocate(self, equation: Equation) -> None:
        shape, dtype = equation.scope.shape, equation.tensor.dtype
        self.buffers[equation.name] = shape
        self.places[equation.name] = _whole_view(equation.name, shape)
        if dtype != DTYPE:
            self.dtypes[equation.name] = dtype

    def _seen(self, equation: Equation) -> Equation:
        """*equation* with the sources of views in their places."""
        scope = map_tensors(equation.scope, lambda tensor: self.views.get(tensor.name, tensor))
        return replace(equation, scope=scope)

    def _program(self, group: Sequence[Equation]) -> Program:
        """*group* as a program, whose outputs are what others read."""
        made = {e.name for e in group}
        inputs = dict.fromkeys(t for e in group for t in tensors(e.scope) if t.name not in made)
        outputs = [e.name for e in group if e.name in self.outputs or self.readers.get(e.name, set()) - made]
        return Program(tuple(inputs), tuple(Equation(e.name, e.scope) for e in group), tuple(outputs))

    def _is_one_kernel(self, group: Sequence[Equation]) -> bool:
        """Whether *group* is faster as one kernel."""
        try:
            program = self._program(group)
            flat = gpu_layout(_fused(program), {t.name: t.shape for t in program.inputs})
        except Refused:
            return False
        return estimate_fusion(flat, A100_TARGET).pays

    def steps(self, equation: Equation) -> tuple[Step, ...]:
        """The steps that compute *equation*: none for a view that is no output, which its readers read through."""
        scope = equation.scope
        is_view = equation.via is not None and equation.via.operator == VIEW
        if is_view and equation.name not in self.outputs and (seen := view_strides(scope)) is not None:
            (source,) = tensors(scope)
            place = self.places[source.name]
            if place == _whole_view(source.name, source.shape):
                offset, strides = seen
                self.places[equation.name] = View(place.name, offset, scope.shape, strides)
                self.views[equation.name] = scope
                return ()
        self._allocate(equation)
        if not prod(scope.shape):
            return ()
        step = self._convolution(equation) or self._product(equation)
        return (step,) if step else self._kernel(equation)

    def _product(self, equation: Equation) -> CudaProduct | None:
        found = match_matrix_product(equation.scope)
        if found is None:
            return None
        factors = {self.dtypes.get(t.name, DTYPE) for t in tensors(equation.scope)}
        if len(factors) > 1 or not factors <= {DTYPE, "float16"} or equation.tensor.dtype not in (*factors, DTYPE):
            return None
        if equation.name not in self.once:
            for chain in self._epilogues(equation):
                last = chain.equations[-1]
                out = _whole_view(last.name, equation.scope.shape)
                step = self._product_to(found, out)
                after = step and chain.epilogue(self.places, step.out)
                dtype = last.tensor.dtype
                if step and after and dtype in (*factors, DTYPE) and self._is_of_type(after.bias, dtype):
                    self._store_in(equation, last)
                    self.stored_by_products |= {e.name for e in chain.equations}
                    return replace(step, epilogue=after)
        return self._product_to(found, self.places[equation.name])

    def _epilogues(self, equation: Equation) -> tuple[EpilogueChain, ...]:
        return epilogue_chains(equation, self.readers, self.equations, self.outputs)

    def _read_by_epilogues(self, equation: Equation) -> set[str]:
        return {t.name for chain in self._epilogues(equation) for e in chain.equations for t in tensors(e.scope)}

    def _is_of_type(self, bias: View | None, dtype: str) -> bool:
        return bias is None or self.dtypes.get(bias.name, DTYPE) == dtype

    def _product_to(self, product: TensorContraction, out: View) -> CudaProduct | None:
        held = [self.places[a.source.name] for a in (product.left, product.right) if isinstance(a.source, Tensor)]
        sizes = (*(prod(self.buffers[p.name]) for p in held), prod(out.shape))
        left, right, result = (np.empty(size, np.uint8) for size in sizes)
        shown = [_shown(a, p) for a, p in zip((left, right, result), (*held, out), strict=True)]
        made = matrices(product, *shown)
        if made is None:
            return None
        # The product may come transposed: then left and right have changed places.
        first, second, found = (_view_in(v, ((left, held[0]), (right, held[1]), (result, out))) for v in made)
        return CudaProduct(found, first, second)

    def _convolution(self, equation: Equation) -> Convolution | None:
        node = onnx_node(equation.via, self.operators)
        reads = [a.source.name for a in accesses(equation.scope.body) if isinstance(a.source, Tensor)]
        if node is None or node.op_type not in CONVOLUTIONS or any(node.permutations) or len(reads) != 2:
            return None
        places = [self.places[name] for name in reads]
        if any(name in self.dtypes for name in (equation.name, *reads)):
            return None
        if any(p.strides != row_major_strides(p.shape) for p in places):
            return None
        data, weights = (
            View(p.name, p.offset, shape, row_major_strides(shape))
            for p, shape in zip(places, node.shapes, strict=True)
        )
        spatial = len(node.output) - 2
        given = dict(node.attributes)

        def of(name: str, usual: int, length: int) -> Shape:
            held = given.get(name, (usual,) * length)
            assert isinstance(held, tuple)
            return held

        pads = of("pads", 0, 2 * spatial)
        group = given.get("group", 1)
        if not isinstance(group, int):
            return None
        out = View(equation.name, 0, node.output, row_major_strides(node.output))
        return Convolution(
            node.op_type, out, data, weights, of("strides", 1, spatial), of("dilations", 1, spatial), pads,
            of("output_padding", 0, spatial), group,
        )  # fmt: skip

    def _kernel(self, equation: Equation) -> tuple[Step, ...]:
        seen = self._seen(equation).scope
        if (launch_ := _online_launch(Equation(equation.name, seen)) or self._fragments(equation, seen)) is not None:
            return (launch_,)
        whys: list[str] = []
        kinds = {t.name: type_of(t.dtype) for t in (*tensors(seen), equation.tensor)}
        typed = set(kinds.values()) != {type_of(DTYPE)}
        try:
            functor = build_functor(_unrounded(equation, seen), equation.name, type_of(DTYPE), kinds)
            launch = elementwise.plan_launch(prod(seen.shape), functor.kinds, [0] * len(functor.kinds))
            made = elementwise.grid_stride_kernel(functor, launch)
            names = (equation.name, *(n for n, _ in (*functor.operands, *functor.scalars)))
            numbers = {"packs": launch.packs, "tail": launch.tail}
            return (kernel_launch(made, [*names, *numbers.values()], (launch.blocks, 1, 1)),)
        except Refused as error:
            whys.append(str(error))
        try:
            if len(set(kinds.values())) > 1:
                raise Refused("a copy does not convert")
            return (scope_launch(copy_kernel(seen, equation.name, kinds[equation.name]), equation.name),)
        except Refused as error:
            whys.append(str(error))
        if seen.summations and not typed:
            try:
                return (scope_launch(tile_contraction(seen, GPU, name=equation.name).kernel, equation.name),)
            except ValueError as error:
                whys.append(str(error))
        try:
            inputs = tuple(dict.fromkeys(tensors(seen)))
            single = Program(inputs, (Equation(equation.name, seen),), (equation.name,))
            flat = gpu_layout(_fused(single), {t.name: t.shape for t in inputs})
            if len(flat.fused.operations) > 1 and not estimate_fusion(flat, A100_TARGET).pays:
                return self._unfused(single)
            return (fused_launch(single, self.buffers, self.dtypes),)
        except Refused as error:
            raise BackendError(f"equation {equation.name}: {'; '.join((*whys, str(error)))}") from None

    def _fragments(self, equation: Equation, seen: Scope) -> CudaLaunch | None:
        """A product of halves that no library runs, on tensor cores, with all that alone reads it and fits there."""
        found: CudaLaunch | None = None
        last, absorbed = equation, list[Equation]()
        while any(t.dtype == "float16" for t in tensors(seen)):
            kinds = {t.name: type_of(t.dtype) for t in (*tensors(seen), last.tensor)}
            if not set(kinds) - {last.name} <= self.places.keys():
                break
            try:
                made = fragment_contraction(_unrounded(last, seen), last.name, kinds)
            except Refused:
                break
            found = scope_launch(made, last.name)
            if absorbed:
                self._store_in(absorbed[-1], last)
            readers = self.readers.get(last.name, set())
            if last.name in self.outputs or len(readers) != 1 or last.tensor.dtype == "float16":
                break
            absorbed.append(last)
            last = self.equations[next(iter(readers))]
            seen = _with_scope(self._seen(last).scope, absorbed[-1].name, seen)
        return found

    def _store_in(self, equation: Equation, last: Equation) -> None:
        """Have the step of *equation* store *last* in its place."""
        del self.buffers[equation.name], self.places[equation.name]
        self.dtypes.pop(equation.name, None)
        self._allocate(last)
        self.stored_by_products.add(last.name)

    def _unfused(self, program: Program) -> tuple[Step, ...]:
        """The steps of each operation of *program*, which has one equation, by itself."""
        (name,) = program.outputs
        inputs = {t.name for t in program.inputs}

        def called(tensor: Tensor) -> Tensor:
            own = tensor.name in inputs or tensor.name == name
            return tensor if own else replace(tensor, name=f"{name}: {tensor.name}")

        steps = list[Step]()
        for one in split_operations(program):
            (equation,) = one.equations
            label = equation.name if equation.name == name else f"{name}: {equation.name}"
            steps += self.steps(Equation(label, map_tensors(equation.scope, called)))
        return tuple(steps)


def one_kernel_plan(program: Program, shared_bytes: int = MAX_SHARED_BYTES) -> CudaPlan:
    """Return *program*, which calls no library, as one kernel; raises Refused.

    Its blocks have at most *shared_bytes* of shared memory.
    """
    buffers = {t.name: t.shape for t in program.inputs}
    buffers |= {e.name: e.scope.shape for e in program.equations if e.name in program.outputs}
    step = fused_launch(program, buffers, shared_bytes=shared_bytes)
    inputs, weights = (tuple(t.name for t in program.inputs if t.weight == is_one) for is_one in (False, True))
    return CudaPlan(buffers, inputs, weights, program.outputs, (step,))


def fused_launch(
    program: Program,
    buffers: dict[str, Shape],
    dtypes: dict[str, str] | None = None,
    shared_bytes: int = MAX_SHARED_BYTES,
) -> CudaLaunch:
    """A launch of all of *program* as one kernel; adds its temporaries to *buffers* and *dtypes*.  Raises Refused."""
    flat, kernel = held_launch(_fused(program), {t.name: t.shape for t in program.inputs}, DTYPE, shared_bytes)
    integers = [p.name for p in kernel.params if isinstance(p, Var) and p.kind.integer]
    kernel = specialise(kernel, {name: int(flat.numbers[name]) for name in integers})
    label = program.outputs[0]
    slots = {slot_name(n): size * max(1, flat.points) for n, size in enumerate(slot_sizes(flat))}
    given: list[str | float] = []
    for p in kernel.params:
        match p:
            case Array(name, kind) if name in slots:
                buffers[f"{label}: {name}"] = (slots[name],)
                if dtypes is not None and kind.dtype.name != DTYPE:
                    dtypes[f"{label}: {name}"] = kind.dtype.name
                given.append(f"{label}: {name}")
            case Array(name):
                given.append(name)
            case Var(name):
                given.append(float(flat.numbers[name]) if not p.kind.integer else int(flat.numbers[name]))
    return kernel_launch(kernel, given, kernel.grid)


def _unrounded(equation: Equation, scope: Scope | None = None) -> Scope:
    """The scope of *equation*, or *scope* in its place, without a last cast to half precision: the store rounds."""
    scope = scope or equation.scope
    match scope.body:
        case Apply("float16", (value,)) if not scope.summations:
            return replace(scope, body=value)
    return scope


def _fused(program: Program) -> FusedKernel:
    """*program* as one kernel; results that it does not read itself are rounded by their stores."""
    rounded = {e.name: ValueType(F32, F16) for e in program.equations if _unrounded(e) != e.scope}
    if not rounded:
        return fuse_program(program)
    equations = tuple(replace(e, scope=_unrounded(e)) for e in program.equations)
    typed = typed_program(replace(program, equations=equations))
    return fuse_program(replace(typed, types={**typed.types, **rounded}))


def specialise(kernel: Kernel, known: Mapping[str, int]) -> Kernel:
    """*kernel* with the numbers in *known* as constants, since division by a constant is cheap."""

    def to(e: Expr) -> Expr | None:
        return Literal(known[e.name], e.kind) if isinstance(e, Var) and e.name in known else None

    params = tuple(p for p in kernel.params if p.name not in known)
    return replace(kernel, params=params, body=tuple(rewrite_statement(s, to) for s in kernel.body))


def scope_launch(kernel: Kernel, result: str) -> CudaLaunch:
    """A launch of *kernel* on the buffers of its inputs and of *result*, with its own grid."""
    return kernel_launch(kernel, [*kernel.inputs, result], kernel.grid)


def kernel_launch(kernel: Kernel, given: Sequence[str | float], grid: tuple[int, int, int]) -> CudaLaunch:
    """A launch of *kernel* on *given* (buffers by name, numbers) in order; raises BackendError for an unfit one."""
    typed: list[str | tuple[float, str]] = []
    for p, g in zip(kernel.params, given, strict=True):
        match p, g:
            case Array(), str():
                typed.append(g)
            case Var(_, kind), int() | float():
                typed.append((g, kind.dtype.name))
            case _:
                raise BackendError(f"kernel {kernel.name}: {p!r} is given {g!r}")
    shared = kernel.dynamic_shared_bytes
    return CudaLaunch(entry_name(kernel), emit(kernel, "cuda"), grid, kernel.block, tuple(typed), shared)


def _with_scope(scope: Scope, name: str, of: Scope) -> Scope:
    """Return *scope* with *of* in the place of the tensor *name*; element-wise work becomes a part of its body."""

    def inline(access: Access) -> Scalar:
        if not isinstance(access.source, Tensor) or access.source.name != name:
            return access
        if of.summations or of.domain or not is_inside_box(access.index, of.box):
            return replace(access, source=of)
        return substitute(of.body, dict(zip(of.traversals, access.index, strict=True)))

    return replace(scope, body=map_accesses(scope.body, inline))


def _is_contraction(scope: Scope) -> bool:
    """Whether *scope* reads elements again and again, which tiles of its own serve best."""
    elements = sum(prod(t.shape) for t in dict.fromkeys(tensors(scope)))
    return bool(scope.summations) and prod(x.extent for x in (*scope.traversals, *scope.summations)) > 2 * elements


def _whole_view(name: str, shape: Shape) -> View:
    return View(name, 0, shape, row_major_strides(shape))


def _shown(flat: np.ndarray, place: View) -> np.ndarray:
    return as_strided(flat[place.offset :], place.shape, place.strides)


def _view_in(view: np.ndarray, among: Sequence[tuple[np.ndarray, View]]) -> View:
    """The place of *view* in the buffer that it is part of; elements are bytes here."""
    at = view.ctypes.data
    for base, place in among:
        start = base.ctypes.data
        if start <= at < start + base.size:
            return View(place.name, at - start, view.shape, view.strides)
    raise AssertionError("a view of no buffer")
