"""The time slice that ``shmrpc serve`` asks the kernel for."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import subprocess
import sys

import pytest

import shmrpc
from tests.helpers.server_process import ServerProcess

#: The number of sched_getattr(2), which has no function in older C libraries.
_GETATTR = {"x86_64": 315, "aarch64": 275}.get(platform.machine(), -1)
_ATTRIBUTES = struct.Struct("IIQiIQQQ")
#: Time slice that the server requests, in nanoseconds.
SHORT = 100_000
TARGET = f"{__name__}:service"

service = shmrpc.Service("slices")


@service.endpoint
def in_loop() -> int:
    return time_slice(os.getpid())


@service.endpoint(run_in="thread")
def in_thread() -> int:
    return time_slice(0)


@service.endpoint
def in_child() -> int:
    return int(subprocess.check_output([sys.executable, "-c", f"import {__name__} as m; print(m.time_slice(0))"]))


def time_slice(thread: int) -> int:
    """Return the slice of a thread, 0 for this one, in nanoseconds; return 0 if the kernel has no slices of threads."""
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if ctypes.CDLL(None).syscall(_GETATTR, thread, buffer, _ATTRIBUTES.size, 0):
        return 0
    runtime: int = _ATTRIBUTES.unpack(buffer.raw)[5]
    return runtime


#: Of this process, which has asked for nothing.
USUAL = time_slice(0)

#: Of the loop of a server: one that has a priority keeps what it has, and so do all of a test run under nice(1).
OF_THE_LOOP = SHORT if os.getpriority(os.PRIO_PROCESS, 0) == 0 else USUAL

#: A program that runs ``shmrpc`` where a filter of system calls forbids the request.
_FORBIDDEN = """
from shmrpc import _core

def forbidden(nanoseconds):
    raise PermissionError(1, "Operation not permitted")

_core.shorten_time_slice = forbidden
from shmrpc.cli.commands import main
main()
"""

pytestmark = pytest.mark.skipif(USUAL <= SHORT, reason="the kernel knows no time slices of threads, or only short ones")


@pytest.mark.parametrize("options", [(), ("--workers", "1")], ids=["one process", "workers"])
def test_the_loop_has_short_ones_and_what_it_starts_the_usual_ones(options: tuple[str, ...]) -> None:
    with ServerProcess(TARGET, *options), shmrpc.sync.connect("slices") as client:
        assert client.in_loop() == OF_THE_LOOP
        assert client.in_thread() == USUAL
        assert client.in_child() == USUAL


def test_a_server_with_a_nice_value_keeps_its_slice() -> None:
    nice = ("-c", "import os; os.nice(1); from shmrpc.cli.commands import main; main()")
    with ServerProcess(TARGET, shmrpc_command=nice), shmrpc.sync.connect("slices") as client:
        assert client.in_loop() == USUAL


def test_where_it_is_forbidden_the_server_serves_all_the_same() -> None:
    with ServerProcess(TARGET, shmrpc_command=("-c", _FORBIDDEN)) as server:
        with shmrpc.sync.connect("slices") as client:
            assert client.in_loop() == USUAL
        assert "time slice" not in server.stop()


@pytest.mark.asyncio
async def test_a_server_in_a_program_of_ones_own_asks_for_nothing() -> None:
    async with shmrpc.serve(service), shmrpc.connect("slices") as client:
        assert await client.in_loop() == USUAL
