r"""Roofline cost model (EinNet §6.1): a measured time if there is one, else the larger of two times,

.. math::  t = t_0 + \max\left(\frac{\text{FLOPs}}{\text{peak} \cdot \text{efficiency}},
           \frac{\text{bytes}}{\text{bandwidth}}\right)

Weights are read at the bandwidth of memory if they, and what a model reads between two runs, exceed the last cache.

FLOPs and bytes are counted from the scope alone.  A summation that reads zero padding at most places counts only its
reads of stored elements: :math:`\sum_h X[h]\, K[y - 2h + p]` multiplies :math:`\lceil R/2 \rceil` times per output, not
`H` times.

The lower bound counts the products that every derivation forms and the results that it writes.  For a contraction
:math:`\sum_{\vec y} A[\tau_A]\,B[\tau_B]` every product of two stored elements is formed at least once, if no two
points read the same pair (nothing is computed twice) and no element is used twice for one output (else distributivity
would share its factor).  Products with padding of value 0 need not be formed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from einnet_explore.analysis.counts import element_bytes, operations
from einnet_explore.analysis.equations import is_typed, weight_only
from einnet_explore.analysis.products import TensorContraction, match_integer_product
from einnet_explore.analysis.regions import find_collision
from einnet_explore.codegen.sum_of_products import match_sum_of_products
from einnet_explore.ir import (
    FLOAT32,
    VIEW,
    Access,
    EOperatorKind,
    Equation,
    Index,
    Iterator,
    Program,
    Scalar,
    Scope,
    Tensor,
    accesses,
    element_type,
    factors,
    scopes,
    tensors,
)
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator
from einnet_explore.support.errors import Refused
from einnet_explore.support.limits import MEMO_ENTRIES


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations, and the bytes of every tensor read once and of the result written once."""

    flops: int
    read_bytes: int
    written_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


def work(scope: Scope) -> Work:
    """Return the work of *scope* and the scopes nested in it, each evaluated once over its box."""
    flops = sum(_flops(inner) for inner in dict.fromkeys(inner for _, inner in scopes(scope)))
    read = {t.name: prod(t.shape) * element_bytes(t.dtype) for t in tensors(scope)}
    return Work(flops, sum(read.values()), prod(scope.shape) * element_bytes(element_type(scope)))


def _flops(scope: Scope) -> int:
    outputs = prod(scope.shape)
    terms = prod(_counted_terms(scope, s) for s in scope.summations)
    reduced = 1 if scope.summations else 0
    return outputs * terms * (operations(scope.body) + reduced)


def _counted_terms(scope: Scope, s: Iterator) -> int:
    if scope.reduce != "sum":
        return s.extent
    return min((s.extent, *_windows(scope.body, s)))


