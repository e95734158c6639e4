"""A full or read-only rendezvous directory, or no descriptor left for it: the error names the need and the remedy."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import textwrap

import pytest

import shmrpc.cli.commands
import shmrpc.cli.serve
from tests.helpers.cli_runner import cli_runner
from tests.reliability.limits.test_shared_memory_full import may_mount

PRELUDE = """
    import asyncio, os, resource, subprocess, sys
    import shmrpc
    from tests.helpers.services import service

    async def serve():
        async with shmrpc.serve(service):
            print("served")

    async def connect():
        async with shmrpc.connect("tested", timeout=0) as client:
            pass

    def print_error(attempt):
        try:
            attempt()
        except Exception as error:
            print(type(error).__name__, error)

    def print_errors():
        print_error(lambda: asyncio.run(serve()))
        print_error(lambda: asyncio.run(connect()))
        print_error(lambda: shmrpc.sync.connect("tested", timeout=0).__enter__())

    def mount(path):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=16", "tmpfs", path], check=True)
        os.environ["XDG_RUNTIME_DIR"] = path

    def fill_files(path, left=0):
        made = 0
        try:
            while True:
                open(f"{path}/{made}", "x").close()
                made += 1
        except OSError:
            for each in range(left):
                os.unlink(f"{path}/{each}")

    def fill_pages(path):
        with open(f"{path}/large", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    place = sys.argv[1]
"""


def run(source: str, place: object) -> list[str]:
    program = textwrap.dedent(PRELUDE) + textwrap.dedent(source)
    command = [sys.executable, "-P", "-c", program, str(place)]
    if "mount(" in source:
        command = ["unshare", "--mount", "--propagation", "private", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


FULL = (
    r"SharedMemoryError \[Errno 28\] the file system of {place} is full: .* needed to {purpose}; [0-9,]+ of its "
    r"[0-9,]+ bytes are free, and [0-9]+ of its 16 files\. Make room, or set \$XDG_RUNTIME_DIR .* on both sides"
)
READ_ONLY = (
    r"LocalProtocolError {place} is on a read-only file system, so nothing can be created there "
    r"to {purpose}; mount it read-write, or set \$XDG_RUNTIME_DIR .* on both sides"
)

FILL = {
    "no files": ("fill_files(place)", FULL),
    "a single file": ("fill_files(place, 1)", FULL),
    "no bytes": ("fill_pages(place)", FULL),
    "read-only": ("subprocess.run(['mount', '-o', 'remount,ro', place], check=True)", READ_ONLY),
}


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="may not mount")
@pytest.mark.parametrize("how", FILL)
def test_a_server_that_can_create_no_file_in_the_directory_raises_the_reason(tmp_path: object, how: str) -> None:
    fill, words = FILL[how]
    printed = run(f"mount(place)\nos.mkdir(place + '/shmrpc', 0o700)\n{fill}\nprint_errors()", tmp_path)
    assert len(printed) == 3
    assert re.fullmatch(words.format(place=f"{tmp_path}/shmrpc", purpose="serve 'tested'"), printed[0])
    for said in printed[1:]:  # A client cannot know that there is no server.
        assert said.startswith("ServiceUnavailable no server of 'tested'")


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="may not mount")
@pytest.mark.parametrize("how", ["no files", "read-only"])
def test_a_directory_that_cannot_be_created_is_reported_with_the_reason(tmp_path: object, how: str) -> None:
    fill, words = FILL[how]
    printed = run(f"mount(place)\n{fill}\nprint_errors()", tmp_path)
    assert len(printed) == 3
    assert re.fullmatch(words.format(place=tmp_path, purpose=f"make {tmp_path}/shmrpc"), printed[0])
    for said in printed[1:]:  # A client neither creates nor needs a directory.
        assert said.startswith("ServiceUnavailable no server of 'tested'")


@pytest.mark.slow
def test_a_server_without_descriptors_names_the_limit_of_its_process(tmp_path: object) -> None:
    printed = run(
        """
        os.environ["XDG_RUNTIME_DIR"] = place

        async def main():
            await serve()  # Imports of serving need descriptors, too.
            resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
            taken = []
            try:
                while True:
                    taken.append(os.dup(0))
            except OSError:
                pass
            for _ in range(6):
                try:
                    await serve()
                except Exception as error:
                    print(type(error).__name__, error)
                os.close(taken.pop())

        asyncio.run(main())
        """,
        tmp_path,
    )
    assert len(printed) == 7 and printed.pop(0) == "served"
    assert "served" in printed
    for said in printed[: printed.index("served")]:
        assert re.match(
            r"SharedMemoryError \[Errno 24\] no descriptor left to serve 'tested': process [0-9]+ has as many files "
            r"open as it may: 40 \(RLIMIT_NOFILE, up to 40\)\. Raise it: ulimit -n",
            said,
        )
    assert set(printed[printed.index("served") :]) == {"served"}


def test_the_serve_command_without_descriptors_for_a_loop_names_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_here(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(shmrpc.cli.serve, "run_here", run_here)
    done = cli_runner().invoke(shmrpc.cli.commands.main, ["serve", "tests.helpers.services:service"])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: [Errno 24] no descriptor left to serve: process {os.getpid()} has")
