"""The page's charts as plain values: state bands with their data island, stacked bars, dots with whiskers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magneton_dist.records.audit import Audit, Comparison, EnergyKind, Interval, RankResult, VariantResult
from magneton_dist.reports.bands import RunBands
from magneton_dist.reports.compact import GAP, MAX_INTERVALS, CompactRank, compact_rank
from magneton_dist.reports.figures import interval, one_line, quantity, ratio_change
from magneton_dist.reports.palette import LOOKS
from magneton_dist.reports.story import idle_sentence, shown_states, worst_ranks

MAX_RANKS = 16
MAX_PAGE_INTERVALS = 120_000  # over all bands of the page
Values = dict[str, object]


@dataclass(frozen=True)
class _Scale:
    """Where a value lies between two ends, in per cent of the chart's width."""

    low: float
    high: float

    def at(self, value: float) -> float:
        return round((value - self.low) / ((self.high - self.low) or 1.0) * 100.0, 3)

    def stretch(self, ends: tuple[float, float] | None) -> tuple[float, float] | None:
        """Left end and width of what lies within the chart."""
        if ends is None:
            return None
        low, high = (min(max(end, self.low), self.high) for end in ends)
        return self.at(low), round(self.at(high) - self.at(low), 3)


WIDEST = 2.0  # of the longest bar: how far a chart of bars may reach for its intervals
_NAMES = {look.code: look.name for look in LOOKS}
_FINISHED = {"s": "shadow", "d": "parked", "r": "released"}


