"""The command line: serve, call, ls, cleanup, describe, stub.

Exit codes of those who ask a server: 2 for a usage that cannot be, endpoint and arguments included; 3 if the service is
not to be had; 4 if the call failed; 5 if its time was over; 130 after Ctrl-C; 1 for everything else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import itertools
import json
import math
import os
import pwd
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import IO, Any, Final, NoReturn

import click
import msgspec

from shmrpc import sync
from shmrpc.basics.version import VERSION
from shmrpc.cli.stubs import stub_text
from shmrpc.cli.values import is_text, read_argument, to_json, to_text
from shmrpc.errors import (
    ApplicationError,
    CallError,
    DeadlineExceeded,
    EndpointNotFound,
    InvalidArguments,
    RemoteError,
    ShmrpcError,
)
from shmrpc.host import cleanup as leftovers
from shmrpc.host import exhaustion
from shmrpc.host.status import statuses
from shmrpc.introspection.describe import Description
from shmrpc.server.limits import DEFAULT_MAX_IN_FLIGHT, DEFAULT_MAX_PER_CONNECTION, DEFAULT_MAX_WAITING
from shmrpc.server.server import DEFAULT_GRACE
from shmrpc.supervisor.config import Config, ServeError
from shmrpc.supervisor.reloading import supervise_reloading
from shmrpc.supervisor.runner import run_here
from shmrpc.supervisor.supervisor import supervise
from shmrpc.supervisor.targets import load_services
from shmrpc.transport.options import DEFAULT_CONNECT_TIMEOUT, DEFAULT_SPIN, ConnectionOptions, check_uids
from shmrpc.wire.control import DEFAULT_MAX_MEMORY
from shmrpc.wire.frames import DEFAULT_MAX_FRAME


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


class Seconds(click.FloatRange):
    """Seconds, 0 or more."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; NaN, which is in any range, is refused."""
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


_timeout = option(
    "--timeout",
    type=Seconds(),
    help="Seconds for all of it; 0: wait for no server to appear, then as long as it takes.  "
    f"[default: {DEFAULT_CONNECT_TIMEOUT:g} to connect, then as long as it takes]",
)


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


USAGE: Final = 2
NOT_AVAILABLE: Final = 3
CALL_FAILED: Final = 4
TOO_LATE: Final = 5
INTERRUPTED: Final = 128 + signal.SIGINT
_CODES = f"""Exit codes: {USAGE} if the usage, the endpoint or the arguments are wrong, {NOT_AVAILABLE} if the
service is not available or the connection is lost, {CALL_FAILED} if the call fails, {TOO_LATE} if its time is over,
{INTERRUPTED} after Ctrl-C, 1 for anything else."""


class Commands(click.Group):
    """Commands whose failures are one message, and an exit code that says of which kind they are."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command that was given."""
        sys.setrecursionlimit(10_000)  # Values may be nested as deeply as MessagePack allows.
        for stream in (sys.stdout, sys.stderr):  # A terminal that cannot show a character shows its number.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except ApplicationError as error:
            details = [f"  {name}: {value!r}" for name, value in error.details.items()]
            _fail("\n".join([str(error), *details]), CALL_FAILED)
        except RemoteError as error:  # Before the next: it may have passed on an inner call's.
            _fail(f"{error.type_name}: {error}\n{error.remote_traceback}".rstrip(), CALL_FAILED)
        except DeadlineExceeded as error:
            _fail(str(error), TOO_LATE)
        except (EndpointNotFound, InvalidArguments) as error:
            _fail(str(error), USAGE)
        except CallError as error:
            _fail(str(error), CALL_FAILED)
        except ShmrpcError as error:
            _fail(str(error), NOT_AVAILABLE)
        except OSError as error:  # As of a full disk behind a pipe. A reader that went away is click's.
            if error.errno == errno.EPIPE or ctx.invoked_subcommand == "serve":
                raise
            _fail(str(error), 1)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_CODES)
@click.version_option(VERSION)
def main() -> None:
    """Call other Python processes on this host at memory speed."""


