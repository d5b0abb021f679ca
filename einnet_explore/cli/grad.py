"""``einnet-explore grad``: the gradients of a program, as a program.

With ``--stash``: the forward pass, the backward pass, and the values that the forward pass stashes for it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from einnet_explore.autodiff.differentiation import grad
from einnet_explore.autodiff.stash import Passes, cse
from einnet_explore.cli.output import OK, STDOUT, check_writable, format_table, write_json
from einnet_explore.ir import Program
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax import latex, load_text, text


def run_grad(arguments: argparse.Namespace) -> int:
    """Print the program of the gradients; each output is the gradient of one input."""
    check_writable(json=arguments.json, reads=[arguments.case])
    program = load_text(arguments.case)
    wrt = _parse_inputs(arguments.wrt, program)
    made = grad(program, wrt, inline=arguments.inline)
    found = _report(arguments.case, program, wrt, made)
    if arguments.stash or arguments.stash_budget is not None:
        passes = cse(program, made, arguments.stash_budget)
        if arguments.json:
            write_json(arguments.json, found | {"stash": _stash_report(passes)})
        if arguments.json != STDOUT:
            print(_format(passes, latex if arguments.latex else text))
        return OK
    if arguments.json:
        write_json(arguments.json, found)
    if arguments.json != STDOUT:
        print((latex(made) if arguments.latex else text(made)).rstrip())
    return OK


def _parse_inputs(words: list[str], program: Program) -> tuple[str, ...] | None:
    """Parse ``--wrt A,K --wrt B`` to names of inputs, None if it is not given; an input's name may contain commas."""
    known = {t.name for t in program.inputs}
    found = [n for word in words for n in ((word,) if word in known else map(str.strip, word.split(",")))]
    return tuple(found) if words else None


def _report(case: str, program: Program, wrt: tuple[str, ...] | None, made: Program) -> dict[str, object]:
    """Return the document that ``--json`` writes, with the names of gradients and of output gradients."""
    chosen = [t.name for t in program.inputs] if wrt is None else wrt
    seeds = [t.name for t in made.inputs[len(program.inputs) :]]
    return {
        "case": case,
        "gradients": dict(zip(chosen, made.outputs, strict=True)),
        "output_gradients": dict(zip(program.outputs, seeds, strict=True)),
        "program": text(made),
    }


def _format(passes: Passes, written: Callable[[Program], str] = text) -> str:
    """Format both passes by *written*, the stash, and the trade-off of bytes against operations."""
    rows: list[list[object]] = [["stash", "bytes", "evaluations", "with it"]]
    rows += [[s.name, s.nbytes, *s.evaluations] for s in passes.stashes]
    curve: list[list[object]] = [["bytes", "operations backward"]]
    curve += [[plan.nbytes, plan.operations] for plan in passes.curve]
    proofs = ", ".join(f"{name} {c.kind}" for name, c in zip(("forward", "backward"), passes.certificates, strict=True))
    return "\n".join(
        [
            f"# forward\n{written(passes.forward).rstrip()}\n",
            f"# backward\n{written(passes.backward).rstrip()}\n",
            f"operations of the backward pass: {passes.before} before, {passes.operations} with the stash of "
            f"{count_noun(passes.nbytes, 'byte')}; {proofs}",
            "",
            *((format_table(rows), "") if passes.stashes else ()),
            format_table(curve),
        ]
    )


def _stash_report(passes: Passes) -> dict[str, object]:
    """Return the ``stash`` object of the JSON document."""
    return {
        "forward": text(passes.forward),
        "backward": text(passes.backward),
        "operations": {"before": passes.before, "after": passes.operations},
        "bytes": passes.nbytes,
        "stash": [{"name": s.name, "bytes": s.nbytes, "evaluations": list(s.evaluations)} for s in passes.stashes],
        "curve": [{"bytes": plan.nbytes, "operations": plan.operations} for plan in passes.curve],
        "certificates": [c.to_json() for c in passes.certificates],
    }
