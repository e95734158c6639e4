"""A side dies, closes, forks or returns while memory is lent: memory in use stays, and nothing is left over."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import Any

import pytest

import shmrpc
from tests.helpers import array_service
from tests.helpers.array_service import address_of, extents_mapped, extents_open, memory_of, numbered, sum_of
from tests.helpers.host_names import nothing_is_left, ours_in_shm
from tests.helpers.loops import one_loop
from tests.helpers.server_process import Script, ServerProcess, eventually, eventually_in_loop

TARGET = "tests.helpers.array_service:service"

SIZE = 300_000
SUM = sum_of(numbered(1, SIZE))


def traces() -> tuple[int, int, int]:
    """Of connections in this process: descriptors, descriptors of extents, mappings of extents."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), extents_open(), extents_mapped()


def test_a_killed_client_leaves_its_memory_to_who_looks_at_it(sync_client: shmrpc.sync.Client) -> None:
    base, shm = tuple(sync_client.traces()), ours_in_shm()
    with Script("""
        import shmrpc, time
        from tests.helpers.array_service import numbered, sum_of
        with shmrpc.sync.connect("tested.large") as client:
            array = client.empty(300_000, "uint8")
            array[:] = numbered(1, 300_000)
            client.keep("in place", array)
            client.keep("part", array[1000:][::3])
            client.keep("ordinary", numbered(1, 300_000))
            held = [client.built(1, 300_000, "lent"), client.numbers(1, 300_000)]
            print(sum_of(array[1000:][::3]), *map(sum_of, held), flush=True)
            time.sleep(600)
    """) as dying:
        part, *sums = map(int, dying.line().split())
        assert sums == [SUM, SUM]
        _, descriptors, mappings = sync_client.traces()
        assert (descriptors, mappings) >= (2, 2), "its memory, and the server's for it"
        dying.kill()
    sync_client.echo_later(None, 0.05)
    for _ in range(20):  # The server allocates, and must not take what is still looked at.
        assert (sync_client.built(7, SIZE) == numbered(7, SIZE)).all()
    assert [sync_client.sum_of_kept(name) for name in ("in place", "ordinary", "lent")] == [SUM] * 3
    assert sync_client.sum_of_kept("part") == part
    back = sync_client.kept("in place")
    assert sum_of(back) == SUM, "and it can be sent on to others"
    del back
    sync_client.let_go()

    def is_all_gone() -> bool:  # But the server's own extent for this connection, as long as that is not idle.
        descriptors, *extents = sync_client.traces()
        return bool(max(extents) <= 1 and descriptors <= base[0] + 1)

    assert eventually(is_all_gone)
    assert nothing_is_left(shm)


@one_loop
@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_server_that_ends_leaves_its_memory_to_who_looks_at_it(how: str) -> None:
    before = traces()
    with ServerProcess(TARGET, "--grace", "0.05") as server:
        base = traces()
        client = await shmrpc.connect("tested.large")
        array = client.empty(SIZE, "uint8")
        array[:] = numbered(1, SIZE)
        await client.keep("in place", array)
        held: list[Any] = [await client.built(1, SIZE), await client.numbers(1, SIZE), await client.echo(array)]
        held += [held[0].reshape(300, 1000)[::7, ::3], memoryview(held[1])[500:]]
        parts = [sum_of(view) for view in held]
        assert parts[:3] == [SUM] * 3
        call = asyncio.create_task(client.echo_later(array, 600))
        await asyncio.sleep(0)
        assert await client.add(1, 2) == 3  # The call is under way, or a server that stops would refuse it.
        server.kill() if how == "kill" else await asyncio.to_thread(server.stop)
        with pytest.raises(shmrpc.ConnectionLost):
            await call
        with pytest.raises(shmrpc.ConnectionLost):
            await client.echo(array)
        with pytest.raises(shmrpc.ConnectionLost):
            client.empty(SIZE)
    del call
    with ServerProcess(TARGET):
        async with shmrpc.connect("tested.large") as again:
            for seed in range(20):
                assert sum_of(await again.echo(numbered(seed, SIZE))) == sum_of(numbered(seed, SIZE))
            assert [sum_of(view) for view in held] == parts
            back = await again.echo(array)
            assert sum_of(back) == SUM and address_of(back) != address_of(array)
            assert sum_of(await again.echo(held[0])) == SUM
            del back
    assert [sum_of(view) for view in held] == parts
    array[:] = 9
    assert (held[2] == 9).all(), "an array of ours that came back is still the same memory"
    assert extents_mapped() >= before[2] + 2
    held.clear()
    del array
    await client.close()
    gc.collect()

    def is_all_gone() -> bool:
        descriptors, *extents = traces()
        return descriptors <= base[0] and tuple(extents) == before[1:]

    assert await eventually_in_loop(is_all_gone), "no memory is left"


