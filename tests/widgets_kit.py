"""A convolution, and waiting for the text of a panel."""

import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("anywidget", reason="anywidget is not installed")


import einnet_explore as ee
from einnet_widgets.face import Face

CONV = ee.ops.conv2d(N=1, H=4, W=5, C=3, F=2, R=3, S=3, padding=1)


def told(face: Face) -> list[tuple[dict[str, Any], bytes | None]]:
    """The messages that *face* sends from now on."""
    sent: list[tuple[dict[str, Any], bytes | None]] = []
    face.send = lambda message, buffers=None: sent.append((message, buffers[0] if buffers else None))
    return sent


def until(true: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def decoded(header: dict[str, Any], buffer: bytes) -> dict[str, tuple[Any, ...]]:
    n, m = header["count"], header["merges"]
    names = ("parent", "seconds", "pairs", "depth", "distance", "phase", "rule")
    forms = (f"{n}i", f"{n}f", f"{2 * m}i", *[f"{n}B"] * 4)
    found, at = {}, 0
    for name, form in zip(names, forms, strict=True):
        found[name] = struct.unpack_from(f"<{form}", buffer, at)
        at += struct.calcsize(f"<{form}")
    assert at == len(buffer)
    return found
