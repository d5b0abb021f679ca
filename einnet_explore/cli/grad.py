"""``einnet-explore grad``: the gradients of a program, as a program.

``einnet-explore grad --stash``: both passes, and what the forward pass keeps for the backward pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from einnet_explore.autodiff import Passes, cse
from einnet_explore.autodiff.gradients import grad
from einnet_explore.cli.errors import OK
from einnet_explore.cli.output import STDOUT, check_writable, format_table, write_json
from einnet_explore.ir import Program
from einnet_explore.support.wording import counted
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


def _parse_inputs(given: list[str], program: Program) -> tuple[str, ...] | None:
    """The inputs that ``--wrt A,K --wrt B`` names, None where it is not given; a whole word may be one name."""
    known = {t.name for t in program.inputs}
    found = [n for word in given for n in ((word,) if word in known else map(str.strip, word.split(",")))]
    return tuple(found) if given else None


def _report(case: str, program: Program, wrt: tuple[str, ...] | None, made: Program) -> dict[str, object]:
    """What ``--json`` writes: which output is whose gradient, and which input."""
    chosen = [t.name for t in program.inputs] if wrt is None else wrt
    seeds = [t.name for t in made.inputs[len(program.inputs) :]]
    return {
        "case": case,
        "gradients": dict(zip(chosen, made.outputs, strict=True)),
        "output_gradients": dict(zip(program.outputs, seeds, strict=True)),
        "program": text(made),
    }


def _format(passes: Passes, written: Callable[[Program], str] = text) -> str:
    """The passes as *written*, the stash and the curve, to be read."""
    rows: list[list[object]] = [["stash", "bytes", "evaluations", "with it"]]
    rows += [[s.name, s.nbytes, *s.evaluations] for s in passes.stashes]
    curve: list[list[object]] = [["bytes", "operations backward"]]
    curve += [[plan.nbytes, plan.operations] for plan in passes.curve]
    proofs = ", ".join(f"{name} {c.kind}" for name, c in zip(("forward", "backward"), passes.certificates, strict=True))
    return "\n".join(
        [
            f"# forward\n{written(passes.forward).rstrip()}\n",
            f"# backward\n{written(passes.backward).rstrip()}\n",
            f"{counted(passes.before, 'operation')} backward become {passes.operations}, "
            f"{counted(passes.nbytes, 'byte')} stashed; {proofs}",
            "",
            *((format_table(rows), "") if passes.stashes else ()),
            format_table(curve),
        ]
    )


def _stash_report(passes: Passes) -> dict[str, object]:
    """What ``--json`` says of the stash."""
    return {
        "forward": text(passes.forward),
        "backward": text(passes.backward),
        "operations": {"before": passes.before, "after": passes.operations},
        "bytes": passes.nbytes,
        "stash": [{"name": s.name, "bytes": s.nbytes, "evaluations": list(s.evaluations)} for s in passes.stashes],
        "curve": [{"bytes": plan.nbytes, "operations": plan.operations} for plan in passes.curve],
        "certificates": [c.to_json() for c in passes.certificates],
    }
