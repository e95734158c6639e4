"""Test code that serves or calls.

:func:`connect` returns a real client of a service that runs in the event loop of the test: nothing is mapped, opened or
started. :class:`Network` does the same for several services and clients. :class:`Faults` delays, drops or fails calls.
:class:`ServerProcess` is a server in another process; in pytest, the fixtures ``shmrpc_server`` and
``shmrpc_session_server`` of :mod:`shmrpc.testing.plugin` start such servers.

>>> async def test_adding() -> None:
...     async with shmrpc.testing.connect(calculator) as client:
...         assert await client.add(1, 2) == 3
"""

from shmrpc.testing.faults import Faults
from shmrpc.testing.network import Network, connect
from shmrpc.testing.process import ServerFailed, ServerProcess

__all__ = ["Faults", "Network", "ServerFailed", "ServerProcess", "connect"]
