"""Enforced TLS: NATS itself announces TLS, and nothing is sent to NATS before TLS has begun."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

#: Options of NATS's client that it reads only to log in.
_LOGIN_OPTIONS: Final = frozenset(("verbose", "pedantic", "name", "no_echo", "user", "password", "token"))


class NoTls(OSError):
    """Error of a NATS without the requested TLS, or behind an attacker that hides it."""

    def __init__(self) -> None:
        super().__init__(
            "it has no TLS, which tls=, ca= or cert= (or NATS_TLS, NATS_CA or NATS_CERT) asks for; nothing was sent "
            "to it"
        )


class Context(ssl.SSLContext):
    """TLS context of a client that records the beginning of TLS."""

    has_begun = False

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Record that TLS begins, and do as :meth:`ssl.SSLContext.wrap_bio`."""
        self.has_begun = True
        return super().wrap_bio(*arguments, **options)


class Options(dict[str, Any]):
    """Options of NATS's client; reading those for the login raises NoTls before TLS has begun.

    The client puts names, passwords and signatures into one message, which is then never built.
    """

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def __getitem__(self, name: str) -> Any:
        if name in _LOGIN_OPTIONS and not self._context.has_begun:
            raise NoTls
        return super().__getitem__(name)


def make_context(files: Mapping[str, str]) -> Context:
    """Return the TLS context of a client with the files ``ca``, ``cert`` and ``key``, each of which may be missing.

    Without ``ca``, the system's authorities are trusted. Raises ValueError, which names the invalid file.
    """
    context = Context(ssl.PROTOCOL_TLS_CLIENT)
    if "ca" in files:
        try:
            context.load_verify_locations(files["ca"])
        except OSError as error:
            raise ValueError(f"ca={files['ca']}: {_error_text(error)}") from None
    else:
        context.load_default_certs()
    if "cert" in files:
        named = " and ".join(f"{name}={files[name]}" for name in ("cert", "key") if name in files)
        try:
            context.load_cert_chain(files["cert"], files.get("key"))
        except OSError as error:
            raise ValueError(f"{named}: {_error_text(error)}") from None
    return context


def _error_text(error: OSError) -> str:
    """Return the reason why a file of TLS cannot be used."""
    if isinstance(error, ssl.SSLError):
        return f"expected PEM, and a key that fits its certificate: {error.reason or error}"
    return error.strerror or str(error)
