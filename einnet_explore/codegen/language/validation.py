"""Rules that a kernel obeys in every dialect: names declared once and before use, types, barriers for all threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from einnet_explore.codegen.language.dialects import TILE_SIDES, WORD_TYPES
from einnet_explore.codegen.language.statements import (
    Assign,
    Copy,
    Declare,
    For,
    If,
    Kernel,
    LoadPair,
    LocalArray,
    PairOperation,
    Prefetch,
    Statement,
    Store,
    StorePair,
    StoreTransposed,
    accessed_arrays,
    assigned_names,
    has_barrier,
    integer_constant,
    nested_bodies,
    operands_of,
    own_expressions,
    walk_expression,
    written_array,
)
from einnet_explore.codegen.language.values import (
    BOOL,
    F16,
    F32,
    Array,
    Binary,
    Cast,
    Expr,
    LaunchIndex,
    Literal,
    Load,
    Select,
    Type,
    Unary,
    Var,
)
from einnet_explore.support.errors import Refused

_Names = Mapping[str, "Array | Var"]


def check_kernel(kernel: Kernel) -> None:
    """Raise Refused, naming the kernel, if it breaks a rule of the language.

    All threads of a block must reach a barrier: loop bounds and conditions around it contain no thread index, no
    variable that is assigned twice, and no element of an array that the kernel writes.
    """
    try:
        known: dict[str, Array | Var] = {}
        for p in kernel.params:
            _declare_name(known, p)
        scope = _Scope(
            known, assigned_names(kernel.body), frozenset(p.name for p in kernel.params if isinstance(p, Var))
        )
        _check_body(kernel.body, replace(scope, top=True))
    except Refused as error:
        raise Refused(f"kernel {kernel.name}: {error}") from None


@dataclass(frozen=True)
class _Scope:
    """Declared names, names that are assigned later, and names with one value for the whole block."""

    known: _Names
    changing: frozenset[str]
    uniform: frozenset[str]
    top: bool = False
    """At the top level of the kernel."""

    def alike(self, expr: Expr) -> bool:
        """True if *expr* has one value for all threads of a block."""
        return is_uniform(expr, self.uniform)


def is_uniform(expr: Expr, names: frozenset[str]) -> bool:
    """True if *expr* has one value for all threads of a block, given that the variables *names* have."""
    match expr:
        case Literal():
            return True
        case Var(name):
            return name in names
        case LaunchIndex(of):
            return of != "thread"
        case Load(array, index):
            return array.space == "global" and array.const and array.noalias and is_uniform(index, names)
        case _:
            return all(is_uniform(p, names) for p in operands_of(expr))


def _declare_name(known: dict[str, Array | Var], what: Array | Var) -> None:
    if what.name in known:
        raise Refused(f"{what.name} is declared twice")
    known[what.name] = what


def _check_body(body: Iterable[Statement], scope: _Scope) -> None:
    known, alike = dict(scope.known), set(scope.uniform)
    for s in body:
        here = _Scope(known, scope.changing, frozenset(alike))
        for e in own_expressions(s):
            _check_expression(e, here)
        for a in accessed_arrays(s):
            if known.get(a.name) != a:
                raise Refused(f"array {a.name} is used, and not declared so before")
        if (target := written_array(s)) is not None and target.const:
            raise Refused(f"array {target.name} is constant, and written to")
        _check_statement(s, replace(here, top=scope.top), known)
        if has_barrier(s):
            for e in (e for e in own_expressions(s) if not here.alike(e)):
                raise Refused(f"a barrier under {_describe_value(e)}, which may differ between threads of a block")
        match s:
            case Declare(var, Expr() as value) if var.name not in scope.changing and here.alike(value):
                alike.add(var.name)
            case For(var, start, stop, step, inner):
                same = alike | ({var.name} if all(map(here.alike, (start, stop, step))) else set())
                _check_body(inner, _Scope(known | {var.name: var}, scope.changing, frozenset(same)))
            case _:
                for inner in nested_bodies(s):
                    _check_body(inner, here)


def _check_statement(s: Statement, scope: _Scope, known: dict[str, Array | Var]) -> None:
    match s:
        case Declare(var, value):
            _check_type(f"variable {var.name}", var.type, value)
            _declare_name(known, var)
        case LocalArray(array):
            if array.space == "global" or (array.space == "shared" and not scope.top):
                raise Refused(f"{array.space} array {array.name} is declared where only private ones may be")
            _declare_name(known, array)
        case Assign(var, value):
            if var.name not in scope.changing or known.get(var.name) != var:
                raise Refused(f"variable {var.name} is given a value, and not declared before")
            if var.name in scope.uniform:
                raise Refused(f"{var.name} is a parameter or a loop's, and keeps its value")
            _check_type(f"variable {var.name}", var.type, value)
        case Store(array, index, value):
            _check_type(f"array {array.name}", array.kind.computed, value)
            _check_index(array, index)
        case Copy(target, write, source, read, size):
            if target.kind != source.kind or size < 1:
                raise Refused(f"{size} elements of {source.kind!r} are copied to {target.kind!r}")
            if s.asynchronous and (
                (target.space, source.space) != ("shared", "global") or size * target.kind.size not in (4, 8, 16)
            ):
                raise Refused(
                    f"{size} elements of {source.kind!r} are copied asynchronously from {source.space} to "
                    f"{target.space} memory: expected 4, 8 or 16 bytes from global to shared"
                )
            _check_index(target, write)
            _check_index(source, read)
        case LoadPair(left, right, array, index):
            if array.kind != F16 or left.type != F32 or right.type != F32:
                raise Refused(f"{array.name} of {array.kind!r} is read in pairs, which halves are, into float32")
            _check_index(array, index)
            _declare_name(known, left)
            _declare_name(known, right)
        case StorePair(array, index, left, right):
            if array.kind != F16 or left.type != F32 or right.type != F32:
                raise Refused(f"a pair of {left.type!r} is written to {array.name} of {array.kind!r}")
            _check_index(array, index)
        case PairOperation(op, target, index, left, right):
            if {target.kind, left.kind, right.kind} != {F16} or op not in ("+", "-", "*"):
                raise Refused(f"{op} of pairs of {left.kind!r} and {right.kind!r} into {target.kind!r}")
            _check_index(target, index)
        case StoreTransposed(target, write, stride, tile, side):
            private = tile.space == "private" and tile.kind == target.kind and tile.size == side * side
            if side not in TILE_SIDES or not private or stride < side or target.kind.size not in WORD_TYPES:
                raise Refused(
                    f"a square of {side} of {tile.space} {tile.kind!r}, {tile.size} elements, is turned into "
                    f"{target.name} of {target.kind!r}, rows {stride} apart: "
                    f"expected {', '.join(map(str, TILE_SIDES))}, a "
                    "private array of as many elements, one kind of 2, 4 or 8 bytes, and rows that do not overlap"
                )
            _check_index(target, write)
        case Prefetch(array, index):
            if not index.type.integer:
                raise Refused(f"array {array.name} has an index of {index.type!r}")
        case For(var, start, stop, step):
            if {start.type, stop.type, step.type} != {var.type} or not var.type.integer:
                raise Refused(f"loop {var.name} of {var.type!r} has bounds of {start.type!r} and {stop.type!r}")
            if (by := integer_constant(step)) is not None and by < 1:
                raise Refused(f"loop {var.name} goes in steps of {by}, expected a positive number")
            _declare_name(dict(known), var)
        case If(condition):
            if condition.type != BOOL:
                raise Refused(f"a condition of type {condition.type!r}, expected bool")
        case _:
            pass


def _check_type(what: str, kind: Type, value: Expr | None) -> None:
    if value is not None and value.type != kind:
        raise Refused(f"{what} of {kind!r} is given a value of {value.type!r}")


def _check_index(array: Array, index: Expr) -> None:
    if not index.type.integer:
        raise Refused(f"array {array.name} has an index of {index.type!r}")
    at = integer_constant(index)
    if at is not None and (at < 0 or (array.size and at >= array.size)):
        raise Refused(f"array {array.name} of {array.size or 'unknown many'} elements has an index of {at}")


def _check_expression(expr: Expr, scope: _Scope) -> None:
    for e in walk_expression(expr):
        match e:
            case Var(name):
                if scope.known.get(name) != e:
                    raise Refused(f"variable {name} of {e.type!r} is used, and not declared so before")
            case Load(array, index):
                _check_index(array, index)
            case Binary(op, left, right) if left.type != right.type:
                raise Refused(f"{op} joins {left.type!r} and {right.type!r}")
            case Select(condition, yes, no) if condition.type != BOOL or yes.type != no.type:
                raise Refused(f"a choice between {yes.type!r} and {no.type!r} by {condition.type!r}")
            case Unary(op, arg) if (op == "!") != (arg.type == BOOL) or op not in "-!":
                raise Refused(f"{op} of {arg.type!r}: no such operation")
            case Cast(kind) if kind != kind.computed:
                raise Refused(f"a value cannot be cast to {kind!r}")
            case _:
                pass


def _describe_value(expr: Expr) -> str:
    names = [e.name for e in walk_expression(expr) if isinstance(e, Var)]
    loads = [e.array.name for e in walk_expression(expr) if isinstance(e, Load)]
    threads = [f"thread[{e.dim}]" for e in walk_expression(expr) if isinstance(e, LaunchIndex)]
    return "a value of " + ", ".join(dict.fromkeys((*threads, *names, *loads)))
