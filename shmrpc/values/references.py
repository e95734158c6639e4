"""Objects that lie in a store: they travel as where they lie, and arrive as themselves where that store is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from shmrpc.errors import LocalProtocolError
from shmrpc.values.extension import Extension
from shmrpc.values.reading import Reading
from shmrpc.values.writing import Writer, Writing

STORED: Final = 36


class Referable:
    """What lies in a store. A class of what travels so is derived from it."""

    __slots__ = ()

    def _reference(self) -> tuple[str, int, int, int, int]:
        """The name of its store, its type, its class, where it lies, and its number. Raises TypeError if none."""
        raise NotImplementedError

    if TYPE_CHECKING:  # What the native classes have.

        def _copy(self) -> Any: ...


#: What finds an object by its reference: whoever has stores sets it.
_find: Callable[[str, int, int, int, int], Any] | None = None
#: The classes whose instances an object may pass for.
_passed_for: Final[set[type]] = set()


def on_arrival(find: Callable[[str, int, int, int, int], Any]) -> None:
    """Finds objects that arrive with this function, which raises what says that their store is not open here."""
    global _find
    _find = find


def may_be_stored(cls: type) -> None:
    """An object that arrives may pass for an instance of this class."""
    _passed_for.add(cls)


def is_passed_for(cls: type) -> bool:
    """Whether an object that arrives may pass for an instance of this class."""
    return cls is not object and any(cls in each.__mro__ for each in _passed_for)


def _adopt(value: Any) -> Writer | None:
    return _write if issubclass(type(value), Referable) else None


def _write(value: Referable, writing: Writing) -> Any:
    return writing.extension(STORED, list(value._reference()))


def not_open(name: str) -> LocalProtocolError:
    """The error for an object of a store that this process does not have open."""
    return LocalProtocolError(
        f"an object of store {name!r} arrived, and this process does not have that open: open it with "
        f"shmrpc.store({name!r}) or shmrpc.attach({name!r}) first. An argument of a process or a task arrives "
        f"before it can do so: hand over the name {name!r} instead, and open it there"
    )


def _read(payload: Any, reading: Reading) -> Any:
    name, *place = payload
    if type(name) is not str or [type(each) for each in place] != [int] * 4 or min(place) < 0:
        raise ValueError("expected the name of a store and four numbers")
    if _find is None:  # This program has opened no store.
        raise not_open(name)
    return _find(name, *place)


def without_objects(value: Any) -> Any:
    """The same value with plain copies in place of objects of stores; the very same object if it has none of these."""
    kind = type(value)
    if issubclass(kind, Referable):
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
        "`[name of the store, type, class, offset, id]`: of a container, as in [names](names.md) section 13",
        _read,
        adopt=_adopt,
    ),
)
