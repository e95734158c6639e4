"""What a module of values adds to MessagePack: extensions. :mod:`shmrpc.values.all_extensions` gathers them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from shmrpc.values.reading import Reader
from shmrpc.values.writing import Writer


@dataclasses.dataclass(frozen=True)
class Extension:
    """One of MessagePack's extensions: the values that travel by it, and how they are written and read."""

    #: How a body tells it from others.
    code: int
    #: What an error calls such a value.
    name: str
    #: What its payload is, as the table in docs/wire.md has it. *Data* is bytes, or the place of a buffer.
    payload: str
    #: Makes the value of its decoded payload.
    read: Reader
    #: What writes instances of a class and of those derived from it: the first class that fits. A class is given by its
    #: name, such as ``numpy.ndarray``, if it is to be looked for only once the program has imported its module.
    writers: Mapping[type | str, Writer] = dataclasses.field(default_factory=dict)
    #: Whether instances of derived classes are written so even by a codec that can pickle them.
    covers_derived: bool = False
    #: What writes a value of a class that nothing is known of; None for one that does not travel by this extension.
    adopt: Callable[[Any], Writer | None] = lambda value: None
