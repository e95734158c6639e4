"""The code search of examples/ on two hosts behind one web application, one of them killed under load.

Each host has a rendezvous directory of its own, which the other host does not know: the hosts share NATS alone.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.examples.test_example_app import SMALL, WebProcess
from tests.helpers.nats_servers import NatsServer
from tests.helpers.server_process import PATIENCE, ServerProcess, eventually


class Load:
    """Requests of several threads, and their results."""

    def __init__(self, web: WebProcess) -> None:
        self.answers: Counter[int] = Counter()
        self.failures: list[str] = []
        self._web = web
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            answer = self._web.http.get("/search", params={"word": "import"})
            self.answers[answer.status_code] += 1
            if answer.status_code != 200:
                self.failures.append(answer.text)

    def more(self, status: int, count: int) -> bool:
        """Return True once so many more answers have this status."""
        before = self.answers[status]
        return eventually(lambda: self.answers[status] >= before + count, PATIENCE)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_the_other_host_goes_on_when_one_is_killed(
    nats: NatsServer, tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def host(name: str) -> ServerProcess:
        directory = runtime.parent / name
        directory.mkdir(mode=0o700, exist_ok=True)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
        return ServerProcess(SMALL, "--at", "shm", "--at", nats.url)

    far = host("far")
    with host("near") as near:  # The directory of the web application, too.
        monkeypatch.setenv("CODE_SEARCH_AT", f"shm {nats.url}")
        with far, WebProcess(tmp_path / "log") as web:
            load = Load(web)
            try:
                assert load.more(200, 100)
                near.kill()
                assert load.more(200, 100)  # From the far one.
                with host("near") as near_again:
                    assert load.more(200, 100)
                    far.kill()
                    assert load.more(200, 100)  # From the near one.
                    assert near_again.process.poll() is None
            finally:
                load.stop()
    assert set(load.answers) <= {200, 503}
    # The requests in flight at each death, and those that a machine too busy for heartbeats has lost.
    assert len(load.failures) < load.answers[200] / 10, load.failures
