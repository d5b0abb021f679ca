"""Jupyter widgets for einnet_explore, which never imports this package."""

from typing import Any

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
    displayed,
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
    from einnet_explore.session.session import Session, register_face

    register_face(PageFace())
    try:
        from IPython import get_ipython
    except ImportError:
        return
    shell = get_ipython()
    if shell is not None:
        formatter = shell.display_formatter.mimebundle_formatter
        formatter.for_type(Session, lambda session, include=None, exclude=None: displayed(session))
        formatter.for_type(Quiz, lambda quiz, include=None, exclude=None: QuizView(quiz)._repr_mimebundle_())


def __getattr__(name: str) -> Any:
    if name == "OptimizeCell":  # it needs the compilers, which nothing else here does
        from einnet_widgets.optimising import OptimizeCell

        return OptimizeCell
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_register()
