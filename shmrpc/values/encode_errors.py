"""Errors of values that cannot be sent, with advice such as the value to send instead."""

from __future__ import annotations

import contextlib
import enum
import io
import types
from collections.abc import AsyncIterable, Awaitable, Iterator, MappingView
from datetime import tzinfo
from typing import Any, Final

from shmrpc import _core
from shmrpc.basics.signals import is_from_signal_handler

#: Errors that encoding raises for a value that cannot be sent.
UNSENDABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)


def is_unsendable(error: Exception, kinds: tuple[type[Exception], ...] = UNSENDABLE) -> bool:
    """Return True if encoding raised the exception because of the value, and no signal handler raised it."""
    return isinstance(error, kinds) and not is_from_signal_handler(error)


def reason(error: Exception) -> str:
    """Return the reason why a value could not be encoded."""
    if isinstance(error, RecursionError):
        return "it contains itself, or is nested too deeply"
    return str(error)


def unsupported_error(value: Any) -> TypeError:
    """Return the error for a value of a type that cannot be sent."""
    kind = type(value)
    advice, _ = _advise(value)
    advice = advice or f"register converters: shmrpc.register({kind.__name__}, encode, decode)"
    return TypeError(f"Encoding objects of type {kind.__qualname__} is unsupported; {advice}")


def derived_error(value: Any, base: type) -> TypeError:
    """Return the error for an instance of a derived class, which would arrive as an instance of the base class."""
    kind, root = type(value), type(value).__module__.partition(".")[0]
    advice = _LIBRARIES.get((root, kind.__name__)) or _LIBRARIES.get((root, base.__name__))
    if advice is None:
        plain = _PLAIN.get(base.__name__)
        if base.__name__ == "generic" and value.dtype.type is kind:  # A scalar of a library that adds dtypes to NumPy.
            advice = f"send float(value), or shmrpc.register({kind.__name__}, float, {kind.__name__})"
        elif plain == f"{base.__name__}(value)":
            advice = f"send {plain}, or shmrpc.register({kind.__name__}, {base.__name__}, {kind.__name__})"
        else:
            register = f"shmrpc.register({kind.__name__}, encode, decode)"
            advice = f"send {plain}, or {register}" if plain else f"register converters: {register}"
    return TypeError(f"a {kind.__qualname__} would arrive as a plain {base.__name__}, and is not sent; {advice}")


def unregistered_error(value: Any) -> TypeError:
    """Return the error for an instance that only a declared type could rebuild, in a value without a declared type."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        what, otherwise = "its value", "send its .value"
    elif isinstance(value, tuple):
        what, otherwise = "a tuple", "send tuple(value)"
    else:
        what, otherwise = "a dict", "send a dict"
    functions = ", encode, decode" if hasattr(kind, "__attrs_attrs__") else ""
    return TypeError(
        f"a {kind.__qualname__} that is not registered would arrive as {what}, and is not sent; "
        f"shmrpc.register({kind.__name__}{functions}) on both sides, or {otherwise}"
    )


def advise_sender(value: Any) -> str:
    """Return the advice to the sender of a value that cannot be sent; "" if there is none."""
    return _advise(value)[0]


def advise_endpoint(result: Any) -> str:
    """Return the advice to the author of an endpoint that returned a value that cannot be sent; "" if there is none."""
    return _advise(result)[1]


def _advise(value: Any) -> tuple[str, str]:
    """Return the advice to a sender, and the advice to the author of an endpoint; "" for none."""
    advice = _LIBRARIES.get((type(value).__module__.partition(".")[0], type(value).__name__))
    if advice is not None:
        return advice, ""
    if isinstance(value, Awaitable):
        return "await it, and send the result", "make the endpoint an async def, and await it there"
    if isinstance(value, io.IOBase):  # Before Iterator, which a file is, too.
        return "read it, and send its contents", ""
    if isinstance(value, AsyncIterable):
        return _SEND_A_LIST, "declare the result as AsyncIterator[T], and it streams"
    if isinstance(value, Iterator):
        return _SEND_A_LIST, "declare the result as Iterator[T], and it streams; or return a list"
    if isinstance(value, MappingView):
        return "send a list of it", ""
    if isinstance(value, _CONTEXT_MANAGERS) and type(value).__module__ == "contextlib":
        return (
            "enter it, and send the value",
            "enter it in the endpoint, or in the service's lifespan if it must last",
        )
    if hasattr(type(value), "__dlpack__"):
        return f"send numpy.from_dlpack(value), or shmrpc.register({type(value).__name__}, encode, decode)", ""
    if _core.is_buffer(value):
        return "send memoryview(value), or bytes of it", ""
    if isinstance(value, tzinfo):
        return "use datetime.timezone or zoneinfo.ZoneInfo(key)", ""
    if isinstance(value, _NO_VALUES):
        return "functions, classes and modules cannot be sent: send a name", ""
    return "", ""


#: Value to send for an instance of a class derived from the class of this name.
_PLAIN: Final = {
    **{name: f"{name}(value)" for name in ("int", "float", "str", "bytes", "bytearray", "complex")},
    **{name: f"{name}(value)" for name in ("list", "dict", "tuple", "set", "frozenset", "Decimal", "Fraction")},
    "PurePath": "pathlib.Path(value)",
    "ndarray": "np.asarray(value)",
    "generic": "np.asarray(value)[()]",
    "Tensor": "value.detach().as_subclass(torch.Tensor)",
    "OrderedDict": "dict(value)",
    "defaultdict": "dict(value)",
    "Counter": "dict(value)",
}
#: Advice by the package and the name of a class or its base class.
_LIBRARIES: Final = {
    ("pandas", "Timestamp"): "send value.to_datetime64(), which keeps the nanoseconds",
    ("pandas", "Timedelta"): "send value.to_timedelta64(), which keeps the nanoseconds",
    ("pandas", "NaTType"): "send np.datetime64('NaT')",
    ("pandas", "DataFrame"): "send pyarrow.Table.from_pandas(value), and .to_pandas() what arrives",
    ("pandas", "Series"): "send value.to_numpy(), or a table of it",
    ("polars", "DataFrame"): "send value.to_arrow(), and polars.from_arrow() makes one again",
    ("polars", "Series"): "send value.to_arrow(), and polars.from_arrow() makes one again",
    ("collections", "UserString"): "send its .data",
    ("collections", "UserDict"): "send its .data",
    ("collections", "UserList"): "send its .data",
}
_SEND_A_LIST: Final = "send a list of its items, or declare a stream"
_CONTEXT_MANAGERS: Final = (contextlib.AbstractContextManager, contextlib.AbstractAsyncContextManager)
_NO_VALUES: Final = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
