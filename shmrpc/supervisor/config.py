"""What ``shmrpc serve`` was asked to do, which its workers are told too."""

from __future__ import annotations

import asyncio
import importlib
import logging
import logging.config
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import uvloop

from shmrpc import access_log
from shmrpc.basics.import_hints import describe_import_failure
from shmrpc.server.server import Server, serve
from shmrpc.service.service import Service
from shmrpc.transport.addresses import Transport, transport_at
from shmrpc.transport.connection_options import ConnectionOptions

Loop = Literal["uvloop", "asyncio"]

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class ServeError(Exception):
    """Serving cannot begin, or cannot go on; the text says why, and what to do.

    ``is_usage``: True if a target or an option is wrong.
    """

    def __init__(self, reason: str, *, is_usage: bool = True) -> None:
        super().__init__(reason)
        self.is_usage = is_usage


class Config(msgspec.Struct, frozen=True):
    """What to serve, and how."""

    #: See :mod:`shmrpc.supervisor.targets`.
    targets: list[str]
    #: The folder in which modules are looked for first; an absolute path.
    app_dir: str
    loop: Loop
    #: Seconds that calls under way have to end when the server stops.
    grace: float
    #: None: info, or what the file in ``log_config`` says.
    log_level: str | None
    log_config: str | None
    connection: ConnectionOptions
    max_in_flight: int
    max_per_connection: int
    max_waiting: int
    #: Where the services are met, as URLs.
    at: list[str]
    #: Whether each call is logged.
    access_log: bool = False
    #: Whether a result that is not of its declared type fails its call.
    validate_results: bool = False

    def server(self, services: Sequence[Service], *, adopting: bool = False) -> Server:
        """The server of these services; ServeError if an option is out of range."""
        try:
            return serve(
                *services,
                **vars(self.connection),
                interceptors=[access_log.interceptor()] if self.access_log else [],
                max_in_flight=self.max_in_flight,
                max_per_connection=self.max_per_connection,
                max_waiting=self.max_waiting,
                adopting=adopting,
                validate_results=self.validate_results,
                at=self.at,
            )
        except (ValueError, ImportError) as error:
            raise ServeError(str(error)) from None

    def check_workers(self) -> None:
        """Raises ServeError if the services are met where workers cannot serve them."""
        lonely = [at for at, transport in self._transports() if not (transport.adopts or transport.shares_names)]
        if lonely:
            raise ServeError(
                f"--at {lonely[0]} cannot be served by workers: a client does not come there by a socket, which a "
                "supervisor could pass on to one; leave --workers and --reload away, or --at"
            )

    @property
    def adopts(self) -> bool:
        """Whether clients come by sockets, which a supervisor accepts."""
        return any(transport.adopts for _, transport in self._transports())

    def _transports(self) -> list[tuple[str, Transport]]:
        try:
            return [(at, transport_at(at)) for at in self.at]
        except (ValueError, ImportError) as error:
            raise ServeError(str(error)) from None

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a loop of the configured kind."""
        (uvloop.run if self.loop == "uvloop" else asyncio.run)(main)

    def configure_logging(self) -> None:
        """Configure logging. Raises ServeError if the file cannot be used."""
        if self.log_config is None:
            logging.basicConfig(level=(self.log_level or "info").upper(), format=_FORMAT)
            return
        try:
            _configure_from(Path(self.log_config))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RuntimeError) as error:
            raise ServeError(f"--log-config {self.log_config}: {error}") from None
        if self.log_level is not None:
            logging.getLogger("shmrpc").setLevel(self.log_level.upper())


def _configure_from(path: Path) -> None:
    """Configure logging from a file, and keep the loggers that exist."""
    content = path.read_text(encoding="utf-8")
    if path.suffix in (".yaml", ".yml"):
        configuration = _read_yaml(content)
    elif path.suffix == ".json":
        configuration = msgspec.json.decode(content)
    else:
        logging.config.fileConfig(path, disable_existing_loggers=False)
        return
    if not isinstance(configuration, dict):
        raise ValueError(f"expected a mapping as for logging.config.dictConfig, got {configuration!r}")
    logging.config.dictConfig({"disable_existing_loggers": False, **configuration})


def _read_yaml(content: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        absent = "a YAML file needs PyYAML: pip install pyyaml; or give it as JSON or INI"
        raise ServeError(f"--log-config: {describe_import_failure('yaml', error, absent)}") from error
    try:
        return yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
