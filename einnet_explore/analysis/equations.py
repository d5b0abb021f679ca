"""Equations of a program: dependences, order, readers, and edits of one equation and of its reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import count
from types import MappingProxyType

from einnet_explore.analysis.flattening import view_strides
from einnet_explore.analysis.regions import always_holds
from einnet_explore.ir import (
    EOPERATOR,
    FLOAT32,
    VIEW,
    Access,
    Apply,
    Bound,
    Equation,
    Instance,
    IntegerRanges,
    Padding,
    Path,
    Program,
    Scalar,
    Scope,
    Tensor,
    element_type,
    map_accesses,
    map_tensors,
    scopes,
    show_path,
    tensors,
    walk_scalar,
)
from einnet_explore.support.errors import Refused
from einnet_explore.support.limits import MEMO_ENTRIES
from einnet_explore.syntax.printer import describe_overflow


def find_equation(program: Program, name: str) -> Equation:
    """Return the equation called *name*; raises ValueError with the names that there are."""
    return program.equations[equation_number(program, name)]


def is_typed(scope: Scope) -> bool:
    """Return whether *scope* has another type than ``float32``, or reads one."""
    return element_type(scope) != FLOAT32 or any(t.dtype != FLOAT32 for t in tensors(scope))


def rounds_to_16_bits(scope: Scope) -> bool:
    """Return whether *scope*, or a scope inside it, casts values to half precision or bfloat16."""
    parts = (part for _, inner in scopes(scope) for part in walk_scalar(inner.body))
    return any(isinstance(part, Apply) and part.op in ("float16", "bfloat16") for part in parts)


def require_ranges(program: Program, known: Mapping[str, tuple[int, int]] = MappingProxyType({})) -> None:
    """Raise Refused, with the place and the range, if an integer result of *program* may be beyond its type.

    *known* has ranges of inputs that are smaller than those of their types.
    """
    ranges = IntegerRanges(dict(known))
    for equation in program.equations:
        if (overflow := ranges.equation(equation.name, equation.scope)) is not None:
            raise Refused(describe_overflow(equation.name, overflow))


def require_float32(program: Program, what: str) -> None:
    """Raise Refused, naming *what* is not possible, if a tensor of *program* has another type than ``float32``."""
    for tensor in (*program.inputs, *(e.tensor for e in program.equations)):
        if tensor.dtype != FLOAT32:
            raise Refused(f"{tensor.name} is {tensor.dtype}: {what} expects programs in float32")


def is_generated(equation: Equation) -> bool:
    """Whether a generated kernel or a view runs *equation*; library operators may still be rewritten."""
    return equation.via is not None and equation.via.operator in (EOPERATOR, VIEW)


def instantiate_at(program: Program, at: Path, via: Instance) -> Program:
    """Run the scope at *at* as *via*; a nested scope becomes an equation of its own."""
    if len(at) > 1:
        new = Equation(program.fresh("T"), program.scope_at(at), via)
        return program.replace_at(at, new.tensor, before=(new,))
    (n,), equations = at, program.equations
    return replace(program, equations=(*equations[:n], replace(equations[n], via=via), *equations[n + 1 :]))


def ancestors(program: Program) -> Mapping[str, frozenset[str]]:
    """Map every equation to the equations that it reads, directly or through others."""
    above: dict[str, frozenset[str]] = {}
    for equation in program.equations:
        direct = {t.name for t in tensors(equation.scope)} & above.keys()
        above[equation.name] = frozenset(direct).union(*(above[name] for name in direct))
    return above


def check_independence(program: Program, names: Iterable[str]) -> None:
    """Raise Refused where one of the equations called *names* needs another of them."""
    chosen = tuple(names)
    above = ancestors(program)
    for name in chosen:
        if needed := sorted(above[name] & set(chosen)):
            raise Refused(f"{name} reads {needed[0]}, directly or through others: they are not independent")


def require_free_operands(before: Program, after: Program, at: Path) -> Program:
    """Return *after*, in which the scope at *at* was merged with others.

    Raises Refused if nothing is summed there and an added equation reads another that is computed at run time.
    """
    added = [e for e in after.equations if e.name not in before.names()]
    read = {name for e in added for name in tensor_names(e.scope)}
    constant = constant_tensors(after)
    for e in added if all(y.extent == 1 for y in before.scope_at(at).summations) else ():
        if e.name in read and e.name not in constant and view_strides(e.scope) is None:
            raise Refused(f"{e.name} would be copied, and nothing is summed: merging saves less than that")
    return after


def equations_to_merge(program: Program, names: Iterable[str]) -> tuple[Equation, ...]:
    """Return at least two different, independent equations called *names*; raises ValueError otherwise."""
    equations = tuple(find_equation(program, name) for name in names)
    if len(equations) == 1:
        raise ValueError(f"{equations[0].name} alone is nothing to merge")
    if len({e.name for e in equations}) < len(equations):
        raise ValueError(f"{', '.join(e.name for e in equations)} names an equation twice")
    check_independence(program, (e.name for e in equations))
    return equations


def weight_only(program: Program) -> frozenset[str]:
    """Return the equations that depend on weights alone: they are evaluated at compile time."""
    return constant_tensors(program) - {t.name for t in program.inputs}


def constant_tensors(program: Program) -> frozenset[str]:
    """Return the tensors known at compile time: weights, and equations that read nothing else."""
    known = {t.name for t in program.inputs if t.weight}
    for equation in program.equations:
        if known.issuperset(tensor_names(equation.scope)):
            known.add(equation.name)
    return frozenset(known)


def exchange_equations(program: Program, new: Mapping[str, Equation], more: Iterable[Equation]) -> Program:
    """Replace equations by name, add *more*, and sort them so that each reads earlier ones.

    Equations that no output needs are dropped. Raises ValueError if there is no such order.
    """
    everything = [*more, *(new.get(e.name, e) for e in program.equations)]
    reads = {e.name: {t.name for t in tensors(e.scope)} for e in everything}
    needed = set(program.outputs)
    waiting = [name for name in program.outputs if name in reads]
    while waiting:
        fresh = {name for name in reads[waiting.pop()] if name in reads} - needed
        needed |= fresh
        waiting.extend(fresh)
    placed: list[Equation] = []
    have = {t.name for t in program.inputs}
    left = [e for e in everything if e.name in needed]
    while left:
        ready = next((e for e in left if reads[e.name] <= have), None)
        if ready is None:
            raise ValueError(f"{', '.join(e.name for e in left)} would read one another in a circle")
        placed.append(ready)
        have.add(ready.name)
        left.remove(ready)
    return replace(program, equations=tuple(placed))


def fresh_names(program: Program, *stems: str) -> tuple[str, ...]:
    """Return a new name for each of *stems*, different from all names in *program* and from one another."""
    used = set(program.names())
    out: list[str] = []
    for stem in stems:
        out.append(next(name for n in count(1) if (name := f"{stem}{n}") not in used))
        used.add(out[-1])
    return tuple(out)


def unused_names(program: Program, names: Iterable[str], used: Iterable[str]) -> Mapping[str, str]:
    """Return a new name for each of *names*, not in *program* or *used*."""
    taken = {*used, *program.names()}
    new: dict[str, str] = {}
    for name in sorted(names):
        new[name] = next(f"{name}_{n}" for n in range(1, len(taken) + 2) if f"{name}_{n}" not in taken)
        taken.add(new[name])
    return new


def with_interface_of(program: Program, reference: Program) -> Program:
    """Return *program* with the input and output names of *reference*, by position, if they have no name in common."""
    inputs = [[t.name for t in each.inputs] for each in (program, reference)]
    new = dict[str, str]()
    for mine, theirs in (inputs, (program.outputs, reference.outputs)):
        if set(mine).isdisjoint(theirs) and len(mine) == len(theirs):
            new |= zip(mine, theirs, strict=True)
    names = {*inputs[0], *(e.name for e in program.equations)}
    taken = {*names, *new.values()}
    for name in sorted((names - new.keys()) & set(new.values())):
        new[name] = next(fresh for n in count() if (fresh := f"{name}_{n}") not in taken)
        taken.add(new[name])
    return rename_tensors(program, new) if new else program


def rename_tensors(program: Program, new: Mapping[str, str]) -> Program:
    """Rename the inputs and equations of *program* that are in *new*."""

    def rename(tensor: Tensor) -> Tensor:
        return replace(tensor, name=new[tensor.name]) if tensor.name in new else tensor

    equations = (
        replace(e, name=new.get(e.name, e.name), scope=map_tensors(e.scope, rename)) for e in program.equations
    )
    return Program(tuple(map(rename, program.inputs)), tuple(equations), tuple(new.get(o, o) for o in program.outputs))


def resolve_access(program: Program, access: Access) -> Access:
    """Follow *access* through equations that only re-index to the tensor that stores the elements."""
    made = {e.name: e.scope for e in program.equations}
    while isinstance(access.source, Tensor) and access.source.name in made:
        match made[access.source.name]:
            case Scope(traversals=traversals, summations=(), body=Access(Tensor()) as inner, domain=()) as scope:
                inside = zip(access.index, scope.box, strict=True)
                if not all(always_holds(Bound(i, lo, hi)) for i, (lo, hi) in inside):
                    return access
                to = dict(zip(traversals, access.index, strict=True))
                access = Access(inner.source, tuple(i.substitute(lambda x, to=to: to[x]) for i in inner.index))  # type: ignore[misc]
            case _:
                return access
    return access


@lru_cache(MEMO_ENTRIES)
def tensor_names(scope: Scope) -> tuple[str, ...]:
    """Return the names of the tensors that *scope* reads, each once."""
    return tuple(dict.fromkeys(t.name for t in tensors(scope)))


def readers(program: Program, name: str) -> tuple[int, ...]:
    """Return the numbers of the equations that read the tensor called *name*."""
    return tuple(n for n, e in enumerate(program.equations) if name in tensor_names(e.scope))


def equation_number(program: Program, name: str) -> int:
    """Return the number of the equation called *name*; raises ValueError with the names that there are."""
    for number, equation in enumerate(program.equations):
        if equation.name == name:
            return number
    raise ValueError(
        f"no equation is called {name!r}: there are {', '.join(e.name for e in program.equations) or 'none'}"
    )


def map_reads(scope: Scope, name: str, change: Callable[[Access], Scalar]) -> Scope:
    """Replace every read of the tensor called *name*, at any depth."""

    def look(access: Access) -> Scalar:
        match access.source:
            case Tensor(name=found) if found == name:
                return change(access)
            case Scope() as inner:
                return Access(map_reads(inner, name, change), access.index)
        return access

    return replace(scope, body=map_accesses(scope.body, look))


def redirect_reads(program: Program, old: str, new: Tensor) -> Program:
    """Read *new* instead of *old* everywhere; ``via`` stays, since only a name changes."""

    def redirect(tensor: Tensor) -> Tensor:
        return new if tensor.name == old else tensor

    equations = (
        replace(e, scope=map_tensors(e.scope, redirect)) if old in tensor_names(e.scope) else e
        for e in program.equations
    )
    return replace(program, equations=tuple(equations))


def widen_padding(program: Program, name: str, padding: Padding, value: float) -> tuple[Program, Tensor]:
    """Let *name* be read at least *padding* far, with *value* there; return the program and the tensor to read.

    Raises ValueError if it already has another value there.
    """
    inputs = {t.name: t for t in program.inputs}
    held = inputs[name] if name in inputs else find_equation(program, name).tensor
    if padding and held.padding and held.value != value:
        raise ValueError(f"{name} is {held.value:g} outside its box, expected {value:g}")
    wide = union_padding(held.padding, padding)
    if wide == held.padding:
        return program, held
    value = value if padding else held.value
    new = replace(held, padding=wide, value=value)
    if name in inputs:
        program = replace(program, inputs=tuple(new if t.name == name else t for t in program.inputs))
        return redirect_reads(program, name, new), new
    n = equation_number(program, name)
    old, scope = program.equations[n], program.equations[n].scope
    if scope.domain and scope.value != value:
        raise ValueError(f"{name} is {scope.value:g} outside its domain, expected {value:g}")
    made = replace(old, scope=replace(scope, padding=wide, value=value))
    program = replace(program, equations=(*program.equations[:n], made, *program.equations[n + 1 :]))
    return redirect_reads(program, name, made.tensor), made.tensor


def remove_equation(program: Program, n: int) -> Program:
    """Return *program* without equation *n*."""
    return replace(program, equations=(*program.equations[:n], *program.equations[n + 1 :]))


def whole_equation(program: Program, at: tuple[int, ...]) -> Equation:
    """Return the equation at *at*; raises ValueError for a scope inside one."""
    if len(at) != 1:
        raise ValueError(f"{show_path(at)} is a scope inside an equation, expected an equation")
    program.scope_at(at)
    return program.equations[at[0]]


def union_padding(one: Padding, other: Padding) -> Padding:
    """Return the larger padding on every side."""
    if not one or not other:
        return one or other
    return tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def lift_scopes(program: Program) -> Program:
    """Lift every nested scope to an equation before its reader; instances are dropped."""
    names = set(program.names())
    made: dict[Scope, Equation] = {}
    out: list[Equation] = []

    def flat(scope: Scope) -> Scope:
        return replace(scope, body=map_accesses(scope.body, lift_access))

    def lift_access(access: Access) -> Access:
        match access.source:
            case Scope() as inner:
                if inner not in made:
                    name = _lifted_name(names)
                    made[inner] = Equation(name, flat(inner))
                    out.append(made[inner])
                return Access(made[inner].tensor, access.index)
        return access

    for equation in program.equations:
        out.append(Equation(equation.name, flat(equation.scope)))
    return replace(program, equations=tuple(out))


def _lifted_name(names: set[str]) -> str:
    name = next(name for n in range(1, len(names) + 2) if (name := f"T{n}") not in names)
    names.add(name)
    return name
