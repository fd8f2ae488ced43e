from __future__ import annotations

import socket

import pytest

from magneton_dist.cluster import vitals
from magneton_dist.cluster.vitals import Vitals, refuses


@pytest.fixture
def server() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(8)
    return listener


def test_a_closed_port_refuses(server: socket.socket) -> None:
    address = server.getsockname()
    assert not refuses(address)
    server.close()
    assert refuses(address)


def test_a_lost_server_is_said_once(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitals, "_PERIOD_S", 0.0)
    watch = Vitals({"head": server.getsockname()})
    assert watch.lost() == []
    server.close()
    assert watch.lost() == ["head"]
    assert watch.lost() == []


def test_servers_are_not_asked_more_often_than_the_period(server: socket.socket) -> None:
    watch = Vitals({"head": server.getsockname()})
    assert watch.lost() == []
    server.close()
    assert watch.lost() == []  # not looked at again yet
