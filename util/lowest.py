#!/usr/bin/env python3
"""Print the lowest versions of the dependencies that pyproject.toml allows, as constraints for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def lowest() -> list[str]:
    """Return one constraint for each dependency, including those of the extras, such as ``msgspec==0.22``."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    pinned = (requirement.replace(">=", "==") for group in groups for requirement in group)
    return sorted({re.sub(r"\[\w+\]", "", each) for each in pinned})


if __name__ == "__main__":
    print("\n".join(lowest()))  # noqa: T201
