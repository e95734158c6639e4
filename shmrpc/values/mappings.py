"""Extensions for the dicts of the module ``collections``."""

from __future__ import annotations

import builtins
import collections
from collections.abc import Callable
from typing import Any, Final

from msgspec.msgpack import Ext

from shmrpc.values.decode_context import DecodeContext
from shmrpc.values.encode_context import EncodeContext
from shmrpc.values.extension import Extension

MAPPING: Final = 37

#: Factories that a defaultdict can be sent with.
_FACTORIES: Final = (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)
_MAKERS: Final[dict[str, Callable[[dict[Any, Any]], Any]]] = {
    "Counter": collections.Counter,
    "OrderedDict": collections.OrderedDict,
}


def _write(value: dict[Any, Any], context: EncodeContext) -> Ext:
    """Return the extension of a Counter or an OrderedDict."""
    return context.extension(MAPPING, [type(value).__name__, dict(value)])


def _write_defaultdict(value: collections.defaultdict[Any, Any], context: EncodeContext) -> Ext:
    """Return the extension of a defaultdict. Raises TypeError for a factory that cannot be sent."""
    factory = value.default_factory
    if factory is not None and factory not in _FACTORIES:
        raise TypeError(f"a defaultdict whose factory is {factory!r:.80} cannot be sent: send dict(value)")
    name = None if factory is None else factory.__name__
    return context.extension(MAPPING, ["defaultdict", dict(value), name])


def _read(payload: Any, context: DecodeContext) -> Any:
    """Return a dict of ``collections``.

    Raises TypeError, ValueError, KeyError or AttributeError for an invalid payload.
    """
    kind, items, *factory = payload
    if not isinstance(items, dict):
        raise TypeError(f"expected a map, got {type(items).__name__}")
    if kind != "defaultdict":
        return _MAKERS[kind](items)
    (name,) = factory
    made = None if name is None else getattr(builtins, name)
    if made is not None and made not in _FACTORIES:
        raise ValueError(f"{name!r:.100} is not the factory of a defaultdict that travels")
    return collections.defaultdict(made, items)


EXTENSIONS: Final = (
    Extension(
        MAPPING,
        "dict of collections",
        "`[kind, map]` with the kind `Counter` or `OrderedDict`, or `[defaultdict, map, factory]`: nil, or a name such"
        " as `list`",
        _read,
        {
            collections.Counter: _write,
            collections.OrderedDict: _write,
            collections.defaultdict: _write_defaultdict,
        },
    ),
)
