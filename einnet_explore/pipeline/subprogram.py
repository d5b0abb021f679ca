"""One subprogram of a model: its nodes, its program, its original, and its place in the plan after tuning."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import onnxruntime

from einnet_explore.analysis.equations import rename_tensors
from einnet_explore.equivalence.certificate import Certificate
from einnet_explore.equivalence.operand_rounding import certify_step
from einnet_explore.equivalence.verdict import UNSOUND_KINDS
from einnet_explore.ir import Instance, Program
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.model_sessions import (
    is_quantised,
    keep_definitions,
    subgraph_session,
    with_precise_transforms,
    without_optimisations,
)
from einnet_explore.pipeline.numerics import ErrorReport, level_report
from einnet_explore.pipeline.tuning_context import OriginalOpener, OriginalRun
from einnet_explore.pipeline.tuning_task import MAX_EXACT_RATIO, Trial
from einnet_explore.rules import Derivation
from einnet_explore.runtime.arrays import Array, Arrays, aligned
from einnet_explore.strategies.candidate import combined_verdict
from einnet_explore.support.json_values import JsonObject
from einnet_explore.syntax import text


@dataclass(frozen=True)
class AnonymousProgram:
    """A program whose tensors are named by their positions, and the original *names*.

    Layers that differ only in names have equal programs here, so they are searched and measured once.
    """

    program: Program
    names: Mapping[str, str]

    @cached_property
    def signature(self) -> str:
        """The program's text, the key of results about it."""
        return text(self.program)


def anonymize(program: Program) -> AnonymousProgram:
    """Rename the inputs of *program* to ``x1, x2, …`` (weights ``w1, …``) and its equations to ``y1, y2, …``."""
    to: dict[str, str] = {}
    for tensor in program.inputs:
        stem = "w" if tensor.weight else "x"
        to[tensor.name] = f"{stem}{1 + sum(name[0] == stem for name in to.values())}"
    for n, equation in enumerate(program.equations, 1):
        to[equation.name] = f"y{n}"
    return AnonymousProgram(rename_tensors(program, to), {new: old for old, new in to.items()})


@dataclass(frozen=True)
class Subprogram:
    """Nodes that other code may replace as one.

    *inputs* and *outputs* are value names of the model, in the order of ``program.inputs`` (weights among them,
    flagged) and ``program.outputs``; the program calls them by the model's identifiers.  *parts* are the subprograms
    that were joined into it, in an order in which they can run; empty if it was not joined.
    """

    nodes: tuple[str, ...]
    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parts: tuple[Subprogram, ...] = ()

    @cached_property
    def anonymous(self) -> AnonymousProgram:
        """The program without names."""
        return anonymize(self.program)

    def task_name(self, model: Model) -> str:
        """Name the tuning task: equal for layers of *model* with equal programs and equal ONNX operators."""
        return f"{self.anonymous.signature}\n{operator_digest(model, self.nodes)}"

    def value_names(self, model: Model) -> dict[str, str]:
        """Return the value of *model* for each input and output of the anonymous program."""
        back = {model.identifiers[name]: name for name in (*self.inputs, *self.outputs)}
        return {new: back[old] for new, old in self.anonymous.names.items() if old in back}


def open_original(model: Model, subprogram: Subprogram, threads: int) -> tuple[OriginalOpener, Arrays]:
    """Return an opener of the original of *subprogram* and its weights, by the names of the anonymous program."""
    program, names = subprogram.anonymous.program, subprogram.value_names(model)
    wanted = [names[name] for name in program.outputs]

    def runner(session: onnxruntime.InferenceSession, feeds: Arrays) -> Callable[[], Arrays]:
        return lambda: dict(zip(program.outputs, session.run(wanted, feeds), strict=True))

    @lru_cache(1)
    def opener() -> OriginalRun:
        session = subgraph_session(model, subprogram.nodes, threads)
        feeds = _defined_inputs(session)
        inputs = {t.name: feeds[names[t.name]] for t in program.inputs if not t.weight}
        run = runner(session, feeds)

        def run_unoptimised() -> Arrays:
            adjusted = without_optimisations, with_precise_transforms
            return runner(subgraph_session(model, subprogram.nodes, threads, *adjusted), feeds)()

        if not is_quantised(node for node in model.nodes if node.name in subprogram.nodes):
            return OriginalRun(run, inputs, run_unoptimised=run_unoptimised)
        defined = subgraph_session(model, subprogram.nodes, threads, keep_definitions)
        return OriginalRun(run, inputs, runner(defined, feeds))

    return opener, {t.name: model.weights[names[t.name]] for t in program.inputs if t.weight}


