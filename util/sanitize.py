#!/usr/bin/env python3
"""Run the core's tests under sanitizers, and print at the end which runs took place and which were impossible.

AddressSanitizer, with LeakSanitizer, needs a nightly toolchain. ThreadSanitizer also needs the source of the standard
library, to instrument it: otherwise it reports races between accesses that a lock of the library orders. Without that
source, Valgrind's helgrind takes its place. helgrind knows neither Rust's locks nor its atomics, so it runs only the
tests in which threads share no lock, and helgrind.supp suppresses reports at the crate's own atomics.

ThreadSanitizer identifies memory by its address, and the two sides of a connection map the segment and the extents at
different addresses. In the tests of channels it therefore checks only the memory that the threads of one side share.
tests/protocol/loans.rs checks that a block is not written while the peer reads it: there both threads have the block
at one address, as plain memory. ThreadSanitizer ignores fences; no fence orders data here. loom shows which orderings
are needed.

The exit code is 1 if a sanitizer reported anything, if a test failed, or if a run executed fewer or more tests than
one without a sanitizer.
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
#: The text that a sanitizer prints with a finding, whatever the exit code.
REPORT: Final = re.compile(r"(ERROR|WARNING|SUMMARY): (Address|Leak|Thread)Sanitizer|Possible data race|lock order")
COUNT: Final = re.compile(r"^test result: .*?(\d+) passed; (\d+) failed", re.MULTILINE)
EXECUTABLE: Final = re.compile(r"Executable .*\((.*)\)$", re.MULTILINE)
#: Tests that helgrind can follow: (prefix of the binary's name, arguments). Excluded are one with a single thread and a
#: million operations, and the tests of the SIGBUS guard, whose threads share the library's own lists of threads.
FOLLOWED: Final = (
    ("_core", ("--skip", "a_million_operations", "--skip", "sigbus::")),
    ("channels", ()),
    ("protocol", ("words::",)),
)


@dataclass
class Outcome:
    """The summary that `make sanitize` prints at its end."""

    ran: list[str] = field(default_factory=list)
    could_not: list[str] = field(default_factory=list)
    failed: bool = False


def say(text: str) -> None:
    """Print text and a line break, and flush."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(command: list[str], **environment: str) -> tuple[int, str]:
    """Run a command; return its exit code and the output of both streams."""
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
    """Return the number of tests that passed."""
    return sum(int(passed) for passed, _ in COUNT.findall(output))


def judge(outcome: Outcome, name: str, code: int, output: str, expected: int, began: float) -> None:
    """Add the result of one run to the outcome."""
    passed = counted(output)
    good = code == 0 and passed == expected > 0 and not REPORT.search(output)
    if not good:
        outcome.failed = True
        say(output)
    seconds = time.monotonic() - began
    verdict = "nothing was reported" if good else f"FAILED, see above (exit code {code}, {expected} tests expected)"
    outcome.ran.append(f"{name}: {passed} tests in {seconds:.0f} s, {verdict}")


def nightly() -> tuple[Path, str] | None:
    """Return the folder of the nightly toolchain and the name of the machine's target; None without a toolchain."""
    if shutil.which("rustup") is None:
        return None
    code, root = run(["rustup", "run", "nightly", "rustc", "--print", "sysroot"])
    if code != 0:
        return None
    _, version = run(["rustup", "run", "nightly", "rustc", "-vV"])
    host = re.search(r"^host: (.*)$", version, re.MULTILINE)
    return (Path(root.strip().splitlines()[-1]), host[1]) if host else None


def sanitizer(outcome: Outcome, kind: str, host: str, expected: int, *options: str) -> bool:
    """Build and run all tests under one of the compiler's sanitizers; return False if they cannot be built."""
    name = f"{kind.capitalize()}Sanitizer"
    flags = {"RUSTFLAGS": f"-Zsanitizer={kind}"}
    # A fault outside the guard must end the process as it does without a sanitizer: a test checks that.
    unhandled = "handle_sigbus=0"
    if kind == "address":
        name += " and LeakSanitizer"
        flags["ASAN_OPTIONS"] = f"detect_leaks=1:detect_stack_use_after_return=1:{unhandled}"
    else:
        flags["TSAN_OPTIONS"] = f"suppressions={Path(__file__).with_name('tsan.supp')}:{unhandled}"
    # An explicit target, so that build scripts are not instrumented.
    where = ["--target", host, "--target-dir", f"target/{kind}"]
    # Through rustup, since CARGO may name another toolchain.
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
    """Run the tests that helgrind can follow under Valgrind, which needs no toolchain of its own."""
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
    """Run every sanitizer whose tools are installed."""
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
    say("\n  ".join(["\nRuns:", *outcome.ran]))
    if outcome.could_not:
        say("\n  ".join(["Not possible:", *outcome.could_not]))
    return int(outcome.failed)


if __name__ == "__main__":
    sys.exit(main())
