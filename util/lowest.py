#!/usr/bin/env python3
"""Print the lowest versions that pyproject.toml allows of what shmrpc depends on, as constraints for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def lowest() -> list[str]:
    """One constraint for each dependency, those of the extras included: ``msgspec==0.22``."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    pinned = (requirement.replace(">=", "==") for group in groups for requirement in group)
    return sorted({re.sub(r"\[\w+\]", "", each) for each in pinned})


if __name__ == "__main__":
    print("\n".join(lowest()))  # noqa: T201
