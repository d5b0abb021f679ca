"""The one exception of this floor."""


class BackendError(RuntimeError):
    """An equation could not be compiled or run; the message names the equation and what went wrong."""
