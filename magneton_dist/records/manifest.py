"""`manifest.json` of one run: what was run, where, with which clocks and meters, and what is missing."""

from __future__ import annotations

import msgspec

from magneton_dist.records.schema import SCHEMA_VERSION


class Clock(msgspec.Struct, frozen=True):
    """Offset of a host's monotonic clock to the coordinator's: add it to the host's times."""

    offset_ns: int = 0
    error_ns: int = 0


class MeterUsed(msgspec.Struct, frozen=True):
    """The meter of one rank's device and why it was chosen."""

    name: str  # modelled:h200, nvml, rapl, null
    provenance: str  # an EnergyKind
    source: str  # in words, with the profile's or sensor's origin
    device: str = ""  # UUID of the metered device; ranks with the same one share it
    reason: str = ""
    monitors: str = ""  # performance monitors seen beside the power, or why none are; empty: not told


class RankRun(msgspec.Struct, frozen=True):
    """One rank of one run."""

    rank: int
    local_rank: int
    node: str
    pid: int | None = None
    device: str = "cpu"
    exit_code: int | None = None
    distributed: bool = True
    meter: MeterUsed | None = None
    truncated: dict[str, int] = {}  # rows left out by the spool's cap, per table
    temperature_c: tuple[float, float] | None = None  # at start and end
    power_cap_w: float | None = None


class Manifest(msgspec.Struct, frozen=True):
    """One run: ``<variant>/<repeat>/manifest.json``."""

    audit: str
    variant: str
    repeat: int
    started: str  # UTC, ISO 8601
    world_size: int
    command: list[str]
    exit_code: int | None  # of the launched command; null when it was killed with its node
    ranks: list[RankRun]
    clocks: dict[str, Clock]  # node -> clock
    versions: dict[str, str]
    seed: int | None = None
    disturbed: list[str] = []  # other audits on the machine, throttling, what an import dropped, ...
    missing: list[str] = []  # ranks, records or meters that did not arrive, in words
    stopped: bool = False  # ended on purpose by stop_after_steps
    schema_version: int = SCHEMA_VERSION
    finished: bool | None = None  # all that can be had is here; null: of a version that did not say
