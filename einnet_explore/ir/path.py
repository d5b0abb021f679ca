"""Paths name a scope inside a program; they survive printing and JSON.

A path is ``(equation, access, access, …)``: the number of the equation, then at every level the number of the access,
counted from left to right over the body, whose source is the next scope.  Its text is ``"0.1"``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from einnet_explore.ir.expression import Access, Apply, Compare, Const, Scalar, Scope, Table, Tensor
from einnet_explore.ir.scalars import add, mul

Path: TypeAlias = "tuple[int, ...]"


def subexpressions(body: Scalar) -> Iterable[Scalar]:
    """*body* and the arguments in it, each function before its arguments; not inside the scopes that it reads."""
    yield body
    if isinstance(body, Apply):
        for arg in body.args:
            yield from subexpressions(arg)


def accesses(body: Scalar) -> Iterable[Access]:
    """The accesses of *body*, left to right; not those inside the scopes that it reads."""
    match body:
        case Access():
            yield body
        case Apply(args=args):
            for arg in args:
                yield from accesses(arg)
        case Const() | Compare():
            pass


def map_accesses(body: Scalar, change: Callable[[Access], Scalar]) -> Scalar:
    """*body* with every access *a* replaced by ``change(a)``, left to right; products and sums stay flat."""
    match body:
        case Access():
            return change(body)
        case Apply(op, args):
            new = tuple(map_accesses(a, change) for a in args)
            if new == args:
                return body
            return mul(*new) if op == "*" else add(*new) if op == "+" else Apply(op, new)
        case Const() | Compare():
            return body


def scopes(root: Scope) -> Iterable[tuple[Path, Scope]]:
    """Every scope of *root* with its path below *root*, outermost first."""
    yield (), root
    for i, access in enumerate(accesses(root.body)):
        if isinstance(access.source, Scope):
            for path, scope in scopes(access.source):
                yield (i, *path), scope


def tensors(root: Scope) -> Iterable[Tensor]:
    """Every tensor read in *root*, at any depth, once, in order of appearance."""
    found: dict[Tensor, None] = {}
    for _, scope in scopes(root):
        for access in accesses(scope.body):
            if isinstance(access.source, Tensor):
                found.setdefault(access.source)
    return tuple(found)


def map_tensors(root: Scope, change: Callable[[Tensor], Tensor | Scope]) -> Scope:
    """*root* with what every read of a tensor reads, at any depth, replaced by *change*."""

    def swap(access: Access) -> Access:
        match access.source:
            case Tensor() as tensor:
                return Access(change(tensor), access.index)
            case Scope() as inner:
                return Access(map_tensors(inner, change), access.index)
        return access

    return replace(root, body=map_accesses(root.body, swap))


def describe_source(source: Tensor | Table) -> str:
    """What *source* is called in messages."""
    return f"tensor {source.name}" if isinstance(source, Tensor) else "a table"


def scope_at(root: Scope, path: Path, above: Path = ()) -> Scope:
    """The scope of *root* at *path*; raises LookupError where *path* leads to none.

    *above*: the path of *root* itself, for the message.
    """
    shown = show_path((*above, *path))
    for depth, step in enumerate(path, len(above)):
        here = list(accesses(root.body))
        if not 0 <= step < len(here):
            raise LookupError(f"path {shown}: step {depth} is {step}, the body has {len(here)} accesses")
        inner = here[step].source
        if not isinstance(inner, Scope):
            raise LookupError(f"path {shown}: step {depth} leads to {describe_source(inner)}, not to a scope")
        root = inner
    return root


def replace_at(root: Scope, path: Path, new: Scope | Tensor) -> Scope:
    """*root* with the scope at *path* (not the root itself) read from *new* instead; untouched parts are shared."""
    if not path:
        if isinstance(new, Tensor):
            raise LookupError(f"the root of an equation cannot become tensor {new.name}")
        return new
    inner = scope_at(root, path[:1])
    target = new if len(path) == 1 else replace_at(inner, path[1:], new)
    count = iter(range(path[0] + 1))

    def swap(access: Access) -> Access:
        return Access(target, access.index) if next(count, None) == path[0] else access

    return replace(root, body=map_accesses(root.body, swap))


def show_path(path: Path) -> str:
    """``(0, 1)`` as ``"0.1"``."""
    return ".".join(map(str, path))


def read_path(text: str) -> Path:
    """``"0.1"`` as ``(0, 1)``; raises ValueError on anything else."""
    if text and not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})*", text):
        raise ValueError(f"path {text!r}: expected numbers separated by dots, such as 0.1")
    return tuple(map(int, text.split("."))) if text else ()
