"""The options that a client adds to its calls."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

from shmrpc.basics.checks import check_real
from shmrpc.service.call import Metadata, check_metadata

#: Longest timeout of a call in seconds: about three years.
MAX_CALL_TIMEOUT: Final = 1e8


def check_timeout(timeout: float | None) -> float | None:
    """Return the timeout of a call: 0 to MAX_CALL_TIMEOUT seconds, ``math.inf``, or None.

    Raises TypeError for a value that is no real number, ValueError for one out of bounds or NaN.
    """
    if timeout is None or timeout == math.inf:
        return timeout
    check_real("timeout of a call", timeout, "a number of seconds (math.inf: no limit)")
    if not 0 <= timeout <= MAX_CALL_TIMEOUT:
        raise ValueError(f"timeout of a call: expected 0 to {MAX_CALL_TIMEOUT:g} seconds, got {timeout}")
    return timeout


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """The options that a client adds to its calls."""

    #: Seconds that a call may take; math.inf: no limit, not even the deadline of the calling handler.
    timeout: float | None = None
    metadata: Mapping[str, str | bytes] | None = None
    #: Dict that receives the metadata that handlers send back.
    reply_metadata: Metadata | None = None
    #: Plain or async interceptors, as the client requires.
    interceptors: tuple[Any, ...] = ()

    @property
    def wants_reply_metadata(self) -> bool:
        """True if the caller or an interceptor reads the metadata of replies."""
        return self.reply_metadata is not None or bool(self.interceptors)

    @property
    def timeout_nanoseconds(self) -> int | None:
        """Nanoseconds that a call may take; None without a finite timeout."""
        return None if self.timeout in (None, math.inf) else int(self.timeout * 1e9)

    @property
    def inherits_deadline(self) -> bool:
        """True if calls that a handler makes inherit the deadline of the call that it handles."""
        return self.timeout != math.inf

    @property
    def needs_slow_path(self) -> bool:
        """True if calls have more than arguments and a deadline."""
        return bool(self.metadata) or self.wants_reply_metadata

    def updated(
        self,
        timeout: float | None,
        metadata: Mapping[str, str | bytes] | None,
        reply_metadata: Metadata | None,
    ) -> CallOptions:
        """Return a copy with the given options replaced. None keeps the old value.

        ``metadata`` is added to the old. Raises ValueError or TypeError for an invalid timeout or metadata. Does not
        check ``reply_metadata``.
        """
        return dataclasses.replace(
            self,
            timeout=self.timeout if timeout is None else check_timeout(timeout),
            metadata=self.metadata if metadata is None else {**(self.metadata or {}), **check_metadata(metadata)},
            reply_metadata=self.reply_metadata if reply_metadata is None else reply_metadata,
        )
