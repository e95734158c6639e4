"""Credit that is lost, given twice, or overdrawn: both ends of a stream keep one account, sans I/O."""

from __future__ import annotations

import pytest

from shmrpc.errors import RemoteProtocolError
from shmrpc.streams.credit import OVERHEAD, WINDOW, ReceiveWindow, SendWindow, weight


def test_consumed_credit_is_granted_again_in_quarters_of_the_window() -> None:
    window = ReceiveWindow()
    size = WINDOW // 16
    granted = [window.consume(size) for _ in range(16)]
    assert granted == [0, 0, 0, WINDOW // 4] * 4


def test_a_sender_oversteps_its_credit_by_one_item_at_most() -> None:
    window = ReceiveWindow()
    window.receive(WINDOW - 1)
    window.receive(1000)
    with pytest.raises(RemoteProtocolError, match="no credit"):
        window.receive(1)
    assert window.consume(WINDOW) == WINDOW
    window.receive(1)


def test_a_window_of_nothing_lets_nothing_in_before_it_is_opened() -> None:
    window = ReceiveWindow(0)
    with pytest.raises(RemoteProtocolError, match="no credit"):
        window.receive(1)
    assert window.open() == WINDOW
    window.receive(1)


def test_credit_is_taken_only_while_some_is_left_and_more_is_wanted() -> None:
    window = SendWindow()
    assert not window.try_spend(1)
    window.grant(10)
    assert window.is_open
    assert window.try_spend(weight(b"an item"))
    assert window.credit == 10 - len(b"an item") - OVERHEAD
    assert not window.try_spend(1)
    window.grant(WINDOW)
    window.closed = True
    assert not window.is_open
    assert not window.try_spend(1)
