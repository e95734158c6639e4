"""Configuration of ``shmrpc serve``, which a supervisor sends to its workers."""

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
    """Error that keeps a server from starting or continuing, with the reason and the remedy.

    ``is_usage``: True if a target or an option is wrong.
    """

    def __init__(self, reason: str, *, is_usage: bool = True) -> None:
        super().__init__(reason)
        self.is_usage = is_usage


class ServeConfig(msgspec.Struct, frozen=True):
    """Configuration of a server."""

    #: Targets, see :mod:`shmrpc.supervisor.targets`.
    targets: list[str]
    #: Absolute path of the folder to import modules from first.
    app_dir: str
    loop: Loop
    #: Seconds that calls in flight have to end when the server stops.
    grace: float
    #: Lowest severity to log; None for info, or for the levels in ``log_config``.
    log_level: str | None
    log_config: str | None
    connection: ConnectionOptions
    max_in_flight: int
    max_per_connection: int
    max_waiting: int
    #: Addresses of the services, as URLs.
    at: list[str]
    #: True if each call is logged.
    access_log: bool = False
    #: True if a result that does not match its declared type fails the call.
    validate_results: bool = False

    def make_server(self, services: Sequence[Service], *, adopting: bool = False) -> Server:
        """Return the server of these services, not entered. Raises ServeError for an invalid option or address.

        ``adopting``: True if a supervisor holds the names and passes clients to the server.
        """
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
        """Raise ServeError if an address is invalid, or if workers cannot serve it. Call this if there are workers."""
        unsupported = [at for at, transport in self._transports() if not (transport.adopts or transport.shares_names)]
        if unsupported:
            raise ServeError(
                f"--at {unsupported[0]} cannot be served by workers, because its clients come by no socket: "
                "remove --workers and --reload, or --at"
            )

    @property
    def accepts_sockets(self) -> bool:
        """True if the clients of at least one address come by sockets, which a supervisor accepts.

        Raises ServeError for an invalid address.
        """
        return any(transport.adopts for _, transport in self._transports())

    def _transports(self) -> list[tuple[str, Transport]]:
        """Return the addresses and their transports. Raises ServeError for an invalid address."""
        try:
            return [(at, transport_at(at)) for at in self.at]
        except (ValueError, ImportError) as error:
            raise ServeError(str(error)) from None

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a new event loop of the configured kind, to its end. Raises what the coroutine raises."""
        (uvloop.run if self.loop == "uvloop" else asyncio.run)(main)

    def configure_logging(self) -> None:
        """Configure the logging of this process. Raises ServeError if the file ``log_config`` cannot be used."""
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
    """Configure logging from a JSON, YAML or INI file, by its suffix, and keep the existing loggers.

    Raises ServeError without PyYAML, OSError, and the errors of decoding and of logging.config.
    """
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
    """Parse YAML. Raises ServeError without PyYAML, ValueError for invalid YAML."""
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        absent = "a YAML file needs PyYAML: pip install pyyaml; or give it as JSON or INI"
        raise ServeError(f"--log-config: {describe_import_failure('yaml', error, absent)}") from error
    try:
        return yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
