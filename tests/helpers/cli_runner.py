"""A runner of commands that captures both outputs."""

from __future__ import annotations

import inspect
from typing import Any

from click.testing import CliRunner


def cli_runner() -> CliRunner:
    """Return a runner that captures stderr separately; click before 8.2 needs an option for that."""
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    return CliRunner(**apart)
