"""``einnet-explore grad --stash``: both passes, and what the forward pass keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Callable

from einnet_explore.cli.output import table
from einnet_explore.ir import Program
from einnet_explore.printable import counted
from einnet_explore.render import text
from einnet_explore.stash import Passes, cse


def stashed(forward: Program, backward: Program, budget: int | None) -> Passes:
    """Both passes with at most *budget* bytes stashed; raises ValueError as ``cse`` does."""
    return cse(forward, backward, budget)


def shown(passes: Passes, written: Callable[[Program], str] = text) -> str:
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
            *((table(rows), "") if passes.stashes else ()),
            table(curve),
        ]
    )


def document(passes: Passes) -> dict[str, object]:
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
