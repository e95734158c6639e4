"""State of encoding one value, in which plain values replace the parts that the codec cannot carry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from msgspec.msgpack import Ext

#: Largest depth of nested extensions. The reference package takes 40 KB of stack for each.
MAX_DEPTH: Final = 100
#: Types that the codec encodes as arrays.
_ARRAYS: Final = (list, tuple, set, frozenset)
#: Types of keys that every codec encodes unchanged.
PLAIN_KEYS: Final = frozenset({str, float, bool, type(None)})

#: Returns the plain value that the codec encodes in place of a value.
Writer = Callable[[Any, "EncodeContext"], Any]


class ExtKey:
    """Extension as the key of a map, because ``Ext`` cannot be hashed."""

    __slots__ = ("ext",)

    def __init__(self, ext: Ext) -> None:
        self.ext = ext


class EncodeContext:
    """State of encoding one value, with the buffers that travel beside its body. Of no further use after an error."""

    __slots__ = ("_classify", "_depth", "_held", "_places", "_writers", "buffers", "pack", "pickled", "thorough")

    def __init__(
        self,
        writers: Mapping[type, Writer],
        classify: Callable[[Any], Writer],
        pack: Callable[[Any], bytes],
        pickled: bool,
        thorough: bool,
    ) -> None:
        """Create a context.

        ``writers`` maps known types to their writers; ``classify`` finds the writer for any other value. ``pack``
        encodes a plain value. With ``pickled``, values that cannot travel otherwise are pickled. With ``thorough``, all
        fields are converted, also fields that hold only plain values according to their declared types.
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
        """Return the plain value to encode in place of a value; the same object if the codec carries the value.

        Raises one of UNSENDABLE if the value cannot be sent.
        """
        return (self._writers.get(type(value)) or self._classify(value))(value, self)

    def extension(self, code: int, content: Any) -> Ext:
        """Return an extension that holds a value; for a tuple or a set, an array of its elements.

        Raises RecursionError beyond the largest depth of extensions.
        """
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
        """Return a list of plain values for these items; the same collection if the codec carries all items."""
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
        """Do nothing, because any part of a value may be a pickle. A context that allows no such part raises."""

    def place(self, owner: Any, memory: Any) -> int:
        """Place a buffer beside the body, and return its index. The buffer of an ``owner`` travels only once.

        Does not copy: the memory must stay unchanged until the body has been sent.
        """
        place = self._places.get(id(owner))
        if place is None:
            place = self._places[id(owner)] = len(self.buffers)
            self.buffers.append(memory)
            self._held.append(owner)
        return place

    def key(self, value: Any) -> Any:
        """Return the plain value for the key of a map. Raises one of UNSENDABLE if the key cannot be sent.

        A tuple stays one: the codec writes an array, which it decodes as a tuple in a key.
        """
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


class InlineEncodeContext(EncodeContext):
    """State of encoding one value into a body that contains its buffers."""

    __slots__ = ()

    def place(self, owner: Any, memory: Any) -> Any:
        """Return the bytes of a buffer, which become part of the body."""
        return memoryview(memory).tobytes()


def write_same(value: Any, context: EncodeContext) -> Any:
    """Return the value itself, which the codec carries."""
    return value


def write_list(value: list[Any], context: EncodeContext) -> Any:
    """Return the list itself if the codec carries all its items, otherwise a copy with plain items."""
    return context.plain_items(value)


def write_dict(value: dict[Any, Any], context: EncodeContext) -> Any:
    """Return the dict itself if the codec carries all its items, and all keys are of PLAIN_KEYS.

    Otherwise returns a copy with plain keys and items.
    """
    writers, classify, changed = context._writers, context._classify, None
    for key, item in value.items():
        writer = writers.get(type(item)) or classify(item)
        if writer is not write_same:
            plain = writer(item, context)
            if plain is not item:
                if changed is None:
                    changed = dict(value)
                changed[key] = plain
    result = value if changed is None else changed
    if PLAIN_KEYS.issuperset(map(type, result)):
        return result
    return {context.key(key): item for key, item in result.items()}
