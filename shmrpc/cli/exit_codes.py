"""Exit codes of the commands, and the error that ends a command with one."""

from __future__ import annotations

import signal
from typing import Final

import click

from shmrpc.errors import (
    CallError,
    DeadlineExceeded,
    EndpointNotFound,
    InvalidArguments,
    RemoteError,
    ShmrpcError,
    WaitTimeout,
)

USAGE: Final = 2
NOT_AVAILABLE: Final = 3
CALL_FAILED: Final = 4
TOO_LATE: Final = 5
INTERRUPTED: Final = 128 + signal.SIGINT

#: Epilog of the help texts.
HELP: Final = f"""Exit codes: {USAGE} for a wrong option, endpoint or argument, {NOT_AVAILABLE} if the service is not
available, the connection is lost, or no process has the name open, {CALL_FAILED} if the call fails, {TOO_LATE} if the
timeout expires, {INTERRUPTED} after Ctrl-C, 1 for any other error."""

#: Exit code by class of error, most specific first: a RemoteError may also be an instance of a later class.
_CODE_BY_CLASS: Final[dict[type[ShmrpcError], int]] = {
    RemoteError: CALL_FAILED,
    DeadlineExceeded: TOO_LATE,
    EndpointNotFound: USAGE,
    InvalidArguments: USAGE,
    CallError: CALL_FAILED,
    WaitTimeout: TOO_LATE,
    ShmrpcError: NOT_AVAILABLE,
}


class CommandFailed(click.ClickException):
    """Error that ends a command with a message and an exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # A class variable in click.


def exit_code_of(error: ShmrpcError) -> int:
    """Return the exit code of a command that fails with this error."""
    return next(code for kind, code in _CODE_BY_CLASS.items() if isinstance(error, kind))
