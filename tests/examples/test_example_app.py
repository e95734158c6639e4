"""The code search on the web: httpx, uvicorn and the service are three processes, and any of them may fail."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from shmrpc.host.status import collect_reports
from tests.helpers.server_process import STOPPING, ServerProcess, eventually

SERVICE = "examples.code_search.service:code_search"
#: The same with fewer files, for tests that start services of their own.
SMALL = "tests.examples.small_code_search:code_search"
#: A text of most lines, so that a reader that stops after one line is far from the end.
FREQUENT = "e"
ABSENT = "no such text in the library"
#: The deadline, in seconds, of streams that must not end by their deadline.
LONG = 600


class WebProcess:
    """uvicorn with the app, at a port of its own; ``http`` is a client of it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "uvicorn", "examples.code_search.app:app", "--port", "0", "--no-use-colors"]
        with log.open("w") as stderr:
            self.process = subprocess.Popen(command, stderr=stderr, stdout=subprocess.DEVNULL)
        assert eventually(lambda: self._address is not None or self.process.poll() is not None, 120), self.log
        assert self._address is not None, self.log
        self.http = httpx.Client(base_url=self._address, trust_env=False, timeout=120)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def _address(self) -> str | None:
        found = re.search(r"running on (http://\S+)", self.log)
        return found and found[1]

    def under_way(self) -> list[str]:
        return list(self.http.get("/status").json()["under_way"])

    def __enter__(self) -> WebProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        assert "Traceback" not in self.log, self.log


@pytest.fixture(scope="module")
def shared_web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """One service and one app for all tests that leave them as they are."""
    directory = tmp_path_factory.mktemp("web")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        with ServerProcess(SERVICE), WebProcess(directory / "log") as web:
            yield web


@pytest.fixture
def http(shared_web: WebProcess) -> httpx.Client:
    return shared_web.http


class Expired(Exception):
    """The deadline of a stream passed before its first line."""


@contextlib.contextmanager
def half_read(
    http: httpx.Client, *, text: str = FREQUENT, timeout: float = LONG, name: str = "reader"
) -> Iterator[Iterator[str]]:
    """Open a stream, read one line, and keep the stream open within the block."""
    params: dict[str, str | float] = {"text": text, "timeout": timeout}
    with http.stream("GET", "/grep", params=params, headers={"X-Request-ID": name}) as response:
        if response.status_code == 504:
            raise Expired
        lines = response.iter_lines()
        assert "text" in json.loads(next(lines))
        yield lines


def detail(response: httpx.Response) -> str:
    return str(response.json()["detail"])


@functools.cache
def library() -> dict[str, list[str]]:
    """Return the lines of each file of the standard library, read from the files themselves."""
    root = Path(sysconfig.get_path("stdlib"))
    names = [path.relative_to(root) for path in sorted(root.rglob("*.py"))]
    return {
        str(name): (root / name).read_text("utf-8", "replace").splitlines()
        for name in names
        if not {"site-packages", "dist-packages", "test"} & set(name.parts)
    }


def lines_with(text: str, files: int | None = None) -> list[dict[str, Any]]:
    """Return the lines that a search for the text must find, in so many files."""
    return [
        {"file": name, "line": number, "text": line}
        for name, lines in itertools.islice(library().items(), files)
        for number, line in enumerate(lines, 1)
        if text in line
    ]


def test_a_result_reaches_the_browser(http: httpx.Client) -> None:
    response = http.get("/search", params={"word": "create_future", "limit": 3})
    assert response.status_code == 200
    counts = [match["count"] for match in response.json()]
    assert len(counts) == 3
    assert counts == sorted(counts, reverse=True)
    assert http.get("/search", params={"word": "create_future", "limit": 1}).json() == response.json()[:1]
    assert http.get("/search", params={"word": "no_such_word_there"}).json() == []


def test_the_name_of_a_request_goes_to_the_service_and_back(http: httpx.Client) -> None:
    named = http.get("/search", params={"word": "def"}, headers={"X-Request-ID": "request 7"})
    assert named.headers["X-Request-ID"] == "request 7"
    unnamed = {http.get("/search", params={"word": "def"}).headers["X-Request-ID"] for _ in range(3)}
    assert len(unnamed) == 3


@pytest.mark.parametrize("text", ["create_future", "import asyncio", "def "])
def test_no_line_of_a_stream_is_lost(http: httpx.Client, text: str) -> None:
    with http.stream("GET", "/grep", params={"text": text, "timeout": LONG}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/x-ndjson"
        hits = [json.loads(line) for line in response.iter_lines()]
    assert hits == lines_with(text)
    assert hits


def test_a_stream_without_items_is_no_error(http: httpx.Client) -> None:
    response = http.get("/grep", params={"text": ABSENT, "timeout": LONG})
    assert (response.status_code, response.text) == (200, "")


@pytest.mark.parametrize(
    "path", ["/search?word=def&limit=0", "/search?word=def&limit=1001", "/search?word=", "/grep?text="]
)
def test_arguments_that_the_service_refuses_are_422(http: httpx.Client, path: str) -> None:
    response = http.get(path)
    assert response.status_code == 422
    assert re.search(r"code_search\.(search|grep)\(\): parameter '(word|limit|text)'", detail(response))


def test_a_deadline_that_passes_is_504(http: httpx.Client) -> None:
    # The whole library is looked through before this stream's end, and there is nothing to begin it with.
    response = http.get("/grep", params={"text": ABSENT, "timeout": 0.001})
    assert response.status_code == 504
    assert "deadline" in detail(response)


def test_a_deadline_within_a_stream_is_its_last_line(shared_web: WebProcess) -> None:
    for timeout in (1, 8, 64):  # On a busy machine the first may pass before the stream has begun.
        with contextlib.suppress(Expired), half_read(shared_web.http, timeout=timeout, name="slow") as lines:
            assert eventually(lambda: "slow" not in shared_web.under_way(), 120)
            *_, last = lines
            assert "deadline" in json.loads(last)["error"]
            return
    raise AssertionError("each stream had expired before it began")


def test_a_browser_that_leaves_ends_the_generator(shared_web: WebProcess) -> None:
    with half_read(shared_web.http, name="leaver"):
        assert "leaver" in shared_web.under_way()
        assert shared_web.http.get("/search", params={"word": "def"}).status_code == 200
        assert "leaver" in shared_web.under_way()
    assert eventually(lambda: "leaver" not in shared_web.under_way(), 60)


def test_many_browsers_at_a_time(http: httpx.Client) -> None:
    def get(number: int) -> str:
        name = str(number)
        return http.get("/search", params={"word": "def"}, headers={"X-Request-ID": name}).headers["X-Request-ID"]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(get, range(100))) == [str(number) for number in range(100)]


