"""``python -m benchmark.packages``: install the packages of the rivals, one after the other.

A package that cannot be installed is reported, here and in the benchmark, and prevents no other one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

import click

_PROJECT: Final = Path(__file__).parents[1] / "pyproject.toml"


@click.command()
def main() -> None:
    """Install the packages of the rivals."""
    groups = tomllib.loads(_PROJECT.read_text())["dependency-groups"]
    wanted = groups["rivals"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        # A package that is installed before those it needs takes them as they are pinned too.
        constraints.write("\n".join(wanted))
        constraints.flush()
        for requirement in wanted:
            if why := _install(requirement, constraints.name):
                click.echo(f"{requirement} cannot be installed: {why}")


def _install(requirement: str, constraints: str) -> str:
    """Install a package; return the reason if that fails, and an empty text otherwise."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run([*pip, "--constraint", constraints, requirement], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (said[-1] if said else f"pip ended with {done.returncode}") if done.returncode else ""


if __name__ == "__main__":
    main()
