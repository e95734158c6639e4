"""The commands of ``shmrpc topic``: who publishes and who subscribes, what comes, and at what rate."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Final

import click
import msgspec

from shmrpc import sync
from shmrpc.cli.commands import as_json_option, names_argument, print_table
from shmrpc.cli.items import report_for, timeout_option, values_of
from shmrpc.cli.values import to_json
from shmrpc.discovery.members import Publishing, report_of, reports
from shmrpc.errors import DecodeError, TopicFull, WaitTimeout
from shmrpc.topics.subscription_base import keep_last
from shmrpc.topics.topic_base import Subscriber

#: Messages that are read at a time, and that may wait to be printed.
_KEPT: Final = 1000
#: Seconds without a message after which it is looked whether anybody else has the topic open.
_LOOK_AFTER: Final = 1.0
#: Characters of a column.
_WIDTH: Final = 15

_name = click.argument("name")


@click.group()
def topic() -> None:
    """See who publishes and subscribes, print messages, publish some.

    A NAME is that of a topic that some process has open. What is published is JSON, one message to a line; a message of
    a topic of raw bytes is text with base64.
    """


@topic.command()
@as_json_option
@names_argument
def ls(as_json: bool, names: tuple[str, ...]) -> None:
    """List the topics that processes have open, or those of these names.

    Each with its publishers, and how many messages those have published; and its subscribers, what happens if they are
    slow, how many messages they are behind, and have missed, and how many bytes of arrays they keep. MEMBER is the pid
    of the process.
    """
    if names:
        found = [report_for(name, "topic") for name in dict.fromkeys(names)]
    else:
        found = [each for each in reports(lambda words: click.echo(words, err=True)) if each.publishers is not None]
    if as_json:
        click.echo(json.dumps([msgspec.to_builtins(each) for each in found], indent=2))
        return
    if not found:
        click.echo("No process has a topic open.")
        return
    rows: list[tuple[str, ...]] = [("NAME", "MEMBER", "ROLE", "POLICY", "MESSAGES", "BEHIND", "MISSED", "KEPT")]
    for each in found:
        roles = [*map(_publishing, each.publishers or ()), *map(_subscribing, each.subscribers or ())]
        rows += [(each.name, *role) for role in roles or [("-",) * 7]]
    print_table(rows)


def _publishing(seen: Publishing) -> tuple[str, ...]:
    return str(seen.pid or "-"), "publishes", "-", _number(seen.messages), "-", "-", "-"


def _subscribing(seen: Subscriber) -> tuple[str, ...]:
    number = f"({seen.number})" if seen.number else ""
    counts = map(_number, (seen.lag, seen.lost, seen.kept))
    return str(seen.pid or "-"), "subscribes", f"{seen.policy}{number}", "-", *counts


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


@topic.command()
@click.option("--rate", is_flag=True, help="Print how many messages and bytes come each second, instead of these.")
@_name
def watch(name: str, rate: bool) -> None:
    """Print the messages of the topic NAME as they come, until Ctrl-C.

    As JSON, one to a line: the pid of the publisher, the message's number among those of that, and its value. Nobody
    waits for this command: what it has no time for is skipped, and how many messages those are is said.

    With --rate, a line each second for each publisher: its pid, messages and bytes in a second, and messages in all.

    It ends once no other process has the topic open.
    """
    raw = report_for(name, "topic").raw
    if rate:
        _print_rates(name)
    else:
        _print_messages(name, raw)
    click.echo(f"topic {name!r}: no other process has it open any more", err=True)


def _is_alone(name: str) -> bool:
    found = report_of(name)
    return found is None or all(member.pid == os.getpid() for member in found.members)


def _print_messages(name: str, raw: bool) -> None:
    with sync.subscribe(name, slow=keep_last(_KEPT), raw=raw) as found:
        told, since = 0, time.monotonic()
        try:
            while True:
                try:
                    messages = found.get_many(_KEPT, _LOOK_AFTER)
                except WaitTimeout:
                    if _is_alone(name):
                        return
                    continue
                except DecodeError as error:
                    click.echo(str(error), err=True)
                    continue
                for each in messages:
                    shown = {"publisher": each.publisher.pid, "seq": each.seq, "value": each.value}
                    sys.stdout.write(to_json(shown) + "\n")
                sys.stdout.flush()
                if time.monotonic() - since > _LOOK_AFTER:
                    told, since = _tell_missed(found.lost, told), time.monotonic()
        finally:
            _tell_missed(found.lost, told)


def _tell_missed(lost: int, told: int) -> int:
    if lost > told:
        click.echo(f"{lost - told:,} {'message' if lost - told == 1 else 'messages'} missed", err=True)
    return lost


def _print_rates(name: str) -> None:
    """Prints rates from what publishers say of themselves: that costs them nothing, and no message is read for it."""
    click.echo(" ".join(head.rjust(_WIDTH) for head in ("PUBLISHER", "MESSAGES/S", "BYTES/S", "MESSAGES")))
    before: dict[int, tuple[int, int]] = {}
    since = time.monotonic()
    while (found := report_of(name)) is not None:
        now = time.monotonic()
        for each in found.publishers or ():
            messages, size = each.messages or 0, each.bytes or 0
            if each.number in before:
                rates = [(a - b) / (now - since) for a, b in zip((messages, size), before[each.number], strict=True)]
                columns = [str(each.pid or "-"), *(f"{rate:,.0f}" for rate in rates), _number(each.messages)]
                click.echo(" ".join(column.rjust(_WIDTH) for column in columns))
            before[each.number] = messages, size
        since = now
        time.sleep(_LOOK_AFTER)


@topic.command()
@timeout_option("room, for each message")
@_name
@click.argument("messages", metavar="[JSON]...", nargs=-1)
def publish(name: str, messages: tuple[str, ...], timeout: float | None) -> None:
    """Publish messages in the topic NAME: those that are given, or else the lines of standard input.

    If one that is given is wrong, none is published. Only those that subscribe now get them.
    """
    done, raw = 0, report_for(name, "topic").raw
    with sync.topic(name, raw=raw) as found:
        values = values_of(messages, raw, "topic")  # All that are given, before the first one is published.
        try:
            for value in values:
                try:
                    found.publish(value, timeout)
                except ValueError as error:  # It is larger than this command may hold for those that are slow.
                    raise click.UsageError(str(error)) from None
                done += 1
        except (click.UsageError, TopicFull):
            if done:
                click.echo(f"{done} of the messages were published", err=True)
            raise
        if not found.subscribers():
            click.echo(f"topic {name!r}: nobody subscribes", err=True)
