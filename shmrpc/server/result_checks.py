"""The results of endpoints: why one cannot be sent, and whether it is of the declared type."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from shmrpc.service.endpoints import Endpoint
from shmrpc.service.signature import Signature
from shmrpc.values.encode_errors import is_unsendable, reason, returned
from shmrpc.wire.codec import UNREADABLE, Body, Codec, encode_inline
from shmrpc.wire.failure import CallRejected

logger = logging.getLogger("shmrpc.server")

#: Is given a result, or an item of a stream.
ResultCheck = Callable[[Any], None]


class EncodedResult(msgspec.Struct, eq=False):
    """A result that is encoded already."""

    body: Body


def encode_rejection(name: str, result: Any, error: Exception) -> Exception:
    """The rejection of a result that cannot be encoded; the error itself if a signal's handler raised it."""
    if not is_unsendable(error, (Exception,)):
        return error
    if inspect.iscoroutine(result):
        result.close()  # Or Python warns, somewhere else, that nobody has awaited it.
    return CallRejected(
        "encode",
        f"{name}() returned {type(result).__qualname__}, which cannot be sent as MessagePack: "
        f"{returned(result) or reason(error)}",
    )


def make_result_check(endpoint: Endpoint, codec: Codec, *, refuse: bool) -> ResultCheck | None:
    """What checks an endpoint's results: raises the rejection, or warns of the first. None if no type is declared."""
    check = _result_check(endpoint.signature, codec)
    if check is None or refuse:
        return check
    has_warned = False

    def warn(value: Any) -> None:
        nonlocal has_warned
        if has_warned:
            return
        try:
            check(value)
        except CallRejected as error:
            has_warned = True
            logger.warning("%s. It is sent as it is; serve(validate_results=True) fails the call", error)

    return warn


def _result_check(signature: Signature, codec: Codec) -> ResultCheck | None:
    """Raises a rejection for a result, or an item, of another type; None if none is declared.

    It looks at what a caller would get. So it takes as long as encoding and decoding.
    """
    kind, what = signature.result, "an item" if signature.streams else "the result"
    if kind is Any:
        return None
    decode = codec.decoder(kind)

    def check(value: Any) -> None:
        try:
            body = codec.encode(value)
        except Exception:  # To be told of when it is encoded to be sent.
            return
        try:
            if isinstance(body, bytes):
                decode(body)
            else:
                _check_large(codec, value, kind, decode)
        except (*UNREADABLE, RecursionError) as error:
            raise CallRejected("encode", signature.describe_mismatch(what, error, value, kind)) from None

    return check


def _check_large(codec: Codec, value: Any, kind: Any, decode: Callable[[Body], Any]) -> None:
    """One of UNREADABLE for a value with large buffers that is of another type. They are copied only to find that."""
    try:
        codec.convert(value, kind)
    except msgspec.ValidationError:  # Which it may be as it stands, and not as it arrives.
        decode(encode_inline(value))


def checked_function(endpoint: Endpoint, check: ResultCheck) -> Callable[..., Any]:
    """The endpoint's function, whose result is checked."""
    function = endpoint.function

    async def check_async(*args: Any, **kwargs: Any) -> Any:
        result = await function(*args, **kwargs)
        check(result)
        return result

    def check_plain(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        check(result)
        return result

    return check_async if endpoint.is_coroutine else check_plain


def checked_encode(encode: Callable[[Any], Body], check: ResultCheck) -> Callable[[Any], Body]:
    """Encodes items that have passed the check."""

    def encode_checked(item: Any) -> Body:
        check(item)
        return encode(item)

    return encode_checked
