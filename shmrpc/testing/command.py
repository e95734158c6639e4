"""Command ``shmrpc`` as ServerProcess runs it: ``python -m shmrpc.testing.command DESCRIPTOR serve TARGET...``.

The process ends with its parent, also if the parent is killed: DESCRIPTOR is the end of a pipe whose other end only the
parent has.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from shmrpc.cli.commands import main


def _end_with_parent(descriptor: int) -> None:
    """Wait for the end of the pipe, then stop the server at once, by signals to this process. Blocks its thread."""
    os.read(descriptor, 1)  # The parent never writes, so this returns at the end of the pipe.
    # The first signal stops a server gracefully, the second at once. Two equal signals may arrive as one.
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, args=[int(sys.argv.pop(1))], daemon=True).start()
    main(prog_name="shmrpc")
