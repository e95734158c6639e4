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
    """Runs the requests to one service."""

    def __init__(
        self, service: Service, runner: CallRunner, inbox: Inbox, on_change: Callable[[], None], *, claim: bool
    ) -> None:
        """Claim the service's name, unless ``claim`` is False. Raises the errors of :meth:`Inbox.listen`."""
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
        self._serving = _tables(control, requests, self._unknown)._replace(handlers=native_handlers(endpoints, runner))
        self._draining = _tables(control, {}, self._refuse)
        shapes = {number: endpoint.shape for number, endpoint in enumerate(service.endpoints.values())}
        streaming = {number: shape for number, shape in shapes.items() if shape != frames.Shape()}
        self.listener = inbox.listen(Offer(service.name, self._names, streaming), on_change, claim=claim)

    def begin(self, state: Any) -> None:
        """Start serving."""
        self._state = state
        self.listener.begin(self._connected, self._lost)

    def _connected(self, peer: Peer) -> ServedClient:
        client = ServedClient(peer, self._service.name, self._names, self._state, self._serving)
        self.clients.add(client)
        return client

    def _lost(self, client: ServedClient, error: ShmrpcError) -> None:
        self.clients.discard(client)
        self._runner.abandon_calls(client)

    def drain(self) -> None:
        """Tell the clients to reconnect elsewhere, and reject new calls."""
        for client in self.clients:
            client.use_tables(self._draining)
        self.listener.drain()

    def close(self) -> None:
        """Stop at once."""
        for client in self.clients:
            self._runner.abandon_calls(client)
        self.listener.close("the server stopped")

    def _describe(self, body: Body, client: ServedClient, call_id: int) -> Body:
        if self._description is None:  # Built once, because it takes long and blocks the loop.
            from shmrpc.introspection.describe import describe_service  # Rarely needed.

            self._description = describe_service(self._service)
        return self._runner.encode_result("describe", self._description)

    def _unknown(self, body: Body, client: ServedClient, call_id: int) -> Body | None:
        raise unknown_endpoint(self._service.name)

    def _refuse(self, body: Body, client: ServedClient, call_id: int) -> Body | None:
        raise CallRejected("draining", f"the server of {self._service.name!r} is shutting down: the call was not begun")


def _report_fault(body: Any, client: ServedClient, call_id: int) -> None:
    client.peer.fault(str(body) if isinstance(body, Exception) else "it sent a result")


class _Table(dict[int, RunRequest]):
    """Handlers of requests by opcode; ``missing`` handles all others."""

    def __init__(self, entries: Mapping[int, RunRequest], missing: RunRequest) -> None:
        super().__init__(entries)
        self._missing = missing

    def __missing__(self, opcode: int) -> RunRequest:
        return self._missing


def _tables(
    control: Mapping[int, RunRequest], requests: Mapping[int, RunRequest], missing: RunRequest
) -> DispatchTables:
    """Return the dispatch tables. ``control`` holds the handlers of frames that belong to a call in flight."""
    checked = {opcode: _reject_reused_id(run) for opcode, run in requests.items()}
    return DispatchTables(
        _Table({**control, **requests}, missing).__getitem__,
        _Table({**control, **checked}, _reject_reused_id(missing)).__getitem__,
    )


def _reject_reused_id(run: RunRequest) -> RunRequest:
    """Wrap a handler to reject the id of a call in flight, because the client could not tell the replies apart."""

    def run_once(body: Body, client: ServedClient, call_id: int) -> Body | None:
        if call_id in client.calls or call_id in client.waiting:
            client.peer.fault(f"it used the id {call_id} for two calls at once")
            return None
        return run(body, client, call_id)

    return run_once
