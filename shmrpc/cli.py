"""The command line: serve, call, ls, cleanup, describe, stub."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NoReturn

import click
import msgspec

import shmrpc
from shmrpc.introspection.stubs import stub_text
from shmrpc.options import DEFAULT_CONNECT_TIMEOUT, DEFAULT_SPIN, check_uids
from shmrpc.protocol.control import DEFAULT_MAX_MEMORY
from shmrpc.protocol.frames import DEFAULT_MAX_FRAME
from shmrpc.server import DEFAULT_GRACE, DEFAULT_MAX_IN_FLIGHT, DEFAULT_MAX_PER_CONNECTION, DEFAULT_MAX_WAITING
from shmrpc.serving.config import Config, ServeError
from shmrpc.serving.reloading import supervise_reloading
from shmrpc.serving.running import run_here
from shmrpc.serving.supervisor import supervise
from shmrpc.serving.targets import load_services
from shmrpc.transport.shm import cleanup as leftovers
from shmrpc.transport.shm.status import statuses


def option(*names: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option of a command; its value may come from SHMRPC_NAME in the environment, too."""
    name = next(each for each in names if each.startswith("--"))
    variable = f"SHMRPC_{name.lstrip('-').replace('-', '_').upper()}"
    return click.option(*names, **{"envvar": variable, "show_envvar": True, **settings})


_codec = option(
    "--codec",
    type=click.Choice(["msgspec", "msgpack", "pickle"]),
    default="msgspec",
    show_default=True,
    help="Which MessagePack; pickle: with pickles of other types, for peers that you trust.",
)
_max_frame = option(
    "--max-frame", type=int, default=DEFAULT_MAX_FRAME, show_default=True, help="Largest body in bytes."
)
_timeout = option("--timeout", type=float, default=DEFAULT_CONNECT_TIMEOUT, show_default=True, help="Seconds to wait.")


def _user(value: str) -> int:
    """The id of a user who is given by id or name."""
    if value.isdecimal():
        return int(value)
    try:
        return pwd.getpwnam(value).pw_uid
    except KeyError:
        raise click.BadParameter(f"there is no user {value!r} here; expected a name or an id") from None


