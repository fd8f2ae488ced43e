"""Pairs of variants of one real job on two ranks, of which somebody knows what makes them differ."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SCRIPT = Path(__file__).parent / "integration" / "scripts" / "diagnosis_job.py"
BACKENDS = "torch.backends."
DECOYS = ("cudnn.benchmark", "allow_fp16_accumulation", "fastpath_enabled")


@dataclass(frozen=True)
class Case:
    """What differs between variants a and b, besides three decoys.

    Attributes:
        region: what the region of the forward pass is called that differs.
        cause: names, and values in a and in b; None where nothing makes a difference.
        fix: what to type so that the slower of both is as the other; by variant that is told to.
        needs: what the processor must have.
        environment: of variant b.
        decoys: variant b has three settings that do not matter.
    """

    name: str
    region: str
    cause: tuple[str, str, str] | None
    fix: dict[str, str]
    needs: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    decoys: bool = True

    @property
    def possible(self) -> bool:
        """Does this processor tell the two apart?"""
        return getattr(torch.cpu, f"_is_{self.needs}_supported")() if self.needs else True


_MKLDNN = {"b": f"{BACKENDS}mkldnn.enabled = True", "a": f"{BACKENDS}mkldnn.enabled = False"}
_PRECISION = f"{BACKENDS}mkldnn.matmul.fp32_precision"
CASES = [
    Case("precision", "mm", (_PRECISION, "ieee", "bf16"), {"a": f'{_PRECISION} = "bf16"'}, needs="avx512_bf16"),
    Case("bf16-matmul", "mm", (f"{BACKENDS}mkldnn.enabled", "True", "False"), _MKLDNN, needs="avx512"),
    Case(
        "attention", "attention", (f"{BACKENDS}cuda.flash_sdp_enabled", "True", "False"),
        {"b": f"{BACKENDS}cuda.enable_flash_sdp(True)"},
    ),
    Case("convolution", "convolution", (f"{BACKENDS}mkldnn.enabled", "True", "False"), _MKLDNN),
    Case(
        "layout", "convolution",
        ("layout of input and layout of weight", "contiguous, contiguous", "channels_last, channels_last"),
        {"a": "memory_format=torch.channels_last", "b": "contiguous()"},
    ),
    Case("norm", "norm", ("layout of input", "contiguous", "transposed"), {"b": "input.contiguous()"}),
    Case(
        "pair", "mm", (f"{BACKENDS}mkldnn.enabled and {_PRECISION}", "False, ieee", "True, bf16"),
        {"a": f'{BACKENDS}mkldnn.enabled = True` and `{_PRECISION} = "bf16"'}, needs="avx512_bf16",
    ),
    Case(
        "environment", "mm", ("MKL_CBWR", "unset", "COMPATIBLE"), {"b": "unset MKL_CBWR"},
        environment=(("MKL_CBWR", "COMPATIBLE"),),
    ),
    Case("noise", "mm", None, {}, decoys=False),
    Case("decoys", "mm", None, {}),
]  # fmt: skip


def launch(case: Case, folder: Path, budget_s: int = 0) -> Path:
    """Run both variants of `case` once; the audit's folder."""
    args = [case.name, "b", *(["decoys"] if case.decoys else [])]
    config = {
        "name": case.name,
        "job": {"torchrun": {"nproc_per_node": 2}, "script": str(SCRIPT), "env": {"OMP_NUM_THREADS": "1"}},
        "variants": {"a": {"args": [case.name, "a"]}, "b": {"args": args, "env": dict(case.environment)}},
        "baseline": "a", "repeats": 1, "warmup_runs": 0,
        "capture": {"warmup_steps": 1, "graph_steps": 2}, "energy": {"meter": "modelled:h200"},
        "diagnose": {"budget": budget_s}, "runs": str(folder / "runs"),
    }  # fmt: skip
    (folder / "audit.yaml").write_text(json.dumps(config))
    command("launch", folder / "audit.yaml", "--quiet")
    (record,) = (folder / "runs").iterdir()
    return record


def explain(case: Case, record: Path) -> tuple[dict[str, Any], float]:
    """The finding that `explain` makes of the region that differs, and how long it took in seconds."""
    audit = json.loads((record / "audit.json").read_text())
    number = next(
        number for number, region in enumerate(audit["regions"], start=1)
        if region["kind"] == "matched" and "forward" in region["phases"] and _about(case.region, region)
    )  # fmt: skip
    start_s = time.monotonic()
    said = command("explain", record, f"region:{number}", "--json")
    return json.loads(said), time.monotonic() - start_s


def _about(what: str, region: dict[str, Any]) -> bool:
    operators = [operator["name"] for side in region["sides"].values() for operator in side["shown"]]
    return what in region["title"] or any(what in name for name in operators)


def wrong(case: Case, found: dict[str, Any]) -> list[str]:
    """What `explain` said that is not so, in words."""
    cause = found["cause"]
    if case.cause is None:
        return [] if cause is None and found["proof"] == "none" else [f"blames {cause}"]
    if cause is None:
        return []
    faults = [] if cause["name"] == case.cause[0] else [f"blames {cause['name']}"]
    return faults + [f"blames the decoy {decoy}" for decoy in DECOYS if decoy in cause["name"]]


def command(*words: object) -> str:
    """What a command prints; it must succeed."""
    line = [sys.executable, "-m", "magneton_dist.commands", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
