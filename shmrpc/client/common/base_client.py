"""The base class of both clients: options, endpoints as attributes, and the start of each call."""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Self, TypeVar

from shmrpc import _core
from shmrpc.basics.clock import AHEAD, host_nanoseconds
from shmrpc.client.common.call_options import CallOptions
from shmrpc.client.common.endpoint_group import EndpointGroup
from shmrpc.client.common.reconnector import Reconnector
from shmrpc.client.common.requests import find_endpoint, find_endpoint_name, is_group, reject_streams
from shmrpc.client.common.session import Session
from shmrpc.service.call import Call, Metadata, deadlines_seen, earliest_deadline
from shmrpc.service.endpoints import Endpoint
from shmrpc.service.signature import result_type
from shmrpc.values.sharing import empty_array, empty_buffer
from shmrpc.wire import frames
from shmrpc.wire.codec import Body, Codec
from shmrpc.wire.frames import opcode

if TYPE_CHECKING:
    import numpy
    import numpy.typing

#: Maximum number of cached copies of a client, one for each timeout.
_MAX_CACHED_CLIENTS: Final = 64


_L = TypeVar("_L", bound=Reconnector[Any])


class PartialCall(functools.partial[Any]):
    """A partial that ``help()`` documents as a function."""

    @property  # type: ignore[misc]  # Never assigned.
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Report a function to ``inspect``: from Python 3.13 on, a partial counts as data without a signature."""
        return types.FunctionType

    @property
    def __code__(self) -> types.CodeType:
        """Return the code object of the wrapped function, for ``inspect.getsource()``."""
        code: types.CodeType = self.func.__code__
        return code

    def __get__(self, instance: object, owner: type | None = None) -> PartialCall:
        """Return the partial itself, which is already bound."""
        return self


class StreamingCall(PartialCall):
    """A partial of an async generator of lists, whose call returns an iterator over their items."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """Return an asynchronous iterator over single items. The call is made when the first item is requested."""
        return _core.ItemStream(super().__call__(*args, **kwargs))


class BaseClient(Generic[_L]):
    """A client that offers its endpoints as attributes.

    Base of :class:`shmrpc.Client` and :class:`shmrpc.sync.Client`.
    """

    #: True if the caller awaits the calls.
    _is_async: ClassVar[bool] = False

    def __init__(self, reconnector: _L, codec: Codec, options: CallOptions, endpoints: Mapping[str, Endpoint]) -> None:
        self._reconnector = reconnector
        self._codec = codec
        self._options = options
        #: Endpoints of the Service that was passed to connect(), by name; empty if connect() was given a name.
        self._endpoints = endpoints
        self._clients_by_timeout: dict[float, Self] = {}
        self._cached_clone: Self | None = None

    def with_options(
        self,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str | bytes] | None = None,
        reply_metadata: Metadata | None = None,
    ) -> Self:
        """Return a client on the same connection with other options: ``client.with_options(timeout=0.5).add(1, 2)``.

        ``timeout``: seconds that a call may take before it raises DeadlineExceeded, 0 to 1e8; an earlier deadline of
        the handler that makes the call applies, too. ``math.inf`` means no limit, not even that deadline. ``metadata``
        travels with each call to the handler, in addition to the metadata of this client. ``reply_metadata``: a dict to
        which the metadata that handlers send back is added. Options that are not given, or None, keep their values.

        Needs no connection, and does not wait. Raises ValueError or TypeError for an invalid option.
        """
        if metadata is not None or reply_metadata is not None or timeout is None:
            return self._copy_with(timeout, metadata, reply_metadata)
        try:
            view = self._clients_by_timeout.get(timeout)
        except TypeError:  # Unhashable. _copy_with() raises the error for it.
            view = None
        if view is None:
            if len(self._clients_by_timeout) >= _MAX_CACHED_CLIENTS:
                self._clients_by_timeout.clear()
            view = self._clients_by_timeout[timeout] = self._copy_with(timeout, None, None)
        return view

    def _copy_with(
        self, timeout: float | None, metadata: Mapping[str, str | bytes] | None, reply_metadata: Metadata | None
    ) -> Self:
        """Return a new client as :meth:`with_options` does, without its cache."""
        if reply_metadata is not None and not isinstance(reply_metadata, dict):
            raise TypeError(
                f"reply_metadata: expected a dict, which receives the metadata of replies, got {reply_metadata!r}"
            )
        options = self._options.updated(timeout, metadata, reply_metadata)
        return type(self)(self._reconnector, self._codec, options, self._endpoints)

    def empty(self, shape: int | tuple[int, ...], dtype: numpy.typing.DTypeLike = "float64") -> numpy.ndarray[Any, Any]:
        """Return a new NumPy array in shared memory. Fill it and pass it to a call: it is sent without a copy.

        The contents are undefined. The array may be passed to further calls; but while a receiver holds a view of it,
        the receiver sees later writes, so allocate a new array instead. In a call of another client, after a reconnect,
        and over ``memory://`` and ``nats://``, it is sent like an ordinary array.

        Raises SharedMemoryError if ``max_memory`` is exhausted, ImportError without NumPy, LocalProtocolError if the
        client was never connected or in a forked child, the error of a connection that has ended (ConnectionLost after
        close()), and TypeError or ValueError for an invalid dtype or shape.
        """
        return empty_array(self._allocate, shape, dtype)

    def buffer(self, size: int) -> memoryview:
        """Return ``size`` writable bytes of shared memory; for their use and the errors see :meth:`empty`.

        Needs no NumPy. Raises ValueError for a negative size.
        """
        return empty_buffer(self._allocate, size)

    def _allocate(self, size: int) -> Any:
        """Allocate a block of shared memory of the last session; see :meth:`Session.allocate`.

        Raises LocalProtocolError before the first session.
        """
        session = self._reconnector.session
        if session is None:
            raise self._reconnector.not_connected()
        return session.allocate(size)

    def __repr__(self) -> str:
        reconnector, module = self._reconnector, "shmrpc" if self._is_async else "shmrpc.sync"
        state = (
            "closed" if reconnector.closed_error else "connected" if reconnector.current_session() else "not connected"
        )
        return f"<{module}.Client of {reconnector.service!r}, {state}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Reject pickle and copy, also of bound endpoints, groups and batches, which refer to the client."""
        service = self._reconnector.service
        raise TypeError(
            f"a client of {service!r} cannot be pickled or copied: its connection belongs to this process; pass the "
            "name, and connect in the other process"
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names_under("")]

    def _names_under(self, prefix: str) -> Iterable[str]:
        """Return the names of endpoints and groups below a prefix, which is empty or ends with a dot."""
        names = (name.removeprefix(prefix) for name in self._reconnector.numbers if name.startswith(prefix))
        return dict.fromkeys(name.partition(".")[0] for name in names)

    def __getattr__(self, name: str) -> Any:
        """Return the function of an endpoint or a group of endpoints, and cache it.

        Raises EndpointNotFound, which is an AttributeError, and LocalProtocolError if the client was never connected.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        member = self._clone()._resolve_member(name)
        self.__dict__[name] = member  # Later lookups bypass __getattr__.
        return member

    def _clone(self) -> Self:
        """Return the copy of this client to which bound endpoints refer, the same at each call.

        The bound endpoints are cached on this client. Because they refer to the copy, no reference cycle keeps this
        client alive.
        """
        if self._cached_clone is None:
            self._cached_clone = type(self)(self._reconnector, self._codec, self._options, self._endpoints)
        return self._cached_clone

    def _resolve_member(self, name: str) -> Any:
        """Return the function of an endpoint or the group of this name. Raises EndpointNotFound if there is neither.

        Raises LocalProtocolError if the client was never connected.
        """
        if is_group(name, self._reconnector.numbers):
            return EndpointGroup(self, name)
        return self._bind(name, self._result_type(name))

    def _result_type(self, name: str) -> Any:
        """Return the declared type of an endpoint's result or stream items; Any if the client does not know it."""
        return self._endpoints[name].signature.result if name in self._endpoints else Any

    def _describe_function(self, name: str, call: Any) -> Callable[..., Any]:
        """Give ``call`` the endpoint's name, and its signature and docstring if known; return ``call``."""
        call.__name__ = call.__qualname__ = name
        if name in self._endpoints:
            endpoint = self._endpoints[name]
            call.__signature__ = endpoint.signature.signature
            call.__doc__ = inspect.getdoc(endpoint.function)
        else:
            call.__doc__ = f"Call the endpoint {name!r}. For its parameters see describe(), or use connect(Service)."
        return call  # type: ignore[no-any-return]

    def _bind(self, name: str, kind: Any) -> Callable[..., Any]:
        """Return the function that calls an endpoint with results of type ``kind``.

        Raises EndpointNotFound, and LocalProtocolError if the client was never connected.
        """
        raise NotImplementedError

    def _bound_call(self, endpoint: Any) -> Callable[..., Any]:
        """Return the cached function that calls an endpoint, given by name or by function.

        Raises TypeError as :meth:`_endpoint_name_and_type` does, and the errors of :meth:`_bind`.
        """
        calls: dict[Any, Callable[..., Any]] = self.__dict__.setdefault("_calls", {})
        call = calls.get(endpoint)
        if call is None:
            call = calls[endpoint] = self._clone()._bind(*self._endpoint_name_and_type(endpoint))
        return call

    def _endpoint_name(self, endpoint: Any) -> str:
        """Return the name of an endpoint, given by name or by function. Raises TypeError if ``endpoint`` is neither.

        Does not check that the endpoint exists.
        """
        return find_endpoint_name(endpoint, self._reconnector.numbers)

    def _check_batchable(self, name: str) -> None:
        """Raise EndpointNotFound, or InvalidArguments for an endpoint that cannot be called in a batch.

        Raises LocalProtocolError if the client was never connected.
        """
        session = self._reconnector.session
        if session is None:
            raise self._reconnector.not_connected()
        number = find_endpoint(session.service, name, session.numbers)
        reject_streams(name, session.shapes.get(number), "in a batch", is_async=self._is_async)

    def _endpoint_name_and_type(self, endpoint: Any) -> tuple[str, Any]:
        """Return the name of an endpoint, given by name or by function, and the type of its results or stream items.

        For a name, the type is that of the Service given to connect(), or Any; for a function, the declared one or Any.
        Raises TypeError if ``endpoint`` is neither, or if the function's annotations cannot be resolved.
        """
        name = self._endpoint_name(endpoint)
        return name, self._result_type(name) if isinstance(endpoint, str) else result_type(endpoint)

    def _native_call(
        self, session: Session[Any], number: int, kind: Any, read: Callable[[Body], Any]
    ) -> _core.NativeCall:
        """Return the description by which the core calls an endpoint. ``read`` decodes results that the core cannot."""
        codec, options = self._codec, self._options
        return _core.NativeCall(
            encoder=codec.encoder,
            ids=session.ids,
            expected=codec.expected(kind),
            read=read,
            positional=opcode(frames.CALL, number),
            keywords=opcode(frames.CALL_KEYWORDS, number),
            timed=opcode(frames.CALL_DEADLINE, number),
            timeout=options.timeout_nanoseconds,
            clock_ahead=AHEAD,
            inheriting=deadlines_seen if options.inherits_deadline else None,
            nearest=earliest_deadline,
        )

    def _new_call(self, name: str) -> Call:
        """Return a call with the deadline and metadata of this client's options, and 0 as its id.

        The deadline is the earlier one of the timeout and of the handler that makes the call, unless the timeout is
        ``math.inf``. Raises LocalProtocolError if the client was never connected.
        """
        options, session = self._options, self._reconnector.session
        if session is None:
            raise self._reconnector.not_connected()
        if options.timeout == math.inf:
            deadline = None
        elif options.timeout is None:
            deadline = earliest_deadline(None)
        else:
            deadline = earliest_deadline(host_nanoseconds() + int(options.timeout * 1e9))
        metadata = dict(options.metadata) if options.metadata else None
        return Call(session, name, 0, deadline, metadata, options.reply_metadata)
