"""A proved fix is applied to the variant that needs more, which is launched with and without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from diagnosis_cases import CASES, command, launch

FLASH = "torch.backends.cuda.flash_sdp_enabled"


@pytest.mark.soak
@pytest.mark.timeout(900)  # a busy machine takes many times longer
def test_a_setting_of_torch_is_applied_although_the_script_sets_it(tmp_path: Path) -> None:
    (case,) = [c for c in CASES if c.name == "attention"]
    record = launch(case, tmp_path)
    regions = json.loads((record / "audit.json").read_text())["regions"]
    number = next(
        n for n, region in enumerate(regions, start=1)
        if region["kind"] == "matched" and "forward" in region["phases"] and "attention" in region["title"]
    )  # fmt: skip
    words = ["explain", record, f"region:{number}", "--json", "--budget", "6m"]
    found = json.loads(command(*words, "--apply", "--config", tmp_path / "audit.yaml"))
    assert (found["variant"], found["proof"], found["cause"]["name"]) == ("b", "proved", FLASH)
    (folder,) = (tmp_path / "runs").glob("attention-fixed-*")
    audit = json.loads((folder / "audit.json").read_text())
    assert audit["settings"][FLASH] == {"b": "False", "b-fixed": "True"}
    assert audit["comparison"]["energy_ratio"]["mean"] < 1
    assert audit["missing"] == []
