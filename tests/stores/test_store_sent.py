"""Objects of stores that are sent: they arrive as themselves where their store is open, and not at all elsewhere."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import msgspec
import pytest

import shmrpc
import shmrpc.sync
from shmrpc.values.references import STORED
from shmrpc.wire.codec import UNREADABLE, Codec, get_codec
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import ServerProcess
from tests.stores.shared_classes import Metrics, Open, Player, Slotted
from tests.stores.store_service import store_service

#: A name that no other run of these tests has.
OURS = f"storesent{os.getpid()}"
CodecName = Literal["msgspec", "msgpack", "pickle"]
CODECS: tuple[CodecName, ...] = ("msgspec", "msgpack", "pickle")


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Store]:
    with shmrpc.sync.store(OURS) as opened:
        opened["dict"], opened["list"], opened["set"] = {"a": 1}, [1, 2], {1}
        opened["player"], opened["slots"], opened["open"] = Player("Ada"), Slotted(1, 2), Open(3)
        opened.struct(Metrics)
        yield opened


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


OBJECTS = ["dict", "list", "set", "player", "slots", "open", "Metrics"]


@pytest.mark.parametrize("key", OBJECTS)
@pytest.mark.parametrize("reader", CODECS)
def test_an_object_travels_by_its_position(s: shmrpc.sync.Store, codec: Codec, reader: CodecName, key: str) -> None:
    body = codec.encode({"nested": [(s[key], s[key])]})
    first, second = get_codec(reader).decode(body)["nested"][0]
    assert type(first) is type(second) is type(s[key])
    assert first._place == s[key]._place
    assert isinstance(body, bytes) and len(body) < 100


@pytest.mark.parametrize(
    ("kind", "key", "is_proxy"),
    [
        (Any, "dict", True),
        (dict[str, Any], "dict", False),
        (dict, "dict", False),
        (list[int], "list", False),
        (set[int], "set", False),
        (Player, "player", True),
        (Player | None, "player", True),
        (Slotted, "slots", True),
        (Open, "open", True),
    ],
    ids=str,
)
def test_the_declared_type_decides_between_an_object_and_a_copy(
    s: shmrpc.sync.Store, codec: Codec, kind: Any, key: str, is_proxy: bool
) -> None:
    got = codec.decoder(kind)(codec.encode(s[key]))
    plain = s[key].copy()
    assert type(got) is (type(s[key]) if is_proxy else type(plain))
    if not is_proxy:
        assert got == plain
    inside = codec.decoder(list[kind])(codec.encode([s[key]]))
    assert type(inside[0]) is type(got)


@pytest.mark.parametrize(("kind", "key"), [(int, "dict"), (Player, "open"), (Open, "player"), (list[str], "list")])
def test_an_object_of_another_type_than_declared_is_refused(
    s: shmrpc.sync.Store, codec: Codec, kind: Any, key: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected"):
        codec.decoder(kind)(codec.encode(s[key]))


def test_an_object_whose_store_is_not_open_names_it(s: shmrpc.sync.Store, codec: Codec) -> None:
    bodies = [codec.encode(s[key]) for key in OBJECTS]
    s.close()
    for body in bodies:
        with pytest.raises(UNREADABLE, match=f"object of store '{OURS}' .*shmrpc.attach.*hand over the name '{OURS}'"):
            codec.decode(body)


def test_a_store_itself_is_not_sent(s: shmrpc.sync.Store, codec: Codec) -> None:
    with pytest.raises(TypeError, match=rf"store '{OURS}' cannot be (sent|copied or pickled): open it by its name"):
        codec.encode(s)


@pytest.mark.parametrize(
    "corrupt",
    [
        [],
        ["it"],
        [5, 17, 0, 0, 0],
        ["it", 17, 0, 0],
        ["it", 17, 0, -1, 0],
        ["it", 17.0, 0, 0, 0],
        ["it", 20, 0, 0, 0],
        ["it", 0, 0, 0, 0],
        ["it", 19, 2**20, 0, 0],
        ["it", 17, 0, 2**64, 0],
    ],
    ids=str,
)
def test_a_reference_that_cannot_be_one_is_unreadable(s: shmrpc.sync.Store, codec: Codec, corrupt: list[Any]) -> None:
    with pytest.raises(UNREADABLE):
        codec.decode(_reference(codec, [OURS if each == "it" else each for each in corrupt]))


def _reference(codec: Codec, payload: list[Any]) -> bytes:
    body = codec.encode(payload)
    assert isinstance(body, bytes)
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(STORED, body))


def test_a_reference_to_what_is_not_there_is_gone(s: shmrpc.sync.Store, codec: Codec) -> None:
    gone = codec.encode(s["list"])
    s["list"] = []
    at, identity = s["dict"]._place
    for place in ((0, 0), (at + 8, identity), (2**62, 1), (at, identity + 1), (2**63 - 8, identity)):
        made = codec.decode(_reference(codec, [OURS, 17, 0, *place]))
        with pytest.raises(shmrpc.ObjectDeleted):
            made["a"]
        with pytest.raises(shmrpc.ObjectDeleted):
            made["a"] = 1
    with pytest.raises(shmrpc.ObjectDeleted):
        codec.decode(gone).append(1)
    as_list, as_set, as_record = (
        codec.decode(_reference(codec, [OURS, kind, 0, at, identity])) for kind in (16, 18, 19)
    )
    with pytest.raises(TypeError, match="another type"):
        as_list.append(1)
    with pytest.raises(TypeError, match="another type"):
        as_set.add(1)
    with pytest.raises(TypeError, match="another type"):
        as_record.name = 1
    assert s["dict"] == {"a": 1}


# --- calls ---


@pytest.fixture(params=CODECS)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[shmrpc.Client]:
    async with (
        shmrpc.serve(store_service, codec=request.param),
        shmrpc.connect("stores", codec=request.param) as connected,
    ):
        await connected.open_store(OURS)
        yield connected
        await connected.close_store(OURS)


async def test_arguments_and_results_of_calls(s: shmrpc.sync.Store, client: shmrpc.Client) -> None:
    assert await client.note(s["list"], "there") == "SharedList"
    assert await client.note(s["set"], "there") == "SharedSet"
    assert await client.hit(s["player"], 5) == 95
    assert await client.hit(s["player"], by=5) == 90
    assert await client.total(s["dict"], more=s["list"][:2]) == 4
    found = await client.item(OURS, "list")
    found.append("here")
    player = await client.player(OURS, "player")
    player.hit(1)
    assert s["list"] == [1, 2, "there", "here"] and s["set"] == {1, "there"} and s["player"].health == 89


async def test_items_of_streams_in_both_directions(s: shmrpc.sync.Store, client: shmrpc.Client) -> None:
    s.clear()
    s.update({str(number): [] for number in range(300)})
    async for each in client.items(OURS):
        each["item"][0].append("result")
    assert await client.note_all((each for each in s.values()), "argument") == 300
    assert all(each == ["result", "argument"] for each in s.values())


def test_calls_of_threads_to_another_process(s: shmrpc.sync.Store) -> None:
    with ServerProcess("tests.stores.store_service:store_service"), shmrpc.sync.connect("stores") as client:
        with pytest.raises(shmrpc.InvalidArguments, match=f"object of store '{OURS}' arrived") as refused:
            client.note(s["list"], "there")
        assert "shmrpc.attach" in str(refused.value)
        client.open_store(OURS)
        threads = [threading.Thread(target=client.note, args=(s["list"], str(number))) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(s["list"][2:]) == ["0", "1", "2", "3"]
        for each in client.items(OURS):
            assert each["item"][0]._store_name == OURS
        assert client.hit(s["player"], 10) == 90 and s["player"].health == 90
        found = client.item(OURS, "dict")
        s.close()
        with pytest.raises(shmrpc.LocalProtocolError, match="closed"):
            found["a"]
        with pytest.raises(shmrpc.DecodeError, match=f"object of store '{OURS}' arrived"):
            client.item(OURS, "dict")
        client.close_store(OURS)


# --- queues and topics ---


@pytest.mark.parametrize("codec_name", CODECS)
def test_items_of_a_queue(s: shmrpc.sync.Store, other: MemberProcess, codec_name: CodecName) -> None:
    with shmrpc.sync.queue(f"{OURS}q", codec=codec_name) as q:
        q.put_many([s["list"], {"nested": s["player"]}])
        other.do(f"q = sync.queue({OURS + 'q'!r}, codec={codec_name!r})")
        with pytest.raises(RuntimeError, match=f"DecodeError: .*object of store '{OURS}' arrived"):
            other.do("q.get(5)")
        other.do(f"s = sync.attach({OURS!r}); q.get(5)['nested'].hit(1); q.put(s['dict'])")
        assert s["player"].health == 99
        q.get(5)["b"] = 2
        assert s["dict"] == {"a": 1, "b": 2}
        other.do("q.close(); s.close()")


@pytest.mark.parametrize("codec_name", CODECS)
async def test_messages_of_a_topic(s: shmrpc.sync.Store, other: MemberProcess, codec_name: CodecName) -> None:
    name = f"{OURS}t"
    async with shmrpc.topic(name, codec=codec_name) as topic, shmrpc.subscribe(name, codec=codec_name) as here:
        other.do(f"s = sync.attach({OURS!r}); t = sync.subscribe({name!r}, codec={codec_name!r}); t.__enter__()")
        await topic.publish({"of": [s["list"]]})
        other.do("t.get(5).value['of'][0].append('there')")
        (await here.get(5)).value["of"][0].append("here")
        assert s["list"] == [1, 2, "there", "here"]
        other.do("s.close()")
        await topic.publish(s["list"])
        with pytest.raises(RuntimeError, match=f"DecodeError: .*object of store '{OURS}' arrived"):
            other.do("t.get(5)")
        other.do("t.close()")


async def test_messages_of_a_store_are_copies(s: shmrpc.sync.Store) -> None:
    async with shmrpc.store(OURS) as same:
        same.inbox.put(s["list"])
        s["list"].append(3)
        assert await same.inbox.take() == [1, 2]


async def test_tasks_and_threads_use_what_has_arrived(s: shmrpc.sync.Store, client: shmrpc.Client) -> None:
    found = await client.item(OURS, "dict")

    async def add() -> None:
        for _ in range(100):
            async with s.transaction():
                found["a"] += 1
            await asyncio.sleep(0)

    def add_in_thread() -> None:
        for _ in range(100):
            shmrpc.atomic.add(found, "a", 1)

    await asyncio.gather(add(), add(), asyncio.to_thread(add_in_thread))
    assert s["dict"]["a"] == 301
