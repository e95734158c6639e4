"""The command ``shmrpc``."""

from shmrpc.cli.commands import main
from shmrpc.cli.queues import queue
from shmrpc.cli.stores import store
from shmrpc.cli.topics import topic

main.add_command(queue)
main.add_command(store)
main.add_command(topic)

__all__ = ["main"]
