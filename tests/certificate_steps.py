"""Correct hand-written steps, and mutants of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from einnet_explore.analysis.indices import substitute, with_iterators
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Const,
    Index,
    Iterator,
    Program,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    add,
    as_index,
    map_accesses,
    scopes,
)
from einnet_explore.syntax import parse

Change: TypeAlias = Callable[[Access], tuple[Index, ...]]

_CONV = """
tensor A[2, 4, 3, 2] pad [0, 1, 1, 0]
tensor K[3, 3, 2, 3] weight
"""
_CONV_START = "Y[n:2, h:4, w:3, f:3] = sum[c:2, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, c, f]"

STEPS = {
    "conv3x3 split": (
        _CONV + _CONV_START,
        _CONV + "Y[n:2, h:4, w:3, f:3] = sum[r:3, s:3] {[r:3, s:3, n:2, h:4, w:3, f:3] sum[c:2] "
        "A[n, h+r-1, w+s-1, c] * K[r, s, c, f]}[r, s, n, h, w, f]",
    ),
    "conv3x3 skewed, with domain bounds": (
        _CONV + "Y[n:2, h:4, w:3, f:3] = sum[r:3, s:3] {[r:3, s:3, n:2, h:4, w:3, f:3] sum[c:2] "
        "A[n, h+r-1, w+s-1, c] * K[r, s, c, f]}[r, s, n, h, w, f]",
        _CONV + "Y[n:2, h:4, w:3, f:3] = sum[r:3, s:3] {[r:3, s:3, n:2, t:-1..5, u:-1..4, f:3 "
        "| 0 <= t-r+1 < 4, 0 <= u-s+1 < 3] sum[c:2] A[n, t, u, c] * K[r, s, c, f]}[r, s, n, h+r-1, w+s-1, f]",
    ),
    "conv3x3 relaxed": (
        _CONV + "Y[n:2, h:4, w:3, f:3] = sum[r:3, s:3] {[r:3, s:3, n:2, t:-1..5, u:-1..4, f:3 "
        "| 0 <= t-r+1 < 4, 0 <= u-s+1 < 3] sum[c:2] A[n, t, u, c] * K[r, s, c, f]}[r, s, n, h+r-1, w+s-1, f]",
        _CONV + "Y[n:2, h:4, w:3, f:3] = sum[r:3, s:3] {[r:3, s:3, n:2, t:-1..5, u:-1..4, f:3] sum[c:2] "
        "A[n, t, u, c] * K[r, s, c, f]}[r, s, n, h+r-1, w+s-1, f]",
    ),
    "conv3x3 tightened": (
        _CONV + "Y[n:2, h:4, w:3, f:3] = sum[r:3, s:3] {[r:3, s:3, n:2, t:-1..5, u:-1..4, f:3] sum[c:2] "
        "A[n, t, u, c] * K[r, s, c, f]}[r, s, n, h+r-1, w+s-1, f]",
        _CONV + "Y[n:2, h:4, w:3, f:3] = sum[r:3, s:3] {[r:3, s:3, n:2, t:4, u:3, f:3] sum[c:2] "
        "A[n, t, u, c] * K[r, s, c, f]} pad [0, 0, 0, 1, 1, 0][r, s, n, h+r-1, w+s-1, f]",
    ),
    "conv3x3 to matmul with merged iterators": (
        _CONV + _CONV_START,
        _CONV
        + """
        P[i:24, c:2] = A[i//12, i//3 % 4, i % 3, c] via eOperator
        Q[c:2, j:27] = K[j//9, j//3 % 3, c, j % 3] via eOperator
        M[m:24, j:27] = sum[c:2] P[m, c] * Q[c, j] via Matmul(m=24, n=27, k=2)
        T[r:3, s:3, n:2, t:4, u:3, f:3] = M[12*n + 3*t + u, 9*r + 3*s + f] pad [0, 0, 0, 1, 1, 0]
        Y[n:2, h:4, w:3, f:3] = sum[r:3, s:3] T[r, s, n, h+r-1, w+s-1, f] via eOperator
        """,
    ),
    "matmul merged": (
        "tensor A[4, 3, 5]\ntensor B[5, 6]\nY[t:4, u:3, n:6] = sum[k:5] A[t, u, k] * B[k, n]",
        "tensor A[4, 3, 5]\ntensor B[5, 6]\n"
        "Y[t:4, u:3, n:6] = {[m:12, n:6] sum[k:5] A[m//3, m%3, k] * B[k, n]}[3*t+u, n]",
    ),
    "strided convolution by residue": (
        "tensor A[9] pad [(1, 2)]\ntensor K[3]\nY[h:5] = sum[r:3] A[2*h+r-1] * K[r]",
        "tensor A[9] pad [(1, 2)]\ntensor K[3]\nY[h:5] = sum[p:2] {[p:2, h:5] sum[q:2] "
        "{[p:2, x:6] A[2*x+p-1]}[p, h+q] * {[q:2, p:2 | 0 <= 2*q+p < 3] K[2*q+p]}[q, p]}[p, h]",
    ),
    "dilated band by residue as batch": (
        "tensor A[8, 3]\ntensor B[8, 3] pad [2, 0]\nY[m:8, w:3] = sum[k:3] A[m, k] * B[m+2*w-2, k]",
        "tensor A[8, 3]\ntensor B[8, 3] pad [2, 0]\n"
        "Y[m:8, w:3] = {[b:2, m:4, w:3] sum[k:3] {[b:2, m:4, k:3] A[2*m+b, k]}[b, m, k] * "
        "{[b:2, m:4, k:3] B[2*m+b, k]} pad [0, 1, 0][b, m+w-1, k]}[m%2, m//2, w]",
    ),
    "transposed convolution to matmul and overlap-add": (
        "tensor A[2, 3, 2]\ntensor K[4, 2, 2] weight pad [5, 0, 0]\n"
        "Y[n:2, y:6, c:2] = sum[h:3, f:2] A[n, h, f] * K[y+1-2*h, c, f]",
        "tensor A[2, 3, 2]\ntensor K[4, 2, 2] weight pad [5, 0, 0]\n"
        "M[m:6, j:8] = sum[f:2] A[m//3, m%3, f] * K[j//2, j%2, f]\n"
        "Y[n:2, y:6, c:2] = sum[h:3] {[n:2, h:3, r:4, c:2] M[3*n+h, 2*r+c]} pad [0, 0, 5, 0][n, h, y+1-2*h, c]",
    ),
    "max pool split": (
        "tensor A[7, 6] pad [1] value -inf\nY[h:4] = max[r:3, w:6] A[2*h+r-1, w]".replace("pad [1]", "pad [1, 0]"),
        "tensor A[7, 6] pad [1, 0] value -inf\nY[h:4] = max[r:3] {[t:7] max[w:6] A[t, w]} pad [1] value -inf[2*h+r-1]",
    ),
    "relu of a bias and a product": (
        "tensor A[4, 3]\ntensor B[3, 5]\ntensor b[5]\n"
        "Y[m:4, n:5] = relu({[m:4, n:5] sum[k:3] A[m, k]*B[k, n]}[m, n] + b[n])",
        "tensor A[4, 3]\ntensor B[3, 5]\ntensor b[5]\nT[m:4, n:5] = sum[k:3] A[m, k]*B[k, n]\n"
        "Y[m:4, n:5] = {[i:20] relu(b[i%5] + T[i//5, i%5])}[5*m+n]",
    ),
    "distributed and commuted": (
        "tensor A[4]\ntensor B[4]\nY[i:3, j:4] = (A[i] + B[j]) * (A[i+1] - B[j])",
        "tensor A[4]\ntensor B[4]\nY[i:3, j:4] = A[i+1]*A[i] - A[i]*B[j] + B[j]*A[i+1] - B[j]*B[j]",
    ),
}  # fmt: skip


def programs(name: str) -> tuple[Program, Program]:
    """Both programs of a step."""
    before, after = STEPS[name]
    return parse(before), parse(after)


def mutants(program: Program) -> Iterable[tuple[str, Program]]:
    """Programs that each differ from *program* in one place, and what was changed there."""
    for n, equation in enumerate(program.equations):
        for path, scope in scopes(equation.scope):
            for told, changed in scope_mutants(scope):
                if not path and (changed.box != scope.box or changed.padding != scope.padding):
                    continue
                yield f"{equation.name}{path}: {told}", program.replace_at((n, *path), changed)


def scope_mutants(scope: Scope) -> Iterable[tuple[str, Scope]]:
    """*scope* with one thing changed: an index, a range, a bound, a summation, a factor, a padding."""
    for told, body in _bodies(scope):
        yield told, replace(scope, body=body)
    for d, _ in enumerate(scope.padding):
        before, after = scope.padding[d]
        for pair in ((before + 1, after), (max(0, before - 1), after), (before, max(0, after - 1))):
            if pair != scope.padding[d]:
                yield f"padding {d} {pair}", replace(scope, padding=(*scope.padding[:d], pair, *scope.padding[d + 1 :]))
    for n, bound in enumerate(scope.domain):
        rest = scope.domain[:n], scope.domain[n + 1 :]
        yield f"without {bound}", replace(scope, domain=(*rest[0], *rest[1]))
        for lo, hi, by in ((1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)):
            other = Bound(bound.index + by, bound.lo + lo, bound.hi + hi)
            yield f"{bound} as {other}", replace(scope, domain=(*rest[0], other, *rest[1]))
    for x in (*scope.traversals, *scope.summations):
        for lo, hi in ((x.lo + 1, x.hi), (x.lo, x.hi - 1), (x.lo, x.hi + 1), (x.lo + 1, x.hi + 1)):
            if hi > lo:
                yield f"{x.name} in [{lo}, {hi})", with_iterators(scope, {x: Iterator(x.name, lo, hi)})
    for y in scope.summations:
        kept = tuple(s for s in scope.summations if s != y)
        yield f"without Σ {y.name}", replace(scope, summations=kept, body=substitute(scope.body, {y: as_index(y.lo)}))
    if scope.summations:
        yield "max for sum", replace(scope, reduce="min" if scope.reduce == "max" else "max")
    yield "value 1", replace(scope, value=1)


def _bodies(scope: Scope) -> Iterable[tuple[str, Scalar]]:
    body = scope.body
    yield "twice", add(body, body)
    yield "doubled", Apply("*", (Const(2), body))
    if isinstance(body, Apply):
        for n, arg in enumerate(body.args):
            yield f"only argument {n}", arg
            for op in {"+", "*", "-"} - {body.op}:
                if op != "-" or len(body.args) == 2:
                    yield f"{op} for {body.op}", Apply(op, body.args)
    own = [*scope.traversals, *scope.summations]
    for a, _ in enumerate(accesses(body)):
        for told, change in _changes(own):
            if (changed := _reindexed(body, a, change)) != body:
                yield f"access {a}: {told}", changed


def _reindexed(body: Scalar, number: int, change: Change) -> Scalar:
    """*body* with the index of one access changed."""
    count = iter(range(number + 1))

    def swap(access: Access) -> Access:
        return Access(access.source, change(access)) if next(count, None) == number else access

    return map_accesses(body, swap)


def _changes(own: list[Iterator]) -> Iterable[tuple[str, Change]]:
    for d in range(6):
        for by in (-1, 1):
            yield f"index {d} {by:+d}", lambda a, d=d, by=by: _at(a, d, lambda i: i + by)
        yield f"index {d} as 0", lambda a, d=d: _at(a, d, lambda i: as_index(0))
        yield f"index {d} swapped with {d + 1}", lambda a, d=d: _swapped(a, d)
        yield f"index {d}: stride", lambda a, d=d: _at(a, d, _stride)
        yield f"index {d}: divisor", lambda a, d=d: _at(a, d, _divisor)
        yield f"index {d}: without division", lambda a, d=d: _at(a, d, _undivided)
        for n, x in enumerate(own):
            y = own[(n + 1) % len(own)]
            yield (
                f"index {d}: {y.name} for {x.name}",
                lambda a, d=d, x=x, y=y: _at(a, d, lambda i: i.substitute(lambda z: y if z == x else z)),
            )


def _at(access: Access, d: int, change: Callable[[Index], Index]) -> tuple[Index, ...]:
    index = access.index
    return (*index[:d], change(index[d]), *index[d + 1 :]) if d < len(index) else index


def _swapped(access: Access, d: int) -> tuple[Index, ...]:
    i = access.index
    return (*i[:d], i[d + 1], i[d], *i[d + 2 :]) if d + 1 < len(i) else i


def _stride(index: Index) -> Index:
    return index + index.terms[0][0] if index.terms else index


def _divisor(index: Index) -> Index:
    for atom, k in index.terms:
        match atom:
            case Quotient(numerator, d):
                return index - k * atom + k * (numerator // (d + 1))
            case Remainder(numerator, d):
                return index - k * atom + k * (numerator % (d + 1))
    return index


def _undivided(index: Index) -> Index:
    """*index* with its first residue (or quotient) lost."""
    for atom, k in index.terms:
        match atom:
            case Quotient(numerator) | Remainder(numerator):
                return index - k * atom + k * numerator
    return index


def reread(program: Program) -> Program:
    """*program* with every read of an equation brought up to what that equation now is."""
    held = {t.name: t for t in program.inputs}
    out = []
    for equation in program.equations:
        scope = _reread(equation.scope, held)
        out.append(replace(equation, scope=scope))
        held[equation.name] = out[-1].tensor
    return replace(program, equations=tuple(out))


def _reread(scope: Scope, held: dict[str, Tensor]) -> Scope:
    def at(access: Access) -> Access:
        match access.source:
            case Tensor(name):
                return Access(held[name], access.index)
            case Scope() as inner:
                return Access(_reread(inner, held), access.index)
            case Table():
                return access

    return replace(scope, body=map_accesses(scope.body, at))
