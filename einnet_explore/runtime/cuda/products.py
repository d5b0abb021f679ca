"""Matrix products on GPUs: cuBLASLt, called directly, with the fastest of its first algorithms.

Workspace and result are our memory, so a CUDA graph can contain products; CuPy's own calls of cuBLAS refuse capture.
cuBLASLt is column-major: a row-major :math:`Y = A B` is computed as :math:`Y^T = B^T A^T` without moving data; its
bias, which has an element a row, has one for each of our columns.
Constants and signatures are those of ``cublasLt.h``, ``cublas_api.h`` and ``library_types.h`` of CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from math import inf, prod

from einnet_explore.runtime.cuda.device import (
    Call,
    DeviceArray,
    DeviceArrays,
    cublas_lt,
    cupy_package,
    device_address,
    device_view,
    missing_for_products,
)
from einnet_explore.runtime.cuda.steps import NO_EPILOGUE, CudaProduct, Epilogue, Shape, View
from einnet_explore.support.errors import BackendError

MAX_GEMM_CALLS = 64
"""Batches that are no equal steps apart take a call each, at most so many."""

MAX_GEMM_BATCH = 63 << 10
"""Products of a call: grids of CUDA have fewer than 65,536 blocks along the batch."""

MAX_WORKSPACE_BYTES = 32 << 20
"""Bytes of the workspace that all products share; cuBLAS itself takes as much on H100."""

MAX_TIMED_ALGORITHMS = 12
"""cuBLASLt's ranking is by heuristics: so many of its first algorithms are timed."""

MAX_ALIGNMENT_BYTES = 256
"""cuBLASLt does not distinguish larger alignments."""

COMPUTE_TYPES = {"float32": 68, "tf32": 77, "float16": 74, "bfloat16": 75}
"""``CUBLAS_COMPUTE_32F`` and its faster forms for float32 factors, by the precision of a plan."""

DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
"""``CUDA_R_32F``, ``CUDA_R_16F`` and ``CUDA_R_16BF`` by the type of a buffer's elements."""

_MAX_EXTENT = (1 << 31) - 1
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4
_EPILOGUE, _BIAS_POINTER = 7, 8
_RELU, _BIAS = 2, 4
"""Bits of ``cublasLtEpilogue_t``; its default, 1, stands for neither."""
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_WORKSPACE_BYTES, _REDUCTION_SCHEMES, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)
_SUMS_IN_COMPUTE_TYPE = 2
"""``CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE``: partial sums of a split summation are not rounded to a half precision."""

_PTR, _INT = ctypes.c_void_p, ctypes.c_int

