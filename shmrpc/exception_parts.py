"""The contents of exceptions, by name, to send them and to build them again in another process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

_E = TypeVar("_E", bound=BaseException)

#: Attributes, with text, that builtin exceptions have besides their arguments.
_ATTRIBUTES: Final[dict[type[BaseException], tuple[str, ...]]] = {
    ImportError: ("name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
}
#: Attributes that describe the journey of a RemoteError, not the exception.
_JOURNEY: Final = frozenset({"type_name", "remote_traceback", "maybe_executed", "_unread", "_came_with"})


def _attribute_names(kind: type) -> Iterator[str]:
    """Yield the names of the slots of an exception class, and of the text attributes of some builtin base classes."""
    for each in kind.__mro__:
        yield from _ATTRIBUTES.get(each, ())
        slots = vars(each).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def class_name(kind: type) -> str:
    """Return the qualified name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def known_parts(kind: type[BaseException]) -> frozenset[str]:
    """Return the names that :func:`parts_of` gives for instances of a class that both sides know."""
    return frozenset(("args", *_attribute_names(kind)))


def parts_of(error: BaseException) -> dict[str, Any]:
    """Return the contents of an exception by name: ``args``, as its builtin base class takes them, and attributes."""
    kind = type(error)
    # OSError gives the file's name here, and not among its args.
    parts: dict[str, Any] = {"args": list(_builtin_base(kind).__reduce__(error)[1])}
    for name in _attribute_names(kind):
        value = getattr(error, name, None)
        if not name.startswith("__") and value is not None:
            parts[name] = value
    state = {n: v for n, v in vars(error).items() if not (n.startswith("__") or n in _JOURNEY)}
    return {**state, **parts}


def build_exception(kind: type[_E], parts: dict[str, Any]) -> _E:
    """Return an exception of this class with the contents that :func:`parts_of` gave.

    Its own ``__init__`` is not called. ``parts`` must contain ``args``. Raises the errors of the constructor
    of the builtin base class.
    """
    builtin, laid_out, args = _builtin_base(kind), kind, parts["args"]
    while laid_out.__module__ != "builtins":
        laid_out = laid_out.__base__  # type: ignore[assignment]
    made = laid_out.__new__(kind, *args)
    builtin.__init__(made, *args)
    apart = frozenset(_attribute_names(kind))
    for name, value in parts.items():
        if name in apart:
            object.__setattr__(made, name, value)
        elif name != "args" and not name.startswith("__"):
            vars(made)[name] = value
    return made


def _builtin_base(kind: type[BaseException]) -> Any:
    """Return the nearest base class that is a builtin exception, or the class itself if it is one."""
    return next(c for c in kind.__mro__ if c.__module__ == "builtins")
