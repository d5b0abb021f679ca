"""``einnet-explore fuse``: a whole program as one kernel: its stages, conditions on sizes, and text."""

from __future__ import annotations

import argparse
from pathlib import Path

from einnet_explore.cli.output import OK, check_writable, save_file
from einnet_explore.codegen.fusion.plan import fuse_program
from einnet_explore.support.wording import printable
from einnet_explore.syntax import load_text
from einnet_explore.viz.graph_figures import draw_graph
from einnet_explore.viz.kernels import fused_text, stage_graph, stages_text


def run_fuse(arguments: argparse.Namespace) -> int:
    """Print the plan or the kernel's text, or draw the stages."""
    check_writable(arguments.svg, reads=[arguments.case])
    made = fuse_program(load_text(arguments.case))
    if arguments.svg:
        save_file(arguments.svg, draw_graph(stage_graph(made), printable(Path(arguments.case).stem)).svg)
    elif arguments.kernel:
        print(fused_text(made, arguments.kernel, arguments.dtype))
    else:
        print(stages_text(made))
    return OK
