"""Options and arguments that several commands share."""

from __future__ import annotations

import math
import pwd
from collections.abc import Callable
from typing import Any, Final

import click

from shmrpc.transport.connection_options import DEFAULT_CONNECT_TIMEOUT
from shmrpc.wire.frames import DEFAULT_MAX_FRAME

#: A decorator for the function of a command.
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(*names: str, **settings: Any) -> Decorator:
    """Return a decorator that adds an option whose value may also come from the environment, as SHMRPC_NAME."""
    name = next(each for each in names if each.startswith("--"))
    variable = f"SHMRPC_{name.lstrip('-').replace('-', '_').upper()}"
    defaults = {"envvar": variable, "show_envvar": True, "show_default": "default" in settings}
    return click.option(*names, **{**defaults, **settings})


def count_option(name: str, default: int, minimum: int, help_text: str) -> Decorator:
    """Return a decorator that adds an option for a count."""
    return option(name, type=click.IntRange(min=minimum), default=default, help=help_text)


def check_seconds(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Return the value of an option in seconds. Raises BadParameter for NaN, which any range of click accepts."""
    if value is not None and math.isnan(value):
        raise click.BadParameter(f"expected a number of seconds, got '{value}'")
    return value


def _parse_user(value: str) -> int:
    """Return the id of a user given by id or by name. Raises BadParameter for an unknown name."""
    if value.isdecimal():
        return int(value)
    try:
        return pwd.getpwnam(value).pw_uid
    except KeyError:
        raise click.BadParameter(f"there is no user {value!r} on this host; pass a user name or id") from None


def _one_or_several(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> str | list[str] | None:
    """Return the values of a repeatable option: None for none, the only one, or a list of several."""
    return [*values] if len(values) > 1 else values[0] if values else None


codec_option: Final = option(
    "--codec",
    type=click.Choice(["msgspec", "msgpack", "pickle"]),
    default="msgspec",
    help="Serializer of values. msgpack: the reference package; pickle: any type, between trusted peers only.",
)
names_argument: Final = click.argument("names", metavar="[NAME]...", nargs=-1)
as_json_option: Final = option("--json", "as_json", is_flag=True, help="Print JSON.")
max_frame_option: Final = option("--max-frame", type=int, default=DEFAULT_MAX_FRAME, help="Largest body, in bytes.")
connect_timeout_option: Final = option(
    "--timeout",
    type=click.FloatRange(min=0),
    callback=check_seconds,
    help="Seconds for the whole command; 0: fail at once if no server is there, then wait without a limit.  "
    f"[default: {DEFAULT_CONNECT_TIMEOUT:g} to connect, then no limit]",
)
at_option: Final = option(
    "--at",
    metavar="URL",
    multiple=True,
    callback=_one_or_several,
    help="Address of the service: shm or nats://HOST:PORT. Repeatable.  [default: shm]",
)
allow_user_option: Final = option(
    "--allow-user",
    "allow_uids",
    type=_parse_user,
    metavar="USER",
    multiple=True,
    help="User to trust, by name or id, besides your own and root. Repeatable.",
)


def wait_timeout_option(awaited: str) -> Decorator:
    """Return a decorator that adds the timeout of a command that waits for ``awaited``; None is no limit."""
    help_text = f"Seconds to wait for {awaited}; 0: do not wait.  [default: no limit]"
    return option("--timeout", type=click.FloatRange(min=0), callback=check_seconds, help=help_text)
