"""What `audit.json` says: the result of an audit, as typed JSON.

Numbers are SI (s, J, W, bytes). `energy_kind` is the provenance of joules: measured, replayed, apportioned,
modelled or unmeasured. An unknown figure is null, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

AUDIT_VERSION = 1

EnergyKind = Literal["measured", "replayed", "apportioned", "modelled", "unmeasured"]
Verdict = Literal["waste", "no difference", "trade-off", "inconclusive"]
FindingKind = Literal[
    "region", "schedule", "trade-off",
    "shadow-collective", "straggler-wait", "redundant-collective", "redundant-op", "dead-op", "useless-copy",
    "host-idle", "host-spin", "context-idle", "knob", "residual",
]


class Interval(msgspec.Struct, frozen=True):
    """A mean and its 95 % confidence interval; `ci95` is null when there are too few repeats for one."""

    mean: float
    ci95: tuple[float, float] | None = None


class StateShare(msgspec.Struct, frozen=True):
    """Seconds and joules of one device state; `j` is null when unmeasured."""

    s: float
    j: float | None = None


class Corroboration(msgspec.Struct, frozen=True):
    """Whether a device's performance monitors say the same of a state as the collectives do; it changes nothing."""

    verdict: Literal["agrees", "contradicts", "not available"]
    reason: str  # what they showed per monitor, or why they tell nothing


class RankResult(msgspec.Struct, frozen=True):
    """One rank of one variant, means over its repeats. `states` keys read ``phase/activity``.

    `idle_s` says why its device idled; of traces, and of launched jobs only the loader: loader, host (it had launched
    nothing), launch (launched, not yet begun), unknown. `unjoined_s` is the part of the unresolved time in which only
    collectives ran on the device.
    `monitors` says of the states of collectives whether NVLink and DRAM traffic corroborates them; GPUs only.
    """

    rank: int
    node: str
    device: str
    energy_j: float | None
    states: dict[str, StateShare]
    steps: int = 0
    units: float | None = None
    contention: float | None = None  # share of wanted CPU time spent waiting for a core
    collectives: int = 0
    exit_code: int | None = None
    idle_s: dict[str, float] = {}
    unjoined_s: float = 0.0
    monitors: dict[str, Corroboration] = {}


class VariantResult(msgspec.Struct, frozen=True):
    """One variant over its repeats."""

    runs: int
    energy_j: Interval | None
    energy_per_unit_j: Interval | None
    time_s: Interval
    values_agree: bool | None  # with the baseline's; null when it could not be checked
    ranks: list[RankResult]
    unit: str | None = None
    steps: int = 0
    units: float | None = None
    command: list[str] = []
    exit_codes: list[int] = []
    values_error: float | None = None  # largest relative difference of a parameter's digest to the baseline's


class Comparison(msgspec.Struct, frozen=True):
    """Candidate against baseline; ratios are candidate / baseline (below 1: the candidate is cheaper)."""

    baseline: str
    candidate: str
    energy_ratio: Interval | None
    time_ratio: Interval
    noise: float | None  # relative spread between repeats of the same variant
    verdict: Verdict
    reason: str
    saved_j: Interval | None = None  # by the candidate, of the baseline's work
    saved_share: float | None = None  # of the baseline's joules
    # how the verdict behaves over the range of the profile's watts, when modelled
    energy_ratio_range: tuple[float, float] | None = None
    hungrier: str | None = None  # the variant shown to burn more per unit of work; null when none is
    by: Literal["energy", "time", "memory", "values"] = "energy"  # what the verdict is about
    memory_ratio: Interval | None = None  # of the peaks of a traced step
    covered: float | None = None  # share of the traced steps' cost in regions that match, the lesser of both sides'


class OperatorsAt(msgspec.Struct, frozen=True):
    """Operators in a variant's record, on one rank that shows what all do."""

    repeat: int
    rank: int
    step: int
    op_ids: list[int]


class Place(msgspec.Struct, frozen=True):
    """Where in the job: steps, what ran, and the user's source lines (innermost first)."""

    steps: tuple[int, int] | None = None
    what: str = ""
    stack: list[str] = []  # "file:line function"
    operators: dict[str, OperatorsAt] = {}  # by variant: one place of those that differ


class Cause(msgspec.Struct, frozen=True):
    """What makes the difference: a flag, an argument, a call; its value in each variant."""

    layer: str  # setting, environment, argument; branch or call in Python; rank or schedule of a wait
    name: str
    values: dict[str, str] = {}
    statements: dict[str, str] = {}  # by variant: what to type to have it so
    agreed: list[str] = []  # by: snapshot, read-set, knob map, key variable, counterfactual, records, stacks, lines
    seconds: dict[str, float] = {}  # by variant: of one call of the operator, made again in a fresh process
    joules: dict[str, float] = {}  # the same of the first variant, and with the cause alone as in the other
    energy_kind: EnergyKind = "unmeasured"  # of `joules`


