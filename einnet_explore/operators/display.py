"""Solved strides in words, as in Fig. 8: ``l_B0 = l_Y0 + l_Y1``."""

from __future__ import annotations

from einnet_explore.ir import Scope
from einnet_explore.operators.form import Unmatched, read_form
from einnet_explore.operators.layout import flatten
from einnet_explore.operators.matching import OperatorMatch


def stride_equations(scope: Scope, way: OperatorMatch) -> tuple[str, ...]:
    """The strides of the call's operands by those of the scope's sources, where both are affine.

    One line for each operand and each of its iterators: its stride by the last (fastest) of the iterators merged into
    it, and what the merge asks of the others; then the constant offset, if there is one.
    """
    form = read_form(scope)
    if isinstance(form, str):
        raise Unmatched(form)
    given = dict(way.iterators)
    attributes = dict(way.attributes)
    lines: list[str] = []
    for p, a in enumerate(way.operands):
        operand, flat = way.operator.pattern.operands[p], flatten(form.reads[a])
        if flat is None:
            continue
        for d, dimension in enumerate(way.operator.dimensions(p, attributes)):
            name = dimension.single
            if name is None or not given[name]:
                continue
            *outer, last = given[name]
            lines.append(f"l_{operand.name}{d} = {flat.stride(last)}")
            extent = last.extent
            for x in reversed(outer):
                lines.append(f"{flat.stride(x)} = {extent}*({flat.stride(last)})")
                extent *= x.extent
        if flat.offset:
            lines.append(f"offset of {operand.name} = {flat.offset_text}")
    return tuple(lines)
