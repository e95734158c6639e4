"""A value on its way into a body."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from msgspec.msgpack import Ext

#: This many extensions may stand in each other. The reference package takes 40 KB of the stack for each.
MAX_DEPTH: Final = 100
#: What is an array to the codec.
_ARRAYS: Final = (list, tuple, set, frozenset)
#: Keys that every codec writes as they are.
PLAIN_KEYS: Final = frozenset({str, float, bool, type(None)})

#: Gives what the codec carries in a value's place.
Writer = Callable[[Any, "Writing"], Any]


class ExtKey:
    """An extension that is the key of a map: `Ext` itself cannot be hashed."""

    __slots__ = ("ext",)

    def __init__(self, ext: Ext) -> None:
        self.ext = ext


class Writing:
    """One value on its way into a body, and the buffers that travel beside it."""

    __slots__ = ("_classify", "_depth", "_held", "_places", "_writers", "buffers", "pack", "pickled", "thorough")

    def __init__(
        self,
        writers: Mapping[type, Writer],
        classify: Callable[[Any], Writer],
        pack: Callable[[Any], bytes],
        pickled: bool,
        thorough: bool,
    ) -> None:
        """``writers``, ``classify``: what writes values of a type, and asks for a type that is not among these.

        ``pack``: bytes of what the codec carries; ``pickled``: whether what cannot travel otherwise is pickled;
        ``thorough``: to look also where by the declared types nothing can be found.
        """
        self.thorough = thorough
        self.pickled = pickled
        self.buffers: list[Any] = []
        #: Bytes for a value that has been lowered.
        self.pack = pack
        self._writers = writers
        self._classify = classify
        self._depth = 0
        self._places: dict[int, int] = {}
        self._held: list[Any] = []

    def lower(self, value: Any) -> Any:
        """What the codec carries in its place: the very same object if it carries that."""
        return (self._writers.get(type(value)) or self._classify(value))(value, self)

    def extension(self, code: int, content: Any) -> Ext:
        """An extension that holds a value. Of a tuple or a set: an array of its elements."""
        if self._depth == MAX_DEPTH:
            raise RecursionError(
                f"more than {MAX_DEPTH} tuples, sets or registered objects in each other cannot be sent"
            )
        self._depth += 1
        plain = self.lower_items(content) if isinstance(content, _ARRAYS) else self.lower(content)
        made = Ext(code, self.pack(plain))
        self._depth -= 1
        return made

    def lower_items(self, items: Collection[Any]) -> Collection[Any]:
        """The same for each element: the very same collection if the codec carries them all, else a list."""
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

    def place(self, owner: Any, memory: Any) -> int:
        """The place of a buffer beside the body. ``owner``: that whose it is; one that comes twice travels once."""
        place = self._places.get(id(owner))
        if place is None:
            place = self._places[id(owner)] = len(self.buffers)
            self.buffers.append(memory)
            self._held.append(owner)
        return place

    def key(self, value: Any) -> Any:
        """The same for a map's key. A tuple stays MessagePack's own array, which is read as a tuple there."""
        kind = type(value)
        if kind in PLAIN_KEYS:
            return value
        if kind is tuple:
            return tuple([self.key(item) for item in value])
        lowered = self.lower(value)
        if type(lowered) is Ext:
            return ExtKey(lowered)
        try:
            hash(lowered)
        except TypeError:
            raise TypeError(f"a dict with a key of type {kind.__qualname__} cannot be sent") from None
        return lowered


class InlineWriting(Writing):
    """The same with nothing beside the body."""

    __slots__ = ()

    def place(self, owner: Any, memory: Any) -> Any:
        """The buffer's bytes."""
        return memoryview(memory).tobytes()


def write_same(value: Any, writing: Writing) -> Any:
    """For what the codec carries as it is."""
    return value


def write_list(value: list[Any], writing: Writing) -> Any:
    """The very same list if the codec carries all that is in it, else a copy."""
    return writing.lower_items(value)


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
