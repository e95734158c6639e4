"""Fixtures of pytest, which finds them wherever shmrpc is installed.

``shmrpc_server`` starts servers in other processes, and ends them with the test::

    async def test_my_client(shmrpc_server):
        server = shmrpc_server("calculator.service:calculator")
        async with server.connect() as client:
            assert await client.add(1, 2) == 3

``shmrpc_session_server`` does the same for servers that several tests share, and ends them with the session. A fixture
of your own starts them::

    @pytest.fixture(scope="session")
    def calculator(shmrpc_session_server):
        return shmrpc_session_server("calculator.service:calculator")
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from shmrpc.testing.process import ServerProcess

#: ``shmrpc_server("package.module:service", "--max-in-flight", "1", timeout=30.0)``. Returns once the server serves, or
#: raises ServerFailed after ``timeout`` seconds.
ServerFactory = Callable[..., ServerProcess]


@pytest.fixture
def shmrpc_server() -> Iterator[ServerFactory]:
    """Yield a function that starts ``shmrpc serve`` of a target, with options of the command; end all with the test."""
    with _server_factory() as start:
        yield start


@pytest.fixture(scope="session")
def shmrpc_session_server() -> Iterator[ServerFactory]:
    """Yield a function that starts servers that several tests share; end all with the session."""
    with _server_factory() as start:
        yield start


@contextlib.contextmanager
def _server_factory() -> Iterator[ServerFactory]:
    """Yield a function that starts servers; end them at the end of the block."""
    with contextlib.ExitStack() as stack:

        def start(target: str, *options: str, timeout: float = 30.0) -> ServerProcess:
            return stack.enter_context(ServerProcess(target, *options, timeout=timeout))

        yield start
