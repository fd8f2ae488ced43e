import os
import subprocess
import sys
import types

import pytest
import torch
from torch import nn

from magneton_dist.tracer import knobs as knobs_module
from magneton_dist.tracer.arguments import plain
from magneton_dist.tracer.knobs import emit_knobs
from magneton_dist.tracer.model import Model
from magneton_dist.tracer.secrecy import looks_secret, secret_name

SECRET = "correct-horse-battery"


class Rows:
    live = True

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []

    def put(self, *row: object) -> None:
        self.rows.append(row)

    def fault(self, where: str, error: object) -> None:
        self.rows.append(("fault", where, str(error)))


def knobs() -> dict[str, str]:
    spool = Rows()
    emit_knobs(spool)
    assert all(row[0] == "knob" for row in spool.rows)
    assert len({row[1] for row in spool.rows}) == len(spool.rows)
    return {str(row[1]): str(row[2]) for row in spool.rows}


def test_the_environment_is_read_by_an_allow_list(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("MY_NCCL_ALGO", "Tree")
    found = knobs()
    assert found["env.NCCL_ALGO"] == "Ring"
    assert found["env.OMP_NUM_THREADS"] == "3"
    assert not any("AWS" in name or "MY_" in name for name in found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_API_TOKEN", SECRET),
        ("NCCL_SECRET", SECRET),
        ("CUDA_PASSWORD", SECRET),
        ("PYTORCH_credential_file", SECRET),
        ("HF_TOKEN", SECRET),
        ("TORCH_MIRROR", f"https://user:{SECRET}@example.org/simple"),
        ("TORCH_HEADER", f"Bearer {SECRET}"),
        ("NCCL_OPTIONS", f"a=1,password={SECRET}"),
        ("TORCH_HUB", f"hf_{SECRET}"),
    ],
)
def test_a_secret_in_the_environment_never_appears(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    monkeypatch.setenv(name, value)
    assert SECRET not in str(knobs())


def test_a_secret_among_the_arguments_of_an_operator_never_appears():
    assert SECRET not in str(plain(f"https://user:{SECRET}@example.org"))
    assert plain("linear") == "linear"


@pytest.mark.parametrize(
    "value",
    [
        "expandable_segments:True,max_split_size_mb:128",
        ":4096:8",
        "GPU-5e1b2c3d-0a1b-4c2d-9e8f-001122334455,MIG-5e1b2c3d-0a1b-4c2d-9e8f-001122334455",
        "/opt/conda/lib/python3.11/site-packages/nvidia/cublas/lib",
        "mlx5_0,mlx5_1,mlx5_2,mlx5_3",
        "granularity=fine,compact,1,0",
        "0,1,2,3,4,5,6,7",
    ],
)
def test_ordinary_settings_are_not_taken_for_secrets(value: str):
    assert not looks_secret(value)


@pytest.mark.parametrize(
    "value",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
        "0123456789abcdef0123456789abcdef",
        "-----BEGIN PRIVATE KEY-----",
        "zA91kQ4mTt7xL0pWv3Yb6NcE2dRf",
    ],
)
def test_the_usual_shapes_of_secrets_are_known(value: str):
    assert looks_secret(value)


def test_names_that_announce_a_secret_are_known():
    assert secret_name("nccl_api_Key")
    assert not secret_name("NCCL_ALGO")


def test_a_setting_that_changes_shows(monkeypatch: pytest.MonkeyPatch):
    before = knobs()
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        after = knobs()
    finally:
        torch.set_num_threads(threads)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        "torch.backends.mkldnn.enabled",
        "torch._C._get_mkldnn_enabled",
        "torch.get_num_threads",
    }


def test_settings_of_precision_and_attention_are_among_them():
    found = knobs()
    assert {
        "torch.backends.cuda.matmul.allow_tf32",
        "torch.backends.mkldnn.matmul.fp32_precision",
        "torch.backends.cudnn.benchmark",
        "torch._C._get_sdp_priority_order",
        "torch.backends.cuda.flash_sdp_enabled",
        "torch.get_float32_matmul_precision",
    } <= found.keys()
    assert len(found) > 60


def test_versions_are_those_of_what_is_imported(monkeypatch: pytest.MonkeyPatch):
    library = types.ModuleType("shiny")
    library.__version__ = "4.5"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shiny", library)

    class Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was asked of a lazy module")

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    found = knobs()
    assert found["version.shiny"] == "4.5"
    assert found["version.torch"] == torch.__version__
    assert found["version.python"] == ".".join(map(str, sys.version_info[:3]))
    assert "version.json" not in found


