"""Heartbeats of the connections of a link: keeps idle connections alive, and ends those with silent peers."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from shmrpc.errors import ConnectionLost
from shmrpc.transport.nats.pipe.pipe import BEAT_FRACTION, SILENCE_FRACTION, Pipe
from shmrpc.transport.nats.pipe.window_budget import WindowBudget

#: Fraction of a heartbeat: the shortest pause between two checks of all connections.
_SHORTEST_PAUSE: Final = 1 / 40


class Heartbeats:
    """Regular checks of all connections of a link, from :meth:`begin` to :meth:`stop`."""

    def __init__(
        self, pipes: set[Pipe], heartbeat: float, budget: WindowBudget, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._pipes = pipes
        self._heartbeat = heartbeat
        self._budget = budget
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        #: Time of the next check, by time.monotonic().
        self._due = 0.0
        #: Time at which the event loop was last found blocked, and for how many seconds.
        self._last_stall = (0.0, 0.0)

    def begin(self) -> None:
        """Run the first check, which schedules the later ones in the loop. Call this once."""
        self._due = time.monotonic()
        self._check_pipes()

    def stop(self) -> None:
        """Stop checking for good. Idempotent."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def describe_loop_stall(self) -> str:
        """Return a clause for a message that reports a recent stall of the event loop; "" if there was none."""
        when, seconds = self._last_stall
        if when and time.monotonic() - when < self._heartbeat:
            return f"; the event loop of this process was blocked for {seconds:.2g} s, which may be the reason"
        return ""

    def _check_pipes(self) -> None:
        """Send due heartbeats, end pipes with silent peers, and schedule the next check.

        While the budget is short, shrinks unused windows of the other pipes.
        """
        now = time.monotonic()
        late, due = now - self._due, now + self._heartbeat * BEAT_FRACTION
        if late > self._heartbeat / 2:
            self._last_stall = now, late
        for pipe in list(self._pipes):
            if not pipe.peer:
                continue
            # This loop was blocked, and has not read the messages that arrived meanwhile.
            if late > self._heartbeat / 4:
                pipe.last_received += late
            silence_end = pipe.last_received + pipe.heartbeat * SILENCE_FRACTION
            next_beat = pipe.last_sent + pipe.heartbeat * BEAT_FRACTION
            if now >= silence_end:
                _end_silent(pipe, now - pipe.last_received)
                continue
            if now >= next_beat:
                pipe.send_heartbeat()
                next_beat = now + pipe.heartbeat * BEAT_FRACTION
            elif self._budget.is_short:
                pipe.shrink_window()
            due = min(due, silence_end, next_beat)
        self._due = max(due, now + self._heartbeat * _SHORTEST_PAUSE)
        if not self._is_stopped:
            self._timer = self._loop.call_later(self._due - now, self._check_pipes)


def _end_silent(pipe: Pipe, silence: float) -> None:
    """End the connection of a pipe whose peer has been silent for ``silence`` seconds; discard a closing pipe."""
    if pipe.is_closing:
        pipe.discard()
        return
    reason = f"{pipe.peer_description} has said nothing for {silence:.2g} s (heartbeat={pipe.heartbeat:g})"
    causes = "its host or the network is down, it is stopped, or its event loop is blocked"
    pipe.end(ConnectionLost(f"{reason}: {causes}"))
