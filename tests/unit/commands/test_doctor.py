from __future__ import annotations

import json

import pytest

from magneton_dist import machine
from magneton_dist.commands import run
from magneton_dist.machine import Check

CHECKS = [Check("python", True, "3.11", needed=True), Check("meter rapl", False, "no RAPL here")]


@pytest.fixture
def found(monkeypatch):
    def checks(*more: Check) -> None:
        monkeypatch.setattr(machine, "inspect", lambda: [*CHECKS, *more])

    return checks


def test_it_says_what_works_and_why_the_rest_does_not(found, capsys):
    found()
    assert run(["doctor"]) == 0
    assert capsys.readouterr().out == "works   python      3.11\nabsent  meter rapl  no RAPL here\n"


def test_what_an_audit_needs_decides_the_exit_code(found, capsys):
    found(Check("torch", False, "not there", needed=True))
    assert run(["doctor"]) == 1


def test_json(found, capsys):
    found()
    run(["doctor", "--json"])
    assert json.loads(capsys.readouterr().out) == [
        {"name": "python", "works": True, "found": "3.11", "needed": True},
        {"name": "meter rapl", "works": False, "found": "no RAPL here", "needed": False},
    ]
