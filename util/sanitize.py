#!/usr/bin/env python3
"""Runs the core's tests under sanitizers, and says at the end what ran and what could not.

AddressSanitizer, with LeakSanitizer, needs a nightly toolchain. ThreadSanitizer needs also the source of the standard
library, to instrument it: else it takes what a lock of the library orders for a race. Without that it is Valgrind's
helgrind, which knows neither Rust's locks nor its atomics: so it runs the tests in which threads share no lock, and is
told to look away where the crate itself uses an atomic (helgrind.supp).

What ThreadSanitizer cannot see: it knows memory by its address, and both sides of a connection have the segment and
the extents mapped at two of them. So in the tests of channels it looks at what the threads of one side share. That a
block is not written while the peer reads it is for tests/protocol/loans.rs: there both threads have the block at one
address, as plain memory. It sees fences as nothing; none orders data here. Which orderings are needed loom tells.

The exit code is 1 if a sanitizer reported anything, if a test failed, or if a run had not as many tests as a plain one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CORE: Final = Path(__file__).resolve().parent.parent / "core"
CARGO: Final = os.environ.get("CARGO", "cargo")
TARGETS: Final = ("--lib", "--tests")
#: What a sanitizer writes when it has found something, whatever the exit code.
REPORT: Final = re.compile(r"(ERROR|WARNING|SUMMARY): (Address|Leak|Thread)Sanitizer|Possible data race|lock order")
COUNT: Final = re.compile(r"^test result: .*?(\d+) passed; (\d+) failed", re.MULTILINE)
EXECUTABLE: Final = re.compile(r"Executable .*\((.*)\)$", re.MULTILINE)
#: Tests that helgrind can follow: (part of the name of the binary, arguments). Left out are one that has one thread and
#: a million operations, and those of the guard, whose threads share the library's own lists of threads.
FOLLOWED: Final = (
    ("_core", ("--skip", "a_million_operations", "--skip", "sigbus::")),
    ("channels", ()),
    ("protocol", ("words::",)),
)


@dataclass
class Outcome:
    """What `make sanitize` says at its end."""

    ran: list[str] = field(default_factory=list)
    could_not: list[str] = field(default_factory=list)
    failed: bool = False


def say(text: str) -> None:
    """A line, or several, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(command: list[str], **environment: str) -> tuple[int, str]:
    """A command's exit code, and its output, both streams of it."""
    say(" ".join(["$", *(f"{name}={value}" for name, value in environment.items()), *command]))
    done = subprocess.run(
        command,
        cwd=CORE,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout


def counted(output: str) -> int:
    """How many tests passed."""
    return sum(int(passed) for passed, _ in COUNT.findall(output))


def judge(outcome: Outcome, name: str, code: int, output: str, expected: int, began: float) -> None:
    """Takes note of one run."""
    passed = counted(output)
    good = code == 0 and passed == expected > 0 and not REPORT.search(output)
    if not good:
        outcome.failed = True
        say(output)
    seconds = time.monotonic() - began
    verdict = "nothing was reported" if good else f"FAILED, see above (exit code {code}, {expected} tests expected)"
    outcome.ran.append(f"{name}: {passed} tests in {seconds:.0f} s, {verdict}")


def nightly() -> tuple[Path, str] | None:
    """Where the nightly toolchain is, and the name of the machine's target."""
    if shutil.which("rustup") is None:
        return None
    code, root = run(["rustup", "run", "nightly", "rustc", "--print", "sysroot"])
    if code != 0:
        return None
    _, version = run(["rustup", "run", "nightly", "rustc", "-vV"])
    host = re.search(r"^host: (.*)$", version, re.MULTILINE)
    return (Path(root.strip().splitlines()[-1]), host[1]) if host else None


def sanitizer(outcome: Outcome, kind: str, host: str, expected: int, *options: str) -> bool:
    """Builds and runs all tests under one of the compiler's sanitizers. False if they cannot be built."""
    name = f"{kind.capitalize()}Sanitizer"
    flags = {"RUSTFLAGS": f"-Zsanitizer={kind}"}
    # A fault that is not the guard's is to end the process as it does without a sanitizer: a test looks at that.
    as_ever = "handle_sigbus=0"
    if kind == "address":
        name += " and LeakSanitizer"
        flags["ASAN_OPTIONS"] = f"detect_leaks=1:detect_stack_use_after_return=1:{as_ever}"
    else:
        flags["TSAN_OPTIONS"] = f"suppressions={Path(__file__).with_name('tsan.supp')}:{as_ever}"
    # A target of its own name, so that what runs while it is built is not instrumented.
    where = ["--target", host, "--target-dir", f"target/{kind}"]
    # Not through the proxy: make may have been told of another cargo.
    test = ["rustup", "run", "nightly", "cargo", "test", *options, *where, *TARGETS]
    code, output = run([*test, "--no-run"], **flags)
    if code != 0:
        last = output.strip().splitlines()[-1:]
        outcome.could_not.append(f"{name}: the tests could not be built: {' '.join(last)}")
        return False
    began = time.monotonic()
    code, output = run([*test, "--no-fail-fast"], **flags)
    judge(outcome, name, code, output, expected, began)
    return True


def helgrind(outcome: Outcome) -> None:
    """Runs what it can follow under Valgrind's helgrind, which needs no toolchain of its own."""
    if shutil.which("valgrind") is None:
        outcome.could_not.append("helgrind: install valgrind (on Debian and Ubuntu: apt install valgrind)")
        return
    _, built = run([CARGO, "test", *TARGETS, "--no-run"])
    binaries = EXECUTABLE.findall(built)
    for part, arguments in FOLLOWED:
        for binary in (binary for binary in binaries if Path(binary).name.startswith(part)):
            tests = [str(CORE / binary), "--test-threads=1", *arguments]
            expected = counted(run(tests)[1])
            suppressions = Path(__file__).with_name("helgrind.supp")
            tool = ["valgrind", "--tool=helgrind", "--fair-sched=yes", "--history-level=none", "--error-exitcode=9"]
            began = time.monotonic()
            code, output = run([*tool, f"--suppressions={suppressions}", *tests])
            judge(outcome, f"helgrind, {part} {' '.join(arguments)}", code, output, expected, began)


def main() -> int:
    """Everything that there is a tool for."""
    outcome = Outcome()
    code, output = run([CARGO, "test", *TARGETS])
    expected = counted(output)
    if code != 0 or expected == 0:
        say(output)
        return 1
    outcome.ran.append(f"no sanitizer: {expected} tests")
    found = nightly()
    threads = False
    if found is None:
        outcome.could_not.append("AddressSanitizer: install a nightly toolchain (rustup toolchain install nightly)")
        outcome.could_not.append("ThreadSanitizer: install a nightly toolchain, and rust-src for it")
    else:
        root, host = found
        sanitizer(outcome, "address", host, expected)
        if (root / "lib/rustlib/src/rust/library/Cargo.lock").exists():
            threads = sanitizer(outcome, "thread", host, expected, "-Zbuild-std")
        else:
            outcome.could_not.append("ThreadSanitizer: rustup component add rust-src --toolchain nightly")
    if not threads:
        helgrind(outcome)
    say("\n  ".join(["\nWhat ran:", *outcome.ran]))
    if outcome.could_not:
        say("\n  ".join(["What could not:", *outcome.could_not]))
    return int(outcome.failed)


if __name__ == "__main__":
    sys.exit(main())
