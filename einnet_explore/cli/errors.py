"""What a user did wrong, in one line, and the exit codes."""

from __future__ import annotations

from einnet_explore.support.wording import printable

OK, NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

_MAX_MESSAGE_CHARACTERS = 600
"""Characters of a message that are shown: some libraries put whole programs into theirs."""


def one_line(error: BaseException) -> str:
    """The message of *error* on one line, printable.

    A system error names its file and what the system said.  What is nobody's input (a compiler that fails, a mistake of
    our own) names its kind and says how to see more.
    """
    match error:
        case OSError(strerror=str(said)) if said:
            return printable(f"{error.filename}: {said}" if error.filename else said).replace("\n", " ")
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
    # A bare key or number, or another kind of exception: it was not written for a user.
    kind = type(error).__name__
    return (
        f"{kind}: {shown} (unexpected; --debug shows where)" if shown else f"{kind} (unexpected; --debug shows where)"
    )
