"""The options that serving and connecting share: their defaults and their bounds."""

from __future__ import annotations

from typing import Final

from shmrpc.protocol.frames import MAX_MAX_FRAME, MIN_MAX_FRAME

#: Microseconds that one wait may spin: about what a sleep and a wake-up cost.
DEFAULT_SPIN: Final = 200.0
#: A wait that spins for longer than this is a mistake.
MAX_SPIN: Final = 1_000_000.0
#: Seconds that connect() waits for a server.
DEFAULT_CONNECT_TIMEOUT: Final = 5.0


def check_options(*, max_frame: int, spin: float, timeout: float = 0) -> None:
    """ValueError or TypeError for an option that cannot be."""
    if not isinstance(max_frame, int):
        raise TypeError(f"max_frame: expected a number of bytes, got {max_frame!r}")
    if not MIN_MAX_FRAME <= max_frame <= MAX_MAX_FRAME:
        raise ValueError(f"max_frame: expected {MIN_MAX_FRAME} to {MAX_MAX_FRAME} bytes, got {max_frame}")
    if not 0 <= spin <= MAX_SPIN:
        raise ValueError(f"spin: expected 0 to {MAX_SPIN:g} microseconds, got {spin}")
    if not timeout >= 0:
        raise ValueError(f"timeout: expected seconds, 0 or more, got {timeout}")
