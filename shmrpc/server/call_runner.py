"""The life of a call at the server, from its first step to its answer."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import sys
import weakref
from collections.abc import AsyncIterable, Callable, Coroutine, Sequence
from typing import Any

from shmrpc import _core
from shmrpc.basics.deadlines import Deadlines
from shmrpc.errors import RemoteProtocolError
from shmrpc.server.eager import Eager, Raised, Suspended
from shmrpc.server.executors import Executors
from shmrpc.server.failures import Failures
from shmrpc.server.interrupts import is_for_the_program
from shmrpc.server.limits import Limits
from shmrpc.server.served_client import RunRequest, ServedClient, Underway
from shmrpc.service.call import Call, running_here
from shmrpc.service.interceptors import Interceptor
from shmrpc.streams.receiving import Incoming
from shmrpc.transport.errors import Backlog, Oversize
from shmrpc.values.unsendable import reason, returned
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, Codec
from shmrpc.wire.frames import Failure, Rejected

logger = logging.getLogger("shmrpc.server")


class Encoded:
    """A result that is encoded already."""

    __slots__ = ("body",)

    def __init__(self, body: Body) -> None:
        self.body = body


class CallRunner:
    """Runs the calls of all services of a server, in its loop."""

    def __init__(
        self, codec: Codec, limits: Limits, interceptors: Sequence[Interceptor], *, validate_results: bool
    ) -> None:
        self.codec = codec
        self.limits = limits
        self.interceptors = tuple(interceptors)
        #: Whether a result that is not of its declared type fails its call. Where one debugs, it is warned of.
        self.validate_results = validate_results
        self.looks_at_results = validate_results or sys.flags.dev_mode or asyncio.get_running_loop().get_debug()
        self.executors = Executors()
        self.failures = Failures()
        self.running = running_here()
        self.deadlines: Deadlines[Underway] = Deadlines(self._expire)
        #: Gives each call a context of its own.
        self.isolation = _core.Isolation(contextvars.copy_context())
        self.start = (eager := Eager(self.isolation, self.held)).run
        self._eager = eager
        #: The last result, until its answer is sent: freeing a large one takes as long as decoding half of it.
        self.kept: list[Any] = [None]
        #: All calls that are under way, one-way ones of clients that have gone included.
        self._under_way: set[Underway] = set()
        #: Endpoints of which the log has said that they held the loop.
        self._held: set[str] = set()
        #: Called after each call that has ended: many may end in one turn of the loop, and others wait meanwhile.
        self.between: Callable[[], None] = lambda: None
        limits.begin = self._begin_waiting
        limits.refuse = self.fail

    def take_context(self) -> None:
        """From now on calls see the context variables that are set here, as by a lifespan."""
        self.isolation = self._eager.isolation = _core.Isolation(contextvars.copy_context())

    def cancel_all(self) -> list[asyncio.Task[Any]]:
        """Cancels what is under way, and lets nothing begin that waits; the tasks that are to end yet."""
        self.limits.close()
        tasks = [under.task for under in self._under_way if under.task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def still_running(self) -> list[str]:
        """The endpoint of each call whose handler has not ended, cancelled or not. From any thread."""
        calls = [under.call for under in list(self._under_way) if under.task is not None and not under.task.done()]
        calls += self.executors.working
        frame = self.running.frame  # A plain function's, which holds the loop.
        if type(frame) is tuple and frame[1] >> 8 < len(frame[0].names):
            calls.append(Call(frame[0], frame[0].endpoint_name(frame[1])))
        elif type(frame) is Call:
            calls.append(frame)
        return [f"{call.service}.{call.endpoint}" for call in calls]

    def close(self) -> None:
        """Begins nothing more."""
        self._eager.close()
        self.deadlines.close()
        self.executors.close()
        self.failures.close()

    def run(self, under: Underway, coroutine: Coroutine[Any, Any, Any]) -> Body | None:
        """Runs a call's coroutine: its answer's body, or None if the answer comes later, or is none."""
        try:
            result = self.start(coroutine, under.call)
            if type(result) is Suspended:
                self.suspend(under, result.task)
                return None
            return self._answer(under, result)
        except BaseException as error:
            self._fail(under, error)
            if is_for_the_program(error):
                raise
        return None

    def suspend(self, under: Underway, task: asyncio.Task[Any]) -> None:
        """The call goes on in a task; its answer is sent when that has ended."""
        under.task = task
        self._under_way.add(under)
        self.limits.started(under)
        if under.call.deadline is not None:
            self.deadlines.add(under, under.call.deadline)
        task.add_done_callback(functools.partial(self._resumed, under))

    def _resumed(self, under: Underway, task: asyncio.Task[Any]) -> None:
        under.call._ended = True
        if under.call.deadline is not None:
            self.deadlines.discard(under)
        try:
            result = task.result()
            if type(result) is Raised:
                try:
                    raise result.error
                finally:
                    del result  # Its error has this frame in its traceback.
            answer = self._answer(under, result)
            if answer is not None and not under.silent:
                under.client.send(frames.RESULT, under.call.id, answer)
        except BaseException as error:
            self._fail(under, error)
            if is_for_the_program(error):
                raise
        finally:
            self._under_way.discard(under)
            self.limits.ended(under)
            # An exception of the task has this frame in its traceback.
            under.task = None
            del task
            self.between()

    def _answer(self, under: Underway, result: Any) -> Body | None:
        """The body of the plain answer; None if there is none, or it is sent already with its metadata."""
        if under.one_way:
            return None
        call = under.call
        answer = result.body if type(result) is Encoded else self.encode_result(call.endpoint, result)
        if not call._reply_metadata or not (left := under.metadata):
            return answer
        if not under.silent:
            metadata = frames.encode_metadata(left)
            under.client.send(frames.RESULT_WITH, call.id, frames.behind(b"\x92" + metadata, answer))
        return None

    def encode_result(self, endpoint: str, result: Any) -> Body:
        """A result's bytes; the rejection if it cannot be carried."""
        try:
            return self.codec.encode(result)
        except Exception as error:
            raise unencodable(endpoint, result, error) from None

    def _fail(self, under: Underway, error: BaseException) -> None:
        call = under.call
        if under.expired and isinstance(error, asyncio.CancelledError):
            error = expired(call.endpoint)
        if under.one_way:
            self.failures.note_one_way(call.service, call.endpoint, error)
        elif under.silent:
            self.failures.note(call.service, call.endpoint, error)
        else:
            self.fail(under.client, call.id, error, under)

    def describe(self, service: str, endpoint: str, error: BaseException) -> Failure:
        """What to tell the caller of a batch of one call in it that has failed."""
        failure = frames.describe_failure(_cancelled() if isinstance(error, asyncio.CancelledError) else error)
        self.failures.note(service, endpoint, error)
        return failure

    def fail(self, client: ServedClient, call_id: int, error: BaseException, under: Underway | None = None) -> None:
        """Answers that a call has failed. ``under``: it, if there is more to it than the frame that is being run."""
        if isinstance(error, Rejected) and error.one_way:
            self.failures.note_one_way(client.service, "", error)
            return
        if isinstance(error, Backlog):
            client.peer.fault(str(error))
            return
        if isinstance(error, Oversize):
            error = Rejected(
                "size",
                f"the result is too large: {error}; set max_frame= on both sides, or for arrays and bytes max_memory= "
                "at the server",
            )
        told = _cancelled() if isinstance(error, asyncio.CancelledError) else error
        metadata = under.metadata_of_failure if under is not None else None
        client.send(frames.FAILURE, call_id, frames.encode_failure(told, client.max_frame, metadata))
        if under is None:
            self.failures.note(client.service, self._endpoint(), error)
        elif under.aborted is None or under.aborted() is not error:  # Else it is the caller's own.
            self.failures.note(client.service, under.call.endpoint, error)

    def _endpoint(self) -> str:
        """The name of the endpoint that the frame is for which is being run."""
        frame = self.running.frame
        if type(frame) is Call:
            return frame.endpoint
        if type(frame) is tuple and frame[1] >> 8 < len(frame[0].names):
            return str(frame[0].endpoint_name(frame[1]))
        return "?"

    def _begin_waiting(self, client: ServedClient, call_id: int, run: RunRequest, body: Body) -> None:
        """Begins a call that has waited for its turn."""
        self.isolation.renew()
        try:
            answer = run(body, client, call_id)
            if answer is not None:
                client.send(frames.RESULT, call_id, answer)
        except BaseException as error:
            self.fail(client, call_id, error)
            if is_for_the_program(error):
                raise
        finally:
            self.isolation.leave()
            self.running.frame = None
            self.kept[0] = None  # Nobody else does here, and the next result may be long in coming.

    def _expire(self, under: Underway) -> None:
        if under.task is not None and under.task.cancel():
            under.expired = True

    def held(self, call: Call, seconds: float) -> None:
        """An endpoint has held the loop for long: says so, once for each endpoint."""
        name = f"{call.service}.{call.endpoint}"
        if name not in self._held:
            self._held.add(name)
            logger.warning(
                "%s() held the server's loop for %.0f ms: nobody else was served meanwhile. "
                "Give it @service.endpoint(run_in='thread'), or run_in='process' if it computes",
                name,
                seconds * 1e3,
            )

    def gone(self, client: ServedClient) -> None:
        """A client is gone: nobody waits for what it asked. What it only told goes on."""
        self.limits.leave(client)
        for under in client.calls.values():
            if not under.one_way:
                self._abandon(under)

    def _abandon(self, under: Underway) -> None:
        # A handler that has ended in this very turn of the loop counts as one that has ended, but nobody hears of it.
        if under.task is not None:
            under.task.cancel()
            under.silent = True

    def control_table(self) -> dict[int, RunRequest]:
        """What runs the frames that belong to a call under way, by opcode. Those to streams: by kind."""
        return {
            frames.CANCEL: self._cancel,
            frames.CREDIT: self._credit,
            frames.ITEM: self._misplaced,
            frames.END: self._misplaced,
            frames.ABORT: self._misplaced,
        }

    def input_table(self, number: int) -> dict[int, RunRequest]:
        """What runs the frames of the stream of this number from the caller; the first is 1."""
        return {
            frames.opcode(frames.ITEM, number): functools.partial(self._item, number),
            frames.opcode(frames.END, number): functools.partial(self._end, number),
            frames.opcode(frames.ABORT, number): functools.partial(self._abort, number),
        }

    def _cancel(self, body: Body, client: ServedClient, call_id: int) -> None:
        if not self.limits.give_up(client, call_id):
            under = client.calls.get(call_id)
            if under is not None:
                self._abandon(under)
            # Of a call that has ended, too: its answer may wait for room.
            client.sharing.take_back(call_id)

    def _credit(self, body: Body, client: ServedClient, call_id: int) -> None:
        size = frames.decode_credit(body)
        if size is None:
            client.peer.fault("it sent credit that is no number of bytes")
            return
        under = client.calls.get(call_id)
        if under is not None and under.outgoing is not None:
            under.outgoing.grant(size)

    def _misplaced(self, body: Body, client: ServedClient, call_id: int) -> None:
        client.peer.fault("it sent part of a stream to where none is")

    def _input(self, number: int, client: ServedClient, call_id: int) -> Incoming | None:
        """A stream from the caller; None if its call has ended or never began, which the client cannot know yet."""
        under = client.calls.get(call_id)
        return under.inputs[number - 1] if under is not None and number <= len(under.inputs) else None

    def _item(self, number: int, body: Body, client: ServedClient, call_id: int) -> None:
        incoming = self._input(number, client, call_id)
        if incoming is not None:
            try:
                incoming.feed((0, body))
            except RemoteProtocolError as error:
                client.peer.fault(str(error))

    def _end(self, number: int, body: Body, client: ServedClient, call_id: int) -> None:
        incoming = self._input(number, client, call_id)
        if incoming is not None:
            incoming.finish()

    def _abort(self, number: int, body: Body, client: ServedClient, call_id: int) -> None:
        incoming = self._input(number, client, call_id)
        if incoming is not None:
            error = frames.decode_failure(body)
            client.calls[call_id].aborted = weakref.ref(error)
            incoming.finish(error)