SIGNATURES: Mapping[str, Sequence[type]] = {
    "cublasLtCreate": (_PTR,),
    "cublasLtMatmulDescCreate": (_PTR, _INT, _INT),
    "cublasLtMatmulDescSetAttribute": (_PTR, _INT, _PTR, ctypes.c_size_t),
    "cublasLtMatrixLayoutCreate": (_PTR, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutSetAttribute": (_PTR, _INT, _PTR, ctypes.c_size_t),
    "cublasLtMatmulPreferenceCreate": (_PTR,),
    "cublasLtMatmulPreferenceSetAttribute": (_PTR, _INT, _PTR, ctypes.c_size_t),
    "cublasLtMatmulPreferenceDestroy": (_PTR,),
    "cublasLtMatmulAlgoGetHeuristic": (*[_PTR] * 7, _INT, _PTR, _PTR),
    "cublasLtMatmul": (*[_PTR] * 14, ctypes.c_size_t, _PTR),
}
"""The functions in use, each of which returns a status, and the types of their arguments."""


class Algorithm(ctypes.Structure):
    """``cublasLtMatmulAlgo_t``."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class Heuristic(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", _INT),
        ("waves", ctypes.c_float),
        ("reserved", _INT * 4),
    )


@dataclass(frozen=True, slots=True)
class Matrix:
    """A factor or the result: rows *leading* elements apart (columns where *transposed*), batches *step* apart."""

    name: str
    offset: int
    transposed: bool
    leading: int
    step: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """*batch* products of *rows*x*depth* by *depth*x*columns*, one call of ``cublasLtMatmul``, and their *epilogue*."""

    out: Matrix
    left: Matrix
    right: Matrix
    rows: int
    columns: int
    depth: int
    batch: int
    epilogue: Epilogue = NO_EPILOGUE

    @property
    def operands(self) -> tuple[Matrix, Matrix, Matrix]:
        """The matrices A, B and D of cuBLASLt, which counts columns first: the right factor goes first."""
        return self.right, self.left, self.out


def gemms(step: CudaProduct) -> tuple[Gemm, ...] | None:
    """The calls of *step*; None if a factor is not packed along either side, or if too many calls are needed.

    Overlapping windows are not packed: cuBLAS needs rows no longer than their distance, so they are copied.
    """
    *outer, rows, columns = step.out.shape
    depth = step.left.shape[-1]
    views = (step.out, step.left, step.right)
    found = [_matrix(v) for v in views]
    if any(m is None for m in found) or found[0] is None or found[0][0]:
        return None  # the result cannot be transposed: the planner swaps the factors instead
    groups = _merge_batches(outer, [v.strides[:-2] for v in views])
    if not groups:
        groups = [(1, (0, 0, 0))]
    inner = max(range(len(groups)), key=lambda n: groups[n][0])
    extent, steps = groups.pop(inner)
    starts = range(0, extent, MAX_GEMM_BATCH)
    if len(starts) * prod(n for n, _ in groups) > MAX_GEMM_CALLS or max(rows, columns, depth) > _MAX_EXTENT:
        return None
    calls = []
    for start, *place in product(starts, *(range(n) for n, _ in groups)):
        at = [start * steps[k] + sum(p * s[k] for p, (_, s) in zip(place, groups, strict=True)) for k in range(3)]
        out, left, right = (
            Matrix(v.name, v.offset + a, m[0], m[1], s)
            for v, m, a, s in zip(views, found, at, steps, strict=True)
            if m is not None
        )
        count = min(MAX_GEMM_BATCH, extent - start)
        calls.append(Gemm(out, left, right, rows, columns, depth, count, step.epilogue))
    return tuple(calls)


def _matrix(view: View) -> tuple[bool, int] | None:
    """(transposed, leading dimension) of the last two dimensions of *view*; one of them has to be packed."""
    (rows, columns), (down, across) = view.shape[-2:], view.strides[-2:]
    if (across == 1 or columns == 1) and (rows == 1 or down >= columns):
        return False, columns if rows == 1 else down
    if (down == 1 or rows == 1) and (columns == 1 or across >= rows):
        return True, rows if columns == 1 else across
    return None


def _merge_batches(shape: Sequence[int], strides: Iterable[Shape]) -> list[tuple[int, tuple[int, ...]]]:
    """(extent, steps) of the batch's dimensions; neighbours with one common stride are merged."""
    out: list[tuple[int, tuple[int, ...]]] = []
    for extent, steps in zip(shape, zip(*strides, strict=True), strict=True):
        if extent == 1:
            continue
        if out and all(before == extent * here for before, here in zip(out[-1][1], steps, strict=True)):
            out[-1] = out[-1][0] * extent, steps
        else:
            out.append((extent, steps))
    return out


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = cublas_lt()
    if library is None:
        raise BackendError(f"no library for matrix products: missing {', and '.join(missing_for_products())}")
    for name, types in SIGNATURES.items():
        getattr(library, name).argtypes = types
    library.cublasLtGetStatusName.restype = ctypes.c_char_p
    return library


def _call(name: str, *arguments: object) -> None:
    """Call the function *name* of cuBLASLt; raises BackendError with the status that it returns."""
    library = _library()
    if status := getattr(library, name)(*arguments):
        raise BackendError(f"{name} returns {library.cublasLtGetStatusName(status).decode()}")


def _created(name: str, *arguments: object) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _call(name, ctypes.byref(made), *arguments)
    return made


def _set_attribute(kind: str, of: ctypes.c_void_p, attribute: int, value: ctypes._SimpleCData[int]) -> None:
    _call(f"cublasLt{kind}SetAttribute", of, attribute, ctypes.byref(value), ctypes.sizeof(value))


@lru_cache(maxsize=1)
def _handle() -> ctypes.c_void_p:
    return _created("cublasLtCreate")


@lru_cache(maxsize=1)
def _workspace() -> DeviceArray:
    cp = cupy_package()
    held: DeviceArray = cp.empty(MAX_WORKSPACE_BYTES, cp.uint8)
    return held


_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)


@dataclass(frozen=True)
class Descriptors:
    """cuBLASLt's description of a product, and the layouts of :attr:`Gemm.operands`."""

    product: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]


