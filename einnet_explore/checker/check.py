"""Replaying a record: every step is proved again from the programs alone."""

from __future__ import annotations

from itertools import pairwise
from os import PathLike

from einnet_explore.algebra.certificate import certify
from einnet_explore.algebra.composition import end_to_end
from einnet_explore.algebra.reads import illegal_read
from einnet_explore.checker.instances import wrong_instance
from einnet_explore.checker.record import RecordedStep, load_json, read_record
from einnet_explore.checker.report import Report, StepReport
from einnet_explore.ir import Program
from einnet_explore.operators import OPERATORS, Operator


def check_record(
    record: object, *, source: str = "<record>", operators: tuple[Operator, ...] = OPERATORS, seed: int = 0
) -> Report:
    """Prove every step of *record* again, its instances, and its end against its start.

    *operators* are those that instances may name.  What the record claims is reported, and trusted in nothing.  Raises
    RecordError where *record* has not the form of a record.
    """
    held = read_record(record, source)
    programs = (held.start, *(step.after for step in held.steps))
    start = wrong_start(held.start, operators)
    steps = tuple(_step(step, before, operators, seed) for step, before in zip(held.steps, programs, strict=False))
    chain = [(*ends, step.certificate) for ends, step in zip(pairwise(programs), steps, strict=True)]
    return Report(source, start, steps, end_to_end(chain, seed))


def check_file(path: str | PathLike[str], *, operators: tuple[Operator, ...] = OPERATORS, seed: int = 0) -> Report:
    """``check_record`` of the JSON in the file at *path*; raises OSError where it cannot be read."""
    return check_record(load_json(path), source=str(path), operators=operators, seed=seed)


def wrong_start(program: Program, operators: tuple[Operator, ...] = OPERATORS) -> str | None:
    """What is wrong with a program by itself: an illegal read, or an instance that is not its operator."""
    for equation in program.equations:
        wrong = illegal_read(equation.scope) or wrong_instance(equation, operators)
        if wrong is not None:
            return f"{equation.name}: {wrong}"
    return None


def _step(step: RecordedStep, before: Program, operators: tuple[Operator, ...], seed: int) -> StepReport:
    known = set(before.equations)
    wrong = (
        f"{e.name}: {why}" for e in step.after.equations if e not in known and (why := wrong_instance(e, operators))
    )
    claimed = None if step.certificate is None else step.certificate.kind
    return StepReport(step.rule, step.at, claimed, certify(before, step.after, seed=seed), tuple(wrong))
