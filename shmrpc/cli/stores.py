"""The commands of ``shmrpc store``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from shmrpc import sync
from shmrpc.cli.exit_codes import NOT_AVAILABLE, CommandFailed
from shmrpc.cli.items import parse_items
from shmrpc.cli.object_reports import find_reports, report_for
from shmrpc.cli.options import as_json_option, names_argument, wait_timeout_option
from shmrpc.cli.tables import print_table
from shmrpc.cli.values import to_json
from shmrpc.discovery.attach import blocking_attach
from shmrpc.discovery.members import inspect_all_objects
from shmrpc.errors import WaitTimeout
from shmrpc.stores import changes
from shmrpc.stores.packing import unpack_for_display
from shmrpc.stores.records import SharedClass
from shmrpc.stores.shared_container import SharedContainer


def _complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of open stores that begin with ``incomplete``."""
    found = inspect_all_objects(lambda message: None)
    return [each.name for each in found if each.kind == "store" and each.name.startswith(incomplete)]


def _complete_path(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the keys, indices or fields that can follow the path so far and begin with ``incomplete``."""
    path = (*(ctx.params.get("path") or ()), *filter(None, [ctx.params.get("value")]))
    try:
        with _opened(ctx.params["name"]) as opened:
            steps = _list_steps(_follow(opened, path))
    except Exception:  # Shell completion shows no errors.
        return []
    return [step for step in steps if step.startswith(incomplete)]


_name_argument = click.argument("name", shell_complete=_complete_name)
_path_argument = click.argument("path", nargs=-1, shell_complete=_complete_path)


@click.group()
def store() -> None:
    """Print the contents of a store, set values, watch for changes.

    NAME is the name of a store that some process has open. PATH leads to a value: keys of dicts, indices of lists and
    names of fields, one after the other; a key that is not text is written as JSON after a colon, such as :1.
    """


@contextlib.contextmanager
def _opened(name: str) -> Iterator[sync.Store]:
    """Open a store; yield the store, and close it at the end. Raises as :func:`report_for` does.

    Instances of classes that this process cannot import are stand-ins with the same fields.
    """
    report_for(name, "store")
    opened = blocking_attach(name, 1.0)
    assert isinstance(opened, sync.Store)
    with opened:
        opened._store_context.converter.find_class = _make_stand_in
        opened._store_context.converter.unpack_value = unpack_for_display
        yield opened


def _make_stand_in(name: str, fields: tuple[str, ...]) -> SharedClass:
    """Return a class with these fields, in the place of a program's class that cannot be imported here."""
    return SharedClass(dataclasses.make_dataclass(name.rpartition(":")[2].rpartition(".")[2], fields), fields, True)


def _parse_step(text: str) -> Any:
    """Return the key that a step of a path stands for. Raises UsageError for invalid JSON after a colon."""
    if not text.startswith(":"):
        return text
    try:
        return json.loads(text[1:])
    except ValueError as error:
        raise click.UsageError(f"{text}: expected JSON after the colon: {error}") from None


def _list_steps(found: Any) -> list[str]:
    """Return the steps that can follow a value in a path, as they are written on the command line."""
    own = found
    if hasattr(found, "keys"):
        keys = [*found.keys()]
        return [key if type(key) is str and not key.startswith(":") else f":{to_json(key)}" for key in keys]
    if hasattr(found, "__getitem__") and not isinstance(found, (str, bytes)):
        return [str(index) for index in range(len(found))]
    known = getattr(type(found), "_shared_class", None)
    return [*known.fields, *dict(own._items())] if isinstance(known, SharedClass) else []


def _follow(found: Any, path: tuple[str, ...]) -> Any:
    """Return the value that a path leads to, ``found`` itself for an empty path.

    Raises CommandFailed if there is none, UsageError for an invalid step.
    """
    for number, text in enumerate(path):
        try:
            found = _follow_step(found, text)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise CommandFailed(f"there is nothing at {' '.join(path[: number + 1])}", NOT_AVAILABLE) from None
    return found


def _follow_step(found: Any, text: str) -> Any:
    """Return the value at one step of a path.

    Raises LookupError, TypeError, ValueError or AttributeError if there is none, UsageError for an invalid step.
    """
    step = _parse_step(text)
    if hasattr(found, "keys"):
        return found[step]
    if hasattr(found, "__getitem__") and not isinstance(found, (str, bytes)):
        return found[int(step)]
    if text not in _list_steps(found):  # Perhaps a method.
        raise AttributeError(text)
    return getattr(found, text)


@store.command()
@as_json_option
@names_argument
def ls(as_json: bool, names: tuple[str, ...]) -> None:
    """List all open stores, or those with these names, with their bytes and members."""
    found = find_reports(names, "store")
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
@_name_argument
@_path_argument
def get(name: str, path: tuple[str, ...]) -> None:
    """Print the value at PATH in the store NAME as JSON; without a PATH, the whole store."""
    with _opened(name) as opened:
        click.echo(to_json(_copy_proxy(_follow(opened, path))))


def _copy_proxy(value: Any) -> Any:
    """Return a plain copy of a container; return any other value unchanged."""
    return value.copy() if hasattr(value, "copy") else value


@store.command()
@_name_argument
@click.argument("path", nargs=-1, required=True, shell_complete=_complete_path)
@click.argument("value")
def set(name: str, path: tuple[str, ...], value: str) -> None:
    """Set the value at PATH in the store NAME to VALUE, which is JSON."""
    (new,) = parse_items((value,), False, "store")
    with _opened(name) as opened:
        parent = _follow(opened, path[:-1])
        step = _parse_step(path[-1])
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
    """Raise AttributeError for a name that is no field, unless the object has other attributes that are no fields."""
    known = getattr(type(instance), "_shared_class", None)
    if not isinstance(known, SharedClass):
        raise AttributeError(f"a value of type {type(instance).__name__} has no fields")
    if name not in known.fields and not instance._items():
        fields = ", ".join(known.fields)
        raise AttributeError(f"a {known.cls.__name__} has no field {name}; it has {fields or 'none'}")


@store.command()
@wait_timeout_option("a change")
@_name_argument
@_path_argument
def watch(name: str, path: tuple[str, ...], timeout: float | None) -> None:
    """Print the value at PATH in the store NAME now and after each change, until Ctrl-C."""
    with _opened(name) as opened:
        found = _follow(opened, path)
        if not isinstance(found, SharedContainer):
            raise CommandFailed(f"{' '.join(path)} is no list, dict, set or object: watch what it is in", NOT_AVAILABLE)
        printed = None
        with contextlib.suppress(WaitTimeout):
            for copy in changes.watch(found, timeout):
                if (text := to_json(copy)) != printed:
                    click.echo(text)
                    sys.stdout.flush()
                    printed = text


@store.command()
@_name_argument
def dump(name: str) -> None:
    """Print the store NAME, one key per line: JSON objects with "key" and "value"."""
    with _opened(name) as opened:
        for key, value in opened.copy().items():
            click.echo(f'{{"key": {to_json(key)}, "value": {to_json(value)}}}')
