"""What an audit is: the models behind `config.yaml`.

Every key has a default except what to run. Variants override the job's keys; a key that ends in ``+``
extends it. `load` reports every error with file, line and key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """Unknown keys are errors; values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Torchrun(Model):
    """Options of torchrun that the audit must know; `extra` is handed on as it is."""

    nproc_per_node: int = Field(1, ge=1)
    nnodes: int = Field(1, ge=1)
    max_restarts: int = Field(0, ge=0)
    master_port: int | None = Field(None, ge=1, le=65535)
    extra: tuple[str, ...] = ()


class Job(Model):
    """What a variant runs. Either `script` or `module` under torchrun, or a whole `command`."""

    torchrun: Torchrun = Torchrun()
    script: str | None = None
    module: str | None = None
    command: tuple[str, ...] | None = None  # srun, accelerate, deepspeed, python: ends in the ranks
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None  # default: the folder the audit was started in
    python: str | None = None  # interpreter of another environment
    seed: int | None = None
    stop_after_steps: int | None = Field(None, ge=1)
    timeout_s: float | None = Field(None, gt=0)


class Kernels(Model):
    """Windows in which kernels are captured: `steps` steps every `every` steps."""

    every: int = Field(50, ge=1)
    steps: int = Field(3, ge=0)


class Capture(Model):
    """What the tracer records."""

    warmup_steps: int = Field(2, ge=0)
    graph_steps: int = Field(1, ge=0)
    kernels: Kernels = Kernels()
    stacks: Literal["none", "python"] = "python"
    max_mb: int = Field(256, ge=1)


class Energy(Model):
    """Which meter; ``modelled:NAME`` or ``modelled:path/to/profile.yaml`` models the watts."""

    meter: str = "auto"  # auto | nvml | rapl | null | modelled:PROFILE
    period_ms: float = Field(50.0, ge=1.0)


class Compare(Model):
    """What counts as a difference."""

    by: Literal["energy", "time", "memory", "values"] = "energy"
    region: float = Field(0.10, gt=0)
    total: float | Literal["auto"] = "auto"  # auto: beyond the noise between repeats
    time: float = Field(0.01, gt=0)
    values: float = Field(0.01, gt=0)


class AuditConfig(Model):
    """A whole configuration file, variants already resolved to complete jobs."""

    name: str
    variants: dict[str, Job]
    baseline: str
    repeats: int = Field(4, ge=1)
    warmup_runs: int = Field(1, ge=0)  # discarded runs per variant, before the first repeat
    capture: Capture = Capture()
    energy: Energy = Energy()
    compare: Compare = Compare()
    runs: Path = Path("runs")
