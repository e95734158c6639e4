"""One service of a server: what runs each kind of request to each of its endpoints."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec

from shmrpc.basics.clock import host_nanoseconds
from shmrpc.introspection.describe import Description, describe_service
from shmrpc.server import batches
from shmrpc.server.call_runner import CallRunner, Encoded, expired, items_of, unencodable
from shmrpc.server.eager import Suspended
from shmrpc.server.interrupts import is_for_the_program
from shmrpc.server.results import Check, check_of, checking
from shmrpc.server.served_client import RunRequest, ServedClient, Tables, Underway
from shmrpc.server.writable import WritableArguments
from shmrpc.service.call import Call, check_metadata, handled, inheriting
from shmrpc.service.interceptors import Interceptor, enter_all
from shmrpc.service.service import Endpoint, Service
from shmrpc.service.signature import Arguments, Signature
from shmrpc.streams.credit import WINDOW
from shmrpc.streams.items import Reader
from shmrpc.streams.receiving import Incoming, received
from shmrpc.streams.sending import Outgoing
from shmrpc.transport.listening import Peer
from shmrpc.values.blocks import Unmapped
from shmrpc.wire import frames
from shmrpc.wire.codec import UNREADABLE, Body, Codec, body_weight
from shmrpc.wire.frames import Failure, Header, Rejected, opcode

_NO_HEADER: Final = Header()
#: Reads a request's body: header, positional arguments, keyword arguments.
_Read = Callable[[Body], tuple[Header, Sequence[Any], Mapping[str, Any]]]


class Table(dict[int, RunRequest]):
    """What runs a request, by opcode; ``missing`` runs those that are not in it."""

    def __init__(self, entries: Mapping[int, RunRequest], missing: RunRequest) -> None:
        super().__init__(entries)
        self._missing = missing

    def __missing__(self, opcode: int) -> RunRequest:
        return self._missing


def _tables(control: Mapping[int, RunRequest], requests: Mapping[int, RunRequest], missing: RunRequest) -> Tables:
    """The tables of these runners; ``control`` are those for what belongs to a call that is under way."""
    checked = {opcode: _once(run) for opcode, run in requests.items()}
    return Tables(
        Table({**control, **requests}, missing).__getitem__, Table({**control, **checked}, _once(missing)).__getitem__
    )


def _once(run: RunRequest) -> RunRequest:
    """Runs a request unless its id is that of a call that has not ended: nobody could tell their answers apart."""

    def run_once(body: Body, client: ServedClient, call_id: int) -> Body | None:
        if call_id in client.calls or call_id in client.waiting:
            client.used_twice(call_id)
            return None
        return run(body, client, call_id)

    return run_once


class Dispatcher:
    """Runs the requests to one service."""

    def __init__(self, service: Service, runner: CallRunner, state: Any) -> None:
        self.service = service
        self.runner = runner
        self.endpoints = list(service.endpoints.values())
        #: By name; of those whose function cannot do it itself.
        self._checks: dict[str, Check] = {}
        if runner.looks_at_results:
            self.endpoints = list(map(self._checked, self.endpoints))
        self.state = state
        self._description: Description | None = None
        control: dict[int, RunRequest] = {frames.FAULT: _broken, frames.RESULT: _broken, **runner.control_table()}
        for number in range(max((len(e.signature.inputs) for e in self.endpoints), default=0)):
            control |= runner.input_table(number + 1)
        requests: dict[int, RunRequest] = {
            frames.DESCRIBE: self._describe,
            opcode(frames.BATCH, frames.ANY): self._mixed(),
        }
        for number, endpoint in enumerate(self.endpoints):
            requests |= self._requests(number, endpoint)
        self._serving = _tables(control, requests, self._unknown)
        self._draining = _tables(control, {}, self._refuse)

    def connected(self, peer: Peer) -> ServedClient:
        """A client has come."""
        names = [endpoint.name for endpoint in self.endpoints]
        return ServedClient(peer, self.service.name, names, self.state, self._serving)

    def drain(self, client: ServedClient) -> None:
        """From now on the caller's new calls are refused."""
        client.use(self._draining)

    def _checked(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint, whose results are looked at from now on."""
        check = check_of(endpoint, self.runner.codec, refuse=self.runner.validate_results)
        if check is None:
            return endpoint
        if not endpoint.signature.streams and endpoint.run_in != "process":
            return checking(endpoint, check)
        self._checks[endpoint.name] = check
        return endpoint

    def _requests(self, number: int, endpoint: Endpoint) -> dict[int, RunRequest]:
        """Opcode and runner of each request to an endpoint."""
        signature, codec = endpoint.signature, self.runner.codec
        read_with = _reader_with(signature, codec)
        table = {
            opcode(frames.CALL_WITH, number): self._general(endpoint, read_with, with_header=True),
            opcode(frames.BATCH, number): self._batch(endpoint),
        }
        positional = signature.positional_decoder(codec)
        keywords = signature.keyword_decoder(codec)
        deadline = signature.deadline_decoder(codec)
        if self._is_plain(endpoint):
            make = self._coroutine if endpoint.is_coroutine else self._function
            table |= {
                opcode(frames.CALL, number): make(endpoint, endpoint.function, positional),
                opcode(frames.CALL_KEYWORDS, number): make(endpoint, _spread(endpoint.function), _one(keywords)),
                opcode(frames.CALL_DEADLINE, number): self._with_deadline(endpoint, deadline),
            }
        else:
            table |= {
                opcode(frames.CALL, number): self._general(endpoint, lambda body: (_NO_HEADER, positional(body), {})),
                opcode(frames.CALL_KEYWORDS, number): self._general(
                    endpoint, lambda body: (_NO_HEADER, *keywords(body))
                ),
                opcode(frames.CALL_DEADLINE, number): self._general(endpoint, _reader_deadline(deadline)),
            }
        return table

    def _interceptors(self, endpoint: Endpoint) -> Sequence[Interceptor]:
        """What stands around each call of an endpoint, the outermost first: the server's, its service's, its own."""
        if not self.service.interceptors and not endpoint.interceptors:
            return self.runner.interceptors
        return *self.runner.interceptors, *self.service.interceptors, *endpoint.interceptors

    def _is_plain(self, endpoint: Endpoint) -> bool:
        """Whether there is nothing to a call of this endpoint but arguments and a result."""
        special = _has_streams(endpoint) or endpoint.signature.writable or self._interceptors(endpoint)
        return endpoint.run_in == "loop" and not special

    def _is_inline(self, endpoint: Endpoint) -> bool:
        """Whether a call of it is over before anything else can happen."""
        return self._is_plain(endpoint) and not endpoint.is_coroutine

    def _function(
        self, endpoint: Endpoint, call: Callable[..., Any], decode: Callable[[Body], Sequence[Any]]
    ) -> RunRequest:
        """The short way of a plain function: decode, call, encode."""
        encode, kept, name = self.runner.codec.encode, self.runner.kept, endpoint.name

        def run(body: Body, client: ServedClient, call_id: int) -> Body:
            kept[0] = result = call(*decode(body))
            try:
                return encode(result)
            except Exception as error:
                raise unencodable(name, result, error) from None

        return run

    def _coroutine(
        self,
        endpoint: Endpoint,
        call: Callable[..., Any],
        decode: Callable[[Body], Sequence[Any]],
        *,
        timed: bool = False,
    ) -> RunRequest:
        """The short way of an ``async def``, which often ends without suspending.

        ``timed``: what is decoded has a deadline before the arguments.
        """
        runner, name = self.runner, endpoint.name
        encode, kept, start, running = runner.codec.encode, runner.kept, runner.start, runner.running
        limits = runner.limits

        def run(body: Body, client: ServedClient, call_id: int) -> Body | None:
            if limits.is_full(client):
                limits.wait(client, call_id, run, body)
                return None
            args, deadline = decode(body), None
            if timed:
                deadline, *args = args
                _begin_in_time(name, deadline)
            running.frame = underway = Call(client, name, call_id, deadline)
            result = start(call(*args), underway)
            if type(result) is Suspended:
                runner.suspend(Underway(client, underway, body_weight(body)), result.task)
                return None
            kept[0] = result
            try:
                return encode(result)
            except Exception as error:
                raise unencodable(name, result, error) from None

        return run

    def _with_deadline(self, endpoint: Endpoint, decode: Callable[[Body], Sequence[Any]]) -> RunRequest:
        """The short way of a call with a deadline and positional arguments."""
        if endpoint.is_coroutine:
            return self._coroutine(endpoint, endpoint.function, decode, timed=True)
        name, function, clock = endpoint.name, endpoint.function, host_nanoseconds
        encode, kept = self.runner.codec.encode, self.runner.kept

        def run(body: Body, client: ServedClient, call_id: int) -> Body:
            arguments = decode(body)
            if clock() >= arguments[0]:  # _begin_in_time() without the price of calling it.
                raise expired(name)
            if not inheriting:
                inheriting.append(True)
            # The deadline is for current_call() to find in the frame.
            count = len(arguments)
            if count == 3:  # The commonest, without a tuple in between.
                _, first, second = arguments
                result = function(first, second)
            elif count == 2:
                result = function(arguments[1])
            else:
                result = function(*arguments[1:])
            kept[0] = result
            try:
                return encode(result)
            except Exception as error:
                raise unencodable(name, result, error) from None

        return run

    def _general(self, endpoint: Endpoint, read: _Read, *, with_header: bool = False) -> RunRequest:
        """The way of every other call: with metadata, streams, interceptors, or a place of its own."""
        limits = self.runner.limits
        is_simple = self._is_plain(endpoint) and not endpoint.is_coroutine

        def run(body: Body, client: ServedClient, call_id: int) -> Body | None:
            if limits.is_full(client):
                limits.wait(client, call_id, run, body, one_way=with_header and _is_one_way(body))
                return None
            header, args, kwargs = read(body)
            if header.one_way:
                if _has_streams(endpoint):
                    raise _streams_one_way(endpoint)
                if is_simple and header.deadline is None and not header.metadata:
                    self._tell(endpoint, client, args, kwargs)
                    return None
            under = self._underway(endpoint.name, client, call_id, header, body_weight(body))
            if endpoint.signature.inputs:
                args, kwargs = self._open_inputs(under, endpoint.signature, args, kwargs)
            if endpoint.signature.streams:
                under.outgoing = Outgoing(client.sharing.sender(frames.ITEM, call_id, WINDOW), limits.change_busy)
                under.reads_metadata = with_header
            return self.runner.run(under, self._invoke(under, endpoint, args, kwargs))

        return run

    def _tell(self, endpoint: Endpoint, client: ServedClient, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """The short way of a plain function that is called one way."""
        try:
            endpoint.function(*args, **kwargs)
        except BaseException as error:
            self.runner.failures.note_one_way(client.service, endpoint.name, error)
            if is_for_the_program(error):
                raise

    def _underway(self, name: str, client: ServedClient, call_id: int, header: Header, size: int) -> Underway:
        """The call that a header describes; the rejection if its time is over."""
        if header.deadline is not None:
            _begin_in_time(name, header.deadline)
        if header.metadata:
            try:
                check_metadata(header.metadata)
            except TypeError as error:
                raise Rejected("arguments", f"{name}(): {error}") from None
        call = Call(client, name, call_id, header.deadline, header.metadata)
        self.runner.running.frame = call
        return Underway(client, call, size, one_way=header.one_way)

    def _open_inputs(
        self, under: Underway, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Arguments:
        """Puts streams in the places of the parameters that take one."""
        positional, keywords = list(args), dict(kwargs)
        send, call_id = under.client.send, under.call.id
        for number, (name, place) in enumerate(signature.input_places.items(), 1):
            credit, stop = opcode(frames.CREDIT, number), opcode(frames.STOP, number)
            incoming = Incoming(
                lambda size, credit=credit: send(credit, call_id, frames.encode_credit(size)),  # type: ignore[misc]
                allowed=0,
            )
            stream = received(
                incoming,
                Reader(self.runner.codec, signature.inputs[name]),
                functools.partial(_misfit, signature.name, name),
                functools.partial(send, stop, call_id, frames.NIL),
            )
            under.inputs.append(incoming)
            if name in keywords:
                keywords[name] = stream
            elif 0 <= place < len(positional):
                positional[place] = stream
            else:  # It was left out, and has a default.
                incoming.finish()
                continue
            incoming.open()
        return positional, keywords

    async def _invoke(self, under: Underway, endpoint: Endpoint, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs a call inside the interceptors."""
        interceptors = self._interceptors(endpoint)
        if not interceptors:
            return await self._execute(under, endpoint, args, kwargs)
        async with AsyncExitStack() as stack:
            await enter_all(stack, interceptors, under.call)
            return await self._execute(under, endpoint, args, kwargs)

    async def _execute(
        self, under: Underway, endpoint: Endpoint, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Runs a call where its endpoint wants it, with what it may write given to it for that time."""
        if not endpoint.signature.writable:
            return await self._run(under, endpoint, args, kwargs)
        given = WritableArguments(endpoint.signature)
        try:
            return await self._run(under, endpoint, *given.give(args, kwargs))
        finally:
            given.end()

    async def _run(self, under: Underway, endpoint: Endpoint, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        function, executors, check = endpoint.function, self.runner.executors, self._checks.get(endpoint.name)
        if under.outgoing is not None:
            in_thread = endpoint.run_in == "thread"
            items = items_of(endpoint.name, function(*args, **kwargs), in_thread=in_thread)
            if in_thread:
                items = executors.threads(self.service, endpoint).iterate(items)
            encode = self.runner.codec.encode
            before_first = under.tell_metadata if under.reads_metadata else None
            await under.outgoing.pump(
                items, encode if check is None else _after(check, encode), before_first=before_first
            )
            return None
        if endpoint.run_in == "thread":
            return await executors.threads(self.service, endpoint).call(function, args, kwargs)
        if endpoint.run_in == "process":
            result = await executors.in_process(function, args, kwargs)
            if check is not None:
                check(result)
            return result
        result = function(*args, **kwargs)
        return await result if endpoint.is_coroutine else result

    def _batch(self, endpoint: Endpoint) -> RunRequest:
        """Many calls of one endpoint in one frame."""
        read = batches.reader(endpoint.signature, self.runner.codec)
        inline = self._is_inline(endpoint)

        def describe(index: int, error: BaseException) -> Failure:
            return self.runner.describe(self.service.name, endpoint.name, error)

        def work(under: Underway, calls: Sequence[Any]) -> Coroutine[Any, Any, Any]:
            if inline:
                return batches.call_each(endpoint.function, calls, describe)
            return self._gather(under, [_prepared(endpoint, call, {}) for call in calls], describe)

        return self._batch_with(endpoint.name, read, work)

    def _mixed(self) -> RunRequest:
        """Calls of several endpoints in one frame."""
        validators = [endpoint.signature.validator(self.runner.codec) for endpoint in self.endpoints]
        inline = list(map(self._is_inline, self.endpoints))

        def prepare(call: Any) -> _Prepared:
            try:
                number, args, kwargs = call
                if type(number) is not int or number < 0:  # Which would count from the end.
                    return self._no_endpoint()
                endpoint, validate = self.endpoints[number], validators[number]
            except (TypeError, ValueError, IndexError):
                return self._no_endpoint()
            try:
                return _prepared(endpoint, *validate(args, kwargs))
            except Rejected as error:
                return error
            except (TypeError, ValueError):  # They are no array and no map.
                return self._no_endpoint()

        def is_inline(call: Any) -> bool:
            try:
                number: int = call[0]
                return inline[number]
            except (TypeError, LookupError):
                return True  # It will be rejected.

        def run(under: Underway, call: Any) -> Any:
            prepared = prepare(call)
            if isinstance(prepared, Rejected):
                try:
                    raise prepared
                finally:
                    del prepared  # It has this frame in its traceback.
            return self._call_one(under, *prepared)

        def work(under: Underway, calls: Sequence[Any]) -> Coroutine[Any, Any, Any]:
            def describe(index: int, error: BaseException) -> Failure:
                name = self.endpoints[calls[index][0]].name if not isinstance(error, Rejected) else "batch"
                return self.runner.describe(self.service.name, name, error)

            if all(map(is_inline, calls)):
                # Each is checked when its turn comes: to check a thousand takes as long as many turns of the loop.
                return batches.call_each(functools.partial(run, under), zip(calls, strict=True), describe)
            return self._gather(under, list(map(prepare, calls)), describe)

        return self._batch_with("batch", batches.mixed_reader(self.service.name, self.runner.codec), work)

    def _batch_with(
        self,
        name: str,
        read: Callable[[Body], tuple[Header, Sequence[Any]]],
        work: Callable[[Underway, Sequence[Any]], Coroutine[Any, Any, Any]],
    ) -> RunRequest:
        runner = self.runner
        encode = functools.partial(
            batches.encode_outcomes, runner, functools.partial(runner.describe, self.service.name, name)
        )

        async def answer(outcomes: Coroutine[Any, Any, Any]) -> Encoded:
            return encode(*await outcomes)

        def run(body: Body, client: ServedClient, call_id: int) -> Body | None:
            if runner.limits.is_full(client):
                runner.limits.wait(client, call_id, run, body)
                return None
            header, calls = read(body)
            under = self._underway(name, client, call_id, header, body_weight(body))
            return runner.run(under, answer(work(under, calls)))

        return run

    def _call_one(self, under: Underway, endpoint: Endpoint, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One call of a batch, of a plain function."""
        batch, running = under.call, self.runner.running
        call = Call(under.client, endpoint.name, batch.id, batch.deadline, batch._metadata)
        handled.set(call)
        if running.frame is not None:  # Before the batch has let the loop turn, it is what runs.
            running.frame = call
        try:
            return endpoint.function(*args, **kwargs)
        finally:
            call._ended = True

    async def _gather(
        self, under: Underway, calls: Sequence[_Prepared], describe: batches.Describe
    ) -> batches.Outcomes:
        """Runs each call of a batch in a task of its own."""
        places = asyncio.Semaphore(self.runner.limits.places)

        async def one(prepared: _Prepared) -> Any:
            if isinstance(prepared, Rejected):
                try:
                    raise prepared
                finally:
                    del prepared  # It has this frame in its traceback.
            async with places:
                try:
                    return await run(prepared)
                except (SystemExit, KeyboardInterrupt) as error:  # No task can keep one: it would end the loop.
                    if is_for_the_program(error):
                        raise
                    return error

        async def run(prepared: tuple[Endpoint, Sequence[Any], Mapping[str, Any]]) -> Any:
            endpoint, args, kwargs = prepared
            batch = under.call
            call = Call(under.client, endpoint.name, batch.id, batch.deadline, batch._metadata)
            handled.set(call)
            try:
                return await self._invoke(Underway(under.client, call, 0), endpoint, args, kwargs)
            finally:
                call._ended = True

        return batches.sorted_out(await asyncio.gather(*map(one, calls), return_exceptions=True), describe)

    def _describe(self, body: Body, client: ServedClient, call_id: int) -> Body:
        if self._description is None:  # Once: it takes a while, and the loop waits.
            self._description = describe_service(self.service)
        return self.runner.encode_result("describe", self._description)

    def _no_endpoint(self) -> Rejected:
        return Rejected("endpoint", f"service {self.service.name!r} has no endpoint of this number")

    def _unknown(self, body: Body, client: ServedClient, call_id: int) -> Body | None:
        raise self._no_endpoint()

    def _refuse(self, body: Body, client: ServedClient, call_id: int) -> Body | None:
        raise Rejected("draining", f"the server of {self.service.name!r} is shutting down: the call was not begun")


#: An endpoint and its validated arguments, or why there are none.
_Prepared = tuple[Endpoint, Sequence[Any], Mapping[str, Any]] | Rejected


def _prepared(endpoint: Endpoint, args: Any, kwargs: Mapping[str, Any]) -> _Prepared:
    if _has_streams(endpoint):
        return Rejected("arguments", f"{endpoint.name}() streams, and so cannot be called in a batch")
    if isinstance(args, Rejected):
        return args
    return endpoint, args, kwargs


def _begin_in_time(name: str, deadline: int) -> None:
    """Rejects a call whose time is over. From the first with a deadline on, calls made here look for one to inherit."""
    if host_nanoseconds() >= deadline:
        raise expired(name)
    if not inheriting:
        inheriting.append(True)


def _after(check: Check, encode: Callable[[Any], Body]) -> Callable[[Any], Body]:
    """Encodes what has passed a check."""

    def checked(item: Any) -> Body:
        check(item)
        return encode(item)

    return checked


def _has_streams(endpoint: Endpoint) -> bool:
    return endpoint.signature.streams or bool(endpoint.signature.inputs)


def _streams_one_way(endpoint: Endpoint) -> Rejected:
    """The rejection of a call that would wait for ever for a reader, or for items."""
    rejected = Rejected("arguments", f"{endpoint.name}() streams, and so cannot be called one way")
    rejected.one_way = True
    return rejected


def _misfit(endpoint: str, parameter: str, error: Exception) -> Rejected:
    """The rejection for an item of a stream from the caller."""
    words = f"{endpoint}(): an item of {parameter!r}"
    if isinstance(error, Unmapped):
        return frames.unreadable(words, error)
    what = str(error)
    return Rejected("arguments", f"{words}: {what[0].lower()}{what[1:]}")


def _broken(body: Any, client: ServedClient, call_id: int) -> None:
    client.peer.fault(str(body) if isinstance(body, Exception) else "it sent a result")


_peek = msgspec.msgpack.Decoder(tuple[Header, msgspec.Raw, msgspec.Raw])


def _is_one_way(body: Body) -> bool:
    """Whether a CALL_WITH wants no answer."""
    try:
        return _peek.decode(body)[0].one_way
    except UNREADABLE:
        return False


def _reader_with(signature: Signature, codec: Codec) -> _Read:
    """Reads the body of a CALL_WITH."""
    decode = codec.decoder(tuple[Header, list[Any], dict[str, Any]])
    validate = signature.validator(codec)

    def read(body: Body) -> tuple[Header, Sequence[Any], Mapping[str, Any]]:
        try:
            header, args, kwargs = decode(body)
        except UNREADABLE as error:
            raise signature.unreadable(error) from None
        try:
            return header, *validate(args, kwargs)
        except Rejected as error:
            error.one_way = header.one_way
            raise

    return read


def _reader_deadline(decode: Callable[[Body], Sequence[Any]]) -> _Read:
    """Reads the body of a CALL_DEADLINE."""

    def read(body: Body) -> tuple[Header, Sequence[Any], Mapping[str, Any]]:
        deadline, *args = decode(body)
        return Header(deadline), args, {}

    return read


def _one(decode: Callable[[Body], Arguments]) -> Callable[[Body], Sequence[Any]]:
    """Positional and keyword arguments as one argument."""
    return lambda body: (decode(body),)


def _spread(function: Callable[..., Any]) -> Callable[[Arguments], Any]:
    """The function, to be called with positional and keyword arguments as one argument."""
    return lambda arguments: function(*arguments[0], **arguments[1])
