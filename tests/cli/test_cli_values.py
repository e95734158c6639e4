"""``shmrpc call`` with every kind of argument, of result and of end."""

from __future__ import annotations

import array
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from click.testing import Result

from shmrpc.cli.commands import main
from shmrpc.cli.values import to_text
from tests.cli.value_service import VALUES
from tests.helpers.cli_runner import cli_runner
from tests.helpers.server_process import PATIENCE, eventually, timeouts

SHARED_SERVER = True
TARGET = "tests.cli.value_service:service"

pytestmark = pytest.mark.usefixtures("server")


def call(*arguments: str, given: str | bytes | None = None) -> Result:
    """Run ``shmrpc call``, and return its result; check that no exception escapes."""
    done = cli_runner().invoke(main, ["call", *arguments], input=given)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def printed(*arguments: str, given: str | bytes | None = None) -> str:
    done = call(*arguments, given=given)
    assert done.exit_code == 0, done.output
    return done.stdout


#: For people in one line, and as JSON.
SHOWN: dict[str, tuple[str, object]] = {
    "none": ("null", None),
    "bool": ("true", True),
    "int": ("1180591620717411303424", 2**70),
    "float": ("1.5", 1.5),
    "nan": ("NaN", "NaN"),
    "minus infinity": ("-Infinity", "-Infinity"),
    "text": (r'"ä→\"\n"', 'ä→"\n'),
    "escape": (r'"\u001b[31m\u009b"', "\x1b[31m\x9b"),
    "bytes": (r"b'\x00ab'", "AGFi"),
    "bytearray": ("b'x'", "eA=="),
    "list": ("[1, [], {}]", [1, [], {}]),
    "tuple": ("[1, [2, 3]]", [1, [2, 3]]),
    "set": ("[1]", [1]),
    "frozenset": ("[1]", [1]),
    "dict": ('{"a": [1]}', {"a": [1]}),
    "int keys": ('{1: "x"}', {"1": "x"}),
    "tuple keys": ('{(1, "a"): "x"}', [[[1, "a"], "x"]]),
    "mixed keys": ('{1: "a", "1": "b"}', [[1, "a"], ["1", "b"]]),
    "nan key": ("{NaN: 1}", {"NaN": 1}),
    "complex": ("(1+2j)", {"real": 1.0, "imag": 2.0}),
    "very large int": (hex(-(7**50_000)), hex(-(7**50_000))),
    "path": ('"/tmp/x"', "/tmp/x"),
    "range": ("range(0, 10, 2)", "range(0, 10, 2)"),
    "slice": ("slice(1, 2, None)", "slice(1, 2, None)"),
    "fraction": ("Fraction(1, 3)", "1/3"),
    "decimal": ('"1.50"', "1.50"),
    "uuid": ('"00000000-0000-0000-0000-000000000005"', "00000000-0000-0000-0000-000000000005"),
    "datetime": ('"2026-01-02T03:04:00Z"', "2026-01-02T03:04:00Z"),
    "date": ('"2026-01-02"', "2026-01-02"),
    "time": ('"01:02:00"', "01:02:00"),
    "timedelta": ('"PT5S"', "PT5S"),
    "enum": ('"red"', "red"),
    "registered": ('{"x": 1, "y": NaN}', {"x": 1, "y": "NaN"}),
    "counter": ('{"a": 1}', {"a": 1}),
    "array": (
        "array(shape=(2, 2), dtype=int64, [[0, 1], [2, 3]])",
        {"dtype": "int64", "shape": [2, 2], "data": [[0, 1], [2, 3]]},
    ),
    "array of text": (
        "array(shape=(2,), dtype=<U2, ['a', 'bc'])",
        {"dtype": "<U2", "shape": [2], "data": ["a", "bc"]},
    ),
    "array of complex": (
        "array(shape=(1,), dtype=complex128, [1.+2.j])",
        {"dtype": "complex128", "shape": [1], "data": [{"real": 1.0, "imag": 2.0}]},
    ),
    "array of dates": (
        "array(shape=(1,), dtype=datetime64[D], ['2026-01-01'])",
        {"dtype": "datetime64[D]", "shape": [1], "data": ["2026-01-01"]},
    ),
    "array of nan": (
        "array(shape=(2,), dtype=float64, [nan, 1.])",
        {"dtype": "float64", "shape": [2], "data": ["NaN", 1.0]},
    ),
    "records": (
        "array(shape=(1,), dtype=[('a', '<i4')], [(0,)])",
        {"dtype": "[('a', '<i4')]", "shape": [1], "data": [[0]]},
    ),
    "no dimensions": ("5", 5),
    "number of numpy": ("0.5", 0.5),
    "empty array": ("array(shape=(0, 3), dtype=float64, [])", {"dtype": "float64", "shape": [0, 3], "data": []}),
    "nested array": (
        '{"image": array(shape=(2, 2), dtype=float64, [[0., 0.], [0., 0.]]), "rest": [b\'x\', 1j]}',
        {
            "image": {"dtype": "float64", "shape": [2, 2], "data": [[0.0, 0.0], [0.0, 0.0]]},
            "rest": ["eA==", {"real": 0.0, "imag": 1.0}],
        },
    ),
}


