"""The command ``shmrpc``."""

from shmrpc.cli.commands import main

__all__ = ["main"]
