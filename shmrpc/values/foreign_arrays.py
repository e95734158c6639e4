"""Extension for arrays of other libraries, by DLPack, which arrive as instances where their class is declared.

A decoder does not know the declared type. So :class:`ForeignDecodeContext` puts a :class:`ForeignArray` in the place of
such an array, the conversion to the declared type makes an instance of it, and :func:`require_converted` raises if any
remain. Any other context raises :class:`NeedsDeclaredType`, so that bodies without such arrays cost nothing
extra.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import msgspec
from msgspec.msgpack import Ext

from shmrpc.basics.signals import is_from_signal_handler
from shmrpc.values import fields
from shmrpc.values.arrays import write_array
from shmrpc.values.decode_context import DecodeContext
from shmrpc.values.encode_context import EncodeContext, Writer
from shmrpc.values.extension import Extension
from shmrpc.values.standard import TUPLE

FOREIGN_ARRAY: Final = 42
#: Device type of the CPU in DLPack.
_CPU: Final = 1


class NeedsDeclaredType(msgspec.DecodeError):
    """Error of decoding an array of another library without declared types."""


class UndeclaredArray(msgspec.ValidationError):
    """Error of an array of another library in a place where its class is not declared."""


class ForeignArray:
    """Placeholder for an array of another library before the conversion to its class."""

    __slots__ = ("array", "name")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str, array: Any) -> None:
        """Create a placeholder from the qualified name of the class and a NumPy array of the elements."""
        self.name = name
        self.array = array

    def __repr__(self) -> str:
        return f"<an array of {self.name[:100]}>"

    def as_instance(self, kind: Any) -> Any:
        """Return an instance of a declared class with these elements.

        Raises ValueError if the declared class is another one, or if no instance with these elements can be made.
        """
        if not isinstance(kind, type) or _name_of(kind) != self.name or not _has_dlpack(kind):
            name = getattr(kind, "__qualname__", None) or str(kind)
            raise ValueError(f"Expected `{name}`, got `{self.name:.100}`; {self.remedy}")
        made = self._build(kind)
        if type(made) is not kind:
            raise self._conversion_error(kind, f"it gives a {type(made).__qualname__}")
        try:
            back = sys.modules["numpy"].from_dlpack(made)
        except Exception as error:
            raise self._conversion_error(kind, error) from None
        array = self.array
        if (back.dtype, back.shape) != (array.dtype, array.shape) or back.tobytes() != array.tobytes():
            raise self._conversion_error(kind, "its elements are not those that were sent")
        return made

    def _build(self, kind: Any) -> Any:
        """Return an instance with memory of its own, because a class may keep its argument or write to it.

        Raises ValueError if the library cannot make one.
        """
        package = sys.modules.get(kind.__module__.partition(".")[0])
        own = getattr(kind, "from_dlpack", None)
        makers: list[Callable[[Any], Any] | None] = [own] if own else [getattr(package, "from_dlpack", None), kind]
        failure: object = "it cannot be made"
        for make in filter(None, makers):
            try:
                made = make(self.array.copy(order="K"))
            except Exception as error:
                if is_from_signal_handler(error):
                    raise
                failure = error
                continue
            if type(made) is kind or make is makers[-1]:
                return made
        raise self._conversion_error(kind, failure)

    def _conversion_error(self, kind: type, why: object) -> ValueError:
        """Return the error for a class whose instance cannot be made, with the reason and the remedy."""
        text = str(why) or type(why).__name__
        return ValueError(f"no equal `{kind.__qualname__}` can be made of its elements ({text:.100}); {self.remedy}")

    @property
    def remedy(self) -> str:
        """Advice for the sender."""
        short = self.name.rpartition(".")[2]
        return f"send numpy.from_dlpack(value), or shmrpc.register({short:.100}, encode, decode) on both sides"


class ForeignDecodeContext(DecodeContext):
    """State of decoding a body whose value will be converted to a declared type."""

    __slots__ = ("_inner_hooks",)

    def hook(self, code: int, data: Any) -> Any:
        """Decode an extension. Raises one of UNREADABLE if it is invalid."""
        self._inner_hook = self._foreign_hook() if code == TUPLE else None
        return super().hook(code, data)

    def _foreign_hook(self) -> Callable[[int, Any], Any]:
        """Return a hook for extensions within a tuple, which puts placeholders for foreign arrays, too."""
        self._inner_hook = None
        self._nested_hook()  # Raises DecodeError if the extensions are nested too deeply.
        inner = ForeignDecodeContext(
            self._readers, self._unpack, self.pickled, self._buffers, self._made, self._depth + 1, self.owns
        )
        return inner.hook


def require_converted(value: Any) -> Any:
    """Return a converted value unchanged. Raises UndeclaredArray if it contains an array that was not converted."""
    unconverted = next(_iter_unconverted(value), None)
    if unconverted is not None:
        raise UndeclaredArray(_undeclared_text(unconverted))
    return value


def _iter_unconverted(value: Any) -> Iterator[ForeignArray]:
    """Yield the placeholders in a value, and in its items, the values of its dicts, and its fields."""
    kind = type(value)
    if kind is ForeignArray:
        yield value
    elif issubclass(kind, (list, tuple)):
        for item in value:
            yield from _iter_unconverted(item)
    elif issubclass(kind, dict):
        for item in value.values():
            yield from _iter_unconverted(item)
    else:
        for name in fields.names_of(kind) or ():
            yield from _iter_unconverted(getattr(value, name, None))


def explain_mismatch(error: msgspec.ValidationError, value: Any) -> msgspec.ValidationError:
    """Return a validation error; if it is about an array of another library, with the array's class and the remedy."""
    text = str(error)
    if f"got `{ForeignArray.__name__}`" in text:
        found = next(_iter_unconverted(value), None)
        if found is None:  # The mismatch is about an instance of another class of this name.
            return error
        what, at, path = text.partition(" - at `")
        what = what.replace(f"got `{ForeignArray.__name__}`", f"got `{found.name:.100}`")
        error = msgspec.ValidationError(f"{what}; {found.remedy}{at}{path}")
    return error


