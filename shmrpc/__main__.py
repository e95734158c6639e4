"""``python -m shmrpc`` is ``shmrpc``."""

from shmrpc.cli import main

main()
