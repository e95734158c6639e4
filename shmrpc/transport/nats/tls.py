"""TLS that is insisted on: NATS says itself whether it has TLS, and until it has begun nothing is said to NATS."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

#: Options of NATS's client that it reads to log in, and never before.
_SAID: Final = frozenset(("verbose", "pedantic", "name", "no_echo", "user", "password", "token"))


class NoTls(OSError):
    """NATS has no TLS, which was asked for, or somebody on the way there hides it."""

    def __init__(self) -> None:
        super().__init__(
            "it has no TLS, which tls=, ca= or cert= (or NATS_TLS, NATS_CA or NATS_CERT) asks for; nothing was said "
            "to it"
        )


class Context(ssl.SSLContext):
    """A client's, which knows whether TLS has begun."""

    has_begun = False

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """See :meth:`ssl.SSLContext.wrap_bio`: with it each loop begins TLS."""
        self.has_begun = True
        return super().wrap_bio(*arguments, **options)


class Options(dict[str, Any]):
    """The options of NATS's client. What it would say to NATS cannot be read from them before TLS has begun.

    Names, passwords and signatures: it makes all of them into one message, and that never comes about.
    """

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def __getitem__(self, name: str) -> Any:
        if name in _SAID and not self._context.has_begun:
            raise NoTls
        return super().__getitem__(name)


def context(files: Mapping[str, str]) -> Context:
    """The context of a client with these files. Raises ValueError, which names the one that is wrong."""
    made = Context(ssl.PROTOCOL_TLS_CLIENT)
    if "ca" in files:
        try:
            made.load_verify_locations(files["ca"])
        except OSError as error:
            raise ValueError(f"ca={files['ca']}: {_words(error)}") from None
    else:
        made.load_default_certs()
    if "cert" in files:
        named = " and ".join(f"{name}={files[name]}" for name in ("cert", "key") if name in files)
        try:
            made.load_cert_chain(files["cert"], files.get("key"))
        except OSError as error:
            raise ValueError(f"{named}: {_words(error)}") from None
    return made


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"expected PEM, and a key that fits its certificate: {error.reason or error}"
    return error.strerror or str(error)
