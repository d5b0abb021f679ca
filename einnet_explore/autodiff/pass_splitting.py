r"""Splitting of two passes at a stash: the forward pass with more outputs, the backward pass with placeholders.

Quotients become products with inverses, so that factors can be reassociated across a division:

.. math::  a / (b\,c) = a \cdot \frac1b \cdot \frac1c

wherever the quotient is defined, over the reals.  Programs that are equal in this form are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from einnet_explore.analysis.equations import exchange_equations, rename_tensors, union_padding, unused_names
from einnet_explore.autodiff.available_tensors import AvailableTensor, available_in, shared_inputs
from einnet_explore.autodiff.common_parts import EntryGroups, value_use
from einnet_explore.autodiff.pass_writer import PassWriter, fresh_iterators
from einnet_explore.autodiff.program_values import Demand, ProgramValues
from einnet_explore.autodiff.values import Use, Value, Values, lone_index
from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Equation,
    Iterator,
    Padding,
    Program,
    Scalar,
    Scope,
    Tensor,
    accesses,
    as_index,
    factors,
    map_accesses,
    map_tensors,
    mul,
    scopes,
    tensors,
)


def with_inverses(program: Program) -> Program:
    """Replace every quotient, at any depth, by a product with inverses of single factors."""
    return replace(program, equations=tuple(replace(e, scope=_scope(e.scope)) for e in program.equations))


def has_division(scope: Scope) -> bool:
    """Whether *scope*, or a nested scope, divides by a non-constant."""
    return any(_divides(inner.body) for _, inner in scopes(scope))


def _divides(body: Scalar) -> bool:
    match body:
        case Apply("/", (a, b)):
            return not isinstance(b, Const) or _divides(a)
        case Apply(_, args):
            return any(map(_divides, args))
        case Access() | Const() | Compare():
            return False


def _scope(scope: Scope) -> Scope:
    def invert_access(access: Access) -> Access:
        return Access(_scope(access.source), access.index) if isinstance(access.source, Scope) else access

    return replace(scope, body=map_accesses(_invert_quotients(scope.body), invert_access))


def _invert_quotients(body: Scalar) -> Scalar:
    match body:
        case Apply("/", (a, b)):
            return mul(_invert_quotients(a), *map(_inverse, factors(_invert_quotients(b))))
        case Apply("*", args):
            return mul(*map(_invert_quotients, args))
        case Apply("neg", (a,)):
            return mul(Const(-1), _invert_quotients(a))
        case Apply(op, args):
            return Apply(op, tuple(map(_invert_quotients, args)))
        case Access() | Const() | Compare():
            return body


def _inverse(factor: Scalar) -> Scalar:
    match factor:
        case Const(-1):
            return factor
        case Apply("/", (Const(1), inner)):
            return inner
    return Apply("/", (Const(1), factor))


def pass_writer(
    values: Values, one: ProgramValues, parts: EntryGroups, stashed: Sequence[AvailableTensor], used: Iterable[str] = ()
) -> PassWriter:
    """Return a writer of the expressions of *one*, whose new equations avoid the names *used*."""
    position = {e.name: n for n, e in enumerate(one.program.equations)}
    made = [(position[name], found) for name, found in available_in(one)]
    return PassWriter(
        values, parts, {t.name: t for t in one.program.inputs}, stashed, made, (*used, *one.program.names())
    )


def placed_traversals(by: PassWriter, demand: Demand) -> tuple[tuple[Iterator, ...], Use]:
    """Return traversals over the box of *demand*, shifted to 0 and in its layout, and the value over them."""
    value = demand.value
    ranges = tuple(as_index(Iterator("x", lo, hi)) for lo, hi in demand.box)
    own = tuple(Iterator(x.name, 0, x.extent) for x in fresh_iterators(value.names, ranges))
    at = tuple(lone_index(x) + lo for x, (lo, _) in zip(own, demand.box, strict=True))
    return tuple(own[n] for n in stash_layout(by, value)), Use(1, value, at)


def stash_layout(by: PassWriter, value: Value) -> tuple[int, ...]:
    """Return the parameter order of *value* as a tensor: that of its source with the most parameters."""
    params = value.scope.traversals
    best: tuple[int, ...] = ()
    waiting = [value_use(value)]
    seen: set[Use] = set()
    while waiting:
        use = waiting.pop()
        if use not in seen:
            seen.add(use)
            for index in by.available.stored_indices(use):
                found = tuple(dict.fromkeys(params.index(x) for i in index if (x := i.single) in params))
                best = found if len(found) > len(best) else best
            to = dict(zip(use.value.scope.traversals, use.at, strict=True))
            waiting.extend(reversed([read.substitute(to) for read in by.values.reads(use.value)]))
    return (*best, *(n for n in value.order if n not in best))


def stash_definition(made: PassWriter, demand: Demand, position: int) -> Scope:
    """Return the value of *demand* as a scope that reads equations before *position*."""
    own, use = placed_traversals(made, demand)
    return made.definition(use.value, own, use.at, position)


def with_stash(
    values: Values,
    one: ProgramValues,
    parts: EntryGroups,
    chosen: Sequence[tuple[Demand, str | None]],
    used: Iterable[str],
) -> tuple[Program, tuple[AvailableTensor, ...]]:
    """Return the forward pass *one* with each of *chosen* as an output, and the stashed tensors.

    A chosen value is stored by its named equation, or in a new equation with a name not in *used*.
    """
    program = one.program
    taken = {*used, *program.names()}
    scope_of = {e.name: e.scope for e in program.equations}
    plain = pass_writer(values, one, parts, ())
    out: list[AvailableTensor] = []
    new: list[tuple[Demand, AvailableTensor]] = []
    for demand, name in chosen:
        if name is not None:
            term = one.terms[name]
            assert isinstance(term, Use)
            out.append(AvailableTensor(Tensor(name, scope_of[name].shape), term, scope_of[name].traversals))
            continue
        free = next(f"stash{n}" for n in range(1, len(taken) + 2) if f"stash{n}" not in taken)
        taken.add(free)
        own, use = placed_traversals(plain, demand)
        out.append(AvailableTensor(Tensor(free, tuple(x.extent for x in own)), use, own))
        new.append((demand, out[-1]))
    made = pass_writer(values, one, parts, [h for _, h in new], taken)
    end = len(program.equations)
    defined = [Equation(h.tensor.name, stash_definition(made, demand, end)) for demand, h in new]
    rewritten = {e.name: made.equation(e, one.terms[e.name], n) for n, e in enumerate(program.equations)}
    more = [
        replace(e, scope=_with_padding(made.available.pad_reads(e.scope), *made.available.pads.get(e.name, ((), 0))))
        for e in defined
    ]
    more += [replace(e, scope=made.available.pad_reads(e.scope)) for e in made.lifted]
    changed = {n: replace(e, scope=made.available.pad_reads(e.scope)) for n, e in rewritten.items()}
    outputs = (*program.outputs, *(h.tensor.name for h in out if h.tensor.name not in program.outputs))
    return exchange_equations(replace(program, outputs=outputs), changed, more), tuple(out)


def with_placeholders(
    values: Values, one: ProgramValues, before: ProgramValues, parts: EntryGroups, stashed: Sequence[AvailableTensor]
) -> tuple[Program, Mapping[str, int]]:
    """Return the backward pass *one* reading *stashed*, results of *before*, and the reads of each tensor.

    Unused inputs are dropped.  Raises ValueError if an output has a stashed tensor's name.
    """
    program = one.program
    known = [found for _, found in shared_inputs(one, before)]
    made = pass_writer(values, one, parts, [*stashed, *known], before.program.names())
    names = {h.tensor.name for h in stashed} - one.given
    if clash := sorted(names & set(program.outputs)):
        raise ValueError(f"{', '.join(clash)} is an output of both passes, expected different names")
    # All are written before any is padded: how far a stash is read is known only then.
    rewritten = {e.name: made.equation(e, one.terms[e.name], n) for n, e in enumerate(program.equations)}
    changed = {n: replace(e, scope=made.available.pad_reads(e.scope)) for n, e in rewritten.items()}
    holders = {h.tensor.name: h.tensor for h in stashed}
    inputs = [t for t in program.inputs if t.name not in holders]
    for name, tensor in holders.items():
        padding, value = made.available.pads.get(name, (tensor.padding, tensor.value))
        inputs.append(replace(tensor, padding=padding, value=value))
    lifted = [replace(e, scope=made.available.pad_reads(e.scope)) for e in made.lifted]
    rest = exchange_equations(replace(program, inputs=tuple(inputs)), changed, lifted)
    read = {t.name for e in rest.equations for t in tensors(e.scope)}
    rest = replace(rest, inputs=tuple(t for t in rest.inputs if t.name in read or t.name in rest.outputs))
    return rest, {h.tensor.name: sum(_count(e.scope, h.tensor.name) for e in rest.equations) for h in stashed}


def certify_passes(
    forward: Program, backward: Program, new_forward: Program, new_backward: Program
) -> tuple[Certificate, Certificate]:
    """Certify that the new forward pass equals the old one, and that both passes composed equal the old composition."""
    ahead = exchange_equations(replace(new_forward, outputs=forward.outputs), {}, ())
    return _proof(forward, ahead), _proof(join_passes(forward, backward), join_passes(new_forward, new_backward))


def _proof(before: Program, after: Program) -> Certificate:
    if before == after or not any(has_division(e.scope) for p in (before, after) for e in p.equations):
        return certify(before, after)
    # Products are flat here, also across divisions; the proof needs quotients in the same form.
    proved = certify(with_inverses(before), with_inverses(after))
    return replace(proved, detail="quotients as products") if proved.kind == "proved" else certify(before, after)


def join_passes(forward: Program, backward: Program) -> Program:
    """Compose both passes into one program with the outputs of *backward*.

    Results of *forward* that *backward* reads keep their names; others are renamed on a clash.
    """
    made = {e.name for e in forward.equations}
    fed = {t.name: t for t in backward.inputs if t.name in made}
    forward = rename_tensors(
        forward, unused_names(forward, made & {e.name for e in backward.equations}, backward.names())
    )
    ahead = [
        replace(e, scope=_with_padding(e.scope, fed[e.name].padding, fed[e.name].value)) if e.name in fed else e
        for e in forward.equations
    ]
    boxes = {e.name: e.tensor for e in ahead}

    def source(tensor: Tensor) -> Tensor:
        return boxes.get(tensor.name, tensor) if tensor.name in fed else tensor

    behind = tuple(replace(e, scope=map_tensors(e.scope, source)) for e in backward.equations)
    inputs = {t.name: t for t in (*backward.inputs, *forward.inputs) if t.name not in fed}
    return exchange_equations(Program(tuple(inputs.values()), (*ahead, *behind), backward.outputs), {}, ())


def _with_padding(scope: Scope, padding: Padding, value: float) -> Scope:
    """Extend the padding of *scope* to *padding* with *value*; raises ValueError if it has another value."""
    if not padding:
        return scope
    if (scope.padding or scope.domain) and scope.value != value:
        raise ValueError(f"a stashed value is {value:g} outside its box backward and {scope.value:g} forward")
    return replace(scope, padding=union_padding(scope.padding, padding), value=value)


def _count(scope: Scope, name: str) -> int:
    """Count the reads of the tensor *name* in *scope*, at any depth."""
    read: list[Access] = [a for _, inner in scopes(scope) for a in accesses(inner.body)]
    return sum(isinstance(a.source, Tensor) and a.source.name == name for a in read)
