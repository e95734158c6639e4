"""The figures of a run stand below it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shmrpc.wire import control
from tests.helpers import figures
from tests.helpers.server_process import ServerProcess


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody in this process is given up in a handshake because a busy machine lets it wait for some seconds.

    A test of this very limit sets its own.
    """
    monkeypatch.setattr(control, "STEP_TIMEOUT", 30.0)


@pytest.fixture(scope="module")
def meeting_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory where the lasting server of a module is met."""
    place = tmp_path_factory.mktemp("lasting")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(place))
        yield place


@pytest.fixture(scope="module")
def module_server(request: pytest.FixtureRequest, meeting_place: Path) -> Iterator[ServerProcess]:
    """The module's ``TARGET``, for all of its tests."""
    with ServerProcess(request.module.TARGET) as process:
        yield process


@pytest.fixture
def lasting_server(
    module_server: ServerProcess, meeting_place: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> ServerProcess:
    """The same for one test: it meets where that server is, and has to leave it as it was."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(meeting_place))
    return module_server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = figures.lines()
    if lines:
        terminalreporter.section("figures of reliability")
        for line in lines:
            terminalreporter.write_line(line)
