"""``shmrpc topic``: messages of other processes are listed, counted and printed; errors have messages."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from click.testing import Result

import shmrpc
from shmrpc.cli import main
from tests.helpers.cli_runner import cli_runner
from tests.helpers.host_names import host_to_oneself
from tests.helpers.member_process import MemberProcess
from tests.helpers.server_process import eventually
from tests.helpers.time_bound import bounded

LONG = 60.0
NAME = f"cli_topic{os.getpid()}"


def run(*arguments: str, stdin: str | None = None) -> Result:
    return cli_runner().invoke(main, ["topic", *arguments], input=stdin)


@contextlib.contextmanager
def _command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "shmrpc", "topic", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    with bounded(60):
        return json.loads(process.stdout.readline())


@pytest.fixture
def t() -> Iterator[shmrpc.sync.Topic]:
    with shmrpc.sync.topic(NAME, high_watermark=64) as opened:
        yield opened


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Subscription]:
    with shmrpc.sync.subscribe(NAME) as opened:
        yield opened


def test_ls_shows_who_publishes_and_how_far_each_subscriber_has_read() -> None:
    assert "No process has a topic open" in run("ls").stdout
    with MemberProcess() as other, MemberProcess() as second:
        other.do(f"t = sync.topic({NAME!r})")
        second.do(f"last = sync.subscribe({NAME!r}, slow_policy=shmrpc.KeepLast(3)); all = sync.subscribe({NAME!r})")
        other.do("t.publish_many(range(1000)); t.publish_many(range(24))")
        second.do("all.get_many(24); last.get()")
        head, *rows = (line.split() for line in run("ls").stdout.splitlines())
        assert head == ["NAME", "MEMBER", "ROLE", "POLICY", "MESSAGES", "BEHIND", "MISSED", "KEPT"]
        assert rows[0] == [NAME, str(other.pid), "publishes", "-", "1,024", "-", "-", "-"]
        assert sorted(rows[1:]) == [
            [NAME, str(second.pid), "subscribes", "KeepLast(3)", "-", "2", "1,021", "0"],
            [NAME, str(second.pid), "subscribes", "block", "-", "1,000", "0", "0"],
        ]
        [found] = json.loads(run("ls", "--json").stdout)
        [publishes] = found["publishers"]
        assert (publishes["pid"], publishes["messages"]) == (other.pid, 1024)
        assert 1024 < publishes["bytes"] < 5 * 1024
        assert {(each["policy"], each["lag"], each["lost"]) for each in found["subscribers"]} == {
            ("block", 1000, 0),
            ("keep_last", 2, 1021),
        }
        assert {each["pid"] for each in found["members"]} == {other.pid, second.pid}, "who looks is none of them"
        size = found["size"]
        other.do("t.publish(b'x' * 3_000_000)")
        [found] = json.loads(run("ls", "--json").stdout)
        assert found["size"] >= size + 3_000_000, "what publishers hold is memory of the topic"
        lines = cli_runner().invoke(main, ["ls"]).stdout.splitlines()
        [row] = [line.split(maxsplit=5) for line in lines if NAME in line]
        assert row[:3] == [NAME, "topic", "-"] and set(row[5].split(", ")) == {str(other.pid), str(second.pid)}


def test_a_topic_of_the_same_process_looks_the_same(t: shmrpc.sync.Topic, s: shmrpc.sync.Subscription) -> None:
    t.publish_many(range(3))
    head, publishes, subscribes = (line.split() for line in run("ls").stdout.splitlines())
    assert publishes == [NAME, str(os.getpid()), "publishes", "-", "3", "-", "-", "-"]
    assert subscribes == [NAME, str(os.getpid()), "subscribes", "block", "-", "3", "0", "0"]
    assert len(head) == len(publishes)
    assert t.subscribers() == [shmrpc.Subscriber(os.getpid(), 3, 0, "block", 0)]


def test_ls_of_a_name_shows_that_one_alone(t: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.topic(f"{NAME}.other"):
        assert {line.split()[0] for line in run("ls", NAME).stdout.splitlines()[1:]} == {NAME}
        assert [each["name"] for each in json.loads(run("ls", "--json", NAME).stdout)] == [NAME]
        both = run("ls", NAME, f"{NAME}.other", NAME).stdout.splitlines()[1:]
        assert [line.split()[0] for line in both] == [NAME, f"{NAME}.other"]
    done = run("ls", f"{NAME}.other")
    assert done.exit_code == 3 and "no process has it open" in done.stderr


def test_publish_reads_json(s: shmrpc.sync.Subscription) -> None:
    assert run("publish", NAME, '{"id": 1}', "2", '"text"').exit_code == 0
    assert [m.value for m in s.get_many()] == [{"id": 1}, 2, "text"]
    assert run("publish", NAME, stdin='[1, 2]\n\nnull\n"last"').exit_code == 0
    assert [m.value for m in s.get_many()] == [[1, 2], None, "last"]


def test_publish_without_subscribers_prints_a_note() -> None:
    with shmrpc.sync.topic(NAME):
        done = run("publish", NAME, "1")
    assert (done.exit_code, "no subscribers" in done.stderr) == (0, True)


def test_watch_prints_messages_as_json_lines_of_each_publisher(t: shmrpc.sync.Topic) -> None:
    with _command("watch", NAME) as command, MemberProcess() as other:
        other.do(f"t = sync.topic({NAME!r})")
        assert eventually(lambda: len(t.subscribers()) == 1)
        other.do("t.__enter__(); t.publish({'from': 'other'})")
        assert _line(command) == {"publisher": other.pid, "seq": 0, "value": {"from": "other"}}
        t.publish_many([b"bytes", np.arange(3, dtype="u1")])
        assert _line(command) == {"publisher": os.getpid(), "seq": 0, "value": "Ynl0ZXM="}
        assert _line(command)["value"] == {"dtype": "uint8", "shape": [3], "data": [0, 1, 2]}


def test_watch_slows_no_publisher_and_prints_the_number_of_missed_messages(t: shmrpc.sync.Topic) -> None:
    with _command("watch", NAME) as command:
        assert eventually(lambda: len(t.subscribers()) == 1)
        command.send_signal(signal.SIGSTOP)
        for _ in range(50):
            t.publish_many_nowait(range(100))
        command.send_signal(signal.SIGCONT)
        assert command.stdout is not None
        numbers = [_line(command)["seq"]]
        while numbers[-1] < 4999:
            numbers.append(_line(command)["seq"])
        t.close()
        _, said = command.communicate(timeout=LONG)
    assert numbers == sorted(set(numbers))
    missed = 5000 - len(numbers)
    assert missed > 3000
    told = [int(line.split()[0].replace(",", "")) for line in said.splitlines() if line.endswith(" missed")]
    assert sum(told) == missed


def test_watch_goes_on_after_a_message_that_it_cannot_read(t: shmrpc.sync.Topic) -> None:
    with shmrpc.sync.topic(NAME, high_watermark=64, codec="pickle") as pickles, _command("watch", NAME) as command:
        assert eventually(lambda: len(t.subscribers()) == 1)
        pickles.publish_many([1, np.float32, 3])
        assert [_line(command)["value"] for _ in range(2)] == [1, 3]
        t.close()
        pickles.close()
        _, said = command.communicate(timeout=LONG)
    assert "message 1 cannot be read: " in said and "Traceback" not in said


@pytest.mark.parametrize("option", [[], ["--rate"]], ids=["messages", "rates"])
@pytest.mark.parametrize("how", ["interrupt", "leave"])
def test_watch_ends_by_ctrl_c_and_with_the_last_of_the_others(how: str, option: list[str]) -> None:
    with MemberProcess() as other:
        other.do(f"t = sync.topic({NAME!r}); s = sync.subscribe({NAME!r}, history='oldest')")
        with _command("watch", *option, NAME) as command:
            if option:
                assert command.stdout is not None
                assert command.stdout.readline().split() == ["PUBLISHER", "MESSAGES/S", "BYTES/S", "MESSAGES"]
            else:
                assert eventually(lambda: other.do("result = len(t.subscribers())") == 2)
            if how == "interrupt":
                command.send_signal(signal.SIGINT)
            else:
                other.do("t.close(); s.close()")
            _, said = command.communicate(timeout=LONG)
    assert "Traceback" not in said
    ended = command.returncode, "no other process" in said
    assert ended == ((130, False) if how == "interrupt" else (0, True)), said


def test_watch_ends_when_its_reader_does(t: shmrpc.sync.Topic) -> None:
    with _command("watch", NAME) as command:
        assert eventually(lambda: len(t.subscribers()) == 1)
        assert command.stdout is not None
        command.stdout.close()
        while command.poll() is None:
            t.publish_many_nowait(range(10))
        assert command.stderr is not None
        assert "Traceback" not in command.stderr.read()


def test_rates_are_those_of_the_publishers_and_no_subscriber_is_needed(t: shmrpc.sync.Topic) -> None:
    with _command("watch", "--rate", NAME) as command:
        assert command.stdout is not None
        command.stdout.readline()
        rows = [command.stdout.readline().split()]
        t.publish_many([b"x" * 1000] * 50)
        while rows[-1][1:] != ["0", "0", "50"]:
            rows.append(command.stdout.readline().split())
        assert t.subscribers() == []
    assert {row[0] for row in rows} == {str(os.getpid())}
    [news] = [row for row in rows if row[1] != "0"]
    messages, size = (float(each.replace(",", "")) for each in news[1:3])
    assert 900 < size / messages < 1100, "the bytes of 50 messages of 1,000"


def test_raw_bytes_are_base64() -> None:
    with shmrpc.sync.subscribe(NAME, raw=True) as s:
        assert run("publish", NAME, '"YWJj"').exit_code == 0
        assert s.get().value == b"abc"
        for wrong in ("1", '"?"'):
            done = run("publish", NAME, wrong)
            assert done.exit_code == 2 and "the topic has raw bytes; expected a text with base64" in done.stderr
        with shmrpc.sync.topic(NAME, raw=True) as t, _command("watch", NAME) as command:
            assert eventually(lambda: len(t.subscribers()) == 2)
            t.publish(b"abc")
            assert _line(command)["value"] == "YWJj"


def test_a_full_topic_names_the_slowest(s: shmrpc.sync.Subscription) -> None:
    done = run("publish", "--timeout", "0", NAME, stdin="\n".join(map(str, range(2000))))
    assert done.exit_code == 5
    assert "1024 of the messages were published" in done.stderr
    assert "this process is 1024 messages behind" in done.stderr
    assert [m.value for m in s.get_many(5000)] == list(range(1024))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["watch", "nobody.has.this"], 3, "no process has it open; 'shmrpc topic ls' lists"),
        (["watch", "--rate", "nobody.has.this"], 3, "no process has it open"),
        (["publish", "nobody.has.this", "1"], 3, "no process has it open"),
        (["watch", "../x"], 2, "name"),
        (["publish", NAME, "1", "text"], 2, "text is not JSON"),
        (["publish", NAME, "[" * 100_000], 2, "nested too deeply"),
        (["publish", NAME, f'"{"x" * (65 << 20)}"'], 2, "for which max_memory="),
    ],
    ids=lambda each: str(each).replace(NAME, "NAME")[:30],
)
def test_wrong_arguments_have_an_error(
    s: shmrpc.sync.Subscription, arguments: list[str], code: int, words: str
) -> None:
    done = run(*arguments)
    assert (done.exit_code, words in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    assert s.get_nowait() is None, "no message is published if one that is given is wrong"


def test_another_kind_of_name_is_named() -> None:
    with shmrpc.sync.queue(NAME):
        done = run("watch", NAME)
        assert done.exit_code == 3
        assert f"is open as queue, not as a topic: see 'shmrpc queue peek {NAME}'" in done.stderr
        assert NAME not in run("ls").stdout
    with shmrpc.sync.topic(NAME):
        assert "No process has a queue open" in cli_runner().invoke(main, ["queue", "ls"]).stdout
        said = cli_runner().invoke(main, ["queue", "peek", NAME]).stderr
        assert f"is open as topic, not as a queue: see 'shmrpc topic watch {NAME}'" in said
    with shmrpc.sync.Lock(NAME):
        for command in (["topic", "watch"], ["queue", "peek"]):
            assert "is open as lock, not as a" in (said := cli_runner().invoke(main, [*command, NAME]).stderr)
            assert "see 'shmrpc ls'" in said


def test_leftovers_of_a_topic_are_cleaned_up() -> None:
    with host_to_oneself():
        with MemberProcess() as other:
            other.do(f"t = sync.topic({NAME!r}); s = sync.subscribe({NAME!r}); t.publish(b'x' * 100_000)")
            other.kill()
        assert "No process has a topic open" in run("ls").stdout
        done = cli_runner().invoke(main, ["cleanup", "--json"])
        assert any(f"shmrpc.{NAME}@topic." in each["path"] and each["removed"] for each in json.loads(done.stdout))
        assert not any(NAME in each for each in os.listdir("/dev/shm"))
