"""The main job: an ONNX model in, a verified program that is at least as fast out (EinNet §6.3, Algorithm 1).

The model is partitioned into subprograms.  For each, derived variants are measured against the original on this device;
the winners, joined and post-optimised, and the rest of the model (in as few ONNX Runtime sessions as possible) make one
plan, which is measured and checked as a whole.  Winners that do not make the whole model faster are left out; if none
is left, the plan is the original model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from math import prod
from time import perf_counter

from einnet_explore.analysis.counts import ELEMENT_BYTES, compute_bound
from einnet_explore.codegen.register_tiles import this_machine
from einnet_explore.cost import CostModel
from einnet_explore.ir import Equation
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.assembly import Assembler
from einnet_explore.pipeline.baseline import Baseline, discriminating_seed, random_model_inputs
from einnet_explore.pipeline.given_inputs import GivenInputs
from einnet_explore.pipeline.layouts import estimate_equation
from einnet_explore.pipeline.model_spelling import with_normal_spelling
from einnet_explore.pipeline.numerics import ErrorReport, report_errors
from einnet_explore.pipeline.optimised import Optimised
from einnet_explore.pipeline.partition import Skipped, Split, partition
from einnet_explore.pipeline.plan import ExecutionPlan, build_plan
from einnet_explore.pipeline.reading_memory import ReadingMemory, graph_digest
from einnet_explore.pipeline.remote_tuning import (
    SearchReply,
    SearchRequest,
    TaskRunner,
    tune_on_executor,
    variants_of_reply,
)
from einnet_explore.pipeline.selection import Selector
from einnet_explore.pipeline.subprogram import (
    Subprogram,
    TunedSubprogram,
    certify_trial,
    choose_joined_or_parts,
    content_digest,
    open_original,
    operator_digest,
)
from einnet_explore.pipeline.tuning_context import OUT_OF_MEMORY, Implementations, Settings, TuningHistory
from einnet_explore.pipeline.tuning_order import ExpectedGains
from einnet_explore.pipeline.tuning_task import MAX_ESTIMATE_RATIO, Trial, TuningTask, trial_from_json, trial_to_json
from einnet_explore.pipeline.variants import FoundVariants
from einnet_explore.pipeline.vector_layouts import is_chain_in_vectors, is_fixed_chain
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.measurement import stop_after, time_calls
from einnet_explore.runtime.onnx_fragment import ONNXRUNTIME_ERRORS, onnxruntime_message
from einnet_explore.support.errors import BackendError
from einnet_explore.support.executors import WorkExecutor
from einnet_explore.support.json_values import JsonObject, as_integer, as_number, as_object
from einnet_explore.support.limits import STARVATION_FACTOR, return_free_memory
from einnet_explore.support.wording import count_noun

FAST_ENOUGH = 1.2
"""A joined subprogram with this speedup is taken without a look at its parts."""

CHAIN_COST = 0.25
"""Time to tune a chain that is not searched, of which one kernel is compiled, as a part of the time to tune one
expression, which is searched and of which some ten kernels are compiled."""

TASK_BUDGET_SECONDS, MIN_BUDGET_SECONDS, MAX_BUDGET_SECONDS = 4.0, 60.0, 150.0
"""If no budget is given: seconds for each task, and the least and most for a model.  By then the largest tasks of a
large model have been tuned; a small one ends before, with all of its tasks."""


def default_budget(tasks: int, each: float = TASK_BUDGET_SECONDS, most: float = MAX_BUDGET_SECONDS) -> float:
    """Return the budget of a model with so many different subprograms, in seconds: *each* for one, at most *most*."""
    return min(max(MIN_BUDGET_SECONDS, each * tasks), most)


SEARCH_TIME_SHARE = 0.5
"""Part of that time after which a task to which the steps of another one apply is not searched, whatever its extents:
these are measured.  Before, that holds for tasks that differ in constants."""

REMOTE_TIME_SHARE = 0.5
"""Part of that time for remote tuning: what it finds is measured in the rest."""

ISOLATED_ERRORS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError, *OUT_OF_MEMORY)
"""Exceptions that end one task and no other."""


@dataclass
class Tuner:
    """The tuning tasks of *model*, whose digest is *digest* and a run of which takes *model_seconds*.

    No task is begun after *budget* seconds of tuning, those of earlier runs of the model counted: a second run takes
    what the first one found, and only one with more time goes on.
    """

    model: Model
    digest: str
    model_seconds: float
    implementations: Implementations
    history: TuningHistory
    budget: float
    closed: bool = False
    """Whether only variants that were found remotely are still measured."""
    trials: dict[str, Trial] = field(default_factory=dict)
    """The trials so far, by task name."""
    _replies: dict[str, SearchReply] = field(default_factory=dict, init=False)
    _began: float | None = field(default=None, init=False)

    @cached_property
    def _earlier_seconds(self) -> float:
        """Seconds of tuning in earlier runs."""
        return as_number(self.history.get("spent", *self._spending) or 0.0)

    def start_clock(self) -> None:
        """Count time from now on."""
        self._began = perf_counter()

    @property
    def spent(self) -> float:
        """Seconds of tuning of this model, in earlier runs and this one."""
        return self._earlier_seconds + (0.0 if self._began is None else perf_counter() - self._began)

    @property
    def left(self) -> float:
        """Seconds within which tasks may still begin."""
        return max(0.0, self.budget - self.spent)

    @property
    def is_short_of_time(self) -> bool:
        """Whether tasks measure the variants of similar ones, if there are any, in place of a search."""
        return self.left <= (1 - SEARCH_TIME_SHARE) * self.budget

    def history_key(self, subprogram: Subprogram) -> tuple[object, ...]:
        """Return the key by which the trial of *subprogram* is remembered."""
        return subprogram.task_name(self.model), self._timeless_settings, self._displacing_bytes(subprogram)

    def _displacing_bytes(self, subprogram: Subprogram) -> int:
        """Return the bytes of the weights of all other subprograms, as a power of two: of the last cache at most.

        Weights that fit the second-level cache displace nothing.
        """
        own = sum(prod(t.shape) for t in subprogram.anonymous.program.inputs if t.weight) * ELEMENT_BYTES
        others, machine = sum(array.nbytes for array in self.model.weights.values()) - own, this_machine()
        return 0 if others < machine.l2 else min(1 << (others.bit_length() - 1), machine.l3)

    @property
    def _timeless_settings(self) -> Settings:
        return replace(self.implementations.settings, seconds=0.0)

    def tune_ahead(
        self, executor: WorkExecutor, subprograms: Iterable[Subprogram], task_runner: Callable[[], TaskRunner]
    ) -> None:
        """Search each distinct subprogram once on *executor*; if that has devices, tune it there by *task_runner*.

        All of it is done before any variant is measured here.  Tasks that fail or are late there are done again here.
        """
        until = perf_counter() + REMOTE_TIME_SHARE * self.left
        requests: dict[str, SearchRequest] = {}
        for subprogram in subprograms:
            if perf_counter() > until:
                break
            name = subprogram.task_name(self.model)
            if name in requests or name in self.trials:
                continue
            try:
                task, effort, known = self.prepare(subprogram)
            except ISOLATED_ERRORS:
                continue  # ``trial_of`` meets the same error and warns
            if known is not None:
                self.trials[name] = known
            elif effort is not None:
                below = MAX_ESTIMATE_RATIO * task.original_seconds
                requests[name] = SearchRequest(task.program, effort, below, task.displacing_bytes)
        left = max(0.0, until - perf_counter())
        for name, answer in tune_on_executor(executor, requests, self.implementations, left, task_runner):
            match answer:
                case Trial():
                    self.trials[name] = answer
                case SearchReply():
                    self._replies[name] = answer

    def trial_of(self, subprogram: Subprogram) -> Trial | None:
        """Return the trial of *subprogram*; None if there is no time for it and none is remembered."""
        name = subprogram.task_name(self.model)
        if name not in self.trials:
            trial = self._isolated_trial(subprogram)
            if trial is None:
                return None
            self.trials[name] = trial
        return self.trials[name]

    def _isolated_trial(self, subprogram: Subprogram) -> Trial | None:
        """Return the trial; a failure warns and keeps the original, and costs no other subprogram."""
        late = not self.left or (self.closed and subprogram.task_name(self.model) not in self._replies)
        try:
            return self._remembered_trial(subprogram) if late else self.run_task(subprogram)
        except ISOLATED_ERRORS as error:
            why = f"its search failed: {type(error).__name__}: {error}"
            warnings.warn(f"{', '.join(subprogram.nodes[:2])}: {why}", RuntimeWarning, stacklevel=2)
            return Trial(seconds_before=0.0, seconds_after=0.0, why=why)

    def _remembered_trial(self, subprogram: Subprogram) -> Trial | None:
        """Return the trial of an earlier run; None if that had no time for it."""
        if not self._task(subprogram).is_original_timed:
            return None
        task, effort, known = self.prepare(subprogram)
        return task.negligible_trial(self.model_seconds) if effort is None else known

    def run_task(self, subprogram: Subprogram) -> Trial:
        """Run the task of *subprogram*, or return the trial of an equal one that had as much time.

        A trial that a memory limit decided is not remembered: another limit may decide otherwise.
        """
        task, effort, known = self.prepare(subprogram)
        if effort is None:
            return task.negligible_trial(self.model_seconds)
        if known is not None:
            return known
        short = self.is_short_of_time
        replayed = task.replayed(any_extents=short) if task.found is None else []
        if replayed:
            task = replace(task, found=FoundVariants(replayed, 0))
        trial = task.run(effort)
        return_free_memory()
        if not trial.memory_short:
            found = {"effort": effort, "searched": not (short and replayed), "outcome": trial_to_json(trial)}
            self.history.record(found, "contest", *self.history_key(subprogram))
        self.history.record(self.spent, "spent", *self._spending)
        return trial

    def prepare(self, subprogram: Subprogram) -> tuple[TuningTask, float | None, Trial | None]:
        """Return the task of *subprogram*, its effort, and a remembered trial that had at least half of that effort.

        One that was not searched is not taken if there is time for a search now.
        """
        task = self._task(subprogram)
        effort = task.search_effort(self.model_seconds, self.budget)
        document = None if effort is None else self.history.get("contest", *self.history_key(subprogram))
        if effort is None or document is None:
            return task, effort, None
        known = as_object(document)
        enough = as_number(known["effort"]) >= effort / 2 and (bool(known["searched"]) or self.is_short_of_time)
        return task, effort, trial_from_json(known["outcome"], task.program) if enough else None

    def _task(self, subprogram: Subprogram) -> TuningTask:
        program = subprogram.anonymous.program
        opener, constants = open_original(self.model, subprogram, self.implementations.settings.threads)
        reply = self._replies.get(subprogram.task_name(self.model))
        return TuningTask(
            program,
            opener,
            constants,
            self.implementations.context(self._limited_settings(), self._displacing_bytes(subprogram)),
            operators=operator_digest(self.model, subprogram.nodes),
            found=None if reply is None else variants_of_reply(program, reply),
        )

    def _limited_settings(self) -> Settings:
        settings = self.implementations.settings
        left = self.left / STARVATION_FACTOR  # searches count the processor's time
        return replace(settings, seconds=min(settings.seconds, max(0.2, left / 4)))

    @property
    def _spending(self) -> tuple[str, Settings]:
        return self.digest, self._timeless_settings


TUNING, SELECTING = "tuning subprograms", "measuring the whole model"
"""Stages of ``Optimiser``."""


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """One subprogram has been tuned: the *done*-th of *total*."""

    done: int
    total: int
    part: TunedSubprogram


@dataclass
class Optimiser:
    """Optimisation of one model, subprogram by subprogram.

    ``run`` may be left at any time; ``result`` is the plan of the winners so far.  An *executor*
    (``support.executors``) searches all subprograms before the first is measured; measurements are done here, or on a
    cluster's devices.
    """

    model: Model
    settings: Settings
    budget: float | None = None
    store: ProfileStore = field(default_factory=ProfileStore)
    parts: list[TunedSubprogram] = field(default_factory=list)
    interrupted: bool = False
    executor: WorkExecutor | None = None
    inputs: GivenInputs | None = None
    """Inputs on which whole models are compared and timed, in place of random ones; subprograms have random ones."""
    gained_elsewhere: Collection[tuple[str, ...]] = ()
    """The nodes of subprograms that gained at other sizes of the model: they are tuned first."""
    stage: str = "reading the model"
    done: int = 0
    speedups: list[tuple[float, float]] = field(default_factory=list)
    """The estimated speedup whenever it changed, by the seconds since the start."""
    _began: float = field(default_factory=perf_counter, init=False)
    _certified: dict[str, TunedSubprogram] = field(default_factory=dict, init=False)
    _tuned: dict[tuple[str, ...], TunedSubprogram] = field(default_factory=dict, init=False)
    """The tuned subprograms by nodes, as they were before a joined one or its parts were chosen for ``parts``."""
    _gains: ExpectedGains = field(default_factory=ExpectedGains, init=False)
    _memory: ReadingMemory = field(init=False)

    def __post_init__(self) -> None:
        self._memory = ReadingMemory(self.history, graph_digest(self.model))
        self.model = with_normal_spelling(self.model, self.settings.numerics, self._memory)

    @property
    def progress(self) -> str:
        """How many subprograms have been tuned."""
        return f"{len(self.parts)} of {count_noun(len(self.subprograms), 'subprogram')}"

    def status(self, interrupt: str = "Ctrl-C") -> str:
        """Say on one line the stage, the time that has passed, the best so far, and the effect of an *interrupt*.

        May be called from another thread while the model is optimised.
        """
        passed = perf_counter() - self._began
        if self.stage != TUNING:
            effect = f" · {interrupt} keeps the best plan so far" if self.stage == SELECTING else ""
            return f"{'interrupted · ' if self.interrupted else ''}{self.stage} · {passed:.0f} s{effect}"
        spent, speedup = self.tuner.spent, self._estimated_speedup()
        best = f"best so far about {speedup:.2f} times as fast" if speedup != 1 else ""
        budget = f"{self.time_budget:.0f} s" + (" with earlier runs" if spent > passed + 1 else "")
        phrases = (
            f"{self.stage} · {self.done} of {len(self.subprograms)}",
            f"{spent:.0f} of {budget}",
            best or "no gain yet",
            f"{interrupt} measures and keeps these",
        )
        return " · ".join(phrases)

    def _estimated_speedup(self) -> float:
        """Return the speedup of the model if the subprograms gain as much as they do alone."""
        return self.seconds / max(self.seconds - self._estimated_gain(), 1e-9)

    def _estimated_gain(self) -> float:
        """Return the seconds that the kept subprograms gain alone."""
        return sum(part.gain for part in tuple(self.parts) if part.kept)

    @cached_property
    def split(self) -> Split:
        """The partition of the model."""
        return partition(self.model, self._memory, through_cache=self.settings.runtime == "plan")

    @cached_property
    def subprograms(self) -> tuple[Subprogram, ...]:
        """The subprograms in the order of the model; a joined one comes after its parts."""
        return tuple(s for joined in self.split.subprograms for s in (*joined.parts, joined))

    @cached_property
    def time_budget(self) -> float:
        """The seconds within which tasks may begin: the budget that was given, or one that grows with the model."""
        return self.budget or default_budget(len({each.task_name(self.model) for each in self.subprograms}))

    @cached_property
    def history(self) -> TuningHistory:
        """The documents of earlier runs."""
        return TuningHistory(self.store)

    @cached_property
    def implementations(self) -> Implementations:
        """The cost model and compiler of this machine."""
        return Implementations(self.settings, self.store)

    @cached_property
    def digest(self) -> str:
        """The digest of the model."""
        return self.model.digest()

    @cached_property
    def _measured_digest(self) -> str:
        """The digest of the model and of its inputs, by which measurements of the whole model are remembered."""
        return f"{self.digest} {content_digest(self.feeds)}" if self.inputs or self.model.domains else self.digest

    @cached_property
    def original(self) -> ExecutionPlan:
        """The plan of the model as it was read."""
        return build_plan(self.model, {}, self.settings.threads)

    @cached_property
    def feeds(self) -> dict[str, Array]:
        """The given inputs, or random ones that tell right from wrong.

        The seed is remembered, since it takes two runs of the model or more.
        """
        if self.inputs is not None:
            return run_on(self.inputs, self.model, self.original)
        key = " ".join((self.digest, *(f"{name}={domain}" for name, domain in self.model.domains.items())))
        known = self.history.get("inputs", key)
        if known is not None:
            return random_model_inputs(self.model, as_integer(known))
        seed = discriminating_seed(self.model, self.original)
        self.history.record(seed, "inputs", key)
        return random_model_inputs(self.model, seed)

    @cached_property
    def seconds(self) -> float:
        """Seconds of one run of the model; remembered, so that tasks have the same effort in every run."""
        known = self.history.get("model", self._measured_digest, self.settings.threads)
        if known is not None:
            return as_number(known)
        run, enough = partial(self.original.run, self.feeds), stop_after(1, 1.0)
        seconds = time_calls({"it": run}, rounds=5, min_seconds=0.05, enough=enough)["it"].low
        self.history.record(seconds, "model", self._measured_digest, self.settings.threads)
        return seconds

    @cached_property
    def tuner(self) -> Tuner:
        """The tuner of the subprograms."""
        return Tuner(
            self.model,
            digest=self.digest,
            model_seconds=self.seconds,
            implementations=self.implementations,
            history=self.history,
            budget=self.time_budget,
        )

    @cached_property
    def assembler(self) -> Assembler:
        """The assembler of plans."""
        rough = partial(estimate_equation, model=self.implementations.model)
        return Assembler(self.model, self.settings, rough, self._measured_price, self.store, self.history)

    def _measured_price(self, equation: Equation) -> float:
        """Return the seconds of *equation* as stored, else measured; an estimate if it does not compile."""
        try:
            return self.store.measured(equation, self.settings.threads).seconds
        except BackendError:
            return estimate_equation(equation, model=self.implementations.model)

    def prepare(self) -> None:
        """Partition the model, open and measure it; ``run`` and ``result`` do so too if it was not done."""
        _ = (self.split, self.tuner, self.feeds)
        self.original.rest()
        return_free_memory()

    def run(self) -> Iterable[TuningProgress]:
        """Tune every subprogram, equal ones once, in the order of ``most_valuable_first`` by the gains so far.

        Parts that come after a joined subprogram are tuned last if that gains a little, and not at all if it is
        ``FAST_ENOUGH``.

        After an interrupt of remote tuning only variants found by then are measured.
        """
        self.prepare()
        self.tuner.start_clock()
        self.stage = TUNING
        if self.executor is not None:
            try:
                self.tuner.tune_ahead(self.executor, self.most_valuable_first(), self._task_runner)
            except KeyboardInterrupt:
                self.interrupted = self.tuner.closed = True
        for n, subprogram in enumerate(self._tasks(), 1):
            trial = self.tuner.trial_of(subprogram)
            self.done = n
            if trial is None:
                continue
            name = subprogram.task_name(self.model)
            if name not in self._certified:
                self._certified[name] = certify_trial(subprogram.nodes, trial)
            part = self._within_bound(replace(self._certified[name], nodes=subprogram.nodes))
            self._tuned[part.nodes] = part
            self._choose(self._whole_of.get(part.nodes, subprogram))
            if (speedup := self._estimated_speedup()) != (self.speedups[-1][1] if self.speedups else 1.0):
                self.speedups.append((perf_counter() - self._began, speedup))
            yield TuningProgress(n, len(self.subprograms), part)

    def _tasks(self) -> Iterable[Subprogram]:
        """Yield the subprograms to tune; what follows depends on what was found for those before."""
        last: list[Subprogram] = []
        waiting: dict[str, list[Subprogram]] = {}
        for each in self.most_valuable_first():
            waiting.setdefault(each.anonymous.signature, []).append(each)
        while waiting:
            gains, values = self._gains, self._values(chain.from_iterable(waiting.values()))
            for n, each in enumerate(waiting.pop(max(waiting, key=lambda signature: values[signature]))):
                whole = self._whole_of.get(each.nodes)
                found = self._tuned.get(whole.nodes) if whole else None
                if found is None or not found.kept:
                    before, has_parts = self._estimated_gain(), self._has_tuned_parts(each)
                    yield each
                    seconds = self._tuned[each.nodes].trial.seconds_before if each.nodes in self._tuned else 0.0
                    if n == 0 and seconds:
                        gain = (self._estimated_gain() - before) / seconds
                        gains.note(each.anonymous.program, gain, has_parts)
                elif found.trial.seconds_before < FAST_ENOUGH * found.seconds:
                    last.append(each)
        yield from last

    @cached_property
    def _whole_of(self) -> dict[tuple[str, ...], Subprogram]:
        """The joined subprograms by the nodes of their parts."""
        return {part.nodes: whole for whole in self.split.subprograms for part in whole.parts}

    def _choose(self, whole: Subprogram) -> None:
        """Keep either *whole* or its parts, as far as they have been tuned."""
        within = [self._tuned[part.nodes] for part in whole.parts if part.nodes in self._tuned]
        family = {whole.nodes, *(part.nodes for part in within)}
        others = [part for part in self.parts if part.nodes not in family]
        if (found := self._tuned.get(whole.nodes)) is not None:
            best, within = choose_joined_or_parts(found, within) if within else (found, [])
            within = [best, *within]
        self.parts = others + within

    def _task_runner(self) -> TaskRunner:
        return partial(tune_named_task, self.model.original.SerializeToString(), self.settings, self.time_budget)

    def most_valuable_first(self) -> list[Subprogram]:
        """Return the subprograms in an order in which time that runs out was spent on the largest possible gains.

        ``tuning_order`` has the value of one, to which those that are equal to it add: parts usually come before what
        joins them.  Those that gained at another size come first.
        """
        values = self._values(self.subprograms)
        return sorted(self.subprograms, key=lambda each: values[each.anonymous.signature], reverse=True)

    def _values(self, subprograms: Iterable[Subprogram]) -> dict[str, tuple[bool, float]]:
        """Return, by signature, whether *subprograms* gained at another size, and what tuning them is worth now."""
        found: dict[str, tuple[bool, float]] = {}
        for each in subprograms:
            promising, value = found.get(each.anonymous.signature, (False, 0.0))
            gain = self._gains.expected(each.anonymous.program, self._has_tuned_parts(each))
            found[each.anonymous.signature] = (
                promising or each.nodes in self.gained_elsewhere,
                value + gain * self._seconds_each[each.nodes],
            )
        return found

    @cached_property
    def _seconds_each(self) -> dict[tuple[str, ...], float]:
        """The estimated seconds of each subprogram for each of its expressions that are searched.

        A chain that is not searched, of one kernel, takes ``CHAIN_COST`` of the time, so it comes before its parts.
        """
        cost, programs = CostModel(), ((s.nodes, s.anonymous.program) for s in self.subprograms)
        return {
            nodes: cost.program_cost(of).seconds
            / (CHAIN_COST if is_fixed_chain(of) and is_chain_in_vectors(of) else max(1, len(compute_bound(of))))
            for nodes, of in programs
        }

    def _has_tuned_parts(self, subprogram: Subprogram) -> bool:
        return any(part.nodes in self._tuned for part in subprogram.parts)

    def result(self) -> Optimised:
        """Return the plan of the winners so far, measured and checked against ONNX Runtime on ``feeds``."""
        self.stage = SELECTING
        untuned, end = self._untuned(), f"the budget of {self.time_budget:g} s ended"
        if self.interrupted:
            end = "the run was interrupted"
        found = self.selector().optimised()
        self.original.rest()
        return_free_memory()
        parts = list(found.parts)
        try:
            for n, part in enumerate(found.parts):
                parts[n] = self._with_errors(part)
        except KeyboardInterrupt:
            self.interrupted = True
        self.stage = "done"
        return replace(
            found,
            parts=tuple(parts),
            untuned=untuned,
            inputs=self.inputs.source if self.inputs else "",
            region_ends=self.split.region_ends,
            budget=self.time_budget,
            progress=(*self.speedups, (perf_counter() - self._began, found.speedup)),
            skipped=(
                *self.split.skipped,
                *(Skipped(node, f"{end} before it was tuned") for nodes in untuned for node in nodes),
            ),
            search_seconds=sum(trial.search_seconds for trial in self.tuner.trials.values()),
            interrupted=self.interrupted or found.interrupted,
        )

    def _untuned(self) -> tuple[tuple[str, ...], ...]:
        """Return the nodes of each subprogram that was not tuned: of a joined one, or of those of its parts."""
        tuned = {node for part in self.parts for node in part.nodes}
        late: list[tuple[str, ...]] = []
        for whole in self.split.subprograms:
            parts = whole.parts if whole.parts and not tuned.isdisjoint(whole.nodes) else (whole,)
            late += [part.nodes for part in parts if tuned.isdisjoint(part.nodes)]
        return tuple(late)

    def selector(self) -> Selector:
        """Return the selector of the trials so far, in the order of the model."""
        place = {subprogram.nodes: n for n, subprogram in enumerate(self.subprograms)}
        self.parts.sort(key=lambda part: place[part.nodes])
        return Selector(
            baseline=Baseline(self.model, self.original, self.feeds, self.seconds, self.settings.error_bound),
            assembler=self.assembler,
            history=self.history,
            digest=self._measured_digest,
            parts=self.parts,
            subprograms=[self.subprograms[place[part.nodes]] for part in self.parts],
            every_subprogram=self.split.subprograms,
            budget=self.time_budget,
        )

    def _within_bound(self, part: TunedSubprogram) -> TunedSubprogram:
        """Return *part*, with its original if the error with its own weights may exceed the bound."""
        if not part.kept or part.numerics is None or part.numerics.level != "bf16":
            return part
        measured = self._with_errors(part).numerics
        if measured is None or not (excess := measured.excess(self.settings.error_bound)):
            return part
        trial = replace(part.trial, winner=None, contender=None, excess=excess)
        return replace(part, trial=trial, kept=False, certificate="none", why=excess)

    def _with_errors(self, part: TunedSubprogram) -> TunedSubprogram:
        """Return *part* with the rounding errors of its derivation, if it is in the plan."""
        if not part.kept or part.derivation is None:
            return part
        subprogram = next(s for s in self.subprograms if s.nodes == part.nodes)
        opener, constants = open_original(self.model, subprogram, self.settings.threads)
        # Equal layers share a derivation, but rounding errors and their bound depend on the layer's own weights.
        key = (*self.tuner.history_key(subprogram), repr(part.derivation.end), content_digest(constants))
        known = self.history.get("numerics", *key)
        if known is not None:
            return replace(part, measured=ErrorReport.from_json(known))
        report = report_errors(part.derivation, opener, constants, self.implementations.compiler)
        return_free_memory()
        if not report.memory_short:
            self.history.record(report.to_json(), "numerics", *key)
        return replace(part, measured=report)


def run_on(inputs: GivenInputs, model: Model, original: ExecutionPlan) -> dict[str, Array]:
    """Return *inputs* in the types of *model*, after a run; raises ValueError if they do not fit or the run fails."""
    feeds = inputs.for_model(model)
    try:
        original.run(feeds)
    except ONNXRUNTIME_ERRORS as error:
        why = onnxruntime_message(error).splitlines()[0]
        raise ValueError(f"{inputs.source}: {model.path} fails on these inputs ({why})") from None
    return feeds


def tune_named_task(model: bytes, settings: Settings, budget: float | None, name: str) -> JsonObject:
    """Run the tuning task called *name* of *model* in this process; return the trial as JSON."""
    work = _optimiser(model, settings, budget)
    subprogram = next(s for s in work.subprograms if s.task_name(work.model) == name)
    return trial_to_json(work.tuner.run_task(subprogram))


@lru_cache(maxsize=2)
def _optimiser(model: bytes, settings: Settings, budget: float | None) -> Optimiser:
    return Optimiser(load_model(model), settings, budget)
