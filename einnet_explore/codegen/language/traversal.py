"""What statements and expressions of the kernel language consist of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from einnet_explore.codegen.language.statements import (
    Assign,
    Barrier,
    Copy,
    Declare,
    Fetch,
    For,
    If,
    LoadPair,
    Local,
    Note,
    PairOperation,
    Statement,
    Store,
    StorePair,
    Turn,
    nested,
)
from einnet_explore.codegen.language.values import (
    Array,
    Binary,
    Call,
    Cast,
    Expr,
    Id,
    Literal,
    Load,
    Select,
    Unary,
    Var,
)

Change = Callable[[Expr], "Expr | None"]


def parts(expr: Expr) -> tuple[Expr, ...]:
    """The direct parts of *expr*."""
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


def everything(expr: Expr) -> Iterable[Expr]:
    """*expr* and all its parts, outermost first."""
    yield expr
    for part in parts(expr):
        yield from everything(part)


def change(expr: Expr, to: Change) -> Expr:
    """*expr* with every part that *to* has an answer for replaced, outermost first."""
    if (found := to(expr)) is not None:
        return found
    match expr:
        case Unary(op, arg):
            return Unary(op, change(arg, to))
        case Cast(kind, arg):
            return Cast(kind, change(arg, to))
        case Binary(op, left, right):
            return Binary(op, change(left, to), change(right, to))
        case Call(name, args):
            return Call(name, tuple(change(a, to) for a in args))
        case Select(condition, yes, no):
            return Select(change(condition, to), change(yes, to), change(no, to))
        case Load(array, index):
            return Load(array, change(index, to))
        case _:
            return expr


def each(body: Iterable[Statement]) -> Iterable[Statement]:
    """The statements of *body* and those inside of them, in order."""
    for s in body:
        yield s
        for inner in nested(s):
            yield from each(inner)


def expressions(statement: Statement) -> tuple[Expr, ...]:
    """The expressions that *statement* itself evaluates, not those of the statements inside it."""
    match statement:
        case Declare(_, value):
            return () if value is None else (value,)
        case Assign(_, value):
            return (value,)
        case Store(_, index, value):
            return index, value
        case Copy(_, write, _, read):
            return write, read
        case LoadPair(_, _, _, index) | PairOperation(_, _, index) | Turn(_, index) | Fetch(_, index):
            return (index,)
        case StorePair(_, index, left, right):
            return index, left, right
        case For(_, start, stop, step):
            return start, stop, step
        case If(condition):
            return (condition,)
        case Local() | Barrier() | Note():
            return ()


def change_expressions(statement: Statement, to: Change) -> Statement:
    """*statement* with every expression in it changed, at any depth; what it declares stays."""
    match statement:
        case Declare(var, value):
            return Declare(var, None if value is None else change(value, to))
        case Assign(var, value):
            return Assign(var, change(value, to))
        case Store(array, index, value):
            return Store(array, change(index, to), change(value, to))
        case Copy(write=write, read=read):
            return replace(statement, write=change(write, to), read=change(read, to))
        case LoadPair(index=index) | PairOperation(index=index) | Fetch(index=index):
            return replace(statement, index=change(index, to))
        case Turn(write=write):
            return replace(statement, write=change(write, to))
        case StorePair(array, index, left, right):
            return StorePair(array, change(index, to), change(left, to), change(right, to))
        case For(var, start, stop, step, body):
            bounds = [change(e, to) for e in (start, stop, step)]
            inner = tuple(change_expressions(s, to) for s in body)
            return replace(statement, start=bounds[0], stop=bounds[1], step=bounds[2], body=inner)
        case If(condition, then, orelse):
            return If(
                change(condition, to),
                tuple(change_expressions(s, to) for s in then),
                tuple(change_expressions(s, to) for s in orelse),
            )
        case Local() | Barrier() | Note():
            return statement


def arrays(statement: Statement) -> tuple[Array, ...]:
    """The arrays that *statement* itself touches: those it writes first, then what its expressions read."""
    match statement:
        case Store(array) | StorePair(array) | LoadPair(_, _, array) | Fetch(array):
            own: tuple[Array, ...] = (array,)
        case Copy(target, _, source):
            own = (target, source)
        case Turn(target, _, _, tile):
            own = (target, tile)
        case PairOperation(_, target, _, left, right):
            own = (target, left, right)
        case _:
            own = ()
    read = (e.array for x in expressions(statement) for e in everything(x) if isinstance(e, Load))
    return (*own, *read)


def written(statement: Statement) -> Array | None:
    """The array that *statement* itself writes."""
    match statement:
        case Store(array) | StorePair(array) | Copy(array) | Turn(array) | PairOperation(_, array):
            return array
        case _:
            return None


def declared(statement: Statement) -> tuple[str, ...]:
    """The names that *statement* itself gives to what follows it."""
    match statement:
        case Declare(var):
            return (var.name,)
        case Local(array):
            return (array.name,)
        case LoadPair(left, right):
            return left.name, right.name
        case _:
            return ()


def used(statement: Statement) -> frozenset[str]:
    """The names of variables and arrays that *statement* mentions, at any depth."""
    found = {a.name for a in arrays(statement)}
    found |= {e.name for x in expressions(statement) for e in everything(x) if isinstance(e, Var)}
    match statement:
        case Assign(var) | Declare(var):
            found.add(var.name)
        case _:
            pass
    return frozenset(found).union(*(used(s) for body in nested(statement) for s in body))


def assigned(body: Iterable[Statement]) -> frozenset[str]:
    """The variables that are given a value after their declaration, anywhere in *body*."""
    found: set[str] = set()
    for s in body:
        match s:
            case Assign(var) | Declare(var, None):
                found.add(var.name)
            case _:
                pass
        for inner in nested(s):
            found |= assigned(inner)
    return frozenset(found)


def constant(expr: Expr) -> int | None:
    """The value of a whole number known beforehand."""
    return int(expr.value) if isinstance(expr, Literal) and expr.type.integer else None


def ids(body: Iterable[Statement]) -> frozenset[Id]:
    """The ids of thread, block and grid that *body* asks for."""
    return frozenset(e for s in each(body) for x in expressions(s) for e in everything(x) if isinstance(e, Id))
