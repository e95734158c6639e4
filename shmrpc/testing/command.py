"""The command ``shmrpc`` as ServerProcess runs it: ``python -m shmrpc.testing.command DESCRIPTOR serve TARGET...``.

It ends when its parent does, in whatever way: the descriptor is the end of a pipe whose other end nobody else has.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from shmrpc.cli.commands import main


def _end_with_parent(descriptor: int) -> None:
    os.read(descriptor, 1)  # Nothing is ever sent: what comes is the end.
    # The first one stops a server gently, the second one at once. Two of one kind may arrive as one.
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, args=[int(sys.argv.pop(1))], daemon=True).start()
    main(prog_name="shmrpc")
