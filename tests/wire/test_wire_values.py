"""Values, as in docs/wire.md: the extensions, their payloads, and their substitutes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgpack
import pytest

from shmrpc.values.all_extensions import ALL_EXTENSIONS
from shmrpc.values.encode_context import MAX_DEPTH
from tests.helpers.server_process import ServerProcess
from tests.helpers.wire_client import BYTES, CALL, FAILURE, MEMORYVIEW, RESULT, Parcel, WireClient, unpacked
from tests.helpers.wire_memory import PARCEL, here, parcel

SHARED_SERVER = True

#: Code and payload, as the page has them. What is received is sent again by the server, as the same bytes.
EXTENSIONS: list[tuple[int, Any]] = [
    (2, b"raw"),
    (3, b"raw"),
    (3, [b"\1\0\2\0", "h", [2]]),
    (3, [bytes(24), "i", [2, 3]]),
    (4, ["i", bytes(8)]),
    (5, ["<i2", [2], b"\1\0\2\0"]),
    (5, [">i2", [2], b"\0\1\0\2"]),
    (5, ["|i1", [3, 2], b"\0\1\2\3\4\5", [1, 3], 0]),
    (5, ["<f8", [], bytes(8)]),
    (5, ["<f8", [2, 0], b""]),
    (5, [{"fields": [["a", "<i4", 0], ["b", "<f4", 4]], "itemsize": 8}, [1], bytes(8)]),
    (5, [{"fields": [["a", {"base": "<i4", "shape": [2]}, 0]], "itemsize": 8}, [1], bytes(8)]),
    (6, ["<f4", bytes(4)]),
    (6, ["<M8[D]", bytes(8)]),
    (8, b"arrow"),
    (16, b"\1" + bytes(8)),
    (16, b"\xfe" + bytes(8)),
    (17, [1.0, -2.0]),
    (18, [1]),
    (18, []),
    (19, [None]),
    (20, [1, "two", [3]]),
    (20, [msgpack.ExtType(20, b"\x90")]),
    (21, [0, 10, 3]),
    (22, [None, 5, None]),
    (23, "2026-01-02"),
    (24, "03:04:05.000006"),
    (24, ["03:04:05", [7_200_000_000], 0]),
    (25, "2026-01-02T03:04:05.000006"),
    (25, ["2026-01-02T03:04:05", "Europe/Berlin", 0]),
    (25, ["2026-10-25T02:30:00", "Europe/Berlin", 1]),
    (25, ["2026-01-02T03:04:05", [-3_600_000_000, "X"], 0]),
    (26, [-1, 86_399, 5]),
    (27, [3_600_000_000]),
    (27, "Europe/Berlin"),
    (28, "1.10"),
    (28, "-Infinity"),
    (29, [1, 3]),
    (30, bytes(16)),
    (31, ["path", "/a/b"]),
    (31, ["windows", "C:\\a"]),
    (31, ["path", b"/\xff"]),
    (5, [{"record": {"fields": [["a", "<i4", 0]], "itemsize": 4}}, [1], bytes(4)]),
    (37, ["Counter", {"a": 1}]),
    (37, ["OrderedDict", {"a": [1], "b": 2}]),
    (37, ["defaultdict", {"a": 1}, None]),
    (37, ["defaultdict", {}, "list"]),
    (38, ["matrix", msgpack.ExtType(5, msgpack.packb(["<i2", [1, 1], b"\1\0"]))]),
    (100, ["of another program"]),
]


def echoed(wire: WireClient, value: Any) -> Any:
    """Return the reply of an endpoint without annotations to a value, with extensions as such."""
    wire.ask(CALL, "echo", [value])
    opcode, _, body = wire.receive()
    assert opcode == RESULT, unpacked(body)
    return msgpack.unpackb(body, strict_map_key=False)


def test_the_codes_and_payloads_are_the_documented_ones() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    values = page[page.index("## 10. Values") : page.index("## 11. Streams")]
    documented = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", values, re.MULTILINE)
    assert documented == sorted(
        ((str(each.code), each.payload) for each in ALL_EXTENSIONS), key=lambda row: int(row[0])
    )
    assert f"no deeper than {MAX_DEPTH}" in values


def test_every_extension_comes_back_as_it_was_sent(wire: WireClient) -> None:
    for code, content in EXTENSIONS:
        sent = msgpack.ExtType(code, msgpack.packb(content))
        assert echoed(wire, sent) == sent, (code, content)
        assert echoed(wire, {"nested": [sent, 1]}) == {"nested": [sent, 1]}


def test_a_datetime_in_utc_is_a_timestamp(wire: WireClient) -> None:
    for seconds, nanoseconds in ((0, 0), (1_767_323_045, 6000), (-1, 0), (1 << 34, 1000)):
        when = msgpack.Timestamp(seconds, nanoseconds)
        assert echoed(wire, when) == when


def test_plain_values_come_back_as_plain_ones(wire: WireClient) -> None:
    for value in (
        None,
        True,
        0,
        -(1 << 63),
        (1 << 64) - 1,
        1.5,
        "text",
        b"raw",
        [1, [2]],
        {"a": {1: None}},
        b"r" * 30_000,
    ):
        assert echoed(wire, value) == value


def test_data_is_bin_or_the_number_of_a_buffer(wire: WireClient) -> None:
    raw, small = bytes(range(256)) * 200, b"small"
    lines = [here(small), here(raw)]
    for code, content, back in (
        (BYTES, 1, raw),
        (BYTES, 0, small),
        (BYTES, small, small),
        (MEMORYVIEW, 1, raw),
        (MEMORYVIEW, [1, "I", [12_800]], raw),
    ):
        body = msgpack.packb([msgpack.ExtType(code, msgpack.packb(content))])
        result = wire.answer(wire.send(CALL | PARCEL | wire.number("echo") << 8, parcel(lines, body, small + raw)))
        assert result == back


@pytest.mark.parametrize(
    ("code", "before", "bound"),
    [(2, [], 32_768), (3, [], 32_768), (4, ["b"], 32_768), (5, ["|u1"], 4096), (8, [], 4096)],
)
def test_large_data_leaves_the_body(wire: WireClient, code: int, before: list[Any], bound: int) -> None:
    def content(size: int, data: Any) -> Any:
        shape = [[size]] if code == 5 else []
        return [*before, *shape, data] if before else data

    for size in (bound - 1, bound):
        wire.ask(CALL, "echo", [msgpack.ExtType(code, msgpack.packb(content(size, bytes(size))))])
        opcode, _, body = wire.receive()
        assert opcode == RESULT
        beside = size == bound
        # A body that is just small goes by reference as it is.
        assert (body.buffers if isinstance(body, Parcel) else []) == ([bytes(size)] if beside else [])
        data = 0 if beside else bytes(size)
        assert msgpack.unpackb(body) == msgpack.ExtType(code, msgpack.packb(content(size, data)))


def nested(depth: int) -> Any:
    """Return a tuple in a tuple, and so on."""
    value: Any = []
    for _ in range(depth):
        value = [msgpack.ExtType(20, msgpack.packb(value))]
    return value


def test_an_unreadable_value_fails_its_call_alone(wire: WireClient) -> None:
    for code, content in (
        (5, ["<i2", [3], b"\1\0\2\0"]),
        (5, ["|O", [1], bytes(8)]),
        (5, ["<i2", [1 << 60], b""]),
        (20, 5),
        (23, "2026-13-01"),
        (27, "../../etc/passwd"),
        (29, [1, 0]),
        (30, b"short"),
        (34, ["nobody.registered", 1]),
        (35, [b"\x80\x05N.", []]),
        (18, nested(MAX_DEPTH + 1)),
    ):
        wire.ask(CALL, "echo", [msgpack.ExtType(code, msgpack.packb(content))])
        opcode, _, body = wire.receive()
        assert opcode == FAILURE, (code, content)
        failure = unpacked(body)
        assert failure["kind"] == "arguments"
        if code == 35:
            assert "codec='pickle'" in failure["message"]
    assert wire.call("add", 1, 2) == 3
    deep = nested(MAX_DEPTH)[0]
    assert echoed(wire, deep) == deep


def test_unregistered_names_are_read_as_values_and_maps(wire: WireClient) -> None:
    enum = msgpack.ExtType(32, msgpack.packb(["nobody.Colour", "RED", "red"]))
    instance = msgpack.ExtType(33, msgpack.packb(["nobody.Point", {"x": 1, "y": 2}]))
    assert echoed(wire, [enum, instance]) == ["red", {"x": 1, "y": 2}]


def test_pickles_travel_if_both_sides_allow_them() -> None:
    pickled = msgpack.ExtType(35, msgpack.packb([b"\x80\x05N.", []]))
    with (
        ServerProcess("tests.helpers.services:service", "--codec", "pickle"),
        WireClient("tested", pickle=True) as wire,
    ):
        assert echoed(wire, pickled) is None


def test_plain_forms_stand_in_for_extensions_where_a_parameter_is_declared(wire: WireClient) -> None:
    plain: list[Any] = [
        *(1, 2, "text", b"raw", True, None, [1], [1, "x"], {"a": 1}, [1, 2], None, "a", "red"),
        *("2026-01-02T03:04:05Z", "1.10", "00000000-0000-0000-0000-000000000005", {"x": 1, "y": 2}, {"depth": 1}),
        *([1, "x"], {"item": "x"}),
    ]
    names = wire.call("kinds", *plain)
    assert names[7:8] + names[9:10] + names[12:16] == ["tuple", "set", "Colour", "datetime", "Decimal", "UUID"]
    of = {7: (20, [1, "x"]), 9: (18, [1, 2]), 14: (28, "1.10"), 15: (30, bytes(16)), 18: (20, [1, "x"])}
    for place, (code, content) in of.items():
        plain[place] = msgpack.ExtType(code, msgpack.packb(content))
    assert wire.call("kinds", *plain) == names
