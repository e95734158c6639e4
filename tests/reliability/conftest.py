"""Settings of all reliability tests, and the figures at the end of a run."""

from __future__ import annotations

import pytest

from shmrpc.wire import control
from tests.reliability import figures


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give handshakes in this process more time, because a busy machine may delay a peer by some seconds.

    A test of this limit sets its own value.
    """
    monkeypatch.setattr(control, "STEP_TIMEOUT", 30.0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = figures.lines()
    if lines:
        terminalreporter.section("figures of reliability")
        for line in lines:
            terminalreporter.write_line(line)
