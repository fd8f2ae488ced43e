from __future__ import annotations

import os
import signal
import threading

import pytest

from magneton_dist.cluster.interrupts import Interrupts


def test_the_first_signal_is_remembered_and_nothing_is_raised() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert interrupts.why == ""
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.why == "SIGINT"
    assert signal.getsignal(signal.SIGINT) is before


def test_elsewhere_than_on_the_main_thread_nothing_changes() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def inside() -> None:
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]


def test_nohup_stays_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.why == ""
    finally:
        signal.signal(signal.SIGHUP, before)


def test_let_through_signals_do_what_they_did_before_and_are_remembered_again_afterwards() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.let_through():
            signal.raise_signal(signal.SIGINT)
        assert interrupts.why == ""
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.why == "SIGINT"
