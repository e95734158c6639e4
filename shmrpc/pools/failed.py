"""What a task has raised, on its way from the worker to its caller."""

from __future__ import annotations

import pickle
import re
from typing import Final, Self

from shmrpc.errors import DecodeError, EncodeError
from shmrpc.values.pickling import dumps
from shmrpc.wire import frames

#: The calls that carry tasks, as errors name them.
_CARRIERS: Final = re.compile(r"^(run|run_named|run_async|chunk)\(\)")
_ITEM: Final = re.compile(r"^an item, (.+?), cannot be sent")
#: What an endpoint may do, and a task not.
_STREAMS: Final = re.compile(r"declare the result as \S+, and it streams; or return a list")


def of_task(error: Exception, name: str) -> Exception:
    """An error of what cannot be sent or read, as one of the task's function and not of the call that carries it."""
    if not isinstance(error, EncodeError | DecodeError):
        return error
    text = _STREAMS.sub("return a list", _CARRIERS.sub(f"{name}()", str(error)))
    return type(error)(_ITEM.sub(rf"{name}() returned \1, which cannot be sent", text))


class Failed:
    """Stands for a result where a task has raised."""

    __slots__ = ("_body", "_pickled")

    def __init__(self, body: bytes, pickled: bytes | None) -> None:
        self._body, self._pickled = body, pickled

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """What is told of an exception: what calls tell, with its traceback; and itself, if it can be pickled."""
        body = frames.encode_failure(error, frames.MIN_MAX_FRAME)
        try:
            pickled = dumps(error)
            pickle.loads(pickled)
        except Exception:
            pickled = None
        return cls(body, pickled)

    def __reduce__(self) -> tuple[type[Failed], tuple[bytes, bytes | None]]:
        return Failed, (self._body, self._pickled)

    def error(self) -> BaseException:
        """The exception to raise: itself, with the worker's traceback as its cause; or a RemoteError, as of a call."""
        told = frames.decode_failure(self._body)
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
