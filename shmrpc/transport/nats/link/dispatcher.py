"""Dispatch of the messages that a link receives, in an iteration of the event loop of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from shmrpc.transport.nats import subjects
from shmrpc.transport.nats.link import guarded_client
from shmrpc.transport.nats.messages import PROOF
from shmrpc.transport.queued_inbox import ScheduledDelivery

#: Handles a message, given its data and the subject for replies.
OnMessage = Callable[[bytes, str], None]
#: Handles a message; the last argument is True if the message is NATS's report that another one reached no subscriber.
Receiver = Callable[[bytes, str, bool], None]


class Dispatcher:
    """Receivers of the messages to a link, by subject, and the messages that wait for them.

    ``prefix``: common part of the subjects. ``publish`` sends data to a subject.
    """

    def __init__(self, prefix: str, publish: Callable[[str, bytes], None]) -> None:
        self._prefix = prefix
        self._publish = publish
        #: Receivers by the last token of the subject.
        self._receivers: dict[str, Receiver] = {}
        self._inboxes: dict[str, OnMessage] = {}
        #: Called after received messages were delivered, in the same iteration of the loop.
        self.on_delivered: set[Callable[[], None]] = set()
        self._received: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._delivery = ScheduledDelivery(self._deliver)

    def open_end(self, take: Receiver) -> str:
        """Return an unguessable subject, whose messages are passed to ``take`` until :meth:`close_end`."""
        end = subjects.make_end()
        self._receivers[end] = take
        return f"{self._prefix}.{end}"

    def close_end(self, subject: str) -> None:
        """Stop receiving the messages of a subject. Raises KeyError if it is not open."""
        del self._receivers[subject.rpartition(".")[2]]

    def open_inbox(self, take: OnMessage) -> str:
        """Return a subject whose messages are passed to ``take`` until :meth:`close_inbox`.

        Empty data means that NATS did not deliver a message with this reply subject, or that the link has ended.
        """
        subject = self.open_end(
            lambda data, sender, is_undelivered: take(data, sender) if data or is_undelivered else None
        )
        self._inboxes[subject] = take
        return subject

    def close_inbox(self, subject: str) -> None:
        """Stop receiving the messages of an inbox. Raises KeyError if it is not open."""
        del self._inboxes[subject]
        self.close_end(subject)

    def end_inboxes(self) -> None:
        """Pass empty data to all inboxes, because the link has ended."""
        for take in list(self._inboxes.values()):
            take(b"", "")

    async def on_message(self, message: Any) -> None:
        """Queue a message to one of the subjects. NATS's client waits for this callback before the next message."""
        end = message.subject.rpartition(".")[2]
        self.queue(self._dispatch, end, message.data, message.reply, guarded_client.is_undelivered(message))

    def queue(self, take: Callable[..., None], *message: Any) -> None:
        """Queue a message, whose parts are passed to ``take`` in a later iteration of the loop."""
        self._received.append((take, message))
        self._delivery.schedule()

    def cancel(self) -> None:
        """Cancel the scheduled delivery of messages, which stay queued."""
        self._delivery.cancel()

    def _dispatch(self, end: str, data: bytes, sender: str, is_undelivered: bool) -> None:
        """Pass a message to its receiver. If the receiver is gone, return the proof of the message to its sender."""
        take = self._receivers.get(end)
        if take is not None:
            take(data, sender, is_undelivered)
        elif len(data) > PROOF and subjects.is_end(sender):
            self._publish(sender, data[:PROOF])

    def _deliver(self) -> None:
        """Deliver all queued messages, then call ``on_delivered``. After an exception, a later iteration continues."""
        try:
            while self._received:
                take, message = self._received.popleft()
                take(*message)
            for callback in list(self.on_delivered):
                callback()
        finally:
            if self._received:
                self._delivery.schedule()