def not_strict(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.parametrize("name", VALUES)
def test_every_value_can_be_printed(name: str) -> None:
    (as_json,) = printed("--json", "shown", "value", name).splitlines()
    text, value = SHOWN.get(name, (None, None))
    read = json.loads(as_json, parse_constant=not_strict)
    if text is not None:
        assert read == value
        assert printed("shown", "values", json.dumps([name])) == f"{text}\n"
    assert printed("shown", "value", name)


def test_large_values_are_printed_in_part() -> None:
    text = printed("shown", "value", "large array")
    assert text.startswith("array(shape=(1000, 1000), dtype=float64, [[0., 0., 0., ..., 0., 0., 0.],\n")
    assert len(text) < 400
    assert printed("shown", "value", "many bytes").endswith("'... (1,000,000 bytes)\n")
    assert len(json.loads(printed("--json", "shown", "value", "many bytes"))) == 1_333_336
    assert json.loads(printed("--json", "shown", "value", "table")) == [{"a": 1}, {"a": 2}]


def test_a_memoryview_is_printed_with_its_number_of_bytes_not_of_items() -> None:
    text = to_text(memoryview(array.array("d", range(1000))))
    assert text.endswith("... (8,000 bytes)")
    assert text.startswith(repr(array.array("d", range(12)).tobytes())[:-1])
    assert to_text(memoryview(array.array("d", [1]))) == repr(array.array("d", [1]).tobytes())


def test_a_result_that_json_has_is_indented() -> None:
    assert printed("shown", "value", "tuple") == "[\n  1,\n  [\n    2,\n    3\n  ]\n]\n"
    assert printed("shown", "value", "nested array").startswith('{\n  "image": array(shape=(2, 2), dtype=float64, [[0')


def test_a_stream_is_printed_line_by_line() -> None:
    names = json.dumps(["tuple", "dict", "array"])
    assert printed("shown", "values", names).splitlines() == [SHOWN[name][0] for name in json.loads(names)]
    lines = printed("--json", "shown", "values", names).splitlines()
    assert [json.loads(line) for line in lines] == [SHOWN[name][1] for name in json.loads(names)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["1"], "1 None"),
        (["true"], "True None"),
        (["[1,{}]"], "[1, {}] None"),
        (["Ada"], "'Ada' None"),
        (['"5"'], "'5' None"),
        (["NaN"], "nan None"),
        (["-1"], "-1 None"),
        (["--", "--json"], "'--json' None"),
        (["--", "-1"], "-1 None"),
        (["1", "--"], "1 None"),
        (["--", "--"], "'--' None"),
        (['"--"'], "'--' None"),
        ([""], "'' None"),
        (['"@x"'], "'@x' None"),
        (["9" * 5000], f"'{'9' * 5000}' None"),
    ],
)
def test_arguments_are_read_as_json_or_taken_as_text(arguments: list[str], text: str) -> None:
    assert json.loads(printed("shown", "shown", *arguments)) == text


EXACT = "0.10000000000000000000000001"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["price", "1.10"], "Decimal('1.10') Decimal('0')"),
        (["price", EXACT], f"Decimal('{EXACT}') Decimal('0')"),
        (["price", "1e400"], "Decimal('1E+400') Decimal('0')"),
        (["price", '"1.10"'], "Decimal('1.10') Decimal('0')"),
        (["price", "5"], "Decimal('5') Decimal('0')"),
        (["price", "null"], "None Decimal('0')"),
        (["items", f'[{{"price": {EXACT}, "count": 2}}]', "1.10", "2.20"], None),
        (["weighed", '{"price": "1.10", "weight": 1.10}'], "Decimal('1.10') 1.1"),
        (["weighed", '{"price": 1.5, "weight": 1.5}'], "Decimal('1.5') 1.5"),
        (["texts", "5"], "'5' None 0"),
        (["texts", "1.10"], "'1.10' None 0"),
        (["texts", "[1]"], "'[1]' None 0"),
        (["texts", '"5"'], "'5' None 0"),
        (["double", "4"], 8),
    ],
)
def test_an_argument_is_what_its_parameter_takes(arguments: list[str], text: str | int | None) -> None:
    if text is None:
        text = f"[Decimal('{EXACT}')] (Decimal('1.10'), Decimal('2.20'))"
    assert json.loads(printed("shown", *arguments)) == text


