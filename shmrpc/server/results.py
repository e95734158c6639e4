"""Whether endpoints return what they declare. Nobody looks, unless a server was told to or is in debug mode."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

from shmrpc.service.service import Endpoint
from shmrpc.wire.codec import Codec
from shmrpc.wire.frames import Rejected

logger = logging.getLogger("shmrpc.server")

#: Is given a result, or an item of a stream.
Check = Callable[[Any], None]


def check_of(endpoint: Endpoint, codec: Codec, *, refuse: bool) -> Check | None:
    """What looks at an endpoint's results: raises the rejection, or warns of the first. None if no type is declared."""
    check = endpoint.signature.result_check(codec)
    if check is None or refuse:
        return check
    has_warned = False

    def warn(value: Any) -> None:
        nonlocal has_warned
        if has_warned:
            return
        try:
            check(value)
        except Rejected as error:
            has_warned = True
            logger.warning("%s. It is sent as it is; serve(validate_results=True) fails the call", error)

    return warn


def checking(endpoint: Endpoint, check: Check) -> Endpoint:
    """The same endpoint, with a function whose result is looked at."""
    function = endpoint.function

    async def check_async(*args: Any, **kwargs: Any) -> Any:
        result = await function(*args, **kwargs)
        check(result)
        return result

    def check_plain(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        check(result)
        return result

    made = copy.copy(endpoint)
    made.function = check_async if endpoint.is_coroutine else check_plain
    return made
