"""Arrays of the kernel language, and reads of them."""

from __future__ import annotations

from einnet_explore.ir.node import Node, node
from einnet_explore.kernels.source.types import KernelError, Type
from einnet_explore.kernels.source.values import Expr, ExprLike, literal


@node
class Array(Node):
    """Elements of *kind*: a parameter (``global``), a block's (``shared``) or a thread's own (``private``).

    *size* counts elements (0: not known, of parameters only).  *const*: it is only read.  *noalias*: no other array
    overlaps it.  *align* is the alignment in bytes that is asked for where the array is declared.
    """

    name: str
    kind: Type
    size: int = 0
    space: str = "global"
    const: bool = False
    noalias: bool = True
    align: int = 0

    def __post_init__(self) -> None:
        if self.space not in ("global", "shared", "private"):
            raise KernelError(f"array {self.name} in {self.space}: expected global, shared or private")
        if self.size < 0 or (self.space != "global" and self.size == 0):
            raise KernelError(f"{self.space} array {self.name} has {self.size} elements, expected at least 1")
        if self.align & (self.align - 1) or self.align < 0:
            raise KernelError(f"array {self.name}: an alignment of {self.align} bytes is no power of two")

    def __getitem__(self, index: ExprLike) -> Load:
        return Load(self, whole(index))


@node
class Load(Expr):
    """array[index]."""

    array: Array
    index: Expr

    @property
    def type(self) -> Type:
        return self.array.kind.computed


def whole(index: ExprLike) -> Expr:
    """*index* as an expression; raises KernelError where it is no integer."""
    made = literal(index) if isinstance(index, int) else index
    if not isinstance(made, Expr) or not made.type.integer:
        raise KernelError(f"an index of type {made.type if isinstance(made, Expr) else type(made).__name__}")
    return made
