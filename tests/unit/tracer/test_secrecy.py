"""What must not enter a record."""

from __future__ import annotations

import pytest

from magneton_dist.tracer.secrecy import WITHHELD, withhold

HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["train.py", "--tokens", "512", "--lr=1e-3"], ["train.py", "--tokens", "512", "--lr=1e-3"]),
        (["--api-key", "abc", "--n", "3"], ["--api-key", WITHHELD, "--n", "3"]),
        (["--hf_token=abc", "x"], [f"--hf_token={WITHHELD}", "x"]),
        (["--password", "--verbose"], ["--password", "--verbose"]),  # a switch
        (["env", "HF_TOKEN=abc", "A=b", "python"], ["env", f"HF_TOKEN={WITHHELD}", "A=b", "python"]),
        (["--url", "https://me:pw@host/x"], ["--url", WITHHELD]),
        (["--id=" + HEX, HEX], [f"--id={WITHHELD}", WITHHELD]),
        (
            ["--tokenizer", "gpt2", "--keyboard=us", "--monkey", "x"],
            ["--tokenizer", "gpt2", "--keyboard=us", "--monkey", "x"],
        ),
    ],
)
def test_a_command_line_keeps_everything_but_secrets(given: list[str], kept: list[str]):
    assert list(withhold(given)) == kept
