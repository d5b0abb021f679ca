"""The four cases of the paper's search figures, and what was published of them (EinNet §7.4, Fig. 17 to 19).

Where the paper only draws a curve, the numbers are those of the authors' public artifact, built and run on a two-core
machine, one thread; times in milliseconds are the paper's on an A100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from einnet_explore.ir import Program
from einnet_explore.operators import expressions as ops


class Published(NamedTuple):
    """A search of the artifact to one MaxDepth: seconds and states with the fingerprint."""

    seconds: float
    states: int


@dataclass(frozen=True, slots=True)
class Case:
    """One program, the operators to search for, the call that the paper aims at, and the published figures.

    *milliseconds* are those of Fig. 17 for MaxDepth 1, 2, …; *searches* are by MaxDepth; *unpruned* is the number of
    states to MaxDepth 7 without the fingerprint; *steps* say from which MaxDepth on the target is found, with and
    without converging derivation, *paper_steps* what Fig. 18(b) says.
    """

    name: str
    make: Callable[[], Program]
    targets: tuple[str, ...]
    original: str
    wanted: str
    attributes: Mapping[str, int]
    searches: Mapping[int, Published]
    unpruned: int
    steps: tuple[str, str]
    paper_steps: tuple[int, int] | None = None
    milliseconds: tuple[float, ...] = field(default=())


UNPRUNED_DEPTH = 7
"""The MaxDepth of the published ablation of the fingerprint."""

PUBLISHED_PRUNED = (98.0, 98.2)
"""Per cent of states pruned by the fingerprint, and of search time saved, on average (§7.4)."""

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "Conv3x3",
            lambda: ops.conv2d(N=1, H=7, W=7, C=512, F=512, R=3, S=3, padding=1),
            ("Matmul",),
            "Conv2d",
            "Matmul",
            {"m": 49, "n": 4608, "k": 512},
            {4: Published(0.040, 2_340), 7: Published(3.04, 157_966)},
            7_076_538,
            ("≤ 4", "8"),
        ),
        Case(
            "ConvTranspose",
            lambda: ops.conv_transpose2d(
                N=16, H=2, W=2, in_channels=448, out_channels=256, R=4, S=4, stride=2, padding=1
            ),
            ("Matmul", "ConvTranspose2d"),
            "ConvTranspose2d",
            "Matmul",
            {"m": 64, "n": 4096, "k": 448},
            {4: Published(0.148, 6_205), 6: Published(4.81, 192_079), 7: Published(23.4, 901_440)},
            64_045_447,
            ("≤ 4", "> 7"),
            (6, 12),
            (1.333, 1.333, 0.111, 0.0907, 0.0907, 0.0907),
        ),
        Case(
            "Conv5x5",
            lambda: ops.conv2d(N=16, H=224, W=224, C=32, F=1, R=5, S=5, padding=2),
            ("Conv2d",),
            "Conv2d",
            "Conv2d",
            {"r": 3, "s": 3, "f": 4},
            {5: Published(1.41, 82_978), 7: Published(44.1, 2_227_699)},
            76_708_383,
            ("6 or 7", "> 7"),
            (7, 11),
        ),
        Case(
            "G2BMM",
            lambda: ops.g2bmm(b=8, m=10000, w=32, k=512, dilation=4),
            ("G2BMM",),
            "G2BMM",
            "G2BMM",
            {"b": 32, "m": 2500, "d": 1},
            {4: Published(0.022, 635), 7: Published(0.287, 18_286)},
            1_269_059,
            ("≤ 4", "7"),
            None,
            (26.66, 26.66, 26.66, 11.24, 11.24, 11.24),
        ),
    )
}
