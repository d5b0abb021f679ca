"""Exit codes, and one-line error messages."""

from __future__ import annotations

from einnet_explore.support.wording import printable

OK, NO, BAD_INPUT, NOT_PROVED, INTERRUPTED = 0, 1, 2, 3, 130

_MAX_MESSAGE_CHARACTERS = 600
"""Longer messages are cut: some libraries put whole programs into theirs."""


def one_line(error: BaseException) -> str:
    """Return the message of *error* as one printable line.

    A system error names its file.  An error that no input explains, such as a bug or a failing compiler, names its type
    and the option ``--debug``.
    """
    match error:
        case OSError(strerror=str(reason)) if reason:
            return printable(f"{error.filename}: {reason}" if error.filename else reason).replace("\n", " ")
        case MemoryError():
            return f"not enough memory: {' '.join(str(error).split()) or 'an allocation failed'}"
        case KeyError() if error.args:
            message = str(error.args[0])
        case _:
            message = str(error)
    line = printable(" ".join(message.split()))
    shown = line if len(line) <= _MAX_MESSAGE_CHARACTERS else f"{line[:_MAX_MESSAGE_CHARACTERS]} …"
    if isinstance(error, ValueError | LookupError | OSError) and " " in shown:
        return shown
    # A bare key or number, or an exception of another type: its message was not written for users.
    kind = type(error).__name__
    return (
        f"{kind}: {shown} (unexpected; --debug shows where)" if shown else f"{kind} (unexpected; --debug shows where)"
    )
