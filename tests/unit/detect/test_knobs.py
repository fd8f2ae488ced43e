"""Advice on settings: where somebody set one that costs something, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from magneton_dist.detect.knobs import Spent, advice
from magneton_dist.records.audit import StateShare
from magneton_dist.tracer.knobs import emit_knobs


class Rows:
    """Takes what the tracer would spool."""

    def __init__(self) -> None:
        self.knobs: dict[str, str] = {}

    def put(self, _kind: str, name: str, value: str) -> None:
        self.knobs[name] = value

    def fault(self, *_: object) -> None:
        raise AssertionError


@pytest.fixture
def knobs() -> dict[str, str]:
    """The settings of this process, as the tracer records them."""
    rows = Rows()
    emit_knobs(rows)  # type: ignore[arg-type]
    return rows.knobs


def test_torchs_own_defaults_are_not_advised_against(knobs):
    assert advice("alone", knobs) == []
    # and what is asked for is recorded under that name
    assert knobs["torch.is_anomaly_enabled"] == "False"
    assert knobs["torch.are_deterministic_algorithms_enabled"] == "False"


def test_a_switch_that_was_left_on(monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    rows = Rows()
    torch.autograd.set_detect_anomaly(True)
    try:
        emit_knobs(rows)  # type: ignore[arg-type]
    finally:
        torch.autograd.set_detect_anomaly(False)
    one, other = advice("alone", rows.knobs)
    assert one.startswith("alone: advice, not proved: NCCL_P2P_DISABLE=1: ")
    assert other.startswith("alone: advice, not proved: torch.is_anomaly_enabled=True: ")


@pytest.mark.parametrize(("value", "told"), [("DETAIL", True), ("INFO", False), ("OFF", False)])
def test_values_that_cost_nothing_are_silent(value, told):
    assert bool(advice("alone", {"env.TORCH_DISTRIBUTED_DEBUG": value})) is told


@pytest.mark.parametrize(
    ("unused", "words"), [("0", "and torch found none: leave it out"), ("80", None), (None, "leave it out if all")]
)
def test_looking_for_unused_parameters_is_advised_against_where_all_are_used(unused, words):
    knobs = {"ddp.find_unused_parameters": "True"} | ({} if unused is None else {"ddp.unused_parameter_bytes": unused})
    told = advice("alone", knobs)
    assert len(told) == (words is not None)
    assert all(words in line for line in told)


def test_the_line_that_sets_it_is_named(tmp_path):
    script, other = tmp_path / "train.py", tmp_path / "model.py"
    script.write_text(
        "import torch\n"
        "# torch.autograd.set_detect_anomaly(True) was here\n"
        "torch.autograd.set_detect_anomaly(True)\n"
        "os.environ['NCCL_P2P_DISABLE'] = '1'\n"
    )
    other.write_text("torch.use_deterministic_algorithms(True)\ntorch.use_deterministic_algorithms(False)\n")
    knobs = {
        "env.NCCL_P2P_DISABLE": "1", "env.NCCL_IB_DISABLE": "1", "torch.is_anomaly_enabled": "True",
        "torch.are_deterministic_algorithms_enabled": "True",
    }  # fmt: skip
    told = [line.split(": ")[2] for line in advice("alone", knobs, [script, other, tmp_path / "gone.py", tmp_path])]
    assert told == [
        "NCCL_P2P_DISABLE=1 (train.py:4)", "NCCL_IB_DISABLE=1", "torch.is_anomaly_enabled=True (train.py:3)",
        "torch.are_deterministic_algorithms_enabled=True (model.py:1)",
    ]  # fmt: skip


def test_two_lines_that_may_have_set_it_are_not_guessed_between(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("torch.autograd.set_detect_anomaly(debug)\nwith torch.autograd.detect_anomaly():\n    pass\n")
    (told,) = advice("alone", {"torch.is_anomaly_enabled": "True"}, [script])
    assert "torch.is_anomaly_enabled=True: autograd" in told


def test_a_profiler_that_was_left_on():
    rows = Rows()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        emit_knobs(rows)  # type: ignore[arg-type]
    (told,) = advice("alone", rows.knobs)
    assert told.startswith("alone: advice, not proved: torch.autograd.profiler_enabled=True: ")


def test_what_a_setting_can_have_cost_is_bounded_by_the_states_that_it_lengthens():
    p2p, anomaly = {"env.NCCL_P2P_DISABLE": "1"}, {"torch.is_anomaly_enabled": "True"}
    run = {"compute": StateShare(8.0, 4000.0), "transfer": StateShare(1.0, 150.0), "idle": StateShare(1.0, 120.0)}
    (line,) = advice("alone", p2p, spent=Spent(run, "modelled"))
    assert line.endswith("at most 150 J modelled (all that its devices spent in transfer)")
    # what anomaly detection makes longer is everywhere
    (line,) = advice("alone", anomaly, spent=Spent(run, "modelled"))
    assert "not known from one run, nor bounded by it" in line
    # without joules by time, without anything known said so, and silent below a hundredth of the run
    unmeasured = {name: StateShare(share.s) for name, share in run.items()}
    (line,) = advice("alone", p2p, spent=Spent(unmeasured))
    assert "at most 1 s of its ranks' time (all that its devices spent in transfer); joules are unmeasured" in line
    assert "not known from one run" in advice("alone", p2p)[0]
    assert advice("alone", p2p, spent=Spent({**run, "transfer": StateShare(0.3, 41.0)}, "modelled")) == []
    assert advice("alone", p2p, spent=Spent({"compute": StateShare(8.0, 4000.0)}, "modelled")) == []


def test_settings_of_gpus_are_not_advised_against_on_a_cpu():
    knobs = {"env.NCCL_P2P_DISABLE": "1", "env.CUDA_LAUNCH_BLOCKING": "1", "env.TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    (line,) = advice("alone", knobs, spent=Spent(on_gpus=False))
    assert "TORCH_DISTRIBUTED_DEBUG" in line
    assert len(advice("alone", knobs)) == 3
