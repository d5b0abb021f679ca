"""Jupyter widgets for einnet_explore, which never imports this package."""

from typing import Any

from IPython import get_ipython
from IPython.terminal.interactiveshell import TerminalInteractiveShell

from einnet_widgets.page import PageFace, to_html
from einnet_widgets.panels import (
    BenchPanel,
    DerivationHistory,
    Explorer,
    ExpressionView,
    GraphView,
    IteratorTableView,
    RulePicker,
    SearchMonitor,
    explorer,
)
from einnet_widgets.quizzing import QuizView

__all__ = [
    "BenchPanel",
    "DerivationHistory",
    "Explorer",
    "ExpressionView",
    "GraphView",
    "IteratorTableView",
    "OptimizeCell",
    "QuizView",
    "RulePicker",
    "SearchMonitor",
    "explorer",
    "to_html",
]


def _register() -> None:
    """Register the explorer as the notebook display of sessions, and as their HTML page."""
    from einnet_explore.session.explanations import Quiz
    from einnet_explore.session.faces import register_face
    from einnet_explore.session.session import Session

    register_face(PageFace())
    shell = get_ipython()
    if shell is not None and not isinstance(shell, TerminalInteractiveShell):
        formatter = shell.display_formatter.ipython_display_formatter
        formatter.for_type(Session, lambda session: explorer(session)._ipython_display_())
        formatter.for_type(Quiz, lambda quiz: QuizView(quiz)._ipython_display_())


def __getattr__(name: str) -> Any:
    if name == "OptimizeCell":  # it needs the compilers, which nothing else here does
        from einnet_widgets.optimising import OptimizeCell

        return OptimizeCell
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_register()