def band_charts(audit: Audit, runs: Sequence[RunBands]) -> tuple[list[Values], Values]:
    """Rows of state bands per run, and the data that the page's script draws them from."""
    worst, _ = worst_ranks(audit, MAX_RANKS)
    shown = [[r for r in worst if r in run.ranks] or sorted(run.ranks)[:MAX_RANKS] for run in runs]
    most = min(MAX_INTERVALS, MAX_PAGE_INTERVALS // max(1, sum(map(len, shown))))
    compact = [
        [compact_rank(run, rank, most) for rank in ranks] for run, ranks in zip(runs, shown, strict=True)
    ]
    charts: list[Values] = []
    for run, ranks in zip(runs, compact, strict=True):
        variant = audit.variants.get(run.variant)
        results = {rank.rank: rank for rank in variant.ranks} if variant else {}
        height = 72 if len(ranks) <= 4 else 52
        charts.append({
            "variant": one_line(run.variant, 120),
            "repeat": run.repeat,
            "kind": run.energy_kind,
            "length": quantity((run.end_ns - run.start_ns) / 1e9, "s"),
            "hidden": len(run.ranks) - len(ranks),
            "slice_us": max((rank["slice_us"] for rank in ranks), default=0.0),
            "ranks": [{
                **_row(rank, results.get(rank["rank"]), audit.energy_kind), "height": height,
                "node": one_line(run.ranks[rank["rank"]].node, 40),
            } for rank in ranks],
        })
    island: Values = {
        "span_us": max((run.end_ns - run.start_ns for run in runs), default=0) / 1e3,
        "max_watts": max((w for ranks in compact for r in ranks for w in r["watts"] if w), default=1.0),
        "looks": _NAMES,
        "runs": [
            {"kind": run.energy_kind, "ranks": [{**rank, **_note(rank)} for rank in ranks]}
            for run, ranks in zip(runs, compact, strict=True)
        ],
    }
    return charts, island


def _row(band: CompactRank, result: RankResult | None, kind: EnergyKind) -> Values:
    """What stands beside a band: its rank and the joules of that rank, means over the repeats."""
    words = ", ".join(f"{name} {quantity(s, 's', 3)}" for name, s in seconds_by_state(band).items())
    row: Values = {"rank": band["rank"], "words": f"rank {band['rank']}: {words}"}
    if result is None:
        return {**row, "total": "", "kind": "", "shadow": ""}
    joules = result.energy_j is not None
    shadow = _amounts(result, joules=joules).get("shadow", 0.0)
    return {
        **row,
        "total": "joules unmeasured" if result.energy_j is None else quantity(result.energy_j, "J", 3),
        "kind": kind if joules else "",
        "shadow": quantity(shadow, "J" if joules else "s", 3) if shadow else "",
    }


def seconds_by_state(rank: CompactRank) -> dict[str, float]:
    """Seconds of each shown state of one band, in the palette's order."""
    sums = dict.fromkeys(rank["codes"].replace(GAP, ""), 0)
    for code, us in zip(rank["codes"], rank["us"], strict=True):
        if code != GAP:
            sums[code] += us
    return {look.name: sums[look.code] / 1e6 for look in LOOKS if look.code in sums}


def _note(rank: CompactRank) -> Values:
    """Where a rank's last work ended and what it did from then on, in words."""
    worked = rank["codes"].rstrip("".join(_FINISHED) + GAP)
    after = dict.fromkeys(_FINISHED, 0)
    for code, us in zip(rank["codes"][len(worked):], rank["us"][len(worked):], strict=True):
        if code in after:
            after[code] += us
    longest = max(after, key=lambda code: after[code])
    if not after[longest]:
        return {}
    return {
        "note": f"no work left: {quantity(after[longest] / 1e6, 's', 3)} {_FINISHED[longest]}",
        "note_us": sum(rank["us"][: len(worked)]),
        "note_waste": longest == "s",
    }


def bar_charts(audit: Audit) -> tuple[Values, list[Values]]:
    """Stacked bars of the whole job and of its ranks, and the table that says the same in figures.

    Joules where all are known, else seconds.
    """
    results = [rank for variant in audit.variants.values() for rank in variant.ranks]
    joules = bool(results) and all(rank.energy_j is not None for rank in results)
    unit = "J" if joules else "s"
    worst, hidden = worst_ranks(audit, MAX_RANKS)
    whole = {name: _job(variant, joules=joules) for name, variant in audit.variants.items()}
    totals = [sum(_amounts(rank, joules=joules).values()) for rank in results]
    rank_scale = _Scale(0.0, max(totals, default=0.0))
    ends = [end for v in audit.variants.values() if v.energy_j and joules for end in v.energy_j.ci95 or ()]
    longest = max((sum(amounts.values()) for amounts in whole.values()), default=0.0)
    # an interval that says nothing must not press the bars flat
    job_scale = _Scale(0.0, min(max([longest, *ends]), WIDEST * longest))
    kind = audit.energy_kind if joules else ""
    jobs = [
        {**_bar(one_line(name, 60), amounts, job_scale, unit, kind),
         **_total(audit.variants[name], job_scale, joules=joules)}
        for name, amounts in whole.items()
    ]
    groups: list[Values] = [{"title": "Whole job, its ranks together", "bars": jobs, "hidden": ""}]
    for name, variant in audit.variants.items():
        by_rank = {rank.rank: rank for rank in variant.ranks}
        bars = [
            _bar(f"rank {number}", _amounts(by_rank[number], joules=joules), rank_scale, unit, kind)
            for number in worst if number in by_rank
        ]
        more = f"{hidden:,} ranks hidden: those shown waste most, or a finding names them alone." if hidden else ""
        below = f"{more} {idle_sentence(variant)}".strip()
        groups.append({"title": one_line(name, 120), "bars": bars, "hidden": below})
    title = "Joules by state" if joules else "Seconds by state"
    caption = (
        f"Joules are {audit.energy_kind}; means over the repeats; whiskers are 95 % intervals." if joules
        else "Joules are unmeasured, so the bars are seconds; means over the repeats."
    )
    return {"title": title, "caption": caption, "groups": groups}, _table(audit, worst)


def _bar(label: str, amounts: dict[str, float], scale: _Scale, unit: str, kind: str) -> Values:
    parts = [
        {
            "name": look.name,
            "width": scale.at(amounts[look.name]),
            "words": f"{look.name} {quantity(amounts[look.name], unit, 3)} {kind}".strip(),
        }
        for look in LOOKS if amounts.get(look.name, 0.0) > 0
    ]
    shadow = amounts.get("shadow", 0.0)
    return {
        "label": label, "parts": parts, "kind": kind, "whisker": None, "ends": "",
        "words": f"{label}: " + ", ".join(str(part["words"]) for part in parts),
        "total": quantity(sum(amounts.values()), unit, 3),
        "shadow": quantity(shadow, unit, 3) if shadow else "",
    }


def _total(variant: VariantResult, scale: _Scale, *, joules: bool) -> Values:
    """A whole job's own mean and whisker in place of the sum of its parts."""
    if not joules or variant.energy_j is None:
        return {}
    mean, ends = interval(variant.energy_j, "J")
    whisker = scale.stretch(variant.energy_j.ci95)
    return {"total": mean, "ends": ends or "no interval", "whisker": whisker}


def _job(variant: VariantResult, *, joules: bool) -> dict[str, float]:
    sums: dict[str, float] = {}
    for rank in variant.ranks:
        for name, amount in _amounts(rank, joules=joules).items():
            sums[name] = sums.get(name, 0.0) + amount
    return sums


def _amounts(rank: RankResult, *, joules: bool) -> dict[str, float]:
    return {name: (j or 0.0) if joules else s for name, (s, j) in shown_states(rank).items()}


def _table(audit: Audit, worst: list[int]) -> list[Values]:
    order = {number: index for index, number in enumerate(worst)}
    rows: list[Values] = []
    for name, variant in audit.variants.items():
        for rank in sorted(variant.ranks, key=lambda r: (order.get(r.rank, len(order)), r.rank)):
            states = shown_states(rank)
            rows += [
                {
                    "variant": one_line(name, 60),
                    "rank": rank.rank,
                    "state": look.name,
                    "s": f"{states[look.name][0]:,.3f}",
                    "j": _joules(states[look.name][1], audit.energy_kind),
                }
                for look in LOOKS if look.name in states
            ]
    return rows


def _joules(joules: float | None, kind: EnergyKind) -> str:
    return "unmeasured" if joules is None else f"{joules:,.2f} {kind}"


def forest(comparison: Comparison, kind: EnergyKind) -> list[Values]:
    """Energy and time of the candidate as changes with their intervals, on one scale."""
    energy, time, noise = comparison.energy_ratio, comparison.time_ratio, comparison.noise
    between = None if noise is None else (1.0 - noise, 1.0 + noise)
    extent = comparison.energy_ratio_range
    ratios = [ratio for ratio in (energy, time) if ratio is not None]
    ends = [1.0, *(between or ()), *(extent or ())]
    ends += [end for ratio in ratios for end in (ratio.mean, *(ratio.ci95 or ()))]
    pad = max(0.08 * (max(ends) - min(ends)), 0.005)
    scale = _Scale(min(ends) - pad, max(ends) + pad)
    lines = [_dot("time", "", time, scale)]
    if energy is not None:
        lines.insert(0, {
            **_dot("energy", kind, energy, scale),
            "noise": scale.stretch(between), "range": scale.stretch(extent),
        })
    return lines


def _dot(label: str, kind: str, ratio: Interval, scale: _Scale) -> Values:
    mean, ends = ratio_change(ratio)
    return {
        "label": label, "kind": kind, "mean": mean, "ends": ends, "noise": None, "range": None,
        "at": scale.at(ratio.mean), "zero": scale.at(1.0), "whisker": scale.stretch(ratio.ci95),
    }
