"""Building of the exceptions that callers raise for exceptions of a handler in another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shmrpc.errors import (
    KNOWN_CLASSES,
    ApplicationError,
    RemoteError,
    join_remote_error,
    own_class,
)
from shmrpc.exception_parts import build_exception, class_name, parts_of

__all__ = ["application_error", "remote_error"]

#: Names of the classes of exception groups.
_GROUPS: Final = frozenset({"ExceptionGroup", "BaseExceptionGroup"})


def remote_error(
    message: str,
    *,
    type_name: str,
    base: str,
    remote_traceback: str,
    raised: BaseException | None = None,
    parts: dict[str, Any] | None = None,
    unread: bytes | None = None,
    hint: str = "",
    exceptions: Sequence[Exception] = (),
) -> RemoteError:
    """Return the local exception for an exception that an endpoint raised.

    ``raised`` is the exception itself if its class is registered here. ``base`` names its nearest base class that both
    sides know, and ``parts`` are its contents for that class, see :func:`parts_of`. ``unread`` is encoded contents that
    could not be read here. ``hint`` is added to the note that names the class. ``exceptions`` are a group's.

    Returns ``raised`` itself if it is a RemoteError already, and a plain RemoteError if ``base`` is unknown here, or
    its class cannot be built from the parts or the message.
    """
    error = _also_remote(raised) if raised is not None else None
    if error is None and exceptions and base in _GROUPS:
        # An exception that ends a program elsewhere is a RemoteError here, so each group is one of Exceptions.
        error = build_exception(join_remote_error(ExceptionGroup), {"args": [message, list(exceptions)]})
    if error is None:
        error = _build_joined(base, message, parts)
    notes = []
    if type_name != class_name(own_class(type(error))):
        notes.append(f"Raised remotely as {type_name}{hint}")
    if remote_traceback:
        notes.append(f"Remote traceback:\n{remote_traceback.rstrip()}")
    # By `vars`, because a user's class may prevent assignment, as a frozen dataclass does.
    vars(error).update(type_name=type_name, remote_traceback=remote_traceback)
    vars(error).update(_unread=unread, _came_with=tuple(notes), __notes__=notes)
    return error


def application_error(code: str, message: str, details: Any) -> ApplicationError:
    """Return an ApplicationError with the unchecked values of another process, and no details if they are no dict."""
    parts = {"args": [code, message], "code": code, "message": message}
    return build_exception(ApplicationError, {**parts, "details": details if isinstance(details, dict) else {}})


def _also_remote(raised: BaseException) -> RemoteError | None:
    """Return a RemoteError itself, otherwise a copy of the exception that is also one; None if there cannot be one."""
    if isinstance(raised, RemoteError):
        return raised
    if not isinstance(raised, Exception):
        return None
    try:
        return build_exception(join_remote_error(type(raised)), parts_of(raised))
    except Exception:  # The class has a constructor of its own.
        return None


def _build_joined(base: str, message: str, parts: dict[str, Any] | None) -> RemoteError:
    """Return a RemoteError that is also of the class named ``base``, if possible; otherwise a plain RemoteError."""
    known = _find_class(base)
    if known is not None:
        kind = join_remote_error(known)
        for each in (parts, {"args": [message]}):
            if each is not None:
                try:
                    made = build_exception(kind, each)
                    str(made)  # Not every exception can be shown with any arguments.
                except Exception:  # Nor made with any: UnicodeDecodeError takes five.
                    continue
                return made
    return RemoteError(message)


def _find_class(base: str) -> type[Exception] | None:
    """Return the class of a name that the peer chose, or None if RemoteError cannot be joined with such a class."""
    kind = KNOWN_CLASSES.get(base)
    if kind is None or kind is Exception:
        return None
    if issubclass(kind, (StopIteration, StopAsyncIteration)):
        return None  # These cannot leave a coroutine: Python turns them into RuntimeError.
    return kind
