"""The wheel: its metadata, and the main job in an environment that has nothing but it and what it requires."""

import os
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAIN_JOB = """
import numpy as np, onnx
import einnet_explore as ee
run = ee.search(ee.ops.conv2d(H=14, W=14, C=32, F=32, R=3, S=3, padding=1), target="Matmul", max_depth=3, budget=20)
assert run.best is not None and run.best.derivation
product = ee.parse("tensor A[64, 512]\\ntensor B[512, 64]\\ntensor C[64, 4]\\n"
    "M[i:64, j:64] = sum[k:512] A[i, k] * B[k, j]\\nY[i:64, l:4] = sum[j:64] M[i, j] * C[j, l]")
fast = ee.optimize(product, budget=5)
fast.save("fast.onnx")
onnx.checker.check_model(onnx.load("fast.onnx"))
print(fast)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_does_the_main_job_with_what_it_requires(tmp_path: Path) -> None:
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as held:
        (name,) = (name for name in held.namelist() if name.endswith(".dist-info/METADATA"))
        found = message_from_bytes(held.read(name))
    assert (found["License-Expression"], found["Description-Content-Type"]) == ("Apache-2.0", "text/markdown")
    assert found.get_payload()
    venv.create(tmp_path / "empty", with_pip=True)
    python, bare = tmp_path / "empty/bin/python", {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True, env=bare)
    listed = subprocess.run([python, "-m", "pip", "list"], check=True, env=bare, capture_output=True, text=True)
    assert not {"jupyterlab", "pytest", "torch", "matplotlib"} & set(listed.stdout.split())
    job = [python, "-c", MAIN_JOB]
    done = subprocess.run(job, cwd=tmp_path, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
