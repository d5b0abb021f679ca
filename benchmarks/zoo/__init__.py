"""Typical models at modest sizes, made with ``onnx.helper`` only."""

from __future__ import annotations

from benchmarks.zoo.attending import ATTENDING
from benchmarks.zoo.images import IMAGES
from benchmarks.zoo.others import OTHERS
from benchmarks.zoo.parts import Kind

KINDS: tuple[Kind, ...] = (*IMAGES, *ATTENDING, *OTHERS)
"""Every kind of model, in the order of the table."""
