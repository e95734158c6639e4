"""``shmrpc queue``: items of other processes are listed, read and removed; errors have messages."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from click.testing import Result

import shmrpc
import shmrpc.sync
from shmrpc.cli import main
from tests.helpers.cli_runner import cli_runner
from tests.helpers.member_process import MemberProcess
from tests.helpers.prepared_python import PreparedPython

NAME = f"cli_queue{os.getpid()}"


def run(*arguments: str, stdin: str | None = None, of: str = "queue") -> Result:
    return cli_runner().invoke(main, [of, *arguments], input=stdin)


def lines(*arguments: str) -> list[Any]:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextlib.contextmanager
def _command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = ["-m", "shmrpc", "queue", *arguments]
    with PreparedPython(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def q() -> Iterator[shmrpc.sync.Queue]:
    with shmrpc.sync.queue(NAME) as opened:
        yield opened


def test_put_and_get_use_json(q: shmrpc.sync.Queue) -> None:
    assert run("put", NAME, '{"id": 1}', "2", '"text"').exit_code == 0
    assert run("put", NAME, stdin='[1, 2]\n\nnull\n"last"').exit_code == 0
    assert q.get_many() == [{"id": 1}, 2, "text", [1, 2], None, "last"]
    q.put_many([(1, 2), b"bytes", np.arange(3, dtype="u1")])
    assert lines("get", "-n", "3", NAME) == [[1, 2], "Ynl0ZXM=", {"dtype": "uint8", "shape": [3], "data": [0, 1, 2]}]
    q.task_done(6)
    assert q.stats().unfinished == 0, "what the command has got is dealt with"


def test_peek_takes_nothing_and_counts_no_delivery(q: shmrpc.sync.Queue) -> None:
    q.put_many(["back", {"id": 1}, "x" * 100_000, *range(3000)])
    claim = q.claim()
    claim.nack()
    first, second, large = lines("peek", "--json", "-n", "3", NAME)
    assert first == {
        "number": 0,
        "deliveries": 1,
        "size": first["size"],
        "is_large": False,
        "value": "back",
        "error": None,
    }
    assert (second["number"], second["value"], second["deliveries"]) == (1, {"id": 1}, 0)
    assert large["is_large"] and large["value"] is None and large["size"] > 100_000
    head, *rows, rest = run("peek", "-n", "3", NAME).stdout.splitlines()
    assert head.split() == ["NUMBER", "DELIVERIES", "BYTES", "VALUE"]
    assert rows[1].split(maxsplit=3)[3] == '{"id": 1}' and rest == "and 3,000 more"
    assert [each["value"] for each in lines("peek", "--json", "-n", "9", NAME)][3:] == [0, 1, 2, 3, 4, 5]
    again = q.claim()
    assert again.value == "back" and again.deliveries == 2
    assert q.claim().deliveries == 1


@pytest.mark.parametrize("sizes", [(10,), (9_000, 10), (20_000, 10, 15_000), (1, 200_000)], ids=str)
def test_peek_sees_the_items_that_are_got(q: shmrpc.sync.Queue, sizes: tuple[int, ...]) -> None:
    sent = [bytes([n % 251]) * sizes[n % len(sizes)] for n in range(60)]
    for each in sent:
        q.put(each)
    for _ in range(3):  # From anywhere within a chunk.
        seen = q.peek(100)
        assert [item.number for item in seen] == list(range(60 - len(sent), 60 - len(sent) + len(seen)))
        assert len(seen) == len(sent) or sum(len(item.value or b"") for item in seen) > 200_000
        for item, expected in zip(seen, sent, strict=False):
            assert item.value == (None if item.is_large else expected)
            assert item.is_large == (len(expected) > 16_000)
        got = q.get_many(7)
        assert got == sent[: len(got)]
        del sent[: len(got)]
    q.get_many(100)
    while not q.empty():
        q.get_many(100)
    assert q.peek() == []


def test_an_item_that_could_not_be_printed_comes_back(q: shmrpc.sync.Queue) -> None:
    with shmrpc.sync.queue(NAME, codec="pickle") as pickles:
        pickles.put(np.float32)
    done = run("get", NAME)
    assert done.exit_code == 4
    assert done.stderr.count("\n") == 1 and "item 0 cannot be read: " in done.stderr and "pickled" in done.stderr
    assert q.qsize() == 1 and q.claim().redelivered


def test_peek_shows_an_item_that_cannot_be_read_among_the_others(q: shmrpc.sync.Queue) -> None:
    with shmrpc.sync.queue(NAME, codec="pickle") as pickles:
        pickles.put_many([1, np.float32, 3])
    _, *rows = run("peek", NAME).stdout.splitlines()
    assert [each.split(maxsplit=3)[3] for each in (rows[0], rows[2])] == ["1", "3"]
    assert rows[1].split(maxsplit=3)[3].startswith("cannot be read: ") and "pickled" in rows[1]
    assert [each["error"] is None for each in lines("peek", "--json", NAME)] == [True, False, True]


def test_raw_bytes_are_base64() -> None:
    with shmrpc.sync.queue(NAME, raw=True) as q:
        q.put(b"abc")
        assert lines("get", NAME) == ["YWJj"]
        assert run("put", NAME, '"YWJj"').exit_code == 0
        assert q.get() == b"abc"
        for wrong in ("1", '"?"'):
            done = run("put", NAME, wrong)
            assert done.exit_code == 2 and "expected a text with base64" in done.stderr


def test_get_all_prints_the_waiting_items_and_waits_for_none(q: shmrpc.sync.Queue) -> None:
    q.put_many(range(5))
    with q.claim() as first:
        assert lines("get", "--all", NAME) == [1, 2, 3, 4]
        assert lines("get", "--all", NAME) == []
        assert first.value == 0
    q.join(timeout=60)
    for wrong in (["--count", "2"], ["--timeout", "1"]):
        done = run("get", "--all", *wrong, NAME)
        assert done.exit_code == 2 and "--all does not wait, and takes neither --count nor --timeout" in done.stderr


def test_purge_removes_what_waits_and_nothing_that_is_claimed(q: shmrpc.sync.Queue) -> None:
    q.put_many(range(1001))
    with q.claim():
        assert run("purge", NAME).stdout == "1,000 items removed\n"
        assert run("purge", NAME).stdout == "0 items removed\n"
    q.join(timeout=60)


def test_ls_shows_what_waits_and_who_has_it() -> None:
    assert "No process has a queue open" in run("ls").stdout
    with MemberProcess() as other:
        other.do(f"q = sync.queue({NAME!r}); q.put_many(range(1234)); claim = q.claim()")
        for command in ("queue", "ls"):
            rows = run("ls", of="queue").stdout if command == "queue" else cli_runner().invoke(main, ["ls"]).stdout
            [row] = [each.split(maxsplit=5) for each in rows.splitlines() if NAME in each]
            assert row[:3] == [NAME, "queue", "1,233"] and row[4:] == ["0", f"{other.pid} (1)"]
            assert 0 < int(row[3].replace(",", "")) < 16 << 20, "what it has, and not what it may have"
        [found] = json.loads(run("ls", "--json").stdout)
        assert found["depth"] == 1233 and found["members"][0]["pid"] == other.pid


def test_watch_ends_by_ctrl_c_and_with_the_last_of_the_others() -> None:
    for how in ("interrupt", "leave"):
        with MemberProcess() as other:
            other.do(f"q = sync.queue({NAME!r}); q.put_many(range(5))")
            with _command("watch", "--json", "--interval", "0.01", NAME) as command:
                assert command.stdout is not None
                assert json.loads(command.stdout.readline())["depth"] == 5
                if how == "interrupt":
                    command.send_signal(signal.SIGINT)
                else:
                    other.do("q.close()")
                _, said = command.communicate(timeout=60)
        assert "Traceback" not in said
        assert (command.returncode, "no other process" in said) == ((130, False) if how == "interrupt" else (0, True))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["get", "nobody.has.this"], 3, "no process has it open; 'shmrpc queue ls' lists"),
        (["get", "../x"], 2, "name"),
        (["get", "--timeout", "0", NAME], 5, "0 of 1 items came within 0 s"),
        (["get", "--timeout", "0.01", "-n", "2", NAME], 5, "0 of 2 items came within 0.01 s"),
        (["put", NAME, "1", "text"], 2, "text is not JSON"),
        (["put", "--timeout", "0", NAME, "1", "2", "3"], 5, "had no room"),
        (["put", NAME, "[" * 100_000], 2, "nested too deeply"),
        (["peek", "-n", "0", NAME], 2, "0 is not in the range"),
    ],
    ids=lambda each: str(each).replace(NAME, "NAME")[:30],
)
def test_wrong_arguments_have_an_error(arguments: list[str], code: int, words: str) -> None:
    with shmrpc.sync.queue(NAME, maxsize=2):
        done = run(*arguments)
    assert (done.exit_code, words in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_put_prints_the_number_of_items_before_an_error() -> None:
    with shmrpc.sync.queue(NAME, maxsize=2) as q:
        assert "2 of the items were put" in run("put", "--timeout", "0", NAME, "1", "2", "3").stderr
        assert q.get_many() == [1, 2]
        q.shutdown()
        done = run("put", NAME, "1")
        assert done.exit_code == 3 and "is shut down" in done.stderr
        assert run("get", NAME).exit_code == 3


def test_no_item_is_put_if_one_that_is_given_is_wrong(q: shmrpc.sync.Queue) -> None:
    done = run("put", NAME, "1", "wrong", "3")
    assert done.exit_code == 2 and "wrong is not JSON" in done.stderr and q.empty()
    assert "1 of the items were put" in run("put", NAME, stdin="1\nwrong\n3").stderr
    assert q.get_many_nowait() == [1]


def test_another_kind_of_name_is_named() -> None:
    with shmrpc.sync.Semaphore(NAME):
        done = run("peek", NAME)
    assert done.exit_code == 3 and "is open as semaphore, not as a queue" in done.stderr


def _run(command: str, *arguments: str) -> Result:
    return run(*arguments, of=command)


@pytest.mark.parametrize("command", [("ls",), ("queue", "ls")])
def test_ls_shows_the_names_that_are_asked_for(command: tuple[str, ...]) -> None:
    with shmrpc.sync.queue(f"{NAME}a") as first, shmrpc.sync.queue(f"{NAME}b"):
        first.put(1)
        shown = _run(*command, first.name)
        assert (shown.exit_code, f"{NAME}a" in shown.output, f"{NAME}b" in shown.output) == (0, True, False)
        shown = _run(*command, first.name, f"{NAME}b")
        assert f"{NAME}a" in shown.output and f"{NAME}b" in shown.output
        shown = _run(*command, "nowhere")
        assert (shown.exit_code, "'nowhere'" in shown.stderr) == (3, True)


def test_ls_of_one_kind_refuses_the_name_of_another() -> None:
    with shmrpc.sync.store(NAME), shmrpc.sync.queue(f"{NAME}q"):
        shown = _run("store", "ls", NAME)
        assert shown.exit_code == 0 and NAME in shown.output
        for kind, name in (("queue", NAME), ("topic", NAME), ("store", f"{NAME}q")):
            shown = _run(kind, "ls", name)
            assert shown.exit_code == 3 and f"not as a {kind}" in shown.stderr
