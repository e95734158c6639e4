"""A name, or a URL, says where a service is met: connect() and serve() find the transport by it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

import shmrpc
from shmrpc.cli.commands import main
from tests.helpers.cli_runner import cli_runner
from tests.helpers.server_process import PATIENCE

service = shmrpc.Service(f"tested.places.{os.getpid()}")


@service.endpoint
def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize(
    "connect",
    [
        lambda: shmrpc.connect(f"memory://{service.name}"),
        lambda: shmrpc.connect(service.name, at="memory://"),
        lambda: shmrpc.connect(service, at="memory://"),
    ],
    ids=["a URL", "a name and a place", "a service and a place"],
)
async def test_a_server_in_this_loop_is_found_by_its_place(connect: Callable[[], shmrpc.Client]) -> None:
    async with shmrpc.serve(service, at="memory://"), connect() as client:
        assert await client.double(2) == 4
        with pytest.raises(shmrpc.ServiceUnavailable):  # The service is invisible outside of this loop.
            async with shmrpc.connect(service.name, timeout=0):
                pass


async def test_a_name_alone_is_this_hosts_shared_memory() -> None:
    async with shmrpc.serve(service, at="shm://"):
        for name in (service.name, f"shm://{service.name}"):
            async with shmrpc.connect(name, timeout=PATIENCE) as client:
                assert await client.double(2) == 4
        with pytest.raises(shmrpc.ServiceUnavailable, match="the services of this network: none"):
            async with shmrpc.connect(f"memory://{service.name}", timeout=0):
                pass


async def test_each_loop_has_names_of_its_own() -> None:
    async def serve_elsewhere() -> Any:
        async with shmrpc.serve(service, at="memory://"), shmrpc.connect(service, at="memory://") as client:
            return await client.double(5)

    async with shmrpc.serve(service, at="memory://"):
        with pytest.raises(shmrpc.ServiceInUse):
            async with shmrpc.serve(service, at="memory://"):
                pass
        assert await asyncio.to_thread(asyncio.run, serve_elsewhere()) == 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: shmrpc.connect("http://host/shop"),
            "'http://host/shop' is not the address of a service: .* shm:// or memory:// or nats://",
        ),
        (lambda: shmrpc.sync.connect("ftp://shop"), "'ftp://shop' is not the address of a service: .* shm:// or"),
        (lambda: shmrpc.serve(service, at="here"), "'here' is not the address of a service: .* shm:// or memory://"),
        (
            lambda: shmrpc.serve(service, at="memory://shop"),
            "expected an address without a name, got 'memory://shop'; leave out 'shop'",
        ),
        (lambda: shmrpc.connect("shm://host/shop"), "expected shm://NAME, since shm:// does not leave this host"),
        (lambda: shmrpc.connect("memory://"), "'memory://' has no service: add its name"),
        (lambda: shmrpc.connect("memory://shop", at="shm://"), "has an address, and so has at=: leave one out"),
        (lambda: shmrpc.connect("memory://shop", spin=0), "^spin: memory:// shares no memory .*leave it out"),
        (lambda: shmrpc.connect("memory://shop", allow_uids=[1]), "^allow_uids: memory:// shares no memory"),
        (lambda: shmrpc.serve(service, at="memory://", max_memory=1 << 20), "^max_memory: memory:// shares no memory"),
        (lambda: shmrpc.sync.connect("memory://shop"), r"within one event loop: use shmrpc.connect\('memory://shop'\)"),
    ],
)
def test_a_place_or_an_option_that_is_not_there_is_refused_in_words(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


async def test_a_server_of_a_loop_takes_no_sockets() -> None:
    with pytest.raises(shmrpc.LocalProtocolError, match="adopting=True is for clients that come by a socket"):
        async with shmrpc.serve(service, at="memory://", adopting=True):
            pass


def test_a_place_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="at: expected a URL such as 'memory://', .*got 5"):
        shmrpc.connect("shop", at=5)  # type: ignore[arg-type]


def test_a_command_takes_a_place_as_connect_does() -> None:
    done = cli_runner().invoke(main, ["describe", "http://host/shop"])
    assert done.exit_code == 2
    assert "expected a URL that starts with shm:// or memory://" in done.output


@pytest.mark.parametrize("option", [("--workers", "2"), ("--reload",)])
def test_workers_do_not_serve_where_they_cannot_be_passed_a_client(option: tuple[str, ...]) -> None:
    done = cli_runner().invoke(main, ["serve", "absent.module:x", "--at", "memory://", *option])
    assert done.exit_code == 2
    assert (
        "--at memory:// cannot be served by workers" in done.output and "remove --workers and --reload" in done.output
    )


@pytest.mark.parametrize("option", [(), ("--workers", "2")])
def test_a_place_that_is_not_there_is_not_served(option: tuple[str, ...]) -> None:
    done = cli_runner().invoke(main, ["serve", "examples.calculator:calculator", "--at", "http://", *option])
    assert done.exit_code == 2
    assert "'http://' is not the address of a service" in done.output
