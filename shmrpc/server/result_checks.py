"""Checks of endpoint results: rejections of results that cannot be sent or are of the wrong type."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from shmrpc.service.endpoints import Endpoint
from shmrpc.service.signature import Signature
from shmrpc.values.encode_errors import advise_endpoint, is_unsendable, reason
from shmrpc.wire.codec import UNREADABLE, Body, Codec, encode_inline
from shmrpc.wire.failure import CallRejected

logger = logging.getLogger("shmrpc.server")

#: Called with a result, or an item of a stream.
ResultCheck = Callable[[Any], None]


class EncodedResult(msgspec.Struct, eq=False):
    """A result that is encoded already."""

    body: Body


def encode_rejection(name: str, result: Any, error: Exception) -> Exception:
    """Return the rejection of a result that cannot be encoded; the error itself if a signal handler raised it."""
    if not is_unsendable(error, (Exception,)):
        return error
    if inspect.iscoroutine(result):
        result.close()  # Otherwise Python warns later of a coroutine that was never awaited.
    return CallRejected(
        "encode",
        f"{name}() returned {type(result).__qualname__}, which cannot be sent as MessagePack: "
        f"{advise_endpoint(result) or reason(error)}",
    )


def make_result_check(endpoint: Endpoint, codec: Codec, *, refuse: bool) -> ResultCheck | None:
    """Return the check of an endpoint's results, which raises or only warns once. None without a declared type."""
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
    """Return a function that raises a rejection for a result of another type; None if no type is declared.

    Checks the value as a caller would receive it, which takes as long as encoding and decoding it.
    """
    kind, what = signature.result, "an item" if signature.streams else "the result"
    if kind is Any:
        return None
    decode = codec.decoder(kind)

    def check(value: Any) -> None:
        try:
            body = codec.encode(value)
        except Exception:  # Encoding it for the reply will raise the rejection.
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
    """Raise one of UNREADABLE for a value of another type. Copies its large buffers only in that case."""
    try:
        codec.convert(value, kind)
    except msgspec.ValidationError:  # The value itself is of another type, and may still arrive as the declared one.
        decode(encode_inline(value))


def checked_function(endpoint: Endpoint, check: ResultCheck) -> Callable[..., Any]:
    """Return the endpoint's function with a check of its result."""
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
    """Return an encoder that checks each item first."""

    def encode_checked(item: Any) -> Body:
        check(item)
        return encode(item)

    return encode_checked
