"""An old public name raises an error that gives the new one."""

from __future__ import annotations

import os
from typing import Any

import pytest

import shmrpc
from shmrpc.basics.renamed import RENAMED_NAMES
from shmrpc.cli.commands import main
from tests.helpers.cli_runner import cli_runner

OURS = f"renamed{os.getpid()}"


@pytest.mark.parametrize("name", RENAMED_NAMES)
def test_an_old_name_of_the_package_gives_the_new_one(name: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(shmrpc, name)
    assert str(raised.value) == f"shmrpc.{name} was renamed: use {RENAMED_NAMES[name]}"
    assert not hasattr(shmrpc, name)
    new: Any = shmrpc
    for part in RENAMED_NAMES[name].removeprefix("shmrpc.").partition("(")[0].split("."):
        new = getattr(new, part)
    with pytest.raises(ImportError, match=f"^shmrpc.{name} was renamed: use "):
        exec(f"from shmrpc import {name}")


def test_an_unknown_name_of_the_package_has_no_hint() -> None:
    with pytest.raises(AttributeError, match="^module 'shmrpc' has no attribute 'unknown'$"):
        getattr(shmrpc, "unknown")  # noqa: B009
    with pytest.raises(ImportError, match="^cannot import name 'unknown' from 'shmrpc'"):
        exec("from shmrpc import unknown")


@pytest.mark.parametrize("face", [shmrpc, shmrpc.sync])
def test_old_methods_give_the_new_ones(face: Any) -> None:
    queue, store, semaphore = face.queue(OURS + "q"), face.store(OURS + "s"), face.Semaphore(OURS + "p")
    queue.put_nowait(1)
    claim = queue.claim_nowait()
    old = {
        "Claim.give_back() was renamed: use nack()": (claim, "give_back"),
        "Queue.stop_waits() was renamed: use stop()": (queue, "stop_waits"),
        "Queue.resume_waits() was renamed: use resume()": (queue, "resume_waits"),
        "Store.replace() was renamed: use fail_over()": (store, "replace"),
        "Semaphore.signal() was renamed: use signal() of a shmrpc.Signal": (semaphore, "signal"),
        "Semaphore.wait() was renamed: use wait() of a shmrpc.Signal": (semaphore, "wait"),
        "Semaphore.drain() was renamed: use drain() of a shmrpc.Signal": (semaphore, "drain"),
    }
    for text, (holder, name) in old.items():
        with pytest.raises(AttributeError) as raised:
            getattr(holder, name)
        assert str(raised.value) == text
        assert not hasattr(holder, name)
        assert name not in dir(holder) and "close" in dir(queue)
    claim.ack()
    for each in (queue, store, semaphore):
        each.close()


@pytest.mark.parametrize("face", [shmrpc, shmrpc.sync])
@pytest.mark.parametrize(
    ("function", "option", "new"),
    [
        ("topic", "high", "high_watermark="),
        ("topic", "low", "low_watermark="),
        ("subscribe", "slow", "slow_policy="),
        ("subscribe", "on_gone", "on_publisher_lost="),
        ("store", "patience", "busy_timeout="),
        ("store", "writable", "single_writer=True"),
    ],
)
def test_an_old_option_gives_the_new_one(face: Any, function: str, option: str, new: str) -> None:
    with pytest.raises(TypeError) as raised:
        getattr(face, function)(OURS, **{option: 1})
    assert str(raised.value) == f"{function}(): {option}= was renamed: use {new}"
    with pytest.raises(TypeError, match=rf"^{function}\(\) got an unexpected keyword argument 'unknown'"):
        getattr(face, function)(OURS, unknown=1)
    assert shmrpc.members(OURS) == []


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["queue", "watch", "--every", "1", OURS], "--every was renamed: use --interval"),
        (["ls", "--allow-uid", "0"], "--allow-uid was renamed: use --allow-user"),
        (["queue", "drain", OURS], "'drain' was renamed: use 'purge', which discards the items, or 'get --all', "),
        (["queue", "unknown"], "No such command 'unknown'"),
        (["ls", "--unknown"], "No such option"),
    ],
)
def test_an_old_spelling_on_the_command_line_gives_the_new_one(command: list[str], hint: str) -> None:
    ended = cli_runner().invoke(main, command)
    assert ended.exit_code == 2
    assert hint in ended.stderr
