"""Objects of stores, which travel as references, and arrive as proxies in processes that have the store open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from shmrpc.errors import LocalProtocolError
from shmrpc.values.decode_context import DecodeContext
from shmrpc.values.encode_context import EncodeContext, Writer
from shmrpc.values.extension import Extension

STORED: Final = 36


class StoredObject:
    """Base class of objects whose contents are in a store."""

    __slots__ = ()

    def _reference(self) -> tuple[str, int, int, int, int]:
        """Return the name of the store, and the type, class, offset and id of the object there.

        Raises TypeError if the object has no reference.
        """
        raise NotImplementedError

    if TYPE_CHECKING:  # A method of the native classes.

        def _copy(self) -> Any: ...


#: Returns an object by its reference; None until a store was opened.
_find: Callable[[str, int, int, int, int], Any] | None = None
#: Classes whose instances an object of a store may replace.
_allowed_classes: Final[set[type]] = set()


def set_finder(find: Callable[[str, int, int, int, int], Any]) -> None:
    """Set the function that returns an object for its reference. It raises :func:`store_not_open`."""
    global _find
    _find = find


def allow_instance(cls: type) -> None:
    """Allow objects of stores where an instance of this class or of a base class, except ``object``, is declared."""
    _allowed_classes.add(cls)


def is_allowed_instance(cls: type) -> bool:
    """Return True if an object of a store is allowed where an instance of this class is declared."""
    return cls is not object and any(cls in each.__mro__ for each in _allowed_classes)


def _adopt(value: Any) -> Writer | None:
    """Return the writer for an object of a store; None for any other value."""
    return _write if issubclass(type(value), StoredObject) else None


def _write(value: StoredObject, context: EncodeContext) -> Any:
    """Return the extension with the reference of an object. Raises TypeError if the object has none."""
    return context.extension(STORED, list(value._reference()))


def store_not_open(name: str) -> LocalProtocolError:
    """Return the error for an object of a store that this process does not have open."""
    return LocalProtocolError(
        f"an object of store {name!r} arrived, and this process does not have the store open: first call "
        f"shmrpc.attach({name!r}); to a task or a process, hand over the name {name!r} instead"
    )


def _read(payload: Any, context: DecodeContext) -> Any:
    """Return the proxy of an object of a store. Raises ValueError for an invalid payload.

    Raises LocalProtocolError if this process does not have the store open.
    """
    name, *place = payload
    if type(name) is not str or [type(each) for each in place] != [int] * 4 or min(place) < 0:
        raise ValueError("expected the name of a store and four integers")
    if _find is None:  # This process has opened no store.
        raise store_not_open(name)
    return _find(name, *place)


def without_objects(value: Any) -> Any:
    """Return a value with copies in place of objects of stores, also in lists, tuples and the values of dicts.

    Returns the same object if it contains none.
    """
    kind = type(value)
    if issubclass(kind, StoredObject):
        return value._copy()
    if kind in (list, tuple):
        items = [without_objects(item) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else kind(items)
    if kind is dict:
        items = [without_objects(item) for item in value.values()]
        same = all(a is b for a, b in zip(items, value.values(), strict=True))
        return value if same else dict(zip(value, items, strict=True))
    return value


EXTENSIONS: Final = (
    Extension(
        STORED,
        "object of a store",
        "`[name of the store, type, class, offset, id]`: of a container, as in [the object format](object-format.md)"
        " section 13",
        _read,
        adopt=_adopt,
    ),
)
