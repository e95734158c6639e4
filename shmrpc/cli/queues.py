"""The commands of ``shmrpc queue``: what is in queues, into them and out of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Final

import click
import msgspec

from shmrpc import sync
from shmrpc.cli.commands import (
    NOT_AVAILABLE,
    CommandFailed,
    as_json_option,
    names_argument,
    option,
    print_names,
    print_table,
    seconds,
)
from shmrpc.cli.items import other_kind, report_for, timeout_option, values_of
from shmrpc.cli.values import to_json, to_text
from shmrpc.discovery.members import members, reports
from shmrpc.errors import NameInUse, QueueEmpty, QueueFull, QueueShutDown, WaitTimeout

#: Seconds between two reports of how many items were removed.
_REPORT_AFTER: Final = 1.0
#: Characters of a column.
_WIDTH: Final = 13

_name = click.argument("name")


@click.group()
def queue() -> None:
    """See what is in queues, put items, get them.

    A NAME is that of a queue that some process has open. Items are JSON, one to a line; an item of a queue of raw bytes
    is text with base64.
    """


@contextlib.contextmanager
def _attached(name: str) -> Iterator[sync.Queue]:
    try:
        found = sync.attach(name, timeout=0)
    except NameInUse:  # It is what cannot be attached to.
        raise other_kind(name, "topic", "queue") from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except WaitTimeout:
        text = f"queue {name!r}: no process has it open; 'shmrpc queue ls' lists those that are"
        raise CommandFailed(text, NOT_AVAILABLE) from None
    if not isinstance(found, sync.Queue):
        found.close()
        kind = type(found).__name__.removeprefix("Blocking").lower()
        raise other_kind(name, kind, "queue")
    with found:
        yield found


@queue.command()
@as_json_option
@names_argument
def ls(as_json: bool, names: tuple[str, ...]) -> None:
    """List the queues that processes have open, or those of these names.

    Each with how many items wait, its bytes, how many wait for it, and the pids of the processes, with how many items
    each has claimed.
    """
    if names:
        found = [report_for(name, "queue") for name in dict.fromkeys(names)]
    else:
        found = [each for each in reports(lambda words: click.echo(words, err=True)) if each.depth is not None]
    if as_json:
        click.echo(json.dumps([msgspec.to_builtins(each) for each in found], indent=2))
    elif found:
        print_names(found)
    else:
        click.echo("No process has a queue open.")


@queue.command()
@option("-n", "--count", type=click.IntRange(min=1), default=10, help="How many.")
@as_json_option
@_name
def peek(name: str, count: int, as_json: bool) -> None:
    """Show the first items of the queue NAME, and leave them there.

    Of an item of over 16 KiB only the size is shown, and of one that cannot be read why not. Fewer are shown if they
    are many bytes.
    """
    with _attached(name) as found:
        items = found.peek(count)
        depth = found.qsize()
    if as_json:
        for item in items:
            shown = {each.name: getattr(item, each.name) for each in dataclasses.fields(item)}
            click.echo(to_json({**shown, "error": None if item.error is None else str(item.error)}))
        return
    rows = [("NUMBER", "DELIVERIES", "BYTES", "VALUE")]
    for item in items:
        if item.error is not None:
            text = f"cannot be read: {' '.join(str(item.error.__cause__).split())}"
        else:
            text = "..." if item.is_large else to_text(item.value, compact=True)
        rows.append((str(item.number), str(item.deliveries), f"{item.size:,}", text))
    print_table(rows)
    if depth > len(items):
        click.echo(f"and {depth - len(items):,} more")


@queue.command()
@timeout_option("room, for each item")
@_name
@click.argument("items", metavar="[JSON]...", nargs=-1)
def put(name: str, items: tuple[str, ...], timeout: float | None) -> None:
    """Put items into the queue NAME: those that are given, or else the lines of standard input.

    If one that is given is wrong, none is put.
    """
    done = 0
    with _attached(name) as found:
        values = values_of(items, found.raw, "queue")  # All that are given, before the first one is put.
        try:
            for item in values:
                try:
                    found.put(item, timeout)
                except ValueError as error:  # It is larger than the queue may ever be.
                    raise click.UsageError(str(error)) from None
                done += 1
        except (click.UsageError, QueueFull, QueueShutDown):
            if done:
                click.echo(f"{done} of the items were put", err=True)
            raise


@queue.command()
@option("-n", "--count", type=click.IntRange(min=1), default=1, help="How many.")
@timeout_option("all of them")
@_name
def get(name: str, count: int, timeout: float | None) -> None:
    """Get items of the queue NAME and print them as JSON, one to a line.

    An item is taken away once it is printed. If this command is stopped before, or cannot read it, the item comes back.
    """
    end = None if timeout is None else time.monotonic() + timeout
    with _attached(name) as found:
        for done in range(count):
            try:
                claim = found.claim(None if end is None else max(0.0, end - time.monotonic()))
            except QueueEmpty:
                raise QueueEmpty(f"queue {name!r}: {done} of {count} items came within {timeout:g} s") from None
            with claim:
                click.echo(to_json(claim.value))
                sys.stdout.flush()


@queue.command()
@_name
def drain(name: str) -> None:
    """Remove all items that wait in the queue NAME, and say how many those were."""
    removed, said = 0, time.monotonic()
    with _attached(name) as found:
        for _ in range(found.qsize()):  # Not what is put meanwhile: there may be no end of it.
            try:
                found.claim_nowait().ack()
            except (QueueEmpty, QueueShutDown):  # Others have got the rest.
                break
            removed += 1
            if time.monotonic() - said > _REPORT_AFTER:
                said = time.monotonic()
                click.echo(f"{removed:,} removed, {found.qsize():,} left", err=True)
    click.echo(f"{removed:,} {'item' if removed == 1 else 'items'} removed")


@queue.command()
@option("--every", type=click.FloatRange(min=0.01), default=1.0, callback=seconds, help="Seconds in between.")
@as_json_option
@_name
def watch(name: str, every: float, as_json: bool) -> None:
    """Print what can be seen of the queue NAME again and again, until Ctrl-C.

    Items that wait, that were ever put, that are not dealt with, that are claimed, and dead letters; bytes in use, and
    that the queue has; how many wait for an item, and for room. It ends once no other process has the queue open.
    """
    heads = ("ITEMS", "PUT", "UNFINISHED", "CLAIMED", "DEAD", "USED", "MEMORY", "GETTERS", "PUTTERS")
    with _attached(name) as found:
        if not as_json:
            click.echo(" ".join(head.rjust(_WIDTH) for head in heads))
        while any(member.pid != os.getpid() for member in members(name)):
            seen = found.stats()
            if as_json:
                click.echo(to_json(dataclasses.asdict(seen)))
            else:
                columns = [seen.depth, seen.put, seen.unfinished, len(seen.held), seen.dead]
                columns += [seen.used, seen.memory, seen.getters, seen.putters]
                click.echo(" ".join(f"{each:,}".rjust(_WIDTH) for each in columns))
            sys.stdout.flush()
            time.sleep(every)
    click.echo(f"queue {name!r}: no other process has it open any more", err=True)