def describe(g: Gemm, kinds: Sequence[str], precision: str) -> Descriptors:
    """The descriptors of *g*, whose operands have elements of *kinds*; sums are float32.

    *precision* is that of float32 factors.  Raises BackendError for a kind that cuBLASLt does not multiply.
    """
    if unknown := [k for k in kinds if k not in DATA_TYPES]:
        raise BackendError(f"a product of {unknown[0]}: cuBLAS takes {', '.join(DATA_TYPES)}")
    compute = COMPUTE_TYPES[precision if kinds[0] == kinds[1] == "float32" else "float32"]
    made = _created("cublasLtMatmulDescCreate", compute, DATA_TYPES["float32"])
    for attribute, matrix in ((_TRANSPOSE_A, g.right), (_TRANSPOSE_B, g.left)):
        _set_attribute("MatmulDesc", made, attribute, ctypes.c_int32(matrix.transposed))
    after = (_RELU if g.epilogue.relu else 0) | (_BIAS if g.epilogue.bias else 0)
    _set_attribute("MatmulDesc", made, _EPILOGUE, ctypes.c_int32(after or 1))
    shapes = ((g.columns, g.depth), (g.depth, g.rows), (g.columns, g.rows))
    a, b, d = (_layout(m, DATA_TYPES[k], s, g.batch) for m, k, s in zip(g.operands, kinds, shapes, strict=True))
    return Descriptors(made, (a, b, d))


def _layout(matrix: Matrix, data_type: int, shape: Sequence[int], batch: int) -> ctypes.c_void_p:
    """The layout of *matrix*, which has *shape* once it is transposed as cuBLASLt is told to."""
    rows, columns = reversed(shape) if matrix.transposed else shape
    made = _created("cublasLtMatrixLayoutCreate", data_type, rows, columns, matrix.leading)
    _set_attribute("MatrixLayout", made, _BATCH_COUNT, ctypes.c_int32(batch))
    _set_attribute("MatrixLayout", made, _BATCH_STRIDE, ctypes.c_int64(matrix.step))
    return made


@dataclass(frozen=True)
class BuiltProduct:
    """A product with the algorithm that runs it."""

    descriptors: Descriptors
    algorithm: Algorithm

    def call(self, addresses: Sequence[int]) -> None:
        """Run on ``operand_addresses`` of the product, in the stream that is current in CuPy."""
        (a, b, d, *bias), (layout_a, layout_b, layout_d) = addresses, self.descriptors.layouts
        _set_bias(self.descriptors.product, bias)
        _call(
            "cublasLtMatmul", _handle(), self.descriptors.product, ctypes.byref(_ONE), a, layout_a, b, layout_b,
            ctypes.byref(_ZERO), d, layout_d, d, layout_d, ctypes.byref(self.algorithm),
            int(_workspace().data.ptr), MAX_WORKSPACE_BYTES, cupy_package().cuda.get_current_stream().ptr,
        )  # fmt: skip


def _set_bias(product: ctypes.c_void_p, bias: Sequence[int]) -> None:
    """The address of the bias, if there is one: equal products with other biases share their descriptors."""
    for address in bias:
        _set_attribute("MatmulDesc", product, _BIAS_POINTER, ctypes.c_uint64(address))


_BUILT: dict[tuple[object, ...], BuiltProduct] = {}


def build_product(g: Gemm, buffers: DeviceArrays, precision: str, timer: Callable[[Call], float]) -> BuiltProduct:
    """The fastest algorithm for *g* by *timer* (seconds of a call); raises BackendError if cuBLASLt has none.

    Timing overwrites the result.  Equal products share an algorithm, and all products share one workspace,
    so they may not run in two streams at once.
    """
    kinds = tuple(buffers[m.name].dtype.name for m in g.operands)
    places = operand_addresses(g, buffers)
    alignments = tuple(min(MAX_ALIGNMENT_BYTES, p & -p) for p in places)
    layouts = tuple((m.transposed, m.leading, m.step) for m in g.operands)
    key = (g.rows, g.columns, g.depth, g.batch, g.epilogue.relu, layouts, kinds, alignments, precision)
    if key not in _BUILT:
        made = describe(g, kinds, precision)
        _set_bias(made.product, places[3:])
        calls = [BuiltProduct(made, algorithm) for algorithm in _algorithms(made, kinds, alignments)]
        _BUILT[key] = _fastest(calls, places, timer, f"{g.rows}x{g.depth}x{g.columns} in {', '.join(kinds)}")
    return _BUILT[key]


