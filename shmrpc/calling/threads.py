"""One connection of a client without a loop, and the calls that threads have under way on it.

Of the threads that wait, one receives, for itself and for the others: it has the lead. When it has what it
waited for, the next one takes over.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, overload

from shmrpc import _core
from shmrpc.call import Call
from shmrpc.calling.lateness import Lateness
from shmrpc.calling.requests import body_of, ended_call, lost_call, unsendable
from shmrpc.clock import host_nanoseconds
from shmrpc.errors import CallStopped, ConnectionLost, DeadlineExceeded, LocalProtocolError, ShmrpcError
from shmrpc.protocol import frames
from shmrpc.protocol.codec import Body
from shmrpc.streams import OVERHEAD, WINDOW
from shmrpc.transport import End, Frame
from shmrpc.transport.shm import fork
from shmrpc.transport.shm.blocking import LIFE_CHECK, Ended, ThreadConnection


class Waiter:
    """A thread that waits for frames of its call, or for its turn to receive."""

    __slots__ = ("_came", "_taken", "error", "frames", "wake")

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        #: Bytes of credit that the items took which were put here, and those which have left. Each is counted
        #: by one thread at a time.
        self._came = self._taken = 0
        self.error: ShmrpcError | None = None
        self.wake = threading.Lock()
        self.wake.acquire()

    def put(self, frame: Frame) -> bool:
        """Keeps a frame for the thread. False if it is an item for which there was no credit."""
        self.frames.append(frame)
        if frame[0] != frames.ITEM:
            return True
        allowed = self._came - self._taken < WINDOW
        self._came += len(frame[2]) + OVERHEAD
        return allowed

    def take(self) -> Frame:
        """The first frame that is kept."""
        frame = self.frames.popleft()
        if frame[0] == frames.ITEM:
            self._taken += len(frame[2]) + OVERHEAD
        return frame

    def check(self) -> None:
        """Raises the error with which the wait is over, if it is."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # It has this frame in its traceback.

    def release(self) -> None:
        """Wakes the thread, which may have been woken before. Under the session's lock."""
        if self.wake.locked():
            self.wake.release()


