"""Work that ends its process; imports next to nothing, as the processes that it ends do."""

import os
import signal


def dies_once(mark: str, value: int) -> int:
    """*value*; the first process that is asked for it is killed."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return value
    os.kill(os.getpid(), signal.SIGKILL)
    return -1


def dies() -> None:
    """Nothing: the process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def fails(value: int) -> int:
    """Nothing: raises ValueError."""
    raise ValueError(f"no {value}")
