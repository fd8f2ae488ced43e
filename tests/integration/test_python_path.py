"""The condition by which two variants part in Python, seen in real jobs of two ranks that are run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from diagnosis_cases import command
from torch.nn import functional

SCRIPT = Path(__file__).parent / "scripts" / "branch_job.py"
pytestmark = [pytest.mark.timeout(600), pytest.mark.soak]  # a busy machine takes many times longer


def explained(case: str, folder: Path, script: Path = SCRIPT, **args: list[str]) -> dict[str, Any]:
    """What `explain --config` says of the costliest region of the forward pass that only parts in Python.

    `args`: of the script, by variant; default: the case and the variant's name.
    """
    config = {
        "name": case,
        "job": {"torchrun": {"nproc_per_node": 2}, "script": str(script), "env": {"OMP_NUM_THREADS": "1"}},
        "variants": {name: {"args": args.get(name, [case, name])} for name in ("a", "b")},
        "baseline": "a", "repeats": 1, "warmup_runs": 0,
        "capture": {"warmup_steps": 1, "graph_steps": 2}, "energy": {"meter": "modelled:h200"},
        "diagnose": {"budget": 0}, "runs": str(folder / "runs"),
    }  # fmt: skip
    (folder / "audit.yaml").write_text(json.dumps(config))
    command("launch", folder / "audit.yaml", "--quiet")
    (record,) = (folder / "runs").iterdir()
    audit = json.loads((record / "audit.json").read_text())
    number = next(n for n, region in enumerate(audit["regions"], start=1) if _is_attention(region))
    said = command("explain", record, f"region:{number}", "--json", "--config", folder / "audit.yaml")
    found: dict[str, Any] = json.loads(said)
    return found


def _is_attention(region: dict[str, Any]) -> bool:
    names = [{operator["name"] for operator in side["shown"]} for side in region["sides"].values()]
    flash = [any("scaled_dot_product" in name for name in each) for each in names]
    return "forward" in region["phases"] and len(region["operators"]) == 2 and sorted(flash) == [False, True]


def test_a_configuration_attribute_is_named(tmp_path: Path) -> None:
    found = explained("configured", tmp_path)
    (line,) = [n for n, text in enumerate(SCRIPT.read_text().splitlines(), start=1) if text.endswith("# decides")]
    assert found["cause"]["name"] == "self.config.implementation", found["diagnosis"]
    assert found["cause"]["values"] == {"a": "'eager'", "b": "'sdpa'"}
    assert found["cause"]["layer"] == "branch"
    assert found["proof"] == "consistent"
    place = f"{SCRIPT}:{line} forward: self.config.implementation == 'sdpa'"
    assert any(text.endswith(place) for text in found["diagnosis"])
    assert not any("verbose" in text for text in found["diagnosis"])
    assert "from config (argument of __init__)" in found["diagnosis"][-1]


def test_an_argument_is_followed_through_torch_to_the_job(tmp_path: Path) -> None:
    found = explained("weighing", tmp_path)
    assert found["cause"]["name"] == "self.weights", found["diagnosis"]
    assert found["cause"]["values"] == {"a": "True", "b": "False"}
    told = "\n".join(found["diagnosis"])
    assert f"{functional.__file__}:" in told
    assert " multi_head_attention_forward: need_weights\n" in told
    assert "from weights (argument of __init__)" in told


def test_the_attention_of_transformers_is_named(tmp_path: Path) -> None:
    """`attn_implementation` in a configuration: dispatched through a table, not by a condition."""
    pytest.importorskip("transformers")
    script = SCRIPT.with_name("transformers_job.py")
    found = explained("transformers", tmp_path, script, a=["eager"], b=["sdpa"])
    assert found["cause"]["name"] == "self.config._attn_implementation", found["diagnosis"]
    assert found["cause"]["values"] == {"a": "'eager'", "b": "'sdpa'"}
    assert (found["cause"]["layer"], found["proof"]) == ("branch", "consistent")
    told = "\n".join(found["diagnosis"])
    assert "eager_attention_forward in a, " in told
    assert "sdpa_attention_forward in b" in told
    assert "modeling_gpt2.py" in told
    assert "from config (argument of __init__)" in found["diagnosis"][-1]


def test_launch_names_the_argument_by_which_one_variant_waits_in_join(tmp_path: Path) -> None:
    """Join against early exit, out of `configs/uneven_inputs.yaml` with a smaller job."""
    root = Path(__file__).parents[2]
    script = root / "examples" / "uneven_inputs" / "train.py"
    small = "job.args+=[--layers, 1, --dim, 32, --tokens, 64, --docs, 24]"
    config = root / "configs" / "uneven_inputs.yaml"
    sets = [f"runs={tmp_path}", f"job.script={script}", small, "repeats=1", "warmup_runs=0", "diagnose.budget=2m"]
    command("launch", config, "--quiet", *(word for each in sets for word in ("--set", each)))
    (record,) = tmp_path.iterdir()
    findings = json.loads((record / "audit.json").read_text())["findings"]
    (found,) = [finding for finding in findings if finding["kind"] == "shadow-collective"]

    def line(text: str) -> int:
        (number,) = [n for n, each in enumerate(script.read_text().splitlines(), start=1) if text in each]
        return number

    assert found["proof"] == "consistent", found["diagnosis"]
    assert found["cause"]["layer"] == "branch"
    assert found["cause"]["name"] == "args.sync"
    assert found["cause"]["values"] == {"join": "'join'", "early-exit": "'early-exit'"}
    told = "\n".join(found["diagnosis"])
    assert f"records: rank 0 had {found['evidence']['steps_of_this_rank']} " in told
    condition, block, option = (f"{script}:{line(each)}" for each in ("if sync == ", "with uneven(", 'add("--sync"'))
    assert f"{condition} uneven: sync == 'early-exit'\n" in told
    assert f"at {block} main\n" in told
    assert f"option --sync ({option})" in told
    assert "--sync join in join, --sync early-exit in early-exit" in told
    assert "EarlyExit" in found["fix"]
    assert "In join, start the job with --sync early-exit" in found["fix"]
    command("audit", record)  # remembers it
    assert json.loads((record / "audit.json").read_text())["findings"] == findings
    assert json.loads(command("explain", record, "shadow-collective", "--json")) == found
