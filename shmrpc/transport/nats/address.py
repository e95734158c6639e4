"""Address and login of NATS, from a URL, the environment and files.

::

    nats://[USER:PASSWORD@ or TOKEN@]HOST[:PORT][,HOST[:PORT]...][/SERVICE][?OPTION=VALUE&...]

One login is for all hosts. It may be repeated with each of them, ``u:p@A,u:p@B``, as NATS's own tools write it.

=============  ==================  ===============================================================================
option         in the environment  meaning
=============  ==================  ===============================================================================
(user)         NATS_USER           user and password
(password)     NATS_PASSWORD
(token)        NATS_TOKEN          a token
``creds``      NATS_CREDS          a file with a user's JWT and seed
``nkey``       NATS_NKEY           a file with the seed of an nkey
``ca``         NATS_CA             a file with the authorities whose certificates are trusted; asks for TLS
``cert``       NATS_CERT           this side's certificate, a file; asks for TLS
``key``        NATS_KEY            its key, a file
``tls``        NATS_TLS            ``on`` asks for TLS with the authorities that the system trusts
``heartbeat``                      seconds within which a dead peer is noticed; 2 if it is not given
``inbox``                          a name in the subjects of this side, so that permissions can tell users apart
=============  ==================  ===============================================================================

The names in the environment are those of NATS's own command. A variable counts only if the URL does not have the
option: NATS_TOKEN is ignored if the URL has a user and a password.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from shmrpc.basics.import_hints import describe_import_failure
from shmrpc.basics.suggestions import closest_match
from shmrpc.transport.nats import tls

DEFAULT_PORT: Final = 4222
#: Seconds within which a dead peer is noticed; each side sends a heartbeat at a fifth of that interval.
DEFAULT_HEARTBEAT: Final = 2.0
_MIN_HEARTBEAT: Final = 0.1
_MAX_HEARTBEAT: Final = 3600.0
_OPTIONS: Final = ("creds", "nkey", "ca", "cert", "key", "tls", "heartbeat", "inbox")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
#: Up to the last @, since a / or ? in a password may not have been escaped.
_SECRETS: Final = re.compile(r"(?<=://).*@", re.DOTALL)


def without_secrets(text: str) -> str:
    """Return a text for messages, with "…" for all between the first ``://`` and the last ``@``.

    These characters contain the login of a URL, and may contain hosts.
    """
    return _SECRETS.sub("…@", text)


@dataclasses.dataclass(frozen=True)
class NatsAddress:
    """Address and login of NATS. Its text contains no secret."""

    #: ``host:port`` of the servers of one cluster.
    servers: tuple[str, ...]
    heartbeat: float = DEFAULT_HEARTBEAT
    inbox: str = "any"
    #: Login: user and password, token, creds or nkey.
    login: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    #: Files for TLS, and True if TLS is required.
    tls: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)

    def __str__(self) -> str:
        return "nats://" + ",".join(self.servers)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for ``nats.connect``, after reading the files of the login and of TLS.

        Raises ValueError, naming the option, for an unusable file, and ImportError if ``creds`` or ``nkey`` needs a
        missing package.
        """
        file_arguments = {"creds": "user_credentials", "nkey": "nkeys_seed"}
        arguments: dict[str, Any] = {file_arguments.get(name, name): value for name, value in self.login}
        for name, file in self.login:
            if name in file_arguments:
                _check_file(name, file)
        if self.tls:
            arguments["tls"] = tls.make_context(dict(self.tls))
        return {"servers": [f"nats://{server}" for server in self.servers], **arguments}


