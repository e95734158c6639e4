"""The command ``shmrpc``: the group of all commands, each of which is imported when it is called."""

from __future__ import annotations

import errno
import importlib
import io
import sys
from typing import Any, Final

import click

from shmrpc.basics.version import VERSION
from shmrpc.cli import exit_codes
from shmrpc.cli.exit_codes import CommandFailed
from shmrpc.errors import ApplicationError, RemoteError, ShmrpcError
from shmrpc.host.standard_descriptors import keep_standard_descriptors

#: Module of each command. A command imports what it needs, and importing is most of a server's start.
_MODULES: Final = {
    "call": "shmrpc.cli.call",
    "cleanup": "shmrpc.cli.cleanup",
    "describe": "shmrpc.cli.describe",
    "ls": "shmrpc.cli.listing",
    "queue": "shmrpc.cli.queues",
    "serve": "shmrpc.cli.serve",
    "store": "shmrpc.cli.stores",
    "stub": "shmrpc.cli.describe",
    "topic": "shmrpc.cli.topics",
}
#: Options that were renamed before the first release, by their old names.
_RENAMED_OPTIONS: Final = {"--allow-uid": "--allow-user", "--every": "--interval"}


class LazyGroup(click.Group):
    """Group that imports its commands on use, and turns errors into one message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the sorted names of all commands."""
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of this name; return None if there is none."""
        if cmd_name not in _MODULES:
            return None
        command: click.Command = getattr(importlib.import_module(_MODULES[cmd_name]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises CommandFailed instead of the errors of shmrpc and of the system.

        Lets an OSError of a closed pipe, or of ``serve``, pass. Exits with INTERRUPTED after Ctrl-C.
        """
        keep_standard_descriptors()
        sys.setrecursionlimit(10_000)  # MessagePack allows values that are nested more deeply than Python's default.
        for stream in (sys.stdout, sys.stderr):  # Print the number of a character that the terminal cannot show.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if now := _RENAMED_OPTIONS.get(error.option_name):
                raise click.UsageError(f"{error.option_name} was renamed: use {now}", error.ctx) from None
            raise
        except ShmrpcError as error:
            raise CommandFailed(_format_error(error), exit_codes.exit_code_of(error)) from None
        except OSError as error:  # For example, a full disk behind a pipe. Click handles a reader that went away.
            if error.errno == errno.EPIPE or ctx.invoked_subcommand == "serve":
                raise
            raise CommandFailed(str(error)) from None
        except KeyboardInterrupt:
            ctx.exit(exit_codes.INTERRUPTED)


def _format_error(error: ShmrpcError) -> str:
    """Return the text of an error, with the details or the remote traceback that it carries."""
    if isinstance(error, ApplicationError):
        return "\n".join([str(error), *(f"  {name}: {value!r}" for name, value in error.details.items())])
    if isinstance(error, RemoteError):
        return f"{error.type_name}: {error}\n{error.remote_traceback}".rstrip()
    return str(error)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=exit_codes.HELP)
@click.version_option(VERSION)
def main() -> None:
    """Call other Python processes on this host at memory speed."""
