"""The command ``shmrpc ls``."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click
import msgspec

from shmrpc.cli.exit_codes import NOT_AVAILABLE, CommandFailed
from shmrpc.cli.options import allow_user_option, as_json_option, at_option, names_argument
from shmrpc.cli.service_client import needs_event_loop
from shmrpc.cli.tables import print_shared_objects, print_table
from shmrpc.discovery.members import inspect_all_objects
from shmrpc.host.cleanup import SERVICE, runtime_directory
from shmrpc.host.status import collect_reports
from shmrpc.transport.addresses import transport_at
from shmrpc.transport.connection_options import check_uids


@click.command()
@as_json_option
@allow_user_option
@at_option
@names_argument
def ls(as_json: bool, allow_uids: tuple[int, ...], at: str | list[str] | None, names: tuple[str, ...]) -> None:
    """List the services and shared objects of this host, or those with these names.

    With --at nats://HOST:PORT, list the servers that reach the same NATS server.

    Of a service: name, kind, pid, health, uptime, connections (per worker, by pid, if there are several), endpoints. Of
    a shared object (memory, semaphore, lock, event, queue, topic, store): name, kind, items in a queue, bytes, waiters,
    and the pids of its members, with what each holds. A pid is valid in your pid namespace: - stands for a process
    outside your container.
    """
    listed: list[Any] = []
    try:
        for address in at if isinstance(at, list) else [at]:
            if address is not None and needs_event_loop("", address):
                listed += _list_remote(address, names, as_json=as_json)
            else:
                if address is not None:
                    transport_at(address)
                listed += _list_local(allow_uids, names, as_json=as_json)
    except (ValueError, ImportError) as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps(listed, indent=2))


def _check_found(wanted: tuple[str, ...], found: set[str]) -> None:
    """Raise CommandFailed for a name that no service and no shared object has."""
    for name in wanted:
        if name not in found:
            text = f"{name!r}: no service and no process has this name; 'shmrpc ls' lists those that are there"
            raise CommandFailed(text, NOT_AVAILABLE)


def _list_local(allow_uids: tuple[int, ...], wanted: tuple[str, ...], *, as_json: bool) -> list[Any]:
    """Print the services and shared objects of this host. With ``as_json``, return them instead of printing.

    Raises CommandFailed for a name in ``wanted`` that is not there; an empty ``wanted`` means all.
    """
    services = collect_reports(check_uids(allow_uids), lambda message: click.echo(message, err=True))
    shared_objects = inspect_all_objects(lambda message: click.echo(message, err=True))
    if wanted:
        _check_found(wanted, {each.service for each in services} | {each.name for each in shared_objects})
        services = [each for each in services if each.service in wanted]
        shared_objects = [each for each in shared_objects if each.name in wanted]
    if as_json:
        listed = [{"kind": SERVICE} | msgspec.to_builtins(each) | {"pid": each.pid or None} for each in services]
        return [*listed, *map(msgspec.to_builtins, shared_objects)]
    if not services and not shared_objects:
        click.echo(f"No live services and no shared objects in {runtime_directory()}.")
        return []
    rows = [("NAME", "KIND", "PID", "HEALTH", "UPTIME", "CONNECTIONS", "ENDPOINTS")]
    for report in services:
        pid, uptime, endpoints = str(report.pid or "-"), f"{report.uptime:.0f} s", ", ".join(report.endpoints) or "-"
        connections = str(report.connections)
        if report.workers:
            connections += f" ({', '.join(f'{pid}: {count}' for pid, count in report.workers.items())})"
        rows.append((report.service, SERVICE, pid, report.health, uptime, connections, endpoints))
    print_table(rows)
    print_shared_objects(shared_objects)
    return []


def _list_remote(at: str, wanted: tuple[str, ...], *, as_json: bool) -> list[Any]:
    """Print the servers that reach a NATS server. With ``as_json``, return them instead of printing.

    Raises CommandFailed for a name in ``wanted`` that is not there, ImportError without nats-py, ServiceUnavailable if
    NATS cannot be reached.
    """
    from shmrpc.transport.nats.status import statuses  # Imports nats-py, which few installations have.

    found = asyncio.run(statuses(transport_at(at).address))  # type: ignore[attr-defined]
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
        report, endpoints = each.report, ", ".join(each.report.endpoints) or "-"
        uptime, connections = f"{report.uptime:.0f} s", str(report.connections)
        rows.append((report.service, each.host, str(report.pid), report.health, uptime, connections, endpoints))
    print_table(rows)
    return []
