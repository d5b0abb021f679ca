"""Optimisation by options: of a model of one size, or of a range of sizes, on the CPU, or on a GPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeAlias, TypedDict, TypeVar, Unpack

import onnx

from einnet_explore.ir import Program
from einnet_explore.onnx_import.contrib_operators import expand_contrib_operators
from einnet_explore.onnx_import.input_domains import Domains
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model, Shape, with_domains
from einnet_explore.onnx_import.size_ranges import RangedShapes, are_single, read_ranges
from einnet_explore.pipeline.given_inputs import Inputs, given_inputs
from einnet_explore.pipeline.gpu_optimiser import GpuOptimiser, require_gpu
from einnet_explore.pipeline.gpu_plan import GpuPlan
from einnet_explore.pipeline.optimised import Optimised
from einnet_explore.pipeline.optimised_sizes import OptimisedSizes
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.size_optimiser import SizeOptimiser
from einnet_explore.pipeline.tuning_context import RUNTIMES, Runtime, Settings, library_forms, program_model
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR
from einnet_explore.runtime.profile_store import PROFILE_PREFIX
from einnet_explore.strategies.rounding_levels import parse_level
from einnet_explore.support.errors import Refused
from einnet_explore.support.executors import WorkExecutor
from einnet_explore.support.limits import available_cores, rare_collections
from einnet_explore.support.status_line import status_line
from einnet_explore.support.wording import count_noun

ModelSource: TypeAlias = "str | Path | Model | Program | onnx.ModelProto"
"""A model to optimise, or the path of its file; the weights of a program are inputs."""

MAX_THREADS_PER_CORE = 4
"""Threads that may share a core of this machine: with thousands, each measurement takes minutes."""


class TuningOptions(TypedDict, total=False):
    """The keywords of ``optimize`` that hold for a range of sizes, too."""

    threads: int | None
    budget: float | None
    numerics: str
    error_bound: float | None
    target_runtime: str
    max_depth: int
    states: int | None
    executor: WorkExecutor | None
    domains: Domains


class OptimizeOptions(TuningOptions, total=False):
    """The keywords of ``optimize`` for one size, other than the device."""

    shapes: Mapping[str, Shape] | None
    inputs: Inputs | None


@dataclass(frozen=True, kw_only=True)
class OptimiserOptions:
    """The options of ``ee.optimize``, which explains them; ``begin_optimisation`` raises ValueError for wrong ones."""

    shapes: RangedShapes | None = None
    device: str = "cpu"
    threads: int | None = None
    budget: float | str | None = None
    numerics: str = "approximate"
    error_bound: float | None = None
    target_runtime: str = "plan"
    max_depth: int = 7
    states: int | None = None
    executor: WorkExecutor | None = None
    inputs: Inputs | None = None
    domains: Domains = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """The settings of tuning; raises ValueError for an unknown runtime or level, or a number that does not fit."""
        count, cores = self.threads or available_cores(), os.cpu_count() or 1
        if count > (most := MAX_THREADS_PER_CORE * cores):
            raise ValueError(f"{count} threads: expected at most {most} on {count_noun(cores, 'core')}")
        level, runtime, bound = parse_level(self.numerics), parse_runtime(self.target_runtime), self.error_bound
        if level == "bf16" and runtime != "plan":
            raise ValueError(f"numerics bf16 with the runtime {runtime}, which multiplies in float32: expected plan")
        if level == "bf16" and bound is None:
            raise ValueError(
                "numerics bf16: found no error bound, expected --error-bound (error_bound=), such as 0.05 of the "
                "largest output"
            )
        if bound is not None and level != "bf16":
            raise ValueError(f"error bound {bound:g} with numerics {level}: expected numerics bf16, which it is for")
        if bound is not None and not 0 < bound < 1:
            raise ValueError(f"error bound {bound:g}: expected a part of the largest output between 0 and 1")
        return Settings(
            count,
            self.max_depth,
            runtime=runtime,
            numerics=level,
            states=self.states,
            error_bound=MAX_RELATIVE_ERROR if bound is None else bound,
        )

    @property
    def cpu_options(self) -> list[str]:
        """The options with a value that have no meaning on a GPU."""
        given: dict[str, object] = {
            "threads": self.threads,
            "target_runtime": self.target_runtime != "plan",
            "executor": self.executor is not None,
            "numerics='bf16'": self.numerics == "bf16",
            "error_bound": self.error_bound,
        }
        return [name for name, value in given.items() if value]


def parse_runtime(text: str) -> Runtime:
    """Return the runtime called *text*; raises ValueError if it is unknown."""
    for runtime in RUNTIMES:
        if runtime == text:
            return runtime
    raise ValueError(f"target runtime {text!r}: expected one of {', '.join(RUNTIMES)}")


def parse_budget(budget: float | str | None) -> float | None:
    """Return seconds; ``"60s"`` is an old spelling of 60, and warns.  Raises ValueError unless they are positive."""
    if budget is None:
        return None
    if isinstance(budget, str):
        warnings.warn(f"budget={budget!r} is deprecated: write a number of seconds", DeprecationWarning, stacklevel=4)
    try:
        value = float(str(budget).removesuffix("s"))
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ValueError(f"budget {budget!r}: expected a positive number of seconds, such as 60")
    return value


def check_device(device: str) -> None:
    """Raise ValueError, with the reason, unless *device* can be used."""
    if device == "cuda":
        require_gpu()
        raise ValueError("device 'cuda': found a GPU, which only optimize uses; expected cpu")
    if device.startswith(PROFILE_PREFIX):
        raise ValueError(
            f"device {device!r}: whole models are measured where they run; a profile orders the candidates of derive, "
            f"and of python -m benchmarks.gpu bundle OUT.zip --model FILE.onnx --device {device}, which the device "
            "then measures; expected cpu"
        )
    if device != "cpu":
        raise ValueError(f"device {device!r}: found no such device, expected cpu")


def refuse_cpu_options(names: list[str]) -> None:
    """Raise ValueError for options of these *names*, which are for CPUs, on a GPU."""
    if names:
        raise ValueError(f"device 'cuda': found {', '.join(names)}, expected none: these options are for CPUs")


R_co = TypeVar("R_co", covariant=True)


class Optimisation(Protocol[R_co]):
    """The optimisation of a model, which a status line shows and an interrupt ends."""

    interrupted: bool

    @property
    def progress(self) -> str: ...
    def status(self, interrupt: str = "Ctrl-C") -> str: ...
    def prepare(self) -> None: ...
    def run(self) -> Iterable[object]: ...
    def result(self) -> R_co: ...


OptimisationResult: TypeAlias = Optimised | OptimisedSizes | GpuPlan


def begin_optimisation(model: ModelSource, options: OptimiserOptions) -> Optimisation[OptimisationResult]:
    """Return the optimisation of *model* that *options* describe; ``run_to_end`` has its result.

    Raises ValueError for options and inputs that are wrong or do not fit, and, in one line, for a GPU that is missing;
    ModelError for a model that cannot be read, or that cannot have the sizes; Refused for a program with a range of
    sizes; OSError if the archive of inputs cannot be read.
    """
    device, shapes = options.device, options.shapes or {}
    if not are_single(shapes):
        if options.inputs is not None:
            raise ValueError("inputs: found arrays of one size, expected none for a range of sizes")
        if device != "cpu":
            raise ValueError(f"device {device!r}: found a range of sizes, which only a CPU takes; expected cpu")
        if isinstance(model, Program | Model):
            raise Refused("found a program and a range of sizes, expected a model with dynamic dimensions")
        settings, budget = options.settings, parse_budget(options.budget)
        return SizeOptimiser(model, read_ranges(model, shapes), settings, budget, options.executor, options.domains)
    if device == "cuda":
        refuse_cpu_options(options.cpu_options)
        require_gpu()
    else:
        check_device(device)
    settings, budget = options.settings, parse_budget(options.budget)
    found, inputs = with_domains(read_model(model, shapes), options.domains), given_inputs(options.inputs)
    if device == "cuda":
        return GpuOptimiser(found, settings, budget, inputs=inputs)
    return Optimiser(found, settings, budget, executor=options.executor, inputs=inputs)


def read_model(model: ModelSource, shapes: Mapping[str, Shape]) -> Model:
    """Return *model*, read from a file if it is a path; programs are exported first."""
    match model:
        case Model():
            return model
        case Program():
            return load_model(program_model(list(islice(library_forms(model), 2))[-1], {}), shapes)
        case _:
            return load_model(model, shapes, rewrite=expand_contrib_operators)


def run_to_end(work: Optimisation[R_co]) -> R_co:
    """Return the result of *work*, also after an interrupt; a cell or a terminal shows the progress."""
    with rare_collections(), status_line(work.status):
        work.prepare()
        try:
            for _ in work.run():
                pass
        except KeyboardInterrupt:
            work.interrupted = True
        return work.result()


def optimize_model(model: ModelSource, **options: Unpack[OptimizeOptions]) -> Optimised:
    """Optimise *model* for the CPU of this machine; raises what ``begin_optimisation`` raises."""
    chosen = OptimiserOptions(**options)
    check_device(chosen.device)
    work = begin_optimisation(model, chosen)
    if not isinstance(work, Optimiser):
        raise ValueError("shapes: found several sizes of a dimension, expected one")
    return run_to_end(work)
