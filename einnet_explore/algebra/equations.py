"""Equations of a program beside one another: who reads whom, in what order they can stand, what an access comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from einnet_explore.algebra.regions import always
from einnet_explore.ir import EOPERATOR, VIEW, Access, Bound, Equation, Instance, Path, Program, Scope, Tensor, tensors


def named(program: Program, name: str) -> Equation:
    """The equation called *name*; raises ValueError with those that there are."""
    for equation in program.equations:
        if equation.name == name:
            return equation
    raise ValueError(f"no equation is called {name!r}: there are {', '.join(e.name for e in program.equations)}")


def generated(equation: Equation) -> bool:
    """Whether a kernel of ours runs *equation*, or nothing does: a library operator's may still be rewritten."""
    return equation.via is not None and equation.via.operator in (EOPERATOR, VIEW)


def instantiated(program: Program, at: Path, via: Instance) -> Program:
    """The scope at *at* run as *via*: a whole equation where it stands, a nested scope as an equation of its own."""
    if len(at) > 1:
        new = Equation(program.fresh("T"), program.scope_at(at), via)
        return program.replace_at(at, new.tensor, before=(new,))
    (n,), equations = at, program.equations
    return replace(program, equations=(*equations[:n], replace(equations[n], via=via), *equations[n + 1 :]))


def ancestors(program: Program) -> Mapping[str, frozenset[str]]:
    """For every equation the equations that it reads, directly or through others."""
    above: dict[str, frozenset[str]] = {}
    for equation in program.equations:
        direct = {t.name for t in tensors(equation.scope)} & above.keys()
        above[equation.name] = frozenset(direct).union(*(above[name] for name in direct))
    return above


def dependent(program: Program, names: Iterable[str]) -> str | None:
    """Which of the equations called *names* needs another of them; None where they are independent."""
    chosen = tuple(names)
    above = ancestors(program)
    for name in chosen:
        if needed := sorted(above[name] & set(chosen)):
            return f"{name} reads {needed[0]}, directly or through others: they are not independent"
    return None


def to_merge(program: Program, names: Iterable[str]) -> tuple[Equation, ...]:
    """The equations called *names*; raises ValueError where there is but one, or one twice, or one needs another."""
    equations = tuple(named(program, name) for name in names)
    if len(equations) == 1:
        raise ValueError(f"{equations[0].name} alone is nothing to merge")
    if len({e.name for e in equations}) < len(equations):
        raise ValueError(f"{', '.join(e.name for e in equations)} names an equation twice")
    if (why := dependent(program, (e.name for e in equations))) is not None:
        raise ValueError(why)
    return equations


def weight_only(program: Program) -> frozenset[str]:
    """The equations that depend on weights alone, also through one another: they are evaluated at compile time."""
    return constants(program) - {t.name for t in program.inputs}


def constants(program: Program) -> frozenset[str]:
    """What is known at compile time: weights, and the equations that read nothing else."""
    known = {t.name for t in program.inputs if t.weight}
    for equation in program.equations:
        if all(t.name in known for t in tensors(equation.scope)):
            known.add(equation.name)
    return frozenset(known)


def exchanged(program: Program, new: Mapping[str, Equation], more: Iterable[Equation]) -> Program:
    """*program* with equations replaced by name and *more* added, in an order in which each reads earlier ones.

    Equations that no output needs any more are dropped.  Raises ValueError where there is no such order.
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
    """For each of *stems* a name that nothing in *program* has, nor another of these."""
    used = set(program.names())
    out: list[str] = []
    for stem in stems:
        name = next(f"{stem}{n}" for n in range(1, len(used) + 2) if f"{stem}{n}" not in used)
        used.add(name)
        out.append(name)
    return tuple(out)


def resolved(program: Program, access: Access) -> Access:
    """*access* as a read of the tensor that holds the elements, through equations that only re-index."""
    made = {e.name: e.scope for e in program.equations}
    while isinstance(access.source, Tensor) and access.source.name in made:
        match made[access.source.name]:
            case Scope(traversals=traversals, summations=(), body=Access(Tensor()) as inner, domain=()) as scope:
                inside = zip(access.index, scope.box, strict=True)
                if not all(always(Bound(i, lo, hi)) for i, (lo, hi) in inside):
                    return access
                to = dict(zip(traversals, access.index, strict=True))
                access = Access(inner.source, tuple(i.substitute(lambda x, to=to: to[x]) for i in inner.index))  # type: ignore[misc]
            case _:
                return access
    return access
