"""What is worth replaying: operators of a traced step that are alike, and collectives, by the joules at stake."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from magneton_dist.energy.operators import moved_bytes, operator_classes
from magneton_dist.energy.replay.signature import signatures
from magneton_dist.energy.replay.worker import SETTINGS
from magneton_dist.errors import RecordError
from magneton_dist.meters.profile import Profile, Watts
from magneton_dist.records.inputs import kept_inputs
from magneton_dist.records.store import RankRecord, RunRecord

# Of a job's environment, what decides which kernels run and can do nothing else.
ENVIRONMENT = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DISABLE_PERF_BOOST", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_CTAS",
    "NCCL_MIN_CTAS", "NCCL_CTA_POLICY", "NCCL_NTHREADS", "NCCL_NVLS_ENABLE",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What of a job's settings a replay takes over."""

    environment: dict[str, str]
    switches: dict[str, str]

    @classmethod
    def of(cls, knobs: pl.DataFrame) -> Settings:
        """From a rank's `KNOBS`."""
        known = dict(knobs.iter_rows())
        return cls(
            {name: known[f"env.{name}"] for name in ENVIRONMENT if f"env.{name}" in known},
            {name: known[name] for name in SETTINGS if name in known},
        )

    @property
    def key(self) -> str:
        """Equal for equal settings."""
        return json.dumps([self.environment, self.switches], sort_keys=True)


@dataclass(frozen=True)
class Candidate:
    """Calls that are alike, of one variant.

    Attributes:
        key: signature; equal for calls of the same operator on tensors and arguments of the same kind.
        name: of the operator or collective.
        kind: its class, ``collective`` for collectives.
        question: what a worker is told to make: ``do`` and ``with``.
        settings: under which it ran.
        ranks: processes that do it together; 0 for an operator.
        hosts: on which these ran together, of a collective of several hosts; else empty.
        tensors: type and shape of what it reads.
        inputs: what it works on: random, recorded or partly recorded.
        calls: per step, by variant.
        seconds: of one call, as recorded.
        watts: what its class may draw; None where no profile knows.
    """

    key: str
    name: str
    kind: str
    question: dict[str, Any]
    settings: Settings
    ranks: int
    calls: dict[str, float]
    seconds: float
    watts: Watts | None
    on_cpu: bool
    tensors: str
    inputs: str = "random"
    hosts: tuple[str, ...] = ()
    variants: set[str] = field(default_factory=set)

    @property
    def stake_j(self) -> float:
        """Joules per step that may be wrong: the width of its class's watts over its time."""
        width_w = self.watts.high - self.watts.low if self.watts else 0.0
        return width_w * self.seconds * max(self.calls.values())

    def gain_j(self, variants: int) -> float:
        """Of them, what makes a difference: where several variants ran, what some do more often than others."""
        most, calls = max(self.calls.values()), list(self.calls.values())
        least = min(calls) if len(calls) == variants > 1 else 0.0
        return self.stake_j * (most - least) / most


def candidates(
    ranks: Mapping[str, RankRecord], profile: Profile, groups: Mapping[str, Mapping[str, tuple[str, ...]]] | None = None
) -> list[Candidate]:
    """What the variants' traced steps and collectives come down to, most joules at stake first.

    Args:
        ranks: one rank of each variant.
        profile: watts by class of operator; `context_idle` where it has none.
        groups: by variant, hosts of the process groups that span several (`groups_across_hosts`).
    """
    found: dict[tuple[str, str], Candidate] = {}
    for variant, record in ranks.items():
        settings = Settings.of(record.knobs)
        across = (groups or {}).get(variant, {})
        for made in [*_operators(record, settings, profile), *_collectives(record, settings, profile, across)]:
            same = found.setdefault((made.key, settings.key), made)
            same.calls[variant] = made.calls[""]
            same.calls.pop("", None)
            same.variants.add(variant)
    return sorted(found.values(), key=lambda c: (-c.gain_j(len(ranks)), -c.stake_j, c.name))


def groups_across_hosts(run: RunRecord) -> dict[str, tuple[str, ...]]:
    """Names of the process groups of a run whose ranks ran on several hosts, with these hosts.

    A group of which a rank left no record, in a run on several hosts, counts as one that spans them all.
    """
    node = {rank.rank: rank.node for rank in run.manifest.ranks}
    every = tuple(sorted(set(node.values())))
    if len(every) < 2:
        return {}
    spans: dict[str, set[str]] = {}
    ranks: dict[str, int] = {}
    size: dict[str, int] = {}
    for rank, record in run.ranks.items():
        known = RankRecord(record.folder).collectives.select(pl.col("group").fill_null(""), "group_size").unique()
        for group, group_size in known.unique("group").iter_rows():
            spans.setdefault(group, set()).add(node.get(rank, f"that of rank {rank}"))
            ranks[group], size[group] = ranks.get(group, 0) + 1, group_size
    whole = {group for group in spans if ranks[group] >= size[group]}
    found = {group: tuple(sorted(hosts)) if group in whole else every for group, hosts in spans.items()}
    return {group: hosts for group, hosts in found.items() if len(hosts) > 1}


