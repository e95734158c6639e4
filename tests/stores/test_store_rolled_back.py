"""Objects of an undone transaction are ObjectDeleted for ever, in every process, and never become another object."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shmrpc
import shmrpc.sync
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import InThread
from tests.stores.shared_classes import Player, Slotted

OURS = f"rolledback{os.getpid()}"
LONG = 60.0
PROGRAMS = 12


@pytest.fixture(params=[False, True], ids=["all", "owner"])
def s(request: pytest.FixtureRequest) -> Iterator[shmrpc.sync.Store]:
    with shmrpc.sync.store(OURS, max_memory="1MiB", single_writer=request.param) as opened:
        yield opened


def is_gone(proxy: Any) -> bool:
    """Return True if the object can neither be read nor changed."""
    changes: list[Callable[[], object]] = [lambda: proxy.copy()]
    if hasattr(proxy, "append"):
        changes += [lambda: proxy.append(1), lambda: proxy.sort(), lambda: proxy.pop(), lambda: proxy[0]]
    elif hasattr(proxy, "setdefault"):
        changes += [lambda: proxy.update(a=1), lambda: proxy.popitem(), lambda: shmrpc.atomic.add(proxy, "a", 1)]
    elif hasattr(proxy, "discard"):
        changes += [lambda: proxy.add(1), lambda: 1 in proxy]
    else:
        changes += [lambda: setattr(proxy, "health", 1), lambda: proxy.health]
    gone = 0
    for change in changes:
        try:
            change()
        except shmrpc.ObjectDeleted:
            gone += 1
    assert gone in (0, len(changes)), "half of it is gone"
    return gone > 0


def _raise(*_: object) -> Any:
    raise ZeroDivisionError


def _fill(s: shmrpc.sync.Store) -> list[Any]:
    """Make containers of each kind, nested in others, and return them."""
    s["draft"] = {"a": [1, {"b": {1}}], "ada": Player("Ada")}
    draft = s["draft"]
    return [draft, draft["a"], draft["a"][1], draft["a"][1]["b"], draft["ada"], draft["ada"].items]


def _fill_and_raise(s: shmrpc.sync.Store, made: list[Any]) -> Any:
    made += _fill(s)
    raise ZeroDivisionError


def _fail_in_a_block(s: shmrpc.sync.Store, made: list[Any]) -> None:
    with s.transaction():
        made += _fill(s)
        raise ZeroDivisionError


def _fail_for_room(s: shmrpc.sync.Store, made: list[Any]) -> None:
    with s.transaction():
        made += _fill(s)
        s["large"] = bytes(2 << 20)


def _fail_in_update(s: shmrpc.sync.Store, made: list[Any]) -> None:
    s["n"] = 1
    shmrpc.atomic.update(s, "n", lambda _: _fill_and_raise(s, made))


def _fail_in_sort(s: shmrpc.sync.Store, made: list[Any]) -> None:
    s["list"] = [1, 2]
    s["list"].sort(key=lambda _: _fill_and_raise(s, made))


def _fail_in_a_part(s: shmrpc.sync.Store, made: list[Any]) -> None:
    with s.transaction():
        s["n"] = 1
        with contextlib.suppress(ZeroDivisionError):
            shmrpc.atomic.update(s, "n", lambda _: _fill_and_raise(s, made))
        assert all(map(is_gone, made)), "it is, as soon as the part has failed"


def _cancel(s: shmrpc.sync.Store, made: list[Any]) -> None:
    async def main() -> None:
        async def work() -> None:
            async with s.transaction():
                made.extend(_fill(s))
                await asyncio.sleep(LONG)

        task = asyncio.create_task(work())
        while not made:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())


def _time_out(s: shmrpc.sync.Store, made: list[Any]) -> None:
    async def main() -> None:
        async with asyncio.timeout(0.01), s.transaction():
            made.extend(_fill(s))
            await asyncio.sleep(LONG)

    asyncio.run(main())


def _load(s: shmrpc.sync.Store, made: list[Any]) -> None:
    path = Path(f"/tmp/{OURS}")
    try:
        s["saved"] = [{}, [1]] * 3
        s.save(path)
        with s.transaction():
            s.load(path)
            made += [s["saved"], s["saved"][0], s["saved"][1]]
            raise ZeroDivisionError
    finally:
        path.unlink(missing_ok=True)


ENDINGS = [_fail_in_a_block, _fail_for_room, _fail_in_update, _fail_in_sort, _fail_in_a_part, _cancel, _time_out, _load]


@pytest.mark.parametrize("end", ENDINGS)
def test_rolled_back_objects_are_gone_and_never_other_objects(
    s: shmrpc.sync.Store, end: Callable[[shmrpc.sync.Store, list[Any]], None]
) -> None:
    made: list[Any] = []
    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError, shmrpc.StoreFull, TimeoutError):
            end(s, made)
        assert made and all(map(is_gone, made))
        s.clear()
        for number in range(20):  # Of the same shape, in the same memory.
            s[str(number)] = {"a": [1, {"b": {1}}], "ada": Player("Ada")}
        before = s.copy()
        assert all(map(is_gone, made))
        assert s.copy() == before


def test_uncommitted_objects_are_gone_for_other_threads_tasks_and_processes(other: MemberProcess) -> None:
    queue_name = f"{OURS}q"
    with shmrpc.sync.store(OURS) as s, shmrpc.sync.queue(queue_name) as q:
        other.do(f"s = sync.attach({OURS!r}); q = sync.queue({queue_name!r})")
        look = "def look(each):\n try: return repr(each.copy())\n except shmrpc.ObjectDeleted: return 'ObjectDeleted'\n"
        other.do(f"import shmrpc\n{look}")
        s["there"] = Player("Ada")  # The class is known.
        sent = []
        for is_kept in (False, True):
            with contextlib.suppress(ZeroDivisionError), s.transaction():
                made = _fill(s)
                q.put_many(made)
                other.do("sent = [q.get(5) for _ in range(6)]")
                assert other.do("result = [look(each) for each in sent]") == ["ObjectDeleted"] * 6
                assert InThread(partial(_read_gone, made)).join() == [True] * 6
                assert all(each.copy() is not None for each in made)
                if not is_kept:
                    raise ZeroDivisionError
            sent += made
            seen = other.do("result = [look(each) for each in sent]")
            assert ("ObjectDeleted" in seen) is (seen == ["ObjectDeleted"] * 6) is not is_kept
        other.do("s.close(); q.close()")


def test_an_object_of_a_class_that_is_not_committed_is_not_sent() -> None:
    with shmrpc.sync.store(OURS) as s, shmrpc.sync.queue(f"{OURS}q") as q:
        with s.transaction():
            s["new"] = Slotted(1, 2)
            with pytest.raises(shmrpc.LocalProtocolError, match="cannot be sent within the transaction"):
                q.put(s["new"])
        q.put(s["new"])
        assert q.get(5) == s["new"]


@pytest.mark.parametrize("single_writer", [False, True])
def test_uncommitted_objects_of_a_dead_process_are_gone_for_all_receivers(single_writer: bool) -> None:
    name = f"{OURS}q"
    with MemberProcess() as keeper, shmrpc.sync.queue(name) as q:
        keeper.do(
            f"s = sync.store({OURS!r}, single_writer={single_writer}); s['it'] = 1; t = s.transaction(); t.__enter__()"
        )
        keeper.do("s['draft'] = [{'n': number} for number in range(100)]")
        keeper.do(f"q = sync.queue({name!r}); q.put([s['draft'], *s['draft']])")
        with shmrpc.sync.store(OURS, single_writer=single_writer) as s:
            sent = q.get(5)
            assert all(map(reads_gone, sent))
            keeper.kill()
            with shmrpc.sync.store(OURS, single_writer=single_writer) as again:
                assert again.is_writable
                for _ in range(3):
                    s["draft"] = [{"n": -number} for number in range(100)]
                    before = s.copy()
                    assert all(map(is_gone, sent))
                    assert s.copy() == before


def _read_gone(proxies: list[Any]) -> list[bool]:
    return [*map(reads_gone, proxies)]


def reads_gone(proxy: Any) -> bool:
    """Return True if the object cannot be read; another process holds the store."""
    with pytest.raises(shmrpc.ObjectDeleted):
        proxy.copy()
    return True


# --- programs by chance ---


class Program:
    """Operations by chance on a store and on plain values, and all the objects that it has ever had in hand."""

    def __init__(self, s: shmrpc.sync.Store, seed: int) -> None:
        self.s, self.dice = s, random.Random(seed)
        self.plain: dict[str, Any] = {"root": {}}
        s["root"] = {}
        self.ever: list[Any] = []
        self.serial = 0

    def any_value(self, depth: int = 2) -> Any:
        self.serial += 1
        kind = self.dice.randrange(5 if depth else 1)
        if kind < 2:
            return self.serial
        count = self.dice.randrange(4)
        if kind == 2:
            return [self.any_value(depth - 1) for _ in range(count)]
        if kind == 3:
            return {str(number): self.any_value(depth - 1) for number in range(count)}
        return {*range(self.serial, self.serial + count)}

    def pick(self) -> tuple[Any, Any]:
        """Return a container and its expected value."""
        shared, plain = self.s["root"], self.plain["root"]
        while self.dice.random() < 0.7 and len(plain):
            key: Any = self.dice.choice([*plain] if isinstance(plain, dict) else range(len(plain)))
            if not isinstance(plain[key], (list, dict)):
                break
            shared, plain = shared[key], plain[key]
            self.ever.append(shared)
        return shared, plain

    def change(self) -> None:
        shared, plain = self.pick()
        value = self.any_value()
        if isinstance(plain, dict):
            key = str(self.dice.randrange(6))
            match self.dice.randrange(5):
                case 0:
                    assert shared.pop(key, None) == plain.pop(key, None)
                case 1:
                    assert shared.setdefault(key, value) == plain.setdefault(key, copy.deepcopy(value))
                case 2 if len(plain) > 1:
                    one, other = self.dice.sample([*plain], 2)
                    shared[one], shared[other] = shared[other], shared[one]
                    plain[one], plain[other] = plain[other], plain[one]
                case 3:
                    self.fail(lambda: shared.update({key: value, "no": object()}))
                case _:
                    shared[key] = value
                    plain[key] = copy.deepcopy(value)
        else:
            match self.dice.randrange(6):
                case 0 if plain:
                    assert shared.pop() == plain.pop()
                case 1 if plain:
                    del shared[0]
                    del plain[0]
                case 2 if len(plain) > 1:
                    shared[0], shared[-1] = shared[-1], shared[0]
                    plain[0], plain[-1] = plain[-1], plain[0]
                case 3:
                    self.fail(lambda: shared.sort(key=_raise) if len(plain) else _raise())
                case 4:
                    kept = list(shared)
                    shared.clear()
                    shared.extend(reversed(kept))
                    plain.reverse()
                case _:
                    shared.append(value)
                    plain.append(copy.deepcopy(value))

    def fail(self, operate: Callable[[], object]) -> None:
        with pytest.raises((ZeroDivisionError, TypeError, shmrpc.EncodeError)):
            operate()

    def step(self) -> None:
        if self.dice.random() < 0.6:
            return self.change()
        before, is_kept = copy.deepcopy(self.plain), self.dice.random() < 0.5
        with contextlib.suppress(ZeroDivisionError), self.s.transaction():
            for _ in range(self.dice.randrange(8)):
                self.change()
            if not is_kept:
                raise ZeroDivisionError
        if not is_kept:
            self.plain = before
        return None

    def live(self) -> set[tuple[int, int]]:
        """Return the positions of the containers that exist."""
        places, left = set(), [self.s["root"]]
        while left:
            each = left.pop()
            places.add(each._place)
            items = each.values() if hasattr(each, "values") else each
            left += [item for item in items if hasattr(item, "_place") and not hasattr(item, "discard")]
        return places

    def check(self) -> None:
        assert self.s["root"] == self.plain["root"]
        live = self.live()
        for each in self.ever[-300:]:
            assert is_gone_quietly(each) is (each._place not in live)
        assert self.s["root"] == self.plain["root"]


def is_gone_quietly(proxy: Any) -> bool:
    """Return True if the object cannot be read; try a change then, which could hit another object."""
    try:
        proxy.copy()
    except shmrpc.ObjectDeleted:
        return is_gone(proxy)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_programs_with_transactions_do_what_they_do_with_plain_values(seed: int) -> None:
    with shmrpc.sync.store(OURS, single_writer=seed % 4 == 0) as s:
        program = Program(s, seed)
        for number in range(150):
            program.step()
            if number % 10 == 9:
                program.check()
