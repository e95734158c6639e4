"""A package without its native core says what to do, and an installed one works where its source lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import shmrpc
from shmrpc.testing import ServerProcess
from tests.helpers.server_process import PATIENCE, STOPPING

INSTALLED = Path(shmrpc.__file__).parents[1]
SERVICE = """
import os, shmrpc, sys

service = shmrpc.Service("beside")

@service.endpoint
def package_path() -> str:
    return shmrpc.__file__

@service.endpoint(run_in="process")
def package_path_of_child() -> str:
    return shmrpc.__file__
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder with the source of the package, like a checkout."""
    folder = tmp_path / "source"
    shutil.copytree(INSTALLED / "shmrpc", folder / "shmrpc", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (folder / "core").mkdir()
    (folder / "core" / "Cargo.toml").touch()
    (folder / "beside.py").write_text(SERVICE)
    return folder


def importing(folder: Path, *command: str) -> str:
    """Import shmrpc in a folder, and return the last line of Python's error."""
    done = subprocess.run(
        [sys.executable, *(command or ("-c", "import shmrpc"))],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("command", [("-c", "import shmrpc"), ("-c", "import shmrpc.sync"), ("-m", "shmrpc", "ls")])
def test_the_source_without_its_core_says_what_to_do(source: Path, command: tuple[str, ...]) -> None:
    words = importing(source, *command)
    assert f"ImportError: {source / 'shmrpc'} is the source of shmrpc, without its native module" in words
    assert "pip install -e ." in words


def test_an_installation_for_another_python_raises_with_the_reason(source: Path) -> None:
    shutil.rmtree(source / "core")
    assert "has no native module for this Python" in importing(source)
    (source / "shmrpc" / "_core.cpython-27-sparc.so").touch()
    words = importing(source)
    assert "there is: _core.cpython-27-sparc.so" in words
    assert f"takes _core{sysconfig.get_config_var('EXT_SUFFIX')}" in words
    (source / "shmrpc" / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}").touch()
    assert "the native module of shmrpc cannot be loaded: " in importing(source)


def test_on_another_system_the_error_says_linux_only(source: Path) -> None:
    assert "shmrpc runs on Linux only; this is darwin" in importing(
        source, "-c", "import sys; sys.platform = 'darwin'; import shmrpc"
    )


@pytest.mark.parametrize("options", [(), ("--workers", "1"), ("--reload",)])
def test_the_command_serves_in_the_folder_of_the_source(source: Path, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-P", "-m", "shmrpc", "serve", "beside.py", *options]  # Like the script `shmrpc`.
    environment = {**os.environ, "PYTHONPATH": str(INSTALLED)}
    server = subprocess.Popen(command, cwd=source, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        with shmrpc.sync.connect("beside", timeout=PATIENCE) as client:
            assert client.package_path() == shmrpc.__file__
            assert client.package_path_of_child() == shmrpc.__file__
    finally:
        server.terminate()
        _, errors = server.communicate(timeout=STOPPING)
    assert server.returncode == 0, errors
    # A busy machine holds the loop too, for as long as the log warns of.
    warnings = [
        line for line in errors.splitlines() if "WARNING" in line and "blocked the server's event loop" not in line
    ]
    assert warnings == []


def test_a_server_process_of_tests_serves_in_the_folder_of_the_source(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source)
    monkeypatch.syspath_prepend(INSTALLED)
    with ServerProcess("beside.py") as server, server.sync_connect() as client:
        assert client.package_path() == shmrpc.__file__
