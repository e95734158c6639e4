"""Two hosts for tests: namespaces with a network, a /dev/shm and a host name of their own, and a cable between them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

#: The command that creates the namespaces.
_APART = ("unshare", "--net", "--mount", "--uts", "--propagation", "private")
_SETUP = """
    set -e
    hostname "$1"
    mount -t tmpfs tmpfs /dev/shm
    ip link set lo up
    echo ready
    exec sleep infinity
"""


class Host:
    """Namespaces, held by a sleeping process. ``folder``: the rendezvous directory of this host."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.address = name, address
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        command = [*_APART, "sh", "-c", _SETUP, "sh", name]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self._holder.kill()
            pytest.skip(f"no hosts can be simulated here: {self._holder.communicate()[1].strip() or 'no namespaces'}")

    @property
    def pid(self) -> int:
        """Return the id of the process that holds the namespaces."""
        return self._holder.pid

    @property
    def under(self) -> tuple[str, ...]:
        """Return the prefix of a command that runs it on this host."""
        enter = ("nsenter", "--target", str(self.pid), "--net", "--mount", "--uts")
        return *enter, "env", f"--chdir={Path.cwd()}", f"XDG_RUNTIME_DIR={self._folder}"

    def run(self, *command: str) -> str:
        """Run a command on this host; return its output."""
        return _run(*self.under, *command)

    def unplug(self) -> None:
        """Pull the cable: packets of both sides are lost without an error."""
        self.run("ip", "link", "set", "eth0", "down")

    def plug(self) -> None:
        """Plug the cable in again."""
        self.run("ip", "link", "set", "eth0", "up")

    def close(self) -> None:
        """End the last process in the namespaces, and so the namespaces."""
        self._holder.kill()
        self._holder.communicate()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Make a near and a far host; skip the test where namespaces or a cable between them cannot be made."""
    with contextlib.ExitStack() as stack:
        hosts: list[Host] = []
        for number, name in enumerate(("near", "far"), 1):
            hosts.append(Host(name, f"10.77.0.{number}", folder / name))
            stack.callback(hosts[-1].close)
        near, far = hosts
        _connect(near, far)
        yield near, far


def _connect(near: Host, far: Host) -> None:
    cable = _cable(near.pid, far.pid)
    done = subprocess.run(cable, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no cable can be laid between two hosts here: {done.stderr.strip()}")
    for host in (near, far):
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.plug()


def _cable(one: int, other: int) -> Sequence[str]:
    ends = ["eth0", "netns", str(one), "type", "veth", "peer", "name", "eth0", "netns", str(other)]
    return ["ip", "link", "add", *ends]
