"""The exceptions of this floor."""


class BackendError(RuntimeError):
    """An equation could not be compiled or run; the message names the equation and what went wrong."""


class NoKernel(BackendError):
    """Nothing is written for an equation by a generator; another version of it may write something."""
