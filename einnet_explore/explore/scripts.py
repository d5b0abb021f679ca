"""What was done in a session, as Python that does it again and as JSON that a later release reads (``.eins``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from einnet_explore.checker.record import RecordError
from einnet_explore.ir import Program, read_path
from einnet_explore.render import text
from einnet_explore.rules import Derivation, Match, Refused, Rule
from einnet_explore.text import parse

FORMAT, VERSION = "einnet-explore session", 1
SUFFIX = ".eins"


def script(derivation: Derivation) -> str:
    """The steps of *derivation* as Python that repeats them on a new session."""
    return "\n".join([*_opening(derivation.start), *(_apply(step.match) for step in derivation.steps)]) + "\n"


def tree_script(nodes: Sequence[Derivation], parents: Sequence[int], here: int) -> str:
    """A whole tree of derivations as Python: every node gets the number that it has."""
    lines, at = _opening(nodes[0].end), 0
    for n in range(1, len(nodes)):
        if parents[n] != at:
            lines.append(f"session.goto({parents[n]})")
        lines.append(_apply(nodes[n].steps[-1].match))
        at = n
    if here != at:
        lines.append(f"session.goto({here})")
    return "\n".join(lines) + "\n"


def _opening(program: Program) -> list[str]:
    held = text(program).replace("\\", "\\\\").replace('"""', r"\"\"\"")
    return [
        "import einnet_explore as ee",
        "",
        f'program = ee.parse("""\n{held}""")',
        "session = ee.Session(program)",
    ]


def _apply(match: Match[Any]) -> str:
    done = match.to_json()
    params = "".join(f", {k}={v!r}" for k, v in done["params"].items() if v is not None)
    return f"session.apply({done['rule']!r}, at={done['at']!r}{params})"


def tree_to_json(nodes: Sequence[Derivation], parents: Sequence[int], here: int) -> dict[str, Any]:
    """A whole tree of derivations as plain JSON values."""
    steps = [{"parent": parents[n], **nodes[n].steps[-1].match.to_json()} for n in range(1, len(nodes))]
    return {"format": FORMAT, "version": VERSION, "start": text(nodes[0].end), "steps": steps, "here": here}


def tree_from_json(
    data: object, known: Mapping[str, Rule[Any]], source: str = "<session>"
) -> tuple[list[Derivation], list[int], int]:
    """Nodes, their parents, and where the reader stood; raises RecordError where *data* is no such tree."""
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise RecordError(f"{source}: expected {FORMAT!r} version {VERSION}")
    where = "$"
    try:
        nodes, parents = [Derivation(parse(data["start"]))], [-1]
        for n, step in enumerate(data["steps"]):
            where = f"$.steps[{n}]"
            parent = step["parent"]
            if not 0 <= parent < len(nodes):
                raise RecordError(f"{source}: {where}.parent: found {parent}, expected 0 to {len(nodes) - 1}")
            nodes.append(nodes[parent].then(_match(step, known, nodes[parent].end)))
            parents.append(parent)
        where = "$.here"
        if not 0 <= (here := data["here"]) < len(nodes):
            raise RecordError(f"{source}: $.here: found {here}, expected 0 to {len(nodes) - 1}")
    except RecordError:
        raise
    except KeyError as error:
        raise RecordError(f"{source}: {where}: {error} is missing") from None
    except (Refused, LookupError, TypeError, ValueError) as error:
        raise RecordError(f"{source}: {where}: {error}") from None
    return nodes, parents, here


def _match(step: Mapping[str, Any], known: Mapping[str, Rule[Any]], program: Program) -> Match[Any]:
    rule, at = known.get(step["rule"]), read_path(step["at"])
    if rule is None:
        raise LookupError(f"found the rule {step['rule']!r}, expected one of {', '.join(known)}")
    program.scope_at(at)
    return Match(rule, at, rule.decode(program, at, step["params"]))
