"""One service of a server: its clients, and the handlers of requests to its endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shmrpc.errors import ShmrpcError
from shmrpc.server.batch_calls import batch_of_any, batch_of_one
from shmrpc.server.call_control import control_table
from shmrpc.server.call_runner import CallRunner
from shmrpc.server.fast_path import fast_path_handlers
from shmrpc.server.native_path import native_handlers
from shmrpc.server.requests import unknown_endpoint
from shmrpc.server.served_client import DispatchTables, RunRequest, ServedClient
from shmrpc.server.served_endpoint import ServedEndpoint
from shmrpc.server.slow_path import slow_path_handlers
from shmrpc.service.service import Service
from shmrpc.transport.listener import Inbox, Offer, Peer
from shmrpc.wire import frames
from shmrpc.wire.codec import Body
from shmrpc.wire.failure import CallRejected
from shmrpc.wire.frames import opcode

if TYPE_CHECKING:
    from shmrpc.introspection.describe import Description


class Dispatcher:
    """The clients of one service, and the tables that dispatch their requests."""

    def __init__(
        self, service: Service, runner: CallRunner, inbox: Inbox, on_change: Callable[[], None], *, claim: bool
    ) -> None:
        """Claim the service's name, unless ``claim`` is False. Raises as :meth:`Inbox.listen` does.

        ``on_change``: called whenever a client arrives, is connected, or leaves.
        """
        self.clients: set[ServedClient] = set()
        self._service = service
        self._runner = runner
        #: Value that the service's lifespan has yielded.
        self._state: Any = None
        self._description: Description | None = None
        endpoints = [ServedEndpoint(service, endpoint, runner) for endpoint in service.endpoints.values()]
        self._names = [endpoint.name for endpoint in endpoints]
        control: dict[int, RunRequest] = {frames.PEER_FAULT: _report_fault, frames.RESULT: _report_fault}
        control |= control_table(runner, max((len(each.signature.inputs) for each in endpoints), default=0))
        requests: dict[int, RunRequest] = {
            frames.DESCRIBE: self._describe,
            opcode(frames.BATCH, frames.ANY_ENDPOINT): batch_of_any(service.name, endpoints, runner),
        }
        for number, endpoint in enumerate(endpoints):
            runners = {**slow_path_handlers(endpoint, runner), frames.BATCH: batch_of_one(endpoint, runner)}
            if endpoint.is_plain:
                runners |= fast_path_handlers(endpoint, runner)
            requests |= {opcode(kind, number): run for kind, run in runners.items()}
        self._serving = _tables(control, requests, self._reject_unknown)._replace(
            handlers=native_handlers(endpoints, runner)
        )
        self._draining = _tables(control, {}, self._reject_draining)
        #: Tables for a client that arrives.
        self._tables = self._serving
        shapes = {number: endpoint.shape for number, endpoint in enumerate(service.endpoints.values())}
        streaming = {number: shape for number, shape in shapes.items() if shape != frames.Shape()}
        self.listener = inbox.listen(Offer(service.name, self._names, streaming), on_change, claim=claim)

    def begin(self, state: Any) -> None:
        """Start serving. ``state``: the value that the service's lifespan has yielded."""
        self._state = state
        self.listener.begin(self._add_client, self._remove_client)

    def _add_client(self, peer: Peer) -> ServedClient:
        """Record and return a new client for a connected peer."""
        client = ServedClient(peer, self._service.name, self._names, self._state, self._tables)
        self.clients.add(client)
        return client

    def _remove_client(self, client: ServedClient, error: ShmrpcError) -> None:
        """Remove a disconnected client, and abandon its calls."""
        self.clients.discard(client)
        self._runner.abandon_calls(client)

    def drain(self) -> None:
        """Tell the clients to reconnect elsewhere, and reject new calls. Calls in flight and waiting ones continue.

        Also rejects the calls of clients that are in their handshake.
        """
        self._tables = self._draining
        for client in self.clients:
            client.use_tables(self._draining)
        self.listener.drain()

    def close(self) -> None:
        """Stop at once: release the name, abandon the calls, except for one-way calls, and close the connections."""
        for client in self.clients:
            self._runner.abandon_calls(client)
        self.listener.close("the server stopped")

    def _describe(self, body: Body, client: ServedClient, call_id: int) -> Body:
        """Handle a DESCRIBE request: return the encoded description of the service."""
        if self._description is None:  # Built once, because it takes long and blocks the loop.
            from shmrpc.introspection.describe import describe_service  # Rarely needed.

            self._description = describe_service(self._service)
        return self._runner.encode_result("describe", self._description)

    def _reject_unknown(self, body: Body, client: ServedClient, call_id: int) -> Body | None:
        """Reject a request to an endpoint that the service does not have."""
        raise unknown_endpoint(self._service.name)

    def _reject_draining(self, body: Body, client: ServedClient, call_id: int) -> Body | None:
        """Reject any request, because the server is draining."""
        raise CallRejected("draining", f"the server of {self._service.name!r} is shutting down: the call was not begun")


def _report_fault(body: Any, client: ServedClient, call_id: int) -> None:
    """Close the connection of a client that broke the rules of the protocol. ``body``: the error, or a sent result."""
    client.peer.fault(str(body) if isinstance(body, Exception) else "it sent a result")


class _Table(dict[int, RunRequest]):
    """A table of handlers of requests by opcode. ``missing`` handles all other opcodes."""

    def __init__(self, entries: Mapping[int, RunRequest], missing: RunRequest) -> None:
        super().__init__(entries)
        self._missing = missing

    def __missing__(self, opcode: int) -> RunRequest:
        return self._missing


def _tables(
    control: Mapping[int, RunRequest], requests: Mapping[int, RunRequest], missing: RunRequest
) -> DispatchTables:
    """Return the dispatch tables.

    ``control``: handlers of frames that belong to a call in flight; ``missing``: the handler of all opcodes in neither
    mapping.
    """
    checked = {opcode: _reject_reused_id(run) for opcode, run in requests.items()}
    return DispatchTables(
        _Table({**control, **requests}, missing).__getitem__,
        _Table({**control, **checked}, _reject_reused_id(missing)).__getitem__,
    )


def _reject_reused_id(run: RunRequest) -> RunRequest:
    """Return a handler that calls ``run`` unless the request reuses the id of a call in flight or waiting.

    Closes the connection otherwise, because the client could not tell the two replies apart.
    """

    def run_once(body: Body, client: ServedClient, call_id: int) -> Body | None:
        if call_id in client.calls or call_id in client.waiting:
            client.peer.fault(f"it used the id {call_id} for two calls at once")
            return None
        return run(body, client, call_id)

    return run_once
