"""Fixtures for pytest, which finds them wherever shmrpc is installed.

``shmrpc_server`` starts servers in processes of their own, and ends them with the test::

    async def test_my_client(shmrpc_server):
        server = shmrpc_server("calculator.service:calculator")
        async with server.connect() as client:
            assert await client.add(1, 2) == 3

``shmrpc_session_server`` does the same for servers that many tests share; they end with the session. A fixture of yours
says which::

    @pytest.fixture(scope="session")
    def calculator(shmrpc_session_server):
        return shmrpc_session_server("calculator.service:calculator")
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from shmrpc.testing.process import ServerProcess

#: ``shmrpc_server("package.module:service", "--max-in-flight", "1")``.
ServerFactory = Callable[..., ServerProcess]


@pytest.fixture
def shmrpc_server() -> Iterator[ServerFactory]:
    """A function that starts ``shmrpc serve`` of a target, with options of the command. All end with the test."""
    with _factory() as start:
        yield start


@pytest.fixture(scope="session")
def shmrpc_session_server() -> Iterator[ServerFactory]:
    """The same, for servers that many tests share. All end with the session."""
    with _factory() as start:
        yield start


@contextlib.contextmanager
def _factory() -> Iterator[ServerFactory]:
    with contextlib.ExitStack() as stack:

        def start(target: str, *options: str, timeout: float = 30.0) -> ServerProcess:
            return stack.enter_context(ServerProcess(target, *options, timeout=timeout))

        yield start
