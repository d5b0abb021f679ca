"""Bundles: plans in a folder that ONNX Runtime runs without this package.

A bundle is a model of standard operators and of one custom operator, its large weights, a library with the kernels and
the registration of the operator, a manifest, the certificates of the plans' derivations, and a page that says how to
use it.  Groups of nodes that no session can run stay as they were in the original model; the manifest names them.
Sizes that were dynamic stay dynamic: no plan is made for other sizes, so the original operators run them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import onnx
from onnx import external_data_helper, numpy_helper

from einnet_explore.checker.bundle import FORMAT, MANIFEST, VERSION
from einnet_explore.onnx_import.model import Model, ModelValue, Shape, walk_graphs
from einnet_explore.onnx_import.size_ranges import describe_sizes
from einnet_explore.pipeline.plan import ExecutionPlan, PlanModel
from einnet_explore.pipeline.size_dispatch import Chunking, dispatch_sizes, with_declared_sizes
from einnet_explore.runtime.compiled import c_compiler
from einnet_explore.runtime.onnx_fragment import API_VERSION, INSTRUCTION_SETS, LibraryKernels
from einnet_explore.runtime.onnx_weights import DOMAIN
from einnet_explore.runtime.profile_store import package_version
from einnet_explore.strategies.candidate import save_record, save_records
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.support.json_values import JsonObject, as_object
from einnet_explore.support.version import PACKAGE_VERSION
from einnet_explore.support.wording import count_noun

PLATFORM = "linux-x86_64"
"""The platform of the instruction sets and of the library's form."""

MODEL, WEIGHTS, LIBRARY, README, CERTIFICATES = (
    "model.onnx", "weights.bin", "kernels.so", "README.md", "certificates",
)  # fmt: skip

MIN_MOVED_BYTES = 1 << 16
"""Bytes of a weight from which on it is stored in the file of the weights."""

WEIGHT_ALIGNMENT_BYTES = 4096
"""Every weight in that file begins at a multiple of this, the size of a page."""


