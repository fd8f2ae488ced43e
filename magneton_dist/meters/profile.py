"""A device's watts by state and by class of operator: nominal, range and source of each."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from magneton_dist.errors import ConfigError, InputError
from magneton_dist.meters.sensor import Sensor

PROFILES = Path(__file__).parent / "profiles"

StateKey = Literal["bare_idle", "context_idle", "wait", "transfer", "compute"]
OperatorKey = Literal["layer_norm", "tiny_copy", "memory_bound", "attention", "matmul", "matmul_tf32"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Watts(_Strict):
    """Power of one state, W; `source` says where the figures come from."""

    nominal: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _ordered(self) -> Watts:
        if not self.low <= self.nominal <= self.high:
            raise ValueError(f"low {self.low} <= nominal {self.nominal} <= high {self.high} does not hold")
        return self


class Profile(_Strict):
    """Watts of one kind of device.

    Attributes:
        name: short name.
        device: what it is a model of.
        names: regular expression for the names, as drivers report them, of the devices that it is a model of; case
            does not matter. Empty where it is chosen by name or file only.
        caution: what its figures must not be taken for.
        watts: by device state.
        operators: by class of operator; a class without figures of its own has those of computing as a whole.
        sensor: of the meter that measured them (`calibrate`); None in a profile from publications.
    """

    name: str
    device: str
    names: str = ""
    caution: str
    watts: dict[StateKey, Watts]
    operators: dict[OperatorKey, Watts] = Field(default_factory=dict)
    sensor: Sensor | None = None

    @model_validator(mode="before")
    @classmethod
    def _every_class(cls, given: Any) -> Any:
        match given:
            case {"watts": {"compute": Watts() as compute}}:
                figures = compute.model_dump()
            case {"watts": {"compute": {"source": str()} as figures}}:
                pass
            case _:
                return given
        own = given.get("operators", {})
        if isinstance(own, dict):
            whole = {**figures, "source": f"no figure of its own, so that of computing: {figures['source']}"}
            return {**given, "operators": {**dict.fromkeys(get_args(OperatorKey), whole), **own}}
        return given

    @field_validator("names")
    @classmethod
    def _regular(cls, names: str) -> str:
        try:
            re.compile(names)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return names

    @model_validator(mode="after")
    def _complete(self) -> Profile:
        missing = [key for key in get_args(StateKey) if key not in self.watts]
        if missing:
            raise ValueError(f"watts: {', '.join(missing)} missing")
        return self

    @property
    def source(self) -> str:
        """What joules modelled with it are, in words."""
        return f"modelled: {self.device} by state, profile {self.name}. {self.caution.rstrip('.')}"

    def states(self) -> dict[str, Watts]:
        """Watts by key, with ``unresolved``: without kernel data it may be anything from idle to compute."""
        idle, compute = self.watts["context_idle"], self.watts["compute"]
        unresolved = Watts(
            nominal=(idle.nominal + compute.nominal) / 2,
            low=min(idle.low, compute.low),
            high=max(idle.high, compute.high),
            source="not known to be idle or compute: the whole range between them",
        )
        states: dict[str, Watts] = {key: self.watts[key] for key in get_args(StateKey)}
        return states | {"unresolved": unresolved}

    def nominal(self) -> dict[str, float]:
        """Nominal watts by key of `states`."""
        return {key: watts.nominal for key, watts in self.states().items()}

    def corners(self) -> list[dict[str, float]]:
        """Every combination of lowest and highest watts.

        A run's joules are linear in each key's watts, so the ratio of two runs is monotone in each, and its
        extremes over the whole range lie at corners.
        """
        states = self.states()
        ends = [sorted({watts.low, watts.high}) for watts in states.values()]
        return [dict(zip(states, corner, strict=True)) for corner in itertools.product(*ends)]


def load_profile(spec: str) -> Profile:
    """Profile by name (``h200``) or path of a YAML file.

    Raises:
        ConfigError: there is no such profile, or it is not a valid one.
    """
    path = PROFILES / f"{spec}.yaml" if spec.isidentifier() else Path(spec)
    try:
        return _read(path, path.stat().st_mtime_ns)
    except FileNotFoundError as error:
        known = ", ".join(sorted(p.stem for p in PROFILES.glob("*.yaml")))
        raise ConfigError(
            f"no such profile: {spec}", where="energy.meter", do=f"use {known}, or the path of a profile"
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        raise ConfigError(what, where=str(path), do="give a readable YAML file") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ": ".join([str(path), *(str(part) for part in first["loc"])])
        raise ConfigError(first["msg"], where=where, do="compare it with the h200 profile") from error


def profile_of(device: str) -> Profile | None:
    """The profile of the device with this name (``Tesla V100-SXM2-16GB``); None where nobody published its watts."""
    for path in sorted(PROFILES.glob("*.yaml")):
        profile = load_profile(path.stem)
        if profile.names and re.search(profile.names, device, re.IGNORECASE):
            return profile
    return None


@cache
def _read(path: Path, _changed_ns: int) -> Profile:
    """The profile in a file that last changed then; every rank of an audit asks for it."""
    return Profile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile as YAML that `load_profile` reads, at once or not at all.

    Raises:
        InputError: it cannot be written.
    """
    text = yaml.safe_dump(profile.model_dump(exclude_none=True), sort_keys=False, allow_unicode=True, width=110)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), do="give another path") from error