@one_loop
async def test_a_client_that_reconnects_sends_what_was_built_before_as_an_ordinary_array() -> None:
    with ServerProcess(TARGET) as first:
        client = await shmrpc.connect("tested.large", reconnect=True, timeout=20)
        array = client.empty(SIZE, "uint8")
        array[:] = numbered(1, SIZE)
        received = await client.built(1, SIZE)
        back = await client.echo(array)
        assert address_of(back) == address_of(array)
        first.kill()
    await asyncio.sleep(0.05)
    with ServerProcess(TARGET) as second:
        again = await client.echo([array, received, back[::2]])
        assert [sum_of(view) for view in again] == [SUM, SUM, sum_of(back[::2])]
        addresses = {address_of(view) for view in (array, received, back)}
        assert not addresses & {address_of(view) for view in again}
        assert await client.pid() == second.pid
        anew = client.empty(SIZE, "uint8")
        anew[:] = numbered(2, SIZE)
        await client.keep("view", array)
        array[:] = 0
        assert await client.sum_of_kept("view") == SUM, "it was copied"
        assert address_of(await client.echo(anew)) == address_of(anew)
        assert sum_of(received) == SUM
    await client.close()


async def test_a_client_closes_while_it_looks_at_memory(server: ServerProcess) -> None:
    async with shmrpc.connect(server.name) as other:
        await other.echo(None)
        base, ours = await other.traces(), traces()
        client = await shmrpc.connect(server.name)
        array = client.empty(SIZE, "uint8")
        array[:] = numbered(1, SIZE)
        await client.keep("in place", array)
        held = [await client.built(1, SIZE, "lent"), await client.echo(array), await client.built(1, SIZE)]
        lease = shmrpc.leased(held[2])
        await client.close()
        lease.release()
        with pytest.raises(shmrpc.ConnectionLost, match="closed"):
            client.empty(5)
        for seed in range(20):
            assert sum_of(await other.built(seed, SIZE)) == sum_of(numbered(seed, SIZE))
        assert [sum_of(view) for view in held[:2]] == [SUM] * 2
        assert await other.sum_of_kept("in place") == SUM
        assert await other.sum_of_kept("lent") == SUM
        assert sum_of(await other.echo(held[0])) == SUM
        array[0] += 1
        assert held[1][0] == array[0]
        await other.let_go()
        for _ in range(500):  # The server learns of the end later, and a clean-up holds the memory for a moment.
            descriptors, *extents = await other.traces()
            if descriptors <= base[0] + 2 and max(extents) <= 2:
                break
            await other.echo_later(None, 0.01)
        assert descriptors <= base[0] + 2 and max(extents) <= 2, "both sides' extents of the other connection"
        del array, held, lease

        def is_let_go() -> bool:
            return all(now <= before + 2 for now, before in zip(traces()[1:], ours[1:], strict=True))

        assert await eventually_in_loop(is_let_go)
    assert await eventually_in_loop(lambda: traces()[1:] == ours[1:])


@one_loop
async def test_a_server_in_this_process_closes_while_its_memory_is_in_use() -> None:
    before = traces()
    async with shmrpc.serve(array_service.service):
        client = await shmrpc.connect("tested.large")
        held = [await client.built(1, SIZE, "lent"), await client.echo(numbered(1, SIZE))]
        assert await client.sum_of_kept("lent") == SUM
    assert [sum_of(view) for view in held] == [SUM] * 2
    assert sum_of(array_service._kept["lent"]) == SUM
    with pytest.raises(shmrpc.ConnectionLost):
        await client.echo(held[0])
    await client.close()
    array_service._kept.clear()
    assert [sum_of(view) for view in held] == [SUM] * 2
    held.clear()
    assert await eventually_in_loop(lambda: traces()[1:] == before[1:])


