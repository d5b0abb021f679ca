"""From syntax trees to programs: declarations, equations and outputs, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from lark import Token, Tree

from einnet_explore.ir import Attribute, Equation, Instance, Program, Tensor, tensors
from einnet_explore.text.errors import Fault
from einnet_explore.text.expressions import clauses_of, closed
from einnet_explore.text.indices import Names
from einnet_explore.text.literals import integer, name_of, signed, string


@dataclass(slots=True)
class _Sofar:
    """What the statements read so far have defined."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    equations: dict[str, Equation] = field(default_factory=dict)
    outputs: dict[str, Tree[Token] | Token] = field(default_factory=dict)
    readable: dict[str, Tensor] = field(default_factory=dict)
    """What an equation may read: inputs, and the results of those before it."""


def program_of(tree: Tree[Token]) -> Program:
    """The program of a list of statements; outputs are, unless named, the results that nothing reads."""
    sofar = _Sofar()
    for statement in tree.children:
        match statement:
            case Tree(data="declaration"):
                tensor = _declared(statement)
                _unused(statement, tensor.name, sofar)
                sofar.inputs[tensor.name] = sofar.readable[tensor.name] = tensor
            case Tree(data="equation"):
                equation = _equation(statement, sofar)
                _unused(statement, equation.name, sofar)
                sofar.equations[equation.name], sofar.readable[equation.name] = equation, equation.tensor
            case Tree(data="output", children=names):
                for node in names:
                    if (name := name_of(node)) in sofar.outputs:
                        raise Fault(node, f"found output {name} twice, expected it once")
                    sofar.outputs[name] = node
    if not sofar.equations:
        raise Fault(tree, "found no equation, expected at least one")
    for name, node in sofar.outputs.items():
        if name not in sofar.equations and name not in sofar.inputs:
            raise Fault(node, f"found unknown output {name}, expected one of {', '.join(sofar.readable)}")
    equations = tuple(sofar.equations.values())
    return Program(tuple(sofar.inputs.values()), equations, tuple(sofar.outputs) or unread(equations))


def unread(equations: tuple[Equation, ...]) -> tuple[str, ...]:
    """The results that no equation reads: the outputs of a program that names none."""
    read = {tensor.name for e in equations for tensor in tensors(e.scope)}
    return tuple(e.name for e in equations if e.name not in read)


def _declared(tree: Tree[Token]) -> Tensor:
    name, sizes, *clauses = (child for child in tree.children if isinstance(child, Tree))
    shape = tuple(integer(size) for size in sizes.children)
    if 0 in shape:
        raise Fault(sizes, f"found shape {list(shape)} of {name_of(name)}, expected sizes of at least 1")
    padding, value, weight = clauses_of(clauses, len(shape), name_of(name))
    return Tensor(name_of(name), shape, padding, value, weight)


def _equation(tree: Tree[Token], sofar: _Sofar) -> Equation:
    name, head, body, clauses, *via = tree.children
    assert isinstance(head, Tree) and isinstance(clauses, Tree)
    scope = closed(head, body, clauses, Names(sofar.readable))
    return Equation(name_of(name), scope, _instance(via[0]) if via else None)


def _unused(tree: Tree[Token], name: str, sofar: _Sofar) -> None:
    if name in sofar.inputs or name in sofar.equations:
        raise Fault(tree.children[0], f"found a second definition of {name}, expected another name")


def _instance(tree: Tree[Token] | Token) -> Instance:
    match tree:
        case Tree(children=[name, *attributes]):
            made = tuple(_attribute(a) for a in attributes)
            if twice := [a for n, a in enumerate(attributes) if made[n][0] in dict(made[:n])]:
                raise Fault(twice[0], f"found {_attribute(twice[0])[0]} twice, expected it once")
            return Instance(name_of(name), made)
    raise Fault(tree, f"found {tree}, expected an operator")


def _attribute(tree: Tree[Token] | Token) -> tuple[str, Attribute]:
    match tree:
        case Tree(children=[name, Tree(data="signed") as value]):
            return name_of(name), signed(value)
        case Tree(children=[name, Tree(data="string", children=[text])]):
            return name_of(name), string(text)
        case Tree(children=[name, Tree(data="tuple", children=values)]):
            return name_of(name), tuple(signed(v) for v in values)
    raise Fault(tree, f"found {tree}, expected an attribute")