def test_no_cuda_call_is_made_while_the_job_has_no_context():
    code = """
import sys, torch
from magneton_dist.tracer.knobs import emit_knobs
class Spool:
    def put(self, *row): pass
    def fault(self, *row): sys.exit(str(row))
def refuse(*_): sys.exit("CUDA was asked")
torch.cuda._lazy_init = torch.cuda.current_device = torch.cuda.is_available = refuse
emit_knobs(Spool())
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=dict(os.environ))


def test_optimizers_and_data_parallel_show_their_arguments(monkeypatch: pytest.MonkeyPatch):
    model = nn.Linear(2, 2)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": torch.tensor(0.5)}]
    optimizer = torch.optim.AdamW(groups, lr=0.25)
    ddp = types.SimpleNamespace(find_unused_parameters=True, bucket_bytes_cap=25, process_group=object())
    found = Model([], [optimizer])
    found.data_parallel = [ddp]  # type: ignore[list-item]
    monkeypatch.setattr(knobs_module.Model, "of_this_process", lambda: found)
    rows = knobs()
    assert rows["ddp.find_unused_parameters"] == "True"
    assert rows["ddp.bucket_bytes_cap"] == "25"
    assert "ddp.process_group" not in rows
    assert rows["optimizer.class"] == "AdamW"
    assert (rows["optimizer.group0.lr"], rows["optimizer.group1.lr"]) == ("0.25", "0.5")
    assert not any("group0.params" in name for name in rows)


def test_what_cannot_be_read_is_a_fault_and_the_rest_is_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("platform.python_version", lambda: 1 / 0)
    spool = Rows()
    emit_knobs(spool)
    assert [row[1] for row in spool.rows if row[0] == "fault"] == ["knobs"]
    assert any(row[1] == "torch.get_num_threads" for row in spool.rows)


def test_fsdp_shows_its_arguments():
    code = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from magneton_dist.tracer.knobs import emit_knobs
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Spool:
    def put(self, kind, name, value):
        if name.startswith("fsdp"): print(name, "=", value)
    def fault(self, *row): print(row)
sharded = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
for part in (*sharded, sharded):
    fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
emit_knobs(Spool())
dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    rows = dict(line.split(" = ", 1) for line in done.stdout.splitlines())
    assert "param_dtype=torch.bfloat16" in rows["fsdp.mp_policy"]
    assert rows["fsdp.reshard_after_forward"] == "False"
    assert not any(name.startswith("fsdp1") for name in rows)  # all modules are sharded alike


@pytest.mark.parametrize(("both", "unused_bytes"), [(True, "0"), (False, "80")])  # 4 x 4 and 4 of float32
def test_ddp_says_which_parameters_it_found_unused(monkeypatch: pytest.MonkeyPatch, both: bool, unused_bytes: str):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(self.one(x)) if both else self.one(x)

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        found = Model([], [])
        found.data_parallel = [nn.parallel.DistributedDataParallel(Two(), find_unused_parameters=True)]
        monkeypatch.setattr(knobs_module.Model, "of_this_process", lambda: found)
        assert "ddp.unused_parameter_bytes" not in knobs()  # no step was made
        for _ in range(2):
            found.data_parallel[0](torch.ones(1, 4)).sum().backward()
        assert knobs()["ddp.unused_parameter_bytes"] == unused_bytes
    finally:
        torch.distributed.destroy_process_group()


class Driver:
    """Answers like libcuda about the second of two GPUs; arguments are `byref` of what it fills."""

    def __init__(self, flags: int, active: int) -> None:
        self.flags, self.active = flags, active

    def cuDeviceGet(self, handle, ordinal: int) -> int:
        handle._obj.value = 40 + ordinal
        return 0

    def cuDevicePrimaryCtxGetState(self, handle, flags, active) -> int:
        assert handle.value == 41
        flags._obj.value, active._obj.value = self.flags, self.active
        return 0


@pytest.mark.parametrize(
    ("flags", "active", "told"),
    [
        (0x00, 1, [("cuda.schedule", "auto")]),
        (0x19, 1, [("cuda.schedule", "spin")]),  # with flags for mapped host memory and local memory
        (0x04, 1, [("cuda.schedule", "blocking")]),
        (0x04, 0, []),  # flags that the next context would have
    ],
)
def test_how_threads_wait_for_the_device(monkeypatch: pytest.MonkeyPatch, flags: int, active: int, told):
    monkeypatch.setattr(knobs_module.ctypes, "CDLL", lambda name: Driver(flags, active))
    assert list(knobs_module._waiting(1)) == told


def test_without_nvidias_driver_nothing_is_told_of_waiting(monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(knobs_module.ctypes, "CDLL", absent)
    assert list(knobs_module._waiting(0)) == []
