"""The failure of a task on its way from the worker to the caller."""

from __future__ import annotations

import pickle
import re
from typing import Any, Final, Self

from shmrpc.errors import DecodeError, EncodeError, RemoteError, ShmrpcError
from shmrpc.values.pickling import LazyPickle, dumps
from shmrpc.wire import frames
from shmrpc.wire.failure import decode_failure, encode_failure

#: Endpoints that carry tasks, at the beginning of an error message.
_CARRIER_ENDPOINT: Final = re.compile(r"^(run|run_named|run_timed|run_async|run_chunk)\(\)")
_ITEM: Final = re.compile(r"^an item, (.+?), cannot be sent")
#: Maximum bytes of the description of an exception group.
_MAX_GROUP_BYTES: Final = 65_536
#: Advice of an error message that fits endpoints, and not tasks.
_STREAM_ADVICE: Final = re.compile(r"declare the result as \S+, and it streams; or return a list")
#: Description of the list of arguments, which is no value of the user's.
_ARGUMENT_LIST: Final = re.compile(r"a value of type builtins\.list cannot be pickled")


def name_task_in_error(error: Exception, name: str) -> Exception:
    """Return an error of encoding, decoding or memory whose text names the task's function instead of an endpoint.

    Return any other error unchanged.
    """
    if isinstance(error, RemoteError) and isinstance(error, MemoryError):  # Raised as the arguments were read.
        return MemoryError(f"{name}(): its worker has no memory for the arguments")
    if not isinstance(error, EncodeError | DecodeError):
        return error
    text = _STREAM_ADVICE.sub("return a list", _CARRIER_ENDPOINT.sub(f"{name}()", str(error)))
    text = _ARGUMENT_LIST.sub("it cannot be pickled", text.replace(" as MessagePack", ""))
    return type(error)(_ITEM.sub(rf"{name}() returned \1, which cannot be sent", text))


def read_result(pickled: LazyPickle, name: str) -> Any:
    """Unpickle the result of a task of the function ``name``.

    Raises DecodeError if that fails; lets MemoryError and the errors of shmrpc pass.
    """
    try:
        return pickled.read()
    except (MemoryError, ShmrpcError):
        raise
    except Exception as error:
        raise DecodeError(f"{name}(): the result cannot be read: {type(error).__name__}: {error}") from error


def read_results(results: list[Any], name: str) -> list[Any]:
    """Return results of tasks, unpickled, with a RemoteFailure in the place of a result that cannot be read."""
    return [_read_or_fail(each, name) if type(each) is LazyPickle else each for each in results]


def _read_or_fail(pickled: LazyPickle, name: str) -> Any:
    """Unpickle a result; return a RemoteFailure if that fails."""
    try:
        return read_result(pickled, name)
    except Exception as error:
        return RemoteFailure.from_exception(error)


class RemoteFailure:
    """An exception that a task has raised, in the place of its result."""

    __slots__ = ("_body", "_pickled")

    def __init__(self, body: bytes, pickled: bytes | None) -> None:
        self._body, self._pickled = body, pickled

    @classmethod
    def from_exception(cls, error: BaseException) -> Self:
        """Make a failure from an exception: its description and traceback, and its pickle if one can be made.

        Does not raise for an exception that cannot be pickled.
        """
        limit = _MAX_GROUP_BYTES if isinstance(error, BaseExceptionGroup) else frames.MIN_MAX_FRAME
        body = encode_failure(error, limit)
        try:
            pickled = _pickle_checked(error, error)
        except Exception:
            try:
                pickled = _pickle_checked(_PickledByState(error), error)
            except Exception:
                pickled = None
        return cls(body, pickled)

    def __reduce__(self) -> tuple[type[RemoteFailure], tuple[bytes, bytes | None]]:
        return RemoteFailure, (self._body, self._pickled)

    def to_exception(self) -> BaseException:
        """Return the exception to raise: a copy of the original whose cause is the RemoteError with its traceback.

        Return the RemoteError itself if the original cannot be unpickled.
        """
        described = decode_failure(self._body)
        if self._pickled is None:
            return described
        try:
            error = pickle.loads(self._pickled)
        except Exception:
            return described
        if not isinstance(error, BaseException):
            return described
        error.__cause__ = described
        return error


def unwrap_result(result: Any) -> Any:
    """Return a result; raise the exception of a RemoteFailure."""
    if type(result) is RemoteFailure:
        raise result.to_exception()
    return result


class _PickledByState:
    """Wrapper that pickles an exception by its attributes, for a class whose ``__init__`` takes other arguments."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_exception, (type(self._error), self._error.args, self._error.__dict__)


def _rebuild_exception(cls: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    """Make an exception without a call of its ``__init__``."""
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


def _pickle_checked(value: object, error: BaseException) -> bytes:
    """Return a pickle of ``value``. Raises TypeError if unpickling gives an object of another class than ``error``.

    Raises what pickling and unpickling raise.
    """
    pickled = dumps(value)
    if type(pickle.loads(pickled)) is not type(error):
        raise TypeError("the pickle gives an object of another class")
    return pickled
