"""Serving with reload, for development: a new worker replaces the old one when a source file changes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable

from shmrpc.basics.import_hints import describe_import_failure
from shmrpc.supervisor.config import ServeConfig, ServeError
from shmrpc.supervisor.supervisor import Announce, Supervisor

logger = logging.getLogger("shmrpc.supervisor")


def _relative_paths(app_dir: str, changes: Iterable[tuple[object, str]]) -> list[str]:
    """Return the sorted paths of changed files, relative to the app dir."""
    return sorted({os.path.relpath(path, app_dir) for _, path in changes})


def supervise_reloading(config: ServeConfig, announce: Announce) -> None:
    """Serve with one worker, and replace it when a ``.py`` file below the app dir changes.

    Waits for changes after quick deaths. Raises ServeError as :meth:`Supervisor.run` does, or if watchfiles is missing.
    """
    try:
        import watchfiles
    except ImportError as error:
        absent = "--reload needs the package watchfiles: pip install 'shmrpc[reload]'"
        raise ServeError(describe_import_failure("watchfiles", error, absent)) from error

    async def watch(supervisor: Supervisor) -> None:
        try:
            async for changes in watchfiles.awatch(config.app_dir, watch_filter=watchfiles.PythonFilter()):
                supervisor.restart(f"{', '.join(_relative_paths(config.app_dir, changes))} changed")
        except (OSError, RuntimeError) as error:  # For example, too many directories.
            logger.error("cannot watch %s, so changes have no effect: %s", config.app_dir, error)

    async def run() -> None:
        supervisor = Supervisor(config, 1, announce, keeps_trying=True)
        watching = asyncio.create_task(watch(supervisor))
        try:
            await supervisor.run()
        finally:
            watching.cancel()

    asyncio.run(run())