def _operators(record: RankRecord, settings: Settings, profile: Profile) -> list[Candidate]:
    ops = record.ops.filter(pl.col("name").str.starts_with("aten."))
    if not ops.height:
        return []
    steps = ops["step"].n_unique()
    ops = ops.with_columns(
        key=signatures(ops, record.values),
        kind=pl.Series(operator_classes(ops, moved_bytes(ops, record.values)), dtype=pl.String),
        seconds=(pl.col("end_ns") - pl.col("start_ns")) / 1e9,
    ).filter(pl.col("kind").is_in(list(profile.operators)) & pl.col("seconds").is_not_null())
    alike = ops.group_by("key", maintain_order=True).agg(
        pl.exclude("seconds", "key").first(), pl.col("seconds").min(), calls=pl.len() / steps
    )
    wanted = alike["inputs"].list.explode().append(alike["outputs"].list.explode()).unique()
    rows = record.values.filter(pl.col("value_id").is_in(wanted.implode())).to_dicts()
    described = {str(row["value_id"]): row for row in rows}
    for value, path in kept_inputs(record.folder).items():
        if str(value) in described:
            described[str(value)]["path"] = str(path)
    return [
        Candidate(
            key=row["key"], name=row["name"], kind=row["kind"], question=_question(row, described, record),
            settings=settings, ranks=0, calls={"": row["calls"]}, seconds=row["seconds"],
            watts=profile.operators[row["kind"]],
            on_cpu=all(described[str(v)]["device"] == "cpu" for v in row["inputs"] if str(v) in described),
            tensors=", ".join(_described(described[str(v)]) for v in row["inputs"] if str(v) in described),
            inputs=_contents([described.get(str(v), {}) for v in row["inputs"]]),
        )
        for row in alike.to_dicts()
    ]  # fmt: skip


def _contents(inputs: Sequence[Mapping[str, Any]]) -> str:
    recorded = sum("path" in value for value in inputs)
    if not recorded:
        return "random"
    return "recorded" if recorded == len(inputs) else "partly recorded"


def _described(value: Mapping[str, Any]) -> str:
    return f"{value['dtype']}{value['shape'] or []}"


def _question(
    row: Mapping[str, Any], described: Mapping[str, Mapping[str, Any]], record: RankRecord
) -> dict[str, Any]:
    wanted = ("storage", "offset", "shape", "stride", "dtype", "device", "role", "path")
    ids = [str(v) for v in dict.fromkeys([*row["inputs"], *row["outputs"]]) if str(v) in described]
    values = {v: {name: described[v][name] for name in wanted if name in described[v]} for v in ids}
    try:
        arguments = json.loads(row["arguments"])
    except (TypeError, ValueError) as error:
        what = f"arguments of {row['name']} are no JSON"
        raise RecordError(what, where=str(record.folder / "ops.parquet"), do="record the run again") from error
    with_ = {"name": row["name"], "arguments": arguments, "values": values, "seed": 0}
    return {"do": "operator", "with": with_}


def _collectives(
    record: RankRecord, settings: Settings, profile: Profile, across: Mapping[str, tuple[str, ...]]
) -> list[Candidate]:
    steps = max(1, record.steps.height)
    names = {group: ", ".join(hosts) for group, hosts in across.items()}
    hosts = pl.col("group").fill_null("").replace_strict(names, default="", return_dtype=pl.String)
    alike = (
        record.collectives.filter((pl.col("group_size") > 1) & (pl.col("bytes") > 0))
        .group_by("op", "bytes", "dtype", "group_size", hosts.alias("hosts"))
        .agg(seconds=(pl.col("end_ns") - pl.col("start_ns")).min() / 1e9, calls=pl.len() / steps)
        .drop_nulls()
    )
    on_cpu = not record.values["device"].drop_nulls().str.starts_with("cuda").any()
    return [
        Candidate(
            key=f"{row['op']}:{row['bytes']}:{row['dtype']}:{row['group_size']}:{row['hosts']}".removesuffix(":"),
            name=row["op"], kind="collective", hosts=tuple(filter(None, row["hosts"].split(", "))),
            question={
                "do": "collective",
                "with": {"op": row["op"], "payload_bytes": row["bytes"], "dtype": row["dtype"]},
            },
            settings=settings, ranks=row["group_size"], calls={"": row["calls"]}, seconds=row["seconds"],
            watts=profile.watts["transfer"], on_cpu=on_cpu, inputs="random",
            tensors=f"{row['bytes'] / 1e6:.3g} MB of {row['dtype']}, {row['group_size']} ranks",
        )
        for row in alike.to_dicts()
    ]  # fmt: skip