def _algorithms(made: Descriptors, kinds: Sequence[str], alignments: Sequence[int]) -> list[Algorithm]:
    """cuBLASLt's first algorithms for operands, and a bias if there is one, at multiples of *alignments* bytes."""
    wanted = _created("cublasLtMatmulPreferenceCreate")
    try:
        _set_attribute("MatmulPreference", wanted, _WORKSPACE_BYTES, ctypes.c_uint64(MAX_WORKSPACE_BYTES))
        if kinds[-1] != "float32":
            _set_attribute("MatmulPreference", wanted, _REDUCTION_SCHEMES, ctypes.c_uint32(_SUMS_IN_COMPUTE_TYPE))
        a, b, d, *bias = alignments
        for attribute, nbytes in zip(_ALIGNMENTS, (a, b, d, min((d, *bias))), strict=True):
            _set_attribute("MatmulPreference", wanted, attribute, ctypes.c_uint32(nbytes))
        found, count = (Heuristic * MAX_TIMED_ALGORITHMS)(), ctypes.c_int()
        _call(
            "cublasLtMatmulAlgoGetHeuristic", _handle(), made.product, *made.layouts, made.layouts[-1], wanted,
            len(found), found, ctypes.byref(count),
        )  # fmt: skip
        return [one.algorithm for one in found[: count.value] if not one.state]
    finally:
        _call("cublasLtMatmulPreferenceDestroy", wanted)


def _fastest(
    calls: Sequence[BuiltProduct], places: Sequence[int], timer: Callable[[Call], float], name: str
) -> BuiltProduct:
    found, failures = list[float](), list[str]()
    for one in calls:
        try:
            found.append(timer(partial(one.call, places)))
        except Exception as error:  # the library's, or CuPy's where the launch fails
            found.append(inf)
            failures.append(" ".join(str(error).split())[:200])
    if min(found, default=inf) == inf:
        raise BackendError(f"cuBLAS runs none of its {len(calls)} algorithms for {name}: {'; '.join(failures[:1])}")
    return calls[found.index(min(found))]


def operand_addresses(g: Gemm, buffers: DeviceArrays) -> tuple[int, ...]:
    """Device addresses of ``g.operands``, and of the bias if there is one."""
    places = (*g.operands, g.epilogue.bias) if g.epilogue.bias else g.operands
    return tuple(device_address(buffers, m.name, m.offset) for m in places)


def bind_product(step: CudaProduct, buffers: DeviceArrays, precision: str, timer: Callable[[Call], float]) -> Call:
    """A call of *step* in the stream that is current in CuPy; factors that cuBLAS does not take are copied first.

    See ``build_product``; nothing is allocated in the call, so a CUDA graph can contain it.
    """
    calls = gemms(step)
    if calls is None:
        return _bind_copied(step, buffers, precision, timer)
    built = [(build_product(g, buffers, precision, timer), operand_addresses(g, buffers)) for g in calls]

    def call() -> None:
        for one, places in built:
            one.call(places)

    return call


def _bind_copied(step: CudaProduct, buffers: DeviceArrays, precision: str, timer: Callable[[Call], float]) -> Call:
    cp = cupy_package()
    y, a, b = (device_view(buffers, v) for v in (step.out, step.left, step.right))
    own = {"y": cp.empty(y.shape, y.dtype), "a": cp.empty(a.shape, a.dtype), "b": cp.empty(b.shape, b.dtype)}

    def copy_factors() -> None:
        cp.copyto(own["a"], a)
        cp.copyto(own["b"], b)

    copy_factors()  # numbers to time with
    after = step.epilogue
    if after.bias:
        own["bias"], after = buffers[after.bias.name], replace(after, bias=replace(after.bias, name="bias"))
    a_view, b_view = _packed_view(step.left, "a"), _packed_view(step.right, "b")
    packed = CudaProduct(_packed_view(step.out, "y"), a_view, b_view, after)
    inner = bind_product(packed, own, precision, timer)

    def call() -> None:
        copy_factors()
        inner()
        cp.copyto(y, own["y"])

    return call


def _packed_view(view: View, name: str) -> View:
    """*view* as an array of its own called *name*."""
    return View(name, 0, view.shape, tuple(prod(view.shape[d + 1 :]) for d in range(len(view.shape))))
