"""The life of a call at the server, from its first step to its answer."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from shmrpc import _core
from shmrpc.basics.clock import host_nanoseconds
from shmrpc.basics.deadlines import Deadlines
from shmrpc.server.eager import Eager, Raised, Suspended
from shmrpc.server.executors import Executors
from shmrpc.server.failures import Failures
from shmrpc.server.interrupts import is_for_the_program
from shmrpc.server.limits import Limiter, Limits
from shmrpc.server.results import Encoded, unencodable
from shmrpc.server.served_client import RunRequest, ServedClient, Underway
from shmrpc.service.call import Call, check_metadata, inheriting, running_here
from shmrpc.service.interceptors import Interceptor
from shmrpc.transport.errors import Backlog, Oversize
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, Codec
from shmrpc.wire.failure import CallRejected, Failure, describe_failure, encode_failure
from shmrpc.wire.frames import Header

logger = logging.getLogger("shmrpc.server")

#: In the place of a result that comes later.
LATER: Final = object()


class CallRunner:
    """Runs the calls of all services of a server, in its loop."""

    def __init__(
        self,
        codec: Codec,
        limits: Limits,
        interceptors: Sequence[Interceptor],
        *,
        validate_results: bool,
        set_busy: Callable[[bool], None],
        between: Callable[[], None],
        tells_of_holds: bool,
    ) -> None:
        """``set_busy``: see :class:`Limiter`. ``between`` is called after each call that has ended.

        Many calls may end in one turn of the loop, and others wait meanwhile.
        """
        self.codec = codec
        self.limiter = Limiter(limits, self._begin_waiting, self.fail, set_busy)
        self.interceptors = tuple(interceptors)
        #: Whether a result that is not of its declared type fails its call. In debug mode a warning is logged.
        self.validate_results = validate_results
        self.looks_at_results = validate_results or sys.flags.dev_mode or asyncio.get_running_loop().get_debug()
        self.executors = Executors()
        self.failures = Failures()
        self.running = running_here()
        self.deadlines: Deadlines[Underway] = Deadlines(self._expire)
        #: Gives each call a context of its own.
        self.isolation = _core.CallContexts(contextvars.copy_context())
        self.start = (eager := Eager(self.isolation, self.held)).run
        self._eager = eager
        #: The last result, until its answer is sent: freeing a large one takes as long as decoding half of it.
        self.kept: list[Any] = [None]
        #: All calls that are under way, one-way ones of clients that have gone included.
        self._under_way: set[Underway] = set()
        #: Endpoints that the log has named for holding the loop.
        self._held: set[str] = set()
        self._between = between
        self._tells_of_holds = tells_of_holds

    def take_context(self) -> None:
        """Lets calls see the context variables that are set here, as by a lifespan, from now on."""
        self.isolation.rebase(contextvars.copy_context())

    def cancel_all(self) -> list[asyncio.Task[Any]]:
        """Cancels the calls under way and drops those that wait; the tasks that have still to end."""
        self.limiter.close()
        tasks = [under.task for under in self._under_way if under.task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def still_running(self) -> list[str]:
        """The endpoint of each call whose handler has not ended, cancelled or not. From any thread."""
        calls = [under.call for under in list(self._under_way) if under.task is not None and not under.task.done()]
        calls += self.executors.working
        names = [f"{call.service}.{call.endpoint}" for call in calls]
        here = self.held_by()  # A plain function, which holds the loop.
        return names if here is None else [*names, f"{here[0]}.{here[1]}"]

    def held_by(self) -> tuple[str, str] | None:
        """The service and the endpoint whose frame is being run, from any thread; None if there is none."""
        frame = self.running.frame
        if type(frame) is Call:
            return frame.service, frame.endpoint
        if type(frame) is tuple and frame[1] & 0xFF in frames.REQUESTS and frame[1] >> 8 < len(frame[0].names):
            return frame[0].service, frame[0].endpoint_name(frame[1])
        return None

    def close(self) -> None:
        """Begins nothing more."""
        self._eager.close()
        self.deadlines.close()
        self.executors.close()
        self.failures.close()

    def begin(self, endpoint: str, client: ServedClient, call_id: int, header: Header, size: int) -> Underway:
        """The call that a header describes; the rejection if its time is over, or its metadata cannot be any."""
        if header.deadline is not None:
            check_time(endpoint, header.deadline)
        if header.metadata:
            try:
                check_metadata(header.metadata)
            except TypeError as error:
                raise CallRejected("arguments", f"{endpoint}(): {error}") from None
        call = Call(client, endpoint, call_id, header.deadline, header.metadata)
        self.running.frame = call
        return Underway(client, call, size, one_way=header.one_way)

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

    def start_plain(
        self,
        coroutine: Coroutine[Any, Any, Any],
        client: ServedClient,
        name: str,
        call_id: int,
        deadline: int | None,
        size: int,
    ) -> Any:
        """Runs the coroutine of a call that is only arguments and a result: the result, or LATER."""
        self.running.frame = call = Call(client, name, call_id, deadline)
        result = self.start(coroutine, call)
        if type(result) is Suspended:
            self.suspend(Underway(client, call, size), result.task)
            return LATER
        return result

    def suspend(self, under: Underway, task: asyncio.Task[Any]) -> None:
        """Lets a call go on in its task, and sends the answer when that has ended."""
        under.task = task
        self._under_way.add(under)
        self.limiter.started(under)
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
            self.limiter.ended(under)
            # An exception of the task has this frame in its traceback.
            under.task = None
            del task
            self._between()

    def _answer(self, under: Underway, result: Any) -> Body | None:
        """The body of the plain answer; None if none is wanted, or it was sent here with its metadata."""
        if under.one_way:
            return None
        call = under.call
        answer = result.body if type(result) is Encoded else self.encode_result(call.endpoint, result)
        if not call._reply_metadata or not (left := under.metadata):
            return answer
        if not under.silent:
            metadata = frames.encode_metadata(left)
            under.client.send(frames.RESULT_WITH, call.id, frames.prepend(b"\x92" + metadata, answer))
        return None

    def encode_result(self, endpoint: str, result: Any) -> Body:
        """Encodes a result; raises the rejection if it cannot be sent."""
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
        """The failure of one call of a batch, which is logged here."""
        failure = describe_failure(_cancelled() if isinstance(error, asyncio.CancelledError) else error)
        self.failures.note(service, endpoint, error)
        return failure

    def fail(self, client: ServedClient, call_id: int, error: BaseException, under: Underway | None = None) -> None:
        """Answers that a call has failed. ``under``: the call, if it is more than the frame being run."""
        if isinstance(error, CallRejected) and error.one_way:
            self.failures.note_one_way(client.service, "", error)
            return
        if isinstance(error, Backlog):
            client.peer.fault(str(error))
            return
        if isinstance(error, Oversize):
            error = CallRejected(
                "size",
                f"the result is too large: {error}; set max_frame= on both sides, or for arrays and bytes max_memory= "
                "at the server",
            )
        told = _cancelled() if isinstance(error, asyncio.CancelledError) else error
        metadata = under.metadata_of_failure if under is not None else None
        client.send(frames.FAILURE, call_id, encode_failure(told, client.max_frame, metadata))
        if under is None:
            here = self.held_by()
            self.failures.note(client.service, "?" if here is None else here[1], error)
        elif under.aborted is None or under.aborted() is not error:  # Else it is the caller's own.
            self.failures.note(client.service, under.call.endpoint, error)

    def fail_in_core(self, client: ServedClient, call_id: int, error: BaseException) -> None:
        """Answers that a call has failed which the core ran; raises what is for the program."""
        self.fail(client, call_id, error)
        if is_for_the_program(error):
            raise error

    def note_one_way_in_core(self, client: ServedClient, endpoint: str, error: BaseException) -> None:
        """Takes note that a one-way call has failed which the core ran; raises what is for the program."""
        self.failures.note_one_way(client.service, endpoint, error)
        if is_for_the_program(error):
            raise error

    def _begin_waiting(self, client: ServedClient, call_id: int, run: RunRequest, body: Body) -> None:
        """Runs the request of a call that has waited for its turn."""
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
            self.kept[0] = None  # Nothing else frees it here, and the next result may be long in coming.

    def _expire(self, under: Underway) -> None:
        if under.task is not None and under.task.cancel():
            under.expired = True

    def held(self, service: str, endpoint: str, seconds: float) -> None:
        """Logs that an endpoint has held the loop for long, once for each endpoint."""
        name = f"{service}.{endpoint}"
        if self._tells_of_holds and name not in self._held:
            self._held.add(name)
            logger.warning(
                "%s() held the server's loop for %.0f ms: nobody else was served meanwhile. "
                "Give it @service.endpoint(run_in='thread'), or run_in='process' if it computes",
                name,
                seconds * 1e3,
            )

    def gone(self, client: ServedClient) -> None:
        """Abandons the calls of a client that is gone, but for its one-way calls."""
        self.limiter.leave(client)
        for under in client.calls.values():
            if not under.one_way:
                self._abandon(under)

    def cancel(self, client: ServedClient, call_id: int) -> None:
        """Abandons a call that its client has cancelled."""
        if not self.limiter.give_up(client, call_id):
            under = client.calls.get(call_id)
            if under is not None:
                self._abandon(under)
            # Of a call that has ended, too: its answer may wait for room.
            client.sharing.take_back(call_id)

    def _abandon(self, under: Underway) -> None:
        # A handler that has ended in this very turn of the loop counts as one that has ended, but nobody hears of it.
        if under.task is not None:
            under.task.cancel()
            under.silent = True


def _cancelled() -> asyncio.CancelledError:
    """What a caller is told of a cancellation that was not the caller's."""
    return asyncio.CancelledError("the endpoint was cancelled at the server")


def expired(endpoint: str) -> CallRejected:
    """The rejection of a call whose deadline has passed."""
    return CallRejected("deadline", f"{endpoint}() had not ended by its deadline")


def check_time(endpoint: str, deadline: int) -> None:
    """Rejects a call whose time is over. From the first with a deadline on, calls made here look for one to inherit."""
    if host_nanoseconds() >= deadline:
        raise expired(endpoint)
    if not inheriting:
        inheriting.append(True)
