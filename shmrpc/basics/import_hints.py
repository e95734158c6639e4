"""Error messages for modules that cannot be imported.

This module imports nothing of shmrpc, because a part of shmrpc may be missing.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

#: Folder of this package.
_HERE = Path(__file__).parents[1]


def is_not_installed(module: str, error: ImportError) -> bool:
    """Return True if an import failed because the module, or a package that contains it, is not installed.

    False means that the module is installed and cannot be loaded: one of its own imports is missing, or its first
    import was interrupted and a process can load it only once.
    """
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return bool(name) and f"{module}.".startswith(f"{name}.")


def describe_import_failure(module: str, error: ImportError, absent: str | None = None) -> str:
    """Return the message for a failed import: ``absent`` if the module is not installed, otherwise the reason.

    With None for ``absent``, the message says that the package is not installed.
    """
    package = module.partition(".")[0]
    if is_not_installed(module, error):
        return absent or f"{package} is not installed here"
    return f"{package} cannot be imported here: {type(error).__name__}: {error}"


def in_sub_interpreter() -> bool:
    """Return True if this code runs in a sub-interpreter."""
    for module in ("_interpreters", "_xxsubinterpreters"):  # The name since Python 3.13, and the one before.
        try:
            interpreters = importlib.import_module(module)
        except ImportError:
            continue
        return bool(interpreters.get_current() != interpreters.get_main())
    return False


def missing_core_error(error: ImportError) -> ImportError:
    """Return an ImportError that explains why ``shmrpc._core`` cannot be imported, and gives the remedy."""
    import platform
    import sysconfig

    python = f"{platform.python_implementation()} {platform.python_version()} ({sysconfig.get_platform()})"
    if not is_not_installed("shmrpc._core", error):
        return ImportError(
            f"the native module of shmrpc cannot be loaded: {error}; {python}, {' '.join(platform.libc_ver())}. "
            "Build it on this machine: pip install --force-reinstall --no-binary shmrpc shmrpc",
            name=error.name,
            path=error.path,
        )
    if (_HERE.parent / "core" / "Cargo.toml").exists():
        return ImportError(
            f"{_HERE} is the source of shmrpc, without its native module. Build it: pip install -e . (or make build); "
            "or use an installed shmrpc: work in another folder, or call python -P"
        )
    found = ", ".join(sorted(path.name for path in _HERE.glob("_core.*.so"))) or "none"
    return ImportError(
        f"{_HERE} has no native module for this Python, which is {python} and takes _core"
        f"{sysconfig.get_config_var('EXT_SUFFIX')}; there is: {found}. Install shmrpc with this Python: "
        f"{sys.executable} -m pip install --force-reinstall shmrpc"
    )
