"""The commands of ``shmrpc store``: what is in a store, and changes of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from shmrpc import sync
from shmrpc.cli.commands import NOT_AVAILABLE, CommandFailed, as_json_option, names_argument, print_table
from shmrpc.cli.items import report_for, timeout_option, values_of
from shmrpc.cli.values import to_json
from shmrpc.discovery.attach import blocking_attach
from shmrpc.discovery.members import reports
from shmrpc.errors import WaitTimeout
from shmrpc.stores.changes import changes
from shmrpc.stores.packing import unpack_shown
from shmrpc.stores.proxies import Shared
from shmrpc.stores.records import SharedClass


def _complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes the name of a store by those that processes have open."""
    found = reports(lambda words: None)
    return [each.name for each in found if each.kind == "store" and each.name.startswith(incomplete)]


def _complete_path(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes the next step of a path by the keys, indices or fields of what it leads to so far."""
    path = (*(ctx.params.get("path") or ()), *filter(None, [ctx.params.get("value")]))
    try:
        with _opened(ctx.params["name"]) as opened:
            steps = _steps(_follow(opened, path))
    except Exception:  # A shell that completes shows no errors.
        return []
    return [step for step in steps if step.startswith(incomplete)]


_name = click.argument("name", shell_complete=_complete_name)
_path = click.argument("path", nargs=-1, shell_complete=_complete_path)


@click.group()
def store() -> None:
    """See what is in a store, set values, watch it.

    A NAME is that of a store that some process has open. A PATH leads to a value: the keys of dicts, the indices of
    lists and the names of fields, one after the other; a key that is no text is written as JSON after a colon, such
    as :1.
    """


@contextlib.contextmanager
def _opened(name: str) -> Iterator[sync.Store]:
    report_for(name, "store")
    opened = blocking_attach(name, 1.0)
    assert isinstance(opened, sync.Store)
    with opened:
        opened._opened.values.class_named = _stand_in
        opened._opened.values.unpack_known = unpack_shown
        yield opened


def _stand_in(name: str, fields: tuple[str, ...]) -> SharedClass:
    """A class for objects of a program's class, which cannot be imported here."""
    return SharedClass(dataclasses.make_dataclass(name.rpartition(":")[2].rpartition(".")[2], fields), fields, True)


def _step(text: str) -> Any:
    if not text.startswith(":"):
        return text
    try:
        return json.loads(text[1:])
    except ValueError as error:
        raise click.UsageError(f"{text}: expected JSON after the colon: {error}") from None


def _steps(found: Any) -> list[str]:
    """The steps by which a path can go on from a value, as they are written."""
    own = found
    if hasattr(found, "keys"):
        keys = [*found.keys()]
        return [key if type(key) is str and not key.startswith(":") else f":{to_json(key)}" for key in keys]
    if hasattr(found, "__getitem__") and not isinstance(found, (str, bytes)):
        return [str(index) for index in range(len(found))]
    known = getattr(type(found), "_known", None)
    return [*known.fields, *dict(own._items())] if isinstance(known, SharedClass) else []


def _follow(found: Any, path: tuple[str, ...]) -> Any:
    """The value that a path leads to."""
    for number, text in enumerate(path):
        try:
            found = _one(found, text)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise CommandFailed(f"there is nothing at {' '.join(path[: number + 1])}", NOT_AVAILABLE) from None
    return found


def _one(found: Any, text: str) -> Any:
    step = _step(text)
    if hasattr(found, "keys"):
        return found[step]
    if hasattr(found, "__getitem__") and not isinstance(found, (str, bytes)):
        return found[int(step)]
    return getattr(found, text)


@store.command()
@as_json_option
@names_argument
def ls(as_json: bool, names: tuple[str, ...]) -> None:
    """List the stores that processes have open, or those of these names: the bytes of each, and its members."""
    if names:
        found = [report_for(name, "store") for name in dict.fromkeys(names)]
    else:
        found = [each for each in reports(lambda words: click.echo(words, err=True)) if each.kind == "store"]
    if as_json:
        seen = [{"name": each.name, "bytes": each.size, "members": [m.pid for m in each.members]} for each in found]
        click.echo(json.dumps(seen, indent=2))
        return
    if not found:
        click.echo("No process has a store open.")
        return
    rows: list[tuple[str, ...]] = [("NAME", "BYTES", "MEMBERS")]
    rows += [(each.name, f"{each.size:,}", " ".join(str(member.pid) for member in each.members)) for each in found]
    print_table(rows)


@store.command()
@_name
@_path
def get(name: str, path: tuple[str, ...]) -> None:
    """Print the value at PATH in the store NAME as JSON; all of it without a PATH."""
    with _opened(name) as opened:
        click.echo(to_json(_plain(_follow(opened, path))))


def _plain(value: Any) -> Any:
    return value.copy() if hasattr(value, "copy") else value


@store.command()
@_name
@click.argument("path", nargs=-1, required=True, shell_complete=_complete_path)
@click.argument("value")
def set(name: str, path: tuple[str, ...], value: str) -> None:
    """Set what is at PATH in the store NAME to VALUE, which is JSON."""
    (new,) = values_of((value,), False, "store")
    with _opened(name) as opened:
        parent = _follow(opened, path[:-1])
        step = _step(path[-1])
        try:
            if hasattr(parent, "keys"):
                parent[step] = new
            elif hasattr(parent, "__setitem__"):
                parent[int(step)] = new
            else:
                _check_attribute(parent, path[-1])
                setattr(parent, path[-1], new)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CommandFailed(f"{' '.join(path)} cannot be set: {error}", NOT_AVAILABLE) from None


def _check_attribute(instance: Any, name: str) -> None:
    """Raises AttributeError for what no field is, unless the object has other such attributes: its class takes more."""
    known: SharedClass = type(instance)._known
    if name not in known.fields and not instance._items():
        fields = ", ".join(known.fields)
        raise AttributeError(f"a {known.cls.__name__} has no field {name}; it has {fields or 'none'}")


@store.command()
@timeout_option("a change")
@_name
@_path
def watch(name: str, path: tuple[str, ...], timeout: float | None) -> None:
    """Print the value at PATH in the store NAME, and again each time that it has changed, until Ctrl-C."""
    with _opened(name) as opened:
        found = _follow(opened, path)
        if not isinstance(found, Shared):
            raise CommandFailed(f"{' '.join(path)} is no list, dict, set or object: watch what it is in", NOT_AVAILABLE)
        shown = None
        with contextlib.suppress(WaitTimeout):
            for copy in changes(found, timeout):
                if (now := to_json(copy)) != shown:
                    click.echo(now)
                    sys.stdout.flush()
                    shown = now


@store.command()
@_name
def dump(name: str) -> None:
    """Print all that is in the store NAME, one key to a line: JSON objects with "key" and "value"."""
    with _opened(name) as opened:
        for key, value in opened.copy().items():
            click.echo(f'{{"key": {to_json(key)}, "value": {to_json(value)}}}')
