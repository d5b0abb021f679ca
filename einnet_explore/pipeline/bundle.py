"""Bundles: a plan in a folder that ONNX Runtime runs without this package.

A bundle is a model of standard operators and of one custom operator, a library with the kernels and the registration of
the operator, a manifest, the certificates of the plan's derivations, and a page that says how to use it.  Groups of
nodes that no session can run stay as they were in the original model; the manifest names them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

import onnx

from einnet_explore.onnx_import.model import Model, ModelValue
from einnet_explore.pipeline.plan import ExecutionPlan, PlanModel
from einnet_explore.runtime.compiled import c_compiler
from einnet_explore.runtime.onnx_fragment import API_VERSION, DOMAIN, INSTRUCTION_SETS, LibraryKernels
from einnet_explore.runtime.profile_store import package_version
from einnet_explore.strategies.candidate import save_record
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.support.json_values import JsonObject, as_object

FORMAT, VERSION = "einnet-explore bundle", 1

PLATFORM = "linux-x86_64"
"""The platform of the instruction sets and of the library's form."""

MODEL, LIBRARY, MANIFEST, README, CERTIFICATES = (
    "model.onnx", "kernels.so", "manifest.json", "README.md", "certificates",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BundleFacts:
    """The numerics level of a plan, its largest error relative to the largest output, and records of derivations."""

    numerics: str
    error: float
    records: Mapping[str, JsonObject]


def check_bundle_folder(path: str | Path) -> None:
    """Raise OSError or Refused if no bundle can be written to *path*, which has to be new, empty, or only a bundle.

    Raises Refused on another platform, and BackendError if there is no C compiler.
    """
    folder = Path(path).resolve()
    if _platform() != PLATFORM:
        raise Refused(f"found {_platform()}, expected {PLATFORM}: bundles are not written elsewhere")
    if not c_compiler():
        raise BackendError("no C compiler was found: a bundle needs cc, gcc or clang")
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not os.access(next(parent for parent in folder.parents if parent.exists()), os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    known = _bundle_files(folder)
    if others := [name for name in _names(folder) if name not in known]:
        raise Refused(f"{path}: found {others[0]}, expected a new folder, an empty one, or only a bundle")


def _names(folder: Path) -> Iterable[str]:
    """The files in *folder* and below it, sorted."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir())


def _bundle_files(folder: Path) -> Collection[str]:
    """Return the names of the files of the bundle in *folder*; empty if there is none."""
    try:
        manifest = as_object(json.loads((folder / MANIFEST).read_text()))
        return {MANIFEST, *as_object(manifest["files"])} if manifest["format"] == FORMAT else ()
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def write_bundle(path: str | Path, model: Model, plan: ExecutionPlan, facts: BundleFacts) -> None:
    """Write *plan*, which runs *model*, as a bundle to the folder *path*, whole or not at all.

    Raises Refused if the model is larger than 2 GiB, BackendError if the kernels cannot be compiled, and as
    ``check_bundle_folder`` does.
    """
    check_bundle_folder(path)
    folder = Path(path).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    kernels = LibraryKernels()
    made = plan.model_with(kernels)
    if made.proto.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        raise Refused(f"the model has {made.proto.ByteSize()} bytes, expected at most {onnx.checker.MAXIMUM_PROTOBUF}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name[:40]}-") as aside:
        new = Path(aside) / "new"
        (new / CERTIFICATES).mkdir(parents=True)
        (new / MODEL).write_bytes(made.proto.SerializeToString(deterministic=True))
        kernels.write(new / LIBRARY)
        for name, record in facts.records.items():
            save_record(new / CERTIFICATES / f"{name}.json", record)
        (new / README).write_text(_readme(model, made.proto))
        save_record(new / MANIFEST, _manifest(new, model, plan, made, kernels, facts))
        if folder.exists():
            folder.rename(Path(aside) / "old")
        new.rename(folder)


def _manifest(
    folder: Path, model: Model, plan: ExecutionPlan, made: PlanModel, kernels: LibraryKernels, facts: BundleFacts
) -> JsonObject:
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_by": {
            "einnet-explore": package_version("einnet-explore"),
            "apache-tvm": package_version("apache-tvm"),
            "c_compiler": c_compiler(),
        },
        "onnxruntime_api": API_VERSION,
        "opsets": _opsets(made.proto),
        "platform": _platform(),
        "instruction_sets": list(INSTRUCTION_SETS),
        "threads": plan.threads,
        "inputs": [_value(value) for value in model.inputs],
        "outputs": [_value(value) for value in model.outputs],
        "kernels": [
            {"number": number, "compiler": kernel.compiler, "shapes": [list(shape) for shape in kernel.shapes]}
            for number, kernel in kernels.kernels.items()
        ],
        "original_nodes": [{"nodes": list(nodes), "why": why} for nodes, why in made.stay.items()],
        "numerics": facts.numerics,
        "max_rel_error": float(f"{facts.error:.1e}"),
        "files": {name: _file_entry(folder / name) for name in _names(folder)},
    }


def _value(value: ModelValue) -> JsonObject:
    shape = None if value.shape is None else list(value.shape)
    return {"name": value.name, "type": str(value.dtype), "shape": shape}


def _file_entry(file: Path) -> JsonObject:
    content = file.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


_README = Template("""\
# An optimised model for ONNX Runtime

$content Both need ONNX Runtime 1.$api or newer with operator set $opset,
on $platform, and nothing else. `manifest.json` lists inputs, outputs, instruction sets, hashes of the files, and the
largest error; `certificates` has the derivations. Paths are relative to this folder; a path without `/` would not find
the library.

## Python
```python
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library("./kernels.so")
session = onnxruntime.InferenceSession("./model.onnx", options, providers=["CPUExecutionProvider"])
outputs = session.run(None, {$feeds})
```

## C++
```cpp
Ort::Env env; Ort::SessionOptions options;
options.RegisterCustomOpsLibrary(ORT_TSTR("./kernels.so"));
Ort::Session session(env, ORT_TSTR("./model.onnx"), options);
const char *inputs[] = {$inputs}, *outputs[] = {$outputs};
auto results = session.Run(Ort::RunOptions{}, inputs, values.data(), values.size(), outputs, $count);
```
`values` is a `std::vector<Ort::Value>`, one for each input.

## C#
```csharp
using var options = new SessionOptions();
options.RegisterCustomOpLibrary("./kernels.so");
using var session = new InferenceSession("./model.onnx", options);
var inputs = new List<NamedOnnxValue> { $tensors };
using var results = session.Run(inputs);
```
`values` holds a `DenseTensor` for each input.
""")


def _opsets(proto: onnx.ModelProto) -> dict[str, int]:
    return {opset.domain or "ai.onnx": opset.version for opset in proto.opset_import}


def _readme(model: Model, proto: onnx.ModelProto) -> str:
    """Return the page of a bundle of *model*, written as *proto*: five lines for each language."""
    names = [json.dumps(value.name) for value in model.inputs]
    shapes = [f"numpy.zeros({value.shape}, {str(value.dtype)!r})" for value in model.inputs]
    needs_library = any(opset.domain == DOMAIN for opset in proto.opset_import)
    return _README.substitute(
        content="`model.onnx` needs the custom operator in `kernels.so`."
        if needs_library
        else "No kernel is faster than the original: `model.onnx` runs without `kernels.so`, which is empty.",
        api=API_VERSION,
        opset=_opsets(proto)["ai.onnx"],
        platform=_platform(),
        feeds=", ".join(f"{name}: {shape}" for name, shape in zip(names, shapes, strict=True)),
        inputs=", ".join(names),
        outputs=", ".join(json.dumps(value.name) for value in model.outputs),
        count=len(model.outputs),
        tensors=", ".join(f"NamedOnnxValue.CreateFromTensor({name}, values[{n}])" for n, name in enumerate(names)),
    )


def _platform() -> str:
    return f"{platform.system().lower()}-{platform.machine()}"
