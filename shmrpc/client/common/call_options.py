"""The options of calls: what a client adds to them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

from shmrpc.basics.checks import check_real
from shmrpc.service.call import Metadata, check_metadata

#: The longest timeout of a call, in seconds: three years.
MAX_CALL_TIMEOUT: Final = 1e8


def check_timeout(timeout: float | None) -> float | None:
    """The timeout of a call, None if there is none; ValueError or TypeError if it cannot be one."""
    if timeout is None or timeout == math.inf:
        return timeout
    check_real("timeout of a call", timeout, "a number of seconds (math.inf: no limit)")
    if not 0 <= timeout <= MAX_CALL_TIMEOUT:
        raise ValueError(f"timeout of a call: expected 0 to {MAX_CALL_TIMEOUT:g} seconds, got {timeout}")
    return timeout


@dataclasses.dataclass(frozen=True)
class Options:
    """What a client adds to its calls."""

    #: seconds that a call may take; math.inf: any, whatever the handler that calls has left
    timeout: float | None = None
    metadata: Mapping[str, str | bytes] | None = None
    #: gets what handlers send back
    reply_metadata: Metadata | None = None
    #: sync or async ones, as the client is
    interceptors: tuple[Any, ...] = ()

    @property
    def wants_reply_metadata(self) -> bool:
        """Whether somebody reads what a handler sends back beside its result."""
        return self.reply_metadata is not None or bool(self.interceptors)

    @property
    def timeout_nanoseconds(self) -> int | None:
        """Nanoseconds that a call may take; None if these options say nothing of it."""
        return None if self.timeout in (None, math.inf) else int(self.timeout * 1e9)

    @property
    def inherits_deadline(self) -> bool:
        """Whether a call is bound by the deadline of the one that is handled here."""
        return self.timeout != math.inf

    @property
    def needs_slow_path(self) -> bool:
        """Whether there is more to a call than arguments and a deadline."""
        return bool(self.metadata) or self.wants_reply_metadata

    def updated(
        self,
        timeout: float | None,
        metadata: Mapping[str, str | bytes] | None,
        reply_metadata: Metadata | None,
    ) -> Options:
        """These, with what is given in the place of what was."""
        return dataclasses.replace(
            self,
            timeout=self.timeout if timeout is None else check_timeout(timeout),
            metadata=self.metadata if metadata is None else {**(self.metadata or {}), **check_metadata(metadata)},
            reply_metadata=self.reply_metadata if reply_metadata is None else reply_metadata,
        )
