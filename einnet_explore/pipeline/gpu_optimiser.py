"""The main job on a GPU: an ONNX model in, one plan out that is at least as fast as library operators.

The model is cut into parts.  For each different part, derived plans are searched with the device's own rates, and are
measured on it together with the library's plan; each chosen derivation is certified.  The plan of all choices is one
CUDA graph, which is checked against ONNX Runtime and measured against the plan of library operators.  Without a gain,
the latter is the result.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from einnet_explore.equivalence.verdict import UNSOUND_KINDS
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.baseline import discriminating_seed, random_model_inputs
from einnet_explore.pipeline.given_inputs import GivenInputs
from einnet_explore.pipeline.gpu_parts import (
    DATA_SHEET,
    LIBRARY,
    LIBRARY_SEARCH_SECONDS,
    ModelPart,
    PartPlan,
    data_sheet_cost,
    library_plan,
    other_plans,
    plan_part,
    split_into_parts,
)
from einnet_explore.pipeline.gpu_plan import GpuPart, GpuPlan, plan_bytes
from einnet_explore.pipeline.model_spelling import with_normal_spelling
from einnet_explore.pipeline.optimised import file_word
from einnet_explore.pipeline.optimiser import ISOLATED_ERRORS, SELECTING, TUNING, default_budget, run_on
from einnet_explore.pipeline.plan import build_plan
from einnet_explore.pipeline.reading_memory import ReadingMemory, graph_digest
from einnet_explore.pipeline.subprogram import step_certificates
from einnet_explore.pipeline.tuning_context import Settings, TuningHistory
from einnet_explore.pipeline.tuning_task import MAX_SEARCH_SECONDS, MAX_SEARCH_SHARE, MIN_SEARCH_SECONDS
from einnet_explore.runtime.arrays import Array, Arrays, largest_error
from einnet_explore.runtime.cuda import execution
from einnet_explore.runtime.cuda.composition import choose_plan, compose_plans
from einnet_explore.runtime.cuda.device import Call
from einnet_explore.runtime.cuda.rates import measure_rates
from einnet_explore.runtime.cuda.steps import CudaPlan
from einnet_explore.runtime.profile_store import PROFILE_PREFIX, TimeStore, device_cost, record_rates
from einnet_explore.strategies.candidate import combined_verdict, replay, steps_to_json, to_record
from einnet_explore.strategies.options import Cost
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.support.json_values import JsonObject, as_number, as_object
from einnet_explore.support.wording import count_noun

MAX_COPIES = 8
"""Copies of a plan and its inputs that are measured in rotation, so that the cache does not hold the inputs."""

PART_ROUNDS, MODEL_ROUNDS = 5, 9
"""Interleaved rounds of the plans of a part, and of the whole model's."""

PART_BUDGET_SECONDS, MAX_PARTS_BUDGET_SECONDS = 20.0, 480.0
"""If no budget is given: seconds for each different part, and the most for a model."""

MAX_LIBRARY_SHARE = 0.2
"""The part of a budget in which the parts' operators are matched with libraries'."""

SLOW_RATIO, MIN_SLOW_SECONDS = 20.0, 1e-3
"""A plan whose first call takes longer than this multiple of the fastest, and than so many seconds, is left out."""


def require_gpu() -> None:
    """Raise ValueError, which names everything missing in one line, unless plans can run on a GPU here."""
    try:
        execution.require_cuda()
    except BackendError as error:
        elsewhere = "python -m benchmarks.gpu bundle OUT.zip --model FILE.onnx"
        raise ValueError(f"device 'cuda': {error}; expected cpu (for a GPU of another machine: {elsewhere})") from None


def device_rates_cost(store: TimeStore) -> Cost:
    """Return the cost of programs by this device's rates, which are measured once and kept in *store*.

    If they cannot be measured or kept, the rates are a data sheet's.
    """
    device, library = execution.cuda_device().key
    name = f"{PROFILE_PREFIX}{store.path}#{device} {library}"
    store.known()  # makes the file, if there is none
    try:
        return device_cost(name)
    except ValueError:
        pass
    try:
        rates = measure_rates() | {"generated": DATA_SHEET.generated}
        record_rates(store.path, device, library, rates)
        return device_cost(name)
    except Exception:  # the device's or the file's: rates only order a search
        return data_sheet_cost()


