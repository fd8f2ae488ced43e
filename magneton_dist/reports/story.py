"""What an audit says in sentences, for every report: the verdict, who burnt what, what is doubtful."""

from __future__ import annotations

from dataclasses import dataclass

from magneton_dist.records.audit import (
    Audit,
    Comparison,
    Counterfactual,
    EnergyKind,
    Finding,
    RankResult,
    VariantResult,
)
from magneton_dist.reports.figures import one_line, percent, quantity
from magneton_dist.reports.palette import WASTE, split_key

_UNEXPLAINED = 0.25  # of the ranks' time: with more than this unknown, "no waste found" alone would mislead
_RESIDUAL = 0.005  # of a rank's joules: below it, a residual is rounding and not worth a colour


@dataclass(frozen=True)
class Headline:
    """The verdict in one sentence, the sentence that gives its reason, and whether it is about waste."""

    verdict: str
    sentence: str
    reason: str
    waste: bool


def headline(audit: Audit) -> Headline:
    """The one sentence a reader must see first."""
    if audit.comparison is not None:
        return comparison_headline(audit.comparison, audit.energy_kind)
    names = ", ".join(one_line(name, 60) for name in audit.variants) or "nothing"
    if not any(variant.runs for variant in audit.variants.values()):
        return Headline("not audited", f"No run of {names} could be counted.", "", waste=False)
    empty = [one_line(name, 60) for name, variant in audit.variants.items() if not variant.runs]
    if empty:
        why = f"Nothing that was recorded of {', '.join(empty)} can be counted, so nothing was compared."
        return Headline("not compared", why, "", waste=False)
    if not audit.findings:
        part = "what was recorded of " if doubts(audit) else ""
        unexplained = _unexplained(audit)
        found = f"No waste found in {part}{names}{unexplained}."
        return _uneven(audit, names, unexplained) or Headline("audited alone", found, "", waste=False)
    worst = audit.findings[0]
    return Headline("audited alone", f"{names}: {one_line(worst.title)}", _cost_sentence(worst), waste=True)


def _unexplained(audit: Audit) -> str:
    """How much of the ranks' time is in no known state, or idle for no known cause, where that is much; else empty."""
    total = unknown = 0.0
    for variant in audit.variants.values():
        for rank in variant.ranks:
            states = shown_states(rank)
            total += sum(seconds for seconds, _ in states.values())
            # what is known to be collectives is no mystery, though not known for whom they waited
            unknown += max(0.0, states.get("unresolved", (0.0, None))[0] - rank.unjoined_s)
            told = sum(seconds for cause, seconds in rank.idle_s.items() if cause != "unknown")
            unknown += max(0.0, states.get("idle", (0.0, None))[0] - told)
    return f", but {percent(unknown / total)} of the time is unexplained" if unknown > _UNEXPLAINED * total else ""


def _uneven(audit: Audit, names: str, unexplained: str) -> Headline | None:
    """That the job would be faster with equal ranks, and what does most of it, where no finding says who is late."""
    alike = next((c for c in audit.counterfactuals if c.kind == "ranks"), None)
    if alike is None:
        return None
    told = f"{names} would take {percent(alike.saved_share)} less time with {one_line(alike.what)}{unexplained}."
    others = [c for c in audit.counterfactuals if c.kind != "ranks"]
    most = max(others, key=lambda c: c.saved_share, default=None)
    why = "" if most is None else f"{one_line(most.what)} alone, as fast as its like, {percent(most.saved_share)} less."
    return Headline("audited alone", told, why, waste=False)


def is_baseline(audit: Audit, name: str) -> bool:
    """Is this variant what the others are compared with, or the only one?"""
    if audit.comparison is not None:
        return name == audit.comparison.baseline
    return audit.variants[name].runs > 0 and next(iter(audit.variants)) == name


def saved_joules(found: Counterfactual) -> str:
    """The joules that a counterfactual saves, in words; more may be needed for less time."""
    if found.saved_j is None:
        return "unmeasured"
    if found.saved_j < 0:
        return f"none, {quantity(-found.saved_j, 'J', 3)} more"
    return quantity(found.saved_j, "J", 3)


def saved_words(audit: Audit) -> str:
    """What the joules of counterfactuals are, and why a finding's are fewer; empty where none are known."""
    joules = [c.saved_j for c in audit.counterfactuals if c.saved_j is not None]
    if not joules:
        return ""
    words = (
        "Joules saved are all that the devices would draw in the time saved. A wait costs less in a finding: only what "
        "a device draws beyond idling while it waits, in a job that takes as long."
    )
    if min(joules) < 0:
        words += (
            " What needs more joules is faster than its like for the most part: at their pace it would work longer, "
            "but the job waits for the few times at which it is slow, and would end sooner."
        )
    return words


