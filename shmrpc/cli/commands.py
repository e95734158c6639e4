"""The command line: serve, call, ls, cleanup, describe, stub."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import importlib
import io
import itertools
import json
import math
import os
import pwd
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

import click
import msgspec

from shmrpc.basics.printable import escaped
from shmrpc.basics.version import VERSION
from shmrpc.cli.values import is_text, read_argument, to_json, to_text
from shmrpc.errors import (
    ApplicationError,
    CallError,
    DeadlineExceeded,
    EndpointNotFound,
    InvalidArguments,
    RemoteError,
    ShmrpcError,
    WaitTimeout,
)
from shmrpc.host import cleanup as leftovers
from shmrpc.host import resource_limits
from shmrpc.host.standard_descriptors import keep_standard_descriptors
from shmrpc.host.status import collect_reports
from shmrpc.server.limits import DEFAULT_MAX_IN_FLIGHT, DEFAULT_MAX_PER_CONNECTION, DEFAULT_MAX_WAITING
from shmrpc.server.server import DEFAULT_GRACE
from shmrpc.supervisor.config import Config, ServeError
from shmrpc.supervisor.runner import run_here
from shmrpc.supervisor.targets import load_services
from shmrpc.transport.addresses import transport_at
from shmrpc.transport.connection_options import DEFAULT_CONNECT_TIMEOUT, DEFAULT_SPIN, ConnectionOptions, check_uids
from shmrpc.wire.control import DEFAULT_MAX_MEMORY
from shmrpc.wire.frames import DEFAULT_MAX_FRAME

if TYPE_CHECKING:  # A server's start is mostly imports: what only other commands need is imported there.
    from shmrpc import sync
    from shmrpc.discovery.members import Report
    from shmrpc.introspection.describe import Description


def option(*names: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option of a command, whose value may also come from SHMRPC_NAME in the environment."""
    name = next(each for each in names if each.startswith("--"))
    variable = f"SHMRPC_{name.lstrip('-').replace('-', '_').upper()}"
    defaults = {"envvar": variable, "show_envvar": True, "show_default": "default" in settings}
    return click.option(*names, **{**defaults, **settings})


