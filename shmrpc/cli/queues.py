"""The commands of ``shmrpc queue``."""

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
from shmrpc.basics.timeouts import end_of_wait, seconds_left
from shmrpc.cli.exit_codes import NOT_AVAILABLE, CommandFailed
from shmrpc.cli.items import parse_items
from shmrpc.cli.object_reports import find_reports, wrong_kind_error
from shmrpc.cli.options import as_json_option, check_seconds, names_argument, option, wait_timeout_option
from shmrpc.cli.tables import print_shared_objects, print_table
from shmrpc.cli.values import to_json, to_text
from shmrpc.discovery.members import members
from shmrpc.errors import NameConflict, QueueEmpty, QueueFull, QueueShutDown, WaitTimeout
from shmrpc.queues.claim import Claim

#: Seconds between two progress messages while items are removed.
_PROGRESS_INTERVAL: Final = 1.0
#: Characters of a column.
_COLUMN_WIDTH: Final = 13

_name_argument = click.argument("name")


class _QueueGroup(click.Group):
    """Group that gives the new name of a command that was renamed before the first release."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name; fail with a hint for the name of a renamed one."""
        if cmd_name == "drain":
            ctx.fail("'drain' was renamed: use 'purge', which discards the items, or 'get --all', which prints them")
        return super().get_command(ctx, cmd_name)


@click.group(cls=_QueueGroup)
def queue() -> None:
    """Inspect queues, put items, get items.

    NAME is the name of a queue that some process has open. Items are JSON, one per line; an item of a queue of raw
    bytes is text with base64.
    """


@contextlib.contextmanager
def _attached(name: str) -> Iterator[sync.Queue]:
    """Attach to a queue; yield the queue, and close it at the end.

    Raises CommandFailed if no process has the queue open, NameConflict if the name is of another kind, UsageError for
    a malformed name. Does not wait.
    """
    try:
        found = sync.attach(name, timeout=0)
    except NameConflict:  # The name is of a kind that has no attach().
        raise wrong_kind_error(name, "topic", "queue") from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except WaitTimeout:
        text = f"queue {name!r}: no process has it open; 'shmrpc queue ls' lists those that are"
        raise CommandFailed(text, NOT_AVAILABLE) from None
    if not isinstance(found, sync.Queue):
        found.close()
        kind = type(found).__name__.removeprefix("Blocking").lower()
        raise wrong_kind_error(name, kind, "queue")
    with found:
        yield found


@queue.command()
@as_json_option
@names_argument
def ls(as_json: bool, names: tuple[str, ...]) -> None:
    """List all open queues, or those with these names.

    Of each: the items that wait, bytes, the callers that wait, and the pids of its processes, with the number of items
    that each has claimed.
    """
    found = find_reports(names, "queue")
    if as_json:
        click.echo(json.dumps([msgspec.to_builtins(each) for each in found], indent=2))
    elif found:
        print_shared_objects(found)
    else:
        click.echo("No process has a queue open.")


@queue.command()
@option("-n", "--count", type=click.IntRange(min=1), default=10, help="Number of items.")
@as_json_option
@_name_argument
def peek(name: str, count: int, as_json: bool) -> None:
    """Print the first items of the queue NAME without removing them.

    Of an item over 16 KiB only the size is printed; of an item that cannot be read, the reason. Fewer items are printed
    if they are large.
    """
    with _attached(name) as found:
        items = found.peek(count)
        depth = found.qsize()
    if as_json:
        for item in items:
            fields = {each.name: getattr(item, each.name) for each in dataclasses.fields(item)}
            click.echo(to_json({**fields, "error": None if item.error is None else str(item.error)}))
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
@wait_timeout_option("room, for each item")
@_name_argument
@click.argument("items", metavar="[JSON]...", nargs=-1)
def put(name: str, items: tuple[str, ...], timeout: float | None) -> None:
    """Put items into the queue NAME: the arguments, or else the lines of standard input.

    If one of the arguments is malformed, no item is put.
    """
    done = 0
    with _attached(name) as found:
        values = parse_items(items, found.raw, "queue")  # Parses all arguments before the first item is put.
        try:
            for item in values:
                try:
                    found.put(item, timeout)
                except ValueError as error:  # The item exceeds the maximum size of the queue.
                    raise click.UsageError(str(error)) from None
                done += 1
        except (click.UsageError, QueueFull, QueueShutDown):
            if done:
                click.echo(f"{done} of the items were put", err=True)
            raise


