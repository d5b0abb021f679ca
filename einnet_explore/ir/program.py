"""Programs: several equations over named tensors (EinNet §3, §6.3), and the paths that name a scope inside one.

A path is ``(equation, access, access, …)``: the number of the equation, then at every level the number of the access,
counted from left to right over the body, whose source is the next scope.  Its text, also in JSON, is ``"0.1"``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, TypeAlias

from einnet_explore.ir.element_types import element_type
from einnet_explore.ir.expression import Access, Scalar, Scope, Table, Tensor, accesses, map_accesses
from einnet_explore.ir.node import Node, node
from einnet_explore.ir.printer import call_text, declaration_text, equation_text, name_text

Path: TypeAlias = "tuple[int, ...]"


def with_body(scope: Scope, body: Scalar) -> Scope:
    """Return *scope* with another body."""
    return Scope(scope.traversals, scope.summations, body, scope.reduce, scope.domain, scope.padding, scope.value)


def scopes(root: Scope) -> Iterable[tuple[Path, Scope]]:
    """Yield every scope of *root* with its path below *root*, outermost first."""
    yield (), root
    for i, access in enumerate(accesses(root.body)):
        if isinstance(access.source, Scope):
            for path, scope in scopes(access.source):
                yield (i, *path), scope


def tensors(root: Scope) -> Iterable[Tensor]:
    """Return every tensor read in *root*, at any depth, once, in order of appearance."""
    found: dict[Tensor, None] = {}
    for _, scope in scopes(root):
        for access in accesses(scope.body):
            if isinstance(access.source, Tensor):
                found.setdefault(access.source)
    return tuple(found)


def map_tensors(root: Scope, change: Callable[[Tensor], Tensor | Scope]) -> Scope:
    """Replace every tensor that *root* reads, at any depth, by ``change(tensor)``."""

    def swap(access: Access) -> Access:
        match access.source:
            case Tensor() as tensor:
                return Access(change(tensor), access.index)
            case Scope() as inner:
                return Access(map_tensors(inner, change), access.index)
        return access

    return with_body(root, map_accesses(root.body, swap))


def describe_source(source: Tensor | Table) -> str:
    """Return the name of *source* in messages."""
    return f"tensor {source.name}" if isinstance(source, Tensor) else "a table"


def scope_at(root: Scope, path: Path, above: Path = ()) -> Scope:
    """Return the scope of *root* at *path*; raises LookupError if *path* leads to none.

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
    """Replace the scope at *path* by *new*; untouched parts are shared."""
    if not path:
        if isinstance(new, Tensor):
            raise LookupError(f"the root of an equation cannot become tensor {new.name}")
        return new
    inner = scope_at(root, path[:1])
    target = new if len(path) == 1 else replace_at(inner, path[1:], new)
    count = iter(range(path[0] + 1))

    def swap(access: Access) -> Access:
        return Access(target, access.index) if next(count, None) == path[0] else access

    return with_body(root, map_accesses(root.body, swap))


def show_path(path: Path) -> str:
    """Return ``(0, 1)`` as ``"0.1"``."""
    return ".".join(map(str, path))


def read_path(text: str) -> Path:
    """Parse ``"0.1"`` as ``(0, 1)``; raises ValueError on anything else."""
    if text and not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})*", text):
        raise ValueError(f"path {text!r}: expected numbers separated by dots, such as 0.1")
    return tuple(map(int, text.split("."))) if text else ()


Attribute: TypeAlias = "int | str | tuple[int, ...]"

EOPERATOR = "eOperator"
VIEW = "View"


@node
class Instance(Node):
    """Implementation of an equation: a library operator with solved attributes, a generated eOperator, or a view.

    A ``View`` re-indexes its source's elements by strides: it costs nothing.
    """

    operator: str
    attributes: tuple[tuple[str, Attribute], ...] = ()

    @property
    def is_eoperator(self) -> bool:
        """Whether a generated kernel runs it, of any ``kind``."""
        return self.operator == EOPERATOR

    @property
    def is_library_call(self) -> bool:
        """Whether it is neither generated nor a view."""
        return self.operator not in (EOPERATOR, VIEW)

    @property
    def eoperator_kind(self) -> EOperatorKind | None:
        """The kind of an eOperator; None for a library call, a view, and an eOperator without a kind."""
        named = dict(self.attributes).get("kind") if self.operator == EOPERATOR else None
        return next((kind for kind in EOperatorKind if kind == named), None)

    def __repr__(self) -> str:
        return f"{self.operator}({', '.join(f'{k}={v}' for k, v in self.attributes)})"


