"""The server of NATS that all subjects of a run share, on the loopback interface; it ends with the run."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmark.processes import NotStarted

#: Seconds that it may take to start.
_START: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1
_PROJECT: Final = Path(__file__).parents[1]


def program() -> str | None:
    """Return the system's, or the one that ``make nats-server`` has got; None if there is none."""
    own = sorted(_PROJECT.glob(".tools/*/nats-server"))
    return shutil.which("nats-server") or (str(own[-1]) if own else None)


@functools.cache
def url() -> str:
    """Return the URL of the server, which the first call starts. Raises NotStarted."""
    found = program()
    if found is None:
        raise NotStarted("not installed: nats-server (make nats-server)")
    folder = tempfile.TemporaryDirectory(prefix="shmrpc-benchmark-")
    file = Path(folder.name) / "nats.conf"
    file.write_text(f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder.name}"\n')
    set_signal = ctypes.CDLL(None).prctl
    server = subprocess.Popen(
        [found, "--config", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: set_signal(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )

    def end() -> None:
        server.kill()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    latest = time.monotonic() + _START
    while (ports := _ports(Path(folder.name))) is None:
        if server.poll() is not None or time.monotonic() > latest:
            raise NotStarted("nats-server does not start")
        time.sleep(0.01)
    return str(ports["nats"][0])


def _ports(folder: Path) -> Any:
    for file in folder.glob("*.ports"):
        try:
            return json.loads(file.read_text())
        except ValueError:
            pass  # The file is still incomplete.
    return None
