"""The command ``shmrpc``."""

from shmrpc.cli.commands import main
from shmrpc.cli.queues import queue

main.add_command(queue)

__all__ = ["main"]