class Finding(msgspec.Struct, frozen=True):
    """One piece of waste, or one trade-off worth knowing."""

    kind: FindingKind
    title: str
    variant: str
    joules: Interval | None
    energy_kind: EnergyKind
    share: float | None  # of the variant's joules
    seconds: float
    ranks: list[int]
    where: Place
    # one array type only: msgspec cannot tell two apart
    evidence: dict[str, float | int | str | Sequence[int | str]]
    fix: str
    cause: Cause | None = None
    proof: Literal["none", "consistent", "proved"] = "none"
    confidence: float = 1.0
    bytes: float | None = None  # per step, where memory or traffic is what was compared
    diagnosis: list[str] = []  # what was tried to find the cause and what came of it, in words


class RegionOperator(msgspec.Struct, frozen=True):
    """One operator of a region, on the rank that is shown."""

    name: str
    phase: str  # forward, backward, optimizer or other
    inputs: list[str]  # "float32[8, 1024]"
    outputs: list[str]
    stack: int | None  # index into the side's stacks
    seconds: float | None
    joules: float | None
    bytes: int


class RegionSide(msgspec.Struct, frozen=True):
    """One variant's side of a region: per step, all ranks and places together."""

    joules: Interval | None
    seconds: float
    bytes: int  # read and written
    memory_bytes: int  # of what is alive at the step's peak, what these operators made
    kernels: int | None  # intervals on the device; null where none were captured
    operators: int
    shown: list[RegionOperator] = []  # of one place on one rank, the first of them in order of execution
    hidden: int = 0  # operators of that place that are left out of `shown`
    stacks: list[list[str]] = []  # of `shown`: "file:line function", innermost first


class RegionResult(msgspec.Struct, frozen=True):
    """Operators of two variants that do the same work, or that only one of them runs.

    Ratios are candidate / baseline, differences candidate - baseline.
    """

    title: str
    baseline: str
    candidate: str
    kind: Literal["matched", "one-sided", "unmatched"]
    judgement: str  # in words: whether it differs, and if not or not surely, why
    phases: list[str]
    places: int  # identical regions of a rank
    line: str  # the innermost line of source that all operators of both sides share
    sides: dict[str, RegionSide]
    energy_kind: EnergyKind
    differs: bool = False  # it is part of a finding
    quantity: Literal["joules", "seconds", "memory", "bytes"] = "joules"  # by which it was judged and ranked
    energy_ratio: Interval | None = None
    energy_ratio_range: tuple[float, float] | None = None  # over the range of the watts of operators' classes
    time_ratio: Interval | None = None
    difference_j: Interval | None = None  # per step
    values_error: float | None = None  # largest relative difference of what both sides make, by fingerprints
    confidence: float = 1.0  # that both sides do the same work
    rank_median_j: float | None = None  # of the difference, per rank and step
    rank_mad_j: float | None = None
    outlier_ranks: list[int] = []
    operators: dict[str, OperatorsAt] = {}  # by variant: one place


class Counterfactual(msgspec.Struct, frozen=True):
    """What the job would take were something as fast as its like; its own schedule, run again.

    That is the median of what is alike; of a timeline's computations the mean.
    """

    what: str  # "rank 7", "allreduce_ of group 0", ...
    kind: Literal["ranks", "rank", "collective", "operation", "stage", "replica"]
    variant: str
    time_s: float  # of the job, then
    saved_s: float  # of its time
    saved_share: float  # of its time
    saved_j: float | None = None  # negative: the job would need more, in less time
    energy_kind: Literal["modelled", "unmeasured"] = "unmeasured"  # of joules that were never burnt


class Machine(msgspec.Struct, frozen=True):
    """Where it ran; of its hosts' processors, only what this host knows of itself: else empty and 0."""

    hosts: list[str]
    devices: list[str]
    cpu: str
    cores: int
    versions: dict[str, str]


class Audit(msgspec.Struct, frozen=True):
    """The whole of `audit.json`."""

    name: str
    started: str  # UTC, ISO 8601
    machine: Machine
    energy_kind: EnergyKind
    energy_source: str  # the meter in words: "modelled: NVIDIA H200 profile ...", "NVML energy counter"
    variants: dict[str, VariantResult]
    comparison: Comparison | None  # baseline against the first other variant; null for a variant alone
    findings: list[Finding]
    missing: list[str]
    other_comparisons: list[Comparison] = []  # baseline against each further variant
    regions: list[RegionResult] = []  # of all comparisons, the largest differences first
    counterfactuals: list[Counterfactual] = []  # of traces: those that save most first, below all ranks together
    notes: list[str] = []  # fallbacks taken, disturbances, coverage
    settings: dict[str, dict[str, str]] = {}  # that differ on the lowest rank: name -> variant -> value
    schema_version: int = AUDIT_VERSION
