"""``einnet-explore grad``: the gradients of a program, as a program."""

from __future__ import annotations

import argparse

from einnet_explore.cli.errors import OK
from einnet_explore.cli.output import STDOUT, writable, write_json
from einnet_explore.explore.gradients import grad
from einnet_explore.ir import Program
from einnet_explore.render import latex, text
from einnet_explore.text import load_text


def run(arguments: argparse.Namespace) -> int:
    """Print the program of the gradients; each output is the gradient of one input."""
    writable(json=arguments.json, reads=[arguments.case])
    program = load_text(arguments.case)
    wrt = names(arguments.wrt, program)
    made = grad(program, wrt, inline=arguments.inline)
    found = document(arguments.case, program, wrt, made)
    if arguments.stash or arguments.stash_budget is not None:
        from einnet_explore.cli import stashing

        passes = stashing.stashed(program, made, arguments.stash_budget)
        if arguments.json:
            write_json(arguments.json, found | {"stash": stashing.document(passes)})
        if arguments.json != STDOUT:
            print(stashing.shown(passes, latex if arguments.latex else text))
        return OK
    if arguments.json:
        write_json(arguments.json, found)
    if arguments.json != STDOUT:
        print((latex(made) if arguments.latex else text(made)).rstrip())
    return OK


def names(given: list[str], program: Program) -> tuple[str, ...] | None:
    """The inputs that ``--wrt A,K --wrt B`` names, None where it is not given; a whole word may be one name."""
    known = {t.name for t in program.inputs}
    found = [n for word in given for n in ((word,) if word in known else map(str.strip, word.split(",")))]
    return tuple(found) if given else None


def document(case: str, program: Program, wrt: tuple[str, ...] | None, made: Program) -> dict[str, object]:
    """What ``--json`` writes: which output is whose gradient, and which input."""
    chosen = [t.name for t in program.inputs] if wrt is None else wrt
    seeds = [t.name for t in made.inputs[len(program.inputs) :]]
    return {
        "case": case,
        "gradients": dict(zip(chosen, made.outputs, strict=True)),
        "output_gradients": dict(zip(program.outputs, seeds, strict=True)),
        "program": text(made),
    }