def test_a_forked_child_lets_go_of_memory_and_the_parent_keeps_it(sync_client: shmrpc.sync.Client) -> None:
    with Script("""
        import gc, os, shmrpc
        from tests.helpers.array_service import address_of, memory_of, numbered, sum_of
        with shmrpc.sync.connect("tested.large") as client:
            array = client.empty(300_000, "uint8")
            array[:] = numbered(1, 300_000)
            client.keep("in place", array)
            held = [client.built(1, 300_000, "lent"), client.numbers(1, 300_000), client.echo(array)]
            views = [view[10:] for view in held]
            used = memory_of(client), client.memory()
            pid = os.fork()
            if pid == 0:
                assert [sum_of(view) for view in held] == [sum_of(array)] * 3
                try:
                    client.empty(10)
                except shmrpc.LocalProtocolError:
                    pass
                else:
                    os._exit(3)
                shmrpc.leased(held[0]).release()
                del held, views, array, client
                gc.collect()
                with shmrpc.sync.connect("tested.large") as mine:
                    array = mine.empty(300_000, "uint8")
                    array[:] = numbered(3, 300_000)
                    assert address_of(mine.echo(array)) == address_of(array)
                    assert (mine.built(4, 300_000) == numbered(4, 300_000)).all()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert (memory_of(client), client.memory()) == used, "nothing was given back"
            for seed in range(20):
                assert (client.built(seed, 300_000) == numbered(seed, 300_000)).all()
                another = client.empty(300_000, "uint8")
                another[:] = 5
                assert client.checksum(another) == sum_of(another)
            assert [sum_of(view) for view in held] == [sum_of(numbered(1, 300_000))] * 3
            assert client.sum_of_kept("in place") == sum_of(array)
            assert address_of(client.echo(array)) == address_of(array)
            print("well", flush=True)
    """) as forking:
        assert forking.line() == "well"
        assert forking.process.wait(60) == 0


def test_a_forked_child_keeps_memory_that_the_parent_lets_go_of(sync_client: shmrpc.sync.Client) -> None:
    """The memory may show anything after the parent has returned it; but reading it does no harm, nor does exiting."""
    with Script("""
        import os, shmrpc
        from tests.helpers.array_service import numbered
        with shmrpc.sync.connect("tested.large") as client:
            held = client.built(1, 300_000)
            array = client.empty(300_000, "uint8")
            pid = os.fork()
            if pid == 0:
                import time
                time.sleep(0.2)
                held.sum(), array.sum()
                array[:] = 1
                raise SystemExit(7)
            del held
            while client.memory()[1]:
                client.echo_later(None, 0.01)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert (client.built(2, 300_000) == numbered(2, 300_000)).all()
            print("well", flush=True)
    """) as forking:
        assert forking.line() == "well"
    assert sync_client.add(1, 2) == 3


def test_memory_is_free_once_the_other_side_is_gone(sync_client: shmrpc.sync.Client) -> None:
    """Loans end with the process that holds them: the extents of its connection are freed."""
    base = sync_client.traces()
    for _ in range(3):
        with Script("""
            import shmrpc, time
            with shmrpc.sync.connect("tested.large") as client:
                held = [client.built(seed, 5_000_000) for seed in range(5)]
                print(client.memory()[1], flush=True)
                time.sleep(600)
        """) as dying:
            assert int(dying.line()) >= 25_000_000
            assert sync_client.traces()[2] > base[2]
            dying.kill()
        assert eventually(lambda: sync_client.traces() == base, 30)
    assert memory_of(sync_client) == (0, 0)


def test_nothing_is_left_of_a_closed_client_without_a_loop(server: ServerProcess) -> None:
    before = traces()
    client = shmrpc.sync.connect(server.name)
    with client:
        assert sum_of(client.numbers(1, SIZE)) == SUM
        assert sum_of(client.echo(numbered(1, SIZE))) == SUM
    assert eventually(lambda: traces() == before), "though the client itself is still there"
