"""Traversal and rewriting of the syntax trees of the kernel language."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from einnet_explore.codegen.language.statements import (
    Assign,
    Barrier,
    Comment,
    Copy,
    Declare,
    For,
    If,
    LoadPair,
    LocalArray,
    PairOperation,
    Prefetch,
    Statement,
    Store,
    StorePair,
    StoreTransposed,
    nested_bodies,
)
from einnet_explore.codegen.language.values import (
    Array,
    Binary,
    Call,
    Cast,
    Expr,
    LaunchIndex,
    Literal,
    Load,
    Select,
    Unary,
    Var,
)

ExpressionRewrite = Callable[[Expr], "Expr | None"]


def operands_of(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands of *expr*."""
    match expr:
        case Unary(_, arg) | Cast(_, arg):
            return (arg,)
        case Binary(_, left, right):
            return left, right
        case Call(_, args):
            return args
        case Select(condition, yes, no):
            return condition, yes, no
        case Load(_, index):
            return (index,)
        case _:
            return ()


def subexpressions(expr: Expr) -> Iterable[Expr]:
    """Yield *expr* and all its subexpressions, outermost first."""
    yield expr
    for part in operands_of(expr):
        yield from subexpressions(part)


def replace_expressions(expr: Expr, to: ExpressionRewrite) -> Expr:
    """Replace every subexpression of *expr* for which *to* returns another one, outermost first."""
    if (found := to(expr)) is not None:
        return found
    match expr:
        case Unary(op, arg):
            return Unary(op, replace_expressions(arg, to))
        case Cast(kind, arg):
            return Cast(kind, replace_expressions(arg, to))
        case Binary(op, left, right):
            return Binary(op, replace_expressions(left, to), replace_expressions(right, to))
        case Call(name, args):
            return Call(name, tuple(replace_expressions(a, to) for a in args))
        case Select(condition, yes, no):
            return Select(replace_expressions(condition, to), replace_expressions(yes, to), replace_expressions(no, to))
        case Load(array, index):
            return Load(array, replace_expressions(index, to))
        case _:
            return expr


def all_statements(body: Iterable[Statement]) -> Iterable[Statement]:
    """Yield the statements of *body* and those nested in them, in order."""
    for s in body:
        yield s
        for inner in nested_bodies(s):
            yield from all_statements(inner)


def own_expressions(statement: Statement) -> tuple[Expr, ...]:
    """Return the expressions that *statement* itself evaluates, without those of nested statements."""
    match statement:
        case Declare(_, value):
            return () if value is None else (value,)
        case Assign(_, value):
            return (value,)
        case Store(_, index, value):
            return index, value
        case Copy(_, write, _, read):
            return write, read
        case LoadPair(_, _, _, index) | PairOperation(_, _, index) | StoreTransposed(_, index) | Prefetch(_, index):
            return (index,)
        case StorePair(_, index, left, right):
            return index, left, right
        case For(_, start, stop, step):
            return start, stop, step
        case If(condition):
            return (condition,)
        case LocalArray() | Barrier() | Comment():
            return ()


def rewrite_statement(statement: Statement, to: ExpressionRewrite) -> Statement:
    """Replace the expressions in *statement*, at any depth; declarations stay."""
    match statement:
        case Declare(var, value):
            return Declare(var, None if value is None else replace_expressions(value, to))
        case Assign(var, value):
            return Assign(var, replace_expressions(value, to))
        case Store(array, index, value):
            return Store(array, replace_expressions(index, to), replace_expressions(value, to))
        case Copy(write=write, read=read):
            return replace(statement, write=replace_expressions(write, to), read=replace_expressions(read, to))
        case LoadPair(index=index) | PairOperation(index=index) | Prefetch(index=index):
            return replace(statement, index=replace_expressions(index, to))
        case StoreTransposed(write=write):
            return replace(statement, write=replace_expressions(write, to))
        case StorePair(array, index, left, right):
            return StorePair(
                array, replace_expressions(index, to), replace_expressions(left, to), replace_expressions(right, to)
            )
        case For(var, start, stop, step, body):
            bounds = [replace_expressions(e, to) for e in (start, stop, step)]
            inner = tuple(rewrite_statement(s, to) for s in body)
            return replace(statement, start=bounds[0], stop=bounds[1], step=bounds[2], body=inner)
        case If(condition, then, orelse):
            return If(
                replace_expressions(condition, to),
                tuple(rewrite_statement(s, to) for s in then),
                tuple(rewrite_statement(s, to) for s in orelse),
            )
        case LocalArray() | Barrier() | Comment():
            return statement


def accessed_arrays(statement: Statement) -> tuple[Array, ...]:
    """Return the arrays that *statement* itself accesses: those it writes first, then those its expressions read."""
    match statement:
        case Store(array) | StorePair(array) | LoadPair(_, _, array) | Prefetch(array):
            own: tuple[Array, ...] = (array,)
        case Copy(target, _, source):
            own = (target, source)
        case StoreTransposed(target, _, _, tile):
            own = (target, tile)
        case PairOperation(_, target, _, left, right):
            own = (target, left, right)
        case _:
            own = ()
    read = (e.array for x in own_expressions(statement) for e in subexpressions(x) if isinstance(e, Load))
    return (*own, *read)


def written_array(statement: Statement) -> Array | None:
    """Return the array that *statement* itself writes, or None."""
    match statement:
        case Store(array) | StorePair(array) | Copy(array) | StoreTransposed(array) | PairOperation(_, array):
            return array
        case _:
            return None


def declared_names(statement: Statement) -> tuple[str, ...]:
    """Return the names that *statement* itself declares."""
    match statement:
        case Declare(var):
            return (var.name,)
        case LocalArray(array):
            return (array.name,)
        case LoadPair(left, right):
            return left.name, right.name
        case _:
            return ()


def used_names(statement: Statement) -> frozenset[str]:
    """Return the names of variables and arrays in *statement*, at any depth."""
    found = {a.name for a in accessed_arrays(statement)}
    found |= {e.name for x in own_expressions(statement) for e in subexpressions(x) if isinstance(e, Var)}
    match statement:
        case Assign(var) | Declare(var):
            found.add(var.name)
        case _:
            pass
    return frozenset(found).union(*(used_names(s) for body in nested_bodies(statement) for s in body))


def assigned_names(body: Iterable[Statement]) -> frozenset[str]:
    """Return the variables that *body* assigns after their declaration, at any depth."""
    found: set[str] = set()
    for s in body:
        match s:
            case Assign(var) | Declare(var, None):
                found.add(var.name)
            case _:
                pass
        for inner in nested_bodies(s):
            found |= assigned_names(inner)
    return frozenset(found)


def integer_constant(expr: Expr) -> int | None:
    """Return the value of an integer literal, or None."""
    return int(expr.value) if isinstance(expr, Literal) and expr.type.integer else None


def launch_indices(body: Iterable[Statement]) -> frozenset[LaunchIndex]:
    """Return the thread, block and grid indices that *body* reads."""
    return frozenset(
        e
        for s in all_statements(body)
        for x in own_expressions(s)
        for e in subexpressions(x)
        if isinstance(e, LaunchIndex)
    )
