"""Models of the kinds that people bring, at modest sizes, made with ``onnx.helper`` alone."""

from __future__ import annotations

from benchmarks.zoo.attending import ATTENDING
from benchmarks.zoo.images import IMAGES
from benchmarks.zoo.others import OTHERS
from benchmarks.zoo.parts import Kind

KINDS: tuple[Kind, ...] = (*IMAGES, *ATTENDING, *OTHERS)
"""Every kind of model, in the order of the table."""
