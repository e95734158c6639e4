"""The command line as a user types it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmrpc as shmrpc_package
from shmrpc.cli.commands import main
from tests.helpers.cli_runner import cli_runner
from tests.helpers.prepared_python import run_prepared
from tests.helpers.server_process import STOPPING, ServerProcess, eventually


def shmrpc(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    with contextlib.chdir(cwd or "."):
        return run_prepared("-m", "shmrpc", *arguments, timeout=120)


def test_serve_call_ls() -> None:
    with ServerProcess("examples.calculator:calculator") as server:
        assert "'calculator'" in server.greeting
        assert str(server.pid) in server.greeting
        assert shmrpc("call", "calculator", "add", "1", "2").stdout == "3\n"
        assert shmrpc("call", "calculator", "add", "-1", "2").stdout == "1\n"
        assert shmrpc("call", "-k", "punctuation=?", "calculator", "greet", "Ada").stdout == '"Hello, Ada?"\n'
        assert shmrpc("call", "calculator", "greet", '"5"').stdout == '"Hello, 5!"\n'
        # The last client's process has ended; the server hears of it.
        assert eventually(lambda: json.loads(shmrpc("ls", "--json").stdout)[0]["connections"] == 0)
        (row,) = json.loads(shmrpc("ls", "--json").stdout)
        assert row["uptime"] > 0
        assert (row["service"], row["kind"]) == ("calculator", "service")
        assert (row["pid"], row["connections"]) == (server.pid, 0)
        assert row["endpoints"] == ["add", "greet"]
        header, line = shmrpc("ls").stdout.splitlines()
        assert header.split() == ["NAME", "KIND", "PID", "HEALTH", "UPTIME", "CONNECTIONS", "ENDPOINTS"]
        assert line.split()[:4] == ["calculator", "service", str(server.pid), "serving"]
    assert "No live services" in shmrpc("ls").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "1", "x"], r"parameter 'b': expected `int`, got `str` ('x')"),
        (["ad", "1", "2"], "did you mean 'add'?"),
        (["add", "1"], "missing a required argument: 'b'"),
    ],
)
def test_call_explains_what_is_wrong(arguments: list[str], words: str) -> None:
    with ServerProcess("examples.calculator:calculator"):
        done = shmrpc("call", "calculator", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_call_prints_the_remote_traceback() -> None:
    with ServerProcess():
        done = shmrpc("call", "tested", "fail", "odd")
    assert done.returncode == 4
    assert "builtins.ValueError: odd" in done.stderr
    assert "in fail" in done.stderr


def test_call_without_a_server() -> None:
    done = shmrpc("call", "--timeout", "0", "absent", "add")
    assert done.returncode == 3
    assert "shmrpc serve MODULE:absent" in done.stderr


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("calculator", "expected MODULE:SERVICE"),
        ("absent.module:x", "there is no module 'absent.module'"),
        ("examples.calculator:absent", "examples.calculator has nothing named 'absent'; its services: calculator"),
        ("examples.calculator:add", "has 'add', but it is of type function, not a shmrpc.Service"),
    ],
)
def test_serve_explains_what_is_wrong(target: str, words: str) -> None:
    done = shmrpc("serve", target)
    assert done.returncode == 2
    assert words in done.stderr


PROBLEMS = {
    "two.py": "import shmrpc\none = shmrpc.Service('one')\nother = shmrpc.Service('other')\n",
    "none.py": "made = 1\n",
    "failing.py": "def fail():\n    1 / 0\n\n\nfail()\n",
    "chained.py": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('odd') from error\n",
    "unparsable.py": "x = (\n",
    "exiting.py": "import sys\nsys.exit('not today')\n",
    "outer/importing.py": "import helper\n",
    "outer/helper.py": "",
    "missing.py": "import there_is_no_such_module\n",
    "within.py": "import failing\n",
    "json.py": "",
    "no-name.py": "",
    "making.py": "def fail():\n    1 / 0\n\n\ndef give():\n    return 5\n",
}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (":x", "expected MODULE:SERVICE or FILE.py:SERVICE"),
        ("two:", "expected MODULE:SERVICE or FILE.py:SERVICE"),
        ("no-name:x", "'no-name' cannot be the name of a module"),
        ("no-name.py:x", "'no-name' cannot be the name of a module; rename the file"),
        ("json.py:x", "there is another module 'json'"),
        ("absent.py:x", "there is no file 'absent.py' in "),
        ("outer/absent:x", "there is no file 'outer/absent' in "),
        ("two", "two has several services, say which: two:one, two:other"),
        ("none.py", "none.py has no shmrpc.Service"),
        ("two:oter", "two has nothing named 'oter' (did you mean 'other'?); its services: one, other"),
        ("none:made", "none has 'made', but it is of type int, not a shmrpc.Service"),
        (
            "making:give",
            "'give', but it is of type function, not a shmrpc.Service (if it makes one: making:give()); its",
        ),
        ("making:give()", "making has 'give()', but it is of type int, not a shmrpc.Service"),
        ("making:fail()", "making:fail() fails:\nTraceback (most recent call last):\n  File"),
        ("failing:x", "module 'failing' cannot be imported:\nTraceback (most recent call last):\n  File"),
        ("chained:x", "The above exception was the direct cause"),
        ("unparsable:x", 'unparsable.py", line 1\n    x = (\n'),
        ("exiting:x", "module 'exiting' cannot be imported, because it exits:\nTraceback"),
        ("outer.importing:x", "'helper' is in "),
        ("missing:x", "ModuleNotFoundError: No module named 'there_is_no_such_module'"),
        ("within:x", "ZeroDivisionError"),
    ],
)
def test_an_error_in_a_target_has_no_lines_of_shmrpc(tmp_path: Path, target: str, words: str) -> None:
    (tmp_path / "outer").mkdir()
    for name, source in PROBLEMS.items():
        (tmp_path / name).write_text(source)
    done = cli_runner().invoke(main, ["serve", target, "--app-dir", str(tmp_path)])
    assert done.exit_code == (1 if "\n  File" in done.stderr else 2), (
        done.exception
    )  # A module that fails is no wrong usage.
    assert words in done.stderr
    assert "importlib" not in done.stderr
    assert str(Path(shmrpc_package.__file__).parent) not in done.stderr
    assert done.stderr.count("Traceback") == (2 if target == "chained:x" else "Traceback" in done.stderr)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Forget the modules that a test imports from its directory."""
    path, modules = sys.path[:], set(sys.modules)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").name in {Path(each).name for each in PROBLEMS}:
            del sys.modules[name]


