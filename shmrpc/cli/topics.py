"""The commands of ``shmrpc topic``."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Final

import click
import msgspec

from shmrpc import sync
from shmrpc.cli.items import parse_items
from shmrpc.cli.object_reports import find_reports, report_for
from shmrpc.cli.options import as_json_option, names_argument, wait_timeout_option
from shmrpc.cli.tables import print_table
from shmrpc.cli.values import to_json
from shmrpc.discovery.members import PublisherReport, inspect_object
from shmrpc.errors import DecodeError, TopicFull, WaitTimeout
from shmrpc.topics.slow_policy import Disconnect, KeepLast
from shmrpc.topics.topic_base import Subscriber

#: Maximum number of messages per read, and of messages that wait to be printed.
_MAX_MESSAGES: Final = 1000
#: The class of each policy that has a number.
_POLICY_CLASSES: Final = {"keep_last": KeepLast.__name__, "disconnect": Disconnect.__name__}
#: Seconds without a message after which the command checks that other processes have the topic open; also the interval
#: of rates and of missed messages.
_INTERVAL: Final = 1.0
#: Characters of a column.
_COLUMN_WIDTH: Final = 15

_name_argument = click.argument("name")


@click.group()
def topic() -> None:
    """List publishers and subscribers, print messages, publish messages.

    NAME is the name of a topic that some process has open. Messages are JSON, one per line; a message of a topic of raw
    bytes is text with base64.
    """


@topic.command()
@as_json_option
@names_argument
def ls(as_json: bool, names: tuple[str, ...]) -> None:
    """List all open topics, or those with these names.

    Of each publisher: the messages that it has published. Of each subscriber: its policy for slow subscribers, the
    messages that it is behind and has missed, and the bytes of arrays that it keeps. MEMBER is the pid of the process.
    """
    found = find_reports(names, "topic")
    if as_json:
        click.echo(json.dumps([msgspec.to_builtins(each) for each in found], indent=2))
        return
    if not found:
        click.echo("No process has a topic open.")
        return
    rows: list[tuple[str, ...]] = [("NAME", "MEMBER", "ROLE", "POLICY", "MESSAGES", "BEHIND", "MISSED", "KEPT")]
    for each in found:
        roles = [*map(_publisher_row, each.publishers or ()), *map(_subscriber_row, each.subscribers or ())]
        rows += [(each.name, *role) for role in roles or [("-",) * 7]]
    print_table(rows)


def _publisher_row(publisher: PublisherReport) -> tuple[str, ...]:
    """Return the row of a publisher in the table of topics."""
    return str(publisher.pid or "-"), "publishes", "-", _format_count(publisher.messages), "-", "-", "-"


def _subscriber_row(subscriber: Subscriber) -> tuple[str, ...]:
    """Return the row of a subscriber in the table of topics."""
    policy = f"{_POLICY_CLASSES[subscriber.policy]}({subscriber.number})" if subscriber.number else subscriber.policy
    counts = map(_format_count, (subscriber.lag, subscriber.lost, subscriber.kept))
    return str(subscriber.pid or "-"), "subscribes", policy, "-", *counts


def _format_count(count: int | None) -> str:
    """Return a count with thousands separators; return "-" if it is unknown."""
    return "-" if count is None else f"{count:,}"


@topic.command()
@click.option("--rate", is_flag=True, help="Print messages and bytes per second instead of the messages.")
@_name_argument
def watch(name: str, rate: bool) -> None:
    """Print the messages of the topic NAME as they come, until Ctrl-C.

    Each line is JSON: the pid of the publisher, the message's sequence number, and its value. Publishers do not wait
    for this command: it skips the messages that it cannot keep up with, and prints their number.

    With --rate, print a line per publisher and second: its pid, messages and bytes per second, and messages in total.

    The command ends once no other process has the topic open.
    """
    raw = report_for(name, "topic").raw
    if rate:
        _print_rates(name)
    else:
        _print_messages(name, raw)
    click.echo(f"topic {name!r}: no other process has it open", err=True)


def _is_only_member(name: str) -> bool:
    """Return True if no other process has the topic open."""
    found = inspect_object(name)
    return found is None or all(member.pid == os.getpid() for member in found.members)


def _print_messages(name: str, raw: bool) -> None:
    """Print messages as they come, until no other process has the topic open."""
    with sync.subscribe(name, slow_policy=KeepLast(_MAX_MESSAGES), raw=raw) as found:
        reported_lost, since = 0, time.monotonic()
        try:
            while True:
                try:
                    messages = found.get_many(_MAX_MESSAGES, _INTERVAL)
                except WaitTimeout:
                    if _is_only_member(name):
                        return
                    continue
                except DecodeError as error:
                    click.echo(str(error), err=True)
                    continue
                for each in messages:
                    record = {"publisher": each.publisher.pid, "seq": each.seq, "value": each.value}
                    sys.stdout.write(to_json(record) + "\n")
                sys.stdout.flush()
                if time.monotonic() - since > _INTERVAL:
                    reported_lost, since = _report_missed(found.lost, reported_lost), time.monotonic()
        finally:
            _report_missed(found.lost, reported_lost)


def _report_missed(lost: int, reported: int) -> int:
    """Print the number of messages missed since the last report; return ``lost``, the number missed in total."""
    missed = lost - reported
    if missed > 0:
        click.echo(f"{missed:,} {'message' if missed == 1 else 'messages'} missed", err=True)
    return lost


def _print_rates(name: str) -> None:
    """Print rates at an interval until no process has the topic open.

    The rates come from the publishers' own counters, which costs them nothing: no message is read.
    """
    click.echo(" ".join(head.rjust(_COLUMN_WIDTH) for head in ("PUBLISHER", "MESSAGES/S", "BYTES/S", "MESSAGES")))
    before: dict[int, tuple[int, int]] = {}
    since = time.monotonic()
    while (found := inspect_object(name)) is not None:
        now = time.monotonic()
        for each in found.publishers or ():
            messages, size = each.messages or 0, each.bytes or 0
            if each.number in before:
                rates = [(a - b) / (now - since) for a, b in zip((messages, size), before[each.number], strict=True)]
                columns = [str(each.pid or "-"), *(f"{rate:,.0f}" for rate in rates), _format_count(each.messages)]
                click.echo(" ".join(column.rjust(_COLUMN_WIDTH) for column in columns))
            before[each.number] = messages, size
        since = now
        time.sleep(_INTERVAL)


@topic.command()
@wait_timeout_option("room, for each message")
@_name_argument
@click.argument("messages", metavar="[JSON]...", nargs=-1)
def publish(name: str, messages: tuple[str, ...], timeout: float | None) -> None:
    """Publish messages in the topic NAME: the arguments, or else the lines of standard input.

    If one of the arguments is malformed, no message is published. A malformed line ends the command after the messages
    of the lines before it. Only present subscribers get the messages; without any, the command prints a note.

    If a message is malformed or finds no room in time, the command prints the number of messages published so far.
    """
    done, raw = 0, report_for(name, "topic").raw
    with sync.topic(name, raw=raw) as found:
        values = parse_items(messages, raw, "topic")  # Parses all arguments before the first message is published.
        try:
            for value in values:
                try:
                    found.publish(value, timeout)
                except ValueError as error:  # The message exceeds the memory for slow subscribers.
                    raise click.UsageError(str(error)) from None
                done += 1
        except (click.UsageError, TopicFull):
            if done:
                click.echo(f"{done} of the messages were published", err=True)
            raise
        if not found.subscribers():
            click.echo(f"topic {name!r}: no subscribers", err=True)
