"""Several handles of a store in one process, and objects that are used longer than the handle they came from."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

import shmrpc
import shmrpc.sync
from tests.helpers import traces
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess

#: A name that no other run of these tests has.
OURS = f"storehandles{os.getpid()}"

USES: dict[str, Callable[[Any], Any]] = {
    "update": lambda d: d.update(a=1),
    "setdefault": lambda d: d.setdefault("a", 1),
    "popitem": lambda d: d.popitem(),
    "sort": lambda d: d["list"].sort(),
    "transaction": lambda d: shmrpc.atomic.update(d, "n", lambda n: n + 1),
    "compare_and_set": lambda d: shmrpc.atomic.compare_and_set(d, "n", 0, 1),
    "pickle": lambda d: pickle.loads(pickle.dumps(d))["n"],
}


def _object() -> Any:
    """Return an object of a store whose handle has no reference left."""
    s = shmrpc.sync.store(OURS)
    s["it"] = {"n": 0, "list": [2, 1]}
    found = s["it"]
    del s
    gc.collect()
    return found


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_an_object_outlives_its_handle(use: Callable[[Any], Any]) -> None:
    use(_object())


def test_an_object_without_a_handle_waits_for_changes(other: MemberProcess) -> None:
    it = _object()
    with pytest.raises(shmrpc.WaitTimeout):
        it.wait_changed(0)
    other.do(f"s = sync.attach({OURS!r})")
    thread = threading.Thread(target=it.wait_changed, args=(30,))
    thread.start()
    while thread.is_alive():
        other.do("s['it']['n'] += 1")
    other.do("s.close()")


async def test_an_object_without_a_handle_waits_for_changes_in_a_loop() -> None:
    it = _object()
    waits = asyncio.create_task(it.changed(30))
    while not waits.done():
        it["n"] += 1
        await asyncio.sleep(0)
    await waits


def test_the_last_object_leaves_the_store() -> None:
    it = _object()
    assert shmrpc.sync.store(OURS)["it"] == it
    gc.collect()
    del it
    gc.collect()
    with pytest.raises(shmrpc.WaitTimeout):
        shmrpc.sync.attach(OURS, 0)


@pytest.mark.parametrize("closed_first", [0, 1])
def test_objects_are_those_of_all_handles(closed_first: int) -> None:
    handles = [shmrpc.sync.store(OURS), shmrpc.sync.store(OURS)]
    handles[0]["it"] = {"n": 0, "list": [2, 1]}
    objects = [handle["it"] for handle in handles]
    sent = pickle.dumps(objects[0])
    handles[closed_first].close()
    for each in [*objects, pickle.loads(sent)]:
        for use in USES.values():
            each.update({"n": 0, "list": [2, 1]})
            use(each)
    with pytest.raises(shmrpc.LocalProtocolError, match="closed"):
        handles[closed_first]["it"]
    with pytest.raises(shmrpc.LocalProtocolError, match="closed"):
        handles[closed_first].keys()
    handles[1 - closed_first].close()
    for each in objects:
        with pytest.raises(shmrpc.LocalProtocolError, match="closed"):
            each.update(n=1)
    with pytest.raises(shmrpc.LocalProtocolError, match="does not have the store open: first call"):
        pickle.loads(sent)


def test_a_handle_without_references_does_not_keep_a_closed_store_open() -> None:
    shmrpc.sync.store(OURS)
    with shmrpc.sync.store(OURS) as s:
        s["it"] = [1]
        it = s["it"]
    with pytest.raises(shmrpc.LocalProtocolError, match="closed"):
        it.append(2)
    with shmrpc.sync.store(OURS) as s:
        assert len(s) == 0


async def test_a_wait_that_is_given_up_beside_a_transaction_does_not_keep_a_closed_store_open() -> None:
    def files() -> list[str]:
        return [file for file in traces.open_files() if f"{OURS}@" in file]

    async with shmrpc.store(OURS) as s:
        s["it"] = {}
        waiting = asyncio.create_task(s["it"].changed(30))
        await asyncio.sleep(0)
        async with s.transaction(30):
            waiting.cancel()
            await asyncio.wait([waiting])
        assert files()
    del s, waiting
    async with asyncio.timeout(30):
        while files():
            gc.collect()
            await asyncio.sleep(0.01)


def test_a_store_that_is_opened_again_is_another_one_for_old_objects() -> None:
    with shmrpc.sync.store(OURS) as s:
        s["it"] = [1]
        it = s["it"]
        sent = pickle.dumps(it)
    with shmrpc.sync.store(OURS) as s:
        with pytest.raises(shmrpc.LocalProtocolError, match="closed"):
            it.append(2)
        with pytest.raises(shmrpc.ObjectDeleted):
            pickle.loads(sent).append(2)


def test_if_one_handle_may_pickle_all_objects_may() -> None:
    with shmrpc.sync.store(OURS) as s, shmrpc.sync.store(OURS, pickle=True) as allowing:
        allowing["it"] = [threading.Barrier]
        assert s["it"][0] is threading.Barrier


def test_stopping_a_handle_ends_waits_for_objects_until_it_is_closed() -> None:
    with shmrpc.sync.store(OURS) as s, shmrpc.sync.store(OURS) as stopping:
        s["it"] = [1]
        ended: list[type] = []

        def wait() -> None:
            try:
                s["it"].wait_changed(30)
            except shmrpc.WaitStopped as error:
                ended.append(type(error))

        thread = threading.Thread(target=wait)
        thread.start()
        stopping.stop()
        thread.join()
        assert ended == [shmrpc.WaitStopped]
        with pytest.raises(shmrpc.WaitStopped):
            s["it"].wait_changed(30)
        stopping.resume()
        with pytest.raises(shmrpc.WaitTimeout):
            s["it"].wait_changed(0)
        stopping.stop()
        stopping.close()
        with pytest.raises(shmrpc.WaitTimeout):
            s["it"].wait_changed(0)


def test_a_forked_child_opens_the_store_anew() -> None:
    with shmrpc.sync.store(OURS) as s:
        s["n"] = 0
        child = os.fork()
        if not child:
            status = 1
            try:
                with shmrpc.sync.store(OURS) as again:
                    again.update(n=1)
                    pickle.loads(pickle.dumps(again._root)).update(m=1)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert s == {"n": 1, "m": 1}


def test_values_that_were_left_are_not_dropped_for_a_name_of_another_shape(other: MemberProcess) -> None:
    other.do(
        f"s = shmrpc.sync.store({OURS!r}, max_memory='1MiB'); s['kept'] = [1]\n"
        f"m = shmrpc.sync.memory({OURS + 'm'!r}, 100); m.buf[:] = b'x' * 100"
    )
    with host_to_oneself():  # Another test's clean-up would remove what the killed process left.
        other.kill()
        shapes: list[Callable[[], Any]] = [
            lambda: shmrpc.sync.store(OURS, max_memory="2MiB"),
            lambda: shmrpc.sync.store(OURS, max_memory="1MiB", single_writer=True),
            lambda: shmrpc.sync.Event(OURS),
            lambda: shmrpc.sync.queue(OURS),
            lambda: shmrpc.sync.memory(OURS, 1 << 20),
            lambda: shmrpc.sync.memory(f"{OURS}m", 200),
            lambda: shmrpc.sync.Lock(f"{OURS}m"),
        ]
        for shape in shapes:
            with pytest.raises(shmrpc.NameConflict, match=r"was left as a .* by processes that were killed"):
                shape()
        memory = shmrpc.sync.memory(f"{OURS}m", 100)
        with shmrpc.sync.store(OURS, max_memory="1MiB") as store:
            assert store.copy() == {"kept": [1]}
            assert bytes(memory.buf) == b"x" * 100
        memory.close()
        with shmrpc.sync.store(OURS, max_memory="2MiB") as store:
            assert store.copy() == {}, "the last one has closed it"
