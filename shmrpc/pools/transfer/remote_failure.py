"""What a task has raised, on its way from the worker to its caller."""

from __future__ import annotations

import pickle
import re
from typing import Any, Final, Self

from shmrpc.errors import DecodeError, EncodeError, RemoteError, ShmrpcError
from shmrpc.values.pickling import LazyPickle, dumps
from shmrpc.wire import frames
from shmrpc.wire.failure import decode_failure, encode_failure

#: The calls that carry tasks, as errors name them.
_CARRIERS: Final = re.compile(r"^(run|run_named|run_timed|run_async|chunk)\(\)")
_ITEM: Final = re.compile(r"^an item, (.+?), cannot be sent")
#: Bytes of what is told of a group, with all its exceptions.
_MAX_GROUP: Final = 65_536
#: What an endpoint may do, and a task not.
_STREAMS: Final = re.compile(r"declare the result as \S+, and it streams; or return a list")
#: What is said of a result.
_UNREAD: Final = "the result cannot be read"
#: An array of arguments, which is no value of the user's.
_ALL: Final = re.compile(r"a value of type builtins\.list cannot be pickled")


def of_task(error: Exception, name: str) -> Exception:
    """An error of what cannot be sent or read, as one of the task's function and not of the call that carries it."""
    if isinstance(error, RemoteError) and isinstance(error, MemoryError):  # As its arguments were read.
        return MemoryError(f"{name}(): its worker has no memory for the arguments")
    if not isinstance(error, EncodeError | DecodeError):
        return error
    text = _STREAMS.sub("return a list", _CARRIERS.sub(f"{name}()", str(error))).replace(" as MessagePack", "")
    text = _ALL.sub("it cannot be pickled", text)
    return type(error)(_ITEM.sub(rf"{name}() returned \1, which cannot be sent", text))


def read(pickled: LazyPickle, name: str) -> Any:
    """The result of a task of this function. Raises DecodeError if it cannot be read."""
    try:
        return pickled.read()
    except (MemoryError, ShmrpcError):
        raise
    except Exception as error:
        raise DecodeError(f"{name}(): {_UNREAD}: {type(error).__name__}: {error}") from error


def read_all(results: list[Any], name: str) -> list[Any]:
    """Results of tasks; what has failed in the place of one that cannot be read."""
    return [_read_or_failed(each, name) if type(each) is LazyPickle else each for each in results]


def _read_or_failed(pickled: LazyPickle, name: str) -> Any:
    try:
        return read(pickled, name)
    except Exception as error:
        return Failed.of(error)


class Failed:
    """Stands for a result where a task has raised."""

    __slots__ = ("_body", "_pickled")

    def __init__(self, body: bytes, pickled: bytes | None) -> None:
        self._body, self._pickled = body, pickled

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """What is told of an exception: what calls tell, with its traceback; and itself, if it can be pickled."""
        limit = _MAX_GROUP if isinstance(error, BaseExceptionGroup) else frames.MIN_MAX_FRAME
        body = encode_failure(error, limit)
        try:
            pickled = _pickled(error, error)
        except Exception:
            try:
                pickled = _pickled(_Remade(error), error)
            except Exception:
                pickled = None
        return cls(body, pickled)

    def __reduce__(self) -> tuple[type[Failed], tuple[bytes, bytes | None]]:
        return Failed, (self._body, self._pickled)

    def error(self) -> BaseException:
        """The exception to raise: itself, with the worker's traceback as its cause; or a RemoteError, as of a call."""
        told = decode_failure(self._body)
        if self._pickled is None:
            return told
        try:
            error = pickle.loads(self._pickled)
        except Exception:
            return told
        if not isinstance(error, BaseException):
            return told
        error.__cause__ = told
        return error


def raised(result: Any) -> Any:
    """A result; what has failed is raised."""
    if type(result) is Failed:
        raise result.error()
    return result


class _Remade:
    """Pickles an exception by what it has, not by a call of its class, whose ``__init__`` may want something else."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self._error), self._error.args, self._error.__dict__)


def _remade(cls: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


def _pickled(what: object, error: BaseException) -> bytes:
    """A pickle that was read once, and gave an exception of the same class."""
    pickled = dumps(what)
    if type(pickle.loads(pickled)) is not type(error):
        raise TypeError("it comes back as something else")
    return pickled
