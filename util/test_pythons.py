#!/usr/bin/env python3
"""Run the Python tests on every version of CPython that this machine has, and print a table of the results.

    util/test_pythons.py [--all] [VERSION ...]

An interpreter is one in PATH or among pyenv's. For versions that Debian 12 does not have, root can have a tree of the
next Debian in ``.pythons``, which debootstrap makes once; its tests run in a mount namespace of their own, so no mount
is left behind. ``PYTHON_FREE`` names an interpreter without the GIL, which is tested with the GIL off.

Each version has a virtual environment of its own, ``.venv-VERSION``. The exit code is 1 if a test failed, and 2 if a
version that was asked for is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14", "3.15")

#: The tree of the next Debian, and the versions that it has.
TREE: Final = ROOT / ".pythons" / "debian"
SUITE: Final = "forky"
IN_TREE: Final = ("3.14", "3.15")
MIRROR: Final = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
PACKAGES: Final = ("ca-certificates", "gcc", "git", "libc6-dev", "make", "nodejs", "openssl", "procps", "util-linux")
#: Bound into the tree from this machine, if they are there: for the kernel's files, the network and pip.
SHARED: Final = (
    "/proc",
    "/sys",
    "/dev",
    "/dev/shm",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/ssl/certs",
)
#: Variables that programs in the tree see.
KEPT: Final = re.compile("PIP_.*|.*_proxy|.*_PROXY|CARGO_.*|RUSTUP_.*|SHMRPC_.*")

_WORKERS: Final = str((os.cpu_count() or 1) + 1)
PYTEST: Final = ("-m", "pytest", "-q", "-n", _WORKERS, "--dist", "loadfile", "--no-loadscope-reorder", "-rf")
#: Marks of the tests that `make test` runs; and of all but those whose core is made for one version.
USUAL: Final = "not (slow or crashpoints or second_loop)"
ALL: Final = "not crashpoints"


@dataclass
class Interpreter:
    """An interpreter, and the result of the tests with it."""

    name: str
    python: str
    #: Command that executes a program where the interpreter is; empty for this machine itself.
    prefix: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    result: str = "missing"
    is_good: bool = False

    def start(self, *command: str, stdout: int | None = None) -> subprocess.Popen[str]:
        """Start a command in the checkout, where the interpreter is."""
        script = f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(command)}"
        environment = {**os.environ, **self.environment}
        return subprocess.Popen([*self.prefix, "sh", "-c", script], env=environment, stdout=stdout, text=True)


def find(version: str) -> Interpreter | None:
    """Return an interpreter of this version; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    installed = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    for python in (shutil.which(f"python{version}"), *map(str, reversed(installed))):
        if python and _is_usable(python, version):
            return Interpreter(version, python)
    if version in IN_TREE and (problem := make_tree()) is None:
        return Interpreter(version, f"/usr/bin/python{version}", enter_tree())
    if version in IN_TREE:
        print(f"{version}: no interpreter in PATH or of pyenv, and {problem}", flush=True)
    return None


def _is_usable(python: str, version: str) -> bool:
    """Return True if the interpreter starts, is of this version, and can make virtual environments."""
    program = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() == version


def make_tree() -> str | None:
    """Make the tree of the next Debian unless it is there. Return None, or a phrase with what is missing for it."""
    if os.geteuid() != 0:
        return "only root can make a tree of another Debian"
    if missing := [each for each in ("debootstrap", "unshare") if shutil.which(each) is None]:
        return f"{missing[0]} is missing (Debian: apt install {missing[0].replace('unshare', 'util-linux')})"
    done = TREE / "made"
    if done.exists():
        return None
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir(parents=True)
    pythons = [f"python{version}{kind}" for version in IN_TREE for kind in ("", "-venv", "-dev")]
    scripts = Path("/usr/share/debootstrap/scripts")
    script = [] if (scripts / SUITE).exists() else [str(scripts / "sid")]
    command = ["debootstrap", "--variant=minbase", f"--include={','.join((*PACKAGES, *pythons))}", SUITE, str(TREE)]
    print(f"making {TREE} with {', '.join(IN_TREE)}", flush=True)
    if subprocess.run([*command, MIRROR, *script], stdout=subprocess.DEVNULL).returncode:
        return f"debootstrap failed: see {TREE}/debootstrap/debootstrap.log"
    done.touch()
    return None


def enter_tree() -> list[str]:
    """Return the command that executes another one in the tree, with this checkout and this machine's Rust."""
    home = Path.home()
    rust = [os.environ.get("CARGO_HOME", home / ".cargo"), os.environ.get("RUSTUP_HOME", home / ".rustup")]
    shared = [Path(each) for each in (*SHARED, *rust, ROOT) if Path(each).exists()]
    lines = []
    for each in shared:
        inside = shlex.quote(f"{TREE}{each}")
        parent = shlex.quote(f"{TREE}{each.parent}")
        make = f"mkdir -p {inside}" if each.is_dir() else f"mkdir -p {parent}; : >> {inside}"
        lines += [make, f"mount --bind {shlex.quote(str(each))} {inside}"]
    kept = [f"{name}={value}" for name, value in os.environ.items() if KEPT.fullmatch(name)]
    path = f"PATH={rust[0]}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    environment = shlex.join(["env", "-i", f"HOME={home}", "LANG=C.UTF-8", "TERM=dumb", path, *kept])
    lines.append(f'exec chroot {shlex.quote(str(TREE))} {environment} "$@"')
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(lines), "sh"]


def test(interpreter: Interpreter, marks: str) -> None:
    """Install the package with an interpreter, run the tests, and record the result."""
    environment = f".venv-{interpreter.name}"
    python = f"{environment}/bin/python"
    print(f"\n{interpreter.name}: {interpreter.python}", flush=True)
    steps = (
        (interpreter.python, "-m", "venv", environment),
        (python, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1"),
        (python, "-m", "pip", "install", "--quiet", "--group", "dev", "--editable", "."),
    )
    for step in steps:
        if interpreter.start(*step).wait():
            interpreter.result = f"failed: {shlex.join(step)}"
            return
    lines = []
    with interpreter.start(python, *PYTEST, "-m", marks, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.strip())
    interpreter.is_good = process.returncode == 0
    summary = [line for line in lines if re.search(r"\d+ (passed|failed|error)", line)]
    interpreter.result = summary[-1].strip("= ") if summary else f"pytest ended with {process.returncode}"


def chosen(versions: Sequence[str]) -> Iterator[Interpreter]:
    """Yield the interpreters of these versions, as a placeholder if there is none, then the one without the GIL."""
    for version in versions or VERSIONS:
        yield find(version) or Interpreter(version, "")
    if free := os.environ.get("PYTHON_FREE"):
        yield Interpreter("free", free, environment={"PYTHON_GIL": "0"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests on the versions of the command line, and print a table. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"one of {', '.join(VERSIONS)}; all by default")
    parser.add_argument("--all", action="store_true", help="all tests but those of crash points")
    options = parser.parse_args(arguments)
    if unknown := set(options.versions) - set(VERSIONS):
        parser.error(f"unknown version {min(unknown)}: expected some of {', '.join(VERSIONS)}")
    interpreters = list(chosen(options.versions))
    for interpreter in interpreters:
        if interpreter.python:
            test(interpreter, ALL if options.all else USUAL)
    print()
    for interpreter in interpreters:
        print(f"{interpreter.name:8}{interpreter.result}")
    if options.versions and not all(each.python for each in interpreters):
        return 2
    return int(not all(each.is_good for each in interpreters if each.python))


if __name__ == "__main__":
    sys.exit(main())