@dataclass(frozen=True, kw_only=True)
class BundledPlan:
    """A *plan* of *model*, with its numerics level, its largest error relative to the largest output, and records.

    *records* are those of its derivations, by name.
    """

    model: Model
    plan: ExecutionPlan
    numerics: str
    error: float
    records: Mapping[str, JsonObject]

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of the inputs for which the plan was made."""
        return {value.name: self.model.shape(value.name) for value in self.model.inputs}


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


def write_bundle(path: str | Path, *plans: BundledPlan, chunkings: Sequence[Chunking] = ()) -> None:
    """Write *plans* of one model as a bundle to the folder *path*, whole or not at all.

    Each plan runs the sizes for which it was made; sizes of *chunkings* run in chunks by them.  If the model has
    dynamic sizes, its operators run all others.

    Raises Refused for plans of several models or of equal sizes, and if the model without its weights is larger than
    2 GiB; BackendError if the kernels cannot be compiled; and as ``check_bundle_folder`` does.
    """
    check_bundle_folder(path)
    folder = Path(path).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    kernels = LibraryKernels()
    made = [each.plan.model_with(kernels) for each in plans]
    proto, why_fixed = _join_plans(plans, made, chunkings)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name[:40]}-") as aside:
        new = Path(aside) / "new"
        new.mkdir()
        _move_weights(proto, new / WEIGHTS)
        if proto.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
            raise Refused(
                f"the model has {proto.ByteSize()} bytes without its weights, expected at most "
                f"{onnx.checker.MAXIMUM_PROTOBUF}"
            )
        (new / MODEL).write_bytes(proto.SerializeToString(deterministic=True))
        kernels.write(new / LIBRARY)
        for where, each in zip(_certificate_folders(plans), plans, strict=True):
            (new / where).mkdir(parents=True)
            save_records(new / where, each.records)
        (new / README).write_text(_readme(plans, proto, chunkings))
        save_record(new / MANIFEST, _manifest(new, plans, made, proto, kernels, why_fixed, chunkings))
        if folder.exists():
            folder.rename(Path(aside) / "old")
        new.rename(folder)


def _join_plans(
    plans: Sequence[BundledPlan], made: Sequence[PlanModel], chunkings: Sequence[Chunking]
) -> tuple[onnx.ModelProto, str]:
    """Return the model of all *plans*, and why its sizes are fixed if those of the original are not."""
    model = plans[0].model
    if (
        len(plans) > 1
        and len({with_declared_sizes(each.model).SerializeToString(deterministic=True) for each in plans}) > 1
    ):
        raise Refused("found plans of several models, expected plans of one model")
    if len({tuple(each.shapes.values()) for each in plans}) < len(plans):
        raise Refused(f"found two plans for inputs of the same shapes, expected one for each: {plans[0].shapes}")
    if not model.dynamic:
        return made[0].whole, ""
    branches = [
        (each.shapes, one.whole)
        for each, one in zip(plans, made, strict=True)
        if one.proto is not each.model.original_proto
    ]
    try:
        return dispatch_sizes(model, branches, chunkings), ""
    except Refused as why:
        if len(plans) > 1:
            raise
        return made[0].whole, str(why)


def _move_weights(proto: onnx.ModelProto, file: Path) -> None:
    """Move the large weights of *proto* to *file*, which sessions map into memory; equal ones are stored once."""
    places: dict[bytes, int] = {}
    with file.open("wb") as out:
        for tensor in (tensor for graph in walk_graphs(proto.graph) for tensor in graph.initializer):
            if tensor.data_type == onnx.TensorProto.STRING or tensor.ByteSize() < MIN_MOVED_BYTES:
                continue
            if not tensor.HasField("raw_data"):
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
            digest = hashlib.sha256(tensor.raw_data).digest()
            if digest not in places:
                out.write(bytes(-out.tell() % WEIGHT_ALIGNMENT_BYTES))
                places[digest] = out.tell()
                out.write(tensor.raw_data)
            external_data_helper.set_external_data(tensor, WEIGHTS, offset=places[digest], length=len(tensor.raw_data))
            tensor.ClearField("raw_data")
    if not places:
        file.unlink()


def _certificate_folders(plans: Sequence[BundledPlan]) -> Iterable[str]:
    """Return the folder of the certificates of each plan."""
    return [f"{CERTIFICATES}/{n}" for n in range(len(plans))] if len(plans) > 1 else [CERTIFICATES]


def _manifest(
    folder: Path,
    plans: Sequence[BundledPlan],
    made: Sequence[PlanModel],
    proto: onnx.ModelProto,
    kernels: LibraryKernels,
    why_fixed: str,
    chunkings: Sequence[Chunking],
) -> JsonObject:
    model = plans[0].model
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_by": {
            "einnet-explore": PACKAGE_VERSION,
            "apache-tvm": package_version("apache-tvm"),
            "c_compiler": c_compiler(),
        },
        "onnxruntime_api": API_VERSION,
        "opsets": _opsets(proto),
        "platform": _platform(),
        "instruction_sets": list(INSTRUCTION_SETS),
        "inputs": [_value(value, proto.graph.input) for value in model.inputs],
        "outputs": [_value(value, proto.graph.output) for value in model.outputs],
        "why_sizes_are_fixed": why_fixed,
        "plans": [
            {
                "shapes": {name: list(shape) for name, shape in each.shapes.items()},
                "threads": each.plan.threads,
                "original_nodes": [{"nodes": list(nodes), "why": why} for nodes, why in one.stay.items()],
                "numerics": each.numerics,
                "max_rel_error": float(f"{each.error:.1e}"),
                "certificates": where,
            }
            for each, one, where in zip(plans, made, _certificate_folders(plans), strict=True)
        ],
        "chunks": [
            {
                "shapes": {name: list(shape) for name, shape in each.shapes.items()},
                "dimensions": dict(each.independence.inputs),
                "sizes": {str(size): list(chunks) for size, chunks in sorted(each.chunks.items())},
            }
            for each in chunkings
        ],
        "kernels": [
            {"number": number, "compiler": kernel.compiler, "shapes": [list(shape) for shape in kernel.shapes]}
            for number, kernel in kernels.kernels.items()
        ],
        "files": {name: _file_entry(folder / name) for name in _names(folder)},
    }


def _value(value: ModelValue, declared: Iterable[onnx.ValueInfoProto]) -> JsonObject:
    """Return the name, the type and the declared shape of an input or output; a dynamic size is its name or None."""
    tensor = next(info for info in declared if info.name == value.name).type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return {"name": value.name, "type": str(value.dtype), "shape": dims if tensor.HasField("shape") else None}


def _file_entry(file: Path) -> JsonObject:
    content = file.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


FIRST_RUNTIMES = {21: 18}
"""The minor version of ONNX Runtime 1 that first has an operator set, where it is newer than ``API_VERSION``."""

_README = Template("""\
# An optimised model for ONNX Runtime

