"""How the values of a store are told to the core, and made of what it has found."""

from __future__ import annotations

import dataclasses
import pickle as pickles
import sys
import threading
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final, cast

from shmrpc import _core
from shmrpc.equals.stores.keys import canonical, plain
from shmrpc.equals.stores.proxies import Shared, SharedDict, SharedList, SharedSet
from shmrpc.equals.stores.records import NewStruct, SharedClass, named, shared_class
from shmrpc.errors import EncodeError, LocalProtocolError
from shmrpc.values import dtypes
from shmrpc.wire.codec import get_codec

_DICT, _SET, _LIST, _RECORD = 17, 18, 16, 19
#: The first byte of a value that the core does not know.
_PACKED, _PICKLED = b"m", b"p"
_codec: Final = get_codec("msgspec")


class Values:
    """The values of a store."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pickle = False
        self._lock = threading.Lock()
        self._numbers: dict[SharedClass, int] = {}
        self._classes: list[SharedClass] = []
        #: What its containers are made of, as soon as there are any.
        self.carrier: _core.Carrier
        #: Finds the class of a name, which has these fields.
        self.class_named = named
        self.list = SharedList
        self.dict = SharedDict
        self.set = SharedSet

    def allow_pickle(self) -> None:
        """Lets values of other types be pickled from now on."""
        self._pickle = True

    # --- what the core asks for ---

    def convert(self, value: Any) -> tuple[Any, ...]:
        """Makes of a value what can be written. Raises EncodeError and TypeError."""
        if isinstance(value, Shared):
            return "as", value._copy()
        known = shared_class(type(value))
        if known is not None:
            return "record", self.number_of(known), *known.parts(value)
        if isinstance(value, NewStruct):
            return "record", self.number_of(value.known), value.fields, None
        if isinstance(value, bytearray):
            return "buffer", b"b", value
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            if isinstance(value, numpy.ndarray):
                return self._array(numpy, value)
            if isinstance(value, numpy.generic):
                return "as", value.item()
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            what, said, data = self._array(sys.modules["numpy"], value.detach().cpu().numpy())
            return what, b"t" + said[1:], data
        plain: Any
        for plain in (int, float, str, bytes):
            if isinstance(value, plain):
                return "as", plain.__new__(plain, value)
        if isinstance(value, Mapping):
            return "as", dict(value)
        if isinstance(value, Set):
            return "as", frozenset(value) if isinstance(value, frozenset) else set(value)
        if isinstance(value, tuple):
            return "as", tuple(value)
        if isinstance(value, Sequence) and not isinstance(value, (memoryview, range)):
            return "as", list(value)
        if dataclasses.is_dataclass(value):
            # The codec takes it for a dict, and what came out would be a copy of that.
            name = type(value).__qualname__
            raise EncodeError(f"store {self._name!r} cannot hold a {name}: mark its class as @shmrpc.shared")
        return "packed", self._packed(value)

    def _array(self, numpy: Any, array: Any) -> tuple[Any, ...]:
        if array.dtype.hasobject:
            raise EncodeError(f"an array of {array.dtype} has Python objects, which no other process can see")
        said = _codec.encode([dtypes.describe(array.dtype), list(array.shape)])
        # An array of no dimensions has bytes too; one of a dtype with no buffer format is looked at as bytes.
        data = numpy.ascontiguousarray(array).reshape(-1).view("u1") if array.size else b""
        return "buffer", b"a" + cast(bytes, said), data

    def _packed(self, value: Any) -> bytes:
        try:
            body = _codec.encode(value)
        except TypeError as error:
            if not self._pickle:
                name = type(value).__qualname__
                raise EncodeError(
                    f"store {self._name!r} cannot hold a {name}; mark its class as @shmrpc.shared, or open the "
                    f"store with pickle=True ({error})"
                ) from None
            return _PICKLED + pickles.dumps(value)
        return _PACKED + (body if isinstance(body, bytes) else bytes(body))

    def key(self, key: Any) -> Any:
        """Makes of a key a plain value that equals it, or else two bytes: what it is compared by, and made of again.

        Raises TypeError.
        """
        equal = plain(key)
        return (canonical(key), _PACKED + cast(bytes, _codec.encode(key))) if equal is key else equal

    def unpack(self, body: bytes) -> Any:
        """Makes a value again."""
        if body[:1] == _PICKLED:
            if not self._pickle:
                raise LocalProtocolError(
                    f"store {self._name!r} holds a pickled value: open it with pickle=True here too"
                )
            return pickles.loads(body[1:])
        return _codec.decode(body[1:])

    def instance(self, number: int, fields: list[Any], extra: dict[str, Any]) -> Any:
        """Makes a plain instance of a class."""
        return self._known(number).make(fields, extra)

    def copied(self, said: bytes, data: bytes) -> Any:
        """Makes a plain buffer."""
        if said[:1] == b"b":
            return bytearray(data)
        return self._viewed(said, bytearray(data))

    def record(self, number: int) -> Any:
        """The class of the proxies of a class."""
        return self._known(number).proxy

    def buffer(self, carrier: _core.Carrier, at: int, identity: int) -> Any:
        """Looks at a buffer where it lies."""
        pinned, said = _core.Proxy(carrier, at, identity)._pin()
        if said[:1] == b"b":
            return memoryview(pinned)
        return self._viewed(said, pinned)

    def _viewed(self, said: bytes, data: Any) -> Any:
        import numpy as np  # Only who has put an array needs it.

        dtype, shape = _codec.decode(said[1:])
        made = np.frombuffer(data, "u1").view(dtypes.build(np, dtype)).reshape(shape)
        if said[:1] == b"t":
            import torch  # type: ignore[import-not-found,unused-ignore]

            # A tensor cannot be read-only: of a store that another process owns it is a copy.
            return torch.from_numpy(made if made.flags.writeable else made.copy())
        return made

    def seen(self, kind: int, number: int, at: int, identity: int) -> Any:
        """The container of this type and class that lies there."""
        made: Any = {_LIST: self.list, _DICT: self.dict, _SET: self.set}.get(kind)
        if made is None:
            if kind != _RECORD:
                raise ValueError(f"there are no objects of type {kind}")
            made = self.record(number)
        return made(self.carrier, at, identity)

    # --- classes ---

    def number_of(self, known: SharedClass) -> int:
        """The number of a class in this store. Raises TypeError if its fields are others there."""
        number = self._numbers.get(known)
        if number is None:
            number = self.carrier.class_number(known.name, known.fields)
            self._known(number)
            self._numbers[known] = number
        return number

    def _known(self, number: int) -> SharedClass:
        if number >= len(self._classes):
            with self._lock:
                classes = self.carrier.classes()
                found = [(name, tuple(fields)) for name, fields in classes.items()]
                for name, fields in found[len(self._classes) : number + 1]:
                    self._classes.append(self.class_named(name, fields))
        if number >= len(self._classes):
            raise ValueError(f"store {self._name!r} has no class of number {number}")
        return self._classes[number]

    def forget(self) -> None:
        """Forgets the numbers of classes: a transaction in which one may have got its number has come to nothing."""
        with self._lock:
            self._numbers.clear()
            self._classes.clear()
