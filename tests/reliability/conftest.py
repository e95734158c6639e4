"""The figures of a run stand below it."""

from __future__ import annotations

import pytest

from tests.reliability import figures


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = figures.lines()
    if lines:
        terminalreporter.section("figures of reliability")
        for line in lines:
            terminalreporter.write_line(line)
