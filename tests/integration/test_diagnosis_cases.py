"""Causes that somebody knows, named and proved in real jobs of two ranks, among settings that do not matter."""

from __future__ import annotations

import json
import platform
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from diagnosis_cases import CASES, DECOYS, Case, command, explain, launch, wrong

FAST = "bf16-matmul"
pytestmark = pytest.mark.timeout(600)  # a busy machine takes many times longer
LIMIT_S = 120.0


def check(case: Case, found: dict[str, Any]) -> None:
    assert wrong(case, found) == []
    if case.cause is None:
        assert found["cause"] is None
        assert "no cause" in found["diagnosis"][-1]
        assert found["fix"] == ""
        return
    name, in_a, in_b = case.cause
    assert found["proof"] == "proved", found["diagnosis"]
    assert found["cause"]["name"] == name
    assert found["cause"]["values"] == {"a": in_a, "b": in_b}
    assert "counterfactual" in found["cause"]["agreed"]
    if find_spec("capstone") and platform.machine() == "x86_64" and not case.environment:
        assert "key variable" in found["cause"]["agreed"], found["diagnosis"]
    if found["variant"] in case.fix:  # which one is slower may depend on the machine
        assert case.fix[found["variant"]] in found["fix"]
    if case.decoys:
        (proved,) = [line for line in found["diagnosis"] if line.startswith("proved")]
        cleared = proved.partition("not the cause: ")[2]
        assert all(decoy in cleared for decoy in DECOYS)


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=pytest.mark.soak) for c in CASES if c.name != FAST]
)
def test_the_cause_is_named_and_proved_and_no_decoy_is(case: Case, tmp_path: Path) -> None:
    if not case.possible:
        pytest.skip(f"this processor has no {case.needs}")
    found, seconds = explain(case, launch(case, tmp_path))
    check(case, found)
    assert seconds < LIMIT_S


def test_launch_proves_a_cause_and_audit_remembers_it(tmp_path: Path) -> None:
    (case,) = [c for c in CASES if c.name == FAST]
    if not case.possible:
        pytest.skip(f"this processor has no {case.needs}")
    record = launch(case, tmp_path, budget_s=120)

    def proved() -> list[dict[str, Any]]:
        audit = json.loads((record / "audit.json").read_text())
        return [finding for finding in audit["findings"] if finding["proof"] == "proved"]

    first = proved()
    assert first
    for finding in first:
        check(case, finding)
        assert finding["variant"] == "b"
    command("audit", record, "--quiet")
    assert proved() == first
    page = (record / "report.html").read_text()
    assert "torch.backends.mkldnn.enabled" in page
