"""Count the functions and files of ``einnet_explore`` that optimising and running one convolution enters.

Run ``python -m benchmarks.code_path``.  The count measures the code that a reader must follow, not time.  Functions
that run during imports do not count.  The measurements of the first run determine the variants that are tried.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import einnet_explore as ee

ROOT = Path(str(ee.__file__)).parent
SCRIPTS = ("__main__", "sandbox_child")
BUDGET_SECONDS = 20


def convolution() -> onnx.ModelProto:
    """Return a model of one 3x3 convolution, 32 channels of 28 x 28."""
    weight = np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float32)
    shape = [1, 32, 28, 28]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def import_everything() -> None:
    """Import every module, so that imports inside functions add no entries later."""
    for path in ROOT.rglob("*.py"):
        if path.stem not in SCRIPTS:
            parts = path.relative_to(ROOT.parent).with_suffix("").parts
            import_module(".".join(parts).removesuffix(".__init__"))


def entered() -> set[tuple[str, str]]:
    """Return the file and the qualified name of every function that optimising and running the convolution enters."""
    found: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)) and not code.co_name.startswith("<"):
            found.add((str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "convolution.onnx"
        onnx.save(convolution(), str(path))
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            fast = ee.optimize(path, threads=1, budget=BUDGET_SECONDS)
            fast(**fast.random_inputs())
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return found


def main() -> None:
    """Print the counts per package."""
    import_everything()
    found = entered()
    files = {file for file, _ in found}
    print(f"{len(found)} functions in {len(files)} files")
    for package, count in Counter(file.split("/")[0] for file in files).most_common():
        print(f"{count:5} {package}")


if __name__ == "__main__":
    main()