$content Both need ONNX Runtime 1.$api or newer with operator set $opset,
on $platform, and nothing else. `manifest.json` lists inputs, outputs, instruction sets, hashes of the files, and the
largest error; `certificates` has the derivations. Paths are relative to this folder; a path without `/` would not find
the library. Sessions map `weights.bin`, if there is one, into memory: open `model.onnx` by its path. Kernels divide
their work by $threads: give sessions as many. Open the first session of a process before
others are opened in parallel.

$sizes## Python
```python
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = $number
options.register_custom_ops_library("./kernels.so")
session = onnxruntime.InferenceSession("./model.onnx", options, providers=["CPUExecutionProvider"])
outputs = session.run(None, {$feeds})
```

## C++
```cpp
Ort::Env env; Ort::SessionOptions options;
options.SetIntraOpNumThreads($number);
options.RegisterCustomOpsLibrary(ORT_TSTR("./kernels.so"));
Ort::Session session(env, ORT_TSTR("./model.onnx"), options);
const char *inputs[] = {$inputs}, *outputs[] = {$outputs};
auto results = session.Run(Ort::RunOptions{}, inputs, values.data(), values.size(), outputs, $count);
```
`values` is a `std::vector<Ort::Value>`, one for each input.

## C#
```csharp
using var options = new SessionOptions { IntraOpNumThreads = $number };
options.RegisterCustomOpLibrary("./kernels.so");
using var session = new InferenceSession("./model.onnx", options);
var inputs = new List<NamedOnnxValue> { $tensors };
using var results = session.Run(inputs);
```
`values` holds a `DenseTensor` for each input.
""")


def _opsets(proto: onnx.ModelProto) -> dict[str, int]:
    return {opset.domain or "ai.onnx": opset.version for opset in proto.opset_import}


def _readme(plans: Sequence[BundledPlan], proto: onnx.ModelProto, chunkings: Sequence[Chunking]) -> str:
    """Return the page of a bundle of *plans*, written as *proto*: six lines for each language."""
    model = plans[0].model
    names = [json.dumps(value.name) for value in model.inputs]
    shapes = [f"numpy.zeros({value.shape}, {str(value.dtype)!r})" for value in model.inputs]
    needs_library = any(opset.domain == DOMAIN for opset in proto.opset_import)
    threads = max(each.plan.threads for each in plans)
    return _README.substitute(
        content="`model.onnx` needs the custom operator in `kernels.so`."
        if needs_library
        else "No kernel is faster than the original: `model.onnx` runs without `kernels.so`, which has no kernels.",
        sizes=_describe_sizes(plans, chunkings) if needs_library and _is_dynamic(proto) else "",
        api=max(API_VERSION, FIRST_RUNTIMES.get(_opsets(proto)["ai.onnx"], API_VERSION)),
        threads=count_noun(threads, "thread"),
        number=threads,
        opset=_opsets(proto)["ai.onnx"],
        platform=_platform(),
        feeds=", ".join(f"{name}: {shape}" for name, shape in zip(names, shapes, strict=True)),
        inputs=", ".join(names),
        outputs=", ".join(json.dumps(value.name) for value in model.outputs),
        count=len(model.outputs),
        tensors=", ".join(f"NamedOnnxValue.CreateFromTensor({name}, values[{n}])" for n, name in enumerate(names)),
    )


def _describe_sizes(plans: Sequence[BundledPlan], chunkings: Sequence[Chunking]) -> str:
    """Say for which sizes there are kernels, and which run in chunks."""
    shapes = (", ".join(f"{name} {list(shape)}" for name, shape in each.shapes.items()) for each in plans)
    sizes = [
        f" Sizes {describe_sizes(sorted(each.chunks))} of dimension {axis} of {name} run in chunks of these."
        for each in chunkings
        for name, axis in list(each.independence.inputs.items())[:1]
    ]
    return (
        f"Kernels are for these shapes: {'; '.join(shapes)}.{''.join(sizes)} At other sizes the original operators run."
        "\n\n"
    )


def _is_dynamic(proto: onnx.ModelProto) -> bool:
    return not all(d.HasField("dim_value") for v in proto.graph.input for d in v.type.tensor_type.shape.dim)


def _platform() -> str:
    return f"{platform.system().lower()}-{platform.machine()}"
