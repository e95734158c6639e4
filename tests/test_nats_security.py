"""Who is let in by NATS, what NATS has to permit, and what a refusal says."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped, unused-ignore]
import pytest

import shmrpc
from tests.helpers.nats_servers import NatsServer
from tests.helpers.server_process import PATIENCE

HOSTS = (Path(__file__).parents[1] / "docs" / "hosts.md").read_text()

service = shmrpc.Service("shop")


@service.endpoint
def double(number: int) -> int:
    return 2 * number


@pytest.fixture(autouse=True)
def without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("NATS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def start() -> Iterator[Callable[[str], NatsServer]]:
    """Starts a server of NATS with this in its configuration."""
    servers = []

    def run(config: str) -> NatsServer:
        servers.append(NatsServer(config))
        return servers[-1]

    yield run
    for server in servers:
        server.close()


async def use(url: str, other: str | None = None) -> None:
    """Serves at one URL and calls at another."""
    async with shmrpc.serve(service, at=url), shmrpc.connect("shop", at=other or url, timeout=PATIENCE) as client:
        assert await client.double(2) == 4
        assert "@" not in client.place


@pytest.mark.parametrize(
    ("config", "login", "name", "value"),
    [
        ('authorization { user: me, password: "s3cret" }', "me:s3cret@", "NATS_PASSWORD", "s3cret"),
        ('authorization { token: "s3cret" }', "s3cret@", "NATS_TOKEN", "s3cret"),
    ],
)
async def test_a_login_is_taken_from_the_url_or_the_environment_and_is_never_told(
    start: Callable[[str], NatsServer],
    config: str,
    login: str,
    name: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    server = start(config)
    url = server.url.replace("://", f"://{login}")
    await use(url)
    with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)cannot reach NATS at .*authorization") as caught:
        await use(url.replace("s3cret", "wr0ng"))
    assert "wr0ng" not in str(caught.value)
    with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)authorization"):
        await use(server.url)
    if name == "NATS_PASSWORD":
        monkeypatch.setenv("NATS_USER", "me")
    monkeypatch.setenv(name, value)
    await use(server.url)
    assert not re.search("s3cret|wr0ng", caplog.text)


async def test_an_nkey_is_read_from_its_file(start: Callable[[str], NatsServer], tmp_path: Path) -> None:
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    server = start(f"authorization {{ users: [{{ nkey: {public} }}] }}")
    file = tmp_path / "user.nk"
    file.write_bytes(seed)
    await use(f"{server.url}?nkey={file}")
    file.write_text("nonsense")
    with pytest.raises(shmrpc.ServiceUnavailable, match="cannot (log in to|reach) NATS"):
        await use(f"{server.url}?nkey={file}")
    with pytest.raises(shmrpc.ServiceUnavailable, match="No such file"):
        await use(f"{server.url}?creds={tmp_path}/absent")


def key(kind: int) -> Any:
    """A new pair of keys: an operator's, an account's or a user's."""
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), kind)))


def signed(signer: Any, subject: Any, kind: str, **claims: Any) -> str:
    """A JWT as NATS has them: what ``signer`` says of ``subject``."""
    issuer, about = (each.public_key.decode() for each in (signer, subject))
    said = {"jti": about, "iat": 0, "iss": issuer, "sub": about, "name": kind}
    parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, {**said, "nats": {"type": kind, "version": 2, **claims}}]
    text = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    return f"{text}.{base64.urlsafe_b64encode(signer.sign(text.encode())).rstrip(b'=').decode()}"


async def test_credentials_are_read_from_their_file(
    start: Callable[[str], NatsServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    kinds = (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)
    operator, account, user = map(key, kinds)
    bounds = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    of_account = signed(operator, account, "account", limits={**bounds, "wildcards": True})
    server = start(
        f"operator: {signed(operator, operator, 'operator')}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public_key.decode()}: {of_account} }}"
    )
    of_user, seed = signed(account, user, "user", subs=-1, data=-1, payload=-1), user.seed.decode()
    file = tmp_path / "user.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    await use(f"{server.url}?creds={file}")
    with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)cannot reach NATS at .*authorization"):
        await use(server.url)
    monkeypatch.setenv("NATS_CREDS", str(file))
    await use(server.url)
    file.write_text("nonsense")
    with pytest.raises(shmrpc.ServiceUnavailable, match="cannot (log in to|reach) NATS") as caught:
        await use(server.url)
    assert not any(secret in caplog.text + str(caught.value) for secret in (of_user, seed))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_tls_is_spoken_with_an_authority_that_is_named(
    start: Callable[[str], NatsServer], tmp_path: Path
) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", *names]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    server = start(f'tls {{ cert_file: "{cert}", key_file: "{key}" }}')
    await use(f"{server.url}?ca={cert}")
    with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)cannot reach NATS at .*certificate"):
        await use(server.url)


async def test_what_the_page_says_that_nats_has_to_permit_is_enough_and_not_too_much(
    start: Callable[[str], NatsServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "shmrpc")
    config = re.search(r"```text\n(accounts: .*?)```", HOSTS, re.DOTALL)
    assert config is not None
    server = start(config[1].replace("$WEB", "w").replace("$SHOP", "s"))
    web, shop = (server.url.replace("://", f"://{user}@") for user in ("web:w", "shop:s"))
    await use(f"{shop}?inbox=shop", f"{web}?inbox=web")
    with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)permissions violation"):  # No server.
        await use(f"{web}?inbox=web")
    with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)permissions violation"):  # Another one's inbox.
        await use(f"{shop}?inbox=web")
    async with shmrpc.serve(service, at=f"{shop}?inbox=shop"):
        with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)permissions violation"):
            await shmrpc.connect("shop", at=f"{shop}?inbox=shop", timeout=0)  # It may serve, and not call.