def _defined_inputs(session: onnxruntime.InferenceSession) -> dict[str, Array]:
    """Return random inputs of a subprogram: the absolute values of reals if fewer of its results are undefined then.

    Values that a model takes the root or the logarithm of, such as means of squares, are inputs of a subprogram where
    another one computes them.
    """
    drawn = random_model_inputs(session, 0)
    if undefined := _count_undefined(session, drawn):
        positive = {n: aligned(np.abs(a), a.dtype) if a.dtype.kind == "f" else a for n, a in drawn.items()}
        if _count_undefined(session, positive) < undefined:
            return positive
    return drawn


def _count_undefined(session: onnxruntime.InferenceSession, feeds: Arrays) -> int:
    results = session.run(None, feeds)
    return sum(int(np.isnan(array).sum()) for array in results if array.dtype.kind == "f")


def operator_digest(model: Model, nodes: Collection[str]) -> str:
    """Digest the operators, attributes and edges of *nodes* in *model*, without names.

    Equal programs may be written with different operators, for which runtimes have different kernels.
    """
    digest = hashlib.blake2b(digest_size=10)
    numbers = {"": ""}
    wanted = frozenset(nodes)
    for node in model.nodes:
        if node.name in wanted:
            for name in (*node.inputs, *node.outputs):
                numbers.setdefault(name, f"{'w' if name in model.weights else 'v'}{len(numbers)}")
            attributes = sorted((a.name, a.SerializeToString(deterministic=True)) for a in node.proto.attribute)
            values = [[numbers[name] for name in names] for names in (node.inputs, node.outputs)]
            digest.update(repr((node.op, node.domain, attributes, values)).encode())
    return digest.hexdigest()


def content_digest(arrays: Arrays) -> str:
    """Digest the names and all elements of *arrays*."""
    digest = hashlib.blake2b(digest_size=20)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class TunedSubprogram:
    """The *nodes* of one subprogram, its *trial*, and whether its derived program is in the plan (*kept*).

    *certificate* is ``proved``, ``exact`` (some steps were evaluated), ``none`` (no derivation) or ``false``.
    *measured* reports the derivation's rounding errors once they have been measured.
    """

    nodes: tuple[str, ...]
    trial: Trial
    kept: bool
    certificate: str
    why: str
    measured: ErrorReport | None = None

    @property
    def gain(self) -> float:
        """Seconds that the derived program saves by itself."""
        return self.trial.seconds_before - self.trial.seconds_after

    @property
    def seconds(self) -> float:
        """Seconds by itself: of the derived program if it is in the plan, else of the original."""
        return self.trial.seconds_after if self.kept else self.trial.seconds_before

    @property
    def derivation(self) -> Derivation | None:
        """The derivation of the winner or contender."""
        return self.trial.derivation

    @property
    def is_sound(self) -> bool:
        """True if no step of its derivation is false or unknown."""
        return self.certificate not in UNSOUND_KINDS

    @property
    def rounds_exactly(self) -> bool:
        """Whether it is in the plan and rounds to integers as the model defines, which the original does not."""
        return self.kept and self.trial.rounds_exactly

    @property
    def program(self) -> Program | None:
        """The derived program of the winner or contender."""
        return self.derivation.end if self.derivation else None

    @property
    def numerics(self) -> ErrorReport | None:
        """The rounding errors of the derivation in the plan; None if the original stays."""
        if not self.kept or self.derivation is None:
            return None
        return self.measured or level_report(self.derivation)

    @property
    def _instances(self) -> list[Instance]:
        return [e.via for e in self.program.equations if e.via] if self.program and self.kept else []

    @property
    def library_calls(self) -> list[Instance]:
        """The library calls of the derived program in the plan."""
        return [via for via in self._instances if via.is_library_call]

    @property
    def eoperators(self) -> int:
        """The number of eOperators of the derived program in the plan."""
        return sum(via.is_eoperator for via in self._instances)

    def to_json(self) -> JsonObject:
        """Return one entry of ``subprograms`` in the JSON of ``optimize``."""
        steps = self.derivation.steps if self.derivation and self.kept else ()
        numerics = self.numerics
        return {
            "nodes": list(self.nodes),
            "kept": self.kept,
            "rounds_exactly": self.rounds_exactly,
            "seconds_before": self.trial.seconds_before,
            "seconds_after": self.seconds,
            "operators": [{"name": via.operator, "attributes": dict(via.attributes)} for via in self.library_calls],
            "eoperators": self.eoperators,
            "certificate": self.certificate,
            "numerics": numerics.to_json() if numerics else None,
            "why": self.why,
            "excess": self.trial.excess,
            "states": self.trial.states,
            "steps": [step.match.to_json() for step in steps],
        }