@main.command()
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
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
    type=Seconds(),
    default=DEFAULT_GRACE,
    show_default=True,
    help="Seconds that calls under way have to end after the first SIGINT or SIGTERM.",
)
@option("--loop", type=click.Choice(["uvloop", "asyncio"]), default="uvloop", show_default=True, help="Which loop.")
@option("--log-level", type=click.Choice(_LEVELS, case_sensitive=False), help="What is logged.  [default: info]")
@option("--access-log", is_flag=True, help="Log each call when it ends, to the logger shmrpc.access.")
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
@option("--at", metavar="URL", default="shm://", show_default=True, help="Where the services are met.")
@option("--validate-results", is_flag=True, help="Fail a call whose result is not of the declared type, and log it.")
@option("--spin", type=float, default=DEFAULT_SPIN, show_default=True, help="Longest spin in µs; 0: never.")
@_max_frame
@_codec
@_allow_uid
def serve(targets: tuple[str, ...], workers: int | None, reload: bool, **options: Any) -> None:
    """Serve the Service of each TARGET, all in one server.

    A TARGET is MODULE:SERVICE or FILE.py:SERVICE; MODULE or FILE.py alone if it has one Service; MODULE:FUNCTION() if
    the function makes it.

    SIGINT and SIGTERM stop it gently: no new calls, and those under way have --grace seconds to end; the second
    one stops it at once. What hangs is named and does not hold up the end: then the exit code is 1, else 0.

    With --workers a worker that dies is replaced, and SIGHUP replaces each worker by a
    new one without a lost call.
    """
    if reload and workers is not None:
        raise click.UsageError("--reload serves in one worker; leave --workers away")
    connection = {field.name: options.pop(field.name) for field in dataclasses.fields(ConnectionOptions)}
    try:
        config = Config(targets=list(targets), connection=_connection_options(connection), **options)
        config.configure_logging()
        if reload or workers is not None:
            config.check_workers()
        if reload:
            supervise_reloading(config, _greet)
        elif workers is not None:
            supervise(config, workers, _greet)
        else:
            services = load_services(config.targets, config.app_dir)
            offers = {service.name: list(service.endpoints) for service in services}
            run_here(config, services, lambda: _greet(offers))
    except (ServeError, ShmrpcError) as error:
        _fail(str(error), 1)
    except OSError as error:  # As of a loop for which there are too few descriptors.
        number = exhaustion.descriptor_error(error)
        if number is None:
            raise
        _fail(str(exhaustion.descriptors(number, "to serve")), 1)


def _connection_options(options: dict[str, Any]) -> ConnectionOptions:
    try:
        return ConnectionOptions(**options)
    except ValueError as error:
        raise ServeError(str(error)) from None


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


@main.command(context_settings={"allow_interspersed_args": False}, epilog=_CODES)
@option("-k", "--keyword", "keywords", multiple=True, metavar="NAME=VALUE", help="A keyword argument.")
@option("--json", "as_json", is_flag=True, help="Print strict JSON, one line for each result or item.")
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
    as_json: bool,
    **options: Any,
) -> None:
    """Call ENDPOINT of SERVICE and print the result; each item of a stream in a line of its own.

    An argument such as 1, true or [1,2] is read as JSON if the parameter takes that, and is text otherwise; '"5"' is
    always text. @FILE stands for the bytes of a file, or the array of a .npy file, and @- for standard input; for a
    parameter that takes a stream, for the lines, each read like an argument. '"@x"' is the text @x. Options come
    before SERVICE; everything after it belongs to the endpoint, except a first --.
    """
    if "--" in arguments:  # It is said by habit, before what begins with a dash.
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


@contextlib.contextmanager
def _connected(service: str, *, timeout: float | None, **options: Any) -> Iterator[Callable[[], sync.Client]]:
    """Gives the client, whose next call is to end when the timeout of the whole does.

    0 is one try to connect, and leaves the call its time: no call ends within nothing.
    """
    end = time.monotonic() + timeout if timeout else math.inf
    if timeout is None:
        timeout = DEFAULT_CONNECT_TIMEOUT
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(sync.connect(service, timeout=timeout, **options))
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        yield lambda: client.with_options(timeout=max(0.0, end - time.monotonic()))


def _read_arguments(
    client: Callable[[], sync.Client], endpoint: str, arguments: Sequence[str], keywords: Mapping[str, str]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of a call; what the endpoint takes is asked for only if they could be anything but text."""
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
@option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@_allow_uid
def ls(as_json: bool, allow_uids: tuple[int, ...]) -> None:
    """List live services: pid, health, uptime, endpoints, connections.

    The pid is as you see it: - for a server outside of your container, which has none there.
    """
    try:
        found = statuses(check_uids(allow_uids), lambda words: click.echo(words, err=True))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(
            json.dumps([msgspec.to_builtins(report) | {"pid": report.pid or None} for report in found], indent=2)
        )
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
                str(report.pid or "-"),
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
def describe(service: str, timeout: float | None, as_json: bool, allow_uids: tuple[int, ...]) -> None:
    """Print what the live SERVICE offers: signatures, types and docstrings."""
    description = _description(service, timeout=timeout, allow_uids=allow_uids)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(description), indent=2))
    else:
        click.echo(description.text)


@main.command()
@_timeout
@option("-o", "--output", type=click.File("w", lazy=True), default="-", help="Where to write it; -: to stdout.")
@_allow_uid
@click.argument("service")
def stub(service: str, timeout: float | None, output: IO[str], allow_uids: tuple[int, ...]) -> None:
    """Print a .pyi file with typed clients of the live SERVICE, for those who have not its source."""
    click.echo(stub_text(_description(service, timeout=timeout, allow_uids=allow_uids)), file=output, nl=False)


def _description(service: str, **options: Any) -> Description:
    with _connected(service, **options) as client:
        return client().describe()


class CommandFailed(click.ClickException):
    """What ends a command: a message, and the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # Of click's class it is a variable.


def _fail(message: str, code: int) -> NoReturn:
    raise CommandFailed(message, code)