@dataclass(frozen=True)
class TunedPart:
    """The *chosen* plan of a part, the *seconds* of those that were measured, and the chosen one's certificates."""

    chosen: PartPlan
    seconds: Mapping[str, float]
    certificate: str
    record: JsonObject | None = None
    why: str = ""
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuProgress:
    """One different part has been tuned: the *done*-th of *total*."""

    done: int
    total: int
    part: GpuPart


@dataclass
class GpuOptimiser:
    """Optimisation of one model for the GPU of this machine, part by part.

    ``run`` may be left at any time; ``result`` is the plan of the choices so far.  No part is tuned after *budget*
    seconds; results of earlier runs on the same device cost none.
    """

    model: Model
    settings: Settings
    budget: float | None = None
    store: TimeStore = field(default_factory=TimeStore)
    interrupted: bool = False
    inputs: GivenInputs | None = None
    """Inputs on which the plan is compared with ONNX Runtime, in place of random ones."""
    stage: str = "reading the model"
    tuned: dict[str, TunedPart] = field(default_factory=dict)
    _began: float = field(default_factory=perf_counter, init=False)
    _memory: ReadingMemory = field(init=False)

    def __post_init__(self) -> None:
        require_gpu()
        self._memory = ReadingMemory(self.history, graph_digest(self.model))
        self.model = with_normal_spelling(self.model, self.settings.numerics, self._memory)
        if self.inputs is not None:
            self.inputs.for_model(self.model)  # inputs that do not fit are refused before parts are tuned

    @property
    def progress(self) -> str:
        """How many different parts have been tuned."""
        return f"{len(self.tuned)} of {count_noun(len(self.different), 'part')}"

    def status(self, interrupt: str = "Ctrl-C") -> str:
        """Say on one line the stage, the time that has passed, and the effect of an *interrupt*."""
        passed = perf_counter() - self._began
        if self.stage != TUNING:
            return f"{self.stage} · {passed:.0f} s"
        done = f"{len(self.tuned)} of {len(self.different)} · {passed:.0f} of {self.time_budget:.0f} s"
        return f"{self.stage} · {done} · {interrupt} measures and keeps these"

    @cached_property
    def time_budget(self) -> float:
        """The seconds within which parts may begin to be tuned."""
        return self.budget or default_budget(len(self.different), PART_BUDGET_SECONDS, MAX_PARTS_BUDGET_SECONDS)

    @cached_property
    def parts(self) -> list[ModelPart]:
        """The parts of the model, in an order in which they can run."""
        return split_into_parts(self.model, self._memory)

    @cached_property
    def different(self) -> dict[str, ModelPart]:
        """The different parts by key, longest by estimate first, equal ones counted."""
        found = {part.key: part for part in self.parts}
        return dict(sorted(found.items(), key=lambda entry: -self._estimates[entry[0]]))

    @cached_property
    def _estimates(self) -> dict[str, float]:
        """Estimated seconds of all parts of each key."""
        count = Counter(part.key for part in self.parts)
        return {part.key: count[part.key] * self.cost(part.program)[0] for part in self.parts}

    @cached_property
    def cost(self) -> Cost:
        """The cost of programs on this device."""
        return device_rates_cost(self.store)

    @cached_property
    def history(self) -> TuningHistory:
        """The choices of earlier runs."""
        return TuningHistory(self.store)

    @cached_property
    def library(self) -> dict[str, PartPlan]:
        """The plan of each different part by library operators; raises ValueError, naming the nodes, without one."""
        found = {}
        seconds = min(LIBRARY_SEARCH_SECONDS, MAX_LIBRARY_SHARE * self.time_budget / max(1, len(self.different)))
        for key, part in self.different.items():
            try:
                found[key] = library_plan(part.program, self.cost, seconds)
            except (BackendError, Refused) as error:
                nodes = [node for node in self.model.nodes if node.name in part.nodes]
                raise ValueError(f"{self.model.path}: {', '.join(map(str, nodes))}: {error}") from None
        return found

    def prepare(self) -> None:
        """Cut the model into parts and plan each by library operators; ``run`` and ``result`` do so too."""
        _ = self.library

    def run(self) -> Iterable[GpuProgress]:
        """Tune every different part, longest by estimate first.

        Raises ValueError if the device fails: parts that were tuned before are remembered.
        """
        self.prepare()
        self.stage = TUNING
        left = sum(self._estimates.values())
        for n, (key, part) in enumerate(self.different.items(), 1):
            time = self.time_budget - (perf_counter() - self._began)
            share = self._estimates[key] / left if left else 0.0
            left -= self._estimates[key]
            effort = min(self.settings.seconds, max(MIN_SEARCH_SECONDS, MAX_SEARCH_SHARE * time * share))
            known = self._remembered(part, effort)
            if known is None and time <= 0:
                continue
            self.tuned[key] = known or self._tune(part, effort)
            yield GpuProgress(n, len(self.different), self._report(part))

    def _tune(self, part: ModelPart, seconds: float) -> TunedPart:
        """Search, measure and certify; a device that is lost costs the part, but the next run goes on after it."""
        first = self.library[part.key]
        why = "nothing else was found"
        plans = {LIBRARY: first}
        try:
            others = other_plans(part.program, first, self.cost, replace(self.settings, seconds=seconds))
            plans |= {each.name: each for each in others}
        except ISOLATED_ERRORS as error:
            why = f"its search failed: {type(error).__name__}: {error}"
            warnings.warn(f"{', '.join(part.nodes[:2])}: {why}", RuntimeWarning, stacklevel=2)
        if len(plans) == 1:
            made = TunedPart(first, {}, *self._certify(first), why)
        else:
            try:
                measured, failures = self._measure(part, plans.values())
            except execution.DeviceFailure as failure:
                self._remember(part, TunedPart(first, {}, "none", why=str(failure)), inf)
                found = f"{len(self.tuned)} of {len(self.different)} parts are tuned and remembered: run again to go on"
                raise ValueError(f"{self.model.path}: {', '.join(part.nodes[:2])}: {failure}; {found}") from None
            made = self._choose(plans, measured, failures)
        self._remember(part, made, seconds)
        return made

    def _choose(
        self, plans: Mapping[str, PartPlan], measured: Mapping[str, float], failures: dict[str, str]
    ) -> TunedPart:
        """Return the fastest plan whose derivation has no unsound step."""
        times = dict(measured)
        while times:
            name = choose_plan(times, LIBRARY)
            certificate, record = self._certify(plans[name])
            if certificate not in UNSOUND_KINDS or name == LIBRARY:
                why = failures.get(LIBRARY, "") if name == LIBRARY else ""
                return TunedPart(plans[name], measured, certificate, record, why, failures)
            failures[name] = f"its derivation has a step that is {certificate}"
            del times[name]
        return TunedPart(plans[LIBRARY], measured, "none", why="; ".join(failures.values()), failures=failures)

    def _certify(self, plan: PartPlan) -> tuple[str, JsonObject | None]:
        """Return the weakest certificate of the steps of *plan*'s derivation, and its record."""
        if not plan.derivation.steps:
            return "none", None
        certificates = step_certificates(plan.derivation)
        record = to_record(plan.derivation, certificates, model=Path(self.model.path).name)
        return combined_verdict(certificates), record

    def _measure(self, part: ModelPart, plans: Iterable[PartPlan]) -> tuple[dict[str, float], dict[str, str]]:
        """Return the seconds of each of *plans*, and why others are left out: the first that runs is the reference.

        Raises DeviceFailure if the device is lost.
        """
        calls: dict[str, list[Call]] = {}
        failures: dict[str, str] = {}
        want: Arrays = {}
        fastest = inf
        for each in plans:
            plan = each.plan
            weights = {name: self.model.weights[part.names[name]] for name in plan.weights}
            feeds = _random_feeds(plan)
            nbytes = plan_bytes(plan)
            try:
                program = execution.compile_plan(plan, weights)
                got = program.run(feeds)
                want = want or got
                if not (error := largest_error(want, got)) <= plan.agreement:  # NaN is no agreement
                    failures[each.name] = f"it differs by {error:.1e} of the largest output"
                    continue
                seconds = execution.single_call_seconds(program.execute)
                if seconds > max(MIN_SLOW_SECONDS, SLOW_RATIO * fastest):
                    failures[each.name] = f"it takes {seconds / fastest:.0f} times as long as the fastest"
                    continue
                fastest = min(fastest, seconds)
                made = [program]
                for _ in range(1, min(MAX_COPIES, execution.rotation_copies(nbytes))):
                    made.append(execution.compile_plan(plan, weights))
                    made[-1].run(feeds)
                calls[each.name] = [one.capture() for one in made]
            except Exception as error:  # a library may lack what another has: the others are measured
                described = execution.describe_device_error(error, nbytes)
                if isinstance(described, execution.DeviceFailure):
                    raise described from None
                failures[each.name] = str(described)
        try:
            times = execution.time_in_rounds(calls, rounds=PART_ROUNDS)
        except Exception as error:  # each ran before
            raise execution.DeviceFailure(str(execution.describe_device_error(error))) from None
        return {name: median(samples) for name, samples in times.items()}, failures

    def _report(self, part: ModelPart) -> GpuPart:
        """Return the entry of *part* in the report."""
        found = self.tuned.get(part.key)
        if found is None:
            return GpuPart(part.nodes, LIBRARY, {}, "none", "there was no time to tune it")
        return GpuPart(part.nodes, found.chosen.name, found.seconds, found.certificate, found.why, found.failures)

    def _history_key(self, part: ModelPart) -> tuple[object, ...]:
        return part.key, execution.cuda_device().key, replace(self.settings, seconds=0.0, threads=1)

    def _remember(self, part: ModelPart, found: TunedPart, effort: float) -> None:
        document = {
            "effort": min(effort, MAX_SEARCH_SECONDS),
            "chosen": found.chosen.name,
            "steps": steps_to_json(found.chosen.derivation),
            "seconds": dict(found.seconds),
            "why": found.why,
            "failures": dict(found.failures),
        }
        self.history.record(document, "gpu", *self._history_key(part))

    def _remembered(self, part: ModelPart, effort: float) -> TunedPart | None:
        """Return the choice of an earlier run with at least half of *effort*; it is derived and certified again."""
        document = self.history.get("gpu", *self._history_key(part))
        if document is None or as_number(as_object(document)["effort"]) < effort / 2:
            return None
        found = as_object(document)
        try:
            chosen = plan_part(str(found["chosen"]), replay(part.program, found["steps"]))
        except (BackendError, Refused):  # another version found it
            return None
        seconds = {name: as_number(value) for name, value in as_object(found["seconds"]).items()}
        failures = {name: str(value) for name, value in as_object(found["failures"]).items()}
        return TunedPart(chosen, seconds, *self._certify(chosen), str(found["why"]), failures)

    def result(self) -> GpuPlan:
        """Return the plan of the choices so far, or of library operators if that is as fast.

        It was checked against ONNX Runtime on random inputs, and measured.  Raises ValueError, with the reasons, if
        neither runs.
        """
        self.prepare()
        self.stage = SELECTING
        chosen = {key: self.tuned[key].chosen if key in self.tuned else plan for key, plan in self.library.items()}
        failed = {key for key, found in self.tuned.items() if LIBRARY in found.failures}
        plain = self._compose({key: chosen[key] if key in failed else plan for key, plan in self.library.items()})
        plans = {"plan": self._compose(chosen), "library": plain}
        if plans["plan"].steps == plain.steps:
            del plans["plan"]
        allowed = plain.agreement * max(1, sum(step.op != "launch" for step in plain.steps)) ** 0.5
        errors, calls, whys = self._run_whole(plans, allowed)
        seconds: dict[str, float] = {}
        try:
            times = execution.time_in_rounds({name: [call] for name, call in calls.items()}, rounds=MODEL_ROUNDS)
            seconds = {name: median(samples) for name, samples in times.items()}
        except KeyboardInterrupt:
            self.interrupted = True
        except Exception as error:  # each ran before
            raise ValueError(f"{self.model.path}: {execution.describe_device_error(error)}") from None
        best = choose_plan(seconds, "library") if seconds else next(iter(calls))
        why = whys.get("plan", "the plan of derived parts is not faster as a whole") if "plan" in plans else ""
        parts = [self._report(part) for part in self.parts]
        if best == "library":
            parts = [replace(part, chosen=LIBRARY, why=why) if part.is_derived and why else part for part in parts]
        device, libraries = execution.cuda_device().key
        self.stage = "done"
        return GpuPlan(
            model=self.model.path,
            device=device,
            libraries=libraries,
            plan=plans[best],
            weights={name: self.model.weights[name] for name in plans[best].weights},
            outputs={value.name: self.model.dtype(value.name).name for value in self.model.outputs},
            parts=tuple(parts),
            seconds={"library": seconds["library"], "plan": seconds[best]} if "library" in seconds else {},
            error=errors[best],
            allowed=allowed,
            why=why if best == "library" else "",
            interrupted=self.interrupted,
            inputs=self.inputs.source if self.inputs else "",
            records=self._records() if any(part.is_derived for part in parts) else {},
        )

    def _compose(self, choices: Mapping[str, PartPlan]) -> CudaPlan:
        inputs = {value.name: self.model.shape(value.name) for value in self.model.inputs}
        parts = [(choices[part.key].plan, part.names) for part in self.parts]
        try:
            return compose_plans(parts, inputs, [value.name for value in self.model.outputs])
        except ValueError as error:
            raise ValueError(f"{self.model.path}: {error}") from None

    def _run_whole(
        self, plans: Mapping[str, CudaPlan], allowed: float
    ) -> tuple[dict[str, float], dict[str, Call], dict[str, str]]:
        """Return the errors of *plans* and their graphs, and why others are left out.

        The library's plan is kept if its error exceeds *allowed*: no other one is better.
        """
        original = build_plan(self.model, {}, self.settings.threads)
        if self.inputs is None:
            feeds = random_model_inputs(self.model, discriminating_seed(self.model, original))
        else:
            feeds = run_on(self.inputs, self.model, original)
        want = original.run(feeds)
        original.rest()
        errors: dict[str, float] = {}
        calls: dict[str, Call] = {}
        whys: dict[str, str] = {}
        for name, plan in plans.items():
            try:
                program = execution.compile_plan(plan, {w: self.model.weights[w] for w in plan.weights})
                call = program.capture()
                errors[name] = largest_error(want, program.run(feeds, call))
                if not errors[name] <= allowed and name != "library":
                    whys[name] = f"the plan of derived parts differs by {errors[name]:.1e} of the largest output"
                    continue
                calls[name] = call
            except Exception as error:  # CuPy's and the libraries' share no base
                whys[name] = str(execution.describe_device_error(error, plan_bytes(plan)))
        if not calls:
            raise ValueError(f"{self.model.path}: {'; '.join(dict.fromkeys(whys.values()))}")
        return errors, calls, whys

    def _records(self) -> dict[str, JsonObject]:
        """Return the records of the derived parts by name."""
        return {
            f"{n:03d}-{file_word(part.nodes[0])}": found.record
            for n, part in enumerate(self.different.values())
            if (found := self.tuned.get(part.key)) and found.record and found.chosen.name != LIBRARY
        }


def _random_feeds(plan: CudaPlan) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(plan.buffers[name], dtype="float32") for name in plan.inputs}