def test_keywords_and_items_are_what_their_parameters_take() -> None:
    assert json.loads(printed("-k", "tip=0.50", "shown", "price", "1.10")) == "Decimal('1.10') Decimal('0.50')"
    assert json.loads(printed("-k", "path=7", "-k", "either=7", "shown", "texts", "a")) == "'a' '7' 7"
    assert json.loads(printed("shown", "sum_up", "[1.10, 2]")) == ["1.10", "2"]
    assert json.loads(printed("shown", "sum_up", "@-", given="1.10\n2\n")) == ["1.10", "2"]


def test_a_decimal_beside_floats_loses_no_digit_in_silence() -> None:
    assert json.loads(printed("shown", "weighed", '{"price": 1.10, "weight": 0.1}')) == "Decimal('1.1') 0.1"
    done = call("shown", "weighed", f'{{"price": {EXACT}, "weight": 0.1}}')
    assert done.exit_code == 2
    assert f'for a Decimal write it as text: "{EXACT}"' in done.stderr


def test_a_quoted_number_for_a_number_has_an_error_that_names_the_quotes() -> None:
    done = call("shown", "double", '"4"')
    assert done.exit_code == 2
    assert "\"4\": parameter 'n' takes int, not text; without its quotes: 4" in done.stderr


def test_files_and_standard_input_are_arguments(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"\x00\xff\n")
    assert printed("shown", "size", f"@{path}") == "3\n"
    assert printed("shown", "size", "@-", given=b"\xff" * 100_000) == "100000\n"
    assert printed("-k", f"data=@{path}", "shown", "size") == "3\n"
    np.save(tmp_path / "array.npy", np.arange(5.0))
    assert printed("shown", "total", f"@{tmp_path / 'array.npy'}") == "10.0\n"
    (tmp_path / "array.npy").write_text("no array")
    assert "array.npy: cannot be read as an array" in call("shown", "total", f"@{tmp_path / 'array.npy'}").stderr


def test_lines_are_a_stream_to_the_endpoint(tmp_path: Path) -> None:
    assert json.loads(printed("shown", "join", "a", "@-", given="1\nx\r\n[2]")) == ["a", 1, "x", [2]]
    assert json.loads(printed("-k", "items=@-", "shown", "join", "a", given="1")) == ["a", 1]
    assert json.loads(printed("shown", "join", "a", "[1, 2]")) == ["a", 1, 2]
    (tmp_path / "lines").write_bytes(b"12\n\xff\n")
    assert printed("shown", "sizes", f"@{tmp_path / 'lines'}") == "2\n1\n"


NESTED = "[" * 100_000


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["shown", "shwn", "1"], 2, "did you mean 'shown'?"),
        (["shown", "size", "1"], 2, "parameter 'data': expected `bytes`, got `int` (1)"),
        (["shown", "shown"], 2, "missing a required argument: 'what'"),
        (["-k", "more", "shown", "shown", "1"], 2, "--keyword: expected NAME=VALUE"),
        (["-k", "=1", "shown", "shown", "1"], 2, "--keyword: expected NAME=VALUE"),
        (["-k", "more=1", "-k", "more=2", "shown", "shown", "1"], 2, "--keyword: more is given more than once"),
        (["shown", "size", "@-", "@-"], 2, "@- is given more than once: standard input"),
        (["-k", "data=@-", "shown", "size", "@-"], 2, "@- is given more than once: standard input"),
        (["-k", "less=1", "shown", "shown", "1"], 2, "less"),
        (["--timeout", "soon", "shown", "shown", "1"], 2, "'soon' is not a valid float"),
        (["--timeout", "-1", "shown", "shown", "1"], 2, "-1.0 is not in the range x>=0"),
        (["--timeout", "nan", "shown", "shown", "1"], 2, "expected a number of seconds, got 'nan'"),
        (["--max-frame", "1", "shown", "shown", "1"], 2, "max_frame: expected"),
        (["a b", "shown"], 2, "a b"),
        (["shown", "shown", "@/absent/file"], 2, "@/absent/file: No such file or directory; for a text that begins"),
        (["shown", "size", "@/"], 2, "@/: Is a directory"),
        (["shown", "shown", NESTED], 2, "nested too deeply"),
        (["shown", "join", "a", "5"], 2, "expected an iterable, got 5"),
        (["--timeout", "0", "absent", "add"], 3, "shmrpc serve MODULE:absent"),
        (["shown", "fails"], 4, "builtins.ValueError: odd\nTraceback (most recent call last):"),
        (["shown", "fails_later"], 4, "builtins.KeyError: 'odd'"),
        (["shown", "cannot_be_sent"], 4, "which cannot be sent as MessagePack"),
        (["--max-frame", "4096", "shown", "shown", "x" * 5000], 4, "max_frame"),
    ],
)
def test_every_failure_has_its_words_and_its_exit_code(arguments: list[str], code: int, words: str) -> None:
    done = call(*arguments)
    assert (done.exit_code, words in done.stderr) == (code, True), done.stderr
    assert "shmrpc/cli" not in done.stderr
    if arguments[-1] == "fails_later":
        assert done.stdout == "1\n"


