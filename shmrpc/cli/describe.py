"""The commands ``shmrpc describe`` and ``shmrpc stub``."""

from __future__ import annotations

from typing import IO

import click
import msgspec

from shmrpc.cli.options import allow_user_option, as_json_option, at_option, connect_timeout_option, option
from shmrpc.cli.service_client import fetch_description


@click.command()
@connect_timeout_option
@as_json_option
@allow_user_option
@at_option
@click.argument("service")
def describe(
    service: str, timeout: float | None, as_json: bool, allow_uids: tuple[int, ...], at: str | list[str] | None
) -> None:
    """Print the signatures, types and docstrings of the live SERVICE."""
    description = fetch_description(service, timeout=timeout, allow_uids=allow_uids, at=at)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(description), indent=2))
    else:
        click.echo(description.text)


@click.command()
@connect_timeout_option
@option("-o", "--output", type=click.File("w", lazy=True), default="-", help="File to write; -: stdout.")
@allow_user_option
@at_option
@click.argument("service")
def stub(
    service: str, timeout: float | None, output: IO[str], allow_uids: tuple[int, ...], at: str | list[str] | None
) -> None:
    """Print a .pyi file with typed clients of the live SERVICE, for programs without its source."""
    from shmrpc.cli.stubs import stub_text

    description = fetch_description(service, timeout=timeout, allow_uids=allow_uids, at=at)
    click.echo(stub_text(description), file=output, nl=False)
