"""What a user did wrong, in one line, and the exit codes."""

from __future__ import annotations

OK, NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

def one_line(error: BaseException) -> str:
    """The message of *error* on one line; a system error names its file and what the system said."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    if isinstance(error, KeyError) and error.args:
        return " ".join(str(error.args[0]).split())
    return " ".join(str(error).split()) or type(error).__name__