@pytest.mark.parametrize("endpoint", ["waits", "ticks"])
def test_the_timeout_is_for_all_of_it(endpoint: str) -> None:
    for timeout in timeouts():
        done = call("--timeout", str(timeout), "shown", endpoint)
        if done.exit_code != 3:  # The timeout has expired before the client was connected.
            break
    assert done.exit_code == 5
    assert f"{endpoint}() " in done.stderr
    assert "deadline" in done.stderr


def test_a_timeout_of_0_is_one_try_to_connect_and_leaves_the_call_its_time() -> None:
    done = call("--timeout", "0", "shown", "sleeps", "0.05")
    assert (done.exit_code, done.stdout) == (0, "null\n"), done.stderr
    for command in ("describe", "stub"):
        assert cli_runner().invoke(main, [command, "--timeout", "0", "shown"]).exit_code == 0


@pytest.mark.parametrize("command", ["describe", "stub"])
def test_the_other_commands_fail_alike(command: str) -> None:
    for arguments, code in (
        (["--timeout", "0", "absent"], 3),
        (["a b"], 2),
        (["--timeout", "nan", "shown"], 2),
        ([], 2),
    ):
        done = cli_runner().invoke(main, [command, *arguments])
        assert isinstance(done.exception, SystemExit), done.exception
        assert done.exit_code == code, done.stderr


def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    command, env = [sys.executable, "-m", "shmrpc", *arguments], {**os.environ, **environment}
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding=encoding, env=env)


def test_ctrl_c_ends_a_stream_without_a_traceback() -> None:
    with run("call", "shown", "ticks") as calling:
        assert calling.stdout is not None
        assert calling.stdout.readline() == "0\n"
        calling.send_signal(signal.SIGINT)
        _, errors = calling.communicate(timeout=PATIENCE)
    assert (calling.returncode, errors) == (130, "")


def test_ctrl_c_ends_a_call_without_a_traceback() -> None:
    assert eventually(lambda: printed("shown", "waiting") == "0\n")
    with run("call", "shown", "waits") as calling:
        assert eventually(lambda: printed("shown", "waiting") == "1\n")
        calling.send_signal(signal.SIGINT)
        _, errors = calling.communicate(timeout=PATIENCE)
    assert (calling.returncode, errors) == (130, "")
    assert eventually(lambda: printed("shown", "waiting") == "0\n")


def test_a_reader_that_goes_away_ends_a_stream_quietly() -> None:
    with run("call", "shown", "ticks") as calling:
        assert calling.stdout is not None
        assert calling.stdout.readline() == "0\n"
        calling.stdout.close()
        calling.stdout = None
        _, errors = calling.communicate(timeout=PATIENCE)
    assert (calling.returncode, errors) == (1, "")


@pytest.mark.parametrize("arguments", [("call", "shown", "value", "int"), ("ls",), ("describe", "shown")])
def test_a_full_disk_has_an_error_without_a_traceback(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shmrpc", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode != 0
    assert "Error: [Errno 28] No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("ls",), ("describe", "x"), ("stub", "x"), ("call", "x", "y"), ("cleanup",)])
def test_an_unusable_runtime_directory_has_an_error_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "absent"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / name))
        done = cli_runner().invoke(main, [*command])
        assert isinstance(done.exception, SystemExit) or done.exit_code == 0, done.exception


def test_a_terminal_that_cannot_show_a_character_shows_its_number() -> None:
    for options, shown in (((), r'"ä\u2192\"\n"'), (("--json",), r'"\u00e4\u2192\"\n"')):
        with run("call", *options, "shown", "value", "text", PYTHONIOENCODING="latin-1") as calling:
            assert calling.communicate(timeout=PATIENCE) == (f"{shown}\n", "")


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("ls",), ("ls", "--json"), ("call", "--help")])
def test_output_is_plain_text(arguments: tuple[str, ...]) -> None:
    done = cli_runner().invoke(main, arguments)
    assert done.exit_code == 0
    assert "\x1b" not in done.output
    if arguments == ("call", "--help"):
        assert "Exit codes: 2 for a wrong option" in done.output