def comparison_headline(comparison: Comparison, kind: EnergyKind) -> Headline:
    """A comparison as a sentence; the reason is the comparison's own."""
    base, other = one_line(comparison.baseline, 60), one_line(comparison.candidate, 60)
    reason = one_line(comparison.reason, 600)
    if comparison.by == "values":
        return Headline(comparison.verdict, _VALUES[comparison.verdict].format(base, other), reason, waste=False)
    by = _SUBJECTS[comparison.by]
    ratio = {
        "energy": comparison.energy_ratio, "time": comparison.time_ratio, "memory": comparison.memory_ratio,
    }[comparison.by]  # fmt: skip
    if ratio is None:
        sentence = f"The {by.amounts} of {base} and {other} are unknown; only their times compare."
        return Headline(comparison.verdict, sentence, reason, waste=False)
    cheap, dear = (other, base) if ratio.mean < 1 else (base, other)
    # of the dearer one's, whichever of the two it is
    share = percent(1 - min(ratio.mean, 1 / ratio.mean))
    if comparison.by == "energy" and kind != "measured":
        share += f" ({kind})"
    if comparison.verdict == "waste":
        sentence = f"{dear} wastes {share} of its {by.noun}: {cheap} does the same work without it."
    elif comparison.verdict == "trade-off":
        sentence = f"A trade-off: {cheap} {by.verb}s {share} less than {dear}, at a price."
    elif comparison.verdict == "no difference":
        sentence = f"No difference: {base} and {other} {by.verb} the same."
    else:
        sentence = f"Inconclusive: {base} and {other} cannot be told apart yet."
    return Headline(comparison.verdict, sentence, reason, waste=comparison.verdict == "waste")


@dataclass(frozen=True)
class _Subject:
    """What a comparison is about, in words."""

    noun: str
    amounts: str
    verb: str


_SUBJECTS = {
    "energy": _Subject("energy", "joules", "burn"),
    "time": _Subject("time", "times", "take"),
    "memory": _Subject("memory at a step's peak", "peaks of memory", "hold"),
}
_VALUES = {
    "no difference": "{} and {} compute the same values.",
    "trade-off": "{} and {} compute different values.",
    "inconclusive": "Whether {} and {} compute the same values is not known.",
}


def shown_states(rank: RankResult) -> dict[str, tuple[float, float | None]]:
    """Seconds and joules per shown state of one rank; joules are None where any part is unmeasured.

    What the device burnt beyond its states is the state ``residual``, of no seconds.
    """
    sums: dict[str, tuple[float, float | None]] = {}
    for key, share in rank.states.items():
        seconds, joules = sums.get(split_key(key), (0.0, 0.0))
        sums[split_key(key)] = (
            seconds + share.s,
            None if joules is None or share.j is None else joules + share.j,
        )
    if rank.energy_j is not None:
        residual = rank.energy_j - sum(j or 0.0 for _, j in sums.values())
        if residual > _RESIDUAL * rank.energy_j:
            sums["residual"] = (0.0, residual)
    return sums


_IDLE = {
    "loader": "the loader", "host": "a host that has launched nothing", "launch": "between launch and start",
    "unknown": "unknown",
}  # fmt: skip


def idle_sentence(variant: VariantResult) -> str:
    """How much of communication is hidden, and why devices idled, of traces; else empty."""
    causes: dict[str, float] = {}
    states: dict[str, float] = {}
    for rank in variant.ranks:
        for kind, seconds in rank.idle_s.items():
            causes[kind] = causes.get(kind, 0.0) + seconds
        for name, (seconds, _) in shown_states(rank).items():
            states[name] = states.get(name, 0.0) + seconds
    if not causes:
        return ""
    total = sum(states.values()) or 1.0
    parts = [f"{_IDLE[kind]} {percent(causes[kind] / total)}" for kind in _IDLE if causes.get(kind)]
    communicating = sum(states.get(name, 0.0) for name in ("overlap", "transfer", "wait"))
    communicating += sum(rank.unjoined_s for rank in variant.ranks)  # not hidden, if not known whether it waited
    hidden = ""
    if communicating:
        share = percent(states.get("overlap", 0.0) / communicating)
        hidden = f"{share} of the time in collectives is hidden behind compute. "
    return f"{hidden}Devices idled {percent(states.get('idle', 0.0) / total)} of the time: {', '.join(parts)}."


def worst_ranks(audit: Audit, most: int) -> tuple[list[int], int]:
    """At most `most` ranks, the same for every variant, and how many are left out.

    In rank order if all fit; else those first that a finding names alone, as the one that all others wait for,
    then those that waste most in any variant: joules in shadow, then joules in shadow and waits, then seconds in
    both.
    """
    named = {finding.ranks[0] for finding in audit.findings if len(finding.ranks) == 1}
    worst: dict[int, tuple[float, float, float]] = {}
    for result in audit.variants.values():
        for rank in result.ranks:
            worst[rank.rank] = max(_wasted(rank), worst.get(rank.rank, (0.0, 0.0, 0.0)))
    if len(worst) <= most:
        return sorted(worst), 0
    first = sorted(worst, key=lambda r: (r not in named, *(-amount for amount in worst[r]), r))
    return first[:most], len(worst) - most


def _wasted(rank: RankResult) -> tuple[float, float, float]:
    states = shown_states(rank)
    both = [states.get(name, (0.0, 0.0)) for name in WASTE]
    shadow = states.get("shadow", (0.0, 0.0))[1] or 0.0
    return shadow, sum(j or 0.0 for _, j in both), sum(s for s, _ in both)


def doubts(audit: Audit) -> list[str]:
    """What a reader must know before trusting the figures: failed runs first, then what is missing."""
    failed = [
        f"{one_line(name, 60)}: {sum(map(bool, result.exit_codes))} of {len(result.exit_codes)} runs failed "
        f"(exit codes {', '.join(map(str, result.exit_codes))})"
        for name, result in audit.variants.items()
        if any(result.exit_codes)
    ]
    return failed + [one_line(text, 600) for text in audit.missing]


def _cost_sentence(finding: Finding) -> str:
    if finding.joules is None:
        return f"It costs {quantity(finding.seconds, 's')}; its joules are unmeasured."
    share = f", {percent(finding.share)} of the run" if finding.share is not None else ""
    return f"It costs {quantity(finding.joules.mean, 'J')} ({finding.energy_kind}){share}."

