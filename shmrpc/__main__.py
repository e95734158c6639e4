"""Entry point of ``python -m shmrpc``, the same as ``shmrpc``."""

from shmrpc.cli.commands import main

main()
