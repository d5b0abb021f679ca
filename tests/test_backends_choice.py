"""The choice of an engine: by measured time, measured once, and only between engines that take the equation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from onnx_building import build, node

from einnet_explore.codegen import versions
from einnet_explore.ir import Equation, program, tensors
from einnet_explore.onnx_import.load import load_model
from einnet_explore.operators.library import OPERATORS
from einnet_explore.pipeline.partition import partition
from einnet_explore.runtime import c_kernels, implementation_choice, implementations, measurement
from einnet_explore.runtime.arrays import aligned_empty
from einnet_explore.runtime.implementations import BoundEquation, implementations_of
from einnet_explore.runtime.profile_store import C_ENGINE, TimeStore, profile_key
from einnet_explore.runtime.program import compile_program
from einnet_explore.support.errors import BackendError, NoKernel
from einnet_explore.syntax import parse

SCOPE = parse("tensor A[4, 4]\ntensor B[4, 4] weight\nY[m:4, n:4] = sum[k:4] A[m, k] * B[k, n]").equations[-1].scope
EQUATION = Equation("Y", SCOPE)


def work(seconds: float) -> None:
    """Takes so many *seconds* of the processor."""
    end = process_time() + seconds
    while process_time() < end:
        pass


@dataclass
class Fake:
    """A way that takes *seconds*; *calls* counts how often it was run."""

    engine: str
    seconds: float = 0.0
    refuses: bool = False
    bound: list[str] = field(default_factory=list)

    def bind(self, arrays: Mapping[str, np.ndarray], out: np.ndarray) -> Callable[[], object]:
        if self.refuses:
            raise BackendError(f"{self.engine} refuses")
        self.bound.append("bound")
        return lambda: work(self.seconds)


def arrays() -> dict[str, np.ndarray]:
    found = {t.name: aligned_empty(t.shape) for t in tensors(SCOPE)}
    for array in found.values():
        array[...] = 0
    return found


def choose(ways: list[Fake], store: TimeStore, given: dict[str, np.ndarray] | None = None) -> Fake:
    given = given or arrays()
    bound = BoundEquation(EQUATION, given, aligned_empty((4, 4)), constants={"B": given["B"]})
    return implementation_choice.fastest_implementation(bound, ways, store)


def test_fastest_implementation_is_chosen_and_stored(tmp_path: Path) -> None:
    store = TimeStore(tmp_path / "profiles.sqlite")
    ways = [Fake("slow", 0.004), Fake("quick", 0.001)]
    assert choose(ways, store) is ways[1]
    again = [Fake("slow", 0.004), Fake("quick", 0.001)]
    assert choose(again, TimeStore(tmp_path / "profiles.sqlite")) is again[1]
    assert not again[0].bound and not again[1].bound
    known = store.get(replace(profile_key(EQUATION), engine="quick"))
    assert known is not None
    assert 0.001 <= known.seconds < 0.004


def test_first_implementation_is_chosen_unless_another_is_clearly_faster(tmp_path: Path) -> None:
    store = TimeStore(tmp_path / "profiles.sqlite")
    key = profile_key(EQUATION)
    for engine, seconds in (("first", 1.0), ("hardly", 0.99), ("no", 1.2)):
        store.record(replace(key, engine=engine), seconds, "measured")
    ways = [Fake("first"), Fake("hardly"), Fake("no")]
    assert choose(ways, store) is ways[0]
    store.record(replace(key, engine="hardly"), 1 / implementation_choice.MIN_SPEEDUP - 0.01, "measured")
    assert choose(ways, store) is ways[1]


def test_implementation_that_refuses_is_skipped(tmp_path: Path) -> None:
    store = TimeStore(tmp_path / "profiles.sqlite")
    ways = [Fake("broken", refuses=True), Fake("works")]
    assert choose(ways, store) is ways[1]
    with pytest.raises(BackendError, match="broken refuses; other refuses"):
        choose([ways[0], Fake("other", refuses=True)], store)
    with pytest.raises(BackendError, match="no engine takes it"):
        choose([], store)


@pytest.mark.parametrize("columns", [4, 1 << 20])
def test_large_constants_are_out_of_the_caches(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = (
        parse(f"tensor A[4]\ntensor B[{columns}, 4] weight\nY[n:{columns}] = sum[k:4] A[k] * B[n, k]")
        .equations[-1]
        .scope
    )
    given = {t.name: np.ones(t.shape, np.float32) for t in tensors(scope)}
    bound = BoundEquation(Equation("Y", scope), given, aligned_empty((columns,)), constants={"B": given["B"]})
    displace = implementation_choice.constants_displacer(bound)
    assert (displace is not None) == (columns > 4)
    calls: list[str] = []
    monkeypatch.setattr(implementation_choice, "constants_displacer", lambda _: lambda: calls.append("displace"))

    @dataclass
    class Noted(Fake):
        def bind(self, arrays: Mapping[str, np.ndarray], out: np.ndarray) -> Callable[[], object]:
            return lambda: calls.append(self.engine)

    implementation_choice.fastest_implementation(bound, [Noted("one"), Noted("other")], TimeStore(tmp_path / "p"))
    assert calls.count("displace") >= 2 * 6
    after = {b for a, b in pairwise(calls) if a == "displace"}
    assert after == {"one", "other"}


class Watched(np.ndarray):
    """An array that notes its *name* in *read* when it is read for its maximum."""

    read: list[str]
    name: str

    def max(self, *_: object, **__: object) -> float:  # type: ignore[override]
        self.read.append(self.name)
        return 0


def test_arrays_that_equations_before_have_written_are_read_after_others(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def watched(name: str, *shape: int) -> Watched:
        array = aligned_empty(shape).view(Watched)
        array.read, array.name = read, name
        return array

    scope = (
        parse("tensor A[4]\ntensor B[1048576, 4] weight\nY[n:1048576] = sum[k:4] A[k] * B[n, k]").equations[-1].scope
    )
    arrays = {"A": watched("A", 4), "B": watched("B", 1 << 20, 4)}
    bound = BoundEquation(Equation("Y", scope), arrays, watched("Y", 1 << 20), constants={"B": arrays["B"]})
    monkeypatch.setattr(
        implementation_choice.measurement, "displacing_read", lambda _: lambda: read.append("other memory")
    )
    displace = implementation_choice.constants_displacer(bound, watched("Z", 4))
    assert displace is not None
    displace()
    assert read == ["other memory", "Y", "Z", "A"]


def test_another_version_of_the_c_kernel_is_compared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Zeros(Fake):
        def bind(self, arrays: Mapping[str, np.ndarray], out: np.ndarray) -> Callable[[], object]:
            self.bound.append("bound")
            return lambda: out.fill(0)

    store, times = (
        TimeStore(tmp_path / "profiles.sqlite"),
        {"tvm": 0.002, "best": 0.002, C_ENGINE: 0.0002},
    )
    monkeypatch.setattr(
        implementation_choice, "time_implementations", lambda calls, *_: {name: times[name] for name in calls}
    )

    def choices() -> list[tuple[str, list[bool]]]:
        """Return the selected implementation and the implementations that were run for it, twice."""
        found = []
        for ways in ([Zeros("tvm"), Zeros(C_ENGINE)] for _ in range(2)):
            found.append((choose(ways, store).engine, [bool(way.bound) for way in ways]))
        return found

    assert choices() == [(C_ENGINE, [True, True]), (C_ENGINE, [False, False])]
    monkeypatch.setattr(versions, "C_KERNEL_VERSION", "another")
    times[C_ENGINE] = 0.02
    assert choices() == [("tvm", [True, True]), ("tvm", [False, False])]


def test_missing_c_kernel_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Refusing(Fake):
        error: type[BackendError] = NoKernel

        def bind(self, arrays: Mapping[str, np.ndarray], out: np.ndarray) -> Callable[[], object]:
            self.bound.append("bound")
            raise self.error("no kernel")

    def asked(error: type[BackendError], store: TimeStore) -> bool:
        ways = [Fake("tvm"), Refusing(C_ENGINE, error=error)]
        assert choose(ways, store) is ways[0]
        return bool(ways[1].bound)

    monkeypatch.setattr(implementation_choice, "time_implementations", lambda calls, *_: dict.fromkeys(calls, 0.002))
    store, other = TimeStore(tmp_path / "profiles.sqlite"), TimeStore(tmp_path / "other.sqlite")
    assert [asked(NoKernel, store) for _ in range(2)] == [True, False]
    assert store.lookup()(EQUATION) == 0.002
    assert [asked(BackendError, other) for _ in range(2)] == [True, True]  # a compiler may be there next time
    monkeypatch.setattr(versions, "C_KERNEL_VERSION", "another")
    assert asked(NoKernel, store)


def test_single_implementation_is_not_measured(tmp_path: Path) -> None:
    store = TimeStore(tmp_path / "profiles.sqlite")
    only = Fake("only")
    assert choose([only], store) is only
    assert store.get(replace(profile_key(EQUATION), engine="only")) is None


def test_implementations_after_a_tiled_kernel_are_not_created(tmp_path: Path) -> None:
    def ways() -> list[Fake]:
        yield Fake("onnxruntime", 0.004)
        yield Fake("tiled", 0.001)
        raise AssertionError("a plain kernel was made")

    assert choose(ways(), TimeStore(tmp_path / "profiles.sqlite")).engine == "tiled"  # type: ignore[arg-type]


def test_inputs_are_filled_and_constants_are_unchanged(tmp_path: Path) -> None:
    given = arrays()
    choose([Fake("one"), Fake("two")], TimeStore(tmp_path / "profiles.sqlite"), given)
    assert not np.any(given["B"])
    assert np.all(given["A"])


def test_constant_operands_make_another_key() -> None:
    unknown = Equation(
        "Y", parse("tensor A[4, 4]\ntensor B[4, 4]\nY[m:4, n:4] = sum[k:4] A[m, k] * B[k, n]").equations[-1].scope
    )
    assert (
        profile_key(EQUATION)
        == profile_key(unknown, constant={"B"})
        != profile_key(unknown)
        != profile_key(unknown, constant={"A"})
    )


def test_cost_model_uses_the_fastest_stored_time(tmp_path: Path) -> None:
    store = TimeStore(tmp_path / "profiles.sqlite")
    assert store.lookup()(EQUATION) is None
    for engine, seconds in (("a", 0.5), ("b", 0.25)):
        store.record(replace(profile_key(EQUATION), engine=engine), seconds, "measured")
    assert store.lookup()(EQUATION) == 0.25
    assert store.lookup(2)(EQUATION) is None
    store.record(profile_key(EQUATION), 0.3, "measured")  # the equation as it is run goes before its engines alone
    assert store.lookup()(EQUATION) == 0.3


def test_store_in_memory_returns_recorded_times(tmp_path: Path) -> None:
    (tmp_path / "profiles.sqlite").write_bytes(b"no database" * 100)
    store = TimeStore(tmp_path / "profiles.sqlite")
    with pytest.warns(RuntimeWarning, match="kept in memory"):
        store.record(replace(profile_key(EQUATION), engine="a"), 0.5, "measured")
    assert store.lookup()(EQUATION) == 0.5


def test_programs_agree_whatever_engine_is_chosen(tmp_path: Path) -> None:
    operator = next(o for o in OPERATORS if o.name == "Conv2d")
    sizes = {"n": 1, "f": 3, "h": 12, "w": 16, "c": 5, "r": 3, "s": 3, "H": 12, "W": 16}
    sizes |= {f"{name}{axis}": 1 for name in "sdp" for axis in "hw"}
    scope = operator.instantiate(sizes)
    made = program(scope)
    made = replace(made, equations=(replace(made.equations[0], via=operator.instance(sizes)),))
    rng = np.random.default_rng(0)
    given = {t.name: rng.integers(-3, 4, t.shape).astype(np.float32) for t in made.inputs}
    constants = {"K": given.pop("K")}
    store = TimeStore(tmp_path / "profiles.sqlite")
    results = []
    for engine in ("onnxruntime", "tiled"):
        key = profile_key(made.equations[0], constant=constants)
        for other in ("onnxruntime", "tiled", "tvm"):
            store.record(replace(key, engine=other), 1.0 if other == engine else 2.0, "measured")
        compiled = compile_program(made, constants=constants, choose=implementation_choice.chooser(store))
        assert compiled.engines == {"Y": engine}
        results.append(compiled.run(given)["Y"])
    np.testing.assert_array_equal(*results)


def test_long_text_is_refused_before_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = parse("tensor A[3, 17]\nY[i:3] = sum[j:17] A[i, j] * 0.172").equations[0].scope
    monkeypatch.setattr(c_kernels, "MAX_TEXT_BYTES", 100)
    with pytest.raises(NoKernel, match=r"found a text of \d+ bytes, expected at most 100"):
        _ = c_kernels.NativeSource(scope).function


def test_loops_over_padding_are_no_implementation_of_a_transposed_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"w": np.ones((24, 24, 2, 2), np.float32)}
    upsampled = build(
        [node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])], {"x": [1, 24, 32, 32]}, ["y"], weights
    )
    (found,) = partition(load_model(upsampled)).subprograms
    (equation,) = found.anonymous.program.equations
    given = {t.name: aligned_empty(t.shape) for t in tensors(equation.scope)}
    weight = {t.name: given[t.name] for t in found.anonymous.program.inputs if t.weight}
    bound = BoundEquation(equation, given, aligned_empty(equation.scope.shape), constants=weight)

    def engines() -> set[str]:
        return {each.engine for each in implementations_of(bound)}

    assert engines() == {"tiled"}
    monkeypatch.setattr(implementations, "MAX_VISITED_RATIO", 32**2)
    assert engines() == {"tvm", "tiled"}


def test_a_long_call_that_is_much_slower_than_another_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"fast": 1e-3, "slow": 1.0}
    runs: list[str] = []
    monkeypatch.setattr(measurement, "own_seconds", lambda call, repeats: seconds[call()])
    calls = {name: (lambda name=name: runs.append(name) or name) for name in seconds}
    assert implementation_choice.time_implementations(calls, 1) == seconds
    assert runs.count("slow") == 1 and runs.count("fast") > 3