def choose_joined_or_parts(
    whole: TunedSubprogram, parts: Sequence[TunedSubprogram]
) -> tuple[TunedSubprogram, list[TunedSubprogram]]:
    """Keep either *whole*, a joined subprogram, or those of *parts* inside it: the faster of the two.

    If only the joined one rounds exactly, it may be slower within the noise.  Compared are the seconds of *whole* with
    those of the parts and of what lies between them: one by one the originals take longer than together, so gains do
    not add up.
    """
    inside = set(whole.nodes)
    within = [part for part in parts if not inside.isdisjoint(part.nodes)]
    separate = seconds_in_parts(whole, within)
    if not whole.kept:
        return _discard(whole, whole.why), list(parts)
    noise = MAX_EXACT_RATIO if whole.rounds_exactly and not all(part.rounds_exactly for part in within) else 1.0
    if whole.seconds >= noise * separate:
        why = f"takes {whole.seconds * 1e6:.0f} µs, its parts {separate * 1e6:.0f} µs by themselves"
        return _discard(whole, why), list(parts)
    together = "is derived together with others"
    return whole, [part if inside.isdisjoint(part.nodes) else _discard(part, together) for part in parts]


def seconds_in_parts(whole: TunedSubprogram, within: Iterable[TunedSubprogram]) -> float:
    """Return the seconds of the parts *within* the joined subprogram *whole*, and of what lies between them."""
    within = tuple(within)
    between = whole.trial.seconds_before - sum(part.trial.seconds_before for part in within)
    return max(0.0, between) + sum(part.seconds for part in within)


def _discard(part: TunedSubprogram, why: str) -> TunedSubprogram:
    """Return *part* with its original, and no contender."""
    return replace(part, trial=replace(part.trial, contender=None), kept=False, why=why)


def certify_trial(nodes: tuple[str, ...], trial: Trial) -> TunedSubprogram:
    """Keep the winner of *trial* unless one of its steps is false or unknown, however fast it is."""
    kind = "none" if trial.derivation is None else combined_verdict(step_certificates(trial.derivation))
    if kind in UNSOUND_KINDS:
        why = f"the fastest candidate's derivation has a step that is {kind}"
        return TunedSubprogram(nodes, trial, kept=False, certificate=kind, why=why)
    return TunedSubprogram(nodes, trial, kept=trial.winner is not None, certificate=kind, why=trial.why)


def step_certificates(derivation: Derivation) -> tuple[Certificate, ...]:
    """Return one certificate for each step."""
    return tuple(certify_step(step.match.rule.name, step.before, step.after) for step in derivation.steps)


def count_fusions(derivation: Derivation) -> int:
    """Count the eOperators that were fused into their readers."""
    return sum(step.match.rule.name in ("expression_fusion", "expression_inlining") for step in derivation.steps)
