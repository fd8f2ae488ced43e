"""The models behind `config.yaml`: keys, types, ranges and defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _folder(value: object) -> object:
    """Texts are paths even where other types are taken strictly."""
    return Path(value) if isinstance(value, str) and value else value


_TIME = re.compile(r"(\d+(?:\.\d+)?) ?([smh]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class Model(BaseModel):
    """Unknown keys are errors; values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Torchrun(Model):
    """Options of torchrun that the audit must know; `extra` is handed on as it is."""

    nproc_per_node: int = Field(default=1, ge=1)
    nnodes: int = Field(default=1, ge=1)
    max_restarts: int = Field(default=0, ge=0)
    master_port: int | None = Field(default=None, ge=1, le=65535)
    extra: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks on all nodes together."""
        return self.nproc_per_node * self.nnodes


class Job(Model):
    """What a variant runs. Either `script` or `module` under torchrun, or a whole `command`.

    `args`, `command`, `cwd` and the values of `env` may hold the placeholders ``{run_dir}``, ``{variant}``,
    ``{repeat}`` and ``{seed}``; a literal brace is doubled.
    """

    torchrun: Torchrun = Torchrun()
    script: str | None = None
    module: str | None = None
    command: tuple[str, ...] | None = None  # srun, accelerate, deepspeed, python: ends in the ranks
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None  # default: the folder the audit was started in; absolute after loading
    python: str | None = None  # interpreter of another environment
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    stop_after_steps: int | None = Field(default=None, ge=1)
    timeout_s: float | None = Field(default=None, gt=0)


class Kernels(Model):
    """Steps whose kernels are captured, by torch.profiler or by CUPTI itself; both wait for the device at their end."""

    every: int = Field(default=50, ge=1)
    steps: int = Field(default=1, ge=1)
    by: Literal["kineto", "cupti"] = "kineto"


class Inputs(Model):
    """Operators of a traced step whose inputs are kept, so that `replay` works on the job's own data."""

    operators: tuple[str, ...] = Field(min_length=1)  # parts of their names: [embedding, addmm]
    max_mb: int = Field(default=64, ge=1)


class Capture(Model):
    """What the tracer records."""

    warmup_steps: int = Field(default=2, ge=0)
    graph_steps: int = Field(default=1, ge=0)
    # of the values of those steps, to find equal work in two runs; spectra: singular values too, very slow
    fingerprints: Literal["none", "standard", "spectra"] = "standard"
    stacks: Literal["none", "python"] = "python"
    inputs: Inputs | None = None  # default: none; replay takes random values
    kernels: Kernels | None = None  # on a GPU; default: none, what lies outside of collectives is unresolved
    max_mb: int = Field(default=256, ge=1)


class Energy(Model):
    """Which meter; ``modelled:NAME`` or ``modelled:path/to/profile.yaml`` models the watts.

    `profile`, by `magneton-dist calibrate`, says how the sensor of a meter that measures blurs the states.
    """

    meter: str = "auto"  # auto | nvml | rapl | hwmon | pmd2[:PORT] | pmd-usb[:PORT] | zeus | null | modelled:PROFILE
    profile: str | None = None
    period_ms: float = Field(default=50.0, ge=1.0)


class Compare(Model):
    """What counts as a difference."""

    by: Literal["energy", "time", "memory", "values"] = "energy"
    region: float = Field(default=0.10, gt=0)
    total: float | Literal["auto"] = "auto"  # auto: beyond the noise between repeats
    time: float = Field(default=0.01, gt=0)
    values: float = Field(default=0.01, gt=0)


def seconds_of(text: str) -> float | None:
    """A time such as 90s, 2m, 1.5h, or plain seconds; None when `text` is none."""
    found = _TIME.fullmatch(text.strip())
    return float(found[1]) * _SECONDS[found[2]] if found else None


def _time(value: object) -> object:
    seconds = seconds_of(value) if isinstance(value, str) else value
    if seconds is None:
        raise ValueError("is no time: say 90s or 2m")
    return seconds


class Diagnose(Model):
    """How long `launch` may look for the causes of the costliest findings; 0: not at all."""

    budget: Annotated[float, BeforeValidator(_time), Field(ge=0)] = 120.0  # s; 90s, 2m


class AuditConfig(Model):
    """A whole configuration file, variants already resolved to complete jobs."""

    name: str
    variants: dict[str, Job]
    baseline: str
    repeats: int = Field(default=4, ge=1, le=1000)
    warmup_runs: int = Field(default=1, ge=0, le=1000)  # discarded ones, of the variants in turn
    capture: Capture = Capture()
    energy: Energy = Energy()
    compare: Compare = Compare()
    diagnose: Diagnose = Diagnose()
    runs: Annotated[Path, BeforeValidator(_folder)] = Path("runs")  # absolute after loading
