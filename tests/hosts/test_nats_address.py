"""URLs of nats://: what they say, what the environment says, and that no secret comes out again."""

from __future__ import annotations

import re

import pytest

import shmrpc
from shmrpc.transport.nats import subjects
from shmrpc.transport.nats.address import NatsAddress, parse


@pytest.fixture(autouse=True)
def without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "PASSWORD", "TOKEN", "CREDS", "NKEY", "CA", "CERT", "KEY", "TLS"):
        monkeypatch.delenv(f"NATS_{name}", raising=False)


def test_a_url_names_servers_a_service_and_options() -> None:
    assert parse("host") == (NatsAddress(("host:4222",)), "")
    assert parse("host:1,[::1]:2/shop") == (NatsAddress(("host:1", "[::1]:2")), "shop")
    assert parse("host/shop?heartbeat=0.5&inbox=alice") == (NatsAddress(("host:4222",), 0.5, "alice"), "shop")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("me:pass%40word@host", (("user", "me"), ("password", "pass@word"))),
        ("t0ken@host", (("token", "t0ken"),)),
        ("host?creds=/a/file", (("creds", "/a/file"),)),
        ("host?nkey=/a/seed", (("nkey", "/a/seed"),)),
    ],
)
def test_a_login_comes_from_the_url_before_the_environment(
    url: str, expected: tuple[tuple[str, str], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_USER", "other")
    monkeypatch.setenv("NATS_CREDS", "/other")
    assert parse(url)[0].login == expected
    assert parse("host")[0].login == (("user", "other"), ("password", ""))
    monkeypatch.delenv("NATS_USER")
    assert parse("host")[0].login == (("creds", "/other"),)


@pytest.mark.parametrize(
    "rest",
    ["u:p@a,b:1", "u:p@a,u:p@b:1", "u:p@a:4222,nats://u:p@b:1", "u:p@a,nats://b:1", "u:p@a,b,u:p@c"],
)
def test_one_login_is_for_all_hosts_and_may_be_repeated(rest: str) -> None:
    hosts = ("a:4222", "b:4222", "c:4222") if rest.endswith("c") else ("a:4222", "b:1")
    for ending in ("", "/shop", "?heartbeat=3"):
        address, _ = parse(rest + ending)
        assert (address.servers, address.login) == (hosts, (("user", "u"), ("password", "p")))


def test_a_comma_or_an_at_in_a_password_that_cannot_be_a_list_of_hosts_is_of_the_password() -> None:
    for password in ("p,q", "p@q", "a@b@c"):
        assert parse(f"u:{password}@host")[0].login == (("user", "u"), ("password", password))


def test_nats_url_is_pointed_to_where_a_url_has_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://u:s3cret@host")
    with pytest.raises(ValueError, match="NATS_URL is not read") as caught:
        shmrpc.serve(shmrpc.Service("shop"), at="nats://")
    assert "s3cret" not in str(caught.value)


def test_tls_is_asked_for_by_its_files_or_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("host")[0].tls == ()
    assert parse("host?tls=on")[0].tls == (("tls", "on"),)
    assert parse("host?ca=/ca&cert=/c&key=/k")[0].tls == (("ca", "/ca"), ("cert", "/c"), ("key", "/k"))
    monkeypatch.setenv("NATS_CA", "/other")
    assert parse("host")[0].tls == (("ca", "/other"),)
    assert parse("host?tls=off")[0].tls == ()
    monkeypatch.setenv("NATS_TLS", "off")
    assert parse("host")[0].tls == ()
    monkeypatch.setenv("NATS_TLS", "1")
    with pytest.raises(ValueError, match="NATS_TLS: expected on or off, got '1'"):
        parse("host")
    assert parse("host?tls=on")[0].tls == (("tls", "on"),)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nats://", r"expected nats://HOST:PORT.*got ''"),
        ("nats://host:0", "got 'host:0'"),
        ("nats://host:99999", "got 'host:99999'"),
        ("nats://a b", "got 'a b'"),
        ("nats://host?heartbeet=1", "has no option 'heartbeet'; did you mean 'heartbeat'?"),
        ("nats://host?wait=1", "has no option 'wait'; it has creds, nkey"),
        ("nats://host:1,/shop", "got '' for one of them"),
        ("nats://u:p@host,v:p@other", "expected one login for all hosts"),
        ("nats://u:p@host,u:q@other", "expected one login for all hosts"),
        ("nats://host,u:p@other", "expected one login for all hosts"),
        ("nats://u:12,x@host", "with %2C for each , in it"),
        ("nats://u:p@host,nats://t0ken@other", "expected one login for all hosts"),
        ("tls://u:p@host:4222", "starts with .*; for NATS with TLS write nats://HOST"),
        ("ws://host", "NATS is not reached over WebSocket: write nats://HOST:PORT"),
        ("wss://host/shop", "NATS is not reached over WebSocket"),
        ("nats://host?creds=", "creds: expected a value"),
        ("nats://host?heartbeat=soon", "heartbeat: expected 0.1 to 3600 seconds, got 'soon'"),
        ("nats://host?heartbeat=0", "heartbeat: expected 0.1 to 3600 seconds"),
        ("nats://host?inbox=a.b", "inbox: expected 1 to 64 of"),
        ("nats://host?tls=maybe", "tls: expected on or off"),
        ("nats://host?key=/k", "key: it belongs to a certificate"),
        ("nats://host?inbox=a&inbox=b", "inbox: expected it once, got it 2 times"),
        ("nats:/host/shop", "expected two slashes, nats://"),
        ("nats://host/shop", "expected an address without a name.*leave out 'shop'"),
    ],
)
def test_a_wrong_url_raises_with_the_reason(url: str, message: str) -> None:
    service = shmrpc.Service("shop")
    with pytest.raises(ValueError, match=message):
        shmrpc.serve(service, at=url)