_allow_uid = option(
    "--allow-uid",
    "allow_uids",
    type=_user,
    metavar="USER",
    multiple=True,
    help="A user to speak with, besides your own and root; by name or id, any number of times.",
)
_LEVELS = ["critical", "error", "warning", "info", "debug"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(shmrpc.__version__)
def main() -> None:
    """Call other Python processes on this host at memory speed."""


@main.command()
@click.argument("targets", metavar="MODULE:SERVICE...", nargs=-1, required=True)
@option("--workers", type=click.IntRange(min=1), help="Serve in so many processes.  [default: in this one]")
@option("--reload", is_flag=True, help="Serve in one worker, and replace it when a .py file of the app dir changes.")
@option(
    "--app-dir",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    default=".",
    show_default=True,
    help="Where modules are looked for first.",
)
@option(
    "--grace",
    type=click.FloatRange(min=0),
    default=DEFAULT_GRACE,
    show_default=True,
    help="Seconds that calls under way have to end after the first SIGINT or SIGTERM.",
)
@option("--loop", type=click.Choice(["uvloop", "asyncio"]), default="uvloop", show_default=True, help="Which loop.")
@option("--log-level", type=click.Choice(_LEVELS, case_sensitive=False), help="What is logged.  [default: info]")
@option(
    "--log-config",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="A file for logging.config: JSON, INI, or YAML if PyYAML is installed.",
)
@option(
    "--max-in-flight",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_IN_FLIGHT,
    show_default=True,
    help="Calls that may be under way, in each worker.",
)
@option(
    "--max-per-connection",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_PER_CONNECTION,
    show_default=True,
    help="Calls of one client that may be under way.",
)
@option(
    "--max-waiting",
    type=click.IntRange(min=0),
    default=DEFAULT_MAX_WAITING,
    show_default=True,
    help="Calls that may wait for their turn, in each worker.",
)
@option(
    "--max-memory",
    type=int,
    default=DEFAULT_MAX_MEMORY,
    show_default=True,
    help="Bytes of shared memory for large results, for each connection.",
)
@option("--spin", type=float, default=DEFAULT_SPIN, show_default=True, help="Longest spin in µs; 0: never.")
@_max_frame
@_codec
@_allow_uid
def serve(targets: tuple[str, ...], workers: int | None, reload: bool, **options: Any) -> None:
    """Serve each Service that its MODULE has under this name, all in one server.

    SIGINT and SIGTERM stop it gently: no new calls, and those under way have --grace seconds to end; the second
    one stops it at once. What hangs is named and does not hold up the end: then the exit code is 1, else 0.

    With --workers a worker that dies is replaced, and SIGHUP replaces each worker by a
    new one without a lost call.
    """
    if reload and workers is not None:
        raise click.UsageError("--reload serves in one worker; leave --workers away")
    config = Config(targets=list(targets), **options)
    try:
        config.configure_logging()
        if reload:
            supervise_reloading(config, _greet)
        elif workers is not None:
            supervise(config, workers, _greet)
        else:
            services = load_services(config.targets, config.app_dir)
            offers = {service.name: list(service.endpoints) for service in services}
            run_here(config, services, lambda: _greet(offers))
    except (ServeError, shmrpc.ShmrpcError) as error:
        _fail(str(error))


def _greet(offers: Mapping[str, Sequence[str]], workers: Sequence[int] = ()) -> None:
    """Says that it serves."""
    services = ", ".join(map(repr, offers))
    processes = f"process {os.getpid()}"
    if workers:
        processes += f", {'worker' if len(workers) == 1 else 'workers'} {', '.join(map(str, workers))}"
    lists = [", ".join(endpoints) or "no endpoints" for endpoints in offers.values()]
    if len(offers) > 1:
        lists = [f"{service} with {endpoints}" for service, endpoints in zip(offers, lists, strict=True)]
    click.echo(f"Serving {services} ({processes}): {'; '.join(lists)}. Ctrl-C stops.", err=True)


@main.command(context_settings={"allow_interspersed_args": False})
@option("-k", "--keyword", "keywords", multiple=True, metavar="NAME=VALUE", help="A keyword argument.")
@_timeout
@_max_frame
@_codec
@_allow_uid
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
    allow_uids: tuple[int, ...],
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
        with shmrpc.sync.connect(
            service, timeout=timeout, max_frame=max_frame, codec=codec, allow_uids=allow_uids
        ) as client:
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
@option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@_allow_uid
def ls(as_json: bool, allow_uids: tuple[int, ...]) -> None:
    """List live services: pid, health, uptime, endpoints, connections."""
    try:
        found = statuses(check_uids(allow_uids))
    except (shmrpc.ShmrpcError, ValueError) as error:
        _fail(str(error))
    if as_json:
        click.echo(json.dumps([msgspec.to_builtins(report) for report in found], indent=2))
        return
    if not found:
        click.echo(f"No live services in {leftovers.runtime_directory()}.")
        return
    rows = [("SERVICE", "PID", "HEALTH", "UPTIME", "CONNECTIONS", "ENDPOINTS")]
    for report in found:
        uptime = f"{report.uptime:.0f} s"
        rows.append(
            (
                report.service,
                str(report.pid),
                report.health,
                uptime,
                str(report.connections),
                ", ".join(report.endpoints) or "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@main.command()
@option("--dry-run", is_flag=True, help="Only list it.")
@option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def cleanup(dry_run: bool, as_json: bool) -> None:
    """Remove what dead servers left, and nothing else."""
    text, status = leftovers.run(dry_run=dry_run, as_json=as_json)
    click.echo(text)
    sys.exit(status)


@main.command()
@_timeout
@option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@_allow_uid
@click.argument("service")
def describe(service: str, timeout: float, as_json: bool, allow_uids: tuple[int, ...]) -> None:
    """Print what the live SERVICE offers: signatures, types and docstrings."""
    description = _description(service, timeout, allow_uids)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(description), indent=2))
    else:
        click.echo(description.text)


@main.command()
@_timeout
@option("-o", "--output", type=click.File("w", lazy=True), default="-", help="Where to write it; -: to stdout.")
@_allow_uid
@click.argument("service")
def stub(service: str, timeout: float, output: IO[str], allow_uids: tuple[int, ...]) -> None:
    """Print a .pyi file with typed clients of the live SERVICE, for those who have not its source."""
    click.echo(stub_text(_description(service, timeout, allow_uids)), file=output, nl=False)


def _description(service: str, timeout: float, allow_uids: tuple[int, ...]) -> shmrpc.Description:
    try:
        with shmrpc.sync.connect(service, timeout=timeout, allow_uids=allow_uids) as client:
            return client.describe()
    except (shmrpc.ShmrpcError, ValueError) as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    raise click.ClickException(message)
