"""The figures of a run stand below it."""

from __future__ import annotations

import pytest

from shmrpc.wire import control
from tests.reliability import figures


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody in this process is given up in a handshake because a busy machine lets it wait for some seconds.

    A test of this very limit sets its own.
    """
    monkeypatch.setattr(control, "STEP_TIMEOUT", 30.0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = figures.lines()
    if lines:
        terminalreporter.section("figures of reliability")
        for line in lines:
            terminalreporter.write_line(line)