MADE = """
    import shmrpc
    from helper import name

    service = shmrpc.Service(name)

    def make():
        return shmrpc.Service("function")

    class Holder:
        service = shmrpc.Service("holder")
"""


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("outer/made.py:service", "made"),
        ("outer/made.py", "made"),
        ("package/inner/made.py", "package.inner"),
        ("package.inner.made:service", "package.inner"),
        ("package.inner.made", "package.inner"),
        ("package.inner.made:make()", "function"),
        ("package.inner.made:Holder.service", "holder"),
    ],
)
def test_a_target_may_be_a_file_a_module_or_a_function(tmp_path: Path, target: str, name: str) -> None:
    for directory in ("outer", "package", "package/inner"):
        (tmp_path / directory).mkdir()
    for directory in ("package", "package/inner"):
        (tmp_path / directory / "__init__.py").touch()
    (tmp_path / "outer" / "helper.py").write_text("name = 'made'\n")
    (tmp_path / "outer" / "made.py").write_text(textwrap.dedent(MADE))
    inner = tmp_path / "package" / "inner" / "made.py"
    inner.write_text(textwrap.dedent(MADE).replace("from helper import name", "name = __package__"))
    with ServerProcess(target, "--app-dir", str(tmp_path)) as server:
        assert server.name == name


def test_serve_finds_modules_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "local_module.py").write_text("import shmrpc\nbroken = 1\n")
    assert "of type int, not a shmrpc.Service" not in shmrpc("serve", "local_module:absent", cwd=tmp_path).stderr
    assert (
        "has 'broken', but it is of type int, not a shmrpc.Service"
        in shmrpc("serve", "local_module:broken", cwd=tmp_path).stderr
    )


def test_serving_a_name_twice() -> None:
    with ServerProcess() as server:
        done = shmrpc("serve", "tests.helpers.services:service")
        assert done.returncode == 1
        assert f"already served by process {server.pid}" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_it_and_nothing_is_left(runtime: Path, number: signal.Signals) -> None:
    with ServerProcess() as server:
        os.kill(server.pid, number)
        _, errors = server.process.communicate(timeout=STOPPING)
    assert server.process.returncode == 0
    assert errors == ""
    assert os.listdir(runtime) == []
