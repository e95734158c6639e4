"""The life of a call at the server, from its first step to its reply."""

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
from shmrpc.server.call_limiter import CallLimiter, CallLimits
from shmrpc.server.eager_start import EagerStarter, RaisedExit, Suspended
from shmrpc.server.executors import Executors
from shmrpc.server.failure_log import FailureLog
from shmrpc.server.program_exit import is_program_exit
from shmrpc.server.result_checks import EncodedResult, encode_rejection
from shmrpc.server.served_client import InFlightCall, RunRequest, ServedClient
from shmrpc.service.call import Call, check_metadata, deadlines_seen, thread_call_state
from shmrpc.service.interceptors import Interceptor
from shmrpc.transport.errors import Backlog, Oversize
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, Codec
from shmrpc.wire.failure import CallRejected, Failure, describe_failure, encode_failure
from shmrpc.wire.frames import Header

logger = logging.getLogger("shmrpc.server")

#: Marker in the place of a result that is not available so far.
PENDING: Final = object()


class CallRunner:
    """The calls of all services of a server, which run in its event loop."""

    def __init__(
        self,
        codec: Codec,
        limits: CallLimits,
        interceptors: Sequence[Interceptor],
        *,
        validate_results: bool,
        set_busy: Callable[[bool], None],
        after_call: Callable[[], None],
        logs_blocking: bool,
    ) -> None:
        """Create a runner in the running event loop. ``set_busy``: see :class:`CallLimiter`.

        ``after_call`` is called at the end of each suspended call, because many calls may end in one iteration of the
        loop while new frames wait. ``logs_blocking``: True to log endpoints that block the event loop.
        """
        self.codec = codec
        self.limiter = CallLimiter(limits, self._run_waiting, self.fail, set_busy)
        self.interceptors = tuple(interceptors)
        #: True if a result of a wrong type fails its call; otherwise debug mode logs a warning.
        self.validate_results = validate_results
        self.checks_results = validate_results or sys.flags.dev_mode or asyncio.get_running_loop().get_debug()
        self.executors = Executors()
        self.failure_log = FailureLog()
        self.current_call = thread_call_state()
        self.deadlines: Deadlines[InFlightCall] = Deadlines(self._expire)
        #: Contexts of the calls, one for each.
        self.contexts = _core.CallContexts(contextvars.copy_context())
        #: Starts the coroutine of a call: see :meth:`EagerStarter.run`.
        self.start = (eager := EagerStarter(self.contexts, self.report_blocking)).run
        self._eager = eager
        #: The last result, until its reply is sent. Freeing a large result takes half as long as decoding it.
        self.last_result: list[Any] = [None]
        #: All calls in flight, including one-way calls of disconnected clients.
        self._in_flight: set[InFlightCall] = set()
        #: Endpoints that were reported for blocking the event loop.
        self._reported: set[str] = set()
        self._after_call = after_call
        self._logs_blocking = logs_blocking

    def capture_context(self) -> None:
        """Let further calls start with the context variables of the caller, such as those that a lifespan sets."""
        self.contexts.rebase(contextvars.copy_context())

    def cancel_all(self) -> list[asyncio.Task[Any]]:
        """Cancel the calls in flight, and discard the waiting ones without replies. Returns the cancelled tasks."""
        self.limiter.close()
        tasks = [in_flight.task for in_flight in self._in_flight if in_flight.task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def still_running(self) -> list[str]:
        """Return ``service.endpoint`` of each call whose handler is running, cancelled or not. Safe in any thread."""
        calls = [
            in_flight.call
            for in_flight in list(self._in_flight)
            if in_flight.task is not None and not in_flight.task.done()
        ]
        calls += self.executors.working
        # A call in a thread is in both lists, unless it was abandoned.
        names = [f"{call.service}.{call.endpoint}" for call in {id(call): call for call in calls}.values()]
        here = self.blocking_endpoint()  # A plain function, which blocks the event loop.
        return names if here is None else [*names, f"{here[0]}.{here[1]}"]

    def blocking_endpoint(self) -> tuple[str, str] | None:
        """Return service and endpoint of the plain function that is running, or None. Safe in any thread."""
        frame = self.current_call.frame
        if type(frame) is Call:
            return frame.service, frame.endpoint
        if type(frame) is tuple and frame[1] & 0xFF in frames.REQUESTS and frame[1] >> 8 < len(frame[0].names):
            return frame[0].service, frame[0].endpoint_name(frame[1])
        return None

    def close(self) -> None:
        """Expire no more deadlines, shut down the threads, and log the counts of failures that were not logged.

        Does not wait, and leaves calls in flight and the processes alone: see :meth:`cancel_all` and
        :meth:`Executors.close_processes`.
        """
        self._eager.close()
        self.deadlines.close()
        self.executors.close()
        self.failure_log.close()

    def begin(self, endpoint: str, client: ServedClient, call_id: int, header: Header, size: int) -> InFlightCall:
        """Make the call that a header describes the current one, and return it. ``size``: bytes of the request.

        Does not count the call: :meth:`suspend` does.
        Raises CallRejected for a passed deadline or invalid metadata, with ``one_way`` set if the header has it.
        """
        if header.deadline is not None:
            check_deadline(endpoint, header.deadline, one_way=header.one_way)
        if header.metadata:
            try:
                check_metadata(header.metadata)
            except TypeError as error:
                raise CallRejected("arguments", f"{endpoint}(): {error}", one_way=header.one_way) from None
        call = Call(client, endpoint, call_id, header.deadline, header.metadata)
        self.current_call.frame = call
        return InFlightCall(client, call, size, one_way=header.one_way)

    def run(self, in_flight: InFlightCall, coroutine: Coroutine[Any, Any, Any]) -> Body | None:
        """Run the coroutine of a call, and send its failure. Returns the body of the reply.

        Returns None if there is no reply, if the call continues in a task, which sends the reply, or if the reply was
        sent here. Raises an exception that ends the program.
        """
        try:
            result = self.start(coroutine, in_flight.call)
            if type(result) is Suspended:
                self.suspend(in_flight, result.task)
                return None
            return self._encode_reply(in_flight, result)
        except BaseException as error:
            self._fail(in_flight, error)
            if is_program_exit(error):
                raise
        return None

    def start_coroutine(
        self,
        coroutine: Coroutine[Any, Any, Any],
        client: ServedClient,
        name: str,
        call_id: int,
        deadline: int | None,
        size: int,
    ) -> Any:
        """Run the coroutine of a call with arguments and a result only.

        Returns the result, or PENDING if the call continues in a task. Raises the exception of the coroutine.
        """
        self.current_call.frame = call = Call(client, name, call_id, deadline)
        result = self.start(coroutine, call)
        if type(result) is Suspended:
            self.suspend(InFlightCall(client, call, size), result.task)
            return PENDING
        return result

    def suspend(self, in_flight: InFlightCall, task: asyncio.Task[Any]) -> None:
        """Count a call that continues in ``task``, and send its reply at the end of the task."""
        in_flight.task = task
        self._in_flight.add(in_flight)
        self.limiter.add(in_flight)
        if in_flight.call.deadline is not None:
            self.deadlines.add(in_flight, in_flight.call.deadline)
        task.add_done_callback(functools.partial(self._on_task_done, in_flight))

    def _on_task_done(self, in_flight: InFlightCall, task: asyncio.Task[Any]) -> None:
        """Send the reply of a call whose task has ended. Raises an exception that ends the program."""
        in_flight.call._ended = True
        if in_flight.call.deadline is not None:
            self.deadlines.discard(in_flight)
        try:
            result = task.result()
            if type(result) is RaisedExit:
                try:
                    raise result.error
                finally:
                    del result  # The traceback of its error refers to this frame.
            body = self._encode_reply(in_flight, result)
            if body is not None and not in_flight.is_abandoned:
                in_flight.client.send(frames.RESULT, in_flight.call.id, body)
        except BaseException as error:
            self._fail(in_flight, error)
            if is_program_exit(error):
                raise
        finally:
            self._in_flight.discard(in_flight)
            self.limiter.remove(in_flight)
            # The traceback of the task's exception refers to this frame.
            in_flight.task = None
            del task
            self._after_call()

    def _encode_reply(self, in_flight: InFlightCall, result: Any) -> Body | None:
        """Return the body of the reply; None for a one-way call, and for a reply with metadata, which this sends.

        Raises CallRejected if the result or the metadata cannot be sent.
        """
        if in_flight.one_way:
            return None
        call = in_flight.call
        body = result.body if type(result) is EncodedResult else self.encode_result(call.endpoint, result)
        if not call._reply_metadata or not (unsent := in_flight.unsent_metadata):
            return body
        if not in_flight.is_abandoned:
            metadata = frames.encode_metadata(unsent)
            in_flight.client.send(frames.RESULT_WITH, call.id, frames.prepend(b"\x92" + metadata, body))
        return None

    def encode_result(self, endpoint: str, result: Any) -> Body:
        """Return an encoded result. Raises CallRejected if it cannot be encoded, and then closes a coroutine."""
        try:
            return self.codec.encode(result)
        except Exception as error:
            raise encode_rejection(endpoint, result, error) from None

    def _fail(self, in_flight: InFlightCall, error: BaseException) -> None:
        """Send and log the failure of a call; only log it if its client wants no reply."""
        call = in_flight.call
        if in_flight.is_expired and isinstance(error, asyncio.CancelledError):
            error = deadline_rejection(call.endpoint)
        if in_flight.one_way:
            self.failure_log.log_one_way(call.service, call.endpoint, error)
        elif in_flight.is_abandoned:
            self.failure_log.log(call.service, call.endpoint, error)
        else:
            self.fail(in_flight.client, call.id, error, in_flight)

    def describe(self, service: str, endpoint: str, error: BaseException) -> Failure:
        """Log the failure of one call of a batch, and return the failure to send."""
        failure = describe_failure(_cancellation_error() if isinstance(error, asyncio.CancelledError) else error)
        self.failure_log.log(service, endpoint, error)
        return failure

    def fail(
        self, client: ServedClient, call_id: int, error: BaseException, in_flight: InFlightCall | None = None
    ) -> None:
        """Send and log a failure. ``in_flight``: the call; None for the request that is being handled.

        Only logs a CallRejected with ``one_way``. Closes the connection instead if the client does not read its
        replies.
        """
        if isinstance(error, CallRejected) and error.one_way:
            self.failure_log.log_one_way(client.service, "", error)
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
        sent = _cancellation_error() if isinstance(error, asyncio.CancelledError) else error
        metadata = in_flight.unsent_failure_metadata if in_flight is not None else None
        client.send(frames.FAILURE, call_id, encode_failure(sent, client.max_frame, metadata))
        if in_flight is None:
            here = self.blocking_endpoint()
            self.failure_log.log(client.service, "?" if here is None else here[1], error)
        elif in_flight.aborted is None or in_flight.aborted() is not error:  # Not an error that the caller has sent.
            self.failure_log.log(client.service, in_flight.call.endpoint, error)

    def fail_in_core(self, client: ServedClient, call_id: int, error: BaseException) -> None:
        """Send and log the failure of a call that the core ran. Raises an error that ends the program."""
        self.fail(client, call_id, error)
        if is_program_exit(error):
            raise error

    def log_one_way_in_core(self, client: ServedClient, endpoint: str, error: BaseException) -> None:
        """Log the failure of a one-way call that the core ran. Raises an error that ends the program."""
        self.failure_log.log_one_way(client.service, endpoint, error)
        if is_program_exit(error):
            raise error

    def _run_waiting(self, client: ServedClient, call_id: int, run: RunRequest, body: Body) -> None:
        """Run the request of a call that has waited, and send its reply or failure."""
        self.contexts.renew()
        try:
            reply = run(body, client, call_id)
            if reply is not None:
                client.send(frames.RESULT, call_id, reply)
        except BaseException as error:
            self.fail(client, call_id, error)
            if is_program_exit(error):
                raise
        finally:
            self.contexts.leave()
            self.current_call.frame = None
            self.last_result[0] = None  # Frees the result now, because the next one may come much later.

    def _expire(self, in_flight: InFlightCall) -> None:
        """Cancel the handler of a call whose deadline has passed."""
        if in_flight.task is not None and in_flight.task.cancel():
            in_flight.is_expired = True

    def report_blocking(self, service: str, endpoint: str, seconds: float) -> None:
        """Log that an endpoint has blocked the event loop for ``seconds``, once for each endpoint.

        Does nothing if the server does not log such endpoints.
        """
        name = f"{service}.{endpoint}"
        if self._logs_blocking and name not in self._reported:
            self._reported.add(name)
            logger.warning(
                "%s() blocked the server's event loop for %.0f ms, and all other calls waited. Declare it with "
                "run_in='thread', or with run_in='process' if it computes",
                name,
                seconds * 1e3,
            )

    def abandon_calls(self, client: ServedClient) -> None:
        """Abandon the calls of a disconnected client, except for one-way calls."""
        self.limiter.remove_client(client)
        for in_flight in client.calls.values():
            if not in_flight.one_way:
                self._abandon(in_flight)

    def cancel(self, client: ServedClient, call_id: int) -> None:
        """Handle a cancellation by the client: abandon a call in flight, remove a waiting call or an unsent reply."""
        if not self.limiter.remove_waiting(client, call_id):
            in_flight = client.calls.get(call_id)
            if in_flight is not None:
                self._abandon(in_flight)
            # Also for a call that has ended: its reply may wait for room.
            client.shared_memory.take_back(call_id)

    def _abandon(self, in_flight: InFlightCall) -> None:
        """Cancel the handler of a call, which gets no reply."""
        # A handler that ends in this same iteration of the loop has ended normally, but sends no reply.
        if in_flight.task is not None:
            in_flight.task.cancel()
            in_flight.is_abandoned = True


def _cancellation_error() -> asyncio.CancelledError:
    """Return the error to send for a cancellation that the caller has not requested."""
    return asyncio.CancelledError("the endpoint was cancelled at the server")


def deadline_rejection(endpoint: str, *, one_way: bool = False) -> CallRejected:
    """Return the rejection of a call whose deadline has passed."""
    return CallRejected("deadline", f"{endpoint}() had not ended by its deadline", one_way=one_way)


def check_deadline(endpoint: str, deadline: int, *, one_way: bool = False) -> None:
    """Raise CallRejected, with this ``one_way``, if a deadline, in nanoseconds of ``host_nanoseconds()``, has passed.

    Records that this process has seen a deadline: from then on, calls made here check for one to inherit.
    """
    if host_nanoseconds() >= deadline:
        raise deadline_rejection(endpoint, one_way=one_way)
    if not deadlines_seen:
        deadlines_seen.append(True)