@queue.command()
@option("-n", "--count", type=click.IntRange(min=1), help="Number of items.  [default: 1]")
@option("--all", "all_items", is_flag=True, help="At most as many items as wait now, without waiting for more.")
@wait_timeout_option("all items")
@_name_argument
def get(name: str, count: int | None, all_items: bool, timeout: float | None) -> None:
    """Get items of the queue NAME and print them as JSON, one per line.

    An item is removed once it is printed. If the command is stopped before, or cannot read the item, the item returns
    to the queue.
    """
    if all_items and (count is not None or timeout is not None):
        raise click.UsageError("--all does not wait, and takes neither --count nor --timeout")
    with _attached(name) as found:
        if all_items:
            for claim in _claim_waiting(found):
                _print_item(claim)
            return
        count = count or 1
        end = end_of_wait(timeout)
        for done in range(count):
            try:
                claim = found.claim(seconds_left(end))
            except QueueEmpty:
                raise QueueEmpty(f"queue {name!r}: {done} of {count} items came within {timeout:g} s") from None
            _print_item(claim)


def _print_item(claim: Claim) -> None:
    """Print an item, and remove it from its queue; return the item to the queue if that fails."""
    with claim:
        click.echo(to_json(claim.value))
        sys.stdout.flush()


def _claim_waiting(found: sync.Queue) -> Iterator[Claim]:
    """Claim items, at most as many as wait in a queue now, and yield the claims, which the caller ends.

    Ends early if no item is left, or the queue is shut down.
    """
    for _ in range(found.qsize()):
        try:
            yield found.claim_nowait()
        except (QueueEmpty, QueueShutDown):  # Other consumers have got the rest.
            return


@queue.command()
@_name_argument
def purge(name: str) -> None:
    """Discard all waiting items of the queue NAME, and print their number.

    `shmrpc queue get --all` prints the items instead.
    """
    removed, reported_at = 0, time.monotonic()
    with _attached(name) as found:
        for claim in _claim_waiting(found):
            claim.ack()
            removed += 1
            if time.monotonic() - reported_at > _PROGRESS_INTERVAL:
                reported_at = time.monotonic()
                click.echo(f"{removed:,} removed, {found.qsize():,} left", err=True)
    click.echo(f"{removed:,} {'item' if removed == 1 else 'items'} removed")


@queue.command()
@option(
    "--interval",
    type=click.FloatRange(min=0.01),
    default=1.0,
    callback=check_seconds,
    help="Seconds between two lines.",
)
@as_json_option
@_name_argument
def watch(name: str, interval: float, as_json: bool) -> None:
    """Print the statistics of the queue NAME at an interval, until Ctrl-C.

    Items: waiting, ever put, unfinished, claimed, dead letters. Bytes: in use, in total. Callers that wait for an item,
    and for room. The command ends once no other process has the queue open.
    """
    heads = ("ITEMS", "PUT", "UNFINISHED", "CLAIMED", "DEAD", "USED", "MEMORY", "GETTERS", "PUTTERS")
    with _attached(name) as found:
        if not as_json:
            click.echo(" ".join(head.rjust(_COLUMN_WIDTH) for head in heads))
        while any(member.pid != os.getpid() for member in members(name)):
            stats = found.stats()
            if as_json:
                click.echo(to_json(dataclasses.asdict(stats)))
            else:
                columns = [stats.depth, stats.put, stats.unfinished, len(stats.held), stats.dead]
                columns += [stats.used, stats.memory, stats.getters, stats.putters]
                click.echo(" ".join(f"{each:,}".rjust(_COLUMN_WIDTH) for each in columns))
            sys.stdout.flush()
            time.sleep(interval)
    click.echo(f"queue {name!r}: no other process has it open", err=True)
