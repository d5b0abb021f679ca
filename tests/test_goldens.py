"""Goldens: outward behaviour that a change of the modules inside must leave alone.

Each test compares plain JSON values with ``tests/goldens/NAME.json``.  ``pytest tests/test_goldens.py
--snapshot-update`` writes these files anew, the saved records among them: read the difference before it is committed.
Wording (help, reasons, titles) is not part of them, times neither.  Modules are imported by public names only, but for
those in the block below.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_building import build, node

import einnet_explore as ee
from einnet_explore.cli import main
from einnet_explore.codegen import register_tiles
from einnet_explore.pipeline import selection, tuning_task

# Internal names, here only.
from einnet_explore.rules import FEWER_PRODUCTS, IDENTITIES, INTER_RULES, POST_RULES
from einnet_explore.runtime import measurement
from einnet_explore.runtime.profile_store import StoredTime, TimeStore

GOLDENS = Path(__file__).with_name("goldens")
PROSE = frozenset(("why", "says", "detail", "law"))
"""Keys of sentences, whose wording is free."""

Pinned = Callable[[str, Any], None]


@pytest.fixture
def pinned(request: pytest.FixtureRequest) -> Pinned:
    """Compare a value with the golden file of a name, or write it."""
    update = request.config.getoption("update_snapshots")

    def compare(name: str, value: Any) -> None:
        path = GOLDENS / f"{name}.json"
        found = json.loads(json.dumps(value))
        if update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        assert found == json.loads(path.read_text(encoding="utf-8"))

    return compare


def without(keys: Iterable[str], value: Any) -> Any:
    """*value* with what stands under *keys* replaced by its type."""
    match value:
        case dict():
            return {k: type(v).__name__ if k in keys else without(keys, v) for k, v in value.items()}
        case list() | tuple():
            return [without(keys, v) for v in value]
        case _:
            return value


def schema(value: Any) -> Any:
    """The keys and types of a JSON document; the elements of a list as the set of theirs."""
    match value:
        case dict():
            return {k: schema(v) for k, v in value.items()}
        case list():
            return [json.loads(s) for s in sorted({json.dumps(schema(v), sort_keys=True) for v in value})]
        case _:
            return type(value).__name__


# ---------------------------------------------------------------------------------------------------------------- API


class Shown(str):
    """Text that is shown without quotes where a value is."""

    def __repr__(self) -> str:
        return str(self)


def written(annotation: Any) -> Any:
    """*annotation* as written, without the modules of its names."""
    if annotation is inspect.Parameter.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return Shown(re.sub(r"\b(?:\w+\.)+(?=\w)", "", text))


def default(value: Any) -> Any:
    """A default value by its names: the addresses and modules of what it holds say nothing."""
    match value:
        case inspect.Parameter.empty | None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return type(value)(map(default, value))
        case set() | frozenset():
            return Shown(f"{{{', '.join(sorted(repr(default(v)) for v in value))}}}")
        case dict():
            return {k: default(v) for k, v in value.items()}
        case _:
            return Shown(getattr(value, "name", getattr(value, "__name__", type(value).__name__)))


def signature(call: Any) -> str:
    """The signature of *call*: names, kinds, defaults, annotations."""
    try:
        found = inspect.signature(call)
    except ValueError:
        return "(...)"
    parameters = [
        p.replace(annotation=written(p.annotation), default=default(p.default)) for p in found.parameters.values()
    ]
    return str(found.replace(parameters=parameters, return_annotation=written(found.return_annotation)))


def members(cls: type) -> dict[str, str]:
    """The public attributes of *cls* that this package defines, and how each is called."""
    found = dict[str, str]()
    for name in sorted(dir(cls)):
        home = next(c for c in cls.__mro__ if name in vars(c))
        if name.startswith("_") or not home.__module__.startswith("einnet"):
            continue
        match inspect.getattr_static(cls, name):
            case property(fget=get):
                found[name] = f"property {signature(get)}"
            case functools.cached_property(func=get):
                found[name] = f"property {signature(get)}"
            case classmethod() | staticmethod() as made:
                found[name] = f"{type(made).__name__} {signature(getattr(cls, name))}"
            case held if inspect.isfunction(held):
                found[name] = f"method {signature(held)}"
            case _:
                found[name] = "value"
    return found


def described(value: Any) -> Any:
    """Describe a public name and how it is used."""
    match value:
        case type():
            return {"kind": "class", "signature": signature(value), "members": members(value)}
        case _ if callable(value):
            return {"kind": "function", "signature": signature(value)}
        case tuple():
            return {"kind": "tuple", "names": [each.name for each in value]}
        case _:
            return {"kind": type(value).__name__}


def test_public_names_are_called_as_before(pinned: Pinned) -> None:
    pinned("api", {name: described(getattr(ee, name)) for name in sorted(ee.__all__)})


def test_operator_expressions_are_called_as_before(pinned: Pinned) -> None:
    calls = {n: v for n, v in vars(ee.ops).items() if inspect.isfunction(v) and v.__module__ == ee.ops.__name__}
    pinned("ops", {name: signature(call) for name, call in sorted(calls.items()) if not name.startswith("_")})


def test_rules_and_operators_keep_their_names(pinned: Pinned) -> None:
    groups = {
        "RULES": ee.RULES, "OPERATORS": ee.OPERATORS, "FEWER_PRODUCTS": FEWER_PRODUCTS, "IDENTITIES": IDENTITIES,
        "INTER_RULES": INTER_RULES, "POST_RULES": POST_RULES,
    }  # fmt: skip
    pinned("names", {group: [each.name for each in values] for group, values in groups.items()})


def test_results_of_public_calls_keep_their_members(pinned: Pinned) -> None:
    conv = ee.ops.conv2d(**SMALL)
    run = ee.search(conv, target="Matmul", max_depth=0)
    assert run.best is not None
    returned = {
        "parse": conv, "search": run, "search.best": run.best, "search.best.derivation": run.best.derivation,
        "search.table": run.table(), "graph": ee.graph(conv), "explore.rules": ee.explore(conv).rules(at="0")[0],
    }  # fmt: skip
    pinned("returned", {call: members(type(value)) for call, value in returned.items()})


# ----------------------------------------------------------------------------------------------------------- commands


class Caught(Exception):
    """The parser that a command line was given to."""


def commands(parser: argparse.ArgumentParser) -> Any:
    """The options of *parser* and of its subcommands."""
    options = list[dict[str, Any]]()
    below = dict[str, Any]()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = {name: commands(each) for name, each in action.choices.items()}
        elif not isinstance(action, argparse._HelpAction):
            options.append(
                {
                    "options": action.option_strings,
                    "name": action.dest,
                    "nargs": action.nargs,
                    "required": action.required,
                    "default": action.default,
                    "choices": action.choices and list(action.choices),
                    "repeatable": isinstance(action, argparse._AppendAction),
                }
            )
    exclusive = [[a.dest for a in group._group_actions] for group in parser._mutually_exclusive_groups]
    return {"options": options, "exclusive": exclusive, "commands": below}


def test_commands_and_options_are_unchanged(pinned: Pinned, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(self: argparse.ArgumentParser, *_: Any, **__: Any) -> Any:
        raise Caught(self)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    with pytest.raises(Caught) as caught:
        main(["show"])
    pinned("commands", commands(caught.value.args[0]))


SMALL = {"N": 1, "H": 5, "W": 6, "C": 3, "F": 4, "R": 3, "S": 3, "padding": 1}
PROGRAMS: dict[str, Callable[[], Any]] = {
    "conv3x3": lambda: ee.ops.conv2d(**SMALL),
    "conv_transpose": lambda: ee.ops.conv_transpose2d(
        N=1, H=2, W=3, in_channels=4, out_channels=3, R=4, S=4, stride=2, padding=1
    ),
    "g2bmm": lambda: ee.ops.g2bmm(b=2, m=8, w=2, k=4, dilation=2),
    "matmul": lambda: ee.ops.matmul(4, 5, 6),
    "depthwise": lambda: ee.ops.depthwise_conv2d(N=1, H=5, W=6, C=3, R=3, S=3, padding=1),
    "max_pool": lambda: ee.ops.max_pool2d(N=1, C=2, H=6, W=6, R=2, S=2, stride=2),
}
TEXTS = {
    "softmax": """\
