"""What works on this machine, and why the rest does not."""

from __future__ import annotations

import os
import sys

import pytest

from magneton_dist import machine, meters
from magneton_dist.errors import MeterError
from magneton_dist.machine import Check, inspect


@pytest.fixture(scope="module")
def checks() -> dict[str, Check]:
    return {check.name: check for check in inspect()}


def test_what_an_audit_needs_is_here(checks):
    assert [name for name, check in checks.items() if check.needed] == ["python", "torch", "ray", "linux"]
    assert all(check.works for check in checks.values() if check.needed)
    assert "gloo" in checks["torch"].found
    assert sys.executable in checks["python"].found
    assert checks["cores"].found.startswith(f"{len(os.sched_getaffinity(0))} of ")


def test_the_modelled_meter_always_works_and_says_that_it_models(checks):
    assert checks["meter modelled:h200"].works
    assert checks["meter modelled:h200"].found.startswith("modelled: ")
    assert checks["meter auto"].works


def test_every_meter_is_there_with_what_is_missing_for_it(checks):
    for name in ("rapl", "hwmon", "pmd2", "pmd-usb"):
        assert checks[f"meter {name}"].found
    assert any(name.startswith("meter zeus") for name in checks)


def test_what_is_broken_is_named_with_its_reason(monkeypatch):
    def no_gpus(value: str | None) -> None:
        raise MeterError("no driver", where="NVML", do="install it")

    monkeypatch.setattr(meters, "visible_gpus", no_gpus)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(machine.sys, "platform", "darwin")
    found = {check.name: check for check in inspect()}
    assert (found["gpu"].works, found["gpu"].found) == (False, "NVML: no driver (install it)")
    assert not found["ray"].works
    assert found["ray"].needed
    assert found["linux"] == Check(
        "linux", False, "darwin: processes are supervised by means that only Linux has", needed=True
    )


def test_each_gpu_has_its_own_meter(monkeypatch):
    class Visible:
        uuids = ("GPU-a", "GPU-b")
        notes = ()

    def broken(spec: str, device: str) -> None:
        raise MeterError(f"{spec} of {device} is closed")

    monkeypatch.setattr(meters, "visible_gpus", lambda value: Visible)
    monkeypatch.setattr(meters, "open_meter", broken)
    found = {check.name: check for check in inspect()}
    assert found["gpu"] == Check("gpu", True, "2: GPU-a, GPU-b")
    assert found["meter nvml GPU-b"] == Check("meter nvml GPU-b", False, "nvml of GPU-b is closed")
    assert found["meter zeus GPU-b"] == Check("meter zeus GPU-b", False, "zeus of GPU-b is closed")
    assert not found["activity GPU-b"].works
