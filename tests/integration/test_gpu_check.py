"""The GPU check where there is no GPU, and with no more packages than it says that it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from importlib import import_module, util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magneton_dist.errors import MeterError
from magneton_dist.meters import NullMeter
from magneton_dist.meters.gpm import Activity

MS = 1_000_000
ROOT = Path(__file__).resolve().parents[2]
NOT_NEEDED = ("pydantic", "msgspec", "yaml", "scipy", "ray", "typer", "rich", "networkx", "jinja2", "plotly")


def test_it_runs_with_few_packages_and_skips_with_reasons(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there may be a GPU: run tests/gpu/check itself")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({NOT_NEEDED!r}))\n")
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import runpy; sys.argv = ['check', '--quick']; "
    command += f"runpy.run_path({str(ROOT / 'tests' / 'gpu' / 'check.py')!r}, run_name='__main__')"
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    ended = subprocess.run(
        [sys.executable, "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=170,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    table = ended.stdout.split("\n\n")[-1].splitlines()
    told = {line[:38].strip(): line[38:].strip() for line in table if line.strip()}
    skipped = {name for name, figure in told.items() if figure.startswith("skipped: no GPU: NVML is not usable")}
    assert skipped == {
        "idle and spin", "gpm", "sensor", "solo runs", "tf32", "addmm", "ten captures", "cupti", "causes", "launch",
    }  # fmt: skip
    assert told["replay of linear"].endswith("loop")
    assert told["traced job"].startswith("8 steps, ")
    assert "neither NCCL nor separate joules" in told["all-reduce of 2 ranks, gloo, 1 device"]


@pytest.fixture
def check() -> Any:
    """The script, as a module."""
    spec = util.spec_from_file_location("gpu_check", ROOT / "tests" / "gpu" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


class Device:
    """What stands for a GPU: it spins or works, and its monitors tell which, on the average."""

    works_since_ns: int | None = None
    worked_ns = 0
    lock = threading.Lock()

    def worked(self) -> int:
        with self.lock:
            return self.worked_ns + (0 if self.works_since_ns is None else time.monotonic_ns() - self.works_since_ns)


class Load:
    def __init__(self, device: Device) -> None:
        self.device = device

    def start(self, boost: bool) -> None:
        pass

    def spin(self, seconds: float) -> None:
        time.sleep(seconds)

    def pulses(self, lengths_s: list[float]) -> None:
        with self.device.lock:
            self.device.works_since_ns = time.monotonic_ns()
        time.sleep(lengths_s[0])
        with self.device.lock:
            since_ns = self.device.works_since_ns
            self.device.worked_ns += time.monotonic_ns() - since_ns
            self.device.works_since_ns = None

    def stop(self) -> None:
        pass


class Monitored(NullMeter):
    """60 % of the DRAM's bandwidth while it works, 0.1 % while it spins; a look is 20 ms apart."""

    period_s = 0.01

    def __init__(self, device: Device) -> None:
        super().__init__("GPU-1")
        self.gpu, self.since = device, (time.monotonic_ns(), device.worked())

    def activity(self) -> Activity | None:
        now, (then_ns, worked) = (time.monotonic_ns(), self.gpu.worked()), self.since
        if now[0] - then_ns < 20 * MS:
            return None
        self.since, share = now, (now[1] - worked) / (now[0] - then_ns)
        return Activity(then_ns, now[0], 1.0, 0.9 * share, 0.001 + 0.599 * share, None)


def test_its_monitors_tell_spinning_from_working(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(check, "NvmlMeter", lambda gpu: Monitored(device))
    monkeypatch.setattr(check, "TorchLoad", lambda gpu: Load(device))
    bed = check.Bed("GPU-1", "", 0.2)
    check.gpm(bed)
    told = dict(bed.rows)
    assert told["GPM on spin as wait"].startswith("agrees: DRAM ")
    assert told["GPM on products as transfer"].startswith("agrees: DRAM ")
    assert bed.figures["gpm_spin_dram"] == pytest.approx(0.001, abs=0.01)
    assert bed.figures["gpm_matrix products_dram"] == pytest.approx(0.6, abs=0.01)


def test_why_there_are_no_monitors_is_the_reason_to_skip(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(NullMeter):
        def activity(self) -> None:
            raise MeterError("this GPU has no performance monitors", where="NVML GPM")

    monkeypatch.setattr(check, "NvmlMeter", Older)
    with pytest.raises(check.Skip, match="no performance monitors"):
        check.gpm(check.Bed("GPU-1", "", 0.2))


def test_a_decoy_that_is_named_is_a_failure_and_the_other_causes_are_told(
    check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "gpu")
    pairs = import_module("pairs")
    monkeypatch.setattr(check, "Laboratory", nullcontext)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)

    def cause_of(pair: Any, _: object) -> Any:
        blamed = ["torch.backends.cudnn.benchmark"] if pair.what == "SDPA backend" else []
        return pairs.Found(pairs.Verdict.PROVED, blamed or [pair.cause], ["one", "other"], blamed)

    monkeypatch.setattr(pairs, "cause_of", cause_of)
    bed = check.Bed("GPU-1", "", 0.2)
    with pytest.raises(check.MagnetonError, match=r"decoys were named: torch\.backends\.cudnn\.benchmark"):
        check.causes(bed)
    told = dict(bed.rows)
    assert told["cause: channels_last"].startswith("layout of input: proved; of 2 decoys none named; ")
    assert told["cause: SDPA backend"].startswith("torch.backends.cudnn.benchmark: proved; of 2 decoys ")
    assert json.loads(json.dumps(bed.figures))["cause: cudnn.benchmark"]["verdict"] == "proved"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(check.Skip, match="this torch has no CUDA"):
        check.causes(bed)


def test_what_no_time_is_left_for_is_skipped_with_the_reason(
    check: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    gpu = SimpleNamespace(uuids=("GPU-1",), notes=())
    monkeypatch.setattr(check, "visible_gpus", lambda _: gpu)
    monkeypatch.setattr(check, "RESULT", tmp_path / "gpu" / "check.json")

    def machine(bed: Any) -> None:
        done.append("machine")

    monkeypatch.setattr(check, "CHECKS", ((machine, 5), (check.tf32, 60)))
    assert check.main(["--budget", "20"]) == 0
    assert done == ["machine"]
    assert "tf32  skipped: it takes up to 60 s, of 20 s 20 s are left" in capsys.readouterr().out


def test_kernels_with_an_operator_are_counted_in_both_kinds_of_traces(check: Any) -> None:
    def host(name: str, ts: int, dur: int, external: int) -> dict[str, Any]:
        return {"cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "tid": 1, "args": {"External id": external}}

    kernels = [{"cat": "kernel", "args": {"External id": external}} for external in (2, 3, 9)]
    kineto = [host("magneton_dist.operator#5", 0, 10, 1), host("aten::mm", 2, 5, 2), host("aten::add", 20, 5, 3)]
    assert check.operators_met([*kineto, *kernels, {"cat": "kernel", "args": {}}]) == 1
    assert check.operators_met([{"cat": "kernel", "args": {"operator": 5}}, {"cat": "kernel", "args": {}}]) == 1
