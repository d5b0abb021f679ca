"""Who reads a tensor in a program, and reading another one instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

from einnet_explore.ir import Access, Equation, Padding, Program, Scalar, Scope, Tensor, map_accesses, tensors


@lru_cache(1 << 14)
def read_by(scope: Scope) -> tuple[str, ...]:
    """The names of the tensors that *scope* reads, each once."""
    return tuple(dict.fromkeys(t.name for t in tensors(scope)))


def readers(program: Program, name: str) -> tuple[int, ...]:
    """The numbers of the equations that read the tensor called *name*."""
    return tuple(n for n, e in enumerate(program.equations) if name in read_by(e.scope))


def number_of(program: Program, name: str) -> int:
    """The number of the equation called *name*; raises ValueError where there is none."""
    for n, equation in enumerate(program.equations):
        if equation.name == name:
            return n
    raise ValueError(
        f"{name} is no equation of this program, expected one of {_list(e.name for e in program.equations)}"
    )


def map_reads(scope: Scope, name: str, change: Callable[[Access], Scalar]) -> Scope:
    """*scope* with every read of the tensor called *name*, at any depth, exchanged."""

    def look(access: Access) -> Scalar:
        match access.source:
            case Tensor(name=found) if found == name:
                return change(access)
            case Scope() as inner:
                return Access(map_reads(inner, name, change), access.index)
        return access

    return replace(scope, body=map_accesses(scope.body, look))


def read_instead(program: Program, old: str, new: Tensor) -> Program:
    """*program* with *new* read wherever *old* was; means of running stay, since nothing but a name changes."""
    return replace(
        program,
        equations=tuple(
            replace(e, scope=map_reads(e.scope, old, lambda access: Access(new, access.index)))
            if old in read_by(e.scope)
            else e
            for e in program.equations
        ),
    )


def widened(program: Program, name: str, padding: Padding, value: float) -> tuple[Program, Tensor]:
    """*program* in which *name* may be read at least *padding* far with *value* there, and the tensor to read.

    Raises ValueError where it is read with another value there already.
    """
    held = next((t for t in program.inputs if t.name == name), None)
    if held is None:
        held = program.equations[number_of(program, name)].tensor
    if padding and held.padding and held.value != value:
        raise ValueError(f"{name} is {held.value:g} outside its box, expected {value:g}")
    wide = wider(held.padding, padding)
    if wide == held.padding:
        return program, held
    value = value if padding else held.value
    if isinstance(found := _made(program, name), Equation):
        if found.scope.domain and found.scope.value != value:
            raise ValueError(f"{name} is {found.scope.value:g} outside its domain, expected {value:g}")
        made = replace(found, scope=replace(found.scope, padding=wide, value=value))
        program = replace(program, equations=tuple(made if e is found else e for e in program.equations))
        new = made.tensor
    else:
        new = replace(held, padding=wide, value=value)
        program = replace(program, inputs=tuple(new if t.name == name else t for t in program.inputs))
    return read_instead(program, name, new), new


def without(program: Program, n: int) -> Program:
    """*program* without equation *n*."""
    return replace(program, equations=(*program.equations[:n], *program.equations[n + 1 :]))


def whole_equation(program: Program, at: tuple[int, ...]) -> Equation:
    """The equation at *at*; raises ValueError for a scope inside one."""
    if len(at) != 1:
        raise ValueError(f"path {at} is a scope inside an equation, expected an equation")
    program.scope_at(at)
    return program.equations[at[0]]


def _made(program: Program, name: str) -> Equation | None:
    return next((e for e in program.equations if e.name == name), None)


def wider(one: Padding, other: Padding) -> Padding:
    """As far beyond a box as both reach."""
    if not one or not other:
        return one or other
    return tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