def test_a_url_with_one_slash_raises_with_the_reason() -> None:
    with pytest.raises(ValueError, match="'nats:/host/shop': expected two slashes, nats://"):
        shmrpc.connect("nats:/host/shop")


def test_no_secret_is_in_a_message() -> None:
    service = shmrpc.Service("shop")
    for url in ("nats://me:s3cret@host:0", "nats://s3cret@host/shop", "natz://me:s3cret@host"):
        with pytest.raises(ValueError, match="host") as caught:
            shmrpc.serve(service, at=url)
        assert "s3cret" not in str(caught.value)
    for secret in ("s3/cret", "s3?cret", "s3?cret=1", "s3:cr/et", "12?cret=1", "s3@cr/et"):
        for login in (f"me:{secret}", secret):
            with pytest.raises(ValueError, match="with %2F for each / in it") as caught:
                shmrpc.serve(service, at=f"nats://{login}@host")
            assert not re.search("s3|cr|et@|12", str(caught.value))
    assert parse("host?creds=/home/me@work/file")[0].login == (("creds", "/home/me@work/file"),)
    with pytest.raises(ValueError, match="leave one out") as caught:
        shmrpc.connect("nats://me:s3cret@host/shop", at="shm")
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(parse("me:s3cret@host")[0]) + str(parse("me:s3cret@host")[0])


@pytest.mark.parametrize(
    ("name", "token"),
    [("shop", "shop"), ("shop.orders-1", "shop%2Eorders-1"), ("a*b>c d", "a%2Ab%3Ec%20d"), ("käse", "k%C3%A4se")],
)
def test_a_name_is_one_token_of_a_subject(name: str, token: str) -> None:
    assert subjects.token(name) == token
    assert subjects.hello(name) == f"shmrpc.hello.{token}"


@pytest.mark.parametrize("subject", ["", "shop", "shmrpc.to.any.x", "shmrpc.to.*.x.1", "shmrpc.to.any.x.1.2", "$SYS.1"])
def test_only_ends_of_connections_are_answered(subject: str) -> None:
    assert not subjects.is_end(subject)
    assert subjects.is_end("shmrpc.to.any.Ab-_9.12")
