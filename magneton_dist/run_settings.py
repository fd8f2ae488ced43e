"""What recorded runs were set to and modelled with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from magneton_dist.detect.comparison import RunFacts
from magneton_dist.detect.knobs import Spent, advice
from magneton_dist.detect.runs import weakest
from magneton_dist.detect.source_lines import user_frames
from magneton_dist.meters import Profile, load_profile
from magneton_dist.pipeline import MODELLED
from magneton_dist.records.audit import StateShare
from magneton_dist.records.store import RunRecord
from magneton_dist.timeline.states import CPU

STANDS_IN = "h200"  # profile of a device that nobody modelled: what an idle one would draw

Runs = Mapping[str, Mapping[int, RunRecord]]  # by variant and the number of the repeat


def watts_of(facts: Mapping[str, Sequence[RunFacts]]) -> tuple[Profile, list[str]]:
    """The profile that most ranks were modelled with, an H200's where none was; what it stands in for, in words."""
    meters = [rank.meter for of_variant in facts.values() for f in of_variant for rank in f.manifest.ranks]
    named = Counter(m.name.removeprefix(MODELLED) for m in meters if m is not None and m.provenance == "modelled")
    if not named:
        return load_profile(STANDS_IN), []
    (most, _), *others = named.most_common()
    told = "ranks were modelled as {}; findings and ranges take the watts of {} for them"
    notes = [told.format(name, most) for name, _ in others]
    return load_profile(most), notes


def snapshots(facts: Mapping[str, Sequence[RunFacts]], runs: Runs) -> dict[str, dict[str, str]]:
    """Settings of the lowest rank of each variant."""
    knobs: dict[str, dict[str, str]] = {}
    for variant, of_variant in facts.items():
        for f in of_variant[:1]:
            ranks = runs[variant][f.manifest.repeat].ranks
            for rank in sorted(ranks)[:1]:
                knobs[variant] = dict(ranks[rank].knobs.iter_rows())
    return knobs


def advised(
    knobs: Mapping[str, Mapping[str, str]], facts: Mapping[str, Sequence[RunFacts]], runs: Runs
) -> list[str]:
    """Advice on the settings of each variant (`snapshots`).

    With the line that sets them where its source is here, and with what they can have cost at most in its first run.
    """
    return [
        line
        for name, known in knobs.items()
        for line in advice(name, known, _sources(runs[name].values()), _spent(facts[name][0]))
    ]


def _spent(facts: RunFacts) -> Spent:
    ranks = list(facts.ranks.values())
    by_activity: dict[str, list[StateShare]] = {}
    for rank in ranks:
        for state, share in rank.states.items():
            by_activity.setdefault(state.partition("/")[2], []).append(share)
    sums = {}
    for activity, shares in by_activity.items():
        joules = [share.j for share in shares if share.j is not None]
        sums[activity] = StateShare(sum(s.s for s in shares), sum(joules) if len(joules) == len(shares) else None)
    return Spent(sums, weakest(r.energy_kind for r in ranks), any(r.device != CPU for r in ranks))


def _sources(runs: Iterable[RunRecord]) -> list[Path]:
    """Files of the user's own code on the stacks of the lowest rank of a run."""
    for run in runs:
        for rank in sorted(run.ranks)[:1]:
            files = run.ranks[rank].stacks["frames"].explode().struct.field("file").drop_nulls().unique().sort()
            return [Path(file) for file in user_frames(files.to_list())]
    return []
