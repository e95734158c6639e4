"""The worker that runs in this process, as its tasks see the worker."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from shmrpc.errors import LocalProtocolError

#: Name of the service by which a worker serves its pool.
SERVICE: Final = "pool"
#: Signal that interrupts a task.
INTERRUPT: Final = signal.SIGUSR1


class TaskStopped(BaseException):
    """Exception raised within a task that is interrupted, because its caller has cancelled it."""


@dataclasses.dataclass
class Worker:
    """The worker that runs in this process."""

    #: Number of the worker, from 0 to one less than the number of workers of its pool.
    number: int
    #: Result of the pool's initializer.
    state: Any = None


_current: Worker | None = None
#: True while this process imports the program's own module.
_is_importing_program = False


def worker() -> Worker:
    """Return the worker that runs in this process. Raises LocalProtocolError in a process that is no worker."""
    if _current is None:
        raise LocalProtocolError("worker() is for functions that run in a worker of a pool: this process is none")
    return _current


def set_current_worker(number: int) -> None:
    """Make this process the worker with this number, without a state so far."""
    global _current
    _current = Worker(number)


@contextlib.contextmanager
def importing_program() -> Iterator[None]:
    """Have :func:`is_worker` raise during the block, which imports the program's own module."""
    global _is_importing_program
    _is_importing_program = True
    try:
        yield
    finally:
        _is_importing_program = False


def is_worker() -> bool:
    """Return True if this process is a worker of a pool.

    Raises LocalProtocolError while this process imports the program: a pool made there would start pools without end.
    """
    if _is_importing_program:
        raise _PoolAtImportError(
            f"module {_importing_module()!r} makes a pool as it is imported, and workers import it too: make the pool "
            'in a function, or behind `if __name__ == "__main__":`'
        )
    return _current is not None


class _PoolAtImportError(LocalProtocolError):
    """Error for a pool that is made at the import of a module that workers import too."""


def _importing_module() -> str:
    """Return the name of the module whose import has led to this call."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "__main__" if frame is None else str(frame.f_globals.get("__name__")).replace("__mp_main__", "__main__")


def program_import_error(error: BaseException) -> LocalProtocolError:
    """Return the error for a program that a worker could not import."""
    if isinstance(error, _PoolAtImportError):
        return LocalProtocolError(str(error))
    import_error = LocalProtocolError(
        f"a worker could not import the program ({type(error).__name__}: {error}): {_import_remedy(error)}"
    )
    import_error.__cause__ = error
    return import_error


def _import_remedy(error: BaseException) -> str:
    """Return advice for a program whose import has raised ``error``."""
    if isinstance(error, ImportError):
        return (
            f"check sys.path: a worker imports from there, with relative entries below the working directory, "
            f"{os.getcwd()}"
        )
    if isinstance(error, FileNotFoundError):
        return "make sure that the file is where it was as the program began"
    return 'put what is to run in the program alone behind `if __name__ == "__main__":`'
