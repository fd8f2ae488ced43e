"""One run in the text format of Prometheus, for the textfile collector of a node exporter, or a push gateway.

What is not known has no sample: an unmeasured joule is not 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from magneton_dist.energy.summary import RankSummary
from magneton_dist.records.host_times import IDLE
from magneton_dist.records.manifest import Manifest

Labels = Mapping[str, object]
Sample = tuple[Labels, float]


def prometheus_text(manifest: Manifest, ranks: Mapping[int, RankSummary]) -> str:
    """The run's figures, each rank's apart."""
    run = {"audit": manifest.audit, "variant": manifest.variant, "repeat": manifest.repeat}
    metrics = (
        ("state_seconds", "Time of a rank's device in a state.", _states(ranks, joules=False)),
        ("state_joules", "Energy of a rank's device in a state; kind says where it comes from.",
         _states(ranks, joules=True)),
        ("rank_joules", "Energy of a rank's device; kind says where it comes from.", _ranks(ranks)),
        ("wait_seconds", "Time of a rank in collectives before culprit arrived, the last of its ranks.",
         _waits(ranks)),
        ("idle_seconds", "Time of a rank's device without work, by cause.", _idle(ranks)),
        ("steps", "Steps of a rank in the audited window.", [({"rank": r}, s.steps) for r, s in ranks.items()]),
        ("window_seconds", "Length of the audited window.", [({"rank": r}, s.window_s) for r, s in ranks.items()]),
    )  # fmt: skip
    lines = []
    for name, meaning, samples in metrics:
        rows = [f"magneton_dist_{name}{_labels(run | dict(labels))} {value:.9g}" for labels, value in samples]
        if rows:
            lines += [f"# HELP magneton_dist_{name} {meaning}", f"# TYPE magneton_dist_{name} gauge", *rows]
    return "\n".join(lines) + "\n"


def _states(ranks: Mapping[int, RankSummary], *, joules: bool) -> Iterator[Sample]:
    for rank, summary in ranks.items():
        for key, share in sorted(summary.states.items()):
            phase, _, activity = key.partition("/")
            labels = {"rank": rank, "node": summary.node, "phase": phase, "activity": activity}
            if not joules:
                yield labels, share.s
            elif share.j is not None:
                yield labels | {"kind": summary.energy_kind}, share.j


def _ranks(ranks: Mapping[int, RankSummary]) -> Iterator[Sample]:
    for rank, summary in ranks.items():
        if summary.energy_j is not None:
            labels = {"rank": rank, "node": summary.node, "device": summary.device, "kind": summary.energy_kind}
            yield labels, summary.energy_j


def _waits(ranks: Mapping[int, RankSummary]) -> Iterator[Sample]:
    for rank, summary in ranks.items():
        named = summary.waits.filter(pl.col("culprit").is_not_null()) if summary.waits.height else summary.waits
        if named.height:
            for culprit, seconds in named.group_by("culprit").agg(pl.col("wait_s").sum()).sort("culprit").iter_rows():
                yield {"rank": rank, "culprit": culprit}, seconds


def _idle(ranks: Mapping[int, RankSummary]) -> Iterator[Sample]:
    for rank, summary in ranks.items():
        idle = summary.host_times.filter(pl.col("kind").is_in(IDLE))
        for kind, ns in idle.group_by("kind").agg(pl.col("duration_ns").sum()).sort("kind").iter_rows():
            yield {"rank": rank, "cause": kind}, ns / 1e9


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(c, c) for c in text)


_ESCAPES: Mapping[str, str] = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
