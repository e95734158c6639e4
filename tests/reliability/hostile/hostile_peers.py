"""Parts that tests of hostile peers share: chosen values, a polite client beside the peer, and limits of the server."""

from __future__ import annotations

import random
import struct
import threading
from pathlib import Path
from typing import Any, Final

import shmrpc
from tests.helpers.server_process import ServerProcess, eventually

#: Whole numbers that a hostile peer chooses.
CHOSEN: Final = [
    0, 1, 2, 7, 8, 15, 16, 127, 128, 255, 256, 1024, 4095, 4096, 65_535, 65_536, 65_544, 131_072, 2**31 - 1, 2**31,
    2**32 - 1, 2**32, 2**53, 2**61 - 1, 2**63 - 1, 2**63, 2**64 - 9, 2**64 - 8, 2**64 - 1,
]  # fmt: skip
#: Bytes that begin something in MessagePack: all forms of lengths, extensions, and the one that is none.
BEGINNINGS: Final = bytes([0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, *range(0xC0, 0xE0), 0xFF, 0x00])
#: Bytes of the largest body.
MAX_FRAME: Final = 1 << 20
#: Bytes by which a server may grow under attack: some bodies of the largest size, as Python keeps them.
GROWTH: Final = 192 << 20


def word(dice: random.Random) -> int:
    """Return a word of eight bytes: a chosen one, one of two chosen halves, or a random one."""
    match dice.randrange(4):
        case 0:
            return dice.choice(CHOSEN)
        case 1:
            return (dice.choice(CHOSEN) & 0xFFFF_FFFF) | (dice.choice(CHOSEN) & 0xFFFF_FFFF) << 32
        case 2:
            return max(0, min(dice.choice(CHOSEN) + dice.choice((-8, -1, 1, 8)), 2**64 - 1))
        case _:
            return dice.getrandbits(64)


def mutated(dice: random.Random, body: bytes) -> bytes:
    """Return the body with some random changes: bytes changed, removed, doubled, inserted or appended."""
    changed = bytearray(body)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(changed) + 1)
        match dice.randrange(7):
            case 0 | 1 if at < len(changed):
                changed[at] ^= 1 << dice.randrange(8)
            case 2 if at < len(changed):
                changed[at] = dice.choice(BEGINNINGS)
            case 3:
                del changed[at : at + dice.randrange(1, 5)]
            case 4:
                changed[at:at] = changed[at : at + dice.randrange(1, 20)]
            case 5:
                changed[at:at] = bytes([dice.choice(BEGINNINGS)]) + struct.pack(">I", dice.choice(CHOSEN) & 0xFFFF_FFFF)
            case _ if at < len(changed):
                changed[at] = dice.randrange(256)
    return bytes(changed)


class Polite(threading.Thread):
    """A client that calls all the time and checks each answer."""

    def __init__(self, service: str) -> None:
        super().__init__(daemon=True)
        self.calls = 0
        self.error: BaseException | None = None
        self._service = service
        self._over = threading.Event()

    def run(self) -> None:
        try:
            with shmrpc.sync.connect(self._service, timeout=60) as client:
                while not self._over.is_set():
                    number = self.calls
                    assert client.add(number, 1) == number + 1
                    assert client.echo([number, "x" * (number % 50)]) == [number, "x" * (number % 50)]
                    self.calls += 2
                    self._over.wait(0.001)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Polite:
        self.start()
        assert eventually(lambda: self.calls > 0 or self.error is not None, 60)
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self.join(60)
        assert not self.is_alive(), "a polite client waits for ever"
        assert self.error is None, repr(self.error)


class Watched:
    """A server process under attack, which must stay alive and within its limits."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process
        (Path("/proc") / str(process.pid) / "clear_refs").write_text("5")  # Resets the peak value.
        self._before = self._status("VmRSS")

    def _status(self, name: str) -> int:
        lines = (Path("/proc") / str(self._process.pid) / "status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))

    def growth(self) -> int:
        """Return the bytes of memory beyond those at the start, at the peak."""
        return self._status("VmHWM") - self._before

    def check(self) -> str:
        """Assert that the server is alive and has not grown too much; return its growth as text."""
        assert self._process.process.poll() is None, "the server has died"
        growth = self.growth()
        assert growth < GROWTH, f"the server grew by {growth:,} bytes"
        return f"{growth / (1 << 20):.1f} MiB"


#: Texts that a server never logs: each comes with an unexpected exception.
UNEXPECTED: Final = ("Exception in callback", "never retrieved", "panicked at", "Exception ignored")


class Served(ServerProcess):
    """The attacked service in a process of its own, and a thread that reads its log so that it never blocks."""

    def __init__(self) -> None:
        super().__init__("tests.reliability.hostile.attacked_service:service", "--max-frame", str(MAX_FRAME))
        assert self.process.stderr is not None
        self._log, self.process.stderr = self.process.stderr, None
        #: Log lines of unexpected exceptions, and the lines that followed.
        self.unexpected_lines: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        for line in self._log:
            if 0 < len(self.unexpected_lines) < 20 or any(words in line for words in UNEXPECTED):
                self.unexpected_lines.append(line)

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._reading.join(30)
        self._log.close()
        assert not self.unexpected_lines, "".join(self.unexpected_lines)


def served() -> Served:
    """Return the attacked service in a process of its own."""
    return Served()
