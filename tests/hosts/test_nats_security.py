"""Logins and permissions of NATS: the users that NATS admits, the permissions needed, and the errors of a refusal."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped, unused-ignore]
import pytest

import shmrpc
from tests.helpers.nats_servers import NatsServer
from tests.helpers.server_process import PATIENCE

LOOP = "either"
HOSTS = (Path(__file__).parents[2] / "docs" / "how-to" / "hosts.md").read_text()

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
    """Yield a function that starts a server of NATS with a configuration."""
    servers = []

    def run(config: str) -> NatsServer:
        servers.append(NatsServer(config))
        return servers[-1]

    yield run
    for server in servers:
        server.close()


async def use(url: str, other: str | None = None) -> None:
    """Serve at one URL and call at another."""
    async with shmrpc.serve(service, at=url), shmrpc.connect("shop", at=other or url, timeout=PATIENCE) as client:
        assert await client.double(2) == 4
        assert "@" not in client.address


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


def key(kind: int) -> Any:
    """Return a new pair of keys: an operator's, an account's or a user's."""
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), kind)))


def signed(signer: Any, subject: Any, kind: str, **claims: Any) -> str:
    """Return a JWT of NATS with which ``signer`` makes claims about ``subject``."""
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


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


async def certificate(folder: Path, name: str = "127.0.0.1") -> tuple[Path, Path]:
    """Make a self-signed certificate, and return its file and that of its key."""
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={'IP' if name[0].isdigit() else 'DNS'}:{name}"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", *names]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    return cert, key


@needs_openssl
async def test_tls_is_spoken_with_an_authority_that_is_named(
    start: Callable[[str], NatsServer], tmp_path: Path
) -> None:
    cert, key = await certificate(tmp_path)
    user = 'authorization { user: me, password: "s3cret" }'
    server = start(f'tls {{ cert_file: "{cert}", key_file: "{key}" }}\n{user}')
    url = server.url.replace("://", "://me:s3cret@")
    await use(f"{url}?ca={cert}")
    with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)cannot reach NATS at .*certificate"):
        await use(url)


@needs_openssl
async def test_the_error_of_a_timeout_says_why_tls_failed(start: Callable[[str], NatsServer], tmp_path: Path) -> None:
    cert, key = await certificate(tmp_path)
    server = start(f'tls {{ cert_file: "{cert}", key_file: "{key}" }}')
    for option in ("tls=on", "tls=off"):
        with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)cannot reach NATS at .*certificate.*waited"):
            await shmrpc.connect("shop", at=f"{server.url}?{option}", timeout=1.5)
    other, _ = await certificate(tmp_path, "elsewhere")
    with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)cannot reach NATS at .*certificate"):
        await shmrpc.connect("shop", at=f"{server.url}?ca={other}", timeout=1.5)


