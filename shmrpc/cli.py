"""The command line: serve, call, ls, cleanup."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
import uvloop

import shmrpc
from shmrpc.options import DEFAULT_CONNECT_TIMEOUT, DEFAULT_SPIN
from shmrpc.protocol.frames import DEFAULT_MAX_FRAME
from shmrpc.transport.shm import cleanup as leftovers
from shmrpc.transport.shm.status import statuses

_codec = click.option(
    "--codec",
    type=click.Choice(["msgspec", "msgpack"]),
    default="msgspec",
    show_default=True,
    help="Which MessagePack.",
)
_max_frame = click.option(
    "--max-frame", type=int, default=DEFAULT_MAX_FRAME, show_default=True, help="Largest body in bytes."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(shmrpc.__version__)
def main() -> None:
    """Call other Python processes on this host at memory speed."""


@main.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.option("--spin", type=float, default=DEFAULT_SPIN, show_default=True, help="Longest spin in µs; 0: never.")
@click.option("--loop", type=click.Choice(["uvloop", "asyncio"]), default="uvloop", show_default=True)
@_max_frame
@_codec
def serve(target: str, spin: float, loop: str, max_frame: int, codec: Any) -> None:
    """Serve the Service that MODULE has under this name, until SIGINT or SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    service = _load(target)
    run = uvloop.run if loop == "uvloop" else asyncio.run
    try:
        server = shmrpc.serve(service, codec=codec, max_frame=max_frame, spin=spin)
        run(_serve(server))
    except (shmrpc.ShmrpcError, ValueError) as error:
        _fail(str(error))


async def _serve(server: shmrpc.Server) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with server:
        service = server.services[0]
        name, endpoints = service.name, ", ".join(service.endpoints)
        click.echo(
            f"Serving {name!r} (process {os.getpid()}): {endpoints or 'no endpoints'}. Ctrl-C stops.",
            err=True,
        )
        await stop.wait()


def _load(target: str) -> shmrpc.Service:
    """The service that ``module:name`` means."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        _fail(f"{target!r}: expected MODULE:SERVICE, as in examples.calculator:calculator")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            _fail(f"there is no module {module_name!r} in {Path.cwd()} or among the installed ones")
        raise
    service = getattr(module, name, None)
    if not isinstance(service, shmrpc.Service):
        found = [key for key, value in vars(module).items() if isinstance(value, shmrpc.Service)]
        what = "nothing of this name" if service is None else f"a {type(service).__qualname__}, not a shmrpc.Service"
        _fail(f"{module_name} has {what}; its services: {', '.join(found) or 'none'}")
    return service


@main.command(context_settings={"allow_interspersed_args": False})
@click.option("-k", "--keyword", "keywords", multiple=True, metavar="NAME=VALUE", help="A keyword argument.")
@click.option("--timeout", type=float, default=DEFAULT_CONNECT_TIMEOUT, show_default=True, help="Seconds to wait.")
@_max_frame
@_codec
@click.argument("service")
@click.argument("endpoint")
@click.argument("arguments", nargs=-1)
def call(
    service: str,
    endpoint: str,
    arguments: tuple[str, ...],
    keywords: tuple[str, ...],
    timeout: float,
    max_frame: int,
    codec: Any,
) -> None:
    """Call ENDPOINT of SERVICE and print the result as JSON.

    Each argument is read as JSON, and taken as text if it is none: 1, true, [1,2], '"5"', Ada. Options come
    before SERVICE; all that follows is the endpoint's.
    """
    pairs = [keyword.partition("=") for keyword in keywords]
    if any(not equals for _, equals, _ in pairs):
        _fail("--keyword: expected NAME=VALUE")
    values = {name: _value(text) for name, _, text in pairs}
    try:
        with shmrpc.sync.connect(service, timeout=timeout, max_frame=max_frame, codec=codec) as client:
            result = client.call(endpoint, *map(_value, arguments), **values)
        click.echo(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    except shmrpc.RemoteError as error:
        _fail(f"{error.type_name}: {error}\n{error.remote_traceback}")
    except (shmrpc.ShmrpcError, ValueError) as error:
        _fail(str(error))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def ls(as_json: bool) -> None:
    """List live services: pid, uptime, endpoints, connections."""
    try:
        found = statuses()
    except shmrpc.ShmrpcError as error:
        _fail(str(error))
    if as_json:
        click.echo(json.dumps([msgspec.to_builtins(report) for report in found], indent=2))
        return
    if not found:
        click.echo(f"No live services in {leftovers.runtime_directory()}.")
        return
    rows = [("SERVICE", "PID", "UPTIME", "CONNECTIONS", "ENDPOINTS")]
    for report in found:
        uptime = f"{report.uptime:.0f} s"
        rows.append(
            (
                report.service,
                str(report.pid),
                uptime,
                str(report.connections),
                ", ".join(report.endpoints) or "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@main.command()
@click.option("--dry-run", is_flag=True, help="Only list it.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def cleanup(dry_run: bool, as_json: bool) -> None:
    """Remove what dead servers left, and nothing else."""
    text, status = leftovers.run(dry_run=dry_run, as_json=as_json)
    click.echo(text)
    sys.exit(status)


def _fail(message: str) -> NoReturn:
    raise click.ClickException(message)
