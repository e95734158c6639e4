"""A member of a store stands still: those who read go on, others end at their deadlines and are told who it is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmrpc
import shmrpc.sync
from shmrpc.host import cleanup
from tests.helpers import crash_points, store_roles
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import eventually
from tests.helpers.stopped_processes import stands_still, stopped
from tests.helpers.time_bound import bounded

#: A name that no other run of these tests has.
OURS = f"storestopped{os.getpid()}"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    crash_points.require_core()
    with bounded():
        yield
    with host_to_oneself():
        cleanup.clean()


def test_a_process_that_is_stopped_within_a_transaction_is_named_and_readers_go_on(runtime: Path) -> None:
    with MemberProcess() as member, shmrpc.sync.store(OURS, patience=0.2) as store:
        store["n"] = 1
        member.do(f"s = sync.store({OURS!r}, patience=0.2); t = s.transaction(); t.__enter__(); s['n'] = 2")
        with stopped(member.pid):
            assert store["n"] == 1, "nobody waits to read"
            assert store.stats().holder == member.pid
            with pytest.raises(shmrpc.StoreBusy, match=str(member.pid)):
                store["n"] = 3
            with pytest.raises(shmrpc.WaitTimeout, match=str(member.pid)), store.transaction(0.1):
                pass
        member.do("t.__exit__(None, None, None); s.close()")
        assert store["n"] == 2


#: What a member is about to do when it stops: what it does passes the point with the lease of the store.
HOLDS = {
    "LeaseTaken": "adds",
    "OnlyWordStored": "adds",
    "LogWritten": "transfers",
    "LogCounted": "transfers",
    "LogWordStored": "transfers",
    "LogEnded": "transfers",
    "LogSettled": "transfers",
    "TransactionBegun": "transfers",
    "TransactionMarked": "transfers",
    "HeapGrown": "grows",
    "HeapFreed": "removes what is large",
    "HeapPunched": "removes what is large",
}
#: Where it stores what is committed, so that nobody can read meanwhile.
STORES = ("LogWordStored", "LogEnded")
#: The same, where it has not got the lease any more, and others go on.
LETS_GO = {
    "LeaseGivenBack": "adds",
    "StoreFounded": "adds",
    "StoreChanged": "puts messages",
    "TransactionEnded": "transfers",
    "MessageTaken": "takes messages",
    "BufferPinned": "looks at what is removed",
    "BufferUnpinned": "looks at what is removed",
    "WatchBegun": "waits",
    "WatchEnded": "waits",
}


@pytest.mark.parametrize(("point", "role"), [*HOLDS.items(), *LETS_GO.items()])
def test_who_is_stopped_at_a_point_of_a_store_is_named_and_goes_on(
    runtime: Path, tmp_path: Path, point: str, role: str
) -> None:
    plain = store_roles.Plain()
    with MemberProcess(points=True) as member, shmrpc.sync.store(OURS, patience=0.05) as store:
        for each in (store, plain):
            store_roles.begin(each)
        member.do("from tests.helpers import store_roles")
        member.begin(
            f"crash_points.stop_at_point({point!r}, 1); "
            f"store_roles.follow({OURS!r}, {role!r}, 3, {str(tmp_path / 'ledger')!r})"
        )
        assert eventually(lambda: stands_still(member.pid), 30)
        if point in HOLDS:
            with pytest.raises(shmrpc.StoreBusy, match=rf"process {member.pid} is in the middle of changing it"):
                store["ours"] = 1
            with (
                pytest.raises((shmrpc.StoreBusy, shmrpc.WaitTimeout), match=rf"process {member.pid} "),
                store.transaction(0.05),
            ):
                pass
        else:
            store["ours"] = 1
            del store["ours"]
        if point in STORES:
            with pytest.raises(shmrpc.StoreBusy, match=rf"process {member.pid} is in the middle of changing it"):
                store["text"]
        else:
            assert store["text"] == plain["text"], "nobody waits to read"
            assert store.stats().holder == (member.pid if point in HOLDS else None)
        member.signal(signal.SIGCONT)
        member.end()
        for _ in store_roles.play(plain, role, 3):
            pass
        assert store.copy() == plain
