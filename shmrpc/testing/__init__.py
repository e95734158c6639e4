"""For tests of code that serves or calls.

:func:`connect` gives a real client of a service that runs in the test's own loop: nothing is mapped, opened or
started. :class:`Network` is the same for several services and clients. :class:`Faults` makes calls late, lost or
failed. :class:`ServerProcess` is a server in another process; in pytest the fixtures ``shmrpc_server`` and
``shmrpc_session_server`` of :mod:`shmrpc.testing.plugin` make them.

>>> async def test_adding() -> None:
...     async with shmrpc.testing.connect(calculator) as client:
...         assert await client.add(1, 2) == 3
"""

from shmrpc.testing.faults import Faults
from shmrpc.testing.network import Network, connect
from shmrpc.testing.process import ServerFailed, ServerProcess

__all__ = ["Faults", "Network", "ServerFailed", "ServerProcess", "connect"]
