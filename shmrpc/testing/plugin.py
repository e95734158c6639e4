"""For pytest: ``pytest_plugins = ["shmrpc.testing.plugin"]`` in the ``conftest.py`` at the top of the tests.

It adds one fixture, ``shmrpc_server``::

    async def test_my_client(shmrpc_server):
        server = shmrpc_server("calculator.service:calculator")
        async with server.connect() as client:
            assert await client.add(1, 2) == 3
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
    with contextlib.ExitStack() as stack:

        def start(target: str, *options: str, timeout: float = 30.0) -> ServerProcess:
            return stack.enter_context(ServerProcess(target, *options, timeout=timeout))

        yield start
