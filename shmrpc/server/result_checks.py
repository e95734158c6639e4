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

#: Function that checks a result, or an item of a stream.
ResultCheck = Callable[[Any], None]


class EncodedResult(msgspec.Struct, eq=False):
    """A result that is encoded already."""

    body: Body


def encode_rejection(name: str, result: Any, error: Exception) -> Exception:
    """Return the rejection of a result whose encoding raised ``error``; return an error of a signal handler itself.

    Closes a result that is a coroutine.
    """
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
    """Return a function that checks an endpoint's results; return None without a declared type.

    With ``refuse``, the function raises CallRejected for a result of another type; without it, it logs one warning.
    """
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
    """Return a function that raises CallRejected for a result of another type; return None without a declared type.

    The function checks the value as a caller would receive it: encodes and decodes it.
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
    """Return a function that calls the endpoint's function, checks its result, and returns it."""
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
    """Return a function that checks an item, then encodes it."""

    def encode_checked(item: Any) -> Body:
        check(item)
        return encode(item)

    return encode_checked
