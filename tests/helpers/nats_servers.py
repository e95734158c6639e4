"""A server of NATS for tests, on the loopback interface: started, killed, started again."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.hosts import Host
from tests.helpers.server_process import PATIENCE

_PROJECT = Path(__file__).parents[2]


@functools.cache
def program() -> str | None:
    """Return the path of the NATS server: the system's, else that of `make nats-server`; None without either."""
    own = sorted(_PROJECT.glob(".tools/*/nats-server"))
    return shutil.which("nats-server") or (str(own[-1]) if own else None)


class NatsServer:
    """A server of NATS. ``config`` is the contents of its file beside the address.

    ``host``: another host than this one, on which the server runs.
    """

    def __init__(self, config: str = "", host: Host | None = None) -> None:
        found = program()
        if found is None:
            pytest.skip("no nats-server: `make nats-server` gets one, and says what it needs for that")
        self._program = found
        self._folder = Path(tempfile.mkdtemp(prefix="shmrpc-nats-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._config = config
        self._under = () if host is None else host.under
        self._address = "127.0.0.1" if host is None else host.address
        self.port = -1  # Chosen by the server.
        self.start()

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        return f"nats://{self._address}:{self.port}"

    def start(self) -> None:
        """Start the server at its previous port; return when it listens."""
        for old in self._folder.glob("*.ports"):
            old.unlink()
        file = self._folder / "nats.conf"
        file.write_text(f'listen: "{self._address}:{self.port}"\nports_file_dir: "{self._folder}"\n{self._config}\n')
        log = (self._folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [*self._under, self._program, "--config", str(file)], stdout=log, stderr=log
            )
        end = time.monotonic() + PATIENCE
        while (ports := self._ports()) is None:
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the server of NATS did not start:\n{self.log}")
            time.sleep(0.005)
        self.port = int(ports["nats"][0].rpartition(":")[2])
        while not self._under and time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.005)

    def _ports(self) -> Any:
        for file in self._folder.glob("*.ports"):
            with contextlib.suppress(ValueError):  # Incomplete so far.
                return json.loads(file.read_text())
        return None

    @property
    def log(self) -> str:
        """Return the server's log."""
        return (self._folder / "log").read_text()

    def send_signal(self, number: signal.Signals) -> None:
        """Send the server a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Kill the server, and remove its files."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


async def flush(connection: Any) -> None:
    """Wait until NATS has taken all that this client of nats-py has sent, subscriptions too.

    nats-py's flush() sends its PING before what waits to be sent, so one alone may be answered too soon.
    """
    await connection.flush()
    await connection.flush()