def _windows(body: Scalar, s: Iterator) -> Iterable[int]:
    for access in factors(body):
        if isinstance(access, Access) and access.source.value == 0:
            for i, (lo, hi) in zip(access.index, access.source.box, strict=True):
                if k := abs(i.coefficient(s)):
                    yield -(-(hi - lo) // k)


def utilisation(scope: Scope, lanes: int) -> float:
    """Return the fraction of vector lanes that a library's contraction of this shape uses.

    A library maps the output iterators of one operand alone to the lanes: of 16 lanes, 21 output channels use 21 of 32.
    A plain matrix product can use either operand, a convolution only the one without composite indices.
    """
    reads = tuple(accesses(scope.body))
    if len(reads) != 2:
        return 1.0
    inside = [{x for i in a.index for x in i.iterators} for a in reads]
    composite = [any(len(i.iterators) > 1 for i in a.index) for a in reads]
    candidates = []
    for mine, other, mixed in zip(inside, reversed(inside), composite, strict=True):
        extent = prod(x.extent for x in scope.traversals if x in mine and x not in other)
        if not mixed:
            candidates.append(extent / (-(-extent // lanes) * lanes))
    return max(candidates, default=1.0)


@lru_cache(MEMO_ENTRIES)
def row_utilisation(scope: Scope, lanes: int) -> float:
    """Return the fraction of vector lanes that a register-tiled kernel uses; 0 if there is no such kernel.

    The innermost traversal is mapped to the lanes if it moves along one operand; the last of several vectors overlaps
    the one before.
    """
    found = match_sum_of_products(scope)
    if found is None:
        return 0.0
    last = found.traversals[-1]
    along = [n for n in (0, 1) if last in found.moves(n)]
    if not along or found.flops == 0:
        return 0.0
    return last.extent / (-(-last.extent // lanes) * lanes)


MAX_POINTS = 1 << 20
"""Most points of one index that are gone through to see which lie inside."""


@lru_cache(1 << 10)
def minimum_products(scope: Scope) -> int:
    """Return the number of products of two elements that every derivation of *scope* forms; 0 if unknown."""
    try:
        product = TensorContraction.of(scope)
    except Refused:
        return 0
    read = [product.left, product.right]
    if any(not isinstance(a.source, Tensor) or a.source.value != 0 for a in read):
        return 0
    indices = [i for access in read for i in access.index]
    own = (*scope.traversals, *scope.summations)
    if not all(i.affine for i in indices):
        return 0
    fixed = dict.fromkeys(scope.traversals, 0)
    for access in read:
        within = [i.substitute(lambda x: fixed.get(x, x)) for i in access.index]
        if find_collision(scope.summations, within):
            return 0
    return 0 if find_collision(own, indices) else _inside(own, read)


def _inside(own: tuple[Iterator, ...], read: list[Access]) -> int:
    """Count the points at which both reads are of stored elements; a lower bound for dependent dimensions."""
    points = prod(x.extent for x in own)
    inside, outside, seen = points, 0, set[Iterator]()
    independent = True
    for access in read:
        for i, (lo, hi) in zip(access.index, access.source.box, strict=True):
            first, last = i.bounds
            if lo <= first and last < hi:
                continue
            all_of = prod(x.extent for x in i.iterators)
            if all_of > MAX_POINTS:
                return 0
            good = sum(n for value, n in _values(i).items() if lo <= value < hi)
            independent = independent and not seen & set(i.iterators)
            seen.update(i.iterators)
            inside = inside * good // all_of
            outside += points * (all_of - good) // all_of
    return inside if independent else max(0, points - outside)


def _values(index: Index) -> Counter[int]:
    """Count how often an affine *index* takes each value."""
    found = Counter({index.const: 1})
    for x, k in index.terms:
        assert isinstance(x, Iterator)
        wider: Counter[int] = Counter()
        for value, n in found.items():
            for at in range(x.lo, x.hi):
                wider[value + k * at] += n
        found = wider
    return found


@dataclass(frozen=True, slots=True)
class Device:
    """Rates in FLOP/s and bytes/s of *threads* threads together; ``call_seconds`` is the overhead of a call.

    ``library``, ``tiled`` and ``generated`` are the parts of the peak that library operators, register-tiled kernels
    and other generated ones reach if only arithmetic limits them, ``integers`` the multiple of it that matrix products
    of bytes reach; ``lanes`` is the width of a vector register in elements.
    """

    name: str
    threads: int
    peak_flops: float
    memory_bandwidth: float
    cache_bandwidth: float
    cache_bytes: int
    call_seconds: float
    lanes: int = 16
    library: float = 0.8
    tiled: float = 0.7
    generated: float = 0.15
    integers: float = 1.4

    def bandwidth(self, nbytes: int) -> float:
        """Return bytes per second for a working set of *nbytes*."""
        return self.cache_bandwidth if nbytes <= self.cache_bytes else self.memory_bandwidth


def cpu_default(threads: int = 1) -> Device:
    """Return a current server core with 512-bit vectors, times *threads*; memory bandwidth grows more slowly."""
    return Device(
        name="cpu",
        threads=threads,
        peak_flops=1.2e11 * threads,
        memory_bandwidth=2.0e10 * threads**0.5,
        cache_bandwidth=8.0e10 * threads,
        cache_bytes=1 << 24,
        call_seconds=3e-6,
    )


CPU_DEFAULT = cpu_default()


Measured = Callable[[Equation], "float | None"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds, and their origin: ``measured``, ``flops``, ``bytes``, ``view``, ``constant`` or ``mixed``."""

    seconds: float
    how: str


@dataclass(frozen=True)
class CostModel:
    """Estimates for *device*; *measured* returns the stored seconds of an equation, or None.

    *displacing_bytes* are read between two runs of a program, and displace its weights from caches.
    """

    device: Device = CPU_DEFAULT
    measured: Measured | None = None
    operators: Sequence[Operator] = OPERATORS
    displacing_bytes: int = 0

    def estimate(self, equation: Equation, constant: Collection[str] = ()) -> Estimate:
        """Estimate one run of *equation*; views, and equations that read only weights, are free.

        Tensors in *constant* count as weights for the distance of memory; ``program_cost`` names those that are
        computed from weights, and leaves out the equations that compute them.
        """
        if equation.via is not None and equation.via.operator == VIEW:
            return Estimate(0.0, "view")
        reads = tuple(tensors(equation.scope))
        if reads and all(t.weight for t in reads):
            return Estimate(0.0, "constant")
        if self.measured is not None and (seconds := self.measured(equation)) is not None:
            return Estimate(seconds, "measured")
        done = work(equation.scope)
        compute = done.flops / (self.device.peak_flops * self._efficiency(equation))
        weights = _weight_bytes(equation.scope, constant)
        transfer = (done.nbytes - weights) / self.device.bandwidth(done.nbytes)
        transfer += weights / self.device.bandwidth(max(done.nbytes, weights + self.displacing_bytes))
        how = "flops" if compute > transfer else "bytes"
        return Estimate(self.device.call_seconds + max(compute, transfer), how)

    def __call__(self, program: Program) -> tuple[float, str]:
        """Estimate the seconds of *program*, and say how they were found: the cost of a search."""
        found = self.program_cost(program)
        return found.seconds, found.how

    def program_cost(self, program: Program) -> Estimate:
        """Estimate the equations that run when the program runs."""
        constant = weight_only(program)
        parts = [self.estimate(e, constant) for e in program.equations if e.name not in constant]
        kinds = {p.how for p in parts} - {"view", "constant"}
        how = kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "constant" if constant else "view"
        return Estimate(sum(p.seconds for p in parts), how)

    def weight_seconds(self, program: Program) -> float:
        """Estimate the seconds in which the weights that *program* reads come from memory, or from the last cache."""
        constant = weight_only(program)
        read = sum(_weight_bytes(e.scope, constant) for e in program.equations if e.name not in constant)
        return read / self.device.bandwidth(read + self.displacing_bytes)

    def lower_bound(self, program: Program) -> float:
        """Return a lower bound, in seconds, of the cost of every program derived from *program*.

        Instantiated equations cost their estimate, the others at least ``least``.  Copies, views and results of views
        may vanish, so bytes count only where nothing is instantiated.
        """
        constant = weight_only(program)
        done = [e for e in program.equations if e.via is not None and e.name not in constant]
        return sum(self.estimate(e, constant).seconds for e in done) + self.least(program)

    def least(self, program: Program) -> float:
        """Return a lower bound of the cost of equations not instantiated: products formed and results written."""
        constant = weight_only(program)
        rest = [e for e in program.equations if e.via is None and e.name not in constant]
        flops = 2 * sum(minimum_products(e.scope) for e in rest)
        best_rate = max(self.device.library, self.device.tiled, self.device.generated)
        if any(t.dtype != FLOAT32 for t in program.inputs):
            best_rate = max(best_rate, self.device.integers)
        compute = flops / (self.device.peak_flops * best_rate)
        written = 0
        if not any(e.via for e in program.equations):
            outputs = [e.scope for e in rest if e.name in program.outputs]
            written = sum(prod(scope.shape) * element_bytes(element_type(scope)) for scope in outputs)
        best = max(self.device.cache_bandwidth, self.device.memory_bandwidth)
        moved = written / best if any(map(_is_computation, rest)) else 0.0
        return max(compute, moved) + (self.device.call_seconds if flops else 0.0)

    def _efficiency(self, equation: Equation) -> float:
        """Return the fraction of the peak that the best kernel for *equation* reaches."""
        via, device = equation.via, self.device
        if is_typed(equation.scope):  # kernels in tiles and library calls are in float32
            return device.integers if match_integer_product(equation.scope) else device.generated
        if via is not None and via.eoperator_kind is EOperatorKind.ONE_PASS:
            return device.tiled  # both products are in registers
        tiled = device.tiled * row_utilisation(equation.scope, device.lanes)
        operator = next((o for o in self.operators if via is not None and via.operator in o.names), None)
        if via is None or via.is_eoperator or operator is None or operator.onnx is None:
            return max(device.generated, tiled)
        return max(device.library * utilisation(equation.scope, device.lanes), tiled)


def _weight_bytes(scope: Scope, constant: Collection[str]) -> int:
    """Return the bytes of the weights that *scope* reads; tensors in *constant* count as weights."""
    read = {t.name: t for t in tensors(scope) if t.weight or t.name in constant}
    return sum(prod(t.shape) * element_bytes(t.dtype) for t in read.values())


def _is_computation(equation: Equation) -> bool:
    """Whether *equation* does more than move elements, which a view may do for free."""
    scope = equation.scope
    return not isinstance(scope.body, Access) or any(y.extent > 1 for y in scope.summations)


def program_least(program: Program) -> float:
    """Return ``CostModel().least``, the bound for a search with the cost ``program_seconds``."""
    return CostModel().least(program)


def program_seconds(program: Program) -> tuple[float, str]:
    """Estimate the seconds of one run of *program* on one core (a roofline), and say how: the cost of a search.

    *How* is ``flops`` or ``bytes`` (what limits it), ``view``, ``constant`` or ``mixed``.  Views, and equations that
    read weights only, are free; an equation without an implementation counts as a generated kernel.
    """
    return CostModel()(program)