def _undeclared_text(array: ForeignArray) -> str:
    """Return the message for an array that arrived where its class is not declared."""
    return f"a {array.name:.100} arrived where its class is not declared; {array.remedy}"


def _name_of(kind: type) -> str:
    """Return the name of a class with its module, as it travels."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _has_dlpack(kind: type) -> bool:
    """Return True if instances of a class can be exported by DLPack."""
    return hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")


def _adopt(value: Any) -> Writer | None:
    """Return the writer for an array of another library; None for a value without DLPack."""
    return _write if _has_dlpack(type(value)) else None


def _write(value: Any, context: EncodeContext) -> Ext:
    """Encode an array of another library as the name of its class and a NumPy array over the same memory.

    Raises TypeError if NumPy is not imported or cannot take the array, or the memory is not the CPU's.
    """
    kind, np = type(value), sys.modules.get("numpy")
    if np is None:
        _raise_refused(kind, "this process has not imported NumPy", "import numpy")
    try:
        device = value.__dlpack_device__()[0]
        array = np.from_dlpack(value) if device == _CPU else None
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        _raise_refused(kind, f"numpy.from_dlpack() cannot take it: {error or type(error).__name__}")
    if array is None:
        _raise_refused(kind, "it is not in the CPU's memory", "copy it there")
    return Ext(FOREIGN_ARRAY, context.pack([_name_of(kind), write_array(array, context)]))


def _raise_refused(kind: type, why: str, remedy: str = "send an array of NumPy's") -> NoReturn:
    """Raise the TypeError, with advice, for an array that cannot be sent."""
    name = kind.__name__
    raise TypeError(f"a {name} cannot be sent: {why}; {remedy}, or shmrpc.register({name}, encode, decode)") from None


def _read(payload: Any, context: DecodeContext) -> ForeignArray:
    """Return an array with the name of its class. Raises ValueError for an invalid payload.

    Raises NeedsDeclaredType unless the context is a :class:`ForeignDecodeContext`.
    """
    np = sys.modules.get("numpy")
    name, array = payload
    if type(name) is not str or np is None or type(array) is not np.ndarray:
        raise ValueError("expected the name of a class and a NumPy array")
    arrived = ForeignArray(name, array)
    if not isinstance(context, ForeignDecodeContext):
        raise NeedsDeclaredType(_undeclared_text(arrived))
    return arrived


EXTENSIONS: Final = (
    Extension(
        FOREIGN_ARRAY,
        "array of another library",
        "`[class, NumPy array]`: the class with its module, as in `library.Tensor`",
        _read,
        adopt=_adopt,
        declared=True,
    ),
)