class Thief:
    """A false server of NATS without TLS, which records all lines that clients send."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.url = ""

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true,'
            b'"auth_required":true,"nonce":"abcdefgh"}\r\n'
        )
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                self.told.append(line)
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        writer.close()


@pytest.fixture
async def thief() -> AsyncIterator[Thief]:
    found = Thief()
    async with await asyncio.start_server(found.greet, "127.0.0.1", 0) as server:
        found.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield found


@pytest.mark.parametrize("option", ["creds", "nkey"])
async def test_a_login_that_needs_a_missing_package_names_it(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(ImportError, match=rf"{option}= needs nkeys, .*pip install 'shmrpc\[nats,nkeys\]'"):
        await shmrpc.connect("shop", at=f"nats://127.0.0.1:9?{option}={tmp_path}/file", timeout=0)


@needs_openssl
@pytest.mark.parametrize("login", ["me:s3cret@", "s3cret@", "nkey", "creds", ""])
@pytest.mark.parametrize("option", ["tls", "ca", "cert"])
async def test_a_client_that_asks_for_tls_sends_nothing_to_a_server_without_tls(
    thief: Thief, login: str, option: str, tmp_path: Path
) -> None:
    cert, key_file = await certificate(tmp_path)
    options = [{"tls": "tls=on", "ca": f"ca={cert}", "cert": f"cert={cert}&key={key_file}"}[option]]
    if login in ("nkey", "creds"):
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER).decode()
        text = "-----BEGIN NATS USER JWT-----\njwt\n------END NATS USER JWT------\n"
        text += f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        (tmp_path / "file").write_text(seed if login == "nkey" else text)
        options.append(f"{login}={tmp_path}/file")
        login = ""
    url = f"{thief.url.replace('://', f'://{login}')}?{'&'.join(options)}"
    with pytest.raises(shmrpc.ServiceUnavailable, match="it has no TLS, which tls=, ca= or cert="):
        await shmrpc.connect("shop", at=url, timeout=0)
    with pytest.raises(shmrpc.ServiceUnavailable, match="it has no TLS"):
        await use(url)
    assert thief.told == []
    with pytest.raises(shmrpc.ServiceUnavailable):  # Without TLS the thief does record the login.
        await shmrpc.connect("shop", at=url.replace(options[0], "tls=off"), timeout=0)
    assert thief.told[0].startswith(b"CONNECT")


async def test_a_silent_server_is_reported() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(shmrpc.ServiceUnavailable, match="does not answer"):
            await shmrpc.connect("shop", at=url, timeout=0.1)
        with pytest.raises(shmrpc.ServiceUnavailable, match="cannot reach NATS at .*: no answer within 2 s: the addr"):
            await shmrpc.connect("shop", at=url, timeout=3)


async def test_tls_is_insisted_on_with_a_server_that_has_none(
    start: Callable[[str], NatsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start("")
    with pytest.raises(shmrpc.ServiceUnavailable, match="it has no TLS"):
        await use(f"{server.url}?tls=on")
    monkeypatch.setenv("NATS_TLS", "on")
    with pytest.raises(shmrpc.ServiceUnavailable, match=r"it has no TLS.*waited"):
        await shmrpc.connect("shop", at=server.url, timeout=1)
    await use(f"{server.url}?tls=off")


@needs_openssl
async def test_a_wrong_option_raises_at_once_and_is_named(start: Callable[[str], NatsServer], tmp_path: Path) -> None:
    server = start("")
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("nonsense s3cret")
    cert, _ = await certificate(tmp_path)
    _, other = await certificate(tmp_path, "elsewhere")
    for options, message in {
        "creds=/absent": "creds=/absent: No such file",
        f"creds={rubbish}": "creds=.*rubbish: expected a user's JWT and its seed",
        "nkey=/absent": "nkey=/absent: No such file",
        f"nkey={rubbish}": "nkey=.*rubbish: expected the seed of an nkey",
        "ca=/absent": "ca=/absent: No such file",
        f"ca={rubbish}": "ca=.*rubbish: expected PEM",
        f"cert={cert}&key={other}": "cert=.*pem and key=.*key: expected PEM, and a key that fits",
        f"cert={cert}&key=/absent": "cert=.* and key=/absent: No such file",
    }.items():
        url = f"{server.url}?{options}"
        with pytest.raises(shmrpc.ServiceUnavailable, match=f"cannot log in to NATS at .*: {message}") as caught:
            await asyncio.wait_for(shmrpc.connect("shop", at=url, timeout=math.inf).__aenter__(), PATIENCE)
        assert "s3cret" not in str(caught.value)
        with pytest.raises(shmrpc.ServiceUnavailable, match=message):
            await use(url)


async def test_a_refused_login_is_reported_also_after_the_timeout(start: Callable[[str], NatsServer]) -> None:
    url = start('authorization { user: me, password: "s3cret" }').url
    for timeout in (0, 1.2):
        with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)authorization"):
            await shmrpc.connect("shop", at=url, timeout=timeout)


async def test_the_documented_permissions_of_nats_are_sufficient_and_necessary(
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
    at_web, at_shop = f"{web}?inbox=web", f"{shop}?inbox=shop"
    for at, code, words in ((at_web, 0, "No servers have answered"), (at_shop, 3, "(?i)permissions violation")):
        command = [sys.executable, "-m", "shmrpc", "ls", "--at", at]
        listed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert listed.returncode == code and re.search(words, listed.stdout + listed.stderr)
    async with shmrpc.serve(service, at=f"{shop}?inbox=shop"):
        with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)cannot reach 'shop' at .*permissions violation"):
            await shmrpc.connect("shop", at=web, timeout=1.5)  # The URL lacks its inbox.
        with pytest.raises(shmrpc.ServiceUnavailable, match="(?i)permissions violation"):
            await shmrpc.connect("shop", at=f"{shop}?inbox=shop", timeout=0)  # This user may serve, but not call.


@pytest.mark.parametrize(
    ("login", "words"),
    [("shop:s@", "(?i)permissions violation"), ("shop:wrong@", "(?i)authorization"), ("", "(?i)authorization")],
)
def test_a_server_without_permission_to_serve_ends_at_once_with_the_reason(
    start: Callable[[str], NatsServer], login: str, words: str
) -> None:
    config = re.search(r"```text\n(accounts: .*?)```", HOSTS, re.DOTALL)
    assert config is not None
    url = start(config[1].replace("$WEB", "w").replace("$SHOP", "s")).url.replace("://", f"://{login}")
    command = [sys.executable, "-m", "shmrpc", "serve", "tests.hosts.test_nats_security:service", "--at", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1 and re.search(words, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
