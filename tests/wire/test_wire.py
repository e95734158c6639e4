"""docs/wire.md is enough to write a client: the one in wire_client.py is made of it alone."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.helpers.server_process import ServerProcess, eventually
from tests.helpers.stopped_processes import PATIENCE, stopped
from tests.helpers.wire_client import (
    AWAKE,
    CALL,
    CALL_KEYWORDS,
    FAILURE,
    ON_BELL,
    ON_SEMAPHORE,
    READER_WAITS,
    RESULT,
    WRITER_WAITS,
    Control,
    Failed,
    Gone,
    WireClient,
    frame,
    signature,
)

SHARED_SERVER = True

pytestmark = pytest.mark.usefixtures("server")

#: docs/wire.md gives it in this form.
SIGNATURE = 0xFFAC68635141E007


def linked(welcome: dict[str, Any]) -> list[Path]:
    """Return the files of a connection that still have a name."""
    names = [welcome["segment"], *(f"sem.{name}" for name in welcome["semaphores"] or ())]
    return [path for path in (Path("/dev/shm") / name for name in names) if path.exists()]


@pytest.mark.own_server
def test_files_of_the_rendezvous_directory_are_private(runtime: Path, server: ServerProcess) -> None:
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert stat.S_IMODE((runtime / "tested.sock").stat().st_mode) == 0o600
    assert (runtime / "tested.lock").read_text() == f"{server.pid}\n"
    with open(runtime / "tested.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_names_of_a_segment_exist_for_the_handshake_alone() -> None:
    control = Control("tested")
    with control.socket:
        control.send("hello", version=5, max_frame=1 << 20)
        welcome, descriptors = control.expect("welcome")
        for descriptor in descriptors:
            os.close(descriptor)
        assert len(descriptors) == 2
        segment, to_server, to_client = linked(welcome)
        assert (to_server.suffix, to_client.suffix) == (".c2s", ".s2c")
        assert segment.name.startswith("shmrpc.tested.")
        assert len(segment.suffix.removeprefix(".")) == 32
        assert {stat.S_IMODE(path.stat().st_mode) for path in (segment, to_server, to_client)} == {0o600}
        with open(segment) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        control.send("confirm")
        assert eventually(lambda: linked(welcome) == [])


def test_only_who_sleeps_on_a_semaphore_gets_any() -> None:
    control = Control("tested")
    with control.socket:
        control.send("hello", version=5, max_frame=1 << 20, semaphores=False)
        welcome, descriptors = control.expect("welcome")
        for descriptor in descriptors:
            os.close(descriptor)
        assert welcome["semaphores"] is None
        (segment,) = linked(welcome)
        assert list(Path("/dev/shm").glob(f"sem.{segment.name}*")) == []


def test_a_client_that_calls_before_its_confirmation_is_read_is_answered() -> None:
    """For it the connection stands; by its first answer the names are gone."""
    for how in (ON_BELL, ON_SEMAPHORE):
        with WireClient("tested", how=how) as wire:
            assert wire.call("add", 1, 2) == 3
            assert linked(wire.welcome) == []


def test_a_client_that_sleeps_on_a_semaphore_it_did_not_request_is_not_woken(wire: WireClient) -> None:
    wire.into.set_flag(READER_WAITS, ON_SEMAPHORE)
    call = wire.request("add", 1, 2)
    assert eventually(lambda: wire.into.available() > 0)
    assert wire.answer(call) == 3
    assert wire.call("add", 2, 2) == 4


def test_the_handshake_says_who_serves_what(wire: WireClient, server: ServerProcess) -> None:
    assert wire.welcome["service"] == "tested"
    assert wire.welcome["pid"] == server.pid
    assert wire.welcome["capacity"] == 65_536
    assert wire.welcome["max_frame"] == 64 << 20
    assert {"add", "greet", "echo"} <= set(wire.welcome["endpoints"])


def test_the_signature_in_a_live_segment_is_the_documented_one(wire: WireClient) -> None:
    assert wire.header[4] == signature() == SIGNATURE
    assert f"0x{SIGNATURE:016x}" in (Path(__file__).parents[2] / "docs" / "wire.md").read_text()


def test_a_call(wire: WireClient) -> None:
    assert [wire.call("add", i, -1) for i in range(1000)] == list(range(-1, 999))


def test_a_call_with_keywords(wire: WireClient) -> None:
    assert wire.call("greet", "Ada", punctuation="?") == "Hello, Ada?"
    assert wire.call("greet", name="Ada") == "Hello, Ada!"


def test_arguments_that_do_not_fit(wire: WireClient) -> None:
    for arguments in ((1, "x"), (1,), (1, 2, 3)):
        with pytest.raises(Failed) as caught:
            wire.call("add", *arguments)
        assert set(caught.value.map) == {"kind", "message"}
        assert caught.value.map["kind"] == "arguments"
    assert wire.call("add", 1, 2) == 3


def test_an_endpoint_that_raises(wire: WireClient) -> None:
    with pytest.raises(Failed) as caught:
        wire.call("fail", "text")
    failure = caught.value.map
    assert failure.pop("traceback").rstrip().endswith("ValueError: text")
    assert failure == {
        "kind": "raised",
        "message": "text",
        "type_name": "builtins.ValueError",
        "base": "ValueError",
        "value": msgpack.packb({"args": ["text"]}),
    }
    with pytest.raises(Failed) as caught:
        wire.call("fail", "derived")
    assert caught.value.map["type_name"] == "tests.helpers.services.CustomValueError"
    assert caught.value.map["base"] == "ValueError"
    assert msgpack.unpackb(caught.value.map["value"]) == {"args": ["derived text"]}


def test_the_other_kinds_of_failure() -> None:
    with WireClient("tested", max_frame=2048) as wire:
        assert wire.welcome["max_frame"] == 2048
        kinds = {}
        for name, arguments in (("unencodable", []), ("zeros", [4096])):
            with pytest.raises(Failed) as caught:
                wire.call(name, *arguments)
            kinds[name] = caught.value.map["kind"]
        assert kinds == {"unencodable": "encode", "zeros": "size"}
        for kind in (FAILURE, CALL, CALL_KEYWORDS, 9):
            call_id = wire.send(kind | 0xFFFFFF << 8, msgpack.packb([]))
            opcode, answered, body = wire.receive()
            assert (opcode, answered) == (FAILURE, call_id)
            assert msgpack.unpackb(body)["kind"] == "endpoint"
        assert wire.call("add", 1, 2) == 3


@pytest.mark.parametrize("how", [ON_BELL, ON_SEMAPHORE])
def test_bodies_larger_than_the_ring_travel_in_pieces(how: int, server: ServerProcess) -> None:
    with WireClient("tested", how=how) as wire:
        for size in (65_508, 65_509, 300_000, 3_000_000):
            value = random.Random(size).randbytes(size)
            assert wire.call("echo", value) == value


@pytest.mark.parametrize("size", [*range(17), 32_740, 32_741, 32_742, 65_500])
def test_bodies_of_every_length_up_to_a_ring(wire: WireClient, size: int) -> None:
    for round_ in range(5):
        value = bytes([round_]) * size
        assert wire.call("echo", value) == value


def test_answers_come_in_any_order_with_the_ids_of_their_calls(wire: WireClient) -> None:
    delays, opcode = (0.6, 0.3, 0.0), CALL | wire.number("sleep") << 8
    calls = [number for number, _ in enumerate(delays, 1)]
    # All at once, so that their times begin together.
    frames = [frame(opcode, number, msgpack.packb([delay, delay])) for number, delay in zip(calls, delays, strict=True)]
    wire.out.put(memoryview(b"".join(frames)))
    wire.wake_server()
    answers = [wire.receive() for _ in calls]
    assert [call_id for _, call_id, _ in answers] == calls[::-1]
    assert [wire.read(opcode, body) for opcode, _, body in answers] == [0.0, 0.3, 0.6]


@pytest.mark.parametrize("how", [ON_BELL, ON_SEMAPHORE])
def test_an_answer_wakes_a_sleeper_once(how: int, server: ServerProcess) -> None:
    with WireClient("tested", how=how) as wire:
        # The server goes to sleep too, and has to be woken.
        assert eventually(lambda: wire.out.flag(READER_WAITS) == ON_BELL)
        before = wire.sleeps

        def sleeps() -> bool:
            return wire.sleeps > before

        def go_on_once_it_sleeps() -> None:
            eventually(sleeps, PATIENCE)
            os.kill(server.pid, signal.SIGCONT)

        with stopped(server.pid):
            thread = threading.Thread(target=go_on_once_it_sleeps)
            thread.start()
            assert wire.call("sleep", 0.3, "slept") == "slept"
            thread.join()
        # The client slept until the reply woke it: hints aside, this was one sleep.
        assert 1 <= wire.sleeps - before <= 3


def test_a_server_at_rest_has_announced_its_sleep(wire: WireClient) -> None:
    def flag() -> int:
        return wire.out.flag(READER_WAITS)

    assert wire.call("add", 1, 2) == 3
    assert eventually(lambda: flag() == ON_BELL)
    wire.call("add", 1, 2)
    assert eventually(lambda: flag() == ON_BELL)


def test_a_client_that_does_not_read_is_waited_for(wire: WireClient) -> None:
    calls = [wire.request("zeros", 20_000) for _ in range(20)]
    assert eventually(lambda: wire.into.flag(WRITER_WAITS) == ON_BELL)
    for call_id in calls:
        opcode, answered, body = wire.receive()
        assert answered == call_id
        assert wire.read(opcode, body) == bytes(20_000)


@pytest.mark.own_server
def test_status_instead_of_hello(wire: WireClient, server: ServerProcess) -> None:
    assert wire.call("add", 1, 2) == 3  # By then the server has read its confirmation.
    control = Control("tested")
    with control.socket:
        control.send("status")
        report, descriptors = control.expect("report")
        assert descriptors == []
        assert 0 < report.pop("uptime") < 600
        assert report == {
            "type": "report",
            "service": "tested",
            "pid": server.pid,
            "endpoints": wire.welcome["endpoints"],
            "connections": 1,
            "health": "serving",
            "workers": {},
        }
        with pytest.raises(Gone, match="None"):
            control.receive()


@pytest.mark.own_server
def test_goodbye_ends_a_connection_at_the_server(server: ServerProcess) -> None:
    def connections() -> int:
        control = Control("tested")
        with control.socket:
            control.send("status")
            return int(control.expect("report")[0]["connections"])

    with WireClient("tested") as wire:
        assert wire.call("add", 1, 2) == 3
        assert connections() == 1
    assert eventually(lambda: connections() == 0)


@pytest.mark.own_server
def test_a_server_that_stops_says_goodbye(wire: WireClient, server: ServerProcess) -> None:
    call_id = wire.request("add", 1, 2)
    assert eventually(lambda: wire.into.available() > 0)
    server.stop()
    assert wire.receive() == (RESULT, call_id, b"\x03"), "what was answered before is still good"
    with pytest.raises(Gone) as caught:
        wire.receive()
    assert caught.value.message == {
        "type": "goodbye",
        "reason": "the server stopped",
        "fault": False,
        "reached": call_id,
    }
    assert wire.was_asked_to_leave


@pytest.mark.own_server
def test_death_is_the_end_of_the_socket(wire: WireClient, server: ServerProcess) -> None:
    killer = threading.Timer(0.1, server.kill)
    wire.request("block", 600)
    killer.start()
    with pytest.raises(Gone) as caught:
        wire.receive()  # Which does not wait for as long as the call would take.
    killer.join()
    assert caught.value.message is None


@pytest.mark.parametrize(
    "packet",
    [
        msgpack.packb({"type": "hello", "version": 1, "max_frame": 1 << 20}),
        msgpack.packb({"type": "hello", "version": 5, "max_frame": 0}),
        msgpack.packb({"type": "hello", "version": 5}),
        msgpack.packb({"type": "hello", "version": 5, "max_frame": "1"}),
        msgpack.packb({"type": "confirm"}),
        msgpack.packb({"type": "unheard of"}),
        msgpack.packb(["hello"]),
        b"\xc1",
        msgpack.packb({"type": "status"}) + b"\0",
    ],
)
def test_a_bad_first_message_is_refused(packet: bytes) -> None:
    control = Control("tested")
    with control.socket:
        control.socket.send(packet)
        refuse, _ = control.expect("refuse")
        assert refuse["reason"]
        with pytest.raises(Gone, match="None"):
            control.receive()


def test_a_bad_second_message_ends_the_connection_and_leaves_nothing() -> None:
    control = Control("tested")
    with control.socket:
        control.send("hello", version=5, max_frame=1 << 20)
        welcome, descriptors = control.expect("welcome")
        for descriptor in descriptors:
            os.close(descriptor)
        control.send("hello", version=5, max_frame=1 << 20)
        goodbye, _ = control.expect("goodbye")
        assert goodbye["fault"] and "expected confirm, got hello" in goodbye["reason"]
        assert eventually(lambda: linked(welcome) == [])


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (msgpack.packb({"type": "status"}), "it sent 'status' on an established connection"),
        (msgpack.packb({"type": "goaway"}), "it sent 'goaway', which only a server may send"),
        (msgpack.packb({"type": "goodbye", "reason": 5}), "cannot be decoded"),
        (msgpack.packb({"type": "goodbye", "reason": "done", "reached": -1}), "cannot be decoded"),
        (b"\xc1", "cannot be decoded"),
        (b"", None),
    ],
)
def test_a_bad_message_after_the_handshake_ends_the_connection(
    wire: WireClient, packet: bytes, words: str | None
) -> None:
    wire.control.socket.send(packet)
    if words is not None:
        goodbye, _ = wire.control.expect("goodbye")
        assert goodbye["fault"] and words in goodbye["reason"]
    with pytest.raises(Gone, match="None"):
        wire.control.receive()


#: By message and field, what must not be there.
HELLO = {"version": 5, "max_frame": 1 << 20}
NO_NUMBERS: list[Any] = [None, True, "1", 1.5, float("nan"), [], {}, -1, -(2**63), 2**64 - 1]
HOSTILE: dict[str, list[Any]] = {
    "version": [*NO_NUMBERS, 0, 1, 2, 2**32],
    "max_frame": [*NO_NUMBERS, 0, 1023, 2**32 - 65_535, 2**32, 2**40],
    "max_memory": [*NO_NUMBERS, 0, 2**20 - 1, 2**42 + 1],
    "pickle": [None, 0, 1, "true", [], True],
}
HOSTILE_HELLOS = [{field: value} for field, values in HOSTILE.items() for value in values]


@pytest.mark.parametrize("lie", HOSTILE_HELLOS, ids=str)
def test_a_hello_out_of_bounds_is_refused(lie: dict[str, Any]) -> None:
    control = Control("tested")
    with control.socket:
        control.send("hello", **HELLO | lie)
        refuse, _ = control.expect("refuse")
        assert refuse["reason"] and not refuse.get("try_again")


@pytest.mark.parametrize(
    "limits", [{"max_frame": 1024, "max_memory": 2**20}, {"max_frame": 2**32 - 65_536, "max_memory": 2**42}]
)
def test_the_bounds_themselves_are_taken(limits: dict[str, int]) -> None:
    control = Control("tested")
    with control.socket:
        control.send("hello", **HELLO | limits)
        _, descriptors = control.expect("welcome")
        for descriptor in descriptors:
            os.close(descriptor)


def test_fields_that_a_reader_does_not_know_are_ignored() -> None:
    control = Control("tested")
    with control.socket:
        control.send("hello", version=5, max_frame=1 << 20, colour="green")
        _, descriptors = control.expect("welcome")
        for descriptor in descriptors:
            os.close(descriptor)


def tail_ahead(wire: WireClient) -> None:
    wire.out.announce_tail(wire.out.capacity + 8)


def tail_misaligned(wire: WireClient) -> None:
    wire.out.announce_tail(wire.out.tail + 4)


def head_ahead(wire: WireClient) -> None:
    """Announce a head beyond the tail, which the server reads when it needs room in the ring."""
    wire.into.announce_head(1 << 40)
    for _ in range(4):
        wire.request("zeros", 20_000)


def too_large(wire: WireClient) -> None:
    wire.out.put(memoryview(struct.pack("=QQ", wire.welcome["max_frame"] + 1 | CALL << 32, 1)))


def a_result(wire: WireClient) -> None:
    wire.send(RESULT, msgpack.packb(None))


@pytest.mark.parametrize("break_rule", [tail_ahead, tail_misaligned, head_ahead, too_large, a_result])
def test_a_client_that_breaks_the_rules_gets_a_goodbye_and_others_go_on(
    wire: WireClient, break_rule: Callable[[WireClient], None]
) -> None:
    with WireClient("tested") as other:
        break_rule(wire)
        wire.wake_server()
        goodbye, _ = wire.control.receive()
        assert goodbye["type"] == "goodbye"
        assert goodbye["fault"] is True
        assert other.call("add", 1, 2) == 3


def test_a_false_alarm_does_no_harm(wire: WireClient) -> None:
    for _ in range(20):
        wire.wake_server()
        assert wire.call("add", 1, 2) == 3
    assert wire.into.flag(READER_WAITS) == AWAKE


def test_a_limit_too_small_for_an_error_is_refused(server: ServerProcess) -> None:
    control = Control("tested")
    control.send("hello", version=5, max_frame=16)
    message, _ = control.receive()
    assert message["type"] == "refuse"
    assert "less than 1024" in message["reason"]
    control.socket.close()


def test_failures_fit_the_smallest_frame(server: ServerProcess) -> None:
    with WireClient("tested", max_frame=1024) as small:
        with pytest.raises(Failed):
            small.call("fail", "\U0001f600" * 200)
        assert small.call("add", 1, 2) == 3


def test_packets_that_are_no_text_are_refused(server: ServerProcess) -> None:
    control = Control("tested")
    control.socket.send(b"\x81\xa4type\xa1\xff")
    message, _ = control.receive()
    assert message["type"] == "refuse"
    control.socket.close()