class ThreadSession:
    """A connection and its calls. It is what :class:`shmrpc.call.Party` describes."""

    def __init__(self, connection: ThreadConnection) -> None:
        self.connection = connection
        self.service, self.pid, self.uid, self.state = connection.service, connection.pid, connection.uid, None
        self.numbers = {name: number for number, name in enumerate(connection.endpoints)}
        self.shapes = connection.shapes
        self.next_id = itertools.count(1).__next__
        self.ended: End | None = None
        #: By call id, those who do not lead. Not empty: who gives up the lead wakes them.
        self.waiters: dict[int, Waiter] = {}
        #: Not empty while no call may wait.
        self.stopped: list[bool] = []
        #: The last frame that has reached its call: who gives up the lead comes with it again.
        self._delivered: Frame | None = None
        self._lateness = Lateness(connection)
        #: Calls that were over their deadline before there was room to send them.
        self._unsent: set[int] = set()
        #: Calls with lower ids had begun when stop() was called last.
        self._stopped_before = 0
        #: Guards the waiters. Held for moments only; by one thread more than once, since the garbage collector
        #: may close a stream at any point, and a signal handler may call stop().
        self._state = threading.RLock()
        fork.close_in_child(self)

    def abandon(self) -> None:
        """In a forked child: a thread that is not here may have held the lock, and would for ever."""
        self._state = threading.RLock()

    def allocate(self, size: int) -> Any:
        """So many bytes of memory that the server can be given; SharedMemoryError if there are none."""
        self.connection.check_process()
        if self.ended is not None:
            raise ended_call(self.ended.error)
        try:
            return self.connection.allocate(size)
        except _core.ChannelError as error:
            raise self.unsent("allocate", error) from None

    def complete(self, call_id: int, answer: object, opcode: int, body: Body, call: Call | None = None) -> Body:
        """Waits for the answer to a call whose exchange brought something else; the body of its result.

        ``call``: if there is more to it than its arguments.
        """
        if answer is False:  # Another thread has the lead, and nothing was sent.
            with self.waiting(call_id) as waiter:
                self.connection.send(opcode, call_id, body)
                return body_of(self.next_answer(call_id, waiter, call), call)
        try:
            frame = self._receive(call_id, answer, call)  # type: ignore[arg-type]
            while not _is_answer(frame):
                frame = self._receive(call_id, None, call)
        except (CallStopped, DeadlineExceeded):
            self.cancel(call_id)
            raise
        self.connection.unlead()
        return body_of(frame, call)

    @contextlib.contextmanager
    def waiting(self, call_id: int) -> Iterator[Waiter]:
        """Registers a call whose frames are to be kept for it."""
        self.connection.check_process()  # In a forked child another thread may hold the lock for ever.
        waiter = Waiter()
        with self._state:
            if self.ended is not None:
                raise ended_call(self.ended.error)
            self.waiters[call_id] = waiter
        try:
            yield waiter
        except (CallStopped, DeadlineExceeded, KeyboardInterrupt):
            self.cancel(call_id)
            raise
        finally:
            with self._state:
                del self.waiters[call_id]
            self.wake_next()

    def next_answer(self, call_id: int, waiter: Waiter, call: Call | None = None) -> Frame:
        """The answer to a call without streams."""
        while not _is_answer(frame := self.next_frame(call_id, waiter, call)):
            pass
        return frame

    def next_frame(self, call_id: int, waiter: Waiter, call: Call | None = None) -> Frame:
        """The next frame of a call that is registered; waits until the thread that receives, or we, have it."""
        deadline = None if call is None else call.deadline
        since = self._begin_wait(deadline)
        while True:
            # Several frames may have come with one waking.
            if waiter.frames:
                return waiter.take()
            self.check_stopped(call_id)  # Registered by now: stop() wakes us if it comes after this.
            # Registered first, then asked for the lead: whoever gives it up now looks for us.
            if self.connection.lead():
                try:
                    if waiter.frames:
                        return waiter.take()
                    waiter.check()
                    return self._receive(call_id, None, call)
                finally:
                    self.give_up_lead()
            if not waiter.wake.acquire(timeout=-1 if deadline is None else _remaining(deadline)):
                raise self._late(call_id, call, since)
            if not waiter.frames:
                waiter.check()

    def poll_frame(self, waiter: Waiter) -> Frame | None:
        """The next frame of a call that is registered, if it is there."""
        if not waiter.frames and self.connection.lead():
            try:
                while (frame := self.connection.receive()) is not None:
                    self._deliver(frame)
            finally:
                self.give_up_lead()
        return waiter.take() if waiter.frames else None

    def _receive(self, call_id: int, frame: Frame | None, call: Call | None) -> Frame:
        """Receives for everybody until a frame of our own is there. Only for the thread that has the lead."""
        connection = self.connection
        deadline = None if call is None else call.deadline
        since = self._begin_wait(deadline)
        while True:
            if frame is not None:
                if frame[1] == call_id and frames.is_from_server(frame[0]):
                    self._delivered = frame
                    return frame
                self._deliver(frame)
            if self.ended is not None:
                raise lost_call(self.ended, call_id)
            self.check_stopped(call_id)
            limit = LIFE_CHECK
            if deadline is not None:
                limit = min(limit, _remaining(deadline))
            try:
                frame = connection.receive() or connection.wait(limit)
            except Ended as ended:
                self._over(ended)
                raise lost_call(ended.end, call_id) from None
            except _core.ChannelError:
                if self.ended is None:  # The server broke the rules.
                    raise
                raise lost_call(self.ended, call_id) from None  # Another thread has closed the connection meanwhile.
            if frame is None and deadline is not None and host_nanoseconds() >= deadline:
                raise self._late(call_id, call, since)

    def _begin_wait(self, deadline: int | None) -> int:
        """When a wait with a deadline begins, in nanoseconds."""
        return 0 if deadline is None else self._lateness.look()

    def _late(self, call_id: int, call: Call | None, since: int) -> DeadlineExceeded:
        """The error for a call whose deadline has come while it was waited for."""
        taken_back = False
        with contextlib.suppress(_core.ChannelError):
            taken_back = self.connection.take_back(call_id, frames.REQUESTS)
        if taken_back:
            self._unsent.add(call_id)
        return self._lateness.error(call.endpoint if call else "the call", since, taken_back=taken_back)

    def look_after(self, limit: float = 0) -> bool:
        """Receives for the others once, waiting up to ``limit`` seconds. False if another thread does."""
        if not self.connection.lead():
            return False
        try:
            if (frame := self.connection.receive() or self.connection.wait(limit)) is not None:
                self._deliver(frame)
        except Ended as ended:
            self._over(ended)
        finally:
            self.give_up_lead()
        return True

    def is_over(self) -> bool:
        """Whether the server has closed the connection. What it had answered before it went is delivered yet."""
        while self.ended is None and self.connection.lead():
            try:
                frame = self.connection.receive() or self.connection.wait(0)
                if frame is None:
                    return False
                self._deliver(frame)
            except Ended as ended:
                self._over(ended)
            except _core.ChannelError as error:
                self.end(End(self.connection.fault(error)))
            finally:
                self.give_up_lead()
        return self.ended is not None  # If another thread receives, it hears of the end.

    def _over(self, ended: Ended) -> None:
        """The server has ended the connection."""
        self.end(ended.end)
        self.connection.abandon()

    def room(self, call: Call) -> None:
        """Waits until all that was sent has found room; a call whose deadline comes before that is not sent."""
        since = self._begin_wait(call.deadline)
        while self.connection.is_stalled() and self.ended is None:
            self.check_stopped(call.id)
            left = LIFE_CHECK if call.deadline is None else _remaining(call.deadline)
            if left == 0.0:
                if self.connection.take_back(call.id, frames.REQUESTS):
                    raise self._lateness.error(call.endpoint, since, taken_back=True)
                return
            if not self.look_after(min(left, LIFE_CHECK)):
                time.sleep(0.001)
        if self.ended is not None:
            raise ended_call(self.ended.error)

    def _deliver(self, frame: Frame) -> None:
        """A frame for another thread. One that nobody waits for any more is dropped.

        Raises ChannelError for one that no server may send.
        """
        if not frames.is_from_server(frame[0]):
            raise _core.ChannelError(f"it sent opcode {frame[0]:#x}, which no server sends")
        allowed = True
        with self._state:
            waiter = self.waiters.get(frame[1])
            if waiter is not None and frame is not self._delivered:
                allowed = waiter.put(frame)
                waiter.release()
            self._delivered = frame
        if not allowed:
            raise _core.ChannelError("it sent an item for which it had no credit")

    def give_up_lead(self) -> None:
        """After an error, or a signal at any point: what was taken out of the ring is delivered."""
        self.connection.check_process()  # See waiting().
        try:
            frame = self.connection.last()
            if frame is not None:
                with contextlib.suppress(_core.ChannelError):  # Who took it has said so, or the next who waits does.
                    self._deliver(frame)
        finally:
            self.connection.unlead()
            self.wake_next()

    def wake_next(self) -> None:
        """The lead is free: those who wait try to take it.

        All of them, since a signal may have carried one away before it could say so.
        """
        with self._state:
            for waiter in list(self.waiters.values()):
                waiter.release()

    def end(self, end: End) -> None:
        """The connection is over: everybody learns it."""
        with self._state:
            if self.ended is None:
                self.ended = end
            for call_id, waiter in list(self.waiters.items()):
                if waiter.error is None:
                    waiter.error = lost_call(end, call_id)
                    waiter.release()

    def close(self, error: ShmrpcError) -> None:
        """Closes the connection; calls under way in other threads fail."""
        self.end(End(error))
        self.connection.close()

    def stop(self) -> None:
        """Every call that has begun ends with its wait, also one that is still about to wait."""
        self._stopped_before = self.next_id()
        with self._state:
            for waiter in list(self.waiters.values()):
                waiter.release()
        self.connection.interrupt()

    def check_stopped(self, call_id: int) -> None:
        """Raises CallStopped if stop() was called since this call began, resumed or not."""
        if self.stopped or call_id < self._stopped_before:
            raise stopped_call(self.service)

    def cancel(self, call_id: int) -> None:
        """Nobody waits for this call any more."""
        if call_id in self._unsent:
            self._unsent.discard(call_id)
            return
        with contextlib.suppress(_core.ChannelError):
            if not self.connection.take_back(call_id, frames.REQUESTS):
                self.connection.send(frames.CANCEL, call_id, frames.NIL)

    @overload
    def unsent(self, name: str, error: Exception) -> Exception: ...
    @overload
    def unsent(self, name: str, error: BaseException) -> BaseException: ...
    def unsent(self, name: str, error: BaseException) -> BaseException:
        """The error for the caller of an endpoint.

        Raise it from the name of the ``except`` clause, which ends with that: another name stays in a frame of the
        traceback, and the two keep each other and all that the call was given.
        """
        if isinstance(error, _core.ChannelError):
            try:
                self.connection.check_process()
            except LocalProtocolError as forked:
                return forked
            if self.ended is None:
                self.end(End(self.connection.fault(error)))
            return ended_call(self.ended.error) if self.ended is not None else ConnectionLost(str(error))
        return unsendable(name, error) if isinstance(error, Exception) else error


def _is_answer(frame: Frame) -> bool:
    """Whether a frame of a call without streams is its answer; ChannelError if it is nothing that may come late."""
    opcode, call_id, body = frame
    if opcode in frames.ANSWERS:
        return True
    if opcode == frames.ITEM:
        raise _core.ChannelError(f"it sent an item for call {call_id}, which has one result")
    check_credit(opcode, body)
    return False


def check_credit(opcode: int, body: Body) -> int:
    """The credit in a frame, 0 in one of another kind; ChannelError if there should be some and is none."""
    if opcode & 0xFF != frames.CREDIT:
        return 0
    size = frames.decode_credit(body)
    if size is None:
        raise _core.ChannelError("it sent credit that is no number of bytes")
    return size


def stopped_call(service: str) -> CallStopped:
    """The error for a call that another thread ended."""
    return CallStopped(f"this client of {service!r} was stopped; resume() lets it call again")


def _remaining(deadline: int) -> float:
    return max(0.0, (deadline - host_nanoseconds()) / 1e9)