tensor X[4, 7]
M[i:4] = max[j:7] X[i, j]
E[i:4, j:7] = exp(X[i, j]-M[i])
S[i:4] = sum[j:7] E[i, j]
Y[i:4, j:7] = E[i, j] / S[i]
""",
    "two_layers": """\
tensor A[6, 5]
tensor B[5, 4] weight
tensor C[4, 3] weight
T[i:6, k:4] = sum[j:5] A[i, j] * B[j, k]
U[i:6, k:4] = relu(T[i, k])
Y[i:6, l:3] = sum[k:4] U[i, k] * C[k, l]
""",
}


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, which is the current one, with a case of every program."""
    monkeypatch.chdir(tmp_path)
    for name, make in PROGRAMS.items():
        Path(f"{name}.ein").write_text(ee.text(make()))
    for name, text in TEXTS.items():
        Path(f"{name}.ein").write_text(text)
    Path("wrong.ein").write_text("tensor A[3")
    Path("wrong.json").write_text("{}")
    return tmp_path


def code(argv: list[str]) -> int:
    try:
        return main(argv)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_exit_codes_are_unchanged(cases: Path, pinned: Pinned, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (
        "", "nothing", "--version", "models list", "models write nothing -o x.onnx", "reproduce e9",
        "show", "show conv3x3.ein", "show none.ein", "show wrong.ein", "show wrong.json",
        "show conv3x3.ein --latex --text", "show conv3x3.ein --svg conv.svg",
        "rules conv3x3.ein", "rules conv3x3.ein --at 0", "rules conv3x3.ein --at 7.7",
        "derive conv3x3.ein --max-depth 0", "derive conv3x3.ein --max-depth -1", "derive conv3x3.ein --target Nothing",
        "derive conv3x3.ein --strategy none", "derive conv3x3.ein --limit-states 0",
        "derive softmax.ein --max-depth 0 --target G2BMM",
        "derive conv3x3.ein --target Matmul --max-depth 0 --save best.json",
        "check best.json", "check best.json --modular", "check wrong.json", "check none.json", "check broken.json",
        "sweep matmul.ein wrong.ein --max-depth 0", "grad matmul.ein", "grad matmul.ein --wrt Nothing",
        "fuse two_layers.ein", "optimize none.onnx", "bench conv3x3.ein --against nothing", "family matmul.ein",
    )  # fmt: skip
    found = dict[str, Any]()
    for line in lines:
        if line == "check broken.json":
            record = json.loads(Path("best.json").read_text())
            record["steps"][-1]["after"] = record["steps"][-1]["after"].replace("k % 3] via eOp", "0] via eOp")
            Path("broken.json").write_text(json.dumps(record))
        returned = code(line.split())
        shown = capsys.readouterr()
        found[line] = {"code": returned, "out": bool(shown.out), "err": shown.err.count("\n")}
    pinned("exit_codes", found)


def document(argv: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """The JSON of a command, and its exit code."""
    capsys.readouterr()
    returned = code([*argv.split(), "--json", "-"])
    return {"code": returned, "json": json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("rules", "rules conv3x3.ein"),
        ("rules_softmax", "rules softmax.ein"),
        ("grad", "grad conv3x3.ein"),
        ("derive_matmul", "derive matmul.ein --limit-states 60"),
        ("derive_conv3x3", "derive conv3x3.ein --target Matmul --max-depth 3 --limit-states 120"),
        ("derive_two_layers", "derive two_layers.ein --max-depth 2 --limit-states 40"),
    ],
)
def test_json_documents_are_unchanged(
    name: str, argv: str, cases: Path, pinned: Pinned, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned(f"documents/{name}", without({"seconds", *PROSE}, document(argv, capsys)))


@pytest.mark.parametrize("strategy", ["best_first", "paper"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("conv3x3", "conv3x3.ein --target Matmul --max-depth 3 --limit-states 300"),
        ("conv_transpose", "conv_transpose.ein --target Matmul --max-depth 3 --limit-states 120"),
        ("g2bmm", "g2bmm.ein --target G2BMM --max-depth 3 --limit-states 400"),
        ("depthwise", "depthwise.ein --max-depth 2 --limit-states 120"),
        ("no_fingerprint", "conv3x3.ein --target Matmul --max-depth 2 --limit-states 150 --no-fingerprint"),
        ("no_converging", "conv3x3.ein --target Matmul --max-depth 2 --limit-states 150 --no-converging"),
    ],
)
def test_searches_are_unchanged(
    name: str, options: str, strategy: str, cases: Path, pinned: Pinned, capsys: pytest.CaptureFixture[str]
) -> None:
    said = document(f"derive {options} --strategy {strategy}", capsys)["json"]
    found = without({"seconds"}, said)
    steps = [[step["rule"] for step in c["steps"]] for c in found["candidates"]]
    digest = hashlib.sha256(json.dumps(found["candidates"], sort_keys=True).encode()).hexdigest()
    counts = {k: v for k, v in found.items() if k != "candidates"}
    best = None if found["best"] is None else steps[found["best"]]
    pinned(f"searches/{name}_{strategy}", {**counts, "candidates": len(steps), "digest": digest, "best_steps": best})


# ---------------------------------------------------------------------------------------------------------- text forms


def test_text_and_latex_are_unchanged(pinned: Pinned) -> None:
    programs = {name: make() for name, make in PROGRAMS.items()} | {n: ee.parse(t) for n, t in TEXTS.items()}
    forms = dict[str, Any]()
    for name, program in programs.items():
        text = ee.text(program)
        assert ee.text(ee.parse(text)) == text and ee.parse(text) == program
        key = hashlib.sha256(repr(ee.program_key(program)).encode()).hexdigest()
        forms[name] = {"text": text, "latex": ee.latex(program), "seconds": ee.program_seconds(program), "key": key}
    pinned("forms", forms)


# -------------------------------------------------------------------------------------------------------------- records


@pytest.fixture
def saved(request: pytest.FixtureRequest, cases: Path) -> Path:
    """The folder of the saved files, made anew where the goldens are."""
    folder = GOLDENS / "saved"
    if request.config.getoption("update_snapshots"):
        folder.mkdir(exist_ok=True)
        options = ["--target", "ConvTranspose2d", "--max-depth", "1", "--limit-states", "12"]
        for name in ("record.json", "search.einx"):
            assert main(["derive", "conv_transpose.ein", *options, "--save", name]) == 0
            (folder / name).write_text(timeless(Path(name)))
        session = ee.explore(ee.parse(TEXTS["two_layers"]))
        session.apply("expression_fusion", at="1", tensor="T")
        session.goto(0)
        session.apply(next(m for m in session.rules(at="0") if m.rule.name == "operator_matching"))
        session.save(folder / "session.eins")
    return folder


def timeless(path: Path) -> str:
    """A saved file with the seconds that it took as 0, and a search without its limit of states."""
    data = json.loads(path.read_text())
    if path.suffix == ".einx":
        data |= {"seconds": 0.0, "most": None, "first_found": [0.0, data["first_found"][1]]}
        data["candidates"] = [{k: v for k, v in c.items() if k != "found"} for c in data["candidates"]]
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def resaved(path: Path, to: Path) -> Any:
    """Return the content of *path* after it was loaded and saved again."""
    loaded = ee.load(path)
    assert not isinstance(loaded, type(ee.ops.matmul(1, 1, 1)))
    loaded.save(to)
    return json.loads(to.read_text())


def test_a_record_is_replayed_and_checked(saved: Path, cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved / "record.json"
    derivation = ee.load(path)
    assert [c.kind for c in ee.check(derivation)] == ["proved"] * len(derivation.steps)
    command = [sys.executable, "-m", "einnet_check", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert document(f"check {path}", capsys)["json"]["kind"] == "proved"
    session = ee.Session.load(path)
    held = json.loads(path.read_text())
    again = session.record(held["case"])
    assert without(PROSE, again) == without(PROSE, {k: v for k, v in held.items() if k not in ("target", "strategy")})


@pytest.mark.parametrize("name", ["search.einx", "session.eins"])
def test_a_saved_search_or_session_is_loaded_and_saved_again(name: str, saved: Path, cases: Path) -> None:
    assert without({"why"}, resaved(saved / name, cases / name)) == without(
        {"why"}, json.loads((saved / name).read_text())
    )


def test_saved_search_continues_like_a_new_one(saved: Path) -> None:
    old = ee.load(saved / "search.einx")
    new = ee.search(PROGRAMS["conv_transpose"](), target="ConvTranspose2d", max_depth=1)
    before = old.report()["states"]
    old.finish()
    assert before < old.report()["states"]
    assert without({"seconds"}, old.report()) == without({"seconds"}, new.report())


# ---------------------------------------------------------------------------------------------------------- selections


def models() -> dict[str, onnx.ModelProto]:
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    doubled = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    single = [node("ConvTranspose", ["x", "k0"], ["a"], **doubled), node("Relu", ["a"], ["y"])]
    two = [
        node("ConvTranspose", ["x", "k0"], ["a"], **doubled),
        node("Relu", ["a"], ["r"]),
        node("Flatten", ["r"], ["b"]),
        node("MatMul", ["b", "m"], ["y"]),
    ]
    return {
        "single": build(single, {"x": [1, 12, 3, 5]}, ["y"], {"k0": weight(12, 3, 4, 4)}),
        "two": build(two, {"x": [1, 6, 6, 5]}, ["y"], {"k0": weight(6, 3, 4, 4), "m": weight(360, 7)}),
    }


LOT = 2
"""Another number, other draws: this one keeps some parts and gives others back."""


def by_lot(folder: str, commands: Mapping[str, str]) -> None:
    """Run *commands* in this process, every time drawn by lot: the same on every machine.  NAME.json is the document.

    Each measurement is a draw by its number among those of the same calls; library calls are always the fastest engine.
    """
    drawn = Counter[str]()

    def seconds(*of: object) -> float:
        digest = hashlib.sha256(" ".join(map(str, of)).encode()).digest()
        return 1e-4 * (0.5 + 0.6 * int.from_bytes(digest[:2], "big") / 65536)

    def sampled(samplers: Mapping[str, Callable[[int], float]], rounds: int = 15, *_: Any, **__: Any) -> Any:
        kind = "/".join(n for n in samplers if not n.isdigit())
        drawn[kind] += 1
        for sample in samplers.values():
            sample(1)
        first = next(iter(samplers))
        times = {name: 1e-4 if name == first else seconds(LOT, kind, drawn[kind], name) for name in samplers}
        return {name: measurement.Timing(t, 0.0, rounds, (t,) * rounds) for name, t in times.items()}

    known = TimeStore.get

    def get(self: TimeStore, key: Any) -> Any:
        if not key.engine or key.operator.startswith(("program", "onnxruntime")):
            return known(self, key)
        return StoredTime(1e-6 if key.engine == "onnxruntime" else 2e-6, "by lot")

    def sample(*_: object) -> float:
        drawn["sample"] += 1
        return seconds(LOT, "sample", drawn["sample"])

    measurement.time_samplers, TimeStore.get = sampled, get  # type: ignore[method-assign]
    tuning_task.sample_seconds = selection.sample_seconds = sample  # type: ignore[attr-defined]
    tuning_task.session_overhead = lambda _: 0.0  # type: ignore[attr-defined, assignment]
    tuning_task.available_cores = lambda: 2  # type: ignore[attr-defined]
    selection.installed_hosts = tuple
    register_tiles.cpu_flags, register_tiles._cache_bytes = frozenset, lambda level: None  # the default machine
    os.chdir(folder)
    for name, proto in models().items():
        onnx.save(proto, f"{name}.onnx")
    for name, line in commands.items():
        drawn.clear()
        assert main([*line.split(), "--json", f"{name}.json"]) == 0, line


def test_selections_by_random_times_are_unchanged(cases: Path, pinned: Pinned) -> None:
    searched = "--threads 1 --max-depth 3 --limit-states 40"
    commands = {
        "plan": f"optimize single.onnx {searched} -o fast.onnx --certificates records",
        "onnxruntime": f"optimize two.onnx {searched} --target-runtime onnxruntime",
        "bench": "bench matmul.ein --threads 1 --rounds 1 --budget 0.1 --against numpy",
    }
    run = f"import test_goldens; test_goldens.by_lot({str(cases)!r}, {commands!r})"
    root = Path(__file__).parents[1]
    paths = [str(Path(__file__).parent), str(root), str(root / "widgets")]
    environment = os.environ | {"EINNET_EXPLORE_CACHE": str(cases / "cache"), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = {name: json.loads(Path(f"{name}.json").read_text()) for name in commands}
    machine = {"search_seconds", "progress", "max_abs_error", "max_rel_error", "numerics", *PROSE}
    pinned("selections", {name: without(machine, found[name]) for name in commands if name != "bench"})
    pinned("schemas", {name: schema(document) for name, document in found.items()})
    for record in sorted(Path("records").iterdir()):
        command = [sys.executable, "-m", "einnet_check", str(record)]
        assert subprocess.run(command, capture_output=True, check=False, env=environment).returncode == 0