def _cancelled() -> asyncio.CancelledError:
    """What a caller is told of a cancellation that was not the caller's."""
    return asyncio.CancelledError("the endpoint was cancelled at the server")


def expired(endpoint: str) -> Rejected:
    """The rejection of a call whose deadline has passed."""
    return Rejected("deadline", f"{endpoint}() had not ended by its deadline")


def unencodable(name: str, result: Any, error: Exception) -> Rejected:
    """The rejection of a result that cannot be carried."""
    if inspect.iscoroutine(result):
        result.close()  # Or Python warns, somewhere else, that nobody has awaited it.
    return Rejected(
        "encode",
        f"{name}() returned {type(result).__qualname__}, which cannot be sent as MessagePack: "
        f"{returned(result) or reason(error)}",
    )


def items_of(name: str, result: Any, *, in_thread: bool) -> Any:
    """What an endpoint that streams has returned; the rejection if it has no items."""
    if hasattr(result, "__iter__") or hasattr(result, "__getitem__"):
        return iter(result) if in_thread else result
    if isinstance(result, AsyncIterable) and not in_thread:
        return result
    if inspect.iscoroutine(result):
        result.close()
    expected = "an iterable" if in_thread else "an iterable or an async iterable"
    advice = returned(result) if not isinstance(result, AsyncIterable) else "what is async runs in the loop"
    raise Rejected(
        "encode",
        f"{name}() is declared to stream: expected {expected}, but it returned {type(result).__qualname__}"
        f"{f'; {advice}' if advice else ''}",
    )
