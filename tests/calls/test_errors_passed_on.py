"""Exceptions that a handler passes on: they arrive as they were, over any number of hops."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import shmrpc
from shmrpc.client.common.call_errors import was_not_executed
from shmrpc.wire.failure import _shorten
from tests.helpers.failing_service import make

SHARED_SERVER = True
TARGET = "tests.helpers.failing_service:service"
# The package's folder, whatever the checkout's is called: `git clone` calls that one shmrpc, too.
OWN_FILES = f"{Path(shmrpc.__file__).parent}/"


async def caught(client: shmrpc.Client, endpoint: str, *args: Any) -> shmrpc.RemoteError:
    with pytest.raises(shmrpc.RemoteError) as caught:
        await client.call(endpoint, *args)
    return caught.value


def looks(error: Any) -> dict[str, Any]:
    """All that a program can see of one but its traceback."""
    names: tuple[str, ...] = (
        "errno",
        "strerror",
        "filename",
        "filename2",
        "name",
        "path",
        "encoding",
        "object",
        "start",
        "end",
    )
    names += ("reason", "maybe_executed", "type_name", "code", "details")
    seen = {name: getattr(error, name) for name in names if hasattr(error, name)}
    if isinstance(error, ExceptionGroup):  # Each exception of it is one of its own here.
        return {**seen, "type": type(error), "message": error.message, "in it": [looks(e) for e in error.exceptions]}
    return {**seen, "type": type(error), "args": error.args, "str": str(error), "repr": repr(error)}


@pytest.mark.parametrize(
    "kind",
    [
        "key", "tuple key", "derived key", "lookup", "os", "rename", "unicode", "import", "name", "attribute", "group",
        "unencodable", "custom", "overloaded", "deadline", "lost", "unavailable", "endpoint", "arguments", "long",
        "application", "stock",
    ],
)  # fmt: skip
async def test_an_error_that_is_passed_on_arrives_unchanged(client: shmrpc.Client, kind: str) -> None:
    first = await caught(client, "fail", kind)
    for endpoint, args in [("pass_on", (1,)), ("pass_on_in_thread", ()), ("pass_on", (11,))]:
        assert looks(await caught(client, endpoint, kind, *args)) == looks(first)


async def test_attributes_of_builtin_exceptions_arrive(client: shmrpc.Client) -> None:
    missing = await caught(client, "fail", "os")
    assert isinstance(missing, FileNotFoundError)
    assert (missing.errno, missing.strerror, missing.filename) == (2, "No such file", "/nowhere")
    renamed = await caught(client, "fail", "rename")
    assert isinstance(renamed, OSError) and (renamed.filename, renamed.filename2) == ("/a", "/b")
    decode_error = await caught(client, "fail", "unicode")
    assert isinstance(decode_error, UnicodeDecodeError)
    assert decode_error.args == ("utf-8", b"\xff", 0, 1, "invalid start byte")
    absent = await caught(client, "fail", "import")
    assert isinstance(absent, ModuleNotFoundError) and (absent.name, absent.path) == ("absent", "/here")
    name = await caught(client, "fail", "name")
    assert isinstance(name, NameError) and name.name == "x"
    attribute = await caught(client, "fail", "attribute")
    assert isinstance(attribute, AttributeError) and attribute.name == "x"
    key = await caught(client, "fail", "tuple key")
    assert key.args == ((1, 2),)
    derived = await caught(client, "fail", "derived key")
    assert isinstance(derived, KeyError) and (derived.args, str(derived)) == (("k",), "'k'")


async def test_the_traceback_names_each_of_eleven_hops_once(client: shmrpc.Client) -> None:
    error = await caught(client, "pass_on", "lookup", 11)
    text = error.remote_traceback
    assert (text.count("in fail\n"), text.count("in pass_on\n"), text.count("Passed on by:")) == (1, 11, 11)
    assert text.count("LookupError: ('here', 5)") == 1
    assert OWN_FILES not in text, "a traceback shows the program's frames, not those of shmrpc"
    assert len(error.__notes__) == 1


async def test_the_text_of_hops_is_bounded(client: shmrpc.Client) -> None:
    error = await caught(client, "pass_on", "long", 5)
    assert len(error.remote_traceback) <= 16_384
    assert len(re.findall("characters left out", error.remote_traceback)) == 1
    assert "in fail\n" in error.remote_traceback and error.remote_traceback.count("in pass_on\n") == 5
    assert len(str(error)) <= 50_000


def test_a_shortened_traceback_counts_what_was_cut_before() -> None:
    text = "begin" + "x" * 90_000 + "end"
    once = _shorten(text)
    twice = _shorten(once + "y" * 10_000)
    assert max(len(once), len(twice)) <= 16_384
    assert _shorten(once) == once
    (found,) = re.findall(r"… (\d+) characters left out", twice)
    assert int(found) + len(re.sub(r"\n… .* …\n", "", twice)) == len(text) + 10_000


async def test_a_process_of_the_servers_own_is_no_hop(client: shmrpc.Client) -> None:
    for kind in ("application", "stock"):
        error = await caught(client, "fail_in_process", kind)
        assert "in fail_in_process\n" in error.remote_traceback
        assert "Passed on by:" not in error.remote_traceback, "no server has passed the error on"


async def test_the_traceback_has_causes_and_notes_of_a_hop(client: shmrpc.Client) -> None:
    error = await caught(client, "pass_on_noted", "lookup")
    assert isinstance(error, LookupError)
    text = error.remote_traceback
    assert "ValueError: why it was passed on" in text and "direct cause" in text
    assert "a note of the relay's" in text


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("overloaded", shmrpc.Overloaded),
        ("deadline", shmrpc.DeadlineExceeded),
        ("lost", shmrpc.ConnectionLost),
        ("unavailable", shmrpc.ServiceUnavailable),
    ],
)
async def test_a_condition_of_an_inner_call_is_no_promise_that_nothing_was_done(
    server: object, kind: str, own: type[shmrpc.ShmrpcError]
) -> None:
    async with shmrpc.connect("failing", reconnect=True) as client:
        error = await caught(client, "pass_on", kind, 1)
    assert isinstance(error, own)
    assert error.maybe_executed
    assert not was_not_executed(error)
    assert not getattr(make(kind), "maybe_executed", False)


async def test_a_mistake_in_between_is_not_the_callers(client: shmrpc.Client) -> None:
    assert not isinstance(await caught(client, "pass_on", "endpoint", 1), shmrpc.EndpointNotFound)
    assert not isinstance(await caught(client, "pass_on", "arguments", 1), shmrpc.InvalidArguments)


async def test_over_pickles(server: object) -> None:
    relay = shmrpc.Service("relay")

    @relay.endpoint
    async def through(kind: str) -> None:
        async with shmrpc.connect("failing") as client:
            await client.fail(kind)

    async with shmrpc.serve(relay, codec="pickle"), shmrpc.connect("relay", codec="pickle") as client:
        for kind in ("tuple key", "os", "stock", "application", "unencodable"):
            error = await caught(client, "through", kind)
            async with shmrpc.connect("failing") as direct:
                assert looks(error) == looks(await caught(direct, "fail", kind))


@pytest.mark.parametrize("endpoint", ["pass_stream"])
async def test_at_the_end_of_a_stream(client: shmrpc.Client, endpoint: str) -> None:
    with pytest.raises(KeyError) as caught:
        async for _ in client.call(endpoint, "tuple key"):
            pass
    assert caught.value.args == ((1, 2),)