class EOperatorKind(StrEnum):
    """The work of a generated kernel, as rules name it in an eOperator's attribute ``kind``."""

    ELEMENTWISE = "elementwise"
    LAYOUT = "layout"
    """Elements move, nothing is computed."""
    REDUCTION = "reduction"
    REDUCTIONS = "reductions"
    """Reductions of one another and element-wise work between them."""
    ROWS = "rows"
    ONE_PASS = "one_pass"
    BLOCKED = "blocked"

    @property
    def instance(self) -> Instance:
        """The eOperator of this kind."""
        return Instance(EOPERATOR, (("kind", self.value),))


@node
class Equation(Node):
    """``name = scope``; *via* is how it is run once it has been instantiated.

    The scope is always the equation's value, also for an operator call: then it is the operator's canonical expression
    with its attributes, so that evaluation and proofs need no table of operators.
    """

    name: str
    scope: Scope
    via: Instance | None = None

    @property
    def tensor(self) -> Tensor:
        """The tensor that later equations read: the scope's result, with its box, padding and type, under this name.

        Without padding no value outside the box can be read, so none is given.
        """
        scope = self.scope
        origin = tuple(x.lo for x in scope.traversals)
        value = scope.value if scope.padding else 0
        start = origin if any(origin) else ()
        return Tensor(self.name, scope.shape, scope.padding, value, origin=start, dtype=element_type(scope))

    def __repr__(self) -> str:
        return f"{self.name} = {self.scope!r}" + (f" via {self.via!r}" if self.via else "")

    def __str__(self) -> str:
        run = f" via {call_text(self.via.operator, self.via.attributes)}" if self.via else ""
        return f"{equation_text(self.name, self.scope)}{run}"


@node
class Program(Node):
    """Equations in order: each reads inputs and earlier results. *outputs* are the names that a caller sees."""

    inputs: tuple[Tensor, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[str, ...]

    def scope_at(self, path: Path) -> Scope:
        """Return the scope at *path* (equation number first); raises LookupError if it leads to none."""
        if not path or not 0 <= path[0] < len(self.equations):
            raise LookupError(
                f"path {show_path(path)!r}: expected an equation number below {len(self.equations)} first"
            )
        return scope_at(self.equations[path[0]].scope, path[1:], path[:1])

    def path(self, at: str) -> Path:
        """Return the path that *at* writes: numbers, as in scripts and records, or an equation's name and numbers.

        Models have equations ``"0"``, where numbers take precedence, and ``"a"`` and ``"a.1"``: the longest name
        counts.  Raises ValueError for anything else; ``scope_at`` says whether there is such a scope.
        """
        try:
            return read_path(at)
        except ValueError:
            named = {e.name: n for n, e in enumerate(self.equations) if f"{at}.".startswith(f"{e.name}.")}
            if not named:
                known = ", ".join(e.name for e in self.equations[:4]) + (", …" if len(self.equations) > 4 else "")
                first = f"or the name of an equation first: {known}"
                raise ValueError(f"path {at!r}: expected numbers separated by dots, such as 0.1, {first}") from None
            name = max(named, key=len)
            return (named[name], *read_path(at[len(name) + 1 :]))

    def replace_at(self, path: Path, new: Scope | Tensor, before: tuple[Equation, ...] = ()) -> Program:
        """Replace the scope at *path* by *new*, with the equations *before* in front."""
        n = path[0]
        old = self.equations[n]
        changed = Equation(old.name, replace_at(old.scope, path[1:], new), old.via)
        equations = (*self.equations[:n], *before, changed, *self.equations[n + 1 :])
        return Program(self.inputs, equations, self.outputs)

    def __repr__(self) -> str:
        return "; ".join(map(repr, self.equations)) + f"; output {', '.join(self.outputs)}"

    def __str__(self) -> str:
        """Return the text form; ``ee.text`` also checks that ``ee.parse`` reads it."""
        lines = [*map(declaration_text, self.inputs), *map(str, self.equations)]
        read = {tensor.name for e in self.equations for tensor in tensors(e.scope)}
        if self.outputs != tuple(e.name for e in self.equations if e.name not in read):
            lines.append(f"output {', '.join(map(name_text, self.outputs))}")
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:  # called by IPython
        printer.text(str(self))

    def names(self) -> frozenset[str]:
        """Return the names of inputs and equations."""
        return frozenset((*(t.name for t in self.inputs), *(e.name for e in self.equations)))

    def fresh(self, stem: str) -> str:
        """Return *stem* with the smallest number that makes it a new name."""
        used = self.names()
        return next(name for n in range(1, len(used) + 2) if (name := f"{stem}{n}") not in used)


def program(scope: Scope, name: str = "Y") -> Program:
    """Return the program of one equation; its inputs are the tensors that *scope* reads."""
    return Program(tuple(dict.fromkeys(tensors(scope))), (Equation(name, scope),), (name,))