def _check_file(name: str, file: str) -> None:
    """Raise ValueError unless a file has the contents of ``creds`` or ``nkey``.

    NATS's client would fail later, without naming the file. Raises ImportError without the package nkeys, which signs
    the login.
    """
    nkeys = _import_nkeys(name)
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"{name}={file}: {error.strerror}") from None
    if name == "creds":
        if not all(part in data for part in (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")):
            raise ValueError(f"creds={file}: expected a user's JWT and its seed, as NATS's tools write them")
        return
    try:
        nkeys.from_seed(bytearray(data.strip())).wipe()
    except Exception:  # Of many types, some of which show the contents of the file.
        raise ValueError(f"nkey={file}: expected the seed of an nkey, which begins with SU") from None


def _import_nkeys(option: str) -> Any:
    """Return the package nkeys. Raises ImportError with instructions if it is not installed."""
    try:
        return importlib.import_module("nkeys")
    except ImportError as error:
        missing = f"{option}= needs nkeys, which is not installed here: pip install 'shmrpc[nats,nkeys]'"
        raise ImportError(describe_import_failure("nkeys", error, missing)) from None


def parse(rest: str) -> tuple[NatsAddress, str]:
    """Parse a URL after ``nats://``. Returns the address, and the name of a service or "", which is not checked.

    Reads a login and options of TLS that the URL lacks from the environment, and reads no file. Raises ValueError for
    an invalid URL or option.
    """
    before, _, query = rest.partition("?")
    before = _drop_repeated_schemes(before)
    authority, _, service = before.partition("/")
    login, at, hosts = _split_repeated_login(authority) or authority.rpartition("@")
    if "@" in service or (not at and "@" in rest and not _can_be_hosts(hosts, query)):
        raise ValueError(
            "expected USER:PASSWORD@HOST or TOKEN@HOST, with %2F for each / in it, %3F for ? and %40 for @"
        )
    options = _parse_options(query)
    return NatsAddress(
        tuple(_parse_host(host) for host in hosts.split(",")),
        _parse_heartbeat(options.get("heartbeat")),
        _parse_inbox(options.get("inbox")),
        _find_login(login if at else "", options),
        _find_tls_files(options),
    ), unquote(service)


def _drop_repeated_schemes(before: str) -> str:
    """Return a URL after ``nats://`` without the scheme that further hosts may repeat."""
    return re.sub(r",nats://", ",", before)


def _split_repeated_login(authority: str) -> tuple[str, str, str] | None:
    """Return the login that several hosts repeat, "@", and the hosts; None if this is no list of hosts with logins.

    A password with a comma or an @ does not make such a list. Raises ValueError if the logins differ, or if a host
    before the login has none.
    """
    pairs = [item.rpartition("@") for item in authority.split(",")]
    logins = [login for login, at, _ in pairs if at]
    if len(pairs) == 1 or not logins or any("@" in login for login in logins):
        return None
    if not all(_HOST.fullmatch(host) for _, _, host in pairs) or (len(logins) == 1 and pairs[0][1]):
        return None
    if len(set(logins)) > 1 or not pairs[0][1]:
        raise ValueError(
            "expected one login for all hosts, USER:PASSWORD@HOST,HOST; with %2C for each , in it and %40 for each @"
        )
    return logins[0], "@", ",".join(host for _, _, host in pairs)


def _can_be_hosts(hosts: str, query: str) -> bool:
    """Return True if these are valid hosts and options, not the rest of a password that was cut at a / or ?."""
    known = all(name in _OPTIONS for name, _ in parse_qsl(query, keep_blank_values=True))
    return known and all(_HOST.fullmatch(host) for host in hosts.split(","))


def _parse_options(query: str) -> dict[str, str]:
    """Return the options of a URL. Raises ValueError for an unknown, empty or repeated one."""
    pairs = parse_qsl(query, keep_blank_values=True)
    for name, value in pairs:
        if name not in _OPTIONS:
            near = closest_match(name, _OPTIONS)
            meant = f"did you mean {near!r}?" if near else f"it has {', '.join(_OPTIONS)}"
            raise ValueError(f"a URL of nats:// has no option {name!r}; {meant}")
        if not value:
            raise ValueError(f"{name}: expected a value after '{name}='")
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ValueError(f"{name}: expected it once, got it {count} times")
    return dict(pairs)


def _parse_host(host: str) -> str:
    """Return ``host:port``, with the default port if the host has none. Raises ValueError."""
    found = _HOST.fullmatch(host)
    port = int(found[2] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 1 << 16:
        hint = (
            "; NATS_URL is not read: put what it says into the URL" if not host and os.environ.get("NATS_URL") else ""
        )
        raise ValueError(
            f"expected nats://HOST:PORT, or several such with commas between, got {host!r} for one of them{hint}"
        )
    return f"{found[1]}:{port}"


def _parse_heartbeat(text: str | None) -> float:
    """Return the seconds of ``heartbeat``; 2 if the option is missing. Raises ValueError outside 0.1 to 3600."""
    if text is None:
        return DEFAULT_HEARTBEAT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _MIN_HEARTBEAT <= seconds <= _MAX_HEARTBEAT:
        raise ValueError(f"heartbeat: expected {_MIN_HEARTBEAT:g} to {_MAX_HEARTBEAT:g} seconds, got {text!r}")
    return seconds


def _parse_inbox(text: str | None) -> str:
    """Return the name of ``inbox``; "any" if the option is missing. Raises ValueError for an invalid name."""
    if text is None:
        return "any"
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text):
        raise ValueError(f"inbox: expected 1 to 64 of A-Z a-z 0-9 _ -, got {text!r}")
    return text


def _find_login(userinfo: str, options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the login of the URL, or else of the environment, as pairs of name and value; empty if there is none.

    Of several logins in one source, the first of user, token, creds and nkey counts.
    """
    user, colon, password = userinfo.partition(":")
    if colon:
        return ("user", unquote(user)), ("password", unquote(password))
    if user:
        return (("token", unquote(user)),)
    for name in ("creds", "nkey"):
        if name in options:
            return ((name, options[name]),)
    environment = os.environ
    if environment.get("NATS_USER"):
        return ("user", environment["NATS_USER"]), ("password", environment.get("NATS_PASSWORD", ""))
    for name in ("token", "creds", "nkey"):
        if environment.get(f"NATS_{name.upper()}"):
            return ((name, environment[f"NATS_{name.upper()}"]),)
    return ()


def _find_tls_files(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the options of TLS in the URL, or else in the environment; empty without TLS. Raises ValueError."""
    names = ("ca", "cert", "key", "tls")
    given, where = {name: options[name] for name in names if name in options}, "tls"
    if not given:
        given = {name: os.environ[f"NATS_{name.upper()}"] for name in names if os.environ.get(f"NATS_{name.upper()}")}
        where = "NATS_TLS"
    wanted = given.get("tls", "on")
    if wanted not in ("on", "off"):
        raise ValueError(f"{where}: expected on or off, got {wanted!r}")
    if wanted == "off":
        return ()
    if "key" in given and "cert" not in given:
        raise ValueError("key: it belongs to a certificate: give cert=FILE too")
    return tuple(given.items())
