"""The command ``shmrpc cleanup``."""

from __future__ import annotations

import sys

import click

from shmrpc.cli.options import as_json_option, option
from shmrpc.host.cleanup import run


@click.command()
@option("--dry-run", is_flag=True, help="List the leftovers, and remove nothing.")
@as_json_option
def cleanup(dry_run: bool, as_json: bool) -> None:
    """Remove what dead processes left behind, and nothing else."""
    text, status = run(dry_run=dry_run, as_json=as_json)
    click.echo(text)
    sys.exit(status)
