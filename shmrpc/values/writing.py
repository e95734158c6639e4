"""Writing a value: each part that the codec does not carry is replaced by something that it does, a plain one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from msgspec.msgpack import Ext

#: How deep extensions may be nested. The reference package takes 40 KB of stack for each.
MAX_DEPTH: Final = 100
#: What the codec writes as an array.
_ARRAYS: Final = (list, tuple, set, frozenset)
#: The types of keys that every codec writes as they are.
PLAIN_KEYS: Final = frozenset({str, float, bool, type(None)})

#: Makes what the codec carries in a value's place.
Writer = Callable[[Any, "Writing"], Any]


class ExtKey:
    """An extension as the key of a map: `Ext` itself cannot be hashed."""

    __slots__ = ("ext",)

    def __init__(self, ext: Ext) -> None:
        self.ext = ext


class Writing:
    """Writes one value into a body, and collects the buffers that travel beside it."""

    __slots__ = ("_classify", "_depth", "_held", "_places", "_writers", "buffers", "pack", "pickled", "thorough")

    def __init__(
        self,
        writers: Mapping[type, Writer],
        classify: Callable[[Any], Writer],
        pack: Callable[[Any], bytes],
        pickled: bool,
        thorough: bool,
    ) -> None:
        """``writers``: what writes values of each known type; ``classify`` finds it for any other value.

        ``pack`` makes bytes of a plain value; ``pickled``: whether what cannot travel otherwise is pickled;
        ``thorough``: look also at fields that by their declared types hold only plain values.
        """
        self.thorough = thorough
        self.pickled = pickled
        self.buffers: list[Any] = []
        self.pack = pack
        self._writers = writers
        self._classify = classify
        self._depth = 0
        self._places: dict[int, int] = {}
        self._held: list[Any] = []

    def plain(self, value: Any) -> Any:
        """What the codec carries in a value's place; the very same object if it carries the value itself."""
        return (self._writers.get(type(value)) or self._classify(value))(value, self)

    def extension(self, code: int, content: Any) -> Ext:
        """An extension that holds a value; for a tuple or a set, an array of its elements."""
        if self._depth == MAX_DEPTH:
            raise RecursionError(
                f"more than {MAX_DEPTH} tuples, sets or registered objects in each other cannot be sent"
            )
        self._depth += 1
        plain = self.plain_items(content) if isinstance(content, _ARRAYS) else self.plain(content)
        made = Ext(code, self.pack(plain))
        self._depth -= 1
        return made

    def plain_items(self, items: Collection[Any]) -> Collection[Any]:
        """A list with what the codec carries for each element; the very same collection if it carries them all."""
        writers, classify, changed = self._writers, self._classify, None
        for index, item in enumerate(items):
            writer = writers.get(type(item)) or classify(item)
            if writer is not write_same:
                plain = writer(item, self)
                if plain is not item:
                    if changed is None:
                        changed = list(items)
                    changed[index] = plain
        return items if changed is None else changed

    def before_pickle(self) -> None:
        """Does nothing here: any part of a value may be a pickle. A writing that allows none raises."""

    def place(self, owner: Any, memory: Any) -> int:
        """Put a buffer beside the body and give its place there. One whose ``owner`` was seen before travels once."""
        place = self._places.get(id(owner))
        if place is None:
            place = self._places[id(owner)] = len(self.buffers)
            self.buffers.append(memory)
            self._held.append(owner)
        return place

    def key(self, value: Any) -> Any:
        """What the codec carries for a map's key. A tuple stays MessagePack's array, which is read as a tuple there."""
        kind = type(value)
        if kind in PLAIN_KEYS:
            return value
        if kind is tuple:
            return tuple([self.key(item) for item in value])
        plain = self.plain(value)
        if type(plain) is Ext:
            return ExtKey(plain)
        try:
            hash(plain)
        except TypeError:
            raise TypeError(f"a dict with a key of type {kind.__qualname__} cannot be sent") from None
        return plain


class InlineWriting(Writing):
    """Writes one value into a body with all its buffers."""

    __slots__ = ()

    def place(self, owner: Any, memory: Any) -> Any:
        """The buffer's bytes."""
        return memoryview(memory).tobytes()


def write_same(value: Any, writing: Writing) -> Any:
    """The value itself, which the codec carries."""
    return value


def write_list(value: list[Any], writing: Writing) -> Any:
    """The very same list if the codec carries all that is in it, else a copy."""
    return writing.plain_items(value)


def write_dict(value: dict[Any, Any], writing: Writing) -> Any:
    """The very same dict if the codec carries all that is in it, else a copy."""
    writers, classify, changed = writing._writers, writing._classify, None
    for key, item in value.items():
        writer = writers.get(type(item)) or classify(item)
        if writer is not write_same:
            plain = writer(item, writing)
            if plain is not item:
                if changed is None:
                    changed = dict(value)
                changed[key] = plain
    result = value if changed is None else changed
    if PLAIN_KEYS.issuperset(map(type, result)):
        return result
    return {writing.key(key): item for key, item in result.items()}
