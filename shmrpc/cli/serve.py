"""The command ``shmrpc serve``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from shmrpc.cli.exit_codes import USAGE, CommandFailed
from shmrpc.cli.options import (
    allow_user_option,
    check_seconds,
    codec_option,
    count_option,
    max_frame_option,
    option,
)
from shmrpc.errors import ShmrpcError
from shmrpc.host import resource_limits
from shmrpc.server.call_limiter import DEFAULT_MAX_IN_FLIGHT, DEFAULT_MAX_PER_CONNECTION, DEFAULT_MAX_WAITING
from shmrpc.server.server import DEFAULT_GRACE
from shmrpc.supervisor.config import ServeConfig, ServeError
from shmrpc.supervisor.runner import run_here
from shmrpc.supervisor.targets import load_services
from shmrpc.transport.connection_options import DEFAULT_SPIN, ConnectionOptions
from shmrpc.wire.control import DEFAULT_MAX_MEMORY


@click.command()
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@option("--workers", type=click.IntRange(min=1), help="Number of worker processes.  [default: serve in this process]")
@option("--reload", is_flag=True, help="Serve in one worker, and replace it when a .py file below --app-dir changes.")
@option(
    "--app-dir",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    default=".",
    help="Folder to import modules from first.",
)
@option(
    "--grace",
    type=click.FloatRange(min=0),
    callback=check_seconds,
    default=DEFAULT_GRACE,
    help="Seconds that calls in flight have to end after the first SIGINT or SIGTERM.",
)
@option("--loop", type=click.Choice(["uvloop", "asyncio"]), default="uvloop", help="Event loop.")
@option(
    "--log-level",
    type=click.Choice(["critical", "error", "warning", "info", "debug"], case_sensitive=False),
    help="Lowest severity to log.  [default: info]",
)
@option("--access-log", is_flag=True, help="Log each call when it ends, to the logger shmrpc.access.")
@option(
    "--log-config",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="File for logging.config: JSON, INI, or YAML if PyYAML is installed.",
)
@count_option("--max-in-flight", DEFAULT_MAX_IN_FLIGHT, 1, "Maximum number of calls in flight in each worker.")
@count_option("--max-per-connection", DEFAULT_MAX_PER_CONNECTION, 1, "Maximum number of calls in flight per client.")
@count_option("--max-waiting", DEFAULT_MAX_WAITING, 0, "Maximum number of calls queued in each worker.")
@option(
    "--max-memory",
    type=int,
    default=DEFAULT_MAX_MEMORY,
    help="Bytes of shared memory for large results, per connection.",
)
@option(
    "--at",
    metavar="URL",
    multiple=True,
    default=("shm",),
    show_default=True,
    help="Address of the services: shm or nats://HOST:PORT. Repeatable.",
)
@option("--validate-results", is_flag=True, help="Fail and log a call whose result does not match the declared type.")
@option("--spin", type=float, default=DEFAULT_SPIN, help="Longest spin, in µs; 0: never spin.")
@max_frame_option
@codec_option
@allow_user_option
def serve(targets: tuple[str, ...], workers: int | None, reload: bool, **options: Any) -> None:
    """Serve the Service of each TARGET in one server.

    A TARGET is MODULE:SERVICE or FILE.py:SERVICE; MODULE or FILE.py alone if it defines one Service; MODULE:FUNCTION()
    if the function returns the Service.

    SIGINT or SIGTERM stops the server gracefully: it refuses new calls, and calls in flight have --grace seconds to
    end. A second signal stops it at once. Code that hangs is named in the log and ended by force; the exit code is
    then 1, otherwise 0; 2 if a TARGET or an option is wrong.

    With --workers, a worker that dies is replaced, and SIGHUP replaces all workers, one by one, without losing a call.
    """
    if reload and workers is not None:
        raise click.UsageError("--reload serves in one worker; leave --workers away")
    connection = {field.name: options.pop(field.name) for field in dataclasses.fields(ConnectionOptions)}
    try:
        at = list(options.pop("at"))
        config = ServeConfig(targets=list(targets), connection=ConnectionOptions(**connection), at=at, **options)
    except ValueError as error:
        raise CommandFailed(str(error), USAGE) from None
    try:
        config.configure_logging()
        if reload or workers is not None:
            config.check_workers()
        if reload:
            from shmrpc.supervisor.reloading import supervise_reloading

            supervise_reloading(config, _announce)
        elif workers is not None:
            from shmrpc.supervisor.supervisor import supervise

            supervise(config, workers, _announce)
        else:
            services = load_services(config.targets, config.app_dir)
            endpoints = {service.name: list(service.endpoints) for service in services}
            run_here(config, services, lambda: _announce(endpoints))
    except ServeError as error:
        raise CommandFailed(str(error), USAGE if error.is_usage else 1) from None
    except ShmrpcError as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:  # For example, no descriptor left for an event loop.
        number = resource_limits.descriptor_errno(error)
        if number is None:
            raise
        raise CommandFailed(str(resource_limits.no_descriptor_error(number, "to serve"))) from None


def _announce(endpoints_by_service: Mapping[str, Sequence[str]], workers: Sequence[int] = ()) -> None:
    """Print to stderr the services and endpoints that are served now, and the process ids."""
    services = ", ".join(map(repr, endpoints_by_service))
    processes = f"process {os.getpid()}"
    if workers:
        processes += f", {'worker' if len(workers) == 1 else 'workers'} {', '.join(map(str, workers))}"
    lists = [", ".join(endpoints) or "no endpoints" for endpoints in endpoints_by_service.values()]
    if len(endpoints_by_service) > 1:
        lists = [f"{service} with {each}" for service, each in zip(endpoints_by_service, lists, strict=True)]
    click.echo(f"Serving {services} ({processes}): {'; '.join(lists)}. Ctrl-C stops.", err=True)