def test_an_upload_is_found_afterwards(http: httpx.Client) -> None:
    pieces = [b"first\nsec", b"ond line with a zebracorn\n", b"", "übrig".encode()[:1], "übrig".encode()[1:]]
    response = http.put("/files/some/notes.txt", content=iter(pieces))
    assert (response.status_code, response.json()) == (201, 3)
    assert http.get("/search", params={"word": "zebracorn"}).json() == [{"file": "some/notes.txt", "count": 1}]
    assert http.get("/search", params={"word": "übrig"}).json() == [{"file": "some/notes.txt", "count": 1}]
    hits = http.get("/grep", params={"text": "with a zebracorn"}).json()
    assert hits == {"file": "some/notes.txt", "line": 2, "text": "second line with a zebracorn"}


def test_a_large_upload_arrives_whole(http: httpx.Client) -> None:
    count = 50_000  # Several times what may be under way in a stream.
    lines = (b"%d okapi\n" % number for number in range(count))
    response = http.put("/files/large.txt", params={"timeout": LONG}, content=lines)
    assert (response.status_code, response.json()) == (201, count)
    assert http.get("/search", params={"word": "okapi"}).json() == [{"file": "large.txt", "count": count}]


def test_an_error_of_the_service_has_its_own_status(http: httpx.Client) -> None:
    assert http.put("/files/twice.txt", content=b"once\n").status_code == 201
    response = http.put("/files/twice.txt", content=b"again\n")
    assert (response.status_code, detail(response)) == (409, "there is a file 'twice.txt' already")


def test_an_upload_runs_while_it_comes_and_leaves_nothing_when_it_breaks_off(
    http: httpx.Client, shared_web: WebProcess
) -> None:
    class Broken(Exception):
        pass

    def half() -> Iterator[bytes]:
        yield b"half an axolotl\n"
        assert eventually(lambda: "uploader" in shared_web.under_way())
        raise Broken

    with pytest.raises(Broken):
        http.put("/files/half.txt", params={"timeout": LONG}, content=half(), headers={"X-Request-ID": "uploader"})
    assert eventually(lambda: "uploader" not in shared_web.under_way(), 60)
    assert http.get("/search", params={"word": "axolotl"}).json() == []
    assert http.put("/files/half.txt", content=b"whole\n").status_code == 201


def test_a_service_with_enough_to_do_is_503(tmp_path: Path) -> None:
    limits = ("--max-in-flight", "1", "--max-waiting", "0")
    with ServerProcess(SMALL, *limits), WebProcess(tmp_path / "log") as web:
        with half_read(web.http):
            for path in ("/grep?text=def", "/search?word=def"):
                refused = web.http.get(path)
                assert refused.status_code == 503
                assert "1 calls in flight" in detail(refused) and "retry later" in detail(refused)
                assert refused.headers["Retry-After"] == "1"
        assert eventually(lambda: web.http.get("/search?word=def").status_code == 200)


def test_a_service_that_dies_is_503_until_the_next_one_serves(tmp_path: Path) -> None:
    with ServerProcess(SMALL) as server, WebProcess(tmp_path / "log") as web:
        with half_read(web.http) as lines:
            server.kill()
            *_, last = lines
            assert "error" in json.loads(last)
        with ThreadPoolExecutor(2) as threads:  # Each waits its ten seconds for a service.
            for gone in threads.map(web.http.get, ("/search?word=def", "/grep?text=def")):
                assert gone.status_code == 503
                assert "'code_search' is gone" in detail(gone)
        with ServerProcess(SMALL):
            assert eventually(lambda: web.http.get("/search?word=def").status_code == 200)
            assert web.http.get("/grep?text=create_future").status_code == 200


def test_a_restart_between_two_requests_is_not_noticed(tmp_path: Path) -> None:
    with ServerProcess(SMALL) as server, WebProcess(tmp_path / "log") as web:
        assert web.http.get("/search?word=def").status_code == 200
        server.stop()
        with ServerProcess(SMALL):
            # The app's client is there again, or else its two seconds for that may be too few on a busy machine.
            assert eventually(lambda: [report.connections for report in collect_reports()] == [1])
            assert web.http.get("/search?word=def").status_code == 200


def test_a_service_that_stops_gently_ends_no_stream_early(tmp_path: Path) -> None:
    with ServerProcess(SMALL, "--grace", str(LONG)) as server, WebProcess(tmp_path / "log") as web:
        files = web.http.get("/status").json()["files"]
        with half_read(web.http, text="self") as lines:
            server.process.terminate()
            others = list(lines)
        assert len(others) + 1 == len(lines_with("self", files))
        assert "text" in json.loads(others[-1])
        assert server.process.wait(STOPPING) == 0