def _count(name: str, default: int, least: int, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return option(name, type=click.IntRange(min=least), default=default, help=text)


def seconds(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """The value of an option that is a number of seconds. Raises BadParameter if it is none."""
    if value is not None and math.isnan(value):  # It is in any range.
        raise click.BadParameter(f"'{value}' is no number of seconds")
    return value


_codec = option(
    "--codec",
    type=click.Choice(["msgspec", "msgpack", "pickle"]),
    default="msgspec",
    help="msgspec, or msgpack for the reference package; pickle: with pickles of other types, for trusted peers.",
)
names_argument = click.argument("names", metavar="[NAME]...", nargs=-1)
as_json_option = option("--json", "as_json", is_flag=True, help="Print it as JSON.")
_max_frame = option("--max-frame", type=int, default=DEFAULT_MAX_FRAME, help="The largest body, in bytes.")
_timeout = option(
    "--timeout",
    type=click.FloatRange(min=0),
    callback=seconds,
    help="Seconds for all of it; 0: do not wait for a server to appear, then as long as it takes.  "
    f"[default: {DEFAULT_CONNECT_TIMEOUT:g} to connect, then as long as it takes]",
)


def _user(value: str) -> int:
    """The id of a user, from the id or the name."""
    if value.isdecimal():
        return int(value)
    try:
        return pwd.getpwnam(value).pw_uid
    except KeyError:
        raise click.BadParameter(f"there is no user {value!r} here; expected a name or an id") from None


def _one_or_several(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> str | list[str] | None:
    return [*values] if len(values) > 1 else values[0] if values else None


_at = option(
    "--at",
    metavar="URL",
    multiple=True,
    callback=_one_or_several,
    help="Where the service is met: shm, nats://HOST:PORT; shm if it is not given; can be repeated.",
)
_allow_uid = option(
    "--allow-uid",
    "allow_uids",
    type=_user,
    metavar="USER",
    multiple=True,
    help="A user to talk to, besides your own and root, by name or id; can be repeated.",
)

USAGE: Final = 2
NOT_AVAILABLE: Final = 3
CALL_FAILED: Final = 4
TOO_LATE: Final = 5
INTERRUPTED: Final = 128 + signal.SIGINT
_CODES = f"""Exit codes: {USAGE} if the usage, the endpoint or the arguments are wrong, {NOT_AVAILABLE} if the
service is not available or the connection is lost, or nobody has the name open or nothing is there,
{CALL_FAILED} if the call fails, {TOO_LATE} if its time is over, {INTERRUPTED} after Ctrl-C, 1 for anything else."""


#: The exit code of an error is that of the first class that it is of: a RemoteError may pass on any other.
_EXIT_CODES: Final[dict[type[ShmrpcError], int]] = {
    RemoteError: CALL_FAILED,
    DeadlineExceeded: TOO_LATE,
    EndpointNotFound: USAGE,
    InvalidArguments: USAGE,
    CallError: CALL_FAILED,
    WaitTimeout: TOO_LATE,
    ShmrpcError: NOT_AVAILABLE,
}


class CommandFailed(click.ClickException):
    """Ends a command with a message and an exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # In click it is a variable of the class.


#: Commands with commands of their own, and the modules where they are: imported by whoever asks for one.
_GROUPS: Final = {"queue": "shmrpc.cli.queues", "store": "shmrpc.cli.stores", "topic": "shmrpc.cli.topics"}


class Commands(click.Group):
    """Commands that fail with one message, and with an exit code that says how."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *_GROUPS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name in _GROUPS:
            command: click.Command = getattr(importlib.import_module(_GROUPS[cmd_name]), cmd_name)
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was given."""
        keep_standard_descriptors()
        sys.setrecursionlimit(10_000)  # Values may be nested as deeply as MessagePack allows.
        for stream in (sys.stdout, sys.stderr):  # A terminal that cannot show a character shows its number.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except ShmrpcError as error:
            code = next(code for kind, code in _EXIT_CODES.items() if isinstance(error, kind))
            raise CommandFailed(_told(error), code) from None
        except OSError as error:  # For example, a full disk behind a pipe. Click handles a reader that went away.
            if error.errno == errno.EPIPE or ctx.invoked_subcommand == "serve":
                raise
            raise CommandFailed(str(error)) from None
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


def _told(error: ShmrpcError) -> str:
    if isinstance(error, ApplicationError):
        return "\n".join([str(error), *(f"  {name}: {value!r}" for name, value in error.details.items())])
    if isinstance(error, RemoteError):
        return f"{error.type_name}: {error}\n{error.remote_traceback}".rstrip()
    return str(error)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_CODES)
@click.version_option(VERSION)
def main() -> None:
    """Call other Python processes on this host at memory speed."""


@main.command()
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@option("--workers", type=click.IntRange(min=1), help="How many processes serve.  [default: this one]")
@option("--reload", is_flag=True, help="Serve in one worker, and replace it when a .py file of the app dir changes.")
@option(
    "--app-dir",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    default=".",
    help="The folder in which modules are looked for first.",
)
@option(
    "--grace",
    type=click.FloatRange(min=0),
    callback=seconds,
    default=DEFAULT_GRACE,
    help="Seconds that calls under way have to end after the first SIGINT or SIGTERM.",
)
@option("--loop", type=click.Choice(["uvloop", "asyncio"]), default="uvloop", help="The event loop.")
@option(
    "--log-level",
    type=click.Choice(["critical", "error", "warning", "info", "debug"], case_sensitive=False),
    help="The least severe messages that are logged.  [default: info]",
)
@option("--access-log", is_flag=True, help="Log each call when it ends, to the logger shmrpc.access.")
@option(
    "--log-config",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="A file for logging.config: JSON, INI, or YAML if PyYAML is installed.",
)
@_count("--max-in-flight", DEFAULT_MAX_IN_FLIGHT, 1, "Calls that may be under way, in each worker.")
@_count("--max-per-connection", DEFAULT_MAX_PER_CONNECTION, 1, "Calls of one client that may be under way.")
@_count("--max-waiting", DEFAULT_MAX_WAITING, 0, "Calls that may wait for their turn, in each worker.")
@option(
    "--max-memory",
    type=int,
    default=DEFAULT_MAX_MEMORY,
    help="Bytes of shared memory for large results, for each connection.",
)
@option(
    "--at",
    metavar="URL",
    multiple=True,
    default=("shm",),
    show_default=True,
    help="Where the services are met: shm, nats://HOST:PORT; can be repeated.",
)
@option("--validate-results", is_flag=True, help="Fail a call whose result is not of the declared type, and log it.")
@option("--spin", type=float, default=DEFAULT_SPIN, help="The longest spin, in µs; 0: never spin.")
@_max_frame
@_codec
@_allow_uid
def serve(targets: tuple[str, ...], workers: int | None, reload: bool, **options: Any) -> None:
    """Serve the Service of each TARGET, all in one server.

    A TARGET is MODULE:SERVICE or FILE.py:SERVICE; MODULE or FILE.py alone if it has one Service; MODULE:FUNCTION() if
    the function makes it.

    SIGINT and SIGTERM stop it gently: no new calls, and those under way have --grace seconds to end. A second one
    stops it at once. Whatever hangs is named and ended by force; the exit code is then 1, otherwise 0;
    2 if a TARGET or an option is wrong.

    With --workers a worker that dies is replaced, and SIGHUP replaces each worker by a new one without losing a call.
    """
    if reload and workers is not None:
        raise click.UsageError("--reload serves in one worker; leave --workers away")
    connection = {field.name: options.pop(field.name) for field in dataclasses.fields(ConnectionOptions)}
    try:
        at = list(options.pop("at"))
        config = Config(targets=list(targets), connection=ConnectionOptions(**connection), at=at, **options)
    except ValueError as error:
        raise CommandFailed(str(error), USAGE) from None
    try:
        config.configure_logging()
        if reload or workers is not None:
            config.check_workers()
        if reload:
            from shmrpc.supervisor.reloading import supervise_reloading

            supervise_reloading(config, _greet)
        elif workers is not None:
            from shmrpc.supervisor.supervisor import supervise

            supervise(config, workers, _greet)
        else:
            services = load_services(config.targets, config.app_dir)
            offers = {service.name: list(service.endpoints) for service in services}
            run_here(config, services, lambda: _greet(offers))
    except ServeError as error:
        raise CommandFailed(str(error), USAGE if error.is_usage else 1) from None
    except ShmrpcError as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:  # For example, too few descriptors for a loop.
        number = resource_limits.descriptor_errno(error)
        if number is None:
            raise
        raise CommandFailed(str(resource_limits.no_descriptor_error(number, "to serve"))) from None


def _greet(offers: Mapping[str, Sequence[str]], workers: Sequence[int] = ()) -> None:
    """Say on stderr that it serves, and what."""
    services = ", ".join(map(repr, offers))
    processes = f"process {os.getpid()}"
    if workers:
        processes += f", {'worker' if len(workers) == 1 else 'workers'} {', '.join(map(str, workers))}"
    lists = [", ".join(endpoints) or "no endpoints" for endpoints in offers.values()]
    if len(offers) > 1:
        lists = [f"{service} with {endpoints}" for service, endpoints in zip(offers, lists, strict=True)]
    click.echo(f"Serving {services} ({processes}): {'; '.join(lists)}. Ctrl-C stops.", err=True)


@main.command(context_settings={"allow_interspersed_args": False}, epilog=_CODES)
@option("-k", "--keyword", "keywords", multiple=True, metavar="NAME=VALUE", help="A keyword argument.")
@option("--json", "as_json", is_flag=True, help="Print strict JSON, one line for each result or item.")
@_timeout
@_max_frame
@_codec
@_allow_uid
@_at
@click.argument("service")
@click.argument("endpoint")
@click.argument("arguments", nargs=-1)
def call(
    service: str,
    endpoint: str,
    arguments: tuple[str, ...],
    keywords: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Call ENDPOINT of SERVICE and print the result, or each item of a stream on a line of its own.

    An argument such as 1, true or [1,2] is read as JSON if the parameter takes that, and is text otherwise; '"5"' is
    always text. @FILE stands for the bytes of a file, or the array of a .npy file, and @- for standard input; for a
    parameter that takes a stream, for the lines, each read like an argument. '"@x"' is the text @x. Options come
    before SERVICE; an argument that is the name of one of them, such as --json, comes after a first --.
    """
    _check_no_options(endpoint, arguments)
    if "--" in arguments:  # By habit, before an argument that begins with a dash.
        dashes = arguments.index("--")
        arguments = arguments[:dashes] + arguments[dashes + 1 :]
    pairs = [keyword.partition("=") for keyword in keywords]
    if any(not name or not equals for name, equals, _ in pairs):
        raise click.UsageError("--keyword: expected NAME=VALUE")
    with _connected(service, **options) as client:
        args, kwargs = _read_arguments(client, endpoint, arguments, {name: text for name, _, text in pairs})
        result = client().call(endpoint, *args, **kwargs)
        if isinstance(result, Generator):
            for item in result:
                click.echo(to_json(item) if as_json else to_text(item, compact=True))
        else:
            click.echo(to_json(result) if as_json else to_text(result))


def _check_no_options(endpoint: str, arguments: Sequence[str]) -> None:
    """Raise UsageError if an option of the command stands behind the service; print the help if that is asked for."""
    ctx = click.get_current_context()
    own = {*ctx.help_option_names, *(name for parameter in ctx.command.params for name in parameter.opts)}
    for text in itertools.takewhile(lambda text: text != "--", (endpoint, *arguments)):
        name = text.partition("=")[0] if text.startswith("--") else text
        if name not in own or not name.startswith("-"):
            continue
        if name in ctx.help_option_names:
            click.echo(ctx.get_help())
            ctx.exit()
        raise click.UsageError(
            f"{name} comes after SERVICE: write options before it, and -- before arguments that begin with a dash"
        )


@contextlib.contextmanager
def _connected(service: str, *, timeout: float | None, **options: Any) -> Iterator[Callable[[], sync.Client]]:
    """Give the client, with what is left of the timeout for its next call.

    0 is for connecting alone, which is tried once: no call could end within 0 seconds.
    """
    from shmrpc import sync
    from shmrpc.cli.looped import looped

    end = time.monotonic() + timeout if timeout else math.inf
    if timeout is None:
        timeout = DEFAULT_CONNECT_TIMEOUT
    with contextlib.ExitStack() as stack:
        try:
            if _is_elsewhere(service, options["at"]):
                client: Any = stack.enter_context(looped(service, timeout=timeout, **options))
            else:
                client = stack.enter_context(sync.connect(service, timeout=timeout, **options))
        except (ValueError, ImportError) as error:
            raise click.UsageError(str(error)) from None
        yield lambda: client.with_options(timeout=max(0.0, end - time.monotonic()))


def _is_elsewhere(service: str, at: str | list[str] | None) -> bool:
    """Return True if threads cannot be clients of a service: it is met across hosts, or at several places."""
    return isinstance(at, list) or f"{at or ''}{service}".startswith("nats://")


def _read_arguments(
    client: Callable[[], sync.Client], endpoint: str, arguments: Sequence[str], keywords: Mapping[str, str]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of a call. The server is asked what the endpoint takes, unless all of them are text."""
    if all(map(is_text, (*arguments, *keywords.values()))):
        return arguments, keywords
    description = client().describe()
    parameters = next((each.parameters for each in description.endpoints if each.name == endpoint), [])
    by_name = {each.name: each for each in parameters if each.kind != "positional only"}
    others = {each.kind: each for each in parameters}
    positional = [each for each in parameters if each.kind.startswith("positional")]
    places = itertools.chain(positional, itertools.repeat(others.get("var positional")))
    return (
        [read_argument(text, each, description.types) for text, each in zip(arguments, places, strict=False)],
        {
            name: read_argument(text, by_name.get(name, others.get("var keyword")), description.types)
            for name, text in keywords.items()
        },
    )


@main.command()
@as_json_option
@_allow_uid
@_at
@names_argument
def ls(as_json: bool, allow_uids: tuple[int, ...], at: str | list[str] | None, names: tuple[str, ...]) -> None:
    """List what lives on this host, or has these names; with --at nats://HOST:PORT servers that reach the same NATS.

    Of services: name, kind, pid, health, uptime, connections (and those of each worker, by its pid, if there are
    several), endpoints. Of names that have members and no server (memory, semaphores, locks, events, queues, topics):
    name, kind, items that wait in a queue, bytes, how many wait, and the pids of the members, with what each holds. A
    pid is the one that you see: - for a process outside your container, which has none inside.
    """
    listed: list[Any] = []
    try:
        for place in at if isinstance(at, list) else [at]:
            if place is not None and _is_elsewhere("", place):
                listed += _list_elsewhere(place, names, as_json=as_json)
            else:
                if place is not None:
                    transport_at(place)
                listed += _list_here(allow_uids, names, as_json=as_json)
    except (ValueError, ImportError) as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps(listed, indent=2))


def _check_found(wanted: tuple[str, ...], found: set[str]) -> None:
    """Raise CommandFailed for a name that neither a service has, nor a process has open."""
    for name in wanted:
        if name not in found:
            text = f"{name!r}: no service and no process has this name; 'shmrpc ls' lists those that are there"
            raise CommandFailed(text, NOT_AVAILABLE)


def _list_here(allow_uids: tuple[int, ...], wanted: tuple[str, ...], *, as_json: bool) -> list[Any]:
    """Print what lives on this host, or return it for JSON."""
    from shmrpc.discovery.members import reports

    found = collect_reports(check_uids(allow_uids), lambda words: click.echo(words, err=True))
    names = reports(lambda words: click.echo(words, err=True))
    if wanted:
        _check_found(wanted, {each.service for each in found} | {each.name for each in names})
        found = [each for each in found if each.service in wanted]
        names = [each for each in names if each.name in wanted]
    if as_json:
        listed = [{"kind": leftovers.SERVICE} | msgspec.to_builtins(each) | {"pid": each.pid or None} for each in found]
        return [*listed, *map(msgspec.to_builtins, names)]
    if not found and not names:
        click.echo(f"No live services and no names with members in {leftovers.runtime_directory()}.")
        return []
    rows = [("NAME", "KIND", "PID", "HEALTH", "UPTIME", "CONNECTIONS", "ENDPOINTS")]
    for report in found:
        pid, uptime, endpoints = str(report.pid or "-"), f"{report.uptime:.0f} s", ", ".join(report.endpoints) or "-"
        connections = str(report.connections)
        if report.workers:
            connections += f" ({', '.join(f'{pid}: {count}' for pid, count in report.workers.items())})"
        rows.append((report.service, leftovers.SERVICE, pid, report.health, uptime, connections, endpoints))
    print_table(rows)
    print_names(names)
    return []


def _list_elsewhere(at: str, wanted: tuple[str, ...], *, as_json: bool) -> list[Any]:
    """Print the servers that reach this NATS, or return them for JSON."""
    from shmrpc.transport.nats.status import statuses as statuses_at  # Few need it.

    found = asyncio.run(statuses_at(transport_at(at).address))  # type: ignore[attr-defined]
    if wanted:
        _check_found(wanted, {each.report.service for each in found})
        found = [each for each in found if each.report.service in wanted]
    if as_json:
        return [{"host": each.host} | msgspec.to_builtins(each.report) for each in found]
    if not found:
        click.echo(f"No servers have answered at {transport_at(at)}.")
        return []
    rows = [("NAME", "HOST", "PID", "HEALTH", "UPTIME", "CONNECTIONS", "ENDPOINTS")]
    for each in found:
        said, endpoints = each.report, ", ".join(each.report.endpoints) or "-"
        uptime, connections = f"{said.uptime:.0f} s", str(said.connections)
        rows.append((said.service, each.host, str(said.pid), said.health, uptime, connections, endpoints))
    print_table(rows)
    return []


def print_names(names: Iterable[Report]) -> None:
    """Prints a table of names that have members."""
    lines = [("NAME", "KIND", "ITEMS", "BYTES", "WAITERS", "MEMBERS")]
    for name in names:
        members = ", ".join(f"{each.pid or '-'}{f' ({each.holds})' if each.holds else ''}" for each in name.members)
        items = "-" if name.depth is None else f"{name.depth:,}"
        lines.append((name.name, name.kind, items, f"{name.size:,}", str(name.waiters), members))
    print_table(lines)


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Prints a table, unless there is nothing below its head."""
    if len(rows) == 1:
        return
    rows = [tuple(map(escaped, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@main.command()
@option("--dry-run", is_flag=True, help="Only list it, and remove nothing.")
@as_json_option
def cleanup(dry_run: bool, as_json: bool) -> None:
    """Remove what dead processes left behind, and nothing else."""
    text, status = leftovers.run(dry_run=dry_run, as_json=as_json)
    click.echo(text)
    sys.exit(status)


@main.command()
@_timeout
@as_json_option
@_allow_uid
@_at
@click.argument("service")
def describe(
    service: str, timeout: float | None, as_json: bool, allow_uids: tuple[int, ...], at: str | list[str] | None
) -> None:
    """Print what the live SERVICE offers: signatures, types and docstrings."""
    description = _description(service, timeout=timeout, allow_uids=allow_uids, at=at)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(description), indent=2))
    else:
        click.echo(description.text)


@main.command()
@_timeout
@option("-o", "--output", type=click.File("w", lazy=True), default="-", help="The file to write; -: stdout.")
@_allow_uid
@_at
@click.argument("service")
def stub(
    service: str, timeout: float | None, output: IO[str], allow_uids: tuple[int, ...], at: str | list[str] | None
) -> None:
    """Print a .pyi file with typed clients of the live SERVICE, for programs without its source."""
    from shmrpc.cli.stubs import stub_text

    click.echo(stub_text(_description(service, timeout=timeout, allow_uids=allow_uids, at=at)), file=output, nl=False)


def _description(service: str, **options: Any) -> Description:
    with _connected(service, **options) as client:
        return client().describe()
