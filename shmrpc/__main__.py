"""``python -m shmrpc`` is ``shmrpc``."""

from shmrpc.cli.commands import main

main()
