"""Why a module cannot be imported, and what to do. Imports nothing of this package, which may be what is missing."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

#: The folder of this package.
_HERE = Path(__file__).parents[1]


def is_absent(module: str, error: ImportError) -> bool:
    """Whether the import of a module failed because the module, or a package that it belongs to, is not there.

    Otherwise it is there but cannot be loaded: something that it imports is missing, or its first import was
    interrupted and a process can load it only once.
    """
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return bool(name) and f"{module}.".startswith(f"{name}.")


def why_missing(module: str, error: ImportError, absent: str | None = None) -> str:
    """The message for an import that failed with ``error``: ``absent``, or why the module cannot be loaded."""
    package = module.partition(".")[0]
    if is_absent(module, error):
        return absent or f"{package} is not installed here"
    return f"{package} cannot be imported here: {type(error).__name__}: {error}"


def in_sub_interpreter() -> bool:
    """Return True if this code runs in an interpreter that is not the main one of its process."""
    for module in ("_interpreters", "_xxsubinterpreters"):  # Since Python 3.13, and before.
        try:
            interpreters = importlib.import_module(module)
        except ImportError:
            continue
        return bool(interpreters.get_current() != interpreters.get_main())
    return False


def without_core(error: ImportError) -> ImportError:
    """What to raise in place of the error of importing ``shmrpc._core``."""
    import platform
    import sysconfig

    python = f"{platform.python_implementation()} {platform.python_version()} ({sysconfig.get_platform()})"
    if not is_absent("shmrpc._core", error):
        return ImportError(
            f"the native module of shmrpc cannot be loaded: {error}; {python}, {' '.join(platform.libc_ver())}. "
            "Build it on this machine: pip install --force-reinstall --no-binary shmrpc shmrpc",
            name=error.name,
            path=error.path,
        )
    if (_HERE.parent / "core" / "Cargo.toml").exists():
        return ImportError(
            f"{_HERE} is the source of shmrpc, without its native module, and hides any shmrpc that is installed. "
            "Build it where it is: pip install -e . (or make build, for .venv); or let Python not look here: work in "
            "another folder, use the command `shmrpc`, or python -P"
        )
    found = ", ".join(sorted(path.name for path in _HERE.glob("_core.*.so"))) or "none"
    return ImportError(
        f"{_HERE} has no native module for this Python, which is {python} and takes _core"
        f"{sysconfig.get_config_var('EXT_SUFFIX')}; there is: {found}. Install shmrpc with this Python: "
        f"{sys.executable} -m pip install --force-reinstall shmrpc"
    )
