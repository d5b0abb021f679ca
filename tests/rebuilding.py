"""Small programs rebuilt with other equations, and mistakes between equations rather than inside one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import TypeAlias

import numpy as np
from certificate_steps import reread, scope_mutants

from einnet_explore.analysis.equations import map_reads, tensor_names
from einnet_explore.analysis.indices import substitute
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.interpreter.grid import IllegalRead
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Equation,
    Index,
    Iterator,
    Program,
    Scalar,
    Scope,
    Tensor,
    add,
    as_index,
    map_tensors,
    mul,
    scopes,
)
from einnet_explore.syntax import parse

Change: TypeAlias = Callable[[Program, Random], Program]
"""It gives the program itself where there is nothing to change."""

BODIES = (
    "{0}[i, j] + 2*{1}[j, i]",
    "{0}[i, j]*{1}[i, j]",
    "sum[k:3] {0}[i, k]*{1}[k, j]",
    "relu({0}[j, i] - {1}[i, j])",
    "where(i < 2, {0}[i, j], {1}[2-i, j])",
    "max[k:3] {0}[i, k] + {1}[k, j]",
)
"""What an equation may be, of two others; the first three are polynomials."""

FORMS = (
    *BODIES,
    "{{[a:3, b:3] {0}[a, b]*{1}[b, a]}}[j, i]",
    "{0}[i, j]",
    "{0}[i, (j+1)%3] - {1}[i, j]",
)
B2, I3, J3 = Iterator("b", 0, 2), Iterator("i", 0, 3), Iterator("j", 0, 3)


def drawn(random: Random) -> Program:
    """Two to four equations over two or three inputs; some have a domain, or may be read outside."""
    names = ["a", "b", "c"][: random.randint(2, 3)]
    lines = [f"tensor {name}[3, 3]" for name in names]
    made = [f"T{n}" for n in range(random.randint(2, 4))]
    random.shuffle(made)
    for name in made:
        body = random.choice(FORMS).format(*random.choices(names[-4:], k=2))
        domain = random.choice(("", "", "", " | 0 <= i < 2", " | 1 <= i+j < 4"))
        padding = random.choice(("", "", "", " pad [1, 1]", " pad [1, 1] value 2"))
        lines.append(f"{name}[i:3, j:3{domain}] = {body}{padding}")
        names.append(name)
    outputs = [name for name in made if random.random() < 0.4] or made[-1:]
    return parse("\n".join((*lines, f"output {', '.join(outputs)}")))


def rebuilt(program: Program, random: Random) -> Program:
    """Return an equal program with other equations, under names that had another value before."""
    made = program
    for _ in range(random.randint(0, 4)):
        made = random.choice((put_in, taken_out, copied, moved, negated))(made, random)
    names = [e.name for e in program.equations]
    for _ in range(random.randint(0, 3)):
        made = random.choice((unread(names), reordered, renamed(names)))(made, random)
    return made


def put_in(program: Program, random: Random) -> Program:
    """An equation in place of reads of it, of some readers or of all; then it goes."""
    if not (inner := _inner(program)):
        return program
    one, every = random.choice(inner), random.random() < 0.5

    def put(e: Equation) -> Equation:
        if not every and random.random() < 0.5:
            return e
        return _reading(e, one.name, lambda a: Access(replace(one.scope, padding=a.source.padding), a.index))

    return _needed(replace(program, equations=tuple(map(put, program.equations))))


def taken_out(program: Program, random: Random) -> Program:
    """A scope inside an equation as an equation of its own."""
    found = [(n, *path) for n, e in enumerate(program.equations) for path, _ in scopes(e.scope) if path]
    if not found:
        return program
    at = random.choice(found)
    made = Equation(program.fresh("O"), program.scope_at(at))
    return program.replace_at(at, made.tensor, before=(made,))


def copied(program: Program, random: Random) -> Program:
    """A copy, turned or as two layers, for some readers."""
    one = random.choice(program.equations)
    if one.scope.box != ((0, 3), (0, 3)):
        return program
    of, pad = one.tensor, one.tensor.padding
    layer = as_index(random.randint(0, 1))
    made, change = random.choice(
        (
            (Scope((J3, I3), (), of[I3, J3], padding=pad[::-1], value=of.value), lambda i: i[::-1]),
            (
                Scope((B2, I3, J3), (), of[I3, J3], padding=((0, 0), *pad) if pad else (), value=of.value),
                lambda i: (layer, *i),
            ),
        )
    )
    copy = Equation(program.fresh("C"), made)
    after = program.equations.index(one) + 1
    later = (
        _reading(e, one.name, lambda a: Access(copy.tensor, change(a.index))) if random.random() < 0.7 else e
        for e in program.equations[after:]
    )
    return replace(program, equations=(*program.equations[:after], copy, *later))


def moved(program: Program, random: Random) -> Program:
    """A result whose first index begins elsewhere."""
    inner = [e for e in _inner(program) if e.scope.traversals]
    if not inner:
        return program
    one, by = random.choice(inner), random.choice((-2, -1, 1))
    x, *rest = one.scope.traversals
    new = Iterator(x.name, x.lo + by, x.hi + by)
    domain = tuple(Bound(b.index.substitute(lambda z: new - by if z == x else z), b.lo, b.hi) for b in one.scope.domain)
    body = substitute(one.scope.body, {x: new - by})
    made = replace(one, scope=replace(one.scope, traversals=(new, *rest), body=body, domain=domain))
    return _changed(program, one, made, lambda a: Access(made.tensor, (a.index[0] + by, *a.index[1:])))


def negated(program: Program, random: Random, wrong: bool = False) -> Program:
    """A sum times -1, and times -1 wherever it is read; *wrong*: not for some."""
    inner = [e for e in _inner(program) if e.scope.reduce == "sum"]
    if not inner:
        return program
    one = random.choice(inner)
    made = replace(one, scope=replace(one.scope, body=mul(Const(-1), one.scope.body), value=-one.scope.value))

    def back(access: Access) -> Scalar:
        found = Access(made.tensor, access.index)
        return found if wrong and random.random() < 0.5 else mul(Const(-1), found)

    return _changed(program, one, made, back)


def unread(names: Iterable[str]) -> Change:
    """An equation that nothing reads, called like one of *names* that is free."""

    def change(program: Program, random: Random) -> Program:
        n = random.randint(0, len(program.equations))
        free = [name for name in names if name not in program.names()] or [program.fresh("U")]
        square = [t for t in _held(program, n) if t.box == ((0, 3), (0, 3))]
        s, t = random.choices(square, k=2)
        body = random.choice(
            (s[I3, J3], add(s[I3, J3], t[J3, I3]), mul(Const(3), s[I3, J3]), mul(s[I3, J3], t[I3, J3]))
        )
        made = Equation(random.choice(free), Scope((I3, J3), (), body))
        return replace(program, equations=(*program.equations[:n], made, *program.equations[n:]))

    return change


def reordered(program: Program, random: Random) -> Program:
    """The equations in another order in which each reads earlier ones."""
    left, have = list(program.equations), {t.name for t in program.inputs}
    placed: list[Equation] = []
    while left:
        placed.append(random.choice([e for e in left if have.issuperset(tensor_names(e.scope))]))
        have.add(placed[-1].name)
        left.remove(placed[-1])
    return replace(program, equations=tuple(placed))


def renamed(names: Iterable[str]) -> Change:
    """The equations that are no outputs under others of *names* and of their own."""

    def change(program: Program, random: Random) -> Program:
        taken = {*program.outputs, *(t.name for t in program.inputs)}
        own = [e.name for e in _inner(program)]
        pool = [name for name in dict.fromkeys((*names, *own)) if name not in taken]
        random.shuffle(pool)
        to = dict(zip(own, pool, strict=False))

        def called(e: Equation) -> Equation:
            scope = map_tensors(e.scope, lambda t: replace(t, name=to.get(t.name, t.name)))
            return replace(e, name=to.get(e.name, e.name), scope=scope)

        return replace(program, equations=tuple(map(called, program.equations)))

    return change


def definitions_exchanged(program: Program, random: Random) -> Program:
    """Two names exchange what they mean; readers stay."""
    one, other = random.choices([e.name for e in program.equations], k=2)
    to = {one: other, other: one}
    return _fit(replace(program, equations=tuple(replace(e, name=to.get(e.name, e.name)) for e in program.equations)))


def another_read(program: Program, random: Random) -> Program:
    """One reader reads something else, in one place or in all."""
    n = random.randrange(len(program.equations))
    held = _held(program, n)
    read = [t for t in held if t.name in tensor_names(program.equations[n].scope)]
    if not read:
        return program
    old = random.choice(read)
    new = random.choice([t for t in held if len(t.shape) == len(old.shape)])
    every = random.random() < 0.5
    return _read_in(program, n, old.name, lambda a: Access(new, a.index) if every or random.random() < 0.5 else a)


def another_index(program: Program, random: Random) -> Program:
    """One reader reads at another place."""
    n = random.randrange(len(program.equations))
    old = random.choice(tensor_names(program.equations[n].scope) or ("",))
    first = random.choice((lambda i: i + 1, lambda i: 2 - i, lambda i: i // 2, lambda i: as_index(0)))

    def change(access: Access) -> Access:
        index: tuple[Index, ...] = access.index
        if random.random() < 0.3:
            return access
        return Access(access.source, index[::-1] if random.random() < 0.4 else (first(index[0]), *index[1:]))

    return _read_in(program, n, old, change)


def another_outside(program: Program, random: Random) -> Program:
    """A result has another value outside, or another padding; readers know of it, or not."""
    n = random.randrange(len(program.equations))
    scope = program.equations[n].scope
    padding = random.choice((scope.padding, (), tuple((1, 1) for _ in scope.traversals)))
    changed = _with(program, n, replace(scope, value=random.choice((scope.value, 0, 1)), padding=padding))
    return _fit(changed) if random.random() < 0.7 else changed


def another_meaning(program: Program, random: Random) -> Program:
    """One thing changed in one equation, or in a copy of it that some of its readers read."""
    n = random.randrange(len(program.equations))
    _, scope = random.choice(list(scope_mutants(program.equations[n].scope)))
    if _no_number(scope.body):
        return program
    if random.random() < 0.5:
        return _fit(_with(program, n, scope))
    copy = Equation(program.fresh("D"), scope)
    old = program.equations[n].name
    later = (
        _reading(e, old, lambda a: Access(copy.tensor, a.index)) if random.random() < 0.6 else e
        for e in program.equations[n + 1 :]
    )
    return replace(program, equations=(*program.equations[: n + 1], copy, *later))


def half_negated(program: Program, random: Random) -> Program:
    return negated(program, random, wrong=True)


def input_defined(program: Program, random: Random) -> Program:
    """An input is an equation that copies another one."""
    old, new = random.sample(program.inputs, 2) if len(program.inputs) > 1 else program.inputs * 2
    made = Equation(old.name, Scope((I3, J3), (), new[J3, I3]))
    inputs = tuple(t for t in program.inputs if t != old or t == new)
    return replace(program, inputs=inputs, equations=(made, *program.equations))


WRONG: tuple[Change, ...] = (
    definitions_exchanged, another_read, another_index, another_outside, another_meaning, half_negated, input_defined,
)  # fmt: skip


def same(before: Program, after: Program) -> bool:
    """The truth, on random integers; what reads illegally is not the same."""
    for seed, least, most in ((0, -99, 99), (1, -4, 4), (2, 0, 50), (3, -50, 0)):
        random = np.random.default_rng(seed)
        inputs = {t.name: random.integers(least, most + 1, t.shape) for t in before.inputs}
        try:
            left, found = (
                evaluate(p, {t.name: inputs[t.name] for t in p.inputs}, outputs_only=True) for p in (before, after)
            )
        except (IllegalRead, ValueError, KeyError):
            return False
        if any(not np.array_equal(left[name], found[name]) for name in left):
            return False
    return True


def _no_number(body: Scalar) -> bool:
    """Whether a comparison stands where a number has to."""
    match body:
        case Apply("where", (Compare(), yes, no)):
            return _no_number(yes) or _no_number(no)
        case Apply(op, args):
            return op == "where" or any(map(_no_number, args))
    return isinstance(body, Compare)


def _inner(program: Program) -> list[Equation]:
    return [e for e in program.equations if e.name not in program.outputs]


def _held(program: Program, n: int) -> list[Tensor]:
    """Return the tensors that equation *n* may read."""
    return [*program.inputs, *(e.tensor for e in program.equations[:n])]


def _reading(equation: Equation, name: str, change: Callable[[Access], Scalar]) -> Equation:
    if name not in tensor_names(equation.scope):
        return equation
    return replace(equation, scope=map_reads(equation.scope, name, change))


def _changed(program: Program, old: Equation, new: Equation, read: Callable[[Access], Scalar]) -> Program:
    """*new* for *old*, and what *read* says for every read of it."""
    equations = (new if e is old else _reading(e, old.name, read) for e in program.equations)
    return replace(program, equations=tuple(equations))


def _read_in(program: Program, n: int, name: str, change: Callable[[Access], Scalar]) -> Program:
    return _with(program, n, map_reads(program.equations[n].scope, name, change))


def _with(program: Program, n: int, scope: Scope) -> Program:
    changed = replace(program.equations[n], scope=scope)
    return replace(program, equations=(*program.equations[:n], changed, *program.equations[n + 1 :]))


def _fit(program: Program) -> Program:
    """*program* with its reads brought up to date; where that cannot be, as it is."""
    try:
        return reread(program)
    except KeyError:
        return program


def _needed(program: Program) -> Program:
    """Without equations that no output needs."""
    need, kept = set(program.outputs), list[Equation]()
    for e in program.equations[::-1]:
        if e.name in need:
            kept.append(e)
            need.update(tensor_names(e.scope))
    return replace(program, equations=tuple(kept[::-1]))
